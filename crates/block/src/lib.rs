//! Block devices: the only seam between Steadfast and a medium.
//!
//! Everything above speaks [`BlockDevice`]: blocks of 4 KiB, reads and writes of
//! runs of blocks, and `flush`. The contract is the weakest that real disks keep:
//!
//! * a write that has *returned* may still sit in a volatile cache;
//! * a [`flush`](BlockDevice::flush) makes durable every write that had returned
//!   before the flush was called, and nothing else is promised by it;
//! * unflushed writes survive a power cut in any subset and any order, and each
//!   512-byte sector of them survives on its own;
//! * a failed write or flush leaves every block it concerned with either content.
//!
//! Backends: [`MemDevice`] (memory), [`FileDevice`] (a regular file or a partition,
//! buffered or `O_DIRECT`, exclusively locked, with a choice of [`Engine`]s). The crate `steadfast-sim` has a
//! device that records, reorders, tears and fails on purpose.
//!
//! A device that acknowledges a flush and ignores it breaks the contract, and no program can
//! tell. [`FileDevice::write_cache`] gives the kernel's view of a disk's cache.

mod buf;
mod file;
mod freeze;
mod mem;

pub use buf::{AlignedBlock, BlockBuf};
pub use file::{Direct, Engine, FileDevice, FileOptions, Holder, WriteCache, holders};
pub use freeze::Freezer;
pub use mem::MemDevice;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Size of a block in bytes: the unit of addressing everywhere above this crate.
pub const BLOCK_SIZE: usize = 4096;
/// Size of a sector in bytes: the unit that a power cut never splits.
pub const SECTOR_SIZE: usize = 512;

/// The bytes of one block.
pub type Block = [u8; BLOCK_SIZE];

/// Address of a block on its device, in units of [`BLOCK_SIZE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockNo(pub u64);

impl BlockNo {
    /// The block `n` blocks further on.
    #[must_use]
    pub fn offset(self, n: u64) -> BlockNo {
        BlockNo(self.0 + n)
    }
}

impl fmt::Debug for BlockNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl fmt::Display for BlockNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of blocks; addresses run from 0 to `blocks - 1`.
    pub blocks: u64,
    /// Whether completed writes may be lost before a flush.
    pub volatile_cache: bool,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// The operation at which a device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOp {
    /// Opening or locking the device.
    Open,
    /// Reading blocks.
    Read,
    /// Writing blocks.
    Write,
    /// Flushing the volatile cache.
    Flush,
    /// Discarding blocks.
    Discard,
}

impl fmt::Display for DeviceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceOp::Open => "open",
            DeviceOp::Read => "read",
            DeviceOp::Write => "write",
            DeviceOp::Flush => "flush",
            DeviceOp::Discard => "discard",
        })
    }
}

/// A request that a device could not carry out. Cheap to clone: a sticky error is
/// reported many times.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The medium or its driver failed.
    #[error("{op} of {count} block(s) at block {at} failed: {source}")]
    Io {
        /// Operation that failed.
        op: DeviceOp,
        /// First block concerned.
        at: BlockNo,
        /// Number of blocks concerned.
        count: u64,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// The request reaches beyond the device.
    #[error("{op} of {count} block(s) at block {at} reaches beyond the device of {blocks} blocks")]
    OutOfRange {
        /// Operation that failed.
        op: DeviceOp,
        /// First block concerned.
        at: BlockNo,
        /// Number of blocks concerned.
        count: u64,
        /// Size of the device.
        blocks: u64,
    },
    /// The buffer is not a whole number of blocks.
    #[error("{op} with a buffer of {bytes} bytes, which is no whole number of blocks")]
    Misaligned {
        /// Operation that failed.
        op: DeviceOp,
        /// Length of the buffer.
        bytes: usize,
    },
    /// The device is open for reading only.
    #[error("{op} refused: the device is open read-only")]
    ReadOnly {
        /// Operation that failed.
        op: DeviceOp,
    },
    /// The device is in use by another process (or twice in this one).
    #[error("{path} is in use by another process")]
    Locked {
        /// Path of the device.
        path: String,
    },
    /// The device could not be opened.
    #[error("{path}: {source}")]
    Open {
        /// Path of the device.
        path: String,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
}

impl DeviceError {
    /// The system's error number, where there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            DeviceError::Io { source, .. } | DeviceError::Open { source, .. } => {
                source.raw_os_error()
            }
            _ => None,
        }
    }
}

