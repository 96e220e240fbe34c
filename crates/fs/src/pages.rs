//! Delayed pages: file data that was written but has no place on the device yet.
//!
//! A page exists where the file has no block, an unwritten one, or one that a large overwrite replaces
//! (`out_of_place`); other writing to a written block is a patch of the journal instead. All delayed pages of an inode belong
//! to one running transaction (its writers relate the file exclusively and attach its
//! number), until `writeback` allocates and drops them. Bytes past the end of the file
//! are zero.
//!
//! Reserved for the pages, from the moment they are written: blocks for data and for tree nodes
//! ([`Pages::reserved`]), and log bytes for the changes of their allocation (corner 24). [`Needs`] has the
//! worst case. A page over an unwritten extent has its block already (corner 71): it stays one for as long as
//! it is delayed, because an operation that takes the extent away drops its pages.

use crate::btree;
use crate::layout::{INODE_BYTES, ROOT_ITEMS};
use crate::out_of_place::Overwrites;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, COST_REVOKE};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};

/// Bytes of a page.
pub(crate) const PAGE: u64 = BLOCK_SIZE as u64;

/// Place of a file's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// In memory already.
    Delayed,
    /// In a written block, to be patched.
    Written(BlockNo),
    /// In a written block, to be overwritten in place.
    InPlace(BlockNo),
    /// Not in memory yet, to be delayed over the file's content there.
    New(Under),
}

/// Bytes of a file that may go into the record instead of to a place of their own: as long as one
/// longer write takes less time than a second one.
pub(crate) const SMALL_BYTES_DEFAULT: u64 = 5 * BLOCK_SIZE as u64;

/// Pages that `small_bytes_max` bytes may lie in.
pub(crate) fn small_pages(small_bytes_max: u64) -> usize {
    small_bytes_max.div_ceil(BLOCK_SIZE as u64) as usize + 1
}
/// Log bytes of changing an inode in any way, its body included.
pub(crate) const COST_INODE: u64 = COST_BLOCK + 8 * COST_RANGE + INODE_BYTES as u64;
/// Log bytes of one page's own extent: its bit, its item, its place in the covered list.
const COST_PAGE: u64 = COST_BITS + 2 * size_of::<crate::layout::Item>() as u64 + 64;

/// Log bytes of freeing the block that one page replaces, as if each were an extent in a node of its own.
const COST_REPLACED: u64 = COST_FREE + COST_BITS + COST_REVOKE + btree::REMOVE_LAST_CREDITS;
/// Log bytes of patching a whole page.
pub(crate) const COST_PATCHED: u64 = COST_BLOCK + COST_RANGE + BLOCK_SIZE as u64;
/// Maximum number of splits of the tree from leaf to root by a run of replaced blocks: at the cut of an extent in two, at
/// the beginning of the new ones, and when the root has given up a level between.
const REPLACED_PATHS: u64 = 3;

/// The file's content under a delayed page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Under {
    /// No block.
    Nothing,
    /// A block in an unwritten extent.
    Unwritten,
    /// A written block.
    Written,
}

/// Pages that are about to be delayed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Added<'a> {
    /// All of them, sorted, none of them here yet.
    pub(crate) new: &'a [u64],
    /// Number of those over unwritten extents.
    pub(crate) over_unwritten: u64,
    /// Number of those over written blocks.
    pub(crate) over_written: u64,
    /// Pages over written blocks, of these or here already, whose blocks will be replaced; sorted.
    pub(crate) moving: &'a [u64],
}

