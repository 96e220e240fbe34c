//! Events of all descriptors, and which workers they call.
//!
//! All descriptors are in one epoll, connections edge-triggered, so that none is armed again. Idle workers do not
//! wait there: they wait on a second epoll that holds the first and is armed for one worker at a time. The kernel calls the
//! worker that slept last; it takes one event, arms the second epoll for the next worker, and serves. So a lone call is
//! served where it arrives, with no hand-over, and a further event calls a further worker.
//!
//! *Running workers.* When as many workers run as there are processors, no further one is called: each takes the next event
//! when it has served the last, so a burst wakes nobody. A worker that is about to wait says so ([`Events::away`]) and counts
//! no more. A worker may also wait unexpectedly, for a lock or a block that is not in memory. So while calls are withheld, the
//! relief thread checks: if no event was served for [`RELIEF_AFTER`], it calls a further worker ([`Events::relieve`]).
//!
//! Invariant: the second epoll is armed; or a worker that it called is about to arm it or to withhold calls; or calls are
//! withheld, and then as many workers run as there are processors, or one of them is about to ask for an event.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

/// If no call ends for this long, the running workers may be waiting.
const RELIEF_AFTER: Duration = Duration::from_millis(1);
/// How often a worker yields the processor before it sleeps, while calls are withheld.
const LULL_TURNS_MAX: u32 = 8;
/// Checks in a row at which no call was withheld, after which the relief thread sleeps.
const RELIEF_ENDS_AFTER: u32 = 4;

/// The workers that serve a call and do not wait, as far as they know.
#[derive(Debug, Default)]
struct Running {
    processors: usize,
    workers: AtomicUsize,
    /// The second epoll is not armed, because enough workers run.
    withheld: AtomicBool,
    /// Calls that have ended.
    ended: AtomicU64,
    /// The relief thread checks.
    watched: AtomicBool,
    lock: Mutex<()>,
    watch: Condvar,
}

impl Running {
    fn locked(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker keeps from one event to the next.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// It counts among those that run.
    runs: bool,
}

/// A worker that waits. See [`Events::away`].
#[derive(Debug)]
pub(crate) struct Away<'a>(&'a Events);

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.running.workers.fetch_add(1, Ordering::SeqCst);
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Events {
    all: OwnedFd,
    /// Readable when `all` is; armed for one worker.
    idle: OwnedFd,
    running: Running,
    stopping: AtomicBool,
}

impl Events {
    pub(crate) fn new() -> std::io::Result<Events> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let idle = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let once = EventFlags::IN | EventFlags::ONESHOT;
        epoll::add(&idle, &all, EventData::new_u64(0), once)?;
        Ok(Events {
            all,
            idle,
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

    /// Makes an event of whatever an edge-triggered descriptor is ready for now.
    pub(crate) fn post(&self, fd: impl AsFd, token: u64, flags: EventFlags) {
        // It was added; if it is out already, nothing is to be done.
        let _ = epoll::modify(&self.all, fd, EventData::new_u64(token), flags);
    }

    /// Takes a descriptor out.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.all, fd);
    }

    /// Waits for an event; none at the end. A worker that got one runs until it asks for the next one and there is none.
    pub(crate) fn next(&self, turn: &mut Turn) -> Option<epoll::Event> {
        let running = &self.running;
        let mut called = false;
        if turn.runs {
            running.ended.fetch_add(1, Ordering::Relaxed);
        }
        loop {
            let mut event = self.take_event();
            // Clients that were just answered send their next call when they get the processor, and need not wake a worker.
            let mut lull = 0;
            while event.is_none()
                && turn.runs
                && lull < LULL_TURNS_MAX
                && running.withheld.load(Ordering::SeqCst)
                && !self.is_stopping()
            {
                thread::yield_now();
                event = self.take_event();
                lull += 1;
            }
            if self.is_stopping() {
                event = None;
            }
            if event.is_none() && std::mem::take(&mut turn.runs) {
                running.workers.fetch_sub(1, Ordering::SeqCst);
            }
            match event {
                Some(_) if turn.runs => {}
                Some(_) => {
                    turn.runs = true;
                    self.begins(called);
                }
                None if called && !self.is_stopping() => self.call_or_withhold(),
                None if called => self.call_next_worker(),
                None => self.call_if_withheld(),
            }
            if event.is_some() || self.is_stopping() {
                return event;
            }
            let waited = wait(&self.idle, None);
            called = waited.is_some();
        }
    }

    /// An event that is there: one, what is ready at the same time goes to others.
    fn take_event(&self) -> Option<epoll::Event> {
        wait(&self.all, Some(&Timespec::default()))
    }

    /// A worker begins to run, perhaps called by the kernel.
    fn begins(&self, called: bool) {
        self.running.workers.fetch_add(1, Ordering::SeqCst);
        if called {
            self.call_or_withhold();
        }
    }

    /// The second epoll has called this worker and is not armed any more: arms it, unless enough workers run.
    fn call_or_withhold(&self) {
        let running = &self.running;
        if running.workers.load(Ordering::SeqCst) < running.processors {
            return self.call_next_worker();
        }
        running.withheld.store(true, Ordering::SeqCst);
        // A worker that stopped running in between may have found nothing withheld.
        if running.workers.load(Ordering::SeqCst) < running.processors {
            self.call_if_withheld();
        } else if !running.watched.swap(true, Ordering::SeqCst) {
            let _lock = running.locked();
            running.watch.notify_one();
        }
    }

    /// The worker is about to wait, and does not count as running until this is dropped.
    pub(crate) fn away(&self) -> Away<'_> {
        self.running.workers.fetch_sub(1, Ordering::SeqCst);
        self.call_if_withheld();
        Away(self)
    }

