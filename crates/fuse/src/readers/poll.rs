//! Keeps idle processors from halting, while the rule asks for it.
//!
//! Between a request and its reply client and server sleep in turns. The processor that has nothing else to
//! do meanwhile halts, and waking it up takes, on virtual machines, longer than the whole request. So watchers of the
//! lowest priority spin. Every few microseconds they give way: a thread
//! that wakes up does not take the processor from another one in the middle of its time slice, whatever their
//! priorities.
//!
//! Invariants: a watcher spins only while `awake`, which the first one to see [`CLOSE`] pass without a request
//! takes back for all; `wake` takes the lock, `requested` never does; dropping [`IdlePoll`] ends the watchers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::rule::CLOSE;

/// More watchers than this gain nothing: there is one client at a time to wait for, and the server.
const WATCHERS_MAX: usize = 2;
/// The lowest priority there is (`nice`).
const LOWEST: i32 = 19;
/// Turns of a watcher's loop between giving way and looking at the clock.
const TURNS: u32 = 64;

#[derive(Default)]
struct Shared {
    /// Requests so far.
    requests: AtomicU64,
    awake: AtomicBool,
    stopped: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

/// See the module's header.
pub(crate) struct IdlePoll(Arc<Shared>);

impl IdlePoll {
    /// With a watcher for each processor, as far as they help; none on a single one.
    pub(crate) fn new() -> IdlePoll {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        IdlePoll::with_watchers(if processors > 1 {
            processors.min(WATCHERS_MAX)
        } else {
            0
        })
    }

    fn with_watchers(watchers: usize) -> IdlePoll {
        let shared = Arc::new(Shared::default());
        for _ in 0..watchers {
            let shared = Arc::clone(&shared);
            let watcher = thread::Builder::new().name("fuse-awake".to_owned());
            // Without one everything works, only slower.
            let _ = watcher.spawn(move || shared.watch());
        }
        IdlePoll(shared)
    }

    /// A request has come. Whether watchers are awake.
    pub(crate) fn requested(&self) -> bool {
        // A lost count delays the end of the spinning, no more.
        let requests = self.0.requests.load(Relaxed);
        self.0.requests.store(requests.wrapping_add(1), Relaxed);
        self.0.awake.load(Relaxed)
    }

    /// Watchers are to spin from now on.
    pub(crate) fn wake(&self) {
        let _locked = self.0.locked();
        self.0.awake.store(true, Relaxed);
        self.0.changed.notify_all();
    }

    /// Watchers are to sleep.
    pub(crate) fn rest(&self) {
        self.0.awake.store(false, Relaxed);
    }
}

impl Drop for IdlePoll {
    fn drop(&mut self) {
        let _locked = self.0.locked();
        self.0.stopped.store(true, Relaxed);
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        let me = rustix::thread::gettid();
        if rustix::process::setpriority_process(Some(me), LOWEST).is_err() {
            return; // it would be in the way
        }
        loop {
            let mut locked = self.locked();
            while !self.awake.load(Relaxed) && !self.stopped.load(Relaxed) {
                locked = (self.changed.wait(locked)).unwrap_or_else(PoisonError::into_inner);
            }
            drop(locked);
            if self.stopped.load(Relaxed) {
                return;
            }
            self.spin();
        }
    }

    fn spin(&self) {
        let mut seen = self.requests.load(Relaxed);
        let mut since = Instant::now();
        while self.awake.load(Relaxed) && !self.stopped.load(Relaxed) {
            for _ in 0..TURNS {
                std::hint::spin_loop();
            }
            thread::yield_now();
            let requests = self.requests.load(Relaxed);
            if requests != seen {
                (seen, since) = (requests, Instant::now());
            } else if since.elapsed() > CLOSE {
                self.awake.store(false, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn watchers_sleep_when_no_request_comes() {
        let poll = IdlePoll::with_watchers(2);
        let shared = Arc::clone(&poll.0);
        assert!(!poll.requested());
        poll.wake();
        // Ends: a watcher takes it back, however late it is scheduled.
        while shared.awake.load(Relaxed) {
            thread::sleep(Duration::from_micros(200));
        }
        poll.wake();
        poll.rest();
        assert!(!poll.requested());
        drop(poll);
        assert!(shared.stopped.load(Relaxed));
    }
}
