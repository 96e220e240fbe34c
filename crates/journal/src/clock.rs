//! The time by which commit intervals are counted: the system's, or one that a test moves by hand.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A clock that never goes back. It counts from an arbitrary moment.
#[derive(Clone, Default)]
pub struct Clock {
    /// Nanoseconds, if the time is moved by hand.
    by_hand: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// The system's monotonic clock.
    #[must_use]
    pub fn system() -> Clock {
        Clock::default()
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    #[must_use]
    pub fn by_hand() -> Clock {
        Clock {
            by_hand: Some(Arc::default()),
        }
    }

    /// Moves a clock that is moved by hand, in all its copies; the system's clock is left alone.
    pub fn advance(&self, by: Duration) {
        if let Some(now) = &self.by_hand {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            now.fetch_add(nanos, SeqCst);
        }
    }

    /// The time since the clock's beginning.
    #[must_use]
    pub fn now(&self) -> Duration {
        static BEGINNING: OnceLock<Instant> = OnceLock::new();
        match &self.by_hand {
            Some(now) => Duration::from_nanos(now.load(Relaxed)),
            None => BEGINNING.get_or_init(Instant::now).elapsed(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.by_hand {
            Some(_) => "a clock moved by hand",
            None => "the system's clock",
        })
    }
}
