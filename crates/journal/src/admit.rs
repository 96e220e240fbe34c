//! Operations and the core: admission, ways to make room, commit and
//! abort in memory.

use crate::checkpoint::Requester;
use crate::core::{Blocked, Core, OpChanges, Request, TxnId};
use crate::engine::Inner;
use crate::lanes::{AllLanes, Lane, LaneId};
use crate::probe::Decision;
use crate::sync::MutexGuard;
use crate::{Credits, Error, Result, StreamId, Ticket};
use std::sync::atomic::Ordering::Acquire;

impl Inner {
    /// Admits an operation; returns its lane.
    pub(crate) fn admit(&self, stream: StreamId, credits: Credits) -> Result<LaneId> {
        if !self.has_workers() && self.core.lock().wants_checkpoint() {
            self.checkpoint(Requester::Caller)?;
        }
        let need = self.config.commit_mode.need_blocks(credits.log_bytes);
        let id = LaneId::mine(stream);
        let mut held_back = false;
        loop {
            let mut lane = self.lanes.lane(id);
            let quick = !lane.slow && lane.credit >= need && credits.data_blocks == 0;
            if quick && !held_back && !self.refuses.load(Acquire) {
                lane.credit -= need;
                lane.open += 1;
                return Ok(id);
            }
            let mut core = self.core.lock();
            // The next hold begins when this one has had its turn: until then it counts, and its turn is under this lock.
            if std::mem::take(&mut held_back) {
                core.held_back -= 1;
                if core.held_back == 0 {
                    self.changed.notify_all();
                }
            }
            core.check()?;
            let blocked = match core.admit(stream, credits) {
                Ok(more) => {
                    lane.credit += more;
                    lane.open += 1;
                    lane.slow = core.room_waiters > 0;
                    return Ok(id);
                }
                Err(blocked) => blocked,
            };
            drop(lane);
            if blocked == Blocked::Closing {
                core.held_back += 1;
                held_back = true;
                drop(self.wait(core));
                continue;
            }
            drop(core);
            if blocked == Blocked::Log && self.take_back_credit() {
                continue;
            }
            self.core.lock().stats.waits += 1;
            match blocked {
                Blocked::Closing => {}
                Blocked::Full(id) => self.close_full(id, stream)?,
                Blocked::Pages => self.relieve_pages(stream, credits.data_blocks)?,
                Blocked::Log => self.relieve_log(stream, need)?,
            }
        }
    }

    /// A stream's transaction is full: close it; the flusher commits it if there is one.
    fn close_full(&self, id: TxnId, stream: StreamId) -> Result<()> {
        self.core.lock().fills_up(id);
        let closed = self.close(|_| vec![id])?;
        if self.has_workers() {
            self.work.notify_all();
            Ok(())
        } else {
            self.drive(Request::Room(stream), &closed)
        }
    }

    /// Too much data is uncommitted: waits for the batch being written, else commits the transaction that holds most.
    fn relieve_pages(&self, stream: StreamId, need: u64) -> Result<()> {
        let request = Request::Room(stream);
        let oldest = self.core.lock().closed_waiting();
        match oldest {
            Some(id) => self.drive(request, &[id]),
            None => self.sync(request, |core| core.heaviest_in_memory(need)),
        }
    }

    /// Takes back the space that lanes keep for later operations: it may be enough.
    fn take_back_credit(&self) -> bool {
        let (mut lanes, mut core) = self.told();
        let any = lanes.credit() > 0;
        lanes.slow_down(&mut core);
        any
    }

    /// The log has no room: makes a checkpoint, if it can free any, else commits the transaction that holds most of it.
    fn relieve_log(&self, stream: StreamId, need: u64) -> Result<()> {
        let (mut lanes, mut core) = self.told();
        if core.can_checkpoint() {
            // Any progress of the tail is worth another attempt.
            let past = core.positions().0 + 1;
            drop(core);
            drop(lanes);
            return self.checkpoint_past(past, Requester::Caller);
        }
        if !core.heaviest_in_log(need).is_empty() {
            drop(core);
            drop(lanes);
            return self.sync(Request::Room(stream), |core| core.heaviest_in_log(need));
        }
        // Only other open operations, or batches under way, can hold the space.
        if lanes.open() > 0 || core.committing || core.any_sent() {
            lanes.slow_down(&mut core);
            core.room_waiters += 1;
            drop(lanes);
            core = self.wait(core);
            core.room_waiters -= 1;
        }
        Ok(())
    }

