//! Hash maps keyed by block or chunk numbers.
//!
//! Device contents are looked up once per block on every read, so the hash is a fast one without a key: the keys are
//! addresses chosen by this crate's callers, never by an adversary. It is the same in every run, so that runs repeat.

use foldhash::fast::FixedState;
use std::collections::HashMap;

/// A map from block (or chunk) numbers.
pub(crate) type BlockMap<V> = HashMap<u64, V, FixedState>;
