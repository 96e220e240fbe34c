//! Leases: how long a reader may use a head, and how long a writer may serve reads.
//!
//! Both count from the *start* of the request that renewed them, on a clock that runs on while the machine sleeps. A reader
//! that asked for `head` at *t* uses what it names until *t* + duration. What it names was not retired when the store
//! answered, which is later than *t*, so it is not deleted before *t* + `keep`. A writer whose slot PUT was *acknowledged* had
//! no seal before it when the PUT took effect, later than its start; a successor waits for the duration after the seal.

use super::Faults;
use super::fault::Fault;

/// A local clock in milliseconds, as `CLOCK_BOOTTIME` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalTime(pub u64);

/// A right that ends by itself.
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
    /// the time of the first attempt: that one may be what took effect.
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

    /// When the right ends.
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