    /// All lanes and the core, which knows of every committed operation.
    pub(crate) fn told(&self) -> (AllLanes<'_>, MutexGuard<'_, Core>) {
        let mut lanes = self.lanes.all();
        let mut core = self.core.lock();
        lanes.tell(&mut core, &self.cache);
        (lanes, core)
    }

    /// Guards the part of a commit that must be done to its end; forget it there.
    pub(crate) fn halfway(&self, lane: Option<LaneId>) -> Halfway<'_> {
        Halfway { inner: self, lane }
    }

    /// Commits an operation in memory. `apply` carries its edits out on the cache.
    pub(crate) fn commit_op(&self, mut changes: OpChanges, apply: impl FnOnce()) -> Ticket {
        let stream = changes.stream;
        changes.name = self.config.probe.name();
        let ticket = |operation| Ticket { stream, operation };
        let Some(id) = changes.lane else {
            // Only the transaction that this operation closes freezes.
            apply();
            let mut core = self.core.lock();
            self.tell_committed(&changes);
            core.commit(changes, &self.cache);
            return ticket(None);
        };
        if changes.is_empty() {
            self.abort_op(id, changes.reserved);
            return ticket(None);
        }
        if changes.commutes() {
            let mut lane = self.lanes.lane(id);
            apply();
            self.tell_committed(&changes);
            let number = lane.push(changes, &self.config.clock);
            lane.open -= 1;
            self.tell_in_time(&mut lane, stream);
            return ticket(Some((id, number)));
        }
        let early = if self.config.faults.reuse_early {
            changes.frees.clone()
        } else {
            Vec::new()
        };
        let mut lanes = self.lanes.all();
        apply();
        let mut core = self.core.lock();
        lanes.tell(&mut core, &self.cache);
        let lane = lanes.of(id);
        let reserved = std::mem::take(&mut changes.reserved);
        self.tell_committed(&changes);
        let number = lane.push(changes, &self.config.clock);
        lane.tell(&mut core, &self.cache);
        lane.open -= 1;
        self.op_left(lane, core, reserved);
        drop(lanes);
        if !early.is_empty()
            && let Some(client) = self.client()
        {
            client.released(&early);
        }
        ticket(Some((id, number)))
    }

    fn tell_committed(&self, changes: &OpChanges) {
        self.config.probe.tell(|| Decision::Committed {
            name: changes.name,
            stream: changes.stream,
            parts: changes.parts(),
        });
    }

    /// Hands the lane's queue to the core, if it is long enough.
    fn tell_in_time(&self, lane: &mut Lane, stream: StreamId) {
        if !lane.wants_to_tell() {
            return;
        }
        let core = if lane.must_tell() {
            Some(self.core.lock())
        } else {
            self.core.try_lock()
        };
        if let Some(mut core) = core {
            lane.tell(&mut core, &self.cache);
            lane.slow |= core.is_full(stream);
            self.op_left(lane, core, 0);
        }
    }

    pub(crate) fn abort_op(&self, lane: LaneId, reserved: u64) {
        let mut lane = self.lanes.lane(lane);
        lane.open -= 1;
        if lane.slow || lane.credit + reserved > lane.credit_max {
            self.op_left(&mut lane, self.core.lock(), reserved);
        } else {
            lane.credit += reserved;
        }
    }

    /// An operation ended: closers wait for the last one, others for its reservation. Threads
    /// that wait for a commit are not disturbed.
    fn op_left(&self, lane: &mut Lane, mut core: MutexGuard<'_, Core>, reserved: u64) {
        core.give_back(reserved);
        if (core.closing && lane.open == 0) || core.room_waiters > 0 {
            self.unlock(core);
        }
    }
}

/// Stops the journal if it panics in the middle of a commit in memory, and ends the operation,
/// so that no other operation builds on half of it or waits for it.
pub(crate) struct Halfway<'a> {
    inner: &'a Inner,
    lane: Option<LaneId>,
}

impl Drop for Halfway<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            let mut lane = self.inner.lanes.lane(lane);
            lane.open = lane.open.saturating_sub(1);
        }
        self.inner.fail(&Error::Corrupt {
            what: "the journal panicked while an operation was committed".into(),
        });
    }
}
