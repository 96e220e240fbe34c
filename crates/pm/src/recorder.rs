//! The recorder: every store, write-back and fence on a region, in order, and which words were read.
//!
//! A store and its event are one step under the recorder's lock, so the order of events is the order in which the stores
//! became visible, with any number of threads. Events know their thread, because a fence orders only write-backs of its own
//! thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::trace::Trace;
use crate::{LINE_BYTES, WORD_BYTES};

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

impl Event {
    /// Whether it changes a word.
    #[must_use]
    pub fn is_store(&self) -> bool {
        matches!(self, Event::Store { .. } | Event::Data { .. })
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Event::Store { at, word } => write!(f, "store {word:#x} at {at:#x}"),
            Event::Data { at, word } => write!(f, "data {word:#x} at {at:#x}"),
            Event::WriteBack { line } => {
                write!(f, "write back the line at {:#x}", line * LINE_BYTES)
            }
            Event::Fence => f.write_str("fence"),
            Event::Mark(mark) => write!(f, "mark {mark}"),
        }
    }
}

/// Records the events of a [recorded](crate::Region::recorded) region.
pub struct Recorder {
    trace: Mutex<Trace>,
    /// A bit for each word: whether it was read.
    reads: Vec<AtomicU64>,
}

impl Recorder {
    pub(crate) fn new(base: Vec<u64>) -> Recorder {
        let reads = base.len().div_ceil(64);
        Recorder {
            trace: Mutex::new(Trace::new(base)),
            reads: (0..reads).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Trace> {
        // A panic under the lock leaves the trace whole: each step is one push.
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `effect` and records its event, as one step.
    pub(crate) fn step(&self, event: Event, effect: impl FnOnce()) {
        let mut trace = self.lock();
        effect();
        trace.push(event, this_thread());
    }

    /// Everything so far, in the order in which it became visible.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.lock().events().to_vec()
    }

    /// Everything so far, together with the words before it: for [crash images](Trace::explore) and the
    /// [report](Trace::report).
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.lock().clone()
    }

    /// Records a mark, for example that a call begins or has returned.
    pub fn mark(&self, mark: u64) {
        self.step(Event::Mark(mark), || {});
    }

    /// Forgets the events, and takes `content` as durable.
    pub(crate) fn restart(&self, content: impl FnOnce() -> Vec<u64>) {
        let mut trace = self.lock();
        *trace = Trace::new(content());
    }

    /// Notes that words were read.
    pub(crate) fn note_read(&self, first: usize, words: usize) {
        for word in first..first + words {
            let bit = 1 << (word % 64);
            let reads = &self.reads[word / 64];
            if reads.load(Ordering::Relaxed) & bit == 0 {
                reads.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Whether the word at `at` was read since the recorder was made or [`forget_reads`](Recorder::forget_reads) was called.
    /// An address out of bounds was not.
    #[must_use]
    pub fn was_read(&self, at: u64) -> bool {
        let word = at / WORD_BYTES;
        let index = usize::try_from(word / 64).unwrap_or(usize::MAX);
        let reads = self.reads.get(index);
        reads.is_some_and(|reads| reads.load(Ordering::Relaxed) >> (word % 64) & 1 == 1)
    }

    /// Takes all words as not read.
    pub fn forget_reads(&self) {
        for reads in &self.reads {
            reads.store(0, Ordering::Relaxed);
        }
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
