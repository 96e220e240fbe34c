//! Errors of the journal. They are cheap to clone: the first failure is
//! kept and reported to every later caller (sticky).

use crate::{Credits, Kind};
use std::sync::Arc;
use steadfast_block::{BlockNo, DeviceError};

/// A failed journal call.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A metadata block read from its home does not match its seal.
    #[error(
        "block {at} fails its checksum: the medium is damaged or the block was overwritten; run 'steadfast fsck'"
    )]
    BadSeal {
        /// The block.
        at: BlockNo,
    },
    /// The log region or a tail header is damaged.
    #[error("{what}; run 'steadfast fsck'")]
    Corrupt {
        /// Description of the damage and its place.
        what: String,
    },
    /// The log region and both tail headers hold nothing but zeros.
    #[error("there is no journal yet: its headers and its log are all zeros; format it first")]
    NotFormatted,
    /// An operation would use more than it was admitted with. The call changed nothing; the operation goes on without it, or
    /// is dropped. Other operations are not concerned.
    #[error("an operation with {credits} needs {needed}")]
    OverCredits {
        /// Credits that it needs, this call included.
        needed: Credits,
        /// Credits that it was admitted with.
        credits: Credits,
    },
    /// A change of a block that belongs to the journal: a tail header, or the log.
    #[error("block {at} belongs to the journal")]
    JournalBlock {
        /// The block.
        at: BlockNo,
    },
    /// A change of a block past the end of the device.
    #[error("block {at} lies past the end of the device, which has {blocks} blocks")]
    OutOfRange {
        /// The block.
        at: BlockNo,
        /// Blocks of the device.
        blocks: u64,
    },
    /// An operation asks for more log space than one operation may have.
    #[error("an operation needs {needed} bytes of log, the limit is {limit}")]
    TooLarge {
        /// Bytes asked for.
        needed: u64,
        /// Largest allowed.
        limit: u64,
    },
    /// The journal is open for reading only.
    #[error("the journal is open read-only")]
    ReadOnly,
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
    /// An earlier write or flush failed; nothing is written any more.
    #[error("an earlier failure stopped the journal: {0}")]
    Failed(Arc<Error>),
    /// A block is used as another kind than it has.
    #[error("block {at} is used as {kind:?}, but is cached as the other kind")]
    WrongKind {
        /// The block.
        at: BlockNo,
        /// Kind that the call asked for.
        kind: Kind,
    },
    /// A block that the log has patches of was to be written around the log.
    #[error(
        "block {at} has patches that are logged or will be: it cannot be written around the log"
    )]
    Logged {
        /// The block.
        at: BlockNo,
    },
    /// Without a log, more is needed of the device.
    #[error("a journal without a log is not possible here: {what}")]
    NoEpochs {
        /// What.
        what: String,
    },
    /// Only blocks in memory were to be read ([`in_memory`](crate::in_memory)).
    #[error("not in memory")]
    NotInMemory,
    /// The region given does not fit the device or the format.
    #[error("bad journal region: {what}")]
    BadRegion {
        /// Reason.
        what: String,
    },
}

impl Error {
    /// The sticky form of this error.
    #[must_use]
    pub fn sticky(&self) -> Error {
        match self {
            Error::Failed(_) | Error::Closed => self.clone(),
            other => Error::Failed(Arc::new(other.clone())),
        }
    }
}

/// Result of a journal call.
pub type Result<T> = std::result::Result<T, Error>;
