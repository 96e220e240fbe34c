//! `change`: content, size, owner, mode and attributes of an inode change at once. Also `overwrite` and `set_times`.

use smallvec::SmallVec;

use crate::layout::{AttributePlace, InodeRef, PageKind, PageState};
use crate::state::inode::states::Live;
use crate::state::persist::{Clean, fence, order};
use crate::state::{
    Adoption, Attributes, Before, Beside, Bytes, Content, Descriptors, Error, Extent, FreePages,
    Freed, Inode, Medium, Owned, PageRun, Ready, Result, Targets, Times, Touches, Unseen,
};

/// Change of pages.
#[must_use]
pub enum PageChange<'f> {
    /// Free pages become part of the inode.
    Adopt {
        /// The pages.
        pages: FreePages<'f>,
        /// Offset of the first, in pages.
        offset: u64,
        /// Kind of their content.
        kind: PageKind,
        /// [`PageState::Written`], or [`PageState::Unwritten`] for space without content.
        state: PageState,
    },
    /// Unwritten pages of data become written.
    Turn {
        /// The pages.
        pages: PageRun,
        /// Offset of the first, in pages.
        offset: u64,
    },
    /// Written pages of data become unwritten: they read as zeros.
    Clear {
        /// The pages.
        pages: PageRun,
        /// Offset of the first, in pages.
        offset: u64,
    },
    /// Pages stop being part of the inode.
    Die {
        /// The pages.
        pages: PageRun,
        /// Offset of the first, in pages.
        offset: u64,
        /// Kind of their content.
        kind: PageKind,
        /// Their state until now.
        state: PageState,
    },
}

/// Bytes for the region: to pages that are adopted, to unwritten pages, or past the end of the file.
#[derive(Clone, Copy, Debug)]
pub struct DataStore<'a> {
    /// Byte of the region.
    pub at: u64,
    /// Bytes to store; they may go on to the next pages of the region.
    pub bytes: Bytes<'a>,
}

