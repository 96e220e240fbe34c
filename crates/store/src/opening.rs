//! Options and errors of opening a volume.

use crate::driver::Failed;
use crate::io::StoreError;
use crate::place::{Access, PlaceError};
use std::time::Duration;

/// Errors of making, opening or reading a volume.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An invalid URL, or a failure of the local system.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A failure of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The writer has stopped.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// There is no volume at the URL.
    #[error("{0}: no volume is there; check the URL, or make one with 'steadfast mkfs --on {0}'")]
    Absent(String),
    /// There is a volume at the URL already.
    #[error("{0}: a volume is there already; choose another prefix, or delete its objects first")]
    Exists(String),
    /// Another process of this machine has the volume open.
    #[error(
        "{url}: is in use by process {pid} of this machine; end that first, or take the volume over ('-o take_over', \
         'steadfast store take-over'): the other is then fenced"
    )]
    InUse {
        /// The volume.
        url: String,
        /// The process.
        pid: u32,
    },
    /// Another machine has the volume open, or died before releasing it.
    #[error(
        "{url}: process {pid} on {host} has not released it, and this machine cannot see whether it still runs; if it is gone, \
         or is to be fenced, take the volume over ('-o take_over', 'steadfast store take-over')"
    )]
    Elsewhere {
        /// The volume.
        url: String,
        /// The machine.
        host: String,
        /// The process.
        pid: u32,
    },
    /// A writer publishes checkpoints faster than the volume can be read.
    #[error("{0}: a writer publishes checkpoints faster than they can be read; try again")]
    Restless(String),
    /// The volume is encrypted, and no key file is given.
    #[error(
        "{0}: the volume is encrypted: give its key file ('--key-file FILE', '-o key_file=FILE', or STEADFAST_KEY_FILE in the \
         environment)"
    )]
    KeyNeeded(String),
    /// The key file does not open the volume.
    #[error(
        "{0}: the key file does not fit: it is another volume's, or it was replaced ('steadfast store rekey'); or the objects \
         'volume' and 'key' were changed by others"
    )]
    WrongKey(String),
    /// A key file is given, but the volume is not encrypted: somebody may have replaced an encrypted volume.
    #[error(
        "{0}: the volume is not encrypted, but a key file is given: give none if that is right; if it was made with \
         '--encrypt', somebody has replaced it"
    )]
    NotEncrypted(String),
    /// There is no snapshot of this name.
    #[error(
        "{url}: there is no snapshot '{name}'; 'steadfast store snapshot list {url}' lists them"
    )]
    NoSnapshot {
        /// The volume.
        url: String,
        /// The name.
        name: String,
    },
    /// There is a snapshot of this name already.
    #[error("{url}: there is a snapshot '{name}' already")]
    SnapshotExists {
        /// The volume.
        url: String,
        /// The name.
        name: String,
    },
    /// The contract of the volume allows no cache.
    #[error(
        "{0}: the volume was made with '--flush store': a flush is durable in the store, and no cache can be given; \
         'mkfs --flush cache' makes one whose flushes may be durable on a cache first"
    )]
    NoCacheContract(String),
    /// A cache cannot be used.
    #[error("the cache {name} {source}")]
    Cache {
        /// Name of the cache.
        name: String,
        /// Cause.
        source: Box<crate::CacheError>,
    },
    /// Flushes of the last writer may be on a cache that was not given.
    #[error(
        "{url}: the last writer kept flushes on the cache {cache} of {host}, and has not released the volume: give that cache \
         ('-o cache={cache},flush=cache'); or go on without its flushes, which 'steadfast store salvage' can still put into a clone \
         ('-o take_over', 'steadfast store take-over')"
    )]
    CacheLeft {
        /// The volume.
        url: String,
        /// The cache.
        cache: String,
        /// The machine.
        host: String,
    },
    /// The cache holds flushes, and another machine took the volume over without them.
    #[error(
        "{url}: the cache {cache} holds {flushes} flushes ({bytes} bytes) that the store lacks, and another machine took the \
         volume over without them; nothing is mixed. 'steadfast store salvage --cache {cache} {url} NEW-URL' makes a clone of the \
         volume with them; '-o discard_cache' drops them"
    )]
    Deposed {
        /// The volume.
        url: String,
        /// The cache.
        cache: String,
        /// Number of flushes.
        flushes: u64,
        /// Bytes that these flushes write.
        bytes: u64,
    },
    /// The store has all flushes of the cache.
    #[error("the cache {0} holds no flushes that the store lacks")]
    NothingToSalvage(String),
    /// No other machine took the volume over.
    #[error(
        "{url}: no other machine took the volume over: mount it with the cache {cache} ('-o cache={cache},flush=cache'), which \
         sends what it holds"
    )]
    NotDeposed {
        /// The volume.
        url: String,
        /// The cache.
        cache: String,
    },
    /// The state that the flushes continue is gone.
    #[error(
        "{url}: the volume as it was when the flushes of the cache {cache} were made is not kept any more: its snapshot \
         ('after-term-…') was deleted, and the flushes fit nothing else"
    )]
    NotKept {
        /// The volume.
        url: String,
        /// The cache.
        cache: String,
    },
    /// The disk of the volume failed.
    #[error("{url}: {source}")]
    Disk {
        /// The volume.
        url: String,
        /// Cause.
        source: steadfast_block::DeviceError,
    },
    /// The clone, or one of its snapshots and clones, needs objects of the parent.
    #[error("{url}: {}", still_needed(.parent, .names))]
    NeedsParents {
        /// The volume.
        url: String,
        /// URL of the parent.
        parent: String,
        /// The snapshots and clones; empty if the clone itself needs the parent.
        names: Vec<String>,
    },
    /// The volume has no published checkpoint yet.
    #[error("{0}: no checkpoint was published yet: mount it once")]
    NoCheckpoint(String),
}

