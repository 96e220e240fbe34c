//! Settings for opening a volume on an object store.

use std::path::PathBuf;
use std::time::Duration;

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    /// An owner that has not released the volume is fenced.
    pub(crate) take_over: bool,
    /// Time without an answer of the store after which the volume fails; without it, an outage is waited out.
    pub(crate) timeout: Option<Duration>,
    /// The address of the server.
    pub(crate) endpoint: Option<String>,
    /// The key file of an encrypted volume.
    pub(crate) key_file: Option<PathBuf>,
    /// The cache device or file.
    pub(crate) cache: Option<PathBuf>,
    /// Flushes are durable on the cache. Without it the cache is one of reads alone.
    pub(crate) flush_cache: bool,
    /// Maximum lag of the store behind the cache.
    pub(crate) lag: Option<Duration>,
    /// Maximum lag of the store, in bytes.
    pub(crate) lag_bytes: Option<u64>,
    /// Bytes of a cache file that is made.
    pub(crate) cache_size: Option<u64>,
    /// Flushes that only the cache has are dropped, if another machine took over.
    pub(crate) discard_cache: bool,
}
