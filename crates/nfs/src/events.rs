//! Events of all descriptors, and the choice of the worker that handles each.
//!
//! All descriptors are in one epoll; connections are edge-triggered, so they need no re-arming. Exactly one party *guards* it:
//!
//! * a worker that *sits*: it waits on the epoll itself, and serves each event. While calls come one at a time, it is always
//!   the same worker: no hand-over, no arming, and one system call between two calls besides those of the connection;
//! * or the idle workers: they wait on a second epoll that contains the first one and is *armed* for one of them. A worker arms
//!   it if it cannot sit soon: it is about to wait ([`Events::away`]), or may have to ([`Events::covered`]), or it found the
//!   next call waiting after it had served one, so there is work for two. The kernel wakes the worker that slept last;
//! * or *no thread*: a worker serves a call that never waits, or as many workers run as there are processors. Each takes the
//!   next event after the last one, so a burst wakes no thread.
//!
//! *Running workers.* A worker may also wait unexpectedly, for a lock or for a block that is not in memory. So while several
//! run and no thread guards, the relief thread checks: if no call has ended for [`RELIEF_AFTER`], it arms the second epoll
//! ([`Events::relieve`]).
//!
//! Invariant: if no thread guards, some worker is about to ask for an event or to arm the second epoll.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

/// Time without the end of a call after which the running workers may be waiting.
const RELIEF_AFTER: Duration = Duration::from_millis(1);
/// Yields of the processor before a worker waits, while others run on all processors.
const LULL_TURNS_MAX: u32 = 8;
/// Consecutive checks with a guarding thread after which the relief thread sleeps.
const RELIEF_ENDS_AFTER: u32 = 4;

/// Counts of running workers: those that serve a call and do not expect to wait.
#[derive(Debug, Default)]
struct Running {
    processors: usize,
    workers: AtomicUsize,
    /// Number of workers that wait within a call.
    away: AtomicUsize,
    /// Number of calls that have ended.
    ended: AtomicU64,
    /// The relief thread is checking.
    watched: AtomicBool,
    lock: Mutex<()>,
    watch: Condvar,
}

impl Running {
    fn locked(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of a worker between events.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// It is counted as running.
    runs: bool,
}

/// A worker that waits. See [`Events::away`].
#[derive(Debug)]
pub(crate) struct Away<'a>(&'a Events);

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let running = &self.0.running;
        running.workers.fetch_add(1, Ordering::SeqCst);
        running.away.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The party that guards: [`Events::guard`].
const NOBODY: u8 = 0;
const SITTING: u8 = 1;
const ARMED: u8 = 2;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Events {
    all: OwnedFd,
    /// Readable when `all` is; armed for one worker.
    idle: OwnedFd,
    guard: AtomicU8,
    running: Running,
    stopping: AtomicBool,
}

