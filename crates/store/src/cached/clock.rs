//! The clock by which the lag is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Interval at which a clock that a test moves is checked.
const LOOK: Duration = Duration::from_millis(5);

/// A clock in milliseconds that runs on while the machine sleeps, or a clock that a test moves.
#[derive(Clone, Debug, Default)]
pub struct LagClock(Option<Arc<AtomicU64>>);

impl LagClock {
    /// A clock that shows this number.
    #[must_use]
    pub fn moved(now_ms: Arc<AtomicU64>) -> LagClock {
        LagClock(Some(now_ms))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        if let Some(moved) = &self.0 {
            return moved.load(Ordering::SeqCst);
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let (seconds, nanoseconds) = (now.tv_sec.max(0) as u64, now.tv_nsec.max(0) as u64);
        seconds * 1000 + nanoseconds / 1_000_000
    }

    /// Time that a thread may sleep if its work is due after `ms` milliseconds of this clock.
    pub(crate) fn sleep(&self, ms: u64) -> Duration {
        match self.0 {
            Some(_) => LOOK,
            None => Duration::from_millis(ms),
        }
    }
}
