//! Memory that can be read word by word: a bare region, and the medium of a mounted volume.

use steadfast_pm::Region;

/// Words at addresses that are multiples of 8. Addresses out of bounds panic, like those of a slice.
pub trait Words: Sync {
    /// The word at `at`.
    fn load(&self, at: u64) -> u64;
}

impl Words for Region {
    #[inline]
    fn load(&self, at: u64) -> u64 {
        Region::load(self, at)
    }
}
