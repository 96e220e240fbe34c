//! Lanes: operations begin and end here without the core's lock.
//!
//! Each thread has a lane (more threads share them). A lane keeps log space that the core reserved for
//! operations to come, counts the open ones, and queues the committed ones whose contents
//! the core does not know yet: handing it many at once costs a fraction. A lane hands its
//! queue to the core before any decision that depends on it:
//!
//! * a transaction freezes only while all lanes are locked and empty. So an operation's edits, which
//!   are carried out under its lane's lock, are in the images that a transaction freezes exactly if
//!   the operation is part of it or of one that runs beside it;
//! * an operation that begins or ends the life of a block, or brings data or delayed work, is handed
//!   over at once, after everything that is queued. The others commute until something freezes:
//!   operations that touch the same bytes or objects merge, whatever the order.
//!
//! Order of locks: lanes, ascending; then the core. No thread waits under a lane's lock.

use crate::Clock;
use crate::cache::Cache;
pub(crate) use crate::changes::LaneId;
use crate::changes::{LANES, OpChanges};
use crate::core::Core;
use crate::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Queued operations at which a lane hands them to the core, if no thread holds the core.
const QUEUE_TARGET: usize = 32;
/// Queued operations at which a lane hands them to the core in any case.
const QUEUE_MAX: usize = 128;

#[derive(Default)]
pub(crate) struct Lane {
    /// Operations that are open.
    pub(crate) open: u32,
    /// Log blocks reserved for operations to come, and how many it may keep.
    pub(crate) credit: u64,
    pub(crate) credit_max: u64,
    /// Operations take their credits from the core, and report their ends to it at once.
    pub(crate) slow: bool,
    /// Number of the last operation that was committed.
    number: u64,
    queue: Vec<OpChanges>,
    /// Time of the first of them.
    since: Duration,
    /// Log blocks reserved for queued operations.
    queued: u64,
}

impl Lane {
    /// A committed operation, the next of its lane.
    pub(crate) fn push(&mut self, mut changes: OpChanges, clock: &Clock) -> u64 {
        if self.queue.is_empty() {
            self.since = clock.now();
        }
        self.number += 1;
        changes.since = self.since;
        changes.number = self.number;
        self.queued += changes.reserved;
        self.queue.push(changes);
        self.number
    }

    pub(crate) fn wants_to_tell(&self) -> bool {
        self.must_tell() || self.queue.len() >= QUEUE_TARGET
    }

    pub(crate) fn must_tell(&self) -> bool {
        self.slow || self.queue.len() >= QUEUE_MAX || self.queued > self.credit_max
    }

    /// Tells the core of everything that is queued.
    pub(crate) fn tell(&mut self, core: &mut Core, cache: &Cache) {
        for changes in self.queue.drain(..) {
            self.credit += changes.reserved;
            core.commit(changes, cache);
        }
        self.queued = 0;
        let keeps = if self.slow { 0 } else { self.credit_max };
        let excess = self.credit.saturating_sub(keeps);
        self.credit -= excess;
        core.give_back(excess);
    }
}

/// A lane on cache lines of its own.
#[repr(align(128))]
struct Padded(Mutex<Lane>);

pub(crate) struct Lanes([Padded; LANES as usize]);

/// All lanes, locked.
pub(crate) struct AllLanes<'a>([MutexGuard<'a, Lane>; LANES as usize]);

impl Lanes {
    /// Lanes that keep up to `credit_max` log blocks each.
    pub(crate) fn new(credit_max: u64) -> Lanes {
        Lanes(std::array::from_fn(|_| {
            Padded(Mutex::new(Lane {
                credit_max,
                ..Lane::default()
            }))
        }))
    }

    pub(crate) fn lane(&self, lane: LaneId) -> MutexGuard<'_, Lane> {
        self.0[usize::from(lane.0)].0.lock()
    }

    pub(crate) fn all(&self) -> AllLanes<'_> {
        AllLanes(std::array::from_fn(|i| self.0[i].0.lock()))
    }
}

impl AllLanes<'_> {
    pub(crate) fn of(&mut self, lane: LaneId) -> &mut Lane {
        &mut self.0[usize::from(lane.0)]
    }

    pub(crate) fn tell(&mut self, core: &mut Core, cache: &Cache) {
        for lane in &mut self.0 {
            lane.tell(core, cache);
        }
    }

    /// From now on, operations take their credits from the core, and report their ends to it at once.
    pub(crate) fn slow_down(&mut self, core: &mut Core) {
        for lane in &mut self.0 {
            lane.slow = true;
            core.give_back(std::mem::take(&mut lane.credit));
        }
    }

    pub(crate) fn open(&self) -> u32 {
        self.0.iter().map(|lane| lane.open).sum()
    }

    pub(crate) fn credit(&self) -> u64 {
        self.0.iter().map(|lane| lane.credit).sum()
    }
}
