//! The policy of commits and checkpoints: when a transaction closes, when an operation waits, which transactions are
//! committed to make room or taken along by a batch, how long a batch's leader waits for others, and when a checkpoint
//! begins.
//!
//! Pure functions on counts: no lock, no clock, no device. `core` and `drive` apply their decisions. A wrong
//! decision costs time, never durability or order. Rules:
//!
//! * admission reserves space, so that everything fits the log in any order;
//! * a stream that holds little does not wait for one that holds much;
//! * data stays in memory as long as the budget allows: data that is soon removed or overwritten need never be written.

use crate::{TXN_DIRTY_BLOCKS_MIN, TXN_DIRTY_SHARE, TXN_PIPELINED_BLOCKS};
use std::time::Duration;

/// Most log blocks that a lane keeps for operations to come.
const LANE_CREDIT_MAX: u64 = 64;
/// A lane keeps at most this part of the log (its reciprocal).
const LANE_CREDIT_SHARE: u64 = 64;
/// Log blocks kept back for records that prove others (they carry no patches).
const SPARE_BLOCKS: u64 = 4;
/// Blocks with patches in the log at which a checkpoint begins (64 MiB in memory, twice that where the images differ).
const LOGGED_BLOCKS_MAX: usize = 16_384;
/// This many closed transactions keep the device busy: one is written, one is next. With more of them the next one only
/// waits, and may grow to a multiple of the size.
const CLOSED_EARLY_MAX: usize = 2;
const CLOSED_LATE_FACTOR: u64 = 4;
/// A stream that holds less than this part of the budget of uncommitted data (its reciprocal) may use the last part of it.
const LITTLE_SHARE: u64 = 64;
const SPARE_SHARE: u64 = 8;
/// Without room, transactions that hold this part of it (its reciprocal) are committed: a flush for less is a waste.
const RELIEF_SHARE: u64 = 16;
/// Log bytes of transactions that a batch takes along although its leader does not need them: writing them takes less time
/// than a flush.
const ALONG_BYTES_MAX: u64 = 256 << 10;
/// A transaction that this many batches left out goes with the next one.
const PASSED_OVER_MAX: u32 = 8;
/// Turns that a leader gives other threads without seeing one come.
const IDLE_TURNS_MAX: u32 = 8;

/// The log: its blocks, and how they are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogUse {
    /// Blocks of the log.
    pub(crate) blocks: u64,
    /// Blocks that no record occupies.
    pub(crate) free: u64,
    /// Blocks of these that are reserved for admitted operations.
    pub(crate) reserved: u64,
}

impl LogUse {
    /// Whether an operation that needs these blocks is admitted.
    pub(crate) fn admits(self, blocks: u64) -> bool {
        self.reserved + blocks + SPARE_BLOCKS <= self.free
    }

    /// Blocks that a lane may keep for operations to come.
    pub(crate) fn lane_credit(self) -> u64 {
        (self.blocks / LANE_CREDIT_SHARE).min(LANE_CREDIT_MAX)
    }

    /// Whether a lane gets its credit now: half of the free log stays for others.
    pub(crate) fn affords_credit(self) -> bool {
        (self.reserved + self.lane_credit() + SPARE_BLOCKS) * 2 <= self.free
    }

    /// Amount of log to commit for an operation that needs `blocks`.
    pub(crate) fn relief(self, blocks: u64) -> u64 {
        blocks.max(self.blocks / RELIEF_SHARE)
    }

    /// Whether more than half of the log waits for a checkpoint, or small patches hold too many blocks in memory.
    /// `acknowledged` are the log blocks that a checkpoint would free, `patched` the blocks in memory.
    pub(crate) fn wants_checkpoint(self, acknowledged: u64, patched: usize) -> bool {
        acknowledged * 2 > self.blocks || patched > LOGGED_BLOCKS_MAX && acknowledged > 0
    }
}

/// The budget of uncommitted data, and how it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataUse {
    /// Blocks of the budget.
    pub(crate) blocks: u64,
    /// Uncommitted blocks of all streams.
    pub(crate) uncommitted: u64,
    /// Closed transactions that are not durable.
    pub(crate) closed: usize,
    /// A background thread writes one transaction while the next grows.
    pub(crate) pipelines: bool,
}

impl DataUse {
    /// Whether an operation brings `more` blocks now, whose stream holds `held` already. The first block always comes in.
    pub(crate) fn admits(self, held: u64, more: u64) -> bool {
        let bound = match held + more <= self.blocks / LITTLE_SHARE {
            true => self.blocks,
            false => self.blocks - self.blocks / SPARE_SHARE,
        };
        self.uncommitted == 0 || self.uncommitted + more <= bound
    }

