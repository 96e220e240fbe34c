//! Counts the calls that change something, so that a volume can go down: when the gate is closed, none is running, and none
//! begins any more.
//!
//! Threads count in different places, so that they do not wait for one cache line.

use crate::threads::{Padded, thread_number};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Places to count in.
const SHARDS: usize = 32;

/// Calls that began here, and those of them that are over.
#[derive(Default)]
struct Shard {
    begun: AtomicU64,
    over: AtomicU64,
}

/// Passed by each call that changes something.
#[derive(Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    shards: [Padded<Shard>; SHARDS],
}

/// A call on its way.
pub(crate) struct Passing<'a>(&'a Shard);

impl Drop for Passing<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::Release);
    }
}

impl Gate {
    /// Begins a call, unless the gate is closed.
    #[inline]
    pub(crate) fn pass(&self) -> Option<Passing<'_>> {
        let shard = &self.shards[thread_number() % SHARDS].0;
        // First counted, then looked, both in one order with `close`: either this call sees that the gate is closed, or
        // `close` sees this call.
        shard.begun.fetch_add(1, Ordering::SeqCst);
        let passing = Passing(shard);
        match self.closed.load(Ordering::SeqCst) {
            true => None,
            false => Some(passing),
        }
    }

    /// Closes the gate, and waits until the calls that have passed are over. Returns whether it was open.
    pub(crate) fn close(&self) -> bool {
        let was_open = !self.closed.swap(true, Ordering::SeqCst);
        for Padded(shard) in &self.shards {
            // Calls that begin from now on see that the gate is closed: those that count have begun before.
            let begun = shard.begun.load(Ordering::SeqCst);
            while shard.over.load(Ordering::Acquire) < begun {
                std::thread::yield_now();
            }
        }
        was_open
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Calls that have begun, those that a closed gate has refused among them.
    pub(crate) fn begun(&self) -> u64 {
        let begun = |Padded(shard): &Padded<Shard>| shard.begun.load(Ordering::Relaxed);
        self.shards.iter().map(begun).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

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
            while gate.begun() < 100 {
                std::thread::yield_now();
            }
            assert!(gate.close());
            assert_eq!(running.load(Ordering::SeqCst), 0);
            assert!(gate.pass().is_none() && !gate.close());
        });
    }
}
