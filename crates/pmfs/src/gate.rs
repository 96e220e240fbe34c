//! Counts the calls that change something, so that a volume can go down: when the gate is closed, none is running, and none
//! begins any more.
//!
//! Threads count in different places, so that they do not wait for one cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Places to count in.
const SHARDS: usize = 32;

/// One place, in cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    running: AtomicU32,
    passed: AtomicU64,
}

/// Passed by each call that changes something.
#[derive(Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    shards: [Shard; SHARDS],
}

/// A call on its way.
pub(crate) struct Passing<'a>(&'a Shard);

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}

fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed)));
    MINE.with(Cell::get) % SHARDS
}

impl Gate {
    /// Begins a call, unless the gate is closed.
    pub(crate) fn pass(&self) -> Option<Passing<'_>> {
        let shard = &self.shards[shard_of_thread()];
        // First counted, then looked, both in one order with `close`: either this call sees that the gate is closed, or
        // `close` sees this call.
        shard.running.fetch_add(1, Ordering::SeqCst);
        let passing = Passing(shard);
        if self.closed.load(Ordering::SeqCst) {
            return None;
        }
        shard.passed.fetch_add(1, Ordering::Relaxed);
        Some(passing)
    }

    /// Closes the gate, and waits until the calls that have passed are over. Returns whether it was open.
    pub(crate) fn close(&self) -> bool {
        let was_open = !self.closed.swap(true, Ordering::SeqCst);
        for shard in &self.shards {
            while shard.running.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
        was_open
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Calls that have passed.
    pub(crate) fn passed(&self) -> u64 {
        let passed = |shard: &Shard| shard.passed.load(Ordering::Relaxed);
        self.shards.iter().map(passed).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_has_no_call_left_and_lets_none_in() {
        let gate = Gate::default();
        let running = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(_passing) = gate.pass() {
                        running.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            while gate.passed() < 100 {
                std::thread::yield_now();
            }
            assert!(gate.close());
            assert_eq!(running.load(Ordering::SeqCst), 0);
            let passed = gate.passed();
            assert!(gate.pass().is_none() && !gate.close());
            assert_eq!(gate.passed(), passed);
        });
    }
}
