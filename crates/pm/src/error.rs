//! Errors of opening and creating regions.

use std::io;
use std::path::PathBuf;

use crate::PAGE_BYTES;

/// Shorthand for results with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Error of opening or creating a region. Every message names the file, the cause and, where there is one, the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Operation that failed.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file is open elsewhere, in another process or twice in this one.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file system cannot lock.
    #[error("cannot lock {} against other users: {source}", path.display())]
    NotLockable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Neither a regular file nor a DAX device.
    #[error(
        "{} is {found}, which cannot be mapped as persistent memory: \
         give a file on tmpfs or on a file system mounted with DAX, or a DAX device (/dev/daxX.Y)",
        path.display()
    )]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// Its kind.
        found: &'static str,
    },
    /// A file whose pages the kernel writes back by itself.
    #[error(
        "{} is not in persistent memory: its file system gives no synchronous mapping (MAP_SYNC), so the kernel could write \
         back half a cache line. Put it on tmpfs (/dev/shm), on a file system mounted with -o dax, or use a DAX device; or \
         open it read-only",
        path.display()
    )]
    NotPersistentMemory {
        /// The file.
        path: PathBuf,
    },
    /// The size is no multiple of a page.
    #[error(
        "{} has {bytes} bytes, which is no multiple of {unit}: it was cut off, or is not a region",
        path.display()
    )]
    UnevenSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Bytes of its pages.
        unit: u64,
    },
    /// Too small to be a region.
    #[error("{} has {bytes} bytes: a region needs at least {PAGE_BYTES}", path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its size, found or asked for.
        bytes: u64,
    },
    /// The file is shorter than its content says.
    #[error(
        "{} has {bytes} bytes, but its content needs {bytes_expected}: it was cut off. Restore its size from a backup; \
         enlarging it brings back no data",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size that its content needs.
        bytes_expected: u64,
    },
    /// A device cannot change its size.
    #[error("{} has {bytes} bytes, fewer than the {bytes_expected} asked for, and cannot grow", path.display())]
    DeviceTooSmall {
        /// The device.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size asked for.
        bytes_expected: u64,
    },
    /// Something with content stands where a region is to be created.
    #[error("{} {found}, which would be lost; force it if it may", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
        /// Its kind or content.
        found: &'static str,
    },
    /// The file system has no room for all pages of the file.
    #[error(
        "{} has {bytes} bytes, but its file system has no room for them all: a store could fail for lack of memory. Free \
         some, make the file system larger (mount -o remount,size=…), or open the file without reserving its pages",
        path.display()
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The processor has no instruction that writes a cache line back.
    #[error(
        "cannot open {} for writing: this processor has no instruction that writes a cache line back to memory; \
         read-only is possible",
        path.display()
    )]
    NoWriteBack {
        /// The file.
        path: PathBuf,
    },
}
