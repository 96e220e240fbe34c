//! Threads for requests that may wait: as many as wait at a time, up to a limit that is never reached by more jobs.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A thread without a job ends after this time.
const IDLE_MAX: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state();
                continue;
            }
            state.idle += 1;
            let waited = self.changed.wait_timeout(state, IDLE_MAX);
            let (back, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// See the module's header.
pub(super) struct Pool {
    shared: Arc<Shared>,
    limit: usize,
}

impl Pool {
    /// With at most `limit` threads.
    pub(super) fn new(limit: usize) -> Pool {
        Pool {
            shared: Arc::default(),
            limit,
        }
    }

    /// Has a thread do the job: an idle one, else a new one. If the system refuses that, the caller does it.
    pub(super) fn run(&self, job: Job) {
        let mut state = self.shared.state();
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() || state.threads == self.limit {
            self.shared.changed.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("fuse-waits".to_owned());
        if thread.spawn(move || shared.work()).is_err() {
            let mut state = self.shared.state();
            state.threads -= 1;
            let job = state.jobs.pop_front();
            drop(state);
            if let Some(job) = job {
                job();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn jobs_that_wait_for_one_another_all_run_at_a_time() {
        let pool = Pool::new(8);
        for _ in 0..3 {
            let together = Arc::new(Barrier::new(9));
            for _ in 0..8 {
                let together = Arc::clone(&together);
                pool.run(Box::new(move || {
                    together.wait();
                }));
            }
            together.wait();
        }
        assert!(pool.shared.state().threads <= 8);
    }
}
