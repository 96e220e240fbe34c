//! The gate that every request passes: it closes for good when the server stops
//! serving, or when a request has panicked.
//!
//! Invariants: after [`Gate::close`] has returned, no request is inside and none
//! enters; a panic never leaves a request unanswered, and nothing that it may have
//! left half done is read, changed or committed afterwards (recovery at the next
//! mount starts from the durable state).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const FAILED: u8 = 2;

/// Reason why a request was refused at the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shut {
    /// The server has stopped serving.
    Closed,
    /// A request panicked, this one or an earlier one.
    Failed,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: AtomicU8,
    inside: RwLock<()>,
    /// Message of the first panic.
    panic: Mutex<Option<String>>,
}

impl Gate {
    /// Runs a request inside the gate.
    pub(crate) fn pass<T>(&self, request: impl FnOnce() -> T) -> Result<T, Shut> {
        let _inside = self.inside.read().unwrap_or_else(PoisonError::into_inner);
        match self.state.load(Ordering::Acquire) {
            OPEN => {}
            CLOSED => return Err(Shut::Closed),
            _ => return Err(Shut::Failed),
        }
        catch_unwind(AssertUnwindSafe(request)).map_err(|payload| {
            let said = payload
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            self.message().get_or_insert(said);
            self.state.store(FAILED, Ordering::Release);
            Shut::Failed
        })
    }

    /// Waits for the requests inside and admits no more. A failure stays one.
    pub(crate) fn close(&self) {
        let _alone = self.inside.write().unwrap_or_else(PoisonError::into_inner);
        let _ = self
            .state
            .compare_exchange(OPEN, CLOSED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Message of the first panic, if there was one.
    pub(crate) fn failure(&self) -> Option<String> {
        self.message().clone()
    }

    fn message(&self) -> MutexGuard<'_, Option<String>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::*;

    #[test]
    fn after_a_panic_every_request_is_refused_and_the_message_is_kept() {
        let gate = Gate::default();
        assert_eq!(gate.pass(|| 1), Ok(1));
        assert_eq!(gate.pass(|| -> u8 { panic!("first") }), Err(Shut::Failed));
        assert_eq!(gate.pass(|| 2), Err(Shut::Failed));
        gate.close();
        assert_eq!(gate.pass(|| 2), Err(Shut::Failed));
        assert_eq!(gate.failure().as_deref(), Some("first"));
    }

    #[test]
    fn a_closed_gate_admits_no_request() {
        let gate = Gate::default();
        gate.close();
        assert_eq!(gate.pass(|| 1), Err(Shut::Closed));
        assert_eq!(gate.failure(), None);
    }
}
