//! Errors of mkfs, mount, fsck, grow and inspection. Those of file-system calls are [`steadfast_vfs::Error`].

use crate::fsck::finding::Finding;
use crate::layout::{FEATURES, REGION_BYTES_MAX, REGION_BYTES_MIN, VERSION};
use crate::state::Medium;

/// Error of making, mounting, checking or growing a volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The region holds no volume.
    #[error(
        "no Steadfast volume on persistent memory: the region does not begin with a superblock; \
         check the name, or format it with 'steadfast mkfs --on pm'"
    )]
    NotAVolume,
    /// The region holds a volume for block devices.
    #[error("a Steadfast volume for block devices: mount it as one, without '--on pm'")]
    BlockVolume,
    /// The volume was made by a newer program.
    #[error(
        "format version {found}, but this program knows up to {VERSION}: use the version of steadfast that made the volume"
    )]
    Version {
        /// Version of the volume.
        found: u32,
    },
    /// The volume has features that this program does not know.
    #[error(
        "unknown features {:#x}: use the version of steadfast that made the volume", .found & !FEATURES
    )]
    Features {
        /// Features of the volume.
        found: u32,
    },
    /// The region ends before the volume does.
    #[error(
        "the volume has {volume} bytes, but the region ends after {region}: it was cut short; \
         restore its full size, then mount again"
    )]
    Truncated {
        /// Bytes of the volume.
        volume: u64,
        /// Bytes of the region.
        region: u64,
    },
    /// Both copies of the superblock are damaged.
    #[error(
        "both copies of the superblock are damaged ({detail}): restore the first 8 KiB from a backup"
    )]
    Superblock {
        /// Description of the damage.
        detail: String,
    },
    /// The region has a size that no volume can have.
    #[error(
        "a region of {bytes} bytes cannot hold a volume with these options: \
         {REGION_BYTES_MIN} to {REGION_BYTES_MAX} bytes are possible, and inodes must leave room for files"
    )]
    Size {
        /// Bytes of the region.
        bytes: u64,
    },
    /// An option is out of its range.
    #[error("{0}")]
    Option(String),
    /// The system gave no random numbers.
    #[error("the system gave no random numbers: {0}")]
    Random(String),
    /// The volume is damaged.
    #[error(
        "the volume is damaged in {count} places{}; run 'steadfast fsck' on it, or mount it read-only to copy what is left",
        .first.as_ref().map(|first| format!(", first: {first}")).unwrap_or_default()
    )]
    Damaged {
        /// Number of findings.
        count: u64,
        /// The first of them.
        first: Option<Box<Finding>>,
    },
    /// A store was refused.
    #[error(transparent)]
    State(#[from] crate::state::Error),
    /// The memory failed while it was used.
    #[error("{attempt}: the memory failed: the file was cut short, or the medium is broken")]
    Memory {
        /// Operation that failed.
        attempt: &'static str,
    },
}

impl Error {
    /// An error if the region failed while `attempt`.
    pub(crate) fn unless_failed(medium: &Medium, attempt: &'static str) -> Result<(), Error> {
        match medium.failed() {
            true => Err(Error::Memory { attempt }),
            false => Ok(()),
        }
    }
}
