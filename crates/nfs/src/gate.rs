//! How many workers run: as many as there are processors, not as many as there are.
//!
//! A worker inside the gate waits for events and serves them; one that is about to wait for the device (a commit, a
//! read) goes out first. So a burst of calls is served by a few threads that keep running, and does not wake one for each;
//! and there is always one inside as long as any is left.
//!
//! Invariants: at most `width` are inside; nobody who is inside waits for anything but events; if the last goes out,
//! one of those who wait at the gate comes in.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    inside: usize,
    waiting: usize,
    /// Let in, and not awake yet.
    called: usize,
    shut: bool,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Gate {
    width: usize,
    state: Mutex<State>,
    opened: Condvar,
}

impl Gate {
    /// For so many at a time.
    pub(crate) fn new(width: usize) -> Gate {
        Gate {
            width,
            state: Mutex::default(),
            opened: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room, and goes in. False if the gate is shut.
    pub(crate) fn enter(&self) -> bool {
        let mut state = self.state();
        if state.inside < self.width && !state.shut {
            state.inside += 1;
            return true;
        }
        while !state.shut {
            state.waiting += 1;
            let woken = self.opened.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
            if state.called > 0 {
                state.called -= 1;
                return true;
            }
        }
        false
    }

    /// Goes in if there is room.
    pub(crate) fn try_enter(&self) -> bool {
        let mut state = self.state();
        let room = state.inside < self.width;
        state.inside += usize::from(room);
        room
    }

    /// Goes out.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        state.inside -= 1;
        if state.inside == 0 && state.waiting > state.called {
            // Counted as inside from now on, so that nobody else is called.
            state.inside += 1;
            state.called += 1;
            drop(state);
            self.opened.notify_one();
        }
    }

    /// Lets nobody wait any more.
    pub(crate) fn shut(&self) {
        self.state().shut = true;
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn somebody_is_always_inside_and_never_more_than_there_is_room_for() {
        let (gate, inside, most) = (Gate::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        if !gate.enter() {
                            return;
                        }
                        most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                        gate.leave();
                    }
                    // Nobody is left to call those who still wait.
                    gate.shut();
                });
            }
        });
        assert!((1..=2).contains(&most.load(SeqCst)));
    }

    #[test]
    fn who_goes_out_last_calls_one_in_and_the_end_calls_all() {
        let gate = Gate::new(1);
        assert!(gate.enter());
        assert!(!gate.try_enter());
        thread::scope(|scope| {
            let first = scope.spawn(|| gate.enter());
            let second = scope.spawn(|| gate.enter());
            while gate.state().waiting < 2 {
                thread::sleep(Duration::from_millis(1));
            }
            gate.leave();
            while !first.is_finished() && !second.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(!(first.is_finished() && second.is_finished()));
            gate.shut();
            let entered = [first.join().unwrap(), second.join().unwrap()];
            assert_eq!(entered.iter().filter(|entered| **entered).count(), 1);
        });
    }
}
