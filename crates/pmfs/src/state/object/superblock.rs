//! The hints in the superblock of a mounted volume. Its other words change only while nothing is mounted.

use super::medium::Medium;
use crate::layout::{LINE_BYTES, superblock};

/// Stores the hints: whether the volume was unmounted cleanly, and how often it was mounted.
pub fn store_hints(m: &Medium, clean: bool, mounts: u64) {
    m.region.store(superblock::MOUNTS, mounts);
    m.region.store(superblock::CLEAN, u64::from(clean));
    m.region.write_back(superblock::CLEAN, LINE_BYTES);
    m.region.fence();
}
