//! Keeps idle processors from halting while requests follow one another closely.
//!
//! Between a request and its reply client and server sleep in turns. The processor that has nothing else to
//! do meanwhile halts, and waking it up takes, on virtual machines, longer than the whole request. So while
//! requests come closely, watchers of the lowest priority spin. Every few microseconds they give way: a thread
//! that wakes up does not take the processor from another one in the middle of its time slice, whatever their
//! priorities. After a moment without a request they sleep. With several clients at a time there is enough to
//! do to keep processors from halting, and watchers would only be in the way.
//!
//! Invariants: a watcher spins only while `awake`, which the first one to see [`LINGER`] pass without a request
//! takes back for all, and so does the first request of another client; `stir` takes the lock only to set it; dropping [`Wakeful`] ends them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Spinning ends so long after the last request.
const LINGER: Duration = Duration::from_millis(1);
/// Requests of one client that come within [`LINGER`] of the one before, so many in a row, begin it.
const CLOSE_TOGETHER: u64 = 8;
/// More watchers than this gain nothing: there is one client at a time to wait for, and the server.
const WATCHERS_MAX: usize = 2;
/// The lowest priority there is (`nice`).
const LOWEST: i32 = 19;
/// Turns of a watcher's loop between giving way and looking at the clock.
const TURNS: u32 = 64;

struct Shared {
    /// Requests so far.
    requests: AtomicU64,
    /// Who sent the last one.
    client: AtomicU32,
    /// When the last one came, in microseconds since `begun`.
    last: AtomicU64,
    /// So many came close together.
    close: AtomicU64,
    begun: Instant,
    awake: AtomicBool,
    stopped: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

/// See the module's header.
pub(crate) struct Wakeful(Arc<Shared>);

impl Wakeful {
    /// With a watcher for each processor, as far as they help; none on a single one.
    pub(crate) fn new() -> Wakeful {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Wakeful::with_watchers(if processors > 1 {
            processors.min(WATCHERS_MAX)
        } else {
            0
        })
    }

    fn with_watchers(watchers: usize) -> Wakeful {
        let shared = Arc::new(Shared {
            requests: AtomicU64::new(0),
            client: AtomicU32::new(0),
            last: AtomicU64::new(0),
            close: AtomicU64::new(0),
            begun: Instant::now(),
            awake: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        });
        for _ in 0..watchers {
            let shared = Arc::clone(&shared);
            let watcher = thread::Builder::new().name("fuse-awake".to_owned());
            // Without one everything works, only slower.
            let _ = watcher.spawn(move || shared.watch());
        }
        Wakeful(shared)
    }

    /// A request of the thread `client` has come (0: of nobody, as RELEASE is).
    pub(crate) fn stir(&self, client: u32) {
        self.stir_at(client, || self.0.begun.elapsed());
    }

    fn stir_at(&self, client: u32, now: impl FnOnce() -> Duration) {
        let shared = &*self.0;
        shared.requests.fetch_add(1, Relaxed);
        if client != 0 && shared.client.swap(client, Relaxed) != client {
            shared.close.store(0, Relaxed);
            shared.awake.store(false, Relaxed);
        }
        if shared.awake.load(Relaxed) {
            return;
        }
        let now = now().as_micros() as u64;
        let since = now.saturating_sub(shared.last.swap(now, Relaxed));
        if Duration::from_micros(since) > LINGER {
            shared.close.store(0, Relaxed);
        } else if shared.close.fetch_add(1, Relaxed) + 1 >= CLOSE_TOGETHER {
            shared.close.store(0, Relaxed);
            let _locked = shared.locked();
            shared.awake.store(true, Relaxed);
            shared.changed.notify_all();
        }
    }
}

impl Drop for Wakeful {
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
            } else if since.elapsed() > LINGER {
                self.awake.store(false, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_one_client_that_come_closely_wake_the_watchers() {
        let wakeful = Wakeful::with_watchers(0);
        let mut now = Duration::ZERO;
        let mut stir = |client, after| {
            now += after;
            wakeful.stir_at(client, || now);
            wakeful.0.awake.load(Relaxed)
        };
        for _ in 0..2 * CLOSE_TOGETHER {
            assert!(!stir(7, 3 * LINGER), "requests far apart wake no watcher");
        }
        for _ in 1..CLOSE_TOGETHER {
            assert!(!stir(7, LINGER / 4));
        }
        assert!(stir(7, LINGER / 4));
        assert!(stir(0, LINGER), "the kernel itself is no other client");
        assert!(!stir(8, LINGER / 4), "two clients need no watchers");
        for _ in 1..CLOSE_TOGETHER {
            assert!(!stir(8, LINGER / 4));
        }
        assert!(stir(8, LINGER / 4));
    }

    #[test]
    fn watchers_sleep_when_no_request_comes() {
        let wakeful = Wakeful::with_watchers(2);
        let shared = Arc::clone(&wakeful.0);
        for _ in 0..=CLOSE_TOGETHER {
            wakeful.stir_at(7, || Duration::ZERO);
        }
        // Ends: a watcher takes it back, however late it is scheduled.
        while shared.awake.load(Relaxed) {
            thread::sleep(Duration::from_micros(200));
        }
        drop(wakeful);
        assert!(shared.stopped.load(Relaxed));
    }
}
