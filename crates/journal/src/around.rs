//! The runs that an operation writes around the log, found by address.
//!
//! A close brings a run for each scattered page, and looks for each block that it reads or patches
//! among them: so a lookup costs the logarithm of their number.

use crate::core::DataRun;
use std::collections::BTreeMap;
use std::sync::Arc;
use steadfast_block::{Block, BlockNo};

/// Runs of new data. Those of one operation are disjoint: their blocks are newly allocated.
#[derive(Default)]
pub(crate) struct Around {
    runs: Vec<DataRun>,
    /// Index of the run that begins at a block.
    first: BTreeMap<Key, usize>,
}

/// Place of a block: run, and block in it.
#[derive(Clone, Copy)]
pub(crate) struct Spot(usize, usize);

impl Around {
    pub(crate) fn push(&mut self, at: BlockNo, data: Vec<Arc<Block>>) {
        self.first.insert(Key(at.0), self.runs.len());
        self.runs.push((at, data));
    }

    /// Place of a block, if it is in a run. O(log runs).
    pub(crate) fn find(&self, at: BlockNo) -> Option<Spot> {
        let (first, run) = self.first.range(..=Key(at.0)).next_back()?;
        let i = (at.0 - first.0) as usize;
        (i < self.runs[*run].1.len()).then_some(Spot(*run, i))
    }

    pub(crate) fn block(&self, Spot(run, i): Spot) -> &Block {
        &self.runs[run].1[i]
    }

    pub(crate) fn block_mut(&mut self, Spot(run, i): Spot) -> &mut Block {
        Arc::make_mut(&mut self.runs[run].1[i])
    }

    /// All runs, in the order in which they came.
    pub(crate) fn take(&mut self) -> Vec<DataRun> {
        self.first.clear();
        std::mem::take(&mut self.runs)
    }
}

/// The first block of a run. Tests count the comparisons.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), derive(PartialOrd, Ord))]
struct Key(u64);

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::cmp::Ordering;
    use steadfast_block::BLOCK_SIZE;

    thread_local!(static COMPARED: Cell<u64> = const { Cell::new(0) });

    impl Ord for Key {
        fn cmp(&self, other: &Key) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Key {
        fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    /// Comparisons that `runs` scattered pages cost: each is written, and looked for four times.
    fn cost(runs: u64) -> u64 {
        let mut around = Around::default();
        let block = Arc::new([0; BLOCK_SIZE]);
        COMPARED.set(0);
        for n in 0..runs {
            // Scattered, in no order.
            let at = BlockNo(n.wrapping_mul(0x9e37_79b9) % (1 << 32) * 4);
            around.push(at, vec![Arc::clone(&block); 2]);
            for (offset, within) in [(0, true), (1, true), (2, false), (3, false)] {
                assert_eq!(around.find(at.offset(offset)).is_some(), within);
            }
        }
        COMPARED.get()
    }

    /// An fsync of 8,000 scattered pages took a second: each lookup went through all runs of the
    /// operation that closed the transaction.
    #[test]
    fn scattered_pages_cost_their_number_times_its_logarithm() {
        let (few, many) = (cost(1_000), cost(16_000));
        assert!(many < few * 16 * 2, "{few} for 1,000, {many} for 16,000");
        assert!(many < 16_000 * 5 * 14 * 6, "{many} for 16,000");
    }
}