/// Result of a device request.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// A disk. See the crate's header for the promises of `write` and `flush`.
///
/// Requests may come from several threads at once; overlapping writes in flight
/// at the same time land in any order, so callers keep them apart.
pub trait BlockDevice: Send + Sync + 'static {
    /// Size and nature of the device. O(1).
    fn geometry(&self) -> Geometry;

    /// Reads `buf.len() / BLOCK_SIZE` blocks from `at` on.
    ///
    /// # Errors
    /// [`DeviceError::Misaligned`], [`DeviceError::OutOfRange`], or the medium's error;
    /// `buf` is then undefined.
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()>;

    /// Writes the segments one after another from block `at` on. Each segment is a
    /// whole number of blocks. Returns when the device has taken the data, which
    /// does not make it durable.
    ///
    /// # Errors
    /// As for `read`; after an error each block concerned holds its old bytes, the
    /// new ones, or a mixture by sectors.
    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()>;

    /// Reads scattered runs of blocks, all of them at once where the device can. Returns when
    /// none is in flight any more, also after an error.
    ///
    /// # Errors
    /// As for `read`, of the first part in the order of the batch that failed; all the
    /// buffers are then undefined. A batch that reaches beyond the device is refused whole.
    fn read_scattered(&self, reads: &mut [(BlockNo, &mut [u8])]) -> Result<()> {
        check_reads(reads, self.geometry().blocks)?;
        (reads.iter_mut()).try_for_each(|(at, buf)| self.read(*at, buf))
    }

    /// Writes scattered runs of blocks, each as by `write`, all of them at once where the
    /// device can, in any order. Parts of one batch must not overlap. Returns when none is in
    /// flight any more, also after an error: a flush called then covers them.
    ///
    /// # Errors
    /// As for `write`, of the first part in the order of the batch that failed; of the others
    /// some are then written and some are not. A batch that reaches beyond the device is
    /// refused whole.
    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> Result<()> {
        check_writes(writes, self.geometry().blocks)?;
        (writes.iter()).try_for_each(|(at, segments)| self.write(*at, segments))
    }

    /// Makes durable every write that returned before this call.
    ///
    /// # Errors
    /// After an error nothing is known of the writes since the last successful flush.
    fn flush(&self) -> Result<()>;

    /// Tells the device that the blocks' contents are no longer needed; reads may
    /// return anything afterwards. A hint: a device may ignore it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] or the medium's error.
    fn discard(&self, at: BlockNo, count: u64) -> Result<()>;

    /// Called at a clean shutdown, after the last flush: a device may make its next opening
    /// quicker now. Its content, and the state that it returns to after a crash, stay the same, even if that fails.
    fn finish(&self) {}

    /// Waits until all acknowledged flushes have reached their final place. A device that acknowledges a flush when a cache
    /// has it passes it on later; others have nothing to wait for.
    ///
    /// # Errors
    /// The medium's error.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Counters of the device, by name. Those that end in `_now` go up and down.
    fn statistics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// The device, if it promises more of a crash: see [`Snapshot`].
    fn snapshot(&self) -> Option<&dyn Snapshot> {
        None
    }
}

/// An epoch that was closed: see [`Snapshot::close_epoch`]. Later epochs of a device have larger numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A device with the contract *snapshot*: after a crash it has the state of its last flush, nothing
/// older and nothing newer. The writes between two flushes are an *epoch*.
///
/// A flush is two steps: [`close_epoch`](Self::close_epoch), [`wait`](Self::wait). Between them, later epochs can be
/// written and closed. A crash then leaves the end of an epoch that was waited for, or of a later one that was closed:
/// epochs become durable whole and in order.
pub trait Snapshot {
    /// Blocks that may be written in an epoch; a write beyond them is refused whole.
    fn epoch_blocks(&self) -> u64;

    /// Blocks that the current epoch still has room for. A [`BlockDevice::discard`] takes one, however long.
    fn room(&self) -> u64;

    /// Closes the epoch under way: writes after this call belong to the next one. The epoch has all writes that
    /// returned before the call. Waits while the device has as many epochs on their way as it can.
    ///
    /// # Errors
    /// The medium's error; no later epoch becomes durable.
    fn close_epoch(&self) -> Result<Ticket>;

    /// Waits until an epoch, and all before it, are durable.
    ///
    /// # Errors
    /// The medium's error; no later epoch becomes durable.
    fn wait(&self, epoch: Ticket) -> Result<()>;

    /// Keeps some bytes that are no block with the epoch under way: a crash that leaves the epoch leaves them, any other does
    /// not. A device without a place for them drops them.
    fn note(&self, note: &[u8]) {
        let _ = note;
    }

