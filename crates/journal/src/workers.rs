//! The two background threads: the flusher commits what nobody asks for, the checkpointer keeps
//! the log from filling, if there is one. Both go when the journal is closed or its last handle dropped.

use crate::checkpoint::Asker;
use crate::core::Core;
use crate::engine::Inner;
use crate::sync::wait_timeout;
use std::time::{Duration, Instant};

/// How often the checkpointer looks for work that nobody told it of.
const WORKER_WAIT: Duration = Duration::from_millis(250);

/// Commits what has been running for the commit interval, and what was closed because it was full.
pub(crate) fn flusher(inner: &Inner) {
    let interval = inner.config.commit_interval;
    let mut last = Instant::now();
    loop {
        let mut core = inner.core.lock();
        if core.closed_waiting().is_none() && !core.stopped {
            let patience = interval.saturating_sub(last.elapsed());
            core = wait_timeout(&inner.work, core, patience);
        }
        if core.stopped || core.failure().is_some() {
            return;
        }
        let pending = core.closed_waiting();
        drop(core);
        // Failures are kept in the core and reach the next caller.
        if let Some(id) = pending {
            let _ = inner.drive(&[id]);
        }
        if last.elapsed() >= interval {
            last = Instant::now();
            if let Some(client) = inner.client() {
                client.interval_passed();
            }
            let _ = inner.sync(Core::everything);
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
            let _ = inner.checkpoint(Asker::Background);
        }
    }
}
