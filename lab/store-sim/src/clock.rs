//! Tasks and timers on one thread, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
struct Inner {
    now_us: u64,
    timers: BinaryHeap<Reverse<(u64, u64)>>,
    wakers: HashMap<u64, Waker>,
    timer: u64,
    tasks: HashMap<u64, Option<Task>>,
    task: u64,
    ready: VecDeque<u64>,
}

/// The time of a simulation, and the tasks in it. Clones are the same clock.
#[derive(Clone, Default)]
pub struct Clock(Arc<Mutex<Inner>>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({} us)", self.now_us())
    }
}

struct TaskWaker {
    clock: Clock,
    task: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.clock.lock().ready.push_back(self.task);
    }
}

impl Clock {
    /// A clock that shows 0.
    #[must_use]
    pub fn new() -> Clock {
        Clock::default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Microseconds since the simulation began.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.lock().now_us
    }

    /// Adds a task. It runs by [`run`](Self::run).
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut inner = self.lock();
        let id = inner.task;
        inner.task += 1;
        inner.tasks.insert(id, Some(Box::pin(task)));
        inner.ready.push_back(id);
    }

    /// Ready after `us` microseconds.
    #[must_use]
    pub fn sleep(&self, us: u64) -> Sleep {
        let mut inner = self.lock();
        let (at, id) = (inner.now_us.saturating_add(us), inner.timer);
        inner.timer += 1;
        inner.timers.push(Reverse((at, id)));
        drop(inner);
        Sleep {
            clock: self.clone(),
            at,
            id,
        }
    }

    /// Drops all tasks and timers. Tasks hold their clock, so without this an unfinished simulation is never freed.
    pub fn end(&self) {
        let mut inner = self.lock();
        let tasks = std::mem::take(&mut inner.tasks);
        let wakers = std::mem::take(&mut inner.wakers);
        inner.timers.clear();
        inner.ready.clear();
        // Tasks that are dropped lock the clock.
        drop(inner);
        drop(tasks);
        drop(wakers);
    }

    /// Runs all tasks until the clock shows `until_us`. Returns the number of polls.
    pub fn run(&self, until_us: u64) -> u64 {
        let mut polls = 0;
        loop {
            let next = self.lock().ready.pop_front();
            if let Some(id) = next {
                let taken = self.lock().tasks.get_mut(&id).and_then(Option::take);
                let Some(mut task) = taken else { continue };
                let waker = Waker::from(Arc::new(TaskWaker {
                    clock: self.clone(),
                    task: id,
                }));
                polls += 1;
                let outcome = task.as_mut().poll(&mut Context::from_waker(&waker));
                let mut inner = self.lock();
                if outcome.is_pending() {
                    inner.tasks.insert(id, Some(task));
                } else {
                    inner.tasks.remove(&id);
                    drop(inner);
                    drop(task);
                }
                continue;
            }
            let mut inner = self.lock();
            let due = match inner.timers.peek() {
                Some(Reverse((at, _))) if *at <= until_us => inner.timers.pop(),
                _ => {
                    inner.now_us = inner.now_us.max(until_us);
                    return polls;
                }
            };
            if let Some(Reverse((at, id))) = due {
                inner.now_us = inner.now_us.max(at);
                let waker = inner.wakers.remove(&id);
                drop(inner);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }
}

/// Runs a clock in a thread of its own, at a multiple of real time, for callers that have threads of their own. Such runs do
/// not repeat exactly. Ends when it is dropped.
#[derive(Debug)]
pub struct Pace {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pace {
    /// Starts the thread.
    #[must_use]
    pub fn start(clock: Clock, speed: u64) -> Pace {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let real_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                clock.run(real_us.saturating_mul(speed));
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Pace {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends without a result; a panic in it has been reported.
            let _ = thread.join();
        }
    }
}

/// See [`Clock::sleep`].
#[derive(Debug)]
pub struct Sleep {
    clock: Clock,
    at: u64,
    id: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.clock.lock();
        if inner.now_us >= self.at {
            return Poll::Ready(());
        }
        inner.wakers.insert(self.id, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock.lock().wakers.remove(&self.id);
    }
}
