//! The background threads: the flusher commits transactions that closed because they were full, the timekeeper commits
//! streams whose commit interval has passed, the checkpointer keeps the log from filling. Without a log the
//! acknowledger waits for the flusher's batch, so that the flusher sends the next one meanwhile. The threads end when the
//! journal is closed or its last handle dropped.
//!
//! The timekeeper leaves transactions with much data to the flusher, so that a stream with little
//! does not wait for one with much.

use crate::Result;
use crate::checkpoint::Requester;
use crate::core::Request;
use crate::engine::Inner;
use crate::sync::{MutexGuard, wait_timeout};
use std::time::Duration;

/// Interval of the checkpointer's search for work without a signal.
const WORKER_WAIT: Duration = Duration::from_millis(250);

/// Commits transactions that closed because they were full, and those that the timekeeper leaves.
pub(crate) fn flusher(inner: &Inner) {
    loop {
        let mut core = inner.core.lock();
        while core.closed_waiting().is_none() && !core.stopped && core.failure().is_none() {
            core = wait_timeout(&inner.work, core, inner.config.commit_interval);
        }
        if core.stopped || core.failure().is_some() {
            return;
        }
        let pending = core.closed_waiting();
        drop(core);
        // Failures are kept in the core and reach the next caller.
        if let Some(id) = pending {
            let _ = inner.send(Request::Housekeeping, &[id]);
        }
    }
}

/// Acknowledges batches that no other thread waits for.
pub(crate) fn acknowledger(inner: &Inner) {
    loop {
        let mut core = inner.core.lock();
        while core.unattended().is_none() && !core.stopped && core.failure().is_none() {
            core = wait_timeout(&inner.work, core, WORKER_WAIT);
        }
        if core.stopped || core.failure().is_some() {
            return;
        }
        let epoch = core.unattended();
        drop(core);
        // Failures are kept in the core.
        if let Some(epoch) = epoch {
            let _ = inner.wait_epoch(epoch);
        }
    }
}

/// Commits each stream when its commit interval has passed, and lets the client write its kept data in place.
pub(crate) fn timekeeper(inner: &Inner) {
    let clock = &inner.config.clock;
    let mut last = clock.now();
    loop {
        // Failures are kept in the core.
        let _ = inner.commit_due(true);
        let (lanes, core) = inner.told();
        drop(lanes);
        if core.stopped || core.failure().is_some() {
            return;
        }
        let interval = core.limits.commit_interval;
        let now = clock.now();
        // A stream that begins now is due after the shortest interval at the earliest.
        let soonest = core.streams.shortest_interval();
        let due = core.streams.next_due();
        let due = due.map_or(soonest, |due| due.saturating_sub(now).min(soonest));
        let patience = due.min((last + interval).saturating_sub(now));
        let core = if patience.is_zero() {
            core
        } else {
            wait_timeout(&inner.tick, core, patience)
        };
        if core.stopped || core.failure().is_some() {
            return;
        }
        drop::<MutexGuard<'_, _>>(core);
        if clock.now().saturating_sub(last) >= interval {
            last = clock.now();
            if let Some(client) = inner.client() {
                client.interval_passed();
            }
            let _ = inner.flush_in_place();
        }
    }
}

/// Writes home when half of the log is waiting for it.
pub(crate) fn checkpointer(inner: &Inner) {
    loop {
        let mut core = inner.core.lock();
        if !core.wants_checkpoint() && !core.stopped {
            core = wait_timeout(&inner.work, core, WORKER_WAIT);
        }
        if core.stopped || core.failure().is_some() {
            return;
        }
        let wanted = core.wants_checkpoint();
        drop(core);
        if wanted {
            let _ = inner.checkpoint(Requester::Background);
        }
    }
}

impl Inner {
    /// See [`Journal::commit_due`](crate::Journal::commit_due). With `leave`, transactions with much data are only closed, and left to the flusher.
    pub(crate) fn commit_due(&self, leave: bool) -> Result<Option<Duration>> {
        let due = {
            let (_lanes, core) = self.told();
            core.check()?;
            core.streams.due(self.config.clock.now())
        };
        if !due.is_empty() {
            let mut ids = self.close(|core| core.concerned(&due, &[]))?;
            let mut core = self.core.lock();
            core.requested(Request::Interval(&due), &ids);
            if leave {
                ids.retain(|id| !core.has_much_data(*id));
                self.work.notify_all();
            }
            drop(core);
            self.drive(Request::Housekeeping, &ids)?;
        }
        let next = self.told().1.streams.next_due();
        Ok(next.map(|next| next.saturating_sub(self.config.clock.now())))
    }
}
