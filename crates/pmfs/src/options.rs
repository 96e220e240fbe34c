//! Options of a mount.

use std::fmt;
use std::sync::Arc;
use steadfast_vfs::{Clock, SystemClock};

/// Options of a mount.
#[derive(Clone)]
#[non_exhaustive]
pub struct MountOptions {
    /// Nothing is written, not even a recovery: it is applied in memory.
    pub read_only: bool,
    /// A write over written pages stores into them: one fence and no free page, but a crash may leave any of its words
    /// old. Without it a write is atomic, however long.
    pub in_place: bool,
    /// Threads that scan the region; one for each processor if it is 0.
    pub scan_threads: usize,
    /// Source of times.
    pub clock: Arc<dyn Clock>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            in_place: false,
            scan_threads: 0,
            clock: Arc::new(SystemClock),
        }
    }
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountOptions")
            .field("read_only", &self.read_only)
            .field("in_place", &self.in_place)
            .field("scan_threads", &self.scan_threads)
            .finish_non_exhaustive()
    }
}
