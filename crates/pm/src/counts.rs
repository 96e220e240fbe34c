//! Counters of stores, write-backs and fences, one set per thread.
//!
//! A thread counts only for itself, so counting costs an addition to thread-local memory and no shared cache line. The
//! counters grow for ever: a test takes them before and after a call and subtracts.

use std::cell::Cell;
use std::ops::Sub;

/// Counts of a thread over all regions since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Ordinary stores of one word.
    pub stores: u64,
    /// Bytes stored as data, by non-temporal stores.
    pub data_bytes: u64,
    /// Cache lines written back. Under eADR none are.
    pub lines: u64,
    /// Fences.
    pub fences: u64,
}

impl Sub for Counts {
    type Output = Counts;

    /// Counts between two looks at the counters.
    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            stores: self.stores - earlier.stores,
            data_bytes: self.data_bytes - earlier.data_bytes,
            lines: self.lines - earlier.lines,
            fences: self.fences - earlier.fences,
        }
    }
}

struct Cells {
    stores: Cell<u64>,
    data_bytes: Cell<u64>,
    lines: Cell<u64>,
    fences: Cell<u64>,
}

thread_local! {
    static CELLS: Cells = const {
        Cells {
            stores: Cell::new(0),
            data_bytes: Cell::new(0),
            lines: Cell::new(0),
            fences: Cell::new(0),
        }
    };
}

/// The counters of the calling thread.
#[must_use]
pub fn thread_counts() -> Counts {
    CELLS.with(|cells| Counts {
        stores: cells.stores.get(),
        data_bytes: cells.data_bytes.get(),
        lines: cells.lines.get(),
        fences: cells.fences.get(),
    })
}

fn add(cell: &Cell<u64>, count: u64) {
    cell.set(cell.get().wrapping_add(count));
}

#[inline]
pub(crate) fn stored() {
    CELLS.with(|cells| add(&cells.stores, 1));
}

#[inline]
pub(crate) fn data_stored(bytes: u64) {
    CELLS.with(|cells| add(&cells.data_bytes, bytes));
}

#[inline]
pub(crate) fn lines_written_back(lines: u64) {
    CELLS.with(|cells| add(&cells.lines, lines));
}

#[inline]
pub(crate) fn fenced() {
    CELLS.with(|cells| add(&cells.fences, 1));
}
