//! Numbers of threads, so that threads use different shards.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// Numbers that no thread has.
struct Numbers {
    /// Numbers of threads that are over.
    back: Vec<usize>,
    next: usize,
}

static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers {
    back: Vec::new(),
    next: 1,
});

/// Gives the number of a thread back when the thread ends.
struct Held(Cell<usize>);

impl Drop for Held {
    fn drop(&mut self) {
        MINE.set(0);
        if self.0.get() != 0 {
            let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
            numbers.back.push(self.0.get());
        }
    }
}

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(0) };
    static HELD: Held = const { Held(Cell::new(0)) };
}

/// The number of the calling thread, from 1 on: no other thread has it meanwhile, and it is as small as it can be. 0 if the
/// thread is about to end.
#[inline]
pub(crate) fn thread_number() -> usize {
    match MINE.get() {
        0 => new_number(),
        mine => mine,
    }
}

#[cold]
fn new_number() -> usize {
    let took = HELD.try_with(|held| {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = numbers.back.pop().unwrap_or(numbers.next);
        numbers.next = numbers.next.max(mine + 1);
        held.0.set(mine);
        mine
    });
    MINE.set(took.unwrap_or(0));
    MINE.get()
}

/// Something in cache lines of its own: threads that use neighbours do not wait for each other.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    #[test]
    fn threads_have_different_numbers_at_a_time() {
        for _ in 0..3 {
            let (seen, together) = (Mutex::new(BTreeSet::new()), Barrier::new(8));
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        let mine = thread_number();
                        assert!(mine > 0 && mine == thread_number());
                        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                        assert!(seen.insert(mine), "twice {mine}");
                        drop(seen);
                        together.wait();
                    });
                }
            });
        }
    }
}