    /// Blocks at which a stream's running transaction closes. `full_before`: the stream's last transaction closed because it
    /// was full, and is not durable.
    pub(crate) fn closes_at(self, full_before: bool) -> u64 {
        let large = (self.blocks / TXN_DIRTY_SHARE).max(TXN_DIRTY_BLOCKS_MIN.min(self.blocks / 2));
        if !self.pipelines {
            return large;
        }
        match full_before {
            true if self.closed < CLOSED_EARLY_MAX => TXN_PIPELINED_BLOCKS.min(large),
            true => (TXN_PIPELINED_BLOCKS * CLOSED_LATE_FACTOR).min(large),
            // Many streams with less than that each: the largest close before an operation waits.
            false if self.uncommitted > self.blocks / 2 => large.min(self.blocks / RELIEF_SHARE),
            false => large,
        }
    }

    /// Amount of data to commit for an operation that brings `blocks`.
    pub(crate) fn relief(self, blocks: u64) -> u64 {
        blocks.max(self.blocks / RELIEF_SHARE)
    }
}

/// The heaviest of these, until they weigh `enough` together. Those of weight 0 are left out.
pub(crate) fn heaviest<T: Ord + Copy>(
    weighed: impl Iterator<Item = (u64, T)>,
    enough: u64,
) -> Vec<T> {
    let mut all: Vec<(u64, T)> = weighed.filter(|(weight, _)| *weight > 0).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0;
    let more = |(weight, _): &(u64, T)| {
        let more = sum < enough.max(1);
        sum += weight;
        more
    };
    all.into_iter()
        .take_while(more)
        .map(|(_, item)| item)
        .collect()
}

/// Amount that a batch takes along besides its leader's needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Along {
    bytes_left: u64,
}

impl Along {
    /// `all`: without a bound, which a test plants.
    pub(crate) fn new(all: bool) -> Along {
        Along {
            bytes_left: if all { u64::MAX } else { ALONG_BYTES_MAX },
        }
    }

    /// Whether a transaction must go with the next batch, after this many left it out.
    pub(crate) fn is_due(passed_over: u32) -> bool {
        passed_over >= PASSED_OVER_MAX
    }

    /// Takes a transaction along if it fits.
    pub(crate) fn takes(&mut self, log_bytes: u64) -> bool {
        let left = self.bytes_left.checked_sub(log_bytes);
        self.bytes_left = left.unwrap_or(self.bytes_left);
        left.is_some()
    }
}

/// Of the threads that commit, this part (its reciprocal) waits for a batch before it is sent beside others: with many
/// threads that is 2 requests for each round of them, and with two or three of them none waits.
const BESIDE_SHARE: u32 = 2;

/// Whether a batch is sent while others are on their way: `here` threads want it, `crowd` threads have committed lately. A
/// batch that is put off is sent at the latest when no other batch is on its way.
pub(crate) fn sends_beside(here: u32, crowd: u32) -> bool {
    here.saturating_mul(BESIDE_SHARE) >= crowd.saturating_sub(1)
}

/// Time that a caller leaves to others before it begins a batch: the last one began this long ago.
pub(crate) fn pause(gap: Duration, since_last: Option<Duration>) -> Duration {
    since_last.map_or(Duration::ZERO, |since| gap.saturating_sub(since))
}

/// Time that a leader waits for the threads that the last batch released: they probably commit again, and share the
/// record then.
#[derive(Default)]
pub(crate) struct Patience {
    seen: u32,
    idle_turns: u32,
}

