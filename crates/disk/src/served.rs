//! Requests for any bytes of a disk. See the crate's header for their order.
//!
//! Invariants: whole blocks are written side by side (`edges` shared), parts of blocks alone
//! (`edges` exclusive). A flush takes no lock here, so that a write that waits for one gets it.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use steadfast_block::{BLOCK_SIZE, BlockBuf, BlockNo, DeviceError};
use steadfast_flash::FlashError;
use steadfast_ftl::{DiskError, FtlError, cause};
use steadfast_vfs::Errno;

use crate::medium::Medium;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It reaches beyond the disk. Nothing was done.
    #[error("{count} bytes from {offset} on reach beyond the disk of {bytes} bytes")]
    PastEnd {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        count: u64,
        /// Size of the disk.
        bytes: u64,
    },
    /// The disk refused or failed.
    #[error(transparent)]
    Disk(#[from] DeviceError),
    /// The disk could not go back to its last flush.
    #[error("returning to the last flush: {0}")]
    RollBack(#[from] DiskError),
}

impl Refusal {
    /// The number for the client.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Refusal::PastEnd { .. } => Errno::NoSpc,
            Refusal::RollBack(_) => Errno::Io,
            Refusal::Disk(error) => match (error, cause(error)) {
                (_, Some(FtlError::EpochFull { .. })) => Errno::NoSpc,
                (_, Some(FtlError::WornOut)) | (DeviceError::ReadOnly { .. }, _) => Errno::RoFs,
                (_, Some(FtlError::Flash(FlashError::Store(error)))) => match error.kind() {
                    std::io::ErrorKind::StorageFull => Errno::NoSpc,
                    _ => Errno::Io,
                },
                (DeviceError::OutOfRange { .. }, _) => Errno::NoSpc,
                (DeviceError::Misaligned { .. }, _) => Errno::Inval,
                _ => Errno::Io,
            },
        }
    }
}

/// A disk that takes requests for any bytes, from any number of threads.
pub struct ServedDisk {
    disk: Arc<dyn Medium>,
    bytes: u64,
    edges: RwLock<()>,
}

/// The whole blocks that hold a range of bytes.
struct Cover {
    blocks: Range<u64>,
    /// Bytes of the first block before the range, and of the last block after it.
    before: usize,
    behind: usize,
}

impl Cover {
    fn of(offset: u64, count: u64) -> Cover {
        let end = offset + count;
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        Cover {
            before: (offset % BLOCK) as usize,
            behind: (blocks.end * BLOCK - end) as usize,
            blocks,
        }
    }

    fn is_whole(&self) -> bool {
        self.before == 0 && self.behind == 0
    }
}

impl ServedDisk {
    /// Serves a disk.
    #[must_use]
    pub fn new(disk: Arc<dyn Medium>) -> ServedDisk {
        ServedDisk {
            bytes: disk.geometry().blocks * BLOCK,
            disk,
            edges: RwLock::new(()),
        }
    }