/// Delayed pages of one inode, and their accounts.
#[derive(Default)]
pub(crate) struct Pages {
    map: BTreeMap<u64, Arc<Block>>,
    /// Contiguous runs in `map`.
    runs: u64,
    /// Those of them that have a block, in an unwritten extent.
    over_unwritten: BTreeSet<u64>,
    /// Those over written blocks.
    pub(crate) overwrites: Overwrites,
    /// Blocks reserved with the allocator.
    pub(crate) reserved: u64,
    /// Log bytes attached to the running transaction.
    pub(crate) log_bytes: u64,
    /// Overwrites that wait to be written in place: home and content (`in_place`).
    pub(crate) places: BTreeMap<u64, (BlockNo, Arc<Block>)>,
    /// A truncation is under way: the extents from this block on are dead and still to be freed.
    pub(crate) cut: Option<u64>,
    /// Left by the planted fault `size_before_data`.
    pub(crate) held: bool,
}

/// Reservation for the delayed pages of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// Blocks, for data and tree nodes.
    pub(crate) blocks: u64,
    /// Log bytes of the changes at closing.
    pub(crate) log_bytes: u64,
}

/// The shape of an extent tree, as far as growing it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Level of the root.
    pub(crate) level: u16,
    /// Items, if all are in the root.
    pub(crate) items: Option<usize>,
}

/// Number of delayed pages, and of their runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    /// Pages.
    pub(crate) pages: u64,
    /// Contiguous runs of pages.
    pub(crate) runs: u64,
    /// Pages over unwritten extents.
    pub(crate) over_unwritten: u64,
    /// Pages over written blocks that will be patched.
    pub(crate) pending: u64,
    /// Pages whose blocks will be replaced.
    pub(crate) moving: u64,
    /// Contiguous runs of those.
    pub(crate) moving_runs: u64,
    /// Bytes that may have to go into the record.
    pub(crate) small_bytes: u64,
}

impl Tally {
    /// Reservation for these pages of a file with a tree of this shape.
    pub(crate) fn needs(self, shape: Shape) -> Needs {
        if self.pages == 0 {
            return Needs::default();
        }
        let items = shape.items.unwrap_or(usize::MAX) as u64;
        let new_blocks = self.pages - self.over_unwritten - self.pending;
        // A new block may be an extent of its own. Unwritten extents are split at the ends of a run only:
        // inside of it they are changed where they are.
        let splits = (2 * self.runs).min(2 * self.over_unwritten);
        let added = new_blocks + splits + 2 * self.moving_runs;
        let mut log_bytes = COST_INODE
            + (self.pages - self.pending) * COST_PAGE
            + self.pending * COST_PATCHED
            + self.moving * COST_REPLACED;
        let mut nodes = 0;
        if added > 0 && items.saturating_add(added) > ROOT_ITEMS as u64 {
            // Each run may split every node on its path, an unwritten one at both ends; within a run a node splits again
            // only after half a node of further extents.
            let paths = self.runs.max(splits) + REPLACED_PATHS * self.moving_runs;
            log_bytes += paths * btree::change_credits(shape.level);
            nodes = paths * (u64::from(shape.level) + 1) + added / 64 + 2;
        }
        if self.small_bytes > 0 {
            log_bytes += self.small_bytes + self.pages * 2 * (COST_BLOCK + COST_RANGE);
        }
        Needs {
            blocks: new_blocks + nodes,
            log_bytes,
        }
    }
}