impl Patience {
    /// Whether the leader gives others another turn: `here` threads commit, `expected` did so lately.
    pub(crate) fn expects_more(&mut self, here: u32, expected: u32) -> bool {
        if here >= expected || self.idle_turns >= IDLE_TURNS_MAX {
            return false;
        }
        self.idle_turns = if here > self.seen {
            0
        } else {
            self.idle_turns + 1
        };
        self.seen = here;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogUse = LogUse {
        blocks: 1024,
        free: 1000,
        reserved: 100,
    };
    const DATA: DataUse = DataUse {
        blocks: 1 << 18,
        uncommitted: 0,
        closed: 0,
        pipelines: true,
    };

    #[test]
    fn the_log_admits_operations_that_fit_beside_reservations_and_keeps_spare_blocks() {
        assert!(LOG.admits(1000 - 100 - SPARE_BLOCKS));
        assert!(!LOG.admits(1000 - 100 - SPARE_BLOCKS + 1));
    }

    #[test]
    fn lanes_get_credit_only_while_half_of_the_free_log_stays_for_others() {
        assert_eq!(LOG.lane_credit(), 16);
        assert!(LOG.affords_credit());
        let reserved = LOG.free / 2 - LOG.lane_credit() - SPARE_BLOCKS;
        assert!(LogUse { reserved, ..LOG }.affords_credit());
        let reserved = reserved + 1;
        assert!(!LogUse { reserved, ..LOG }.affords_credit());
    }

    #[test]
    fn a_checkpoint_begins_at_half_of_the_log_or_at_many_patched_blocks() {
        assert!(!LOG.wants_checkpoint(512, 0));
        assert!(LOG.wants_checkpoint(513, 0));
        assert!(LOG.wants_checkpoint(1, LOGGED_BLOCKS_MAX + 1));
        assert!(
            !LOG.wants_checkpoint(0, LOGGED_BLOCKS_MAX + 1),
            "nothing to free"
        );
    }

    #[test]
    fn a_stream_that_holds_little_is_admitted_where_one_that_holds_much_waits() {
        let nearly_full = DataUse {
            uncommitted: DATA.blocks - 10,
            ..DATA
        };
        assert!(nearly_full.admits(0, 10));
        assert!(!nearly_full.admits(0, 11));
        assert!(!nearly_full.admits(DATA.blocks / LITTLE_SHARE, 10));
        assert!(DATA.admits(0, 2 * DATA.blocks), "the first always comes in");
    }

    #[test]
    fn a_stream_that_fills_transactions_closes_small_ones_until_the_device_is_busy() {
        let at = |closed, full| DataUse { closed, ..DATA }.closes_at(full);
        assert_eq!(at(0, false), TXN_DIRTY_BLOCKS_MIN);
        assert_eq!(at(0, true), TXN_PIPELINED_BLOCKS);
        assert_eq!(at(2, true), TXN_PIPELINED_BLOCKS * CLOSED_LATE_FACTOR);
        let alone = DataUse {
            pipelines: false,
            ..DATA
        };
        assert_eq!(alone.closes_at(true), TXN_DIRTY_BLOCKS_MIN);
        let crowded = DataUse {
            uncommitted: DATA.blocks / 2 + 1,
            ..DATA
        };
        assert_eq!(crowded.closes_at(false), DATA.blocks / RELIEF_SHARE);
        for blocks in [1, 2, 100, 4096, 1 << 20] {
            for full in [false, true] {
                assert!(DataUse { blocks, ..DATA }.closes_at(full) <= blocks / 2);
            }
        }
    }

    #[test]
    fn relief_commits_the_heaviest_until_they_are_enough() {
        let weighed = [(5, 'a'), (0, 'b'), (7, 'c'), (1, 'd')];
        let chosen = |enough| heaviest(weighed.into_iter(), enough);
        assert_eq!(chosen(0), ['c']);
        assert_eq!(chosen(7), ['c']);
        assert_eq!(chosen(8), ['c', 'a']);
        assert_eq!(chosen(100), ['c', 'a', 'd']);
        assert_eq!((LOG.relief(1), LOG.relief(500)), (64, 500));
        assert_eq!(DATA.relief(1), DATA.blocks / 16);
    }

    #[test]
    fn a_batch_takes_small_transactions_along_up_to_a_bound() {
        let mut along = Along::new(false);
        assert!(along.takes(ALONG_BYTES_MAX - 10));
        assert!(!along.takes(11), "does not fit");
        assert!(along.takes(10), "a smaller one does");
        assert!(Along::new(true).takes(u64::MAX));
        assert!(!Along::is_due(PASSED_OVER_MAX - 1) && Along::is_due(PASSED_OVER_MAX));
    }

    #[test]
    fn a_batch_is_sent_beside_others_when_half_of_the_threads_wait_for_it() {
        assert!((1..=3).all(|crowd| sends_beside(1, crowd)));
        assert!(!sends_beside(1, 4) && sends_beside(2, 4));
        assert!(!sends_beside(31, 64) && sends_beside(32, 64));
    }

    #[test]
    fn a_batch_begins_at_least_the_gap_after_the_last_one() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(30), None), ms(0), "the first one");
        assert_eq!(pause(ms(30), Some(ms(10))), ms(20));
        assert_eq!(pause(ms(30), Some(ms(40))), ms(0));
        assert_eq!(pause(ms(0), Some(ms(0))), ms(0));
    }

    #[test]
    fn a_leader_waits_while_threads_come_and_a_few_turns_more() {
        let mut patience = Patience::default();
        assert!(!patience.expects_more(4, 4), "all are here");
        let mut turns = 0;
        while patience.expects_more(1, 4) {
            turns += 1;
        }
        assert_eq!(turns, IDLE_TURNS_MAX + 1);
        let mut patience = Patience::default();
        for here in 1..100 {
            assert!(patience.expects_more(here, 100), "one comes each turn");
        }
    }
}
