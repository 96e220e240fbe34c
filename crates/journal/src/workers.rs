//! The two background threads: the flusher commits what nobody asks for, the checkpointer keeps
//! the log from filling. Both hold the journal weakly and go when it goes.

use crate::checkpoint::Asker;
use crate::engine::Inner;
use crate::sync::wait_timeout;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// How often a worker looks whether its journal is still there.
const WORKER_WAIT: Duration = Duration::from_millis(250);

/// Commits what has been running for the commit interval, and what was closed because it was full.
pub(crate) fn flusher(inner: &Weak<Inner>) {
    let mut last = Instant::now();
    while let Some(inner) = inner.upgrade() {
        let core = inner.core.lock();
        if core.stopped || core.failure().is_some() {
            return;
        }
        let pending = core.closed_waiting();
        let core = if pending.is_none() {
            wait_timeout(
                &inner.work,
                core,
                inner
                    .config
                    .commit_interval
                    .saturating_sub(last.elapsed())
                    .min(WORKER_WAIT),
            )
        } else {
            core
        };
        if core.stopped {
            return;
        }
        let pending = core.closed_waiting();
        drop(core);
        // Failures are kept in the core and reach the next caller.
        if let Some(id) = pending {
            let _ = inner.drive(&[id]);
        }
        if last.elapsed() >= inner.config.commit_interval {
            last = Instant::now();
            let _ = inner.sync(None, &[]);
        }
    }
}

/// Writes home when half of the log is waiting for it.
pub(crate) fn checkpointer(inner: &Weak<Inner>) {
    while let Some(inner) = inner.upgrade() {
        let core = inner.core.lock();
        if core.stopped || core.failure().is_some() {
            return;
        }
        let core = if core.wants_checkpoint() {
            core
        } else {
            wait_timeout(&inner.work, core, WORKER_WAIT)
        };
        if core.stopped {
            return;
        }
        let wanted = core.wants_checkpoint();
        drop(core);
        if wanted {
            let _ = inner.checkpoint(Asker::Background);
        }
    }
}