impl Pages {
    /// Whether nothing hangs on the inode's object: no pages, no truncation under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.map.is_empty() && self.cut.is_none() && self.places.is_empty()
    }

    /// Whether no page is delayed.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// The page at a block of the file.
    pub(crate) fn get(&self, page: u64) -> Option<&Arc<Block>> {
        self.map.get(&page)
    }

    /// The pages in `from .. to`.
    pub(crate) fn range(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, &Arc<Block>)> {
        let to = to.max(from);
        self.map.range(from..to).map(|(page, block)| (*page, block))
    }

    /// The tally as it would be with more pages, in a file of `size` bytes; up to
    /// `small_bytes_max` bytes may go into the record.
    pub(crate) fn tally_with(&self, added: Added<'_>, size: u64, small_bytes_max: u64) -> Tally {
        let new = added.new;
        let runs = runs_with(self.runs, new, |page| self.map.contains_key(&page));
        let count = self.map.len() + new.len();
        let mut small_bytes = 0;
        if count <= small_pages(small_bytes_max) {
            let all = self.map.keys().chain(new);
            small_bytes = all
                .map(|page| {
                    size.saturating_sub(page * BLOCK_SIZE as u64)
                        .min(BLOCK_SIZE as u64)
                })
                .sum();
            if small_bytes > small_bytes_max {
                small_bytes = 0;
            }
        }
        let moved = self.overwrites.tally_with(added.moving);
        Tally {
            pages: count as u64,
            runs,
            over_unwritten: self.over_unwritten.len() as u64 + added.over_unwritten,
            pending: self.overwrites.pending() + added.over_written - added.moving.len() as u64,
            moving: moved.pages,
            moving_runs: moved.runs,
            small_bytes,
        }
    }

    /// The tally as it is at most when an operation has dropped pages: it may cut a run in two, of which each gives an
    /// extent its own place in the tree.
    pub(crate) fn tally_cut(&self, size: u64, small_bytes_max: u64) -> Tally {
        let mut tally = self.tally_with(Added::default(), size, small_bytes_max);
        let cut = u64::from(tally.moving_runs > 0);
        tally.moving_runs += cut;
        tally
    }

    /// Writes into a page; makes it, over the file's content, if it is not in memory.
    pub(crate) fn write(&mut self, page: u64, offset: usize, bytes: &[u8], under: Under) {
        if let Some(block) = self.map.get_mut(&page) {
            Arc::make_mut(block)[offset..offset + bytes.len()].copy_from_slice(bytes);
            return;
        }
        let block = page_of(offset, bytes);
        self.runs = runs_with(self.runs, &[page], |page| self.map.contains_key(&page));
        match under {
            Under::Nothing => {}
            Under::Unwritten => {
                self.over_unwritten.insert(page);
            }
            Under::Written => self.overwrites.delay(page),
        }
        self.map.insert(page, block);
    }

    /// Zeroes a part of a page, if it is there.
    pub(crate) fn zero(&mut self, page: u64, from: usize, to: usize) {
        if let Some(block) = self.map.get_mut(&page) {
            Arc::make_mut(block)[from..to].fill(0);
        }
    }

    /// Drops the pages in `from .. to`. Their reservations stay.
    pub(crate) fn drop_range(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        self.overwrites.drop_range(from, to);
        let gone: Vec<u64> = self.map.range(from..to).map(|(page, _)| *page).collect();
        for page in gone {
            self.map.remove(&page);
            self.over_unwritten.remove(&page);
            let last = page.checked_sub(1);
            let last = last.is_some_and(|last| self.map.contains_key(&last));
            let next = self.map.contains_key(&(page + 1));
            self.runs = self.runs + u64::from(last) + u64::from(next) - 1;
        }
    }

    /// Takes all pages out, to allocate them; overwrites and reservations stay.
    pub(crate) fn take(&mut self) -> BTreeMap<u64, Arc<Block>> {
        self.runs = 0;
        self.over_unwritten.clear();
        std::mem::take(&mut self.map)
    }

    /// Number of blocks that the file will grow by.
    pub(crate) fn new_blocks(&self) -> u64 {
        self.len() - self.over_unwritten.len() as u64 - self.overwrites.len()
    }

    /// The same for the pages in `from .. to`.
    pub(crate) fn new_blocks_in(&self, from: u64, to: u64) -> u64 {
        let over = |page: &u64| self.over_unwritten.contains(page) || self.overwrites.has(*page);
        self.range(from, to).filter(|(page, _)| !over(page)).count() as u64
    }

    /// Nothing is delayed any more: returns the blocks that were reserved.
    pub(crate) fn settle(&mut self) -> u64 {
        debug_assert!(self.map.is_empty() && self.over_unwritten.is_empty());
        debug_assert!(self.overwrites.len() == 0, "an overwrite without its page");
        self.log_bytes = 0;
        std::mem::take(&mut self.reserved)
    }
}

