//! The recorder: every store, write-back and fence on a region, in order.
//!
//! A store and its event are one step under the recorder's lock, so the order of events is the order in which the stores
//! became visible, whatever the number of threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One thing that happened to a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// An ordinary store of one word.
    Store {
        /// Byte address, a multiple of 8.
        at: u64,
        /// The word.
        word: u64,
    },
    /// A non-temporal store of one word.
    Data {
        /// Byte address, a multiple of 8.
        at: u64,
        /// The word.
        word: u64,
    },
    /// A line was written back.
    WriteBack {
        /// Number of the line: its byte address divided by 64.
        line: u64,
    },
    /// A fence.
    Fence,
    /// A mark that the caller set.
    Mark(u64),
}

struct Log {
    base: Vec<u64>,
    events: Vec<Event>,
    threads: Vec<u32>,
}

/// Records what happens to a region.
pub struct Recorder {
    log: Mutex<Log>,
}

impl Recorder {
    pub(crate) fn new(base: Vec<u64>) -> Recorder {
        Recorder {
            log: Mutex::new(Log {
                base,
                events: Vec::new(),
                threads: Vec::new(),
            }),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A panic under the lock leaves it whole: each step is one push.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `effect` and records its event, as one step.
    pub(crate) fn step(&self, event: Event, effect: impl FnOnce()) {
        let mut log = self.log();
        effect();
        log.push(event);
    }

    /// Everything so far, in the order in which it became visible.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.log().events.clone()
    }

    /// The words of the region before the first event.
    #[must_use]
    pub fn base(&self) -> Vec<u64> {
        self.log().base.clone()
    }

    /// Records a mark, for example that a call begins or has returned.
    pub fn mark(&self, mark: u64) {
        self.log().push(Event::Mark(mark));
    }

    /// Forgets the events, and takes `content` as durable.
    pub(crate) fn restart(&self, content: impl FnOnce() -> Vec<u64>) {
        let mut log = self.log();
        log.base = content();
        log.events.clear();
        log.threads.clear();
    }
}

impl Log {
    fn push(&mut self, event: Event) {
        self.events.push(event);
        self.threads.push(this_thread());
    }
}

/// A small number for the calling thread.
fn this_thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    thread_local!(static NUMBER: Cell<u32> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}
