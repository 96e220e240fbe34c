//! Operations at the core's door: admission, what to do when there is no room, commit and
//! abort in memory.

use crate::checkpoint::Asker;
use crate::core::{Blocked, Core, OpChanges, TxnId};
use crate::engine::Inner;
use crate::sync::MutexGuard;
use crate::{Credits, Error, Result, StreamId};

impl Inner {
    pub(crate) fn admit(&self, stream: StreamId, credits: Credits) -> Result<()> {
        if !self.has_workers() && self.core.lock().wants_checkpoint() {
            self.checkpoint(Asker::Caller)?;
        }
        let mut core = self.core.lock();
        loop {
            core.check()?;
            let blocked = match core.admit(stream, credits) {
                Ok(()) => return Ok(()),
                Err(blocked) => blocked,
            };
            if blocked == Blocked::Closing {
                core = self.wait(core);
                continue;
            }
            core.stats.waits += 1;
            drop(core);
            match blocked {
                Blocked::Closing => {}
                Blocked::Full(id) => self.close_full(id)?,
                Blocked::Pages => self.relieve_pages()?,
                Blocked::Log => self.relieve_log()?,
            }
            core = self.core.lock();
        }
    }

    /// A stream's transaction is full: close it; the flusher commits it if there is one.
    fn close_full(&self, id: TxnId) -> Result<()> {
        let closed = self.close(|_| vec![id])?;
        if self.has_workers() {
            self.work.notify_all();
            Ok(())
        } else {
            self.drive(&closed)
        }
    }

    fn relieve_pages(&self) -> Result<()> {
        let oldest = self.core.lock().closed_waiting();
        match oldest {
            Some(id) => self.drive(&[id]),
            None => self.sync(None, &[]),
        }
    }

    fn relieve_log(&self) -> Result<()> {
        let mut core = self.core.lock();
        if core.can_checkpoint() {
            // Any progress of the tail is worth another attempt.
            let past = core.positions().0 + 1;
            drop(core);
            return self.checkpoint_past(past, Asker::Caller);
        }
        if core.uncommitted_transactions() > 0 {
            drop(core);
            return self.sync(None, &[]);
        }
        // Only other open operations, or an empty record under way, can hold the space.
        if core.open_ops > 0 || core.committing {
            core.room_waiters += 1;
            core = self.wait(core);
            core.room_waiters -= 1;
        }
        Ok(())
    }

    /// Guards the part of a commit that must be done to its end; forget it there.
    pub(crate) fn halfway(&self, credits: Option<Credits>) -> Halfway<'_> {
        Halfway {
            inner: self,
            credits,
        }
    }

    pub(crate) fn commit_op(&self, changes: OpChanges) -> TxnId {
        let (credits, closing) = (changes.credits, changes.closing.is_some());
        let early = if self.config.faults.reuse_early {
            changes.frees.clone()
        } else {
            Vec::new()
        };
        let mut core = self.core.lock();
        let id = core.commit(changes, &self.cache);
        if !closing {
            core.leave(credits);
        }
        self.op_left(core);
        if !early.is_empty()
            && let Some(client) = self.client()
        {
            client.released(&early);
        }
        id
    }

    pub(crate) fn abort_op(&self, credits: Credits) {
        let mut core = self.core.lock();
        core.leave(credits);
        self.op_left(core);
    }

    /// An operation ended: closers wait for the last one, others for its reservation. Threads
    /// that wait for a commit are not disturbed.
    fn op_left(&self, core: MutexGuard<'_, Core>) {
        if (core.closing && core.open_ops == 0) || core.room_waiters > 0 {
            self.unlock(core);
        }
    }
}

/// Stops the journal if it panics in the middle of a commit in memory, and ends the operation,
/// so that nobody builds on half of it or waits for it.
pub(crate) struct Halfway<'a> {
    inner: &'a Inner,
    credits: Option<Credits>,
}

impl Drop for Halfway<'_> {
    fn drop(&mut self) {
        let mut core = self.inner.core.lock();
        core.fail(&Error::Corrupt {
            what: "the journal panicked while an operation was committed".into(),
        });
        if let Some(credits) = self.credits {
            core.leave(credits);
        }
        self.inner.wake_everybody(core);
    }
}
