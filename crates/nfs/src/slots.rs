//! Which calls may wait for the device: never so many that no worker is left for those that do not.
//!
//! A call that may wait takes a slot, and there are fewer slots than workers. A call that finds none is parked; the worker
//! that ends such a call goes on with the one that was parked first, so its slot never lies idle.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct State<T> {
    free: usize,
    parked: VecDeque<T>,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Slots<T>(Mutex<State<T>>);

impl<T> Slots<T> {
    /// For so many workers, an eighth of which stay free.
    pub(crate) fn new(workers: usize) -> Slots<T> {
        Slots(Mutex::new(State {
            free: (workers - workers.div_ceil(8)).max(1),
            parked: VecDeque::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot, if there is one.
    pub(crate) fn take(&self) -> bool {
        let mut state = self.state();
        let taken = state.free > 0;
        state.free -= usize::from(taken);
        taken
    }

    /// Leaves a call to the next worker that ends one. Returns it if a slot has come free meanwhile, with that slot.
    pub(crate) fn park(&self, call: T) -> Option<T> {
        let mut state = self.state();
        if state.free > 0 {
            state.free -= 1;
            return Some(call);
        }
        state.parked.push_back(call);
        None
    }

    /// A call has ended: the next one for its slot, or the slot is free.
    pub(crate) fn next(&self) -> Option<T> {
        let mut state = self.state();
        let next = state.parked.pop_front();
        state.free += usize::from(next.is_none());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_always_left_and_parked_calls_keep_their_order() {
        let slots = Slots::new(9);
        assert_eq!((0..9).filter(|_| slots.take()).count(), 7);
        assert_eq!((slots.park(1), slots.park(2)), (None, None));
        assert_eq!(slots.next(), Some(1));
        assert_eq!(slots.next(), Some(2));
        assert_eq!(slots.next(), None);
        assert_eq!(slots.park(3), Some(3), "one is free now");
        assert!(
            Slots::<u8>::new(1).take(),
            "a lone worker serves everything"
        );
    }
}
