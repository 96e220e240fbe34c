//! Errors: [`Error`] of mount, mkfs and fsck, and the one mapping from the
//! journal's errors to those of file-system calls.

use steadfast_block::{BlockNo, DeviceError};
use steadfast_vfs::Errno;

/// Error of making, opening, checking or closing a volume.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no volume on the device.
    #[error(
        "no Steadfast volume: neither the first block nor the last one holds a superblock; \
         check the name, or format it with 'steadfast mkfs'"
    )]
    NotAVolume,
    /// The device is too small for the requested volume.
    #[error("the device has {blocks} blocks of 4096 bytes, {needed} are needed at least: make it larger{}", .with_log.then_some(", or ask for a smaller log").unwrap_or_default())]
    TooSmall {
        /// Blocks of the device.
        blocks: u64,
        /// Blocks that are needed.
        needed: u64,
        /// The size of the log was chosen by the caller.
        with_log: bool,
    },
    /// The device ends before the volume does.
    #[error(
        "the volume has {volume} blocks, but the device ends after {device}: it was cut short; \
         restore its full size, then mount again"
    )]
    Truncated {
        /// Blocks that the superblock promises.
        volume: u64,
        /// Blocks that are there.
        device: u64,
    },
    /// The volume needs something that this version does not have.
    #[error(
        "the volume uses {what}, which this version does not know: use the version of steadfast that made it"
    )]
    Unsupported {
        /// Unknown feature.
        what: String,
    },
    /// A structure is wrong.
    #[error("{what} (block {at}): {why}; run 'steadfast fsck' on it")]
    Damaged {
        /// The structure.
        what: &'static str,
        /// Block of the structure.
        at: BlockNo,
        /// Fault of the structure.
        why: String,
    },
    /// An option is out of its range.
    #[error("{0}")]
    Option(String),
    /// The system gave no random numbers.
    #[error("the system gave no random numbers: {0}")]
    Random(String),
    /// The device failed.
    #[error("{attempt}: {source}")]
    Device {
        /// Operation that failed.
        attempt: &'static str,
        /// Cause.
        source: DeviceError,
    },
    /// The journal failed.
    #[error("{attempt}: {source}")]
    Journal {
        /// Operation that failed.
        attempt: &'static str,
        /// Cause.
        source: steadfast_journal::Error,
    },
    /// A file-system call on the way failed.
    #[error("{attempt}: {source}")]
    Call {
        /// Operation that failed.
        attempt: &'static str,
        /// Cause.
        source: steadfast_vfs::Error,
    },
}

impl Error {
    /// For `map_err`: the device failed while `attempt`.
    pub(crate) fn device(attempt: &'static str) -> impl FnOnce(DeviceError) -> Error {
        move |source| Error::Device { attempt, source }
    }

    /// For `map_err`: the journal failed while `attempt`.
    pub(crate) fn journal(attempt: &'static str) -> impl FnOnce(steadfast_journal::Error) -> Error {
        move |source| Error::Journal { attempt, source }
    }

    /// For `map_err`: a call failed while `attempt`.
    pub(crate) fn call(attempt: &'static str) -> impl FnOnce(steadfast_vfs::Error) -> Error {
        move |source| Error::Call { attempt, source }
    }
}

/// A structure on the volume is wrong: EUCLEAN with the fault and its place.
pub(crate) fn damaged(detail: impl Into<String>) -> steadfast_vfs::Error {
    steadfast_vfs::Error::new(
        Errno::Uclean,
        format!("{}; run 'steadfast fsck'", detail.into()),
    )
}

/// The caller's view of a journal's error. Reads and fsync report failures as they are;
/// changes refused after a failure look like a read-only volume ([`refused`]).
pub(crate) fn from_journal(error: steadfast_journal::Error) -> steadfast_vfs::Error {
    use steadfast_journal::Error as Journal;
    let errno = match &error {
        Journal::ReadOnly => Errno::RoFs,
        Journal::TooLarge { .. } => Errno::FBig,
        Journal::NotInMemory => Errno::Again,
        Journal::BadSeal { .. } | Journal::WrongKind { .. } => Errno::Uclean,
        _ => Errno::Io,
    };
    steadfast_vfs::Error::new(errno, error.to_string())
}

/// The error that a caller gets when a change cannot even begin.
pub(crate) fn refused(error: steadfast_journal::Error) -> steadfast_vfs::Error {
    match error {
        steadfast_journal::Error::Failed(_) | steadfast_journal::Error::Closed => {
            steadfast_vfs::Error::new(Errno::RoFs, error.to_string())
        }
        error => from_journal(error),
    }
}
