//! When retired objects are deleted.
//!
//! An object is *retired* by the swap that published a checkpoint without it, at a moment when no root named it. New roots
//! are made from the checkpoint or from other roots, so no later version of `head` names it again. A reader that took `head`
//! before the swap may still use it; it stops, or reads `head` again, within `keep` of having asked for it
//! ([`Lease`](super::Lease)). So the object is deleted when the store's clock has gone on by `keep` since it was retired. Only
//! the store's clock counts, as `Last-Modified` of objects written just now shows it.

use std::collections::BTreeMap;

use super::fault::Fault;
use super::{Faults, Head, ObjectName, Term};

/// The store's clock in milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(pub u64);

/// `Last-Modified` counts whole seconds: two of them may be this much farther apart than their objects.
const COARSE_MS: u64 = 1000;

/// Objects that are retired and not yet deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collector {
    keep_ms: u64,
    faults: Faults,
    /// None: retired before any time that is seen from now on.
    waiting: BTreeMap<ObjectName, Option<StoreTime>>,
}

impl Collector {
    /// A collector that keeps retired objects for at least `keep_ms` of the store's time; with 0, they are due at once.
    #[must_use]
    pub fn new(keep_ms: u64, faults: Faults) -> Collector {
        Collector {
            keep_ms,
            faults,
            waiting: BTreeMap::new(),
        }
    }

    /// These objects were retired: by [`Event::Published`](super::Event::Published), or by a checkpoint's list of what was
    /// retired and not deleted. The caller never lists a seal: all seals stay for ever.
    pub fn retire(&mut self, names: impl IntoIterator<Item = ObjectName>) {
        for name in names {
            self.waiting.entry(name).or_insert(None);
        }
    }

    /// The store's clock shows `now`, by an object that was written after the swap that retired the newest of them, or by the
    /// head that this swap wrote. Returns
    /// what may be deleted. The driver calls [`deleted`](Self::deleted) for what is gone.
    pub fn tick(&mut self, now: StoreTime) -> Vec<ObjectName> {
        let keep = match self.keep_ms {
            _ if self.faults.has(Fault::ReaderOutlived) => 0,
            0 => 0,
            keep if self.faults.has(Fault::CoarseClockTrusted) => keep,
            keep => keep.saturating_add(COARSE_MS),
        };
        let mut due = Vec::new();
        for (name, since) in &mut self.waiting {
            let since = *since.get_or_insert(now);
            if now.0.saturating_sub(since.0) >= keep {
                due.push(*name);
            }
        }
        due
    }

    /// The object is deleted.
    pub fn deleted(&mut self, name: ObjectName) {
        self.waiting.remove(&name);
    }

    /// What is retired and not deleted: a checkpoint lists it, so a successor goes on.
    pub fn waiting(&self) -> impl Iterator<Item = ObjectName> + '_ {
        self.waiting.keys().copied()
    }
}

/// Below this term all terms are closed: what they left and nothing names is garbage, for a sweep that lists the store.
///
/// All seals are kept, also those that no scan reads: of two seals in one term, the sweep cannot tell which one a late PUT of
/// the old writer will meet.
#[must_use]
pub fn closed_below(head: &Head) -> Term {
    head.spans.first().map_or(Term(0), |span| span.term)
}
