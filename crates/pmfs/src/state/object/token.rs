//! Tokens: free objects that a call may use, and freed objects that it gives back. They cannot be copied or made up.

use std::marker::PhantomData;
use std::ops::Range;

use smallvec::SmallVec;

use super::free::FreeSpace;
use super::medium::Medium;
use super::persist::Clean;
use crate::layout::{InodeRef, Page, PageKind, PageOffset, Place, SLOTS_PER_PAGE, desc};

/// A free inode. Dropped unused, it goes back to the free space.
#[must_use]
pub struct FreeInode<'f> {
    space: Option<&'f FreeSpace>,
    inode: InodeRef,
}

impl<'f> FreeInode<'f> {
    #[inline]
    pub(super) fn new(space: &'f FreeSpace, inode: InodeRef) -> FreeInode<'f> {
        FreeInode {
            space: Some(space),
            inode,
        }
    }

    /// The number and generation that it gets when it is born.
    #[must_use]
    #[inline]
    pub fn inode(&self) -> InodeRef {
        self.inode
    }

    /// Takes it for good.
    #[inline]
    pub(super) fn spend(mut self) -> InodeRef {
        self.space = None;
        self.inode
    }
}

impl Drop for FreeInode<'_> {
    fn drop(&mut self) {
        if let Some(space) = self.space {
            space.put_inode(self.inode.number);
        }
    }
}

/// A run of free pages. Dropped unused, it goes back to the free space.
#[must_use]
pub struct FreePages<'f> {
    space: Option<&'f FreeSpace>,
    start: Page,
    len: u64,
}

impl<'f> FreePages<'f> {
    #[inline]
    pub(super) fn new(space: &'f FreeSpace, start: Page, len: u64) -> FreePages<'f> {
        FreePages {
            space: Some(space),
            start,
            len,
        }
    }

    /// Its first page.
    #[must_use]
    #[inline]
    pub fn start(&self) -> Page {
        self.start
    }

    /// Number of pages.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Cuts off the first `pages` pages, or all if there are no more.
    #[inline]
    pub fn split(&mut self, pages: u64) -> FreePages<'f> {
        let len = pages.min(self.len);
        let first = FreePages {
            space: self.space,
            start: self.start,
            len,
        };
        self.start = Page(self.start.0 + len);
        self.len -= len;
        first
    }

    /// Takes it for good.
    #[inline]
    pub(super) fn spend(mut self) -> PageRun {
        self.space = None;
        PageRun {
            start: self.start,
            len: self.len,
        }
    }
}

impl Drop for FreePages<'_> {
    fn drop(&mut self) {
        if let Some(space) = self.space {
            space.put_pages(self.start, self.len);
        }
    }
}

/// Free slots in a row in one directory page. [`SlotMap::give_back`](crate::state::SlotMap::give_back) takes them back.
#[must_use]
#[derive(Debug)]
pub struct FreeSlots {
    pub(super) first: Place,
    pub(super) count: u64,
}

impl FreeSlots {
    /// The first of them.
    #[must_use]
    pub fn first(&self) -> Place {
        self.first
    }

    /// Number of slots.
    #[must_use]
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Pages in a row, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRun {
    /// The first.
    pub start: Page,
    /// Number of pages.
    pub len: u64,
}

/// Runs of pages.
pub type PageRuns = SmallVec<[PageRun; 2]>;

/// Inodes and pages that a call freed. Only [`Freed<Clean>`] exists: it is made of things that are clean.
#[must_use = "pages and inodes not given to the free space are lost until the next mount"]
pub struct Freed<P> {
    pub(super) pages: PageRuns,
    pub(super) inode: Option<u32>,
    _durable: PhantomData<P>,
}

impl Freed<Clean> {
    #[inline]
    pub(super) fn new(pages: PageRuns, inode: Option<u32>) -> Freed<Clean> {
        Freed {
            pages,
            inode,
            _durable: PhantomData,
        }
    }

