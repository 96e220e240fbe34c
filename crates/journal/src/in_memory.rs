//! Reads that must not wait for the device: for callers that have others to serve meanwhile.
//!
//! The mode belongs to a thread and ends with the closure. In it the journal answers a read of anything that is not in
//! memory with [`Error::NotInMemory`], and does not wait for another thread's read either. It is for reads alone: an operation
//! that changes something must not be begun in it.

use crate::error::{Error, Result};
use std::cell::Cell;

#[derive(Clone, Copy)]
enum Mode {
    Free,
    InMemory { refused: bool },
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Free) };
}

/// Ends the mode, also when the closure panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        MODE.set(Mode::Free);
    }
}

/// Runs reads that take nothing from the device. Returns whether everything that they asked for was in memory; if not,
/// their results mean nothing.
pub fn in_memory(run: impl FnOnce()) -> bool {
    let _end = End;
    MODE.set(Mode::InMemory { refused: false });
    run();
    matches!(MODE.get(), Mode::InMemory { refused: false })
}

/// Fails in this mode; called before a thread waits for the device.
pub(crate) fn may_wait() -> Result<()> {
    match MODE.get() {
        Mode::Free => Ok(()),
        Mode::InMemory { .. } => {
            MODE.set(Mode::InMemory { refused: true });
            Err(Error::NotInMemory)
        }
    }
}
