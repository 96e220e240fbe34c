//! Whether the epochs that only a cache device has may still be sent.
//!
//! They continue the history of their own term. If another term was opened in between, its writer's clients saw a volume
//! without them, and mixing the two would make a history that nobody had.

use super::fault::Fault;
use super::{Faults, Slot, Term};

/// The epochs of a cache device that no store acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tail {
    /// The term in which they were made.
    pub term: Term,
    /// The slot of the first.
    pub first: Slot,
    /// The slot of the last.
    pub last: Slot,
}

/// What is to be done with a [`Tail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TailVerdict {
    /// All of it is in the history.
    Whole,
    /// The epochs from this one on continue the history: append them, in order.
    Resend(Slot),
    /// Another term came between, or epochs before it are missing: they go into a clone, nothing is mixed.
    Salvage,
}

impl Tail {
    /// Decides, after [`Event::Sealed`](super::Event::Sealed) said that term `previous` ends before slot `first`.
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