    /// Size of the disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.disk.geometry().read_only
    }

    /// Bytes that can be written from one flush to the next, in whole blocks.
    #[must_use]
    pub fn epoch_bytes(&self) -> u64 {
        self.disk.epoch_blocks() * BLOCK
    }

    fn check(&self, offset: u64, count: u64) -> Result<(), Refusal> {
        match offset.checked_add(count) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Refusal::PastEnd {
                offset,
                count,
                bytes: self.bytes,
            }),
        }
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`Refusal`]; `data` is then undefined.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Refusal> {
        self.check(offset, data.len() as u64)?;
        let cover = Cover::of(offset, data.len() as u64);
        if cover.is_whole() {
            return Ok(self.disk.read(BlockNo(cover.blocks.start), data)?);
        }
        let mut blocks = vec![0; cover.before + data.len() + cover.behind];
        self.disk.read(BlockNo(cover.blocks.start), &mut blocks)?;
        data.copy_from_slice(&blocks[cover.before..][..data.len()]);
        Ok(())
    }

    /// Writes bytes: to the layer as one request.
    ///
    /// # Errors
    /// [`Refusal`]. After [`Errno::NoSpc`] and [`Errno::RoFs`] nothing was written.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Refusal> {
        self.check(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        let cover = Cover::of(offset, data.len() as u64);
        if cover.is_whole() {
            let _whole = self.edges.read().unwrap_or_else(PoisonError::into_inner);
            return Ok(self.disk.write(BlockNo(cover.blocks.start), &[data])?);
        }
        let _alone = self.edges.write().unwrap_or_else(PoisonError::into_inner);
        self.write_parts(&cover, data)
    }

    /// The first and the last block as they are to be, around the bytes between them.
    fn write_parts(&self, cover: &Cover, data: &[u8]) -> Result<(), Refusal> {
        let Range { start, end } = cover.blocks;
        let (mut first, mut last) = (BlockBuf::zeroed(1), BlockBuf::zeroed(1));
        let mut rest = data;
        let mut segments: Vec<&[u8]> = Vec::with_capacity(3);
        if cover.before > 0 || end - start == 1 {
            let block = first.as_bytes_mut();
            self.disk.read(BlockNo(start), block)?;
            let (now, later) = data.split_at(data.len().min(BLOCK_SIZE - cover.before));
            block[cover.before..][..now.len()].copy_from_slice(now);
            rest = later;
            segments.push(first.as_bytes());
        }
        let tail = rest.len() % BLOCK_SIZE;
        let (whole, part) = rest.split_at(rest.len() - tail);
        if !whole.is_empty() {
            segments.push(whole);
        }
        if tail > 0 {
            let block = last.as_bytes_mut();
            self.disk.read(BlockNo(end - 1), block)?;
            block[..tail].copy_from_slice(part);
            segments.push(last.as_bytes());
        }
        Ok(self.disk.write(BlockNo(start), &segments)?)
    }

    /// Makes bytes read as zeros. Whole blocks become holes, which on this disk is no promise less: a
    /// hole's room cannot be taken by another. Parts of blocks are written. Three requests at most.
    ///
    /// # Errors
    /// As for [`write`](ServedDisk::write); some of it may have been done.
    pub fn zero(&self, offset: u64, count: u64) -> Result<(), Refusal> {
        self.check(offset, count)?;
        if count == 0 {
            return Ok(());
        }
        let end = offset + count;
        let (first, last) = (offset.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        if offset.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK) {
            let _whole = self.edges.read().unwrap_or_else(PoisonError::into_inner);
            return self.discard(first, last);
        }
        let zeros = [0; BLOCK_SIZE];
        let _alone = self.edges.write().unwrap_or_else(PoisonError::into_inner);
        let part = |from: u64, to: u64| {
            self.write_parts(&Cover::of(from, to - from), &zeros[..(to - from) as usize])
        };
        if first > last {
            // All of it lies in one block.
            return part(offset, end);
        }
        if offset < first {
            part(offset, first)?;
        }
        self.discard(first, last)?;
        if last < end {
            part(last, end)?;
        }
        Ok(())
    }

    /// Forgets bytes: whole blocks read as zeros afterwards, parts of blocks stay as they are.
    ///
    /// # Errors
    /// [`Refusal`]; nothing was forgotten.
    pub fn trim(&self, offset: u64, count: u64) -> Result<(), Refusal> {
        self.check(offset, count)?;
        let _whole = self.edges.read().unwrap_or_else(PoisonError::into_inner);
        self.discard(
            offset.next_multiple_of(BLOCK),
            (offset + count) / BLOCK * BLOCK,
        )
    }

    fn discard(&self, from: u64, to: u64) -> Result<(), Refusal> {
        if from < to {
            self.disk
                .discard(BlockNo(from / BLOCK), (to - from) / BLOCK)?;
        }
        Ok(())
    }

    /// Makes durable everything that was answered before this was called, in one step.
    ///
    /// # Errors
    /// [`Refusal`]; the disk has then stopped.
    pub fn flush(&self) -> Result<(), Refusal> {
        Ok(self.disk.flush()?)
    }

    /// For a clean shutdown, after the last flush: makes the next opening quicker. That it may fail
    /// changes nothing.
    pub fn finish(&self) {
        self.disk.finish();
    }

    /// The run of bytes of one kind that begins at `offset`: how long it is, and whether it is a
    /// hole. It ends at `end` at the latest.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn run(&self, offset: u64, end: u64) -> Result<(u64, bool), Refusal> {
        self.check(offset, end.saturating_sub(offset))?;
        let blocks = Cover::of(offset, end.saturating_sub(offset)).blocks;
        if blocks.is_empty() {
            return Ok((0, true));
        }
        let run = self.disk.run(BlockNo(blocks.start)..BlockNo(blocks.end))?;
        let to = ((blocks.start + run.blocks) * BLOCK).min(end);
        Ok((to.saturating_sub(offset), run.hole))
    }

    /// Forgets the writes since the last flush, as a crash would.
    ///
    /// # Errors
    /// [`Refusal::RollBack`]; the disk is then of no use any more.
    pub fn roll_back(&self) -> Result<(), Refusal> {
        let _alone = self.edges.write().unwrap_or_else(PoisonError::into_inner);
        Ok(self.disk.roll_back()?)
    }
}

impl std::fmt::Debug for ServedDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedDisk")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