    /// Forgets the writes since the last epoch was closed, as a crash after which all others are durable. A caller that
    /// relies on the contract calls it before the first read: a client that died is no crash of the device.
    ///
    /// # Errors
    /// The medium's error; the device is then of no use any more.
    fn rollback(&self) -> Result<()>;
}

/// Checks that `bytes` from `at` on are whole blocks inside `blocks`; returns how many.
///
/// # Errors
/// [`DeviceError::Misaligned`], [`DeviceError::OutOfRange`].
pub fn check_range(op: DeviceOp, at: BlockNo, bytes: usize, blocks: u64) -> Result<u64> {
    if !bytes.is_multiple_of(BLOCK_SIZE) {
        return Err(DeviceError::Misaligned { op, bytes });
    }
    let count = (bytes / BLOCK_SIZE) as u64;
    check_count(op, at, count, blocks)?;
    Ok(count)
}

/// Checks that `count` blocks from `at` on lie inside `blocks`.
///
/// # Errors
/// [`DeviceError::OutOfRange`].
pub fn check_count(op: DeviceOp, at: BlockNo, count: u64, blocks: u64) -> Result<()> {
    match at.0.checked_add(count) {
        Some(end) if end <= blocks => Ok(()),
        _ => Err(DeviceError::OutOfRange {
            op,
            at,
            count,
            blocks,
        }),
    }
}

/// Checks that every segment of a write is whole blocks and that all of them lie inside
/// `blocks`; returns the number of blocks.
///
/// # Errors
/// [`DeviceError::Misaligned`], [`DeviceError::OutOfRange`].
pub fn check_segments(at: BlockNo, segments: &[&[u8]], blocks: u64) -> Result<u64> {
    let op = DeviceOp::Write;
    let mut total = 0;
    for segment in segments {
        if !segment.len().is_multiple_of(BLOCK_SIZE) {
            return Err(DeviceError::Misaligned {
                op,
                bytes: segment.len(),
            });
        }
        total += (segment.len() / BLOCK_SIZE) as u64;
    }
    check_count(op, at, total, blocks)?;
    Ok(total)
}

/// Checks every part of a scattered read.
pub(crate) fn check_reads(reads: &[(BlockNo, &mut [u8])], blocks: u64) -> Result<()> {
    (reads.iter())
        .try_for_each(|(at, buf)| check_range(DeviceOp::Read, *at, buf.len(), blocks).map(drop))
}

/// Checks every part of a scattered write. That they are disjoint is the caller's duty.
///
/// # Errors
/// As [`check_segments`].
pub fn check_writes(writes: &[(BlockNo, &[&[u8]])], blocks: u64) -> Result<()> {
    for (at, segments) in writes {
        check_segments(*at, segments, blocks)?;
    }
    debug_assert!(are_disjoint(writes), "parts of a scattered write overlap");
    Ok(())
}

fn are_disjoint(writes: &[(BlockNo, &[&[u8]])]) -> bool {
    let mut parts: Vec<(u64, u64)> = writes
        .iter()
        .map(|(at, segments)| {
            let bytes: usize = segments.iter().map(|segment| segment.len()).sum();
            (at.0, at.0 + (bytes / BLOCK_SIZE) as u64)
        })
        .filter(|(start, end)| start < end)
        .collect();
    parts.sort_unstable();
    parts.is_sorted_by(|a, b| a.1 <= b.0)
}

/// Writes zeros to the blocks of `range`, really, and flushes them; `progress` gets the number
/// of blocks done after each step. Formatting does this to the log region, so that no commit
/// ever waits for the host file system to allocate a block.
///
/// # Errors
/// [`DeviceError::OutOfRange`], or the medium's error.
pub fn prewrite(
    device: &dyn BlockDevice,
    range: Range<BlockNo>,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    /// 1 MiB at a time: long enough to stream, short enough to report progress.
    const STEP_BLOCKS: u64 = 256;
    let total = range.end.0.saturating_sub(range.start.0);
    check_count(
        DeviceOp::Write,
        range.start,
        total,
        device.geometry().blocks,
    )?;
    let zeros = BlockBuf::zeroed(total.min(STEP_BLOCKS) as usize);
    let mut done = 0;
    while done < total {
        let count = (total - done).min(STEP_BLOCKS);
        let bytes = &zeros.as_bytes()[..count as usize * BLOCK_SIZE];
        device.write(range.start.offset(done), &[bytes])?;
        done += count;
        progress(done);
    }
    device.flush()
}