/// The message of [`OpenError::NeedsParents`].
fn still_needed(parent: &str, names: &[String]) -> String {
    match names {
        [] => format!("the clone reads objects of {parent}: 'steadfast store promote' copies them"),
        names => format!(
            "snapshots or clones of it need objects of {parent}: {}; delete those snapshots, and promote those clones first",
            names.join(", ")
        ),
    }
}

/// Options of opening a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Access to the store.
    pub access: Access,
    /// Fence an owner that has not released the volume.
    pub take_over: bool,
    /// Time for an answer of the store while the volume is opened.
    pub patience: Duration,
    /// Time for an answer of the store afterwards; then the volume fails. Without it, the volume waits until the outage ends.
    pub store_timeout: Option<Duration>,
    /// Bytes of the read cache in memory.
    pub cache_bytes: u64,
    /// Time for which a retired object stays in the store, because readers may still use it.
    pub keep_deleted: Duration,
    /// Flush a full epoch instead of refusing the next write: for clients that do not use epochs.
    pub flush_when_full: bool,
    /// Duration of the lease: for this time after each proof of ownership, the device's client may answer its own clients
    /// ([`ServingLease`](crate::ServingLease)). A successor waits until it has run out.
    pub lease: Option<Duration>,
    /// Wait for the end of a writer's lease even if the writer was a process of this machine that has ended.
    pub wait_for_dead: bool,
    /// Clock of the leases.
    pub clock: crate::LagClock,
    /// Release the device when it is dropped: for commands that end in many ways.
    pub release_on_drop: bool,
    /// Planted faults: of the disk, and of the protocol.
    #[cfg(feature = "faults")]
    pub faults: (Option<crate::DeviceFault>, crate::protocol::Faults),
}

impl OpenOptions {
    #[cfg(feature = "faults")]
    pub(crate) fn device_fault(&self) -> Option<crate::DeviceFault> {
        self.faults.0
    }

    #[cfg(not(feature = "faults"))]
    #[expect(
        clippy::unused_self,
        reason = "the same call with and without the feature"
    )]
    pub(crate) const fn device_fault(&self) -> Option<crate::fault::DeviceFault> {
        None
    }

    #[cfg(feature = "faults")]
    pub(crate) fn protocol_faults(&self) -> crate::protocol::Faults {
        self.faults.1
    }

    #[cfg(not(feature = "faults"))]
    #[expect(
        clippy::unused_self,
        reason = "the same call with and without the feature"
    )]
    pub(crate) fn protocol_faults(&self) -> crate::protocol::Faults {
        crate::protocol::Faults::default()
    }
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            access: Access::default(),
            take_over: false,
            patience: Duration::from_secs(20),
            store_timeout: None,
            cache_bytes: 128 << 20,
            keep_deleted: Duration::from_secs(600),
            flush_when_full: false,
            lease: None,
            wait_for_dead: false,
            clock: crate::LagClock::default(),
            release_on_drop: false,
            #[cfg(feature = "faults")]
            faults: Default::default(),
        }
    }
}
