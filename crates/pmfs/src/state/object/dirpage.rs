//! A new page of a directory: zeroed and fenced first, then adopted in the fence of its first name.
//!
//! The page's old bytes may look like slots that name something, so zeros and adoption do not share a fence. The rest of a
//! long first name is stored along with the zeros, to lines that the zeros leave out.

use std::marker::PhantomData;

use super::dentry::states::{Continued, Free};
use super::dentry::{Dentry, store_continuation};
use super::inode::Inode;
use super::inode::states::Live;
use super::medium::Medium;
use super::name::LongName;
use super::pages::store_descriptor;
use super::persist::{Brand, Clean, Dirty, Fenced, FencedSealed, InFlight, Witness};
use super::token::{FreePages, FreedSlots};
use crate::layout::{
    DESC_BYTES, InodeRef, Life, Page, PageKind, PageOffset, PageState, Place, SLOT_BYTES,
    SLOTS_PER_PAGE,
};

/// Operational states of a [`DirPage`].
pub mod states {
    /// All its slots are free.
    pub struct Zeroed(());
    /// Its slots are free and hold the rest of a long name.
    pub struct Filled(());
    /// It is a page of its directory.
    pub struct Adopted<S>(std::marker::PhantomData<S>);
    /// Its first slots are taken.
    pub struct Opened(());
}
use states::{Adopted, Filled, Opened, Zeroed};

/// A new page of the directory `'d`.
#[must_use]
pub struct DirPage<'d, P, S> {
    m: &'d Medium,
    dir: InodeRef,
    page: Page,
    /// Slots that its first name takes.
    taken: u64,
    /// Whether its zeros are in flight.
    zeros: bool,
    _brand: PhantomData<fn(&'d ()) -> &'d ()>,
    _state: PhantomData<(P, S)>,
}

impl<'d, P, S> DirPage<'d, P, S> {
    #[inline]
    fn in_state<Q, T>(self) -> DirPage<'d, Q, T> {
        DirPage {
            m: self.m,
            dir: self.dir,
            page: self.page,
            taken: self.taken,
            zeros: self.zeros,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }
}

#[inline]
fn begin<'d, S>(
    dir: &Inode<'d, Clean, Live>,
    mut page: FreePages<'_>,
    taken: u64,
) -> DirPage<'d, InFlight, S> {
    DirPage {
        m: dir.m,
        dir: dir.inode,
        page: page.split(1).spend().start,
        taken,
        zeros: true,
        _brand: PhantomData,
        _state: PhantomData,
    }
}

impl<'d> DirPage<'d, InFlight, Zeroed> {
    /// Zeros a page whose first name is going to be short.
    pub fn zero(dir: &Inode<'d, Clean, Live>, page: FreePages<'_>) -> Self {
        let new = begin(dir, page, 1);
        let bytes = SLOTS_PER_PAGE * SLOT_BYTES;
        new.m.region.zero_data(new.page.at(), bytes);
        new
    }
}

impl<'d> DirPage<'d, InFlight, Filled> {
    /// Zeros a page whose first name is going to be this one, and stores its rest.
    pub fn fill(dir: &Inode<'d, Clean, Live>, page: FreePages<'_>, name: &LongName<'_>) -> Self {
        let slots = name.slots();
        let new = begin(dir, page, slots);
        let (m, at) = (new.m, new.page.at());
        m.region.zero_data(at, SLOT_BYTES);
        m.region.zero_data(
            at + slots * SLOT_BYTES,
            (SLOTS_PER_PAGE - slots) * SLOT_BYTES,
        );
        let rest = Place::new(new.page, 0);
        for slot in 1..slots {
            // The line's old bytes are anything: its commit word must be cleared, too.
            m.region.store(Place(rest.0 + slot).at(), 0);
        }
        store_continuation(m, rest, name);
        let len = (slots - 1) * SLOT_BYTES;
        m.region.write_back(at + SLOT_BYTES, len);
        new
    }
}

impl<'d, S> DirPage<'d, Clean, S>
where
    S: NewPage,
{
    /// Stores the descriptor: the page is one of the directory's, at this offset.
    pub fn adopt(self, offset: u64) -> DirPage<'d, Dirty, Adopted<S>> {
        let offset = PageOffset {
            offset,
            kind: PageKind::Directory,
        };
        let life = Life::settled(PageState::Written);
        store_descriptor(self.m, self.page, self.dir, offset, life);
        self.in_state()
    }
}

/// [`Zeroed`] or [`Filled`].
pub trait NewPage: new_page_sealed::Sealed {}
mod new_page_sealed {
    pub trait Sealed {}
}
impl new_page_sealed::Sealed for Zeroed {}
impl new_page_sealed::Sealed for Filled {}
impl NewPage for Zeroed {}
impl NewPage for Filled {}

impl<'d, S> DirPage<'d, Dirty, Adopted<S>> {
    /// Writes the descriptor back.
    #[inline]
    pub fn flush(self) -> DirPage<'d, InFlight, Adopted<S>> {
        let at = self.m.geometry().desc_at(self.page);
        self.m.region.write_back(at, DESC_BYTES);
        self.in_state()
    }
}

impl<'d> DirPage<'d, InFlight, Adopted<Zeroed>> {
    /// Its first slot, for a short name.
    pub fn open<'s>(
        self,
        brand: Brand<'s>,
    ) -> (DirPage<'d, InFlight, Opened>, Dentry<'s, Clean, Free>) {
        let room = Dentry::first_in(brand, self.page, self.taken);
        (self.in_state(), room)
    }
}

impl<'d> DirPage<'d, InFlight, Adopted<Filled>> {
    /// Its first slots, for the name whose rest they hold.
    pub fn open<'s>(
        self,
        brand: Brand<'s>,
    ) -> (DirPage<'d, InFlight, Opened>, Dentry<'s, Clean, Continued>) {
        let room = Dentry::first_in(brand, self.page, self.taken);
        (self.in_state(), room)
    }
}

impl<'d> DirPage<'d, Clean, Opened> {
    /// Its other slots.
    pub fn rest(self) -> FreedSlots<Clean> {
        let first = Place::new(self.page, self.taken);
        FreedSlots::new(first, SLOTS_PER_PAGE - self.taken)
    }
}

impl<S> FencedSealed for DirPage<'_, InFlight, S> {}
impl<'d, S> Fenced for DirPage<'d, InFlight, S> {
    type Clean = DirPage<'d, Clean, S>;
    #[inline]
    fn non_temporal(&self) -> bool {
        self.zeros
    }
    #[inline]
    fn cleaned(mut self, _: Witness) -> Self::Clean {
        self.zeros = false;
        self.in_state()
    }
}
