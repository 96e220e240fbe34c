//! Limit of the calls that may wait for the device, so that workers are left for all other calls.
//!
//! A call that may wait takes a slot, and there are fewer slots than workers. A call that finds no slot is parked. The worker
//! that ends a call with a slot continues with the call that was parked first, so no slot is idle.
//!
//! A call that is tried in memory needs no slot. It could still wait for a lock that a call with a slot holds; so both kinds
//! together leave one worker free, for the calls that never wait. A call that cannot be tried now is deferred until one of them
//! ends.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct State<T> {
    free: usize,
    /// Number of calls that have a slot or are being tried.
    busy: usize,
    parked: VecDeque<T>,
    deferred: VecDeque<T>,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    state: Mutex<State<T>>,
    busy_max: usize,
}

impl<T> Slots<T> {
    /// Slots for this many workers. An eighth of them stay free: at least two, one for calls in memory and one for others.
    pub(crate) fn new(workers: usize) -> Slots<T> {
        Slots {
            state: Mutex::new(State {
                free: workers.saturating_sub(workers.div_ceil(8).max(2)).max(1),
                busy: 0,
                parked: VecDeque::new(),
                deferred: VecDeque::new(),
            }),
            busy_max: workers.saturating_sub(1).max(1),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot, if one is free.
    pub(crate) fn take(&self) -> bool {
        let mut state = self.state();
        let taken = state.free > 0;
        state.free -= usize::from(taken);
        state.busy += usize::from(taken);
        taken
    }

    /// Parks a call for the next worker that ends a call. If a slot was freed meanwhile, returns the call, which has that slot.
    pub(crate) fn park(&self, call: T) -> Option<T> {
        let mut state = self.state();
        if state.free > 0 {
            state.free -= 1;
            state.busy += 1;
            return Some(call);
        }
        state.parked.push_back(call);
        None
    }

    /// A call with a slot has ended. Returns the next call for the slot; if there is none, the slot is free.
    pub(crate) fn next(&self) -> Option<T> {
        let mut state = self.state();
        let next = state.parked.pop_front();
        let freed = usize::from(next.is_none());
        state.free += freed;
        state.busy -= freed;
        next
    }

    /// Starts to try a call in memory, if that leaves a worker free.
    pub(crate) fn begin_trial(&self) -> bool {
        let mut state = self.state();
        let begun = state.busy < self.busy_max;
        state.busy += usize::from(begun);
        begun
    }

    /// Defers a call until it can be tried. Returns the call if it can be tried by now.
    pub(crate) fn defer(&self, call: T) -> Option<T> {
        let mut state = self.state();
        if state.busy < self.busy_max {
            return Some(call);
        }
        state.deferred.push_back(call);
        None
    }

    /// The trial of a call has ended.
    pub(crate) fn end_trial(&self) {
        self.state().busy -= 1;
    }

    /// A deferred call that can be tried now.
    pub(crate) fn resume(&self) -> Option<T> {
        let mut state = self.state();
        match state.busy < self.busy_max {
            true => state.deferred.pop_front(),
            false => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_always_left_and_calls_keep_their_order() {
        let slots = Slots::new(9);
        assert_eq!((0..9).filter(|_| slots.take()).count(), 7);
        assert!(slots.begin_trial() && !slots.begin_trial(), "one is left");
        assert_eq!((slots.defer(8), slots.defer(9)), (None, None));
        assert_eq!(slots.resume(), None);
        slots.end_trial();
        assert_eq!(slots.resume(), Some(8));
        assert_eq!((slots.park(1), slots.park(2)), (None, None));
        assert_eq!(slots.next(), Some(1));
        assert_eq!(slots.next(), Some(2));
        assert_eq!(slots.next(), None);
        assert_eq!(slots.park(3), Some(3), "one is free now");
        let lone = Slots::<u8>::new(1);
        assert!(lone.begin_trial());
        lone.end_trial();
        assert!(lone.take(), "a lone worker serves everything");
    }
}
