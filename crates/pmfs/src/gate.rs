//! Counts the calls that change something, so that a volume can go down: when the gate is closed, none is running, and none
//! begins any more.
//!
//! Threads count in different places, so that they do not wait for one cache line. A place that one thread has for itself
//! needs no locked instruction at the end of a call.

use crate::threads::{Padded, thread_number};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Places to count in: the first one for all threads that have none for themselves.
const SHARDS: usize = 64;

/// Calls that began here, and those of them that are over.
#[derive(Default)]
struct Shard {
    begun: AtomicU64,
    over: AtomicU64,
}

/// Passed by each call that changes something.
pub(crate) struct Gate {
    closed: AtomicBool,
    shards: [Padded<Shard>; SHARDS],
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            closed: AtomicBool::new(false),
            shards: std::array::from_fn(|_| Padded::default()),
        }
    }
}

/// A call on its way. It ends on the thread that it began on, because only that one counts in its place.
pub(crate) struct Passing<'a> {
    shard: &'a Shard,
    /// Whether other threads count here, too.
    shared: bool,
    _here: PhantomData<*const ()>,
}

/// Counts one more.
#[inline]
fn count(counter: &AtomicU64, shared: bool, order: Ordering) {
    match shared {
        true => drop(counter.fetch_add(1, order)),
        false => counter.store(counter.load(Ordering::Relaxed) + 1, order),
    }
}

impl Drop for Passing<'_> {
    #[inline]
    fn drop(&mut self) {
        count(&self.shard.over, self.shared, Ordering::Release);
    }
}

impl Gate {
    /// Begins a call, unless the gate is closed.
    #[inline]
    pub(crate) fn pass(&self) -> Option<Passing<'_>> {
        let (shard, shared) = match thread_number() {
            mine @ 1..SHARDS => (&self.shards[mine].0, false),
            _ => (&self.shards[0].0, true),
        };
        // First counted, then looked, both in one order with `close`: either this call sees that the gate is closed, or
        // `close` sees this call.
        count(&shard.begun, shared, Ordering::SeqCst);
        let passing = Passing {
            shard,
            shared,
            _here: PhantomData,
        };
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
