//! The collector: it decides when retired objects may be deleted.
//!
//! A swap that publishes a checkpoint *retires* the objects that neither the checkpoint nor a root names. New roots are made
//! from the checkpoint or from other roots, so no later version of `head` names a retired object again. A reader of an earlier
//! `head` may still use it; it stops, or reads `head` again, within `keep` after the start of its request
//! ([`Lease`](super::Lease)). So the object is deleted when the store's clock has advanced by `keep` since it was retired. Only
//! the store's clock counts: the `Last-Modified` of objects written just now.

use std::collections::BTreeMap;

use super::fault::Fault;
use super::{Faults, Head, ObjectName, Term};

/// The store's clock in milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(pub u64);

/// `Last-Modified` counts whole seconds: the difference of two may be too large by this much.
const COARSE_MS: u64 = 1000;

/// Objects that are retired and not yet deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collector {
    keep_ms: u64,
    faults: Faults,
    /// Time of retirement. None: before any time that a later tick shows.
    waiting: BTreeMap<ObjectName, Option<StoreTime>>,
}

impl Collector {
    /// A collector that keeps retired objects for at least `keep_ms` of the store's time. With 0, they are due at once.
    #[must_use]
    pub fn new(keep_ms: u64, faults: Faults) -> Collector {
        Collector {
            keep_ms,
            faults,
            waiting: BTreeMap::new(),
        }
    }

    /// Adds retired objects: those of [`Event::Published`](super::Event::Published), or of a checkpoint's list of retired and
    /// undeleted objects. The caller never lists a seal: all seals stay for ever.
    pub fn retire(&mut self, names: impl IntoIterator<Item = ObjectName>) {
        for name in names {
            self.waiting.entry(name).or_insert(None);
        }
    }

    /// The store's clock shows `now`, by an object that was written after the swap that retired the newest object, or by the
    /// head that this swap wrote. Returns the objects that may be deleted. The driver calls [`deleted`](Self::deleted) after it
    /// has deleted one.
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

    /// Retired objects that are not deleted. A checkpoint lists them, so that a successor deletes them.
    pub fn waiting(&self) -> impl Iterator<Item = ObjectName> + '_ {
        self.waiting.keys().copied()
    }
}

/// All terms below this one are closed. Their objects that nothing names are garbage, which a sweep of the store deletes.
///
/// All seals are kept, even those that no scan reads: if a term has two seals, the sweep cannot know which one a late PUT of
/// the old writer will meet.
#[must_use]
pub fn closed_below(head: &Head) -> Term {
    head.spans.first().map_or(Term(0), |span| span.term)
}
