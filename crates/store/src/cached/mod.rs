//! `flush=cache`: a flush is durable on a cache device first, and in the store some time later.
//!
//! The contract. *A flush is durable on the cache device. After a failure of process or power, the disk is exactly the last
//! flush. If machine or cache is lost, or another machine takes over, the disk is exactly some earlier flush, at most `lag`
//! behind.*
//!
//! A flush is appended to the [`log`] and synced there, with one flush of the device; then it may be acknowledged. Later, the
//! gathered flushes are written to the disk over the store ([`StoreDevice`](crate::StoreDevice)), all of them in one epoch.
//! When that epoch is durable in the store, their records are dropped. So every state of the store is the end of some flush.
//!
//! Order:
//! * a flush is handed to the store after the cache has it. Otherwise a crash could leave a flush in the store that the cache
//!   lacks, and sending the cache's flushes again would mix the two;
//! * a record is dropped after the store has acknowledged its flush;
//! * before a flush is acknowledged, the store has every flush that is older than the lag ([`stage`]). So a machine that was
//!   fenced, cut off or suspended acknowledges nothing more after the lag: the clock runs on while the machine sleeps.
//!
//! *A restart.* All flushes of the log are sent again in **one** epoch. The store may have some of them already; writing the
//! same blocks again, up to the last flush, leaves the last flush. Two epochs would be wrong: after the first, the disk would
//! mix blocks of later flushes, which the store has already, with blocks of earlier ones.
//!
//! *A take-over.* The records continue the history of the term in the log's header. [`Tail::verdict`] decides, after this
//! machine has sealed the last term and before it opens its own: if that term is the log's, the records are sent; if another
//! term was opened since, nothing is mixed and the volume is not opened. The machine that took over has kept a snapshot of the
//! state that the lost flushes continue ([`kept_name`](crate::kept_name)); [`salvage`](Found::salvage) clones that snapshot and
//! adds the flushes.

mod clock;
mod contents;
mod device;
mod log;
mod part;
mod salvage;
mod stage;

pub use clock::LagClock;
pub use device::{CachedDevice, Lag};
pub use salvage::Salvaged;

use crate::cache_kind::CacheError;
use crate::opening::{OpenError, OpenOptions};
use crate::protocol::{Slot, Tail, TailVerdict, Term};
use crate::reads::Reads;
use crate::volume::{Found, Own};
use log::{Log, OnDevice, Recovered};
use part::Part;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, Direct, FileDevice, FileOptions};

/// Blocks of the epoch in which a log is sent again: those within the lag, and those in flight.
const RESEND_BLOCKS: u64 = 1 << 17;
/// The largest lag in blocks: 256 MiB.
const LAG_BLOCKS_MOST: u64 = 1 << 16;
/// Longest wait of flushes for others that share a request: in milliseconds, and as a part of the lag (reciprocal).
const GROUP_MS: u64 = 250;
const GROUP_SHARE: u64 = 20;

/// Default size of a new cache file.
const FILE_BYTES: u64 = 1 << 30;
/// Fewest blocks of a cache device or file: 64 MiB. With fewer, the epochs of its log would be too small for a volume.
const BLOCKS_LEAST: u64 = 1 << 14;

/// A cache, and the limits of the store's lag.
#[derive(Clone)]
pub struct CacheOptions {
    /// The cache device or file. No other process may use it.
    pub device: Arc<dyn BlockDevice>,
    /// Name in messages, also those of a machine that opens the volume later.
    pub name: String,
    /// Age at which a flush that the store lacks delays new ones.
    pub lag: Duration,
    /// Most bytes of flushes that the store lacks; at most 256 MiB.
    pub lag_bytes: u64,
    /// Clock of the lag.
    pub clock: LagClock,
    /// Drop flushes that only the cache has if another machine took over.
    pub discard: bool,
}

impl std::fmt::Debug for CacheOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheOptions")
            .field("name", &self.name)
            .field("lag", &self.lag)
            .field("lag_bytes", &self.lag_bytes)
            .finish_non_exhaustive()
    }
}

impl CacheOptions {
    /// A cache with a lag of 5 s and 256 MiB.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, name: &str) -> CacheOptions {
        CacheOptions {
            device,
            name: name.to_owned(),
            lag: Duration::from_secs(5),
            lag_bytes: LAG_BLOCKS_MOST * BLOCK_SIZE as u64,
            clock: LagClock::default(),
            discard: false,
        }
    }

    /// Opens the cache device or file at a path. A missing file is created with this size, by default 1 GiB.
    ///
    /// # Errors
    /// [`OpenError::Cache`]: it cannot be opened or created, or is too small.
    pub fn open(path: &Path, bytes: Option<u64>) -> Result<CacheOptions, OpenError> {
        let name = path.to_string_lossy();
        let bad = |source: CacheError| OpenError::Cache {
            name: name.to_string(),
            source: Box::new(source),
        };
        let device = if path.exists() {
            let options = FileOptions {
                direct: Direct::Prefer,
                ..FileOptions::default()
            };
            FileDevice::open(path, &options)
        } else {
            let bytes = bytes.unwrap_or(FILE_BYTES);
            FileDevice::create(path, bytes / BLOCK_SIZE as u64, false)
        };
        let device = device.map_err(|error| bad(error.into()))?;
        let blocks = device.geometry().blocks;
        if blocks < BLOCKS_LEAST {
            let least = BLOCKS_LEAST;
            return Err(bad(CacheError::Small { blocks, least }));
        }
        Ok(CacheOptions::new(Arc::new(device), &name))
    }

    fn bounds(&self) -> stage::Bounds {
        let lag_ms = self.lag.as_millis() as u64;
        stage::Bounds {
            lag_ms,
            lag_blocks: (self.lag_bytes / BLOCK_SIZE as u64).min(LAG_BLOCKS_MOST),
            group_ms: GROUP_MS.min(lag_ms / GROUP_SHARE),
        }
    }
}

