//! Delayed pages: file data that was written but has no place on the device yet.
//!
//! A page exists only where the file has no block or an unwritten one; writing to a
//! written block is a patch of the journal instead. All delayed pages of an inode belong
//! to one running transaction (its writers relate the file exclusively and attach its
//! number), until `writeback` allocates and drops them. Bytes behind the end of the file
//! are zero.
//!
//! For the pages are kept, from the moment they are written: blocks for data and for
//! tree nodes ([`Pages::reserved`]), and log bytes for what allocating them will change
//! (corner 24). [`Needs`] says how much that is at worst. A page over an unwritten extent has its block
//! already (corner 71): it stays one for as long as it is delayed, because who takes the extent
//! away drops its pages.

use crate::btree;
use crate::layout::{INODE_BYTES, ROOT_ITEMS};
use crate::work::{COST_BITS, COST_BLOCK, COST_RANGE};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};

/// Bytes of a file that may go into the record instead of to a place of their own: as long as one
/// longer write takes less time than a second one.
pub(crate) const SMALL_BYTES_DEFAULT: u64 = 5 * BLOCK_SIZE as u64;

/// Pages that so many bytes may lie in.
pub(crate) fn small_pages(small_bytes_max: u64) -> usize {
    small_bytes_max.div_ceil(BLOCK_SIZE as u64) as usize + 1
}
/// Log bytes of changing an inode in any way, its body included.
pub(crate) const COST_INODE: u64 = COST_BLOCK + 8 * COST_RANGE + INODE_BYTES as u64;
/// Log bytes of one page's own extent: its bit, its item, its place in the covered list.
const COST_PAGE: u64 = COST_BITS + 2 * size_of::<crate::layout::Item>() as u64 + 64;

/// Delayed pages of one inode, and what goes with them.
#[derive(Default)]
pub(crate) struct Pages {
    map: BTreeMap<u64, Arc<Block>>,
    /// Contiguous runs in `map`.
    runs: u64,
    /// Those of them that have a block, in an unwritten extent.
    over_unwritten: BTreeSet<u64>,
    /// Blocks reserved with the allocator.
    pub(crate) reserved: u64,
    /// Log bytes attached to the running transaction.
    pub(crate) log_bytes: u64,
    /// Overwrites that wait to be written in place: home and content (`in_place`).
    pub(crate) places: BTreeMap<u64, (BlockNo, Arc<Block>)>,
    /// A truncation is under way: the extents from this block on are dead and still to be freed.
    pub(crate) cut: Option<u64>,
    /// Left behind by the planted fault `size_before_data`.
    pub(crate) held: bool,
}

/// What must be kept for the delayed pages of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// Blocks, for data and tree nodes.
    pub(crate) blocks: u64,
    /// Log bytes for what closing changes.
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

/// How many pages are delayed, in how many runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    /// Pages.
    pub(crate) pages: u64,
    /// Contiguous runs of pages.
    pub(crate) runs: u64,
    /// Pages over unwritten extents.
    pub(crate) over_unwritten: u64,
    /// Bytes that may have to go into the record.
    pub(crate) small_bytes: u64,
}

