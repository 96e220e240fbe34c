//! The flushes that the store lacks, and the limits on them: plain state, without I/O and clocks.

use std::collections::VecDeque;

/// Limits of the store's lag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) lag_ms: u64,
    pub(super) lag_blocks: u64,
    /// Time that flushes wait for others, to share a request.
    pub(super) group_ms: u64,
}

/// Number of blocks that is sent without waiting for more.
const SEND_BLOCKS: u64 = 1024;

/// A flush in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Staged {
    /// Its number. Numbers are consecutive.
    pub(super) number: u64,
    /// Time when it was closed, in milliseconds of the clock.
    pub(super) at_ms: u64,
    /// Number of blocks and holes.
    pub(super) weight: u64,
    /// End of its record in the log.
    pub(super) end: u64,
}

/// Flushes that the store has not acknowledged, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stage {
    staged: VecDeque<Staged>,
    weight: u64,
    /// Number of the first flush that was not handed to the disk below, and the weight from it on.
    unsent: u64,
    unsent_weight: u64,
    /// Flushes up to this number are overdue: they were acknowledged before this process started.
    overdue: u64,
}

impl Stage {
    /// Adds a flush that is in the cache.
    pub(super) fn push(&mut self, flush: Staged) {
        if self.staged.is_empty() {
            self.unsent = self.unsent.max(flush.number);
        }
        self.weight += flush.weight;
        self.unsent_weight += flush.weight;
        self.staged.push_back(flush);
    }

    /// Marks all flushes so far as overdue: they were acknowledged before this process started, at an unknown time.
    pub(super) fn mark_overdue(&mut self) {
        self.overdue = self.staged.back().map_or(0, |last| last.number);
    }

    /// Notes that all flushes up to this one were handed over.
    pub(super) fn sent(&mut self, upto: u64) {
        while let Some(flush) = (self.first_unsent().copied()).filter(|flush| flush.number <= upto)
        {
            self.unsent_weight -= flush.weight;
            self.unsent = flush.number + 1;
        }
    }

    /// The last flush with a number of at most `upto`.
    pub(super) fn last_upto(&self, upto: u64) -> Option<Staged> {
        let mut newest_first = self.staged.iter().rev();
        newest_first.find(|flush| flush.number <= upto).copied()
    }

    /// Removes flushes up to this one: the store has them.
    pub(super) fn stored(&mut self, upto: u64) {
        while let Some(first) = self.staged.front().filter(|first| first.number <= upto) {
            self.weight -= first.weight;
            self.staged.pop_front();
        }
    }

    fn first_unsent(&self) -> Option<&Staged> {
        let oldest = self.staged.front()?;
        let index = self.unsent.saturating_sub(oldest.number);
        self.staged.get(usize::try_from(index).ok()?)
    }

    /// Milliseconds until the unsent flushes are due; none if there are none.
    pub(super) fn due_in(&self, bounds: Bounds, now_ms: u64) -> Option<u64> {
        let first = self.first_unsent()?;
        if first.number <= self.overdue || self.unsent_weight >= SEND_BLOCKS {
            return Some(0);
        }
        let age = now_ms.saturating_sub(first.at_ms);
        Some(bounds.group_ms.saturating_sub(age))
    }

    /// Whether the flush `number` may be acknowledged: of the flushes that the store lacks, those up to it are younger than the
    /// lag, and all together are within the lag's blocks.
    pub(super) fn may_acknowledge(&self, number: u64, bounds: Bounds, now_ms: u64) -> bool {
        let Some(oldest) = self.staged.front().filter(|oldest| oldest.number <= number) else {
            return true;
        };
        oldest.number > self.overdue
            && now_ms.saturating_sub(oldest.at_ms) < bounds.lag_ms
            && self.weight <= bounds.lag_blocks
    }

    /// Whether another flush may begin.
    pub(super) fn has_room(&self, bounds: Bounds) -> bool {
        self.weight <= bounds.lag_blocks
    }

    /// The oldest flush that the store lacks.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.staged.front().map(|oldest| oldest.number)
    }

    /// Whether the store has this flush.
    pub(super) fn is_stored(&self, number: u64) -> bool {
        self.staged
            .front()
            .is_none_or(|oldest| oldest.number > number)
    }

    /// Number of flushes that the store lacks, their blocks, and the age of the oldest.
    pub(super) fn lag(&self, now_ms: u64) -> (u64, u64, u64) {
        let age = |oldest: &Staged| now_ms.saturating_sub(oldest.at_ms);
        let age = self.staged.front().map_or(0, age);
        (self.staged.len() as u64, self.weight, age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        lag_ms: 5000,
        lag_blocks: 100,
        group_ms: 250,
    };

    fn flush(number: u64, at_ms: u64, weight: u64) -> Staged {
        Staged {
            number,
            at_ms,
            weight,
            end: number * 10,
        }
    }

    #[test]
    fn a_flush_waits_for_the_store_when_it_is_too_far_behind() {
        let mut stage = Stage::default();
        stage.push(flush(1, 0, 10));
        stage.push(flush(2, 4000, 90));
        assert!(stage.may_acknowledge(2, BOUNDS, 4999));
        assert!(!stage.may_acknowledge(2, BOUNDS, 5000), "too old");
        stage.sent(2);
        assert!(!stage.is_stored(1));
        assert_eq!(stage.last_upto(1).map(|last| last.end), Some(10));
        stage.stored(1);
        assert!(stage.is_stored(1) && !stage.is_stored(2));
        assert!(stage.may_acknowledge(2, BOUNDS, 5000));
        stage.push(flush(3, 5000, 11));
        assert!(!stage.may_acknowledge(3, BOUNDS, 5000), "too much");
        assert!(!stage.has_room(BOUNDS));
        assert_eq!(stage.lag(6000), (2, 101, 2000));
        assert_eq!(stage.last_upto(9).map(|last| last.number), Some(3));
        stage.stored(9);
        assert_eq!(stage.last_upto(9), None);
        assert!(stage.may_acknowledge(3, BOUNDS, 99_999));
    }

    #[test]
    fn flushes_acknowledged_before_this_process_hold_up_all_others() {
        let mut stage = Stage::default();
        stage.push(flush(4, 0, 1));
        stage.mark_overdue();
        stage.push(flush(5, 0, 1));
        assert!(stage.due_in(BOUNDS, 0) == Some(0) && !stage.may_acknowledge(5, BOUNDS, 0));
        stage.sent(5);
        stage.stored(4);
        assert!(stage.may_acknowledge(5, BOUNDS, 0));
    }

    #[test]
    fn flushes_are_sent_when_there_are_many_or_they_have_waited() {
        let mut stage = Stage::default();
        assert_eq!(stage.due_in(BOUNDS, 1 << 40), None);
        stage.push(flush(7, 1000, 1));
        assert_eq!(stage.due_in(BOUNDS, 1249), Some(1));
        assert_eq!(stage.due_in(BOUNDS, 1251), Some(0));
        stage.sent(7);
        assert_eq!(stage.due_in(BOUNDS, 1250), None);
        stage.push(flush(8, 1250, SEND_BLOCKS));
        assert_eq!(stage.due_in(BOUNDS, 1250), Some(0));
    }
}
