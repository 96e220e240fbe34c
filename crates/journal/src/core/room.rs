//! The core's room: questions to the policy, with the core's counts.

use super::{Core, Txn, TxnId};
use crate::policy::{DataUse, LogUse, heaviest};
use crate::{Credits, StreamId};

/// Reason why an operation is not admitted yet.
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

    fn log_use(&self) -> LogUse {
        LogUse {
            blocks: self.limits.log_blocks,
            free: self.log_free(),
            reserved: self.reserved_blocks,
        }
    }

    fn data_use(&self) -> DataUse {
        DataUse {
            blocks: self.limits.dirty_blocks,
            uncommitted: self.uncommitted_blocks,
            closed: self.closed.len(),
            pipelines: self.limits.pipelines,
        }
    }

    /// Whether a checkpoint is due.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let acknowledged = self.acked_pos - self.durable_tail_pos;
        let log = self.log_use();
        log.wants_checkpoint(acknowledged, self.logged.len())
    }

    /// Whether a checkpoint could free anything.
    pub(crate) fn can_checkpoint(&self) -> bool {
        self.acked_pos > self.durable_tail_pos
    }

    /// Admits an operation, or returns the reason why it must wait. Reserves its log blocks, and
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
        if !self.data_use().admits(held, credits.data_blocks) {
            return Err(Blocked::Pages);
        }
        let need = self.limits.commit_mode.need_blocks(credits.log_bytes);
        if !self.log_use().admits(need) {
            return Err(Blocked::Log);
        }
        self.reserved_blocks += need;
        if !self.log_use().affords_credit() {
            return Ok(0);
        }
        let more = self.lane_credit();
        self.reserved_blocks += more;
        Ok(more)
    }

    /// Data blocks at which the stream's running transaction closes.
    fn txn_data_blocks_max(&self, stream: StreamId) -> u64 {
        let last = self.last_closed.get(&stream);
        let last = last.and_then(|id| self.txns.get(id));
        self.data_use()
            .closes_at(last.is_some_and(|txn| txn.was_full))
    }

    /// The transaction closes because it is full.
    pub(crate) fn fills_up(&mut self, id: TxnId) {
        let id = self.resolve(id);
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.was_full = true;
        }
    }

    /// The transactions that hold most of something, until they hold `enough` together.
    pub(crate) fn heaviest(&self, enough: u64, weight: impl Fn(&Txn) -> u64) -> Vec<TxnId> {
        heaviest(self.txns.iter().map(|(id, txn)| (weight(txn), *id)), enough)
    }

    /// The transactions that hold most of the log, enough of them for an operation that needs these blocks.
    pub(crate) fn heaviest_in_log(&self, need: u64) -> Vec<TxnId> {
        self.heaviest(self.log_use().relief(need), Txn::need_blocks)
    }

    /// The same for transactions that hold most of the uncommitted data.
    pub(crate) fn heaviest_in_memory(&self, need: u64) -> Vec<TxnId> {
        self.heaviest(self.data_use().relief(need), |txn| txn.data_blocks)
    }

    /// Log blocks that a lane may keep for operations to come.
    pub(crate) fn lane_credit(&self) -> u64 {
        self.log_use().lane_credit()
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
