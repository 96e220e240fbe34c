//! Place of a new name: the first steps that `create`, `symlink`, `link` and `rename` have in common.
//!
//! ```text
//! short name, free slot        nothing first
//! long name, free slots        the further slots | ..
//! short name, new page         zeros | descriptor of the page, ..
//! long name, new page          zeros, the further slots | descriptor of the page, ..
//! ```
//!
//! [`Prepared`] is the content that must be durable first, in flight; [`Prepared::settle`] fences it, adopts a new page, and
//! yields a slot that holds the name's words and waits for its commit word.

use crate::layout::{InodeRef, Place};
use crate::state::dentry::states::{Continued, Free, Named};
use crate::state::dirpage::states::{Filled, Opened as OpenedPage, Zeroed};
use crate::state::inode::states::Live;
use crate::state::persist::{Brand, Clean, Dirty, Fenced, InFlight, order};
use crate::state::{
    Dentry, DirPage, Error, FreePages, FreeSlots, FreedSlots, Inode, LongName, Medium, Name,
    NewTag, Result, ShortName,
};

/// A directory whose names change, and the time of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// The directory.
    pub dir: InodeRef,
    /// Its new mtime and ctime.
    pub now: u64,
}

/// Room for a name.
#[must_use]
pub enum Room<'f> {
    /// Into slots of a page that the directory has: as many as the name takes.
    Slots(FreeSlots),
    /// Into a new page.
    NewPage {
        /// One page.
        page: FreePages<'f>,
        /// Its offset in the directory, in pages.
        offset: u64,
    },
}

/// A name that is to be made.
#[must_use]
pub struct NewName<'a, 'f> {
    /// Its directory.
    pub dir: InodeRef,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
    /// Room for the name.
    pub room: Room<'f>,
}

/// Result of placing a name.
#[must_use]
#[derive(Debug)]
pub struct Placed {
    /// Its first slot.
    pub place: Place,
    /// The other slots, if the page is new.
    pub rest: Option<FreedSlots<Clean>>,
}

impl Placed {
    #[inline]
    pub(super) fn new<S>(
        slot: &Dentry<'_, Clean, S>,
        page: Option<DirPage<'_, Clean, OpenedPage>>,
    ) -> Placed {
        Placed {
            place: slot.place(),
            rest: page.map(DirPage::rest),
        }
    }
}

/// A new name whose arguments are checked: nothing can fail any more.
pub(super) struct Checked<'a, 'f, 'd> {
    dir: Inode<'d, Clean, Live>,
    name: Name<'a>,
    room: Room<'f>,
    tag: NewTag,
}

impl<'a, 'f> NewName<'a, 'f> {
    #[inline]
    pub(super) fn check<'d>(self, brand: Brand<'d>) -> Result<Checked<'a, 'f, 'd>> {
        let name = Name::new(self.name)?;
        let fits = match &self.room {
            Room::Slots(slots) => slots.count() == name.slots(),
            Room::NewPage { page, .. } => page.len() > 0,
        };
        if !fits {
            return Err(Error::TooLong(self.name.len()));
        }
        let tag = NewTag::take(brand.medium())?;
        Ok(Checked {
            dir: Inode::live(brand, self.dir)?,
            name,
            room: self.room,
            tag,
        })
    }
}

impl<'a, 'd> Checked<'a, '_, 'd> {
    /// The stores that come first.
    #[inline]
    pub(super) fn prepare<'s>(self, brand: Brand<'s>) -> Prepared<'a, 'd, 's> {
        let first = match (self.room, self.name) {
            (Room::Slots(slots), Name::Short(name)) => {
                First::Short(name, Dentry::free(brand, slots))
            }
            (Room::Slots(slots), Name::Long(name)) => {
                let rest = Dentry::free(brand, slots).continue_name(&name);
                First::Long(name, rest.flush())
            }
            (Room::NewPage { page, offset }, Name::Short(name)) => {
                First::ShortInNew(name, DirPage::zero(&self.dir, page), brand, offset)
            }
            (Room::NewPage { page, offset }, Name::Long(name)) => {
                let page = DirPage::fill(&self.dir, page, &name);
                First::LongInNew(name, page, brand, offset)
            }
        };
        Prepared {
            first,
            tag: self.tag,
        }
    }
}

/// The steps before the slot's own line, in flight if there are any.
#[must_use]
pub(super) struct Prepared<'a, 'd, 's> {
    first: First<'a, 'd, 's>,
    tag: NewTag,
}

enum First<'a, 'd, 's> {
    Short(ShortName<'a>, Dentry<'s, Clean, Free>),
    Long(LongName<'a>, Dentry<'s, InFlight, Continued>),
    ShortInNew(ShortName<'a>, DirPage<'d, InFlight, Zeroed>, Brand<'s>, u64),
    LongInNew(LongName<'a>, DirPage<'d, InFlight, Filled>, Brand<'s>, u64),
}

impl<'d, 's> Prepared<'_, 'd, 's> {
    /// One fence for them, if there are any.
    #[inline]
    pub(super) fn settle(self, m: &Medium) -> Opened<'d, 's> {
        if let First::Short(name, slot) = self.first {
            return Opened::short(slot.name(name, self.tag));
        }
        self.settle_with(m, ()).0
    }

    /// One fence for them and for `others`.
    #[inline]
    pub(super) fn settle_with<T: Fenced>(
        self,
        m: &Medium,
        others: T,
    ) -> (Opened<'d, 's>, T::Clean) {
        let tag = self.tag;
        match self.first {
            First::Short(name, slot) => {
                let others = order(m, others);
                (Opened::short(slot.name(name, tag)), others)
            }
            First::Long(name, slot) => {
                let (slot, others) = order(m, (slot, others));
                (Opened::short(slot.name(&name, tag)), others)
            }
            First::ShortInNew(name, page, brand, offset) => {
                let (page, others) = order(m, (page, others));
                let (page, slot) = page.adopt(offset).flush().open(brand);
                (Opened::new(slot.name(name, tag), page), others)
            }
            First::LongInNew(name, page, brand, offset) => {
                let (page, others) = order(m, (page, others));
                let (page, slot) = page.adopt(offset).flush().open(brand);
                (Opened::new(slot.name(&name, tag), page), others)
            }
        }
    }
}

/// A slot that waits for its commit word, and its page if that is new.
#[must_use]
pub(super) struct Opened<'d, 's> {
    pub(super) slot: Dentry<'s, Dirty, Named>,
    pub(super) page: Option<DirPage<'d, InFlight, OpenedPage>>,
}

impl<'d, 's> Opened<'d, 's> {
    #[inline]
    fn short(slot: Dentry<'s, Dirty, Named>) -> Opened<'d, 's> {
        Opened { slot, page: None }
    }

    #[inline]
    fn new(
        slot: Dentry<'s, Dirty, Named>,
        page: DirPage<'d, InFlight, OpenedPage>,
    ) -> Opened<'d, 's> {
        Opened {
            slot,
            page: Some(page),
        }
    }
}
