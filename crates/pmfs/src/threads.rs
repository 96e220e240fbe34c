//! A number for each thread, so that threads use different shards.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of the calling thread: small, and another one for each thread of the process.
#[inline]
pub(crate) fn thread_number() -> usize {
    /// Numbers begin at 1.
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(0) });
    let mine = MINE.get();
    if mine != 0 {
        return mine;
    }
    let mine = NEXT.fetch_add(1, Ordering::Relaxed);
    MINE.set(mine);
    mine
}

/// Something in cache lines of its own: threads that use neighbours do not wait for each other.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);