/// A change of an inode.
#[must_use]
pub struct Change<'a, 'f> {
    /// Which.
    pub inode: InodeRef,
    /// Attributes after the change.
    pub attributes: Attributes,
    /// Times to set.
    pub times: Times,
    /// Changes of its pages; runs as long as possible.
    pub pages: SmallVec<[PageChange<'f>; 2]>,
    /// New content.
    pub data: SmallVec<[DataStore<'a>; 2]>,
    /// A new inline set of attributes, if `attributes.place` says so and the present one is elsewhere.
    pub inline: Option<&'a [u8]>,
}

/// Checked changes of the pages of one inode.
#[derive(Default)]
struct Pages<'i, 'f> {
    adopted: SmallVec<[Adoption<'f>; 1]>,
    reserved: SmallVec<[Adoption<'f>; 1]>,
    turned: SmallVec<[Owned<'i>; 1]>,
    cleared: SmallVec<[Owned<'i>; 1]>,
    dying: SmallVec<[Owned<'i>; 1]>,
}

impl<'i, 'f> Pages<'i, 'f> {
    fn check(
        inode: &Inode<'i, Clean, Live>,
        changes: &mut SmallVec<[PageChange<'f>; 2]>,
    ) -> Result<Pages<'i, 'f>> {
        let mut pages = Pages::default();
        for change in changes.drain(..) {
            match change {
                PageChange::Adopt {
                    pages: free,
                    offset,
                    kind,
                    state,
                } => {
                    let adoption = Adoption {
                        pages: free,
                        offset,
                        kind,
                    };
                    match state {
                        PageState::Written => pages.adopted.push(adoption),
                        PageState::Unwritten => pages.reserved.push(adoption),
                        PageState::Free => {}
                    }
                }
                PageChange::Turn { pages: run, offset } => {
                    pages.turned.push(inode.owned(Extent {
                        pages: run,
                        offset,
                        kind: PageKind::Data,
                        state: PageState::Unwritten,
                    })?);
                }
                PageChange::Clear { pages: run, offset } => {
                    pages.cleared.push(inode.owned(Extent {
                        pages: run,
                        offset,
                        kind: PageKind::Data,
                        state: PageState::Written,
                    })?);
                }
                PageChange::Die {
                    pages: run,
                    offset,
                    kind,
                    state,
                } => {
                    pages.dying.push(inode.owned(Extent {
                        pages: run,
                        offset,
                        kind,
                        state,
                    })?);
                }
            }
        }
        Ok(pages)
    }

    /// The deaths, if all descriptors may share the fence of a commit that sets this size: none of them shows anything then.
    fn beside(&self, size: u64) -> Option<SmallVec<[Unseen<'i>; 2]>> {
        let others = self.turned.is_empty() && self.cleared.is_empty();
        if !self.adopted.is_empty() || !others {
            return None;
        }
        let dying = self.dying.iter();
        dying.map(|owned| owned.unseen(size).ok()).collect()
    }
}

/// Changes an inode: content, size, owner, permission bits, place of the attributes, all at once or not at all.
///
/// Plan: `data, descriptors, inline attributes | slots, commit word`, two fences: a new size or a new page must not be there
/// before its content (SquirrelFS §4.2, the missing flush of `write`). A change in descriptors counts from the new sequence
/// on, so that any number of pages changes at once. One fence if there is no data and all descriptors may share the fence:
/// `descriptors, slots, commit word`, for changes of attributes, for a size without a tail to clear, and for unwritten pages.
///
/// Pages that die are free after the last fence.
///
/// # Errors
/// Before the first store: [`Error::Stale`], [`Error::SequenceExhausted`], [`Error::ForeignPage`], [`Error::InlineTaken`],
/// [`Error::TooLong`].
pub fn change(m: &Medium, mut change: Change<'_, '_>) -> Result<Freed<Clean>> {
    make(m, &mut change)
}

/// The same with the parts that are too large to be moved; its pages are gone afterwards.
///
/// # Errors
/// As [`change`].
pub fn make(m: &Medium, change: &mut Change<'_, '_>) -> Result<Freed<Clean>> {
    m.brand(|i| {
        let inode = Inode::live(i, change.inode)?;
        let next = inode.next()?;
        let new = &change.attributes;
        let inline = change
            .inline
            .map(|set| inode.inline_room(set))
            .transpose()?;
        let claims_inline = new.place == AttributePlace::Inline;
        let has_inline = inline.is_some() || inode.attribute_place() == AttributePlace::Inline;
        if claims_inline && !has_inline {
            return Err(Error::InlineTaken(change.inode));
        }
        let mut touches = Touches::new(m);
        if let Some(atime) = change.times.atime {
            touches.accessed(change.inode, atime)?;
        }
        let pages = Pages::check(&inode, &mut change.pages)?;
        let adopted = pages.adopted.iter().chain(&pages.reserved);
        let targets = Targets::new(&inode, adopted).and_own(&inode);
        let mut data: SmallVec<[_; 2]> = SmallVec::new();
        for store in &change.data {
            data.push((targets.hidden(store.at, store.bytes.len())?, store.bytes));
        }

        if data.is_empty()
            && inline.is_none()
            && let Some(unseen) = pages.beside(new.size)
        {
            let mut beside = Descriptors::beside(&inode, next);
            for unseen in &unseen {
                beside = beside.trim(unseen);
            }
            for adoption in pages.reserved {
                beside = Descriptors::<_, Beside>::reserve(beside, adoption);
            }
            let beside = beside.flush();
            let inode = inode.commit(next, new, &change.times, &Ready::default(), Some(&beside));
            let stamps = touches.stamp().flush();
            let (inode, beside, _) = fence(m, (inode.flush(), beside, stamps));
            return Ok(beside.freed(&inode));
        }

        // Loops and no folds: a set is moved for each of those, also over nothing.
        let mut content = Content::of(&inode);
        for (to, bytes) in &data {
            content = content.write(to, *bytes);
        }
        let content = (!data.is_empty()).then_some(content);
        let mut before = Descriptors::before(&inode, next);
        for adoption in pages.adopted {
            before = before.adopt(adoption);
        }
        for adoption in pages.reserved {
            before = Descriptors::<_, Before>::reserve(before, adoption);
        }
        for turned in &pages.turned {
            before = before.turn(turned);
        }
        for cleared in &pages.cleared {
            before = before.clear(cleared);
        }
        for dying in &pages.dying {
            before = before.die(dying);
        }
        let inline = inline.map(|room| inode.write_inline(&room).flush());
        let (content, before, inline) = order(m, (content, before.flush(), inline));
        let ready = Ready {
            content,
            descriptors: Some(before),
            inline,
        };
        let inode = inode.commit(next, new, &change.times, &ready, None);
        let stamps = touches.stamp().flush();
        let (inode, _) = fence(m, (inode.flush(), stamps));
        Ok(ready.freed(&inode))
    })
}

/// Overwrites content in place, without a promise to be atomic: for volumes mounted so. Neither pages nor size change.
///
/// Plan: `data, times` with one fence.
///
/// # Errors
/// Before the first store: [`Error::Stale`], [`Error::ForeignPage`].
pub fn overwrite(m: &Medium, inode: InodeRef, data: &[DataStore<'_>], times: Times) -> Result<()> {
    m.brand(|i| {
        let live = Inode::live(i, inode)?;
        let mut touches = Touches::new(m);
        touches.add(inode, times)?;
        let targets = Targets::new(&live, []).and_own(&live);
        let shown = data.iter().map(|data| {
            let to = targets.shown(data.at, data.bytes.len())?;
            Ok((to, data.bytes))
        });
        let data = shown.collect::<Result<SmallVec<[_; 2]>>>()?;
        let content = data
            .iter()
            .fold(Content::of(&live), |content, (to, bytes)| {
                content.overwrite(to, *bytes)
            });
        let _ = fence(m, (content, touches.stamp().flush()));
        Ok(())
    })
}

/// Sets times of an inode.
///
/// Plan: `times` with one fence.
///
/// # Errors
/// Before the first store: [`Error::Stale`].
pub fn set_times(m: &Medium, inode: InodeRef, times: Times) -> Result<()> {
    let mut touches = Touches::new(m);
    touches.add(inode, times)?;
    let _ = fence(m, touches.stamp().flush());
    Ok(())
}