    /// Number of pages.
    #[must_use]
    #[inline]
    pub fn pages(&self) -> u64 {
        self.pages.iter().map(|run| run.len).sum()
    }
}

/// Slots that a call freed. Only [`FreedSlots<Clean>`] exists.
#[must_use = "slots not given to the slot map are lost until the next mount"]
#[derive(Debug)]
pub struct FreedSlots<P> {
    pub(super) first: Place,
    pub(super) count: u64,
    _durable: PhantomData<P>,
}

impl FreedSlots<Clean> {
    #[inline]
    pub(super) fn new(first: Place, count: u64) -> FreedSlots<Clean> {
        // A damaged length must not reach into the next page.
        let count = count.min(SLOTS_PER_PAGE - first.index());
        FreedSlots {
            first,
            count,
            _durable: PhantomData,
        }
    }

    /// The first of them.
    #[must_use]
    pub fn first(&self) -> Place {
        self.first
    }

    /// Number of slots.
    #[must_use]
    #[inline]
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// An inode has durably lost a name, or never had one.
#[must_use]
#[derive(Debug)]
pub struct Unlinked {
    inode: InodeRef,
}

impl Unlinked {
    #[inline]
    pub(super) fn new(inode: InodeRef) -> Unlinked {
        Unlinked { inode }
    }

    /// Which.
    #[must_use]
    #[inline]
    pub fn inode(&self) -> InodeRef {
        self.inode
    }

    /// The caller, which counts names, says that it was the last one.
    #[inline]
    pub fn last(self) -> Orphan {
        Orphan { inode: self.inode }
    }
}

/// An inode without a name. It lives on while it is open; then [`dissolve`](Orphan::dissolve) frees it. Nothing is stored for
/// that: a reference to it is worth nothing once the next inode of this number is born with another generation.
#[must_use]
#[derive(Debug)]
pub struct Orphan {
    inode: InodeRef,
}

impl Orphan {
    /// Which.
    #[must_use]
    #[inline]
    pub fn inode(&self) -> InodeRef {
        self.inode
    }

    /// Frees it with its pages. A page whose descriptor does not name it, or is that of a directory and was not killed when the
    /// directory lost its name, is left out: that would be a mistake in the index, and costs space until the next mount instead
    /// of another file's content.
    pub fn dissolve(self, m: &Medium, pages: impl IntoIterator<Item = PageRun>) -> Freed<Clean> {
        let mut freed = PageRuns::new();
        let own = |page: u64| {
            if !m.geometry().is_data_page(Page(page)) {
                return false;
            }
            let at = m.geometry().desc_at(Page(page));
            let words = [desc::OWNER, desc::OFFSET, desc::LIFE].map(|word| at + word);
            let [owner, offset, life] = m.words(at, words);
            let offset = PageOffset::from_word(offset);
            let slots = offset.is_some_and(|offset| offset.kind == PageKind::Directory);
            owner == self.inode.word() && !(slots && life != 0)
        };
        for run in pages {
            for page in run.start.0..run.start.0.saturating_add(run.len) {
                if !own(page) {
                    debug_assert!(false, "page {page} is not of {:?}", self.inode);
                    continue;
                }
                match freed.last_mut() {
                    Some(last) if last.start.0 + last.len == page => last.len += 1,
                    _ => freed.push(PageRun {
                        start: Page(page),
                        len: 1,
                    }),
                }
            }
        }
        Freed::new(freed, Some(self.inode.number))
    }
}

/// Free space that a mount found, in whole ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// Pages for data that nothing reaches.
    pub pages: Vec<Range<u64>>,
    /// Inodes that nothing reaches.
    pub inodes: Vec<Range<u32>>,
    /// Above every own tag and every pointer's tag of the slots that name something.
    pub next_tag: u64,
}

/// A volume whose repairs are durable: the only thing that a [`FreeSpace`] can be made of. Only [`Recovered<Clean>`] exists,
/// and only [`recover`](crate::state::recover) makes it.
#[must_use]
pub struct Recovered<P> {
    pub(super) survey: Survey,
    _durable: PhantomData<P>,
}

impl Recovered<Clean> {
    #[inline]
    pub(super) fn new(survey: Survey) -> Recovered<Clean> {
        Recovered {
            survey,
            _durable: PhantomData,
        }
    }

    /// Evidence for the slot maps of directories.
    #[must_use]
    #[inline]
    pub fn mounted(&self) -> Mounted {
        Mounted(())
    }
}

/// Evidence that recovery is durable.
#[derive(Clone, Copy, Debug)]
pub struct Mounted(());
