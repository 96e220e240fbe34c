//! Read-ahead: which reads belong to a sequence, and how far ahead of each sequence is read. Plain state, without I/O.
//!
//! Several readers go on side by side, and the reads of one of them come in another order when several threads serve it. So a
//! read belongs to a sequence if it lies near its end, and a few sequences are remembered.

use std::collections::VecDeque;

/// Blocks of a full data object.
pub(super) const OBJECT_BLOCKS: u64 = (8 << 20) / steadfast_block::BLOCK_SIZE as u64;
/// Least read-ahead in blocks, and blocks of a read at the begin of the disk that is taken for the first of a sequence.
pub(super) const LEAST: u64 = 64;
/// How many times as far each read-ahead goes, and how many times as far as the read itself the first one.
const GROWTH: u64 = 8;
/// Reads of the same length that may overtake each other.
const OVERTAKEN: u64 = 4;
/// Sequences that are remembered.
const SEQUENCES: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sequence {
    /// End of its reads.
    end: u64,
    /// Blocks that are read ahead.
    window: u64,
    /// End of what has been read ahead.
    until: u64,
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub(super) struct Ahead {
    /// The one with the newest read is the last.
    sequences: VecDeque<Sequence>,
}

impl Ahead {
    /// Takes note of a read. Returns the end of its sequence, if it continues one.
    pub(super) fn read(&mut self, block: u64, count: u64) -> Option<u64> {
        let end = block.saturating_add(count);
        let near = count.saturating_mul(OVERTAKEN);
        let goes_on = |sequence: &Sequence| {
            block <= sequence.end.saturating_add(near - count) && sequence.end <= block + near
        };
        match self.sequences.iter().rposition(goes_on) {
            Some(at) => {
                let mut sequence = self.sequences.remove(at)?;
                let is_new = end > sequence.end;
                sequence.end = sequence.end.max(end);
                self.sequences.push_back(sequence);
                is_new.then_some(end)
            }
            None => {
                if self.sequences.len() == SEQUENCES {
                    self.sequences.pop_front();
                }
                let end = end.max(block);
                self.sequences.push_back(Sequence {
                    end,
                    ..Sequence::default()
                });
                (block == 0 && count >= LEAST).then_some(end)
            }
        }
    }

    /// The range to read ahead of the newest sequence after a read of `count` blocks, if it is time: up to `most` blocks, shared
    /// with the other sequences, and not beyond the disk. Few large ranges, and a range as soon as there is room for an object.
    pub(super) fn next(&mut self, count: u64, most: u64, blocks: u64) -> Option<(u64, u64)> {
        let others = self.sequences.iter().rev().skip(1);
        let active = 1 + others.filter(|sequence| sequence.window > 0).count() as u64;
        let most = (most / active).max(LEAST);
        let sequence = self.sequences.back_mut()?;
        let window = sequence.window.min(most);
        let step = (window / 2).min(OBJECT_BLOCKS);
        if sequence.until > sequence.end + window - step {
            return None;
        }
        let first = count.saturating_mul(GROWTH).clamp(LEAST, most);
        sequence.window = (sequence.window * GROWTH).clamp(first, most);
        let from = sequence.until.max(sequence.end);
        sequence.until = sequence.end.saturating_add(sequence.window).min(blocks);
        (from < sequence.until).then_some((from, sequence.until))
    }

    /// The range that ended at `to` was read only up to `until`: the next one begins there.
    pub(super) fn ended(&mut self, to: u64, until: u64) {
        for sequence in &mut self.sequences {
            if sequence.until == to {
                sequence.until = until;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 16 * OBJECT_BLOCKS;
    const DISK: u64 = 1 << 30;

    /// The ranges that are read ahead.
    fn ranges(ahead: &mut Ahead, reads: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let range = |(block, count)| {
            ahead.read(block, count)?;
            ahead.next(count, MOST, DISK)
        };
        reads.into_iter().filter_map(range).collect()
    }

    #[test]
    fn a_sequence_is_read_further_ahead_each_time_without_gaps() {
        let mut ahead = Ahead::default();
        let found = ranges(&mut ahead, (100..3000).map(|i| (i * 32, 32)));
        assert_eq!(found[0], (102 * 32, 102 * 32 + 256));
        assert!(found.windows(2).all(|pair| pair[0].1 == pair[1].0));
        let longest = found.iter().map(|(from, to)| to - from).max();
        assert!(longest.is_some_and(|blocks| (MOST / 2..=MOST).contains(&blocks)));
        // As soon as there is room for an object.
        let last = found.last().map(|(from, to)| to - from);
        assert!(last.is_some_and(|blocks| (OBJECT_BLOCKS..2 * OBJECT_BLOCKS).contains(&blocks)));
    }

    #[test]
    fn single_reads_are_no_sequence() {
        let mut ahead = Ahead::default();
        assert_eq!(ranges(&mut ahead, [(500, 1); 100]), []);
        let random = (1..10_000_u64).map(|i| (i * 7919 % 65_537 * 16, 1));
        assert_eq!(ranges(&mut ahead, random), []);
        assert_eq!(ranges(&mut ahead, [(0, 1), (0, 63)]), [(63, 567)]);
    }

    #[test]
    fn a_large_read_at_the_begin_is_the_first_of_a_sequence() {
        assert_eq!(ranges(&mut Ahead::default(), [(0, 63)]), []);
        assert_eq!(ranges(&mut Ahead::default(), [(0, 64)]), [(64, 64 + 512)]);
    }

    /// Two readers side by side, or reads that two threads swap, ended read-ahead.
    #[test]
    fn readers_side_by_side_and_reads_that_are_swapped_go_on() {
        let mut ahead = Ahead::default();
        let both = (0..100).flat_map(|i| [(i * 32 + 1000, 32), (i * 32 + (1 << 24), 32)]);
        let found = ranges(&mut ahead, both);
        let (low, high): (Vec<_>, Vec<_>) =
            found.iter().copied().partition(|(from, _)| *from < 1 << 24);
        assert!(low.len() >= 3 && high.len() >= 3, "{found:?}");
        let mut ahead = Ahead::default();
        let swapped = (0..100).flat_map(|i| [(i * 64 + 1032, 32), (i * 64 + 1000, 32)]);
        let found = ranges(&mut ahead, swapped);
        assert!(found.len() >= 3 && found.windows(2).all(|pair| pair[0].1 == pair[1].0));
    }

    #[test]
    fn sequences_share_the_room_and_the_oldest_is_forgotten() {
        let mut ahead = Ahead::default();
        for reader in 0..2 * SEQUENCES as u64 {
            let reads = (0..1000).map(|i| ((reader << 24) + 5 + i * 32, 32));
            let found = ranges(&mut ahead, reads);
            let most = MOST / (reader + 1).min(SEQUENCES as u64);
            let longest = found.iter().map(|(from, to)| to - from).max();
            assert!(longest.is_some_and(|blocks| blocks <= most), "{reader}");
        }
        assert_eq!(ahead.sequences.len(), SEQUENCES);
    }

    #[test]
    fn the_next_range_begins_where_the_last_one_ended() {
        let mut ahead = Ahead::default();
        let found = ranges(&mut ahead, [(1000, 256), (1256, 256)]);
        assert_eq!(found, [(1512, 1512 + 2048)]);
        ahead.ended(1512 + 2048, 2000);
        assert_eq!(ranges(&mut ahead, [(1512, 256)]), [(2000, 1768 + 16_384)]);
        assert_eq!(
            ranges(&mut Ahead::default(), [(DISK - 64, 32), (DISK - 32, 32)]),
            []
        );
    }
}