impl Tally {
    /// What must be kept for so many pages of a file with a tree of this shape.
    pub(crate) fn needs(self, shape: Shape) -> Needs {
        if self.pages == 0 {
            return Needs::default();
        }
        let items = shape.items.unwrap_or(usize::MAX) as u64;
        let new_blocks = self.pages - self.over_unwritten;
        // A new block may be an extent of its own. Unwritten extents are split at the ends of a run only:
        // inside of it they are changed where they are.
        let splits = (2 * self.runs).min(2 * self.over_unwritten);
        let added = new_blocks + splits;
        let mut log_bytes = COST_INODE + self.pages * COST_PAGE;
        let mut nodes = 0;
        if items.saturating_add(added) > ROOT_ITEMS as u64 {
            // Each run may split every node on its path, an unwritten one at both ends; within a run a node splits again
            // only after half a node of further extents.
            let paths = self.runs.max(splits);
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

    /// The tally as it would be with `new` more pages (sorted, none of them here yet),
    /// `over_unwritten` of them over unwritten extents, in a file of `size` bytes, of which so
    /// many may go into the record.
    pub(crate) fn tally_with(
        &self,
        new: &[u64],
        over_unwritten: u64,
        size: u64,
        small_bytes_max: u64,
    ) -> Tally {
        let mut runs = self.runs;
        for (index, page) in new.iter().enumerate() {
            let joins_new = index > 0 && new[index - 1] + 1 == *page;
            let joins_last = joins_new
                || page
                    .checked_sub(1)
                    .is_some_and(|last| self.map.contains_key(&last));
            let joins_next = self.map.contains_key(&(page + 1));
            runs = runs + 1 - u64::from(joins_last) - u64::from(joins_next);
        }
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
        Tally {
            pages: count as u64,
            runs,
            over_unwritten: self.over_unwritten.len() as u64 + over_unwritten,
            small_bytes,
        }
    }

    /// Writes into a page, which appears if it is not there; `over_unwritten`: over an
    /// unwritten extent.
    pub(crate) fn write(&mut self, page: u64, offset: usize, bytes: &[u8], over_unwritten: bool) {
        if let Some(block) = self.map.get_mut(&page) {
            Arc::make_mut(block)[offset..offset + bytes.len()].copy_from_slice(bytes);
            return;
        }
        let block = page_of(offset, bytes);
        let last = page
            .checked_sub(1)
            .is_some_and(|last| self.map.contains_key(&last));
        let next = self.map.contains_key(&(page + 1));
        self.runs = self.runs + 1 - u64::from(last) - u64::from(next);
        if over_unwritten {
            self.over_unwritten.insert(page);
        }
        self.map.insert(page, block);
    }

    /// Zeroes a part of a page, if it is there.
    pub(crate) fn zero(&mut self, page: u64, from: usize, to: usize) {
        if let Some(block) = self.map.get_mut(&page) {
            Arc::make_mut(block)[from..to].fill(0);
        }
    }

    /// Drops the pages in `from .. to`. What was kept for them stays kept.
    pub(crate) fn drop_range(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
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

    /// Takes all pages out, to allocate them. What was kept for them stays kept.
    pub(crate) fn take(&mut self) -> BTreeMap<u64, Arc<Block>> {
        self.runs = 0;
        self.over_unwritten.clear();
        std::mem::take(&mut self.map)
    }

    /// How many pages will take a block that the file does not have yet.
    pub(crate) fn new_blocks(&self) -> u64 {
        self.len() - self.over_unwritten.len() as u64
    }

    /// Nothing is delayed any more: returns the blocks that were reserved.
    pub(crate) fn settle(&mut self) -> u64 {
        debug_assert!(self.map.is_empty() && self.over_unwritten.is_empty());
        self.log_bytes = 0;
        std::mem::take(&mut self.reserved)
    }
}

/// A page of zeros but for these bytes; a whole one is copied once, to where it stays.
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
fn count_runs(pages: impl Iterator<Item = u64>) -> u64 {
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

    proptest! {
        #[test]
        fn runs_are_counted_as_pages_come_and_go(
            steps in prop::collection::vec((0u64..40, 1u64..6, any::<bool>()), 1..60)
        ) {
            let mut pages = Pages::default();
            let over = |page: &u64| page.is_multiple_of(3);
            for (from, len, add) in steps {
                if add {
                    let new: Vec<u64> =
                        (from..from + len).filter(|page| pages.get(*page).is_none()).collect();
                    let count = new.iter().filter(|page| over(page)).count() as u64;
                    let foreseen = pages.tally_with(&new, count, u64::MAX, 4096);
                    for page in from..from + len {
                        pages.write(page, 0, &[1], over(&page));
                    }
                    prop_assert_eq!(foreseen.over_unwritten, pages.over_unwritten.len() as u64);
                    prop_assert_eq!(foreseen.runs, pages.runs);
                    prop_assert_eq!(foreseen.pages, pages.len());
                } else {
                    pages.drop_range(from, from + len);
                }
                prop_assert_eq!(pages.runs, count_runs(pages.map.keys().copied()));
                let count = pages.map.keys().filter(|page| over(page)).count();
                prop_assert_eq!(pages.over_unwritten.len(), count);
            }
        }
    }
}
