//! Hash maps keyed by block or chunk numbers.
//!
//! Device contents are looked up once per block on every read, so the map uses a
//! multiplicative hash instead of the standard, keyed one: the keys are addresses
//! chosen by this crate's callers, never by an adversary.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from block (or chunk) numbers.
pub(crate) type BlockMap<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// Spreads consecutive numbers over the whole word.
#[derive(Clone, Copy, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
