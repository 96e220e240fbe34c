//! The decision whether epochs that only a cache device has may still be sent.
//!
//! They continue the history of their own term. If another term was opened since, its clients saw a volume without these
//! epochs; mixing the two would make a history that no client ever saw.

use super::fault::Fault;
use super::{Faults, Slot, Term};

/// The epochs of a cache device that the store did not acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tail {
    /// The term in which they were made.
    pub term: Term,
    /// The slot of the first.
    pub first: Slot,
    /// The slot of the last.
    pub last: Slot,
}

/// The decision on a [`Tail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TailVerdict {
    /// The history has all of it.
    Whole,
    /// The epochs from this one on continue the history: append them, in order.
    Resend(Slot),
    /// Another term was opened since, or epochs before it are missing: salvage them into a clone, and mix nothing.
    Salvage,
}

impl Tail {
    /// Decides after [`Event::Sealed`](super::Event::Sealed): term `previous` ends before slot `first`.
    #[must_use]
    pub fn verdict(&self, previous: Term, first: Slot, faults: Faults) -> TailVerdict {
        if previous != self.term && !faults.has(Fault::TailUnderNewTerm) {
            TailVerdict::Salvage
        } else if self.last < first {
            TailVerdict::Whole
        } else if self.first > first && !faults.has(Fault::TailUnderNewTerm) {
            TailVerdict::Salvage
        } else {
            TailVerdict::Resend(first)
        }
    }
}
