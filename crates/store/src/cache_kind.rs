//! What a device that is to be a cache may hold, and why it cannot be used.

use crate::object::VolumeId;
use crate::place::PlaceError;
use steadfast_block::{BLOCK_SIZE, DeviceError};

/// The first bytes of a cache with a log of flushes, in either of its two headers; and of a cache of reads alone.
pub(crate) const LOG_MAGIC: [u8; 8] = *b"SFCACHE\x01";
pub(crate) const READS_MAGIC: [u8; 8] = *b"SFREADS\x01";
/// Blocks at the front of a device that must be zeros before it is taken for a new cache.
pub(crate) const LOOKED_AT: u64 = 32;

/// Whether a device that begins so has a log of flushes.
pub(crate) fn is_log(first: &[u8]) -> bool {
    let mut headers = first.chunks_exact(BLOCK_SIZE).take(2);
    headers.any(|header| header.starts_with(&LOG_MAGIC))
}

/// Whether a device that begins so is a cache of reads.
pub(crate) fn is_reads(first: &[u8]) -> bool {
    first.starts_with(&READS_MAGIC)
}

/// Why a cache cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CacheError {
    /// It cannot be read or written.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// Too small.
    #[error("has {blocks} blocks, {least} are needed")]
    Small {
        /// Its blocks.
        blocks: u64,
        /// The least.
        least: u64,
    },
    /// It holds something.
    #[error(
        "holds other data than a cache; if that is not needed, write zeros to its first 128 KiB ('wipefs -a', 'dd')"
    )]
    Foreign,
    /// It is a cache of reads.
    #[error(
        "is a cache of reads, which takes no flushes: use another one, or give it up by writing zeros to its first 128 KiB"
    )]
    OfReads,
    /// It has a write log.
    #[error(
        "is a cache with flushes of a volume: give 'flush=cache' with it, or use another one for 'flush=store'"
    )]
    HasLog,
    /// It is another volume's.
    #[error("is a cache of the volume {0}: unmount that one, or use another cache")]
    OtherVolume(VolumeId),
    /// A newer program wrote it.
    #[error("has format version {0}, this program knows 1: use a newer program")]
    Version(u32),
    /// It has another size than when it was made.
    #[error("has {has} blocks, and had {had} when it was made: it was cut, or copied")]
    Resized {
        /// Blocks now.
        has: u64,
        /// Blocks then.
        had: u64,
    },
    /// A record that was durable is not there.
    #[error(
        "is damaged: flush {number} is missing or fails its checks ({why}), though a later one was written; \
         'steadfast store salvage --force' makes a clone with the flushes before it"
    )]
    Damaged {
        /// The flush.
        number: u64,
        /// What is wrong.
        why: String,
    },
    /// A flush is larger than what a record takes.
    #[error("has no room for a flush of {0} blocks")]
    Large(u64),
    /// This machine.
    #[error("{0}")]
    Random(String),
}

impl From<PlaceError> for CacheError {
    fn from(error: PlaceError) -> CacheError {
        CacheError::Random(error.to_string())
    }
}
