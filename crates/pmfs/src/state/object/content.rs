//! The content of pages: non-temporal stores to places that the file does not show.

use std::marker::PhantomData;

use smallvec::SmallVec;

use super::inode::Inode;
use super::inode::states::Live;
use super::medium::Medium;
use super::pages::Adoption;
use super::persist::{Clean, Fenced, FencedSealed, InFlight, Witness};
use super::token::FreePages;
use crate::layout::{InodeRef, Life, PAGE_BYTES, Page, PageKind, PageOffset, PageState, desc};
use crate::state::{Error, Result};

/// Bytes for pages.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// These bytes.
    Data(&'a [u8]),
    /// This many zeros.
    Zeros(u64),
}

impl Bytes<'_> {
    /// Number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> u64 {
        match self {
            Bytes::Data(data) => data.len() as u64,
            Bytes::Zeros(len) => *len,
        }
    }
}

/// A range of the region where the inode `'i` shows nothing: in pages that it adopts, in its unwritten pages, or past its end.
#[derive(Clone, Copy, Debug)]
pub struct Hidden<'i> {
    at: u64,
    len: u64,
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
}

/// A range of the region in pages of the inode `'i`, which may show it.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'i>(Hidden<'i>);

/// Tells which ranges of the region an inode may write to.
pub struct Targets<'i> {
    m: &'i Medium,
    inode: InodeRef,
    /// Runs that are adopted, by start: first byte, last byte + 1.
    adopted: SmallVec<[(u64, u64); 2]>,
    /// Size and sequence of an inode that is there already.
    live: Option<(u64, u64)>,
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
}

impl<'i> Targets<'i> {
    /// The pages that an inode adopts.
    #[inline]
    pub fn new<'a, 'f: 'a, P, S>(
        inode: &Inode<'i, P, S>,
        adoptions: impl IntoIterator<Item = &'a Adoption<'f>>,
    ) -> Targets<'i> {
        let range = |adoption: &Adoption<'_>| {
            let start = adoption.pages.start().at();
            (start, start + adoption.pages.len() * PAGE_BYTES)
        };
        let mut adopted: SmallVec<[_; 2]> = adoptions.into_iter().map(range).collect();
        if adopted.len() > 1 {
            adopted.sort_unstable();
        }
        Targets {
            m: inode.m,
            inode: inode.inode,
            adopted,
            live: None,
            _brand: PhantomData,
        }
    }

    /// Adds the pages that the inode has.
    #[must_use]
    #[inline]
    pub fn and_own(mut self, inode: &Inode<'i, Clean, Live>) -> Targets<'i> {
        self.live = Some((inode.size(), inode.committed().sequence));
        self
    }

    /// Checks that the inode shows nothing of a range.
    ///
    /// # Errors
    /// [`Error::ForeignPage`] if one of its pages does not belong to the inode, or shows bytes of the range.
    #[inline]
    pub fn hidden(&self, at: u64, len: u64) -> Result<Hidden<'i>> {
        self.check(at, len, true)
    }

    /// Checks that a range is in pages that the inode has. Overwriting it is not atomic.
    ///
    /// # Errors
    /// [`Error::ForeignPage`].
    #[inline]
    pub fn shown(&self, at: u64, len: u64) -> Result<Shown<'i>> {
        self.check(at, len, false).map(Shown)
    }

    #[inline]
    fn check(&self, at: u64, len: u64, hidden: bool) -> Result<Hidden<'i>> {
        let end = at.checked_add(len).ok_or(Error::Outside { at })?;
        let mut from = at;
        while from < end {
            let index = self.adopted.partition_point(|run| run.0 <= from);
            let run = index.checked_sub(1).map(|index| self.adopted[index]);
            if let Some((_, run_end)) = run.filter(|run| from < run.1) {
                from = run_end;
                continue;
            }
            let page = Page(from / PAGE_BYTES);
            if !self.own(page, from % PAGE_BYTES, hidden) {
                return Err(Error::ForeignPage(page));
            }
            from = (page.0 + 1) * PAGE_BYTES;
        }
        Ok(Hidden {
            at,
            len,
            _brand: PhantomData,
        })
    }

    /// Whether the page is the inode's and, from byte `skip` on, hidden if it must be.
    #[inline]
    fn own(&self, page: Page, skip: u64, hidden: bool) -> bool {
        let Some((size, sequence)) = self.live else {
            return false;
        };
        if !self.m.geometry().is_data_page(page) {
            return false;
        }
        let at = self.m.geometry().desc_at(page);
        let offset = PageOffset::from_word(self.m.load(at + desc::OFFSET));
        let Some(PageOffset {
            offset,
            kind: PageKind::Data,
        }) = offset
        else {
            return false;
        };
        let state = Life::from_word(self.m.load(at + desc::LIFE)).state(sequence);
        self.m.load(at + desc::OWNER) == self.inode.word()
            && match state {
                PageState::Free => false,
                PageState::Unwritten => true,
                PageState::Written => {
                    !hidden || offset.saturating_mul(PAGE_BYTES).saturating_add(skip) >= size
                }
            }
    }
}

/// Content of the inode `'i`.
#[must_use]
pub struct Content<'i, P> {
    m: &'i Medium,
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
    _state: PhantomData<P>,
}

impl<'i> Content<'i, InFlight> {
    /// No content yet, for this inode.
    #[inline]
    pub fn of<P, S>(inode: &Inode<'i, P, S>) -> Self {
        Content {
            m: inode.m,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    /// Writes where the inode shows nothing. Non-temporal stores need no write-back. Bytes past the range are left out.
    #[inline]
    pub fn write(self, to: &Hidden<'i>, bytes: Bytes<'_>) -> Self {
        match bytes {
            Bytes::Data(data) => {
                let len = data.len().min(to.len as usize);
                self.m.region.write_data(to.at, &data[..len]);
            }
            Bytes::Zeros(len) => self.m.region.zero_data(to.at, len.min(to.len)),
        }
        self
    }

    /// Writes to the first of free pages. Bytes past their end are left out.
    #[inline]
    pub fn write_free(self, to: &FreePages<'_>, bytes: Bytes<'_>) -> Self {
        let to = Hidden {
            at: to.start().at(),
            len: to.len() * PAGE_BYTES,
            _brand: PhantomData,
        };
        self.write(&to, bytes)
    }

    /// Overwrites bytes that the inode may show, and is not atomic.
    #[inline]
    pub fn overwrite(self, to: &Shown<'i>, bytes: Bytes<'_>) -> Self {
        self.write(&to.0, bytes)
    }
}

impl FencedSealed for Content<'_, InFlight> {}
impl<'i> Fenced for Content<'i, InFlight> {
    type Clean = Content<'i, Clean>;
    #[inline]
    fn non_temporal(&self) -> bool {
        true
    }
    #[inline]
    fn cleaned(self, _: Witness) -> Self::Clean {
        Content {
            m: self.m,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }
}