/// The number of contiguous runs of pages when `new` ones (sorted, none of them there) have joined those that are `there`.
pub(crate) fn runs_with(runs: u64, new: &[u64], there: impl Fn(u64) -> bool) -> u64 {
    let mut runs = runs;
    for (index, page) in new.iter().enumerate() {
        let joins_new = index > 0 && new[index - 1] + 1 == *page;
        let joins_last = joins_new || page.checked_sub(1).is_some_and(&there);
        let joins_next = there(page + 1);
        runs = runs + 1 - u64::from(joins_last) - u64::from(joins_next);
    }
    runs
}

/// A page of zeros except these bytes; a whole one is copied once, to where it stays.
pub(crate) fn page_of(offset: usize, bytes: &[u8]) -> Arc<Block> {
    if bytes.len() == BLOCK_SIZE
        && let Ok(whole) = Arc::<Block>::try_from(Arc::<[u8]>::from(bytes))
    {
        return whole;
    }
    let mut block = Arc::new([0; BLOCK_SIZE]);
    Arc::make_mut(&mut block)[offset..offset + bytes.len()].copy_from_slice(bytes);
    block
}

#[cfg(test)]
pub(crate) fn count_runs(pages: impl Iterator<Item = u64>) -> u64 {
    let mut runs = 0;
    let mut expected = None;
    for page in pages {
        runs += u64::from(expected != Some(page));
        expected = Some(page + 1);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn under(page: u64) -> Under {
        match page % 3 {
            0 => Under::Unwritten,
            1 => Under::Written,
            _ => Under::Nothing,
        }
    }

    proptest! {
        #[test]
        fn runs_are_counted_as_pages_come_and_go(
            steps in prop::collection::vec((0u64..40, 1u64..6, 0u8..3), 1..60)
        ) {
            let mut pages = Pages::default();
            for (from, len, what) in steps {
                let range = from..from + len;
                match what {
                    0 => {
                        let new: Vec<u64> =
                            range.clone().filter(|page| pages.get(*page).is_none()).collect();
                        let over = |kind| {
                            new.iter().filter(|page| under(**page) == kind).count() as u64
                        };
                        let added = Added {
                            new: &new,
                            over_unwritten: over(Under::Unwritten),
                            over_written: over(Under::Written),
                            moving: &[],
                        };
                        let foreseen = pages.tally_with(added, u64::MAX, 4096);
                        for page in range {
                            pages.write(page, 0, &[1], under(page));
                        }
                        let found = pages.tally_with(Added::default(), u64::MAX, 4096);
                        prop_assert_eq!(foreseen, found);
                        prop_assert_eq!(foreseen.pages, pages.len());
                    }
                    1 => {
                        let moving: Vec<u64> =
                            range.filter(|page| pages.overwrites.is_pending(*page)).collect();
                        let added = Added { moving: &moving, ..Added::default() };
                        let foreseen = pages.tally_with(added, u64::MAX, 4096);
                        pages.overwrites.will_move(&moving);
                        let found = pages.tally_with(Added::default(), u64::MAX, 4096);
                        prop_assert_eq!(foreseen, found);
                    }
                    _ => pages.drop_range(from, from + len),
                }
                let tally = pages.tally_with(Added::default(), u64::MAX, 4096);
                prop_assert_eq!(tally.runs, count_runs(pages.map.keys().copied()));
                let count = |kind| {
                    pages.map.keys().filter(|page| under(**page) == kind).count() as u64
                };
                prop_assert_eq!(tally.over_unwritten, count(Under::Unwritten));
                prop_assert_eq!(tally.pending + tally.moving, count(Under::Written));
                prop_assert_eq!(pages.new_blocks(), count(Under::Nothing));
                prop_assert_eq!(pages.new_blocks_in(0, 100), count(Under::Nothing));
            }
        }
    }
}
