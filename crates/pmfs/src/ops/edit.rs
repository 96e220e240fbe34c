//! A change of an inode in preparation: the arguments of [`change`](crate::state::change), and the new index of its pages.
//!
//! Everything is gathered first; the index follows when the change is durable.

use super::inode::Disk;
use super::name::{full, refused};
use crate::fs::PmFs;
use crate::index::file::{Extent, FileIndex};
use crate::layout::{PAGE_BYTES, PageKind, PageState};
use crate::state::{
    self, Attributes, Bytes, Change, DataStore, FreePages, PageChange, PageRun, Taken, Times,
};
use crate::table::State;
use smallvec::SmallVec;
use steadfast_vfs::Result;

/// Change of the index.
enum After {
    Gained(Extent),
    Lost(Extent),
}

/// A change in the making.
pub(super) struct Edit<'a, 'f> {
    /// The change.
    pub(super) change: Change<'a, 'f>,
    after: SmallVec<[After; 4]>,
}

/// Free pages, to be used up from the first on.
pub(super) struct Supply<'f>(Taken<'f>);

/// The pages of an extent.
pub(super) fn run(extent: &Extent) -> PageRun {
    PageRun {
        start: extent.page,
        len: extent.len,
    }
}

impl<'f> Supply<'f> {
    /// A supply of these runs.
    pub(super) fn new(mut runs: Taken<'f>) -> Supply<'f> {
        runs.reverse();
        Supply(runs)
    }

    /// Takes some pages in a row, at most `pages`. ENOSPC if there are none left.
    fn take(&mut self, pages: u64) -> Result<FreePages<'f>> {
        let run = self.0.last_mut().ok_or_else(full)?;
        let taken = run.split(pages);
        if run.len() == 0 {
            self.0.pop();
        }
        Ok(taken)
    }
}

impl<'a, 'f> Edit<'a, 'f> {
    /// A change of these times alone.
    #[inline]
    pub(super) fn new(disk: &Disk, times: Times) -> Edit<'a, 'f> {
        Edit {
            change: Change {
                inode: disk.inode,
                attributes: Attributes {
                    perm: disk.commit.perm,
                    uid: disk.uid,
                    gid: disk.gid,
                    size: disk.size,
                    place: disk.commit.attributes,
                },
                times,
                pages: SmallVec::new(),
                data: SmallVec::new(),
                inline: None,
            },
            after: SmallVec::new(),
        }
    }

    /// Gives new pages of data to the file, for the offsets from `from` up to `to`; `each` sees each row of them.
    pub(super) fn gain(
        &mut self,
        supply: &mut Supply<'f>,
        (from, to): (u64, u64),
        state: PageState,
        mut each: impl FnMut(&mut Self, &Extent),
    ) -> Result<()> {
        let mut offset = from;
        while offset < to {
            let pages = supply.take(to - offset)?;
            let extent = Extent {
                offset,
                page: pages.start(),
                len: pages.len(),
                state,
            };
            self.change.pages.push(PageChange::Adopt {
                pages,
                offset,
                kind: PageKind::Data,
                state,
            });
            self.after.push(After::Gained(extent));
            each(self, &extent);
            offset = extent.end();
        }
        Ok(())
    }

    /// Takes pages of data from the file.
    pub(super) fn lose(&mut self, extent: &Extent) {
        self.change.pages.push(PageChange::Die {
            pages: run(extent),
            offset: extent.offset,
            kind: PageKind::Data,
            state: extent.state,
        });
        self.after.push(After::Lost(*extent));
    }

    /// Turns unwritten pages into written ones.
    pub(super) fn turn(&mut self, extent: &Extent) {
        self.change.pages.push(PageChange::Turn {
            pages: run(extent),
            offset: extent.offset,
        });
        self.after.push(After::Gained(Extent {
            state: PageState::Written,
            ..*extent
        }));
    }

    /// Turns written pages into unwritten ones: they read as zeros.
    pub(super) fn clear(&mut self, extent: &Extent) {
        self.change.pages.push(PageChange::Clear {
            pages: run(extent),
            offset: extent.offset,
        });
        self.after.push(After::Gained(Extent {
            state: PageState::Unwritten,
            ..*extent
        }));
    }

    /// Stores bytes where the file does not show them.
    pub(super) fn store(&mut self, at: u64, bytes: Bytes<'a>) {
        if bytes.len() > 0 {
            self.change.data.push(DataStore { at, bytes });
        }
    }

    /// Sets the size: pages past it are lost; bytes of the last page that come to light are cleared.
    pub(super) fn resize(&mut self, pages: &FileIndex, old: u64, new: u64) {
        self.change.attributes.size = new;
        if new > old {
            self.clear_tail(pages, old, new);
            return;
        }
        for extent in pages.range(new.div_ceil(PAGE_BYTES), u64::MAX) {
            self.lose(&extent);
        }
    }

    /// Clears the bytes past the end of the file in its last page, up to `to`.
    pub(super) fn clear_tail(&mut self, pages: &FileIndex, size: u64, to: u64) {
        let (offset, from) = (size / PAGE_BYTES, size % PAGE_BYTES);
        let end = to.min((offset + 1) * PAGE_BYTES);
        let tail = pages.find(offset);
        if let Some(tail) = tail.filter(|tail| tail.state == PageState::Written)
            && from > 0
            && end > size
        {
            self.store(tail.page.at() + from, Bytes::Zeros(end - size));
        }
    }

    /// Makes the change, frees the pages that died by it, and brings the index up to date.
    pub(super) fn commit(&mut self, fs: &PmFs, state: &mut State) -> Result<()> {
        let freed = state::make(fs.medium(), &mut self.change).map_err(refused)?;
        if let Some(pages) = state.pages_mut() {
            for after in &self.after {
                match after {
                    After::Gained(extent) if extent.offset >= pages.end() => pages.insert(*extent),
                    After::Gained(extent) => drop(pages.replace(*extent)),
                    After::Lost(extent) => drop(pages.punch(extent.offset, extent.end())),
                }
            }
        }
        // Last, because it takes locks: the fence is under way until then.
        fs.free()?.add(freed);
        Ok(())
    }
}
