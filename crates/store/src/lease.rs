//! The lease of a writer: the right to answer clients while no successor can answer them.
//!
//! A writer that serves clients holds a lease. Each proof of its ownership renews the lease, counted from the *start* of the
//! request that proved it: an acknowledged slot (no seal was before it), or a read of `head` that shows the writer's own
//! claim. `head` names the duration of the lease. A successor puts its seal in place, waits for this duration, and only then
//! answers clients. So an answer that a machine gives under its lease was true before the successor answered anything, however
//! late the answer is read. The only assumption is that the rates of the two clocks differ by less than [`MARGIN`]: the clocks
//! are never compared, and run on while the machine sleeps (`CLOCK_BOOTTIME`).
//!
//! Order of an answer: the server completes it, checks the lease, then sends it. Order of a hand-over: the writer gives up the
//! lease, then `head` says that the volume is released.

use crate::cached::LagClock;
use crate::driver::{Driver, Failed};
use crate::protocol::{Faults, Lease, LocalTime, Slot, Term};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Reciprocal of the part of the lease by which a successor waits longer, because the rates of two clocks may differ.
pub(crate) const MARGIN: u64 = 20;
/// The shortest lease: it must be longer than a request.
pub const LEASE_LEAST: Duration = Duration::from_millis(100);

/// The lease of a writer, in its driver.
#[derive(Debug)]
pub(crate) struct Held {
    lease: Lease,
    duration_ms: u64,
    /// Start of the first attempt of each slot in flight.
    sent: HashMap<Slot, LocalTime>,
    /// Start of the newest request that renewed the lease.
    proved: LocalTime,
    shown: Arc<Shown>,
}

/// State of the lease for the threads that answer clients.
#[derive(Debug)]
struct Shown {
    until_ms: AtomicU64,
    over: AtomicBool,
}

impl Held {
    pub(crate) fn new(duration: Duration, faults: Faults) -> Held {
        let duration_ms = duration.max(LEASE_LEAST).as_millis() as u64;
        Held {
            lease: Lease::new(duration_ms, faults),
            duration_ms,
            sent: HashMap::new(),
            proved: LocalTime(0),
            shown: Arc::new(Shown {
                until_ms: AtomicU64::new(0),
                over: AtomicBool::new(false),
            }),
        }
    }

    pub(crate) fn duration_ms(&self) -> u32 {
        u32::try_from(self.duration_ms).unwrap_or(u32::MAX)
    }

    /// Notes that a slot is sent; only the first attempt counts.
    pub(crate) fn sends(&mut self, slot: Slot, now: LocalTime) {
        self.sent.entry(slot).or_insert(now);
    }

    pub(crate) fn acknowledged(&mut self, slot: Slot, now: LocalTime) {
        if let Some(sent) = self.sent.remove(&slot) {
            self.renewed(sent, now);
        }
    }

    pub(crate) fn renewed(&mut self, sent: LocalTime, now: LocalTime) {
        self.lease.renewed(sent, now);
        self.proved = self.proved.max(sent);
        let until = self.lease.until().0;
        self.shown.until_ms.store(until, Ordering::Release);
    }

    /// Milliseconds until the next proof is needed: half the lease after the last one.
    pub(crate) fn idle_ms(&self, now: LocalTime) -> u64 {
        (self.proved.0 + self.duration_ms / 2).saturating_sub(now.0)
    }

    /// Time for one attempt to renew the lease.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.duration_ms / 4)
    }

    /// Ends the lease for good.
    pub(crate) fn end(&self) {
        self.shown.over.store(true, Ordering::Release);
    }
}

/// The lease of an open volume, for the server that answers clients.
#[derive(Clone)]
pub struct ServingLease {
    driver: Arc<Driver>,
    shown: Arc<Shown>,
    clock: LagClock,
    unheeded: bool,
}

impl std::fmt::Debug for ServingLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingLease")
            .field("left", &self.left())
            .finish_non_exhaustive()
    }
}

impl ServingLease {
    pub(crate) fn of(driver: &Arc<Driver>, held: &Held, clock: LagClock, unheeded: bool) -> Self {
        ServingLease {
            driver: Arc::clone(driver),
            shown: Arc::clone(&held.shown),
            clock,
            unheeded,
        }
    }

    /// Whether a complete answer may be sent. If the lease has run out, waits until it is renewed. False: another machine may
    /// answer by now, or the volume is closed; nothing may be sent any more.
    #[must_use]
    pub fn may_answer(&self) -> bool {
        if self.unheeded {
            return true;
        }
        match self.may_answer_now() {
            Some(may) => may,
            None => self.driver.wait_for_lease(&|| self.may_answer_now()),
        }
    }

    /// None: the lease has run out, and may be renewed.
    fn may_answer_now(&self) -> Option<bool> {
        if self.shown.over.load(Ordering::Acquire) {
            return Some(false);
        }
        let until = self.shown.until_ms.load(Ordering::Acquire);
        (self.clock.now_ms() < until).then_some(true)
    }

    /// Time until the lease ends if nothing renews it.
    #[must_use]
    pub fn left(&self) -> Duration {
        let until = self.shown.until_ms.load(Ordering::Acquire);
        let left = until.saturating_sub(self.clock.now_ms());
        match self.shown.over.load(Ordering::Acquire) {
            true => Duration::ZERO,
            false => Duration::from_millis(left),
        }
    }

    /// The term that is served.
    #[must_use]
    pub fn term(&self) -> Term {
        self.driver.term()
    }

    /// Waits until the volume is fenced, failed or closed, and returns the cause; at most for this time.
    #[must_use]
    pub fn wait_for_end(&self, most: Duration) -> Option<Failed> {
        self.driver.wait_for_failure(most)
    }
}
