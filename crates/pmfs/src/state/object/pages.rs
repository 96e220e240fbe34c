//! Page descriptors of an inode.
//!
//! A set of runs shares one state (SquirrelFS §4.3: types cannot say "each page of this list"). There are two kinds of set:
//!
//! * [`Before`]: must be durable before the commit word. Written pages that come alive, unwritten pages that turn into
//!   written ones, pages that die within the file.
//! * [`Beside`]: may share the fence of the commit word. Pages that come alive unwritten (if the mark is lost, a hole reads
//!   as zeros, too), and pages that die unwritten or past the new end (recovery frees written pages there).
//! * [`Killed`]: pages of a directory that is removed.
//!
//! Two descriptors share a line. Other threads may store to the other one, and write the line back: the cache may do that at
//! any time, too, and the words of one descriptor stay in their order.
//!
//! The first two kinds name the next sequence of their inode, so that none counts without the commit. Possible errors are checked
//! before the first store: [`Next`], [`Owned`] and [`Unseen`] are the proofs.

use std::marker::PhantomData;

use super::inode::Inode;
use super::inode::states::{Bodied, Changed, Live};
use super::line::{LineWriter, Lines};
use super::medium::Medium;
use super::persist::{Clean, Dirty, Fenced, FencedSealed, InFlight, Witness};
use super::token::{FreePages, Freed, PageRun, PageRuns};
use crate::layout::{
    DESC_BYTES, InodeRef, Life, PAGE_BYTES, Page, PageKind, PageOffset, PageState, SEQUENCE_MAX,
    desc,
};
use crate::state::{Error, Result};

/// The state of a set that must be durable before the commit.
pub struct Before(());
/// The state of a set that may be written back with the commit.
pub struct Beside(());

/// The state of pages of a directory that goes.
pub struct Killed(());

/// Free pages that become part of an inode.
#[must_use]
pub struct Adoption<'f> {
    /// The pages.
    pub pages: FreePages<'f>,
    /// Offset of the first in its object, in pages.
    pub offset: u64,
    /// Kind of their content.
    pub kind: PageKind,
}

/// Pages of an inode in a row, at offsets in a row, in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The pages.
    pub pages: PageRun,
    /// Offset of the first in its object, in pages.
    pub offset: u64,
    /// Kind of their content.
    pub kind: PageKind,
    /// Their state.
    pub state: PageState,
}

/// The sequence of the next commit of the inode `'i`: it has one.
#[derive(Clone, Copy, Debug)]
pub struct Next<'i> {
    pub(super) sequence: u64,
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
}

/// An extent of the inode `'i`: its descriptors say so.
#[derive(Clone, Copy, Debug)]
pub struct Owned<'i> {
    extent: Extent,
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
}

/// An extent of the inode `'i` that shows nothing once the inode has a certain size: it lies past the end, or is unwritten.
#[derive(Clone, Copy, Debug)]
pub struct Unseen<'i>(Owned<'i>);

/// Pages of the directory `'i`.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryRun<'i> {
    run: PageRun,
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
}

impl<'i> Inode<'i, Clean, Live> {
    /// The sequence of its next commit.
    ///
    /// # Errors
    /// [`Error::SequenceExhausted`] if there is none.
    #[inline]
    pub fn next(&self) -> Result<Next<'i>> {
        let sequence = self.committed().sequence + 1;
        if sequence > SEQUENCE_MAX {
            return Err(Error::SequenceExhausted(self.inode));
        }
        Ok(Next {
            sequence,
            _brand: PhantomData,
        })
    }

    /// Checks that pages are where the caller says: they belong to this inode, at this offset, as this kind, in this state.
    ///
    /// # Errors
    /// [`Error::ForeignPage`].
    #[inline]
    pub fn owned(&self, extent: Extent) -> Result<Owned<'i>> {
        let sequence = self.committed().sequence;
        self.check(extent.pages, |at, index| {
            let offset = PageOffset {
                offset: extent.offset + index,
                kind: extent.kind,
            };
            let life = Life::from_word(self.m.load(at + desc::LIFE));
            self.m.load(at + desc::OFFSET) == offset.word() && life.state(sequence) == extent.state
        })?;
        Ok(Owned {
            extent,
            _brand: PhantomData,
        })
    }

    /// Checks that pages are directory pages of this inode.
    ///
    /// # Errors
    /// [`Error::ForeignPage`].
    #[inline]
    pub fn directory_run(&self, run: PageRun) -> Result<DirectoryRun<'i>> {
        self.check(run, |at, _| {
            let offset = PageOffset::from_word(self.m.load(at + desc::OFFSET));
            offset.is_some_and(|offset| offset.kind == PageKind::Directory)
        })?;
        Ok(DirectoryRun {
            run,
            _brand: PhantomData,
        })
    }

    /// Checks that the descriptors of a run are there and name this inode, and the other conditions of `sound`.
    #[inline]
    fn check(&self, run: PageRun, sound: impl Fn(u64, u64) -> bool) -> Result<()> {
        let (m, PageRun { start, len }) = (self.m, run);
        let chunk = m.geometry().chunk_pages;
        let last = start.0.checked_add(len.wrapping_sub(1)).map(Page);
        let in_one_table = last.is_some_and(|last| {
            m.geometry().is_data_page(start)
                && m.geometry().is_data_page(last)
                && start.0 / chunk == last.0 / chunk
        });
        if len == 0 || !in_one_table {
            return Err(Error::ForeignPage(start));
        }
        let at = m.geometry().desc_at(start);
        for index in 0..len {
            let at = at + index * DESC_BYTES;
            if m.load(at + desc::OWNER) != self.inode.word() || !sound(at, index) {
                return Err(Error::ForeignPage(Page(start.0 + index)));
            }
        }
        Ok(())
    }
}