impl Events {
    pub(crate) fn new() -> std::io::Result<Events> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let idle = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // The second epoll is not armed: the first worker sits.
        epoll::add(&idle, &all, EventData::new_u64(0), EventFlags::ONESHOT)?;
        Ok(Events {
            all,
            idle,
            guard: AtomicU8::new(NOBODY),
            running: Running {
                processors: thread::available_parallelism().map_or(1, usize::from),
                ..Running::default()
            },
            stopping: AtomicBool::new(false),
        })
    }

    /// Adds a descriptor.
    pub(crate) fn add(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> std::io::Result<()> {
        Ok(epoll::add(&self.all, fd, EventData::new_u64(token), flags)?)
    }

    /// Makes a new event if an edge-triggered descriptor is ready now.
    pub(crate) fn post(&self, fd: impl AsFd, token: u64, flags: EventFlags) {
        // The descriptor was added; if it is removed by now, there is nothing to do.
        let _ = epoll::modify(&self.all, fd, EventData::new_u64(token), flags);
    }

    /// Removes a descriptor.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.all, fd);
    }

    /// Waits for an event; none at the end of the server. A worker with an event runs until it asks for the next one and there
    /// is none.
    pub(crate) fn next(&self, turn: &mut Turn) -> Option<epoll::Event> {
        let running = &self.running;
        if turn.runs {
            running.ended.fetch_add(1, Ordering::Relaxed);
            if let Some(event) = self.take_next() {
                // There is work for one more.
                self.call_or_withhold();
                return Some(event);
            }
            turn.runs = false;
            running.workers.fetch_sub(1, Ordering::SeqCst);
        }
        while !self.is_stopping() {
            let event = match self.change_guard(NOBODY, SITTING) {
                true => {
                    let event = match self.is_stopping() {
                        true => None,
                        false => wait(&self.all, None),
                    };
                    self.guard.store(NOBODY, Ordering::SeqCst);
                    event
                }
                false => {
                    if wait(&self.idle, None).is_some() {
                        self.change_guard(ARMED, NOBODY);
                    }
                    self.take_event()
                }
            };
            if event.is_some() && !self.is_stopping() {
                turn.runs = true;
                // A lone worker serves at once: no other thread holds a lock that it needs.
                let others = running.workers.fetch_add(1, Ordering::SeqCst);
                if others + running.away.load(Ordering::SeqCst) > 0 {
                    self.call_or_withhold();
                }
                return event;
            }
        }
        // Each worker that ends wakes the next one, whatever the running workers wait for.
        self.arm();
        None
    }

    /// The next event for a running worker. Clients that were just answered send their next call when they get the
    /// processor, and then need not wake a worker.
    fn take_next(&self) -> Option<epoll::Event> {
        let mut lull = 0;
        while !self.is_stopping() {
            let event = self.take_event();
            let crowded = self.running.workers.load(Ordering::SeqCst) >= self.running.processors
                && self.running.processors > 1
                && self.guard.load(Ordering::SeqCst) == NOBODY;
            if event.is_some() || !crowded || lull == LULL_TURNS_MAX {
                return event;
            }
            thread::yield_now();
            lull += 1;
        }
        None
    }

    /// A ready event. Only one: other ready events go to other workers.
    fn take_event(&self) -> Option<epoll::Event> {
        wait(&self.all, Some(&Timespec::default()))
    }

    fn change_guard(&self, from: u8, to: u8) -> bool {
        let changed = (self.guard).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        changed.is_ok()
    }

    /// A worker begins to serve, and more work may come: idle workers guard, unless enough workers run.
    fn call_or_withhold(&self) {
        let running = &self.running;
        if running.workers.load(Ordering::SeqCst) < running.processors {
            return self.call_if_unguarded();
        }
        // Otherwise the relief thread takes care. It must see that a worker began to run before it is woken.
        if self.guard.load(Ordering::SeqCst) == NOBODY
            && !running.watched.swap(true, Ordering::SeqCst)
        {
            let _lock = running.locked();
            running.watch.notify_one();
        }
    }

    /// The worker is about to do something that may wait unexpectedly.
    pub(crate) fn covered(&self) {
        self.call_or_withhold();
    }

    /// The worker is about to wait. It does not count as running until the result is dropped.
    pub(crate) fn away(&self) -> Away<'_> {
        self.running.away.fetch_add(1, Ordering::SeqCst);
        self.running.workers.fetch_sub(1, Ordering::SeqCst);
        self.call_if_unguarded();
        Away(self)
    }

    /// If no thread guards, the next event wakes an idle worker, even if the event is ready already.
    fn call_if_unguarded(&self) {
        if self.change_guard(NOBODY, ARMED) {
            self.arm();
        }
    }

    fn arm(&self) {
        let once = EventFlags::IN | EventFlags::ONESHOT;
        let _ = epoll::modify(&self.idle, &self.all, EventData::new_u64(0), once);
    }

    /// The relief thread: wakes a worker when the running ones seem to wait.
    pub(crate) fn relieve(&self) {
        let running = &self.running;
        while !self.is_stopping() {
            let mut lock = running.locked();
            while !running.watched.load(Ordering::SeqCst) && !self.is_stopping() {
                lock = (running.watch.wait(lock)).unwrap_or_else(PoisonError::into_inner);
            }
            drop(lock);
            let (mut ended, mut checks) = (0, 0);
            while checks < RELIEF_ENDS_AFTER && !self.is_stopping() {
                thread::sleep(RELIEF_AFTER);
                let before = std::mem::replace(&mut ended, running.ended.load(Ordering::Relaxed));
                checks = match self.guard.load(Ordering::SeqCst) {
                    NOBODY => 0,
                    _ => checks + 1,
                };
                if ended == before {
                    self.call_if_unguarded();
                }
            }
            running.watched.store(false, Ordering::SeqCst);
            // A worker that still saw this thread checking did not wake it.
            if self.guard.load(Ordering::SeqCst) == NOBODY {
                running.watched.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Ends all events.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // A thread that waits for an event gets the end event.
        self.arm();
        let _lock = self.running.locked();
        self.running.watch.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// Waits for an event; none after the timeout, or after a signal.
fn wait(epoll: &OwnedFd, patience: Option<&Timespec>) -> Option<epoll::Event> {
    let mut room = [MaybeUninit::uninit()];
    let (events, _) = epoll::wait(epoll, &mut room, patience).ok()?;
    events.first().copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::Instant;

    /// With this number of processors: a worker serves an event that came while it sat, and another event waits.
    fn served(processors: usize, then: impl FnOnce(&Events, &mut Turn)) {
        let mut events = Events::new().unwrap();
        events.running.processors = processors;
        let descriptors = [(); 2].map(|()| eventfd(1, EventfdFlags::CLOEXEC).unwrap());
        for (fd, token) in descriptors.iter().zip(1..) {
            let once = EventFlags::IN | EventFlags::ONESHOT;
            events.add(fd, token, once).unwrap();
        }
        let mut turn = Turn::default();
        assert!(events.next(&mut turn).is_some());
        assert!(!calls_a_worker(&events), "a lone call calls nobody");
        then(&events, &mut turn);
        events.stop();
    }

    /// Whether an idle worker would be woken. Disarms the second epoll.
    fn calls_a_worker(events: &Events) -> bool {
        let called = wait(&events.idle, Some(&Timespec::default())).is_some();
        called && events.change_guard(ARMED, NOBODY)
    }

    #[test]
    fn a_worker_that_says_that_it_waits_lets_another_one_be_called() {
        served(1, |events, _| {
            let away = events.away();
            assert!(calls_a_worker(events));
            drop(away);
        });
    }

    #[test]
    fn a_worker_that_may_wait_lets_another_one_be_called_if_a_processor_is_idle() {
        served(2, |events, _| {
            events.covered();
            assert!(calls_a_worker(events));
        });
        served(1, |events, _| {
            events.covered();
            assert!(!calls_a_worker(events));
        });
    }

    #[test]
    fn a_worker_that_finds_the_next_call_lets_another_one_be_called() {
        served(2, |events, turn| {
            assert!(events.next(turn).is_some());
            let fd = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            events
                .add(&fd, 3, EventFlags::IN | EventFlags::ONESHOT)
                .unwrap();
            assert!(calls_a_worker(events));
        });
    }

    #[test]
    fn a_worker_with_nothing_more_to_serve_sits() {
        served(1, |events, turn| {
            // The worker takes the second event itself, and arms nothing.
            assert!(events.next(turn).is_some());
            assert!(!calls_a_worker(events));
            let fd = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| assert!(events.next(turn).is_some()));
                let since = Instant::now();
                while events.guard.load(Ordering::SeqCst) != SITTING {
                    assert!(since.elapsed() < Duration::from_secs(60));
                    thread::yield_now();
                }
                assert!(!calls_a_worker(events));
                events
                    .add(&fd, 3, EventFlags::IN | EventFlags::ONESHOT)
                    .unwrap();
            });
        });
    }

    #[test]
    fn a_worker_that_waits_without_saying_so_is_relieved() {
        served(1, |events, _| {
            events.covered();
            thread::scope(|scope| {
                scope.spawn(|| events.relieve());
                let since = Instant::now();
                let mut called = false;
                while !called && since.elapsed() < Duration::from_secs(60) {
                    thread::yield_now();
                    called = calls_a_worker(events);
                }
                events.stop();
                assert!(called);
            });
        });
    }

    /// The sitting worker and the sleeping workers.
    #[test]
    fn all_workers_end() {
        let events = Events::new().unwrap();
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        events.add(&fd, 0, EventFlags::IN).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(events.next(&mut Turn::default()).is_none()));
            }
            thread::sleep(Duration::from_millis(10));
            events.stop();
            rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
        });
    }
}
