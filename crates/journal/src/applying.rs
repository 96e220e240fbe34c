//! Keeps the moment in which an operation changes current images apart from the moment in which
//! a transaction freezes them.
//!
//! An operation carries its edits out on the cache before it joins a transaction, outside the
//! core's lock. A transaction that froze in between would take bytes that it owns from an
//! operation that comes after it. Operations of different streams share nothing here: each
//! stream has a stripe of its own, and freezing takes them all.

use crate::StreamId;
use crate::sync::{ReadGuard, RwLock, WriteGuard};

const STRIPES: usize = 8;

/// A lock on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Stripe(RwLock<()>);

#[derive(Default)]
pub(crate) struct Applying([Stripe; STRIPES]);

/// While it lives no transaction freezes.
#[must_use]
pub(crate) struct Applier<'a>(#[allow(dead_code, reason = "held for its drop")] ReadGuard<'a, ()>);

/// While it lives no operation is between its first edit of an image and its transaction.
#[must_use]
pub(crate) struct Stillness<'a>(
    #[allow(dead_code, reason = "held for their drop")] [WriteGuard<'a, ()>; STRIPES],
);

impl Applying {
    /// Begins to apply an operation of the stream. Taken before the core's lock.
    pub(crate) fn apply(&self, stream: StreamId) -> Applier<'_> {
        Applier(self.0[stream.0 as usize % STRIPES].0.read())
    }

    /// Waits until no operation is being applied. Taken before the core's lock.
    pub(crate) fn still(&self) -> Stillness<'_> {
        Stillness(std::array::from_fn(|i| self.0[i].0.write()))
    }
}
