//! How a volume is opened, and why that may fail.

use crate::driver::Failed;
use crate::io::StoreError;
use crate::place::{Access, PlaceError};
use std::time::Duration;

/// Why a volume could not be made, opened or looked at.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL, or this machine.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The protocol.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// Nothing is there.
    #[error("{0}: no volume is there; check the URL, or make one with 'steadfast mkfs --on {0}'")]
    Absent(String),
    /// Something is there.
    #[error("{0}: a volume is there already; choose another prefix, or delete its objects first")]
    Exists(String),
    /// Another process has it.
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
    /// Another machine has it, or has died with it.
    #[error(
        "{url}: process {pid} on {host} has not released it, and nobody here can know whether it runs; if it is gone, or is to \
         be fenced, take the volume over ('-o take_over', 'steadfast store take-over')"
    )]
    Elsewhere {
        /// The volume.
        url: String,
        /// The machine.
        host: String,
        /// The process.
        pid: u32,
    },
    /// A writer changes it faster than it can be read.
    #[error("{0}: a writer goes on faster than it can be read; try again")]
    Restless(String),
    /// It is encrypted, and no key file is given.
    #[error(
        "{0}: the volume is encrypted: give its key file ('--key-file FILE', '-o key_file=FILE', or STEADFAST_KEY_FILE in the \
         environment)"
    )]
    KeyNeeded(String),
    /// The key file is another one's.
    #[error(
        "{0}: the key file does not fit: it is another volume's, or it was replaced ('steadfast store rekey'); or the objects \
         'volume' and 'key' were changed by others"
    )]
    WrongKey(String),
    /// A key file is given for a volume that has no key: what is there may not be what the user made.
    #[error(
        "{0}: the volume is not encrypted, but a key file is given: give none if that is right; if it was made with \
         '--encrypt', somebody has replaced it"
    )]
    NotEncrypted(String),
    /// No snapshot has the name.
    #[error(
        "{url}: there is no snapshot '{name}'; 'steadfast store snapshot list {url}' lists them"
    )]
    NoSnapshot {
        /// The volume.
        url: String,
        /// The name.
        name: String,
    },
    /// Another snapshot has the name.
    #[error("{url}: there is a snapshot '{name}' already")]
    SnapshotExists {
        /// The volume.
        url: String,
        /// The name.
        name: String,
    },
    /// Its contract has no cache.
    #[error(
        "{0}: the volume was made with '--flush store': a flush is durable in the store, and no cache can be given; \
         'mkfs --flush cache' makes one whose flushes may be durable on a cache first"
    )]
    NoCacheContract(String),
    /// The cache.
    #[error("the cache {name} {source}")]
    Cache {
        /// What it is called.
        name: String,
        /// What is wrong with it.
        source: Box<crate::CacheError>,
    },
    /// The last writer's flushes may be on a cache that was not given.
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
    /// The cache holds flushes, and another machine took over without them.
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
        /// Flushes.
        flushes: u64,
        /// Bytes that they write.
        bytes: u64,
    },
    /// The cache holds nothing.
    #[error("the cache {0} holds no flushes that the store lacks")]
    NothingToSalvage(String),
    /// No machine took over.
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
    /// What the flushes continue is gone.
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
    /// The disk of a volume.
    #[error("{url}: {source}")]
    Disk {
        /// The volume.
        url: String,
        /// What failed.
        source: steadfast_block::DeviceError,
    },
    /// It, or snapshots and clones of it, need objects of its parent.
    #[error("{url}: {}", still_needed(.parent, .names))]
    NeedsParents {
        /// The volume.
        url: String,
        /// Where its parent was.
        parent: String,
        /// The snapshots and clones; none if it is the volume itself.
        names: Vec<String>,
    },
    /// Nothing was flushed to the volume yet.
    #[error("{0}: no checkpoint was published yet: mount it once")]
    NoCheckpoint(String),
}

/// Of [`OpenError::NeedsParents`].
fn still_needed(parent: &str, names: &[String]) -> String {
    match names {
        [] => format!("the clone reads objects of {parent}: 'steadfast store promote' copies them"),
        names => format!(
            "snapshots or clones of it need objects of {parent}: {}; delete those snapshots, and promote those clones first",
            names.join(", ")
        ),
    }
}

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// How the store is reached.
    pub access: Access,
    /// Fence an owner that has not released the volume.
    pub take_over: bool,
    /// How long the store may take to answer while the volume is opened.
    pub patience: Duration,
    /// How long the store may take to answer afterwards, before the volume fails; without it, an outage is waited out.
    pub store_timeout: Option<Duration>,
    /// Memory for what was read.
    pub cache_bytes: u64,
    /// How long a retired object stays in the store, for readers that still use it.
    pub keep_deleted: Duration,
    /// A full epoch is flushed, instead of refusing what does not fit: for clients that know of no epochs.
    pub flush_when_full: bool,
    /// The device's client answers others for so long after each proof that the volume is still this machine's
    /// ([`ServingLease`](crate::ServingLease)); a successor waits for that.
    pub lease: Option<Duration>,
    /// The lease of a writer is waited out even if it was a process of this machine that has ended.
    pub wait_for_dead: bool,
    /// Leases are measured by it.
    pub clock: crate::LagClock,
    /// A device that is dropped is released: for commands that end in many ways.
    pub release_on_drop: bool,
    /// A rule that the disk leaves out, and one of the protocol.
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