impl Found {
    /// Takes the volume over and opens it with a cache. Flushes that only the cache has are sent first.
    ///
    /// # Errors
    /// Those of [`Found::open`]; [`OpenError::NoCacheContract`], [`OpenError::Cache`], [`OpenError::Deposed`].
    pub fn open_cached(
        &self,
        options: &OpenOptions,
        cache: &CacheOptions,
    ) -> Result<CachedDevice, OpenError> {
        if !self.object().features.flush_cache {
            return Err(OpenError::NoCacheContract(self.url()));
        }
        let bad = |source| OpenError::Cache {
            name: cache.name.clone(),
            source: Box::new(source),
        };
        let (mut log, flushes) = self.read_cache(cache, options, true).map_err(bad)?;
        if let Some(behind) = log.behind() {
            let part = Part::new(&cache.device, behind);
            self.attach_reads(Arc::new(part), true).map_err(bad)?;
        }
        let continues = |last| verdict(&log, last, Slot(u64::MAX), options) != TailVerdict::Salvage;
        let before = self.may_open(options, &continues)?;
        // The attempt may fence another machine only if this one can go on.
        if !flushes.is_empty() && !cache.discard && !before.continues {
            return Err(self.deposed(cache, &flushes));
        }
        let (mut kept, mut last) = (before.continues, Term(0));
        let mut sealed = |own: Term, previous: Term, first: Slot| {
            let verdict = verdict(&log, previous, first, options);
            kept = verdict != TailVerdict::Salvage;
            last = previous;
            if !kept && !flushes.is_empty() && !cache.discard {
                return Err(self.deposed(cache, &flushes));
            }
            log.adopt(own, previous).map_err(bad)
        };
        let name = Some(cache.name.as_str());
        let own = Own {
            cache: name,
            epoch_blocks: RESEND_BLOCKS,
            cells: None,
        };
        let disk = self.open_disk(options, before.released, own, &mut sealed)?;
        if kept {
            return CachedDevice::new(disk, log, flushes, cache, options);
        }
        self.keep_what_was(&disk, before.released, last)?;
        log.clear().map_err(bad)?;
        CachedDevice::new(disk, log, Vec::new(), cache, options)
    }

    /// Caches reads of the volume on a device, across restarts: for a volume whose flushes go to the store.
    ///
    /// # Errors
    /// [`OpenError::Cache`]: the device belongs to another volume, holds flushes or other data, is too small, or fails.
    pub fn keep_reads(&self, cache: &CacheOptions) -> Result<(), OpenError> {
        let kept = self.attach_reads(Arc::clone(&cache.device), false);
        kept.map_err(|source| OpenError::Cache {
            name: cache.name.clone(),
            source: Box::new(source),
        })
    }

    fn attach_reads(&self, device: Arc<dyn BlockDevice>, ours: bool) -> Result<(), CacheError> {
        self.sources.keep(&Reads::open(device, self.id(), ours)?);
        Ok(())
    }

    fn read_cache(
        &self,
        cache: &CacheOptions,
        options: &OpenOptions,
        whole: bool,
    ) -> Result<(Log, Vec<Recovered>), CacheError> {
        let (id, features) = (self.id(), self.object().features);
        let keys = self.sources.own().coding.keys.as_ref();
        let fault = options.device_fault();
        match Log::read(&cache.device, id, features, keys, fault, whole)? {
            OnDevice::Log(log, flushes) => Ok((*log, flushes)),
            OnDevice::New => {
                let log = Log::format(&cache.device, id, features, keys, fault)?;
                Ok((log, Vec::new()))
            }
        }
    }

    fn deposed(&self, cache: &CacheOptions, flushes: &[Recovered]) -> OpenError {
        let weights = flushes.iter().map(|flush| flush.contents.weight());
        OpenError::Deposed {
            url: self.url(),
            cache: cache.name.clone(),
            flushes: flushes.len() as u64,
            bytes: weights.sum::<u64>() * BLOCK_SIZE as u64,
        }
    }
}

/// The decision on a log's flushes, after term `previous` was sealed before slot `first`.
fn verdict(log: &Log, previous: Term, first: Slot, options: &OpenOptions) -> TailVerdict {
    let header = log.header();
    let tail = Tail {
        // The log's own term; if that was never opened, the one before.
        term: match previous == header.before {
            true => header.before,
            false => header.term,
        },
        first: header.stored.next(),
        // The last flush that the store has is not known.
        last: Slot(u64::MAX),
    };
    tail.verdict(previous, first, options.protocol_faults())
}
