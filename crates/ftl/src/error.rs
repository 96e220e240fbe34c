//! Errors, and their remedies.

use crate::limits::TooSmall;

/// Error of a request. `E` is the error type of the flash memory.
#[derive(Debug, thiserror::Error)]
pub enum FtlError<E> {
    /// The flash memory failed in a way that the layer does not mend.
    #[error("flash memory: {0}")]
    Flash(E),
    /// The request reaches beyond the disk.
    #[error("{count} sector(s) from {first} on reach beyond the disk of {sectors} sectors")]
    OutOfRange {
        /// First sector asked for.
        first: u64,
        /// Number of sectors of the request.
        count: u64,
        /// Number of sectors of the disk.
        sectors: u64,
    },
    /// The epoch, from one flush to the next, is full. Nothing was changed.
    #[error("no room for another write before a flush: an epoch holds {bound} writes")]
    EpochFull {
        /// Writes that an epoch can hold.
        bound: u64,
    },
    /// A sector's page cannot be read, or fails its checksum.
    #[error("sector {sector} is lost: the page at block {block}, page {page} is damaged")]
    Damaged {
        /// The sector.
        sector: u64,
        /// Block of its page.
        block: u64,
        /// The page.
        page: u64,
    },
    /// Metadata is damaged: the medium lost data that a flush had made durable.
    #[error(
        "the flash memory holds no whole {what} at block {block}, page {page}: the medium is damaged"
    )]
    Corrupt {
        /// Missing structure.
        what: &'static str,
        /// Block of the page.
        block: u64,
        /// The page.
        page: u64,
    },
    /// No root was found.
    #[error("the flash memory holds no disk; format it first")]
    NotFormatted,
    /// The disk was made for another geometry.
    #[error(
        "the disk was made for another flash geometry: its {what} is {found}, this memory's is {expected}"
    )]
    OtherGeometry {
        /// Name of the number that differs.
        what: &'static str,
        /// The disk's.
        found: u64,
        /// The memory's.
        expected: u64,
    },
    /// The disk was made by another version of the layer.
    #[error("the disk has format version {found}, this program reads {expected}")]
    OtherVersion {
        /// The disk's.
        found: u64,
        /// This program's.
        expected: u64,
    },
    /// The flash memory is too small for the requested disk.
    #[error(transparent)]
    TooSmall(TooSmall),
    /// Too many blocks went bad: nothing can be written any more, all can be read.
    #[error("no block is left to write to: too many have gone bad; copy the disk to another one")]
    WornOut,
    /// After an earlier failure it is unknown which writes are durable; mount again.
    #[error("an earlier failure stopped the disk; mount it again to return to the last flush")]
    Stopped,
}

/// Result of a request.
pub type Result<T, E> = core::result::Result<T, FtlError<E>>;
