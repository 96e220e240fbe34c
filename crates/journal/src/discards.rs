//! Without a log: freed blocks that have not been trimmed, as runs.
//!
//! Invariant: no committed tree has a block in here, and nothing was written there since it was freed. A thread
//! that writes a block takes it out first, under the same lock (`home::EpochLedger`). A block that is forgotten
//! here is only wasted: the device keeps bytes that are never read.

use crate::core::Run;
use std::collections::BTreeMap;
use steadfast_block::BlockNo;

/// Most runs that are kept: some megabytes of memory. Further ones are forgotten.
const RUNS_MAX: usize = 65_536;

/// See the module's header.
#[derive(Default)]
pub(crate) struct PendingDiscards {
    /// Length by first block. Neighbours are one run.
    runs: BTreeMap<u64, u64>,
    blocks: u64,
}

impl PendingDiscards {
    /// Blocks in it.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds freed blocks.
    pub(crate) fn add(&mut self, (at, count): Run) {
        self.remove((at, count));
        if count == 0 || self.runs.len() >= RUNS_MAX {
            return;
        }
        self.blocks += count;
        let (mut first, mut end) = (at.0, at.0 + count);
        if let Some((&before, &length)) = self.runs.range(..first).next_back()
            && before + length == first
        {
            first = before;
        }
        if let Some(&length) = self.runs.get(&end) {
            self.runs.remove(&end);
            end += length;
        }
        self.runs.insert(first, end - first);
    }

    /// Removes blocks that are written.
    pub(crate) fn remove(&mut self, (at, count): Run) {
        if count == 0 {
            return;
        }
        let (first, end) = (at.0, at.0 + count);
        while let Some((&from, &length)) = self.runs.range(..end).next_back() {
            let to = from + length;
            if to <= first {
                return;
            }
            self.runs.remove(&from);
            self.blocks -= to.min(end) - from.max(first);
            if to > end {
                self.runs.insert(end, to - end);
            }
            if from < first {
                self.runs.insert(from, first - from);
                return;
            }
        }
    }

    /// Takes the first run out.
    pub(crate) fn take(&mut self) -> Option<Run> {
        let (first, count) = self.runs.pop_first()?;
        self.blocks -= count;
        Some((BlockNo(first), count))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::PendingDiscards;
    use std::collections::BTreeSet;
    use steadfast_block::BlockNo;

    /// Against a set of blocks: the same blocks, neighbours in one run, none twice.
    #[test]
    fn runs_are_the_blocks_that_were_freed_and_not_written() {
        let (mut waste, mut set) = (PendingDiscards::default(), BTreeSet::new());
        let mut random = 7u64;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        for round in 0..20_000 {
            let (at, count) = (below(200), below(9));
            if below(2) == 0 {
                waste.add((BlockNo(at), count));
                set.extend(at..at + count);
            } else {
                waste.remove((BlockNo(at), count));
                set.retain(|block| !(at..at + count).contains(block));
            }
            assert_eq!(waste.blocks(), set.len() as u64);
            let mut end = None;
            for (&first, &count) in &waste.runs {
                assert!(count > 0 && end.is_none_or(|end| end < first), "{round}");
                assert!((first..first + count).all(|block| set.contains(&block)));
                end = Some(first + count);
            }
            assert_eq!(waste.runs.values().sum::<u64>(), waste.blocks());
        }
        while let Some((at, count)) = waste.take() {
            assert!((at.0..at.0 + count).all(|block| set.remove(&block)));
        }
        assert!(set.is_empty() && waste.blocks() == 0);
    }
}
