//! Leases: the time in which a reader may use a head, or a writer may serve reads.
//!
//! Both count from the *start* of the request that renewed them, on a clock that runs on while the machine sleeps. A reader
//! that asked for `head` at *t* uses the objects of that head until *t* + duration. They were not retired when the store
//! answered, which is later than *t*, so they are not deleted before *t* + `keep`. When an *acknowledged* slot PUT took effect,
//! which is later than its start, no seal was before it; a successor waits for the duration after its seal.

use super::Faults;
use super::fault::Fault;

/// Local time in milliseconds, by `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalTime(pub u64);

/// A right that ends by itself unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    duration_ms: u64,
    until: LocalTime,
    faults: Faults,
}

impl Lease {
    /// A lease that has not begun.
    #[must_use]
    pub fn new(duration_ms: u64, faults: Faults) -> Lease {
        Lease {
            duration_ms,
            until: LocalTime(0),
            faults,
        }
    }

    /// A request that was sent at `sent` and answered at `answered` proved the right. If it was sent more than once, `sent` is
    /// the time of the first attempt, because that one may have taken effect.
    pub fn renewed(&mut self, sent: LocalTime, answered: LocalTime) {
        let from = if self.faults.has(Fault::LeaseFromAnswer) {
            answered
        } else {
            sent
        };
        self.until = self
            .until
            .max(LocalTime(from.0.saturating_add(self.duration_ms)));
    }

    /// The end of the right.
    #[must_use]
    pub fn until(&self) -> LocalTime {
        self.until
    }

    /// Whether the right holds at `now`.
    #[must_use]
    pub fn holds(&self, now: LocalTime) -> bool {
        now < self.until
    }
}
