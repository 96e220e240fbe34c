//! Detection of existing contents on a cache device, and errors of caches.

use crate::object::VolumeId;
use crate::place::PlaceError;
use steadfast_block::{BLOCK_SIZE, DeviceError};

/// Magic numbers: of a cache with a log of flushes (in either of its two headers), and of a read cache.
pub(crate) const LOG_MAGIC: [u8; 8] = *b"SFCACHE\x01";
pub(crate) const READS_MAGIC: [u8; 8] = *b"SFREADS\x01";
/// Blocks at the start of a device that must be zeros before it is formatted as a cache.
pub(crate) const LOOKED_AT: u64 = 32;

/// Whether a device with these first bytes has a log of flushes.
pub(crate) fn is_log(first: &[u8]) -> bool {
    let mut headers = first.chunks_exact(BLOCK_SIZE).take(2);
    headers.any(|header| header.starts_with(&LOG_MAGIC))
}

/// Whether a device with these first bytes is a read cache.
pub(crate) fn is_reads(first: &[u8]) -> bool {
    first.starts_with(&READS_MAGIC)
}

/// Reasons why a cache cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CacheError {
    /// The device cannot be read or written.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The device is too small.
    #[error("has {blocks} blocks, {least} are needed")]
    Small {
        /// Blocks of the device.
        blocks: u64,
        /// Required blocks.
        least: u64,
    },
    /// The device holds other data.
    #[error(
        "holds other data than a cache; if nobody needs it, write zeros to its first 128 KiB ('wipefs -a', 'dd')"
    )]
    Foreign,
    /// The device is a read cache.
    #[error(
        "is a cache of reads, which takes no flushes: use another one, or give it up by writing zeros to its first 128 KiB"
    )]
    OfReads,
    /// The device has a log of flushes.
    #[error(
        "is a cache with flushes of a volume: give 'flush=cache' with it, or use another one for 'flush=store'"
    )]
    HasLog,
    /// The cache belongs to another volume.
    #[error("is a cache of the volume {0}: unmount that one, or use another cache")]
    OtherVolume(VolumeId),
    /// A newer program wrote the cache.
    #[error("has format version {0}, this program knows 1: use a newer program")]
    Version(u32),
    /// The size of the device has changed since the cache was made.
    #[error("has {has} blocks, and had {had} when it was made: it was cut, or copied")]
    Resized {
        /// Present number of blocks.
        has: u64,
        /// Number of blocks when the cache was made.
        had: u64,
    },
    /// A durable record is missing or damaged.
    #[error(
        "is damaged: flush {number} is missing or fails its checks ({why}), though a later one was written; \
         'steadfast store salvage --force' makes a clone with the flushes before it"
    )]
    Damaged {
        /// Number of the flush.
        number: u64,
        /// Failed check.
        why: String,
    },
    /// A flush does not fit a record.
    #[error("has no room for a flush of {0} blocks")]
    Large(u64),
    /// A failure of the local system, such as missing random numbers.
    #[error("{0}")]
    Random(String),
}

impl From<PlaceError> for CacheError {
    fn from(error: PlaceError) -> CacheError {
        CacheError::Random(error.to_string())
    }
}
