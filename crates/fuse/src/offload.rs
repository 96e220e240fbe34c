//! Requests that wait for the medium (fsync, sync) must not take every thread that
//! reads requests: one reader always stays free, what is more is handed to helpers.
//!
//! A single client's fsync runs on the reader that got it (no hand-over, no second
//! wake-up); many clients' fsyncs wait side by side, so that one commit serves them all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Most helper threads; further requests queue (each belongs to a client that waits).
const HELPERS_MAX: usize = 32;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    helpers: usize,
    stopped: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.queue();
            } else if queue.stopped {
                queue.helpers -= 1;
                return;
            } else {
                queue.idle += 1;
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

/// See the module's header. Dropping it lets the helpers finish what is queued.
pub(crate) struct Offload {
    readers: usize,
    waiting: Arc<AtomicUsize>,
    shared: Arc<Shared>,
}

impl Offload {
    pub(crate) fn new(readers: usize) -> Offload {
        Offload { readers, waiting: Arc::default(), shared: Arc::default() }
    }

    /// Runs a job that may wait: here if another reader stays free, else on a helper.
    /// Jobs do not panic (they pass the gate).
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 < self.readers {
            job();
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let mut queue = self.shared.queue();
        queue.jobs.push_back(Box::new(job));
        if queue.idle < queue.jobs.len() && queue.helpers < HELPERS_MAX {
            let shared = Arc::clone(&self.shared);
            let name = format!("fuse-wait-{}", queue.helpers);
            if thread::Builder::new().name(name).spawn(move || shared.serve()).is_ok() {
                queue.helpers += 1;
            } else if queue.helpers == 0 {
                // No thread to be had: do it here rather than never.
                let job = queue.jobs.pop_back();
                drop(queue);
                if let Some(job) = job {
                    job();
                }
                return;
            }
        }
        drop(queue);
        self.shared.wake.notify_one();
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.shared.queue().stopped = true;
        self.shared.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn many_waiting_jobs_leave_the_readers_free_and_all_finish() {
        let offload = Offload::new(1);
        let (go, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (done, finished) = mpsc::channel();
        for i in 0..100 {
            let (gate, done) = (Arc::clone(&gate), done.clone());
            offload.run(move || {
                let _ = gate.lock().map(|g| g.recv());
                let _ = done.send(i);
            });
        }
        for _ in 0..100 {
            assert!(go.send(()).is_ok());
        }
        let mut seen: Vec<i32> =
            (0..100).filter_map(|_| finished.recv_timeout(Duration::from_secs(10)).ok()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }
}