    fn call_if_withheld(&self) {
        if self.running.withheld.swap(false, Ordering::SeqCst) {
            self.call_next_worker();
        }
    }

    /// The next event calls an idle worker, also if it is there already.
    fn call_next_worker(&self) {
        let once = EventFlags::IN | EventFlags::ONESHOT;
        let _ = epoll::modify(&self.idle, &self.all, EventData::new_u64(0), once);
    }

    /// The relief thread: calls a worker when the running ones seem to wait.
    pub(crate) fn relieve(&self) {
        let running = &self.running;
        while !self.is_stopping() {
            let mut lock = running.locked();
            while !running.watched.load(Ordering::SeqCst) && !self.is_stopping() {
                lock = (running.watch.wait(lock)).unwrap_or_else(PoisonError::into_inner);
            }
            drop(lock);
            let (mut ended, mut looks) = (0, 0);
            while looks < RELIEF_ENDS_AFTER && !self.is_stopping() {
                thread::sleep(RELIEF_AFTER);
                let before = std::mem::replace(&mut ended, running.ended.load(Ordering::Relaxed));
                looks = match running.withheld.load(Ordering::SeqCst) {
                    true => 0,
                    false => looks + 1,
                };
                if ended == before {
                    self.call_if_withheld();
                }
            }
            running.watched.store(false, Ordering::SeqCst);
            // A worker that still found this thread checking did not wake it.
            if running.withheld.load(Ordering::SeqCst) {
                running.watched.store(true, Ordering::SeqCst);
            }
        }
    }

    /// From now on there are no events.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // From now on each worker that ends wakes the next one, whatever the running ones wait for.
        self.call_next_worker();
        let _lock = self.running.locked();
        self.running.watch.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// An event, or none in time. Only a signal interrupts it.
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

    /// On one processor, whose worker serves an event that the kernel called it for, while another event waits.
    fn served(then: impl FnOnce(&Events)) {
        let mut events = Events::new().unwrap();
        events.running.processors = 1;
        let descriptors = [(); 2].map(|()| eventfd(1, EventfdFlags::CLOEXEC).unwrap());
        for (fd, token) in descriptors.iter().zip(1..) {
            let once = EventFlags::IN | EventFlags::ONESHOT;
            events.add(fd, token, once).unwrap();
        }
        assert!(calls_a_worker(&events));
        let mut turn = Turn::default();
        assert!(events.next(&mut turn).is_some());
        events.call_or_withhold();
        assert!(
            !calls_a_worker(&events),
            "one runs, and there is one processor"
        );
        then(&events);
        events.stop();
    }

    /// Whether an idle worker would be called; then nothing is armed any more.
    fn calls_a_worker(events: &Events) -> bool {
        wait(&events.idle, Some(&Timespec::default())).is_some()
    }

    #[test]
    fn a_worker_that_says_that_it_waits_lets_another_one_be_called() {
        served(|events| {
            let away = events.away();
            assert!(calls_a_worker(events));
            drop(away);
        });
    }

    #[test]
    fn a_worker_that_has_nothing_more_to_serve_lets_another_one_be_called() {
        served(|events| {
            let mut turn = Turn { runs: true };
            // It takes the second event itself, and does not arm.
            assert!(events.next(&mut turn).is_some());
            assert!(!calls_a_worker(events));
            let fd = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            thread::scope(|scope| {
                // There is none for it until this one comes.
                scope.spawn(|| assert!(events.next(&mut turn).is_some()));
                events
                    .add(&fd, 3, EventFlags::IN | EventFlags::ONESHOT)
                    .unwrap();
            });
        });
    }

    #[test]
    fn a_worker_that_waits_without_saying_so_is_relieved() {
        served(|events| {
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
}