impl<'i> Owned<'i> {
    /// Whether the extent shows nothing in a file of this size.
    ///
    /// # Errors
    /// [`Error::ForeignPage`] if it does, or holds no data of a file.
    #[inline]
    pub fn unseen(self, size: u64) -> Result<Unseen<'i>> {
        let Extent {
            kind,
            offset,
            state,
            pages,
        } = self.extent;
        let hidden = state == PageState::Unwritten || offset >= size.div_ceil(PAGE_BYTES);
        if kind == PageKind::Data && hidden {
            Ok(Unseen(self))
        } else {
            Err(Error::ForeignPage(pages.start))
        }
    }
}

/// Descriptors of pages of the inode `'i`.
#[must_use]
pub struct Descriptors<'i, P, S> {
    m: &'i Medium,
    owner: InodeRef,
    /// Sequence from which on the new states count; 0 for those of an inode that is being born.
    at: u64,
    dying: PageRuns,
    lines: Lines,
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
    _state: PhantomData<(P, S)>,
}

impl<'i, P, S> Descriptors<'i, P, S> {
    #[inline]
    fn in_state<Q>(self) -> Descriptors<'i, Q, S> {
        Descriptors {
            m: self.m,
            owner: self.owner,
            at: self.at,
            dying: self.dying,
            lines: self.lines,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    #[inline]
    fn none<Q, T>(inode: &Inode<'i, Q, T>, at: u64) -> Descriptors<'i, P, S> {
        Descriptors {
            m: inode.m,
            owner: inode.inode,
            at,
            dying: PageRuns::new(),
            lines: Lines::default(),
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    #[inline]
    fn adopt_as(&mut self, adoption: Adoption<'_>, next: PageState) {
        let run = adoption.pages.spend();
        let newborn = self.at == 0;
        let life = Life {
            at: self.at,
            cur: if newborn { next } else { PageState::Free },
            next,
        };
        for index in 0..run.len {
            let offset = PageOffset {
                offset: adoption.offset + index,
                kind: adoption.kind,
            };
            let page = Page(run.start.0 + index);
            store_descriptor(self.m, page, self.owner, offset, life);
        }
        self.add_lines(run);
    }

    /// Stores the lives of pages that are the inode's already.
    #[inline]
    fn mark(&mut self, owned: &Owned<'i>, next: PageState) {
        let run = owned.extent.pages;
        let life = Life {
            at: self.at,
            cur: owned.extent.state,
            next,
        };
        self.store_lives(run, life.word());
        if next == PageState::Free {
            self.dying.push(run);
        }
    }

    #[inline]
    fn store_lives(&mut self, run: PageRun, life: u64) {
        let at = self.m.geometry().desc_at(run.start);
        for index in 0..run.len {
            let at = at + index * DESC_BYTES + desc::LIFE;
            self.m.region.store(at, life);
        }
        self.add_lines(run);
    }

    #[inline]
    fn add_lines(&mut self, run: PageRun) {
        if run.len > 0 {
            let at = self.m.geometry().desc_at(run.start);
            self.lines.add(at, run.len * DESC_BYTES);
        }
    }
}

impl<'i> Descriptors<'i, Dirty, Before> {
    /// The pages of an inode that is being born. They belong to it at once, and it belongs to no directory yet.
    #[inline]
    pub fn of_newborn<P>(inode: &Inode<'i, P, Bodied>) -> Self {
        Self::none(inode, 0)
    }

    /// The pages of an inode that is to change.
    #[inline]
    pub fn before(inode: &Inode<'i, Clean, Live>, next: Next<'i>) -> Self {
        Self::none(inode, next.sequence)
    }

    /// Free pages become written pages: life 0, owner, offset, life, in this order, so that no prefix of these stores mixes
    /// the words of two lives.
    pub fn adopt(mut self, adoption: Adoption<'_>) -> Self {
        self.adopt_as(adoption, PageState::Written);
        self
    }

    /// Unwritten pages become written ones.
    #[inline]
    pub fn turn(mut self, owned: &Owned<'i>) -> Self {
        self.mark(owned, PageState::Written);
        self
    }

    /// Written pages become unwritten ones.
    #[inline]
    pub fn clear(mut self, owned: &Owned<'i>) -> Self {
        self.mark(owned, PageState::Unwritten);
        self
    }

    /// Pages stop being part of the inode.
    #[inline]
    pub fn die(mut self, owned: &Owned<'i>) -> Self {
        self.mark(owned, PageState::Free);
        self
    }

    /// Whether nothing was stored.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

impl<'i> Descriptors<'i, Dirty, Beside> {
    /// The pages of an inode that is to change, as far as they may share the fence of the commit.
    #[inline]
    pub fn beside(inode: &Inode<'i, Clean, Live>, next: Next<'i>) -> Self {
        Self::none(inode, next.sequence)
    }

    /// Pages that show nothing under the size that the commit is going to set stop being part of the inode.
    #[inline]
    pub fn trim(mut self, unseen: &Unseen<'i>) -> Self {
        self.mark(&unseen.0, PageState::Free);
        self
    }
}

impl<'i> Descriptors<'i, Dirty, Killed> {
    /// The pages of a directory that loses its name. The next content of such a page must not be read as slots: it might be
    /// there before the page has another descriptor, and the directory's generation stays the same until its inode is born
    /// again. The directory is empty, so that it may lose its pages before its name.
    #[inline]
    pub fn killed(inode: &Inode<'i, Clean, Live>) -> Self {
        Self::none(inode, 0)
    }

    /// Pages of the directory hold no slots any more.
    #[inline]
    pub fn kill(mut self, pages: &DirectoryRun<'i>) -> Self {
        self.store_lives(pages.run, 0);
        self
    }
}

impl<'i> Descriptors<'i, Dirty, Before> {
    /// Free pages become unwritten pages.
    #[inline]
    pub fn reserve(mut self, adoption: Adoption<'_>) -> Self {
        self.adopt_as(adoption, PageState::Unwritten);
        self
    }
}

impl<'i> Descriptors<'i, Dirty, Beside> {
    /// Free pages become unwritten pages.
    #[inline]
    pub fn reserve(mut self, adoption: Adoption<'_>) -> Self {
        self.adopt_as(adoption, PageState::Unwritten);
        self
    }
}

impl<'i, S> Descriptors<'i, Dirty, S> {
    /// Writes each line back once.
    #[inline]
    pub fn flush(mut self) -> Descriptors<'i, InFlight, S> {
        std::mem::take(&mut self.lines).write_back(self.m);
        self.in_state()
    }
}

impl<S> FencedSealed for Descriptors<'_, InFlight, S> {}
impl<'i, S> Fenced for Descriptors<'i, InFlight, S> {
    type Clean = Descriptors<'i, Clean, S>;
    #[inline]
    fn non_temporal(&self) -> bool {
        false
    }
    #[inline]
    fn cleaned(self, _: Witness) -> Self::Clean {
        self.in_state()
    }
}

impl<'i, S> Descriptors<'i, Clean, S> {
    /// The pages that died. They are free because the commit is durable, too.
    #[inline]
    pub fn freed(self, inode: &Inode<'i, Clean, Changed>) -> Freed<Clean> {
        let _ = inode;
        Freed::new(self.dying, None)
    }
}

/// Stores the descriptor of a free page: life 0, owner, offset, life. The old words belong to another life; no prefix of
/// these stores makes a living page of old and new words.
#[inline]
pub(super) fn store_descriptor(
    m: &Medium,
    page: Page,
    owner: InodeRef,
    offset: PageOffset,
    life: Life,
) {
    let mut line = LineWriter::new(m, m.geometry().desc_at(page));
    line.word(desc::LIFE, 0);
    line.word(desc::OWNER, owner.word());
    line.word(desc::OFFSET, offset.word());
    line.commit(desc::LIFE, life.word());
}
