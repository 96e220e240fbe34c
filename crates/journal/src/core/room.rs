//! The core's room: who is admitted, what it has to wait for, and what is committed to make room.
//!
//! Rules: what is admitted is reserved, so that everything fits the log whatever order things happen in; a stream that holds
//! little is not made to wait for one that holds much; data is left in memory as long as the budget allows, because
//! what is removed or overwritten soon need never be written.

use super::{Core, Txn, TxnId};
use crate::{Credits, StreamId, TXN_DIRTY_BLOCKS_MIN, TXN_DIRTY_SHARE, TXN_PIPELINED_BLOCKS};

/// Most log blocks that a lane keeps for operations to come.
const LANE_CREDIT_MAX: u64 = 64;
/// Log blocks kept back for records that prove others (they carry no patches).
const SPARE_BLOCKS: u64 = 4;

/// Blocks with patches in the log at which a checkpoint begins (64 MiB in memory, twice that where
/// the images differ).
const LOGGED_BLOCKS_MAX: usize = 16_384;
/// So many closed transactions keep the device busy: one is written, one is next. With more of them, the next one
/// only waits, and grows to so many times the size.
const CLOSED_EARLY_MAX: usize = 2;
const CLOSED_LATE_FACTOR: u64 = 4;
/// A stream that holds less than this part of the budget of uncommitted data may use the last part of it.
const LITTLE_SHARE: u64 = 64;
const SPARE_SHARE: u64 = 8;
/// Without room, what holds this part of it is committed: a flush for less is a waste.
const RELIEF_SHARE: u64 = 16;

/// Why an operation is not admitted yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blocked {
    /// A transaction is closing.
    Closing,
    /// The stream's own transaction is full.
    Full(TxnId),
    /// Too many data blocks are uncommitted.
    Pages,
    /// The log has no room.
    Log,
}

impl Core {
    pub(super) fn log_free(&self) -> u64 {
        self.limits.log_blocks - (self.head_pos - self.durable_tail_pos)
    }

    /// Whether more than half of the log waits for a checkpoint that could free it, or more blocks
    /// are held in memory by small patches in the log than there should be.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        (self.acked_pos - self.durable_tail_pos) * 2 > self.limits.log_blocks
            || self.logged.len() > LOGGED_BLOCKS_MAX && self.can_checkpoint()
    }

    /// Whether a checkpoint could free anything.
    pub(crate) fn can_checkpoint(&self) -> bool {
        self.acked_pos > self.durable_tail_pos
    }

    /// Admits an operation, or says what it has to wait for. Reserves its log blocks, and
    /// possibly more for others of its lane: returns how many more.
    pub(crate) fn admit(&mut self, stream: StreamId, credits: Credits) -> Result<u64, Blocked> {
        if self.closing {
            return Err(Blocked::Closing);
        }
        let mut held = 0;
        if let Some(&id) = self.running.get(&stream) {
            let txn = &self.txns[&id];
            held = txn.data_blocks;
            if txn.log_bytes + txn.held_bytes + credits.log_bytes > self.limits.txn_bytes_max
                || txn.takes_much_memory()
                || (held > 0 && held + credits.data_blocks > self.txn_data_blocks_max(stream))
            {
                return Err(Blocked::Full(id));
            }
        }
        if self.uncommitted_blocks > 0
            && self.uncommitted_blocks + credits.data_blocks
                > self.dirty_bound(held + credits.data_blocks)
        {
            return Err(Blocked::Pages);
        }
        let need = self.limits.lay.need_blocks(credits.log_bytes);
        if self.reserved_blocks + need + SPARE_BLOCKS > self.log_free() {
            return Err(Blocked::Log);
        }
        self.reserved_blocks += need;
        let more = self.lane_credit();
        if (self.reserved_blocks + more + SPARE_BLOCKS) * 2 > self.log_free() {
            return Ok(0);
        }
        self.reserved_blocks += more;
        Ok(more)
    }

    /// Data blocks at which the stream's running transaction closes.
    fn txn_data_blocks_max(&self, stream: StreamId) -> u64 {
        let budget = self.limits.dirty_blocks;
        let large = (budget / TXN_DIRTY_SHARE).max(TXN_DIRTY_BLOCKS_MIN.min(budget / 2));
        let last = self
            .last_closed
            .get(&stream)
            .and_then(|id| self.txns.get(id));
        let streams_on = last.is_some_and(|txn| txn.was_full);
        if !self.limits.pipelines {
            return large;
        }
        match streams_on {
            true if self.closed.len() < CLOSED_EARLY_MAX => TXN_PIPELINED_BLOCKS.min(large),
            true => (TXN_PIPELINED_BLOCKS * CLOSED_LATE_FACTOR).min(large),
            // Many streams, each with less than that: the largest close before anybody waits.
            false if self.uncommitted_blocks > budget / 2 => large.min(budget / RELIEF_SHARE),
            false => large,
        }
    }

    /// The transaction closes because it is full.
    pub(crate) fn fills_up(&mut self, id: TxnId) {
        let id = self.resolve(id);
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.was_full = true;
        }
    }

    /// Uncommitted data blocks of all streams at which an operation waits, if its stream holds so many with it.
    fn dirty_bound(&self, held: u64) -> u64 {
        let budget = self.limits.dirty_blocks;
        match held <= budget / LITTLE_SHARE {
            true => budget,
            false => budget - budget / SPARE_SHARE,
        }
    }

    /// The transactions that hold most of something, until they hold so much together.
    pub(crate) fn heaviest(&self, enough: u64, weight: impl Fn(&Txn) -> u64) -> Vec<TxnId> {
        let weighed = self.txns.iter().map(|(id, txn)| (weight(txn), *id));
        let mut all: Vec<(u64, TxnId)> = weighed.filter(|(weight, _)| *weight > 0).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        let more = |(weight, _): &(u64, TxnId)| {
            let more = sum < enough.max(1);
            sum += weight;
            more
        };
        all.into_iter().take_while(more).map(|(_, id)| id).collect()
    }

    /// What holds most of the log, enough to be of use to one that needs so many blocks.
    pub(crate) fn heaviest_in_log(&self, need: u64) -> Vec<TxnId> {
        let enough = need.max(self.limits.log_blocks / RELIEF_SHARE);
        self.heaviest(enough, Txn::need_blocks)
    }

    /// What holds most of the uncommitted data, the same way.
    pub(crate) fn heaviest_in_memory(&self, need: u64) -> Vec<TxnId> {
        let enough = need.max(self.limits.dirty_blocks / RELIEF_SHARE);
        self.heaviest(enough, |txn| txn.data_blocks)
    }

    /// Log blocks that a lane may keep for operations to come.
    pub(crate) fn lane_credit(&self) -> u64 {
        (self.limits.log_blocks / 64).min(LANE_CREDIT_MAX)
    }

    /// Whether a stream's transaction has grown to its bound.
    pub(crate) fn is_full(&self, stream: StreamId) -> bool {
        let txn = self.running.get(&stream).and_then(|id| self.txns.get(id));
        txn.is_some_and(|txn| {
            txn.log_bytes + txn.held_bytes >= self.limits.txn_bytes_max || txn.takes_much_memory()
        })
    }

    /// Ends the reservation of log blocks that an operation or a lane had.
    pub(crate) fn give_back(&mut self, blocks: u64) {
        self.reserved_blocks -= blocks;
    }
}
