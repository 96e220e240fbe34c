//! A device in a regular file or on a partition.
//!
//! Requests go through the kernel's page cache or, with [`Direct`], around it. Single ones go
//! straight from the caller's thread (`pread`, `pwritev`, `fdatasync`, `fallocate`), scattered
//! ones by an [`Engine`]: the caller's thread, a pool of threads, or io_uring. This module
//! promises:
//!
//! * **No other process writes.** A device opened for writing holds an exclusive `flock`, one
//!   opened for reading a shared one; both hold against other processes and against a
//!   second open in this one, and against other hosts where the file system passes locks on
//!   (NFS does by default). A partition is also claimed with `O_EXCL`, which keeps the kernel
//!   from mounting it meanwhile.
//! * **A failed flush stays failed.** After a failed `fdatasync` the kernel marks the lost
//!   pages clean and reports success the next time. The device therefore repeats the first
//!   failure for ever; only opening it again shows what the medium really holds.
//! * **A flush comes after the writes that it covers.** A request returns, with any engine, failed or
//!   not, when nothing of it is in flight any more. So no buffer is used after that, and a flush that is
//!   called later covers it.
//! * **Any buffer will do.** With `O_DIRECT`, buffers that are not aligned to a block take a
//!   detour through aligned ones; aligned buffers ([`crate::BlockBuf`]) are handed on as they are.

mod batch;
mod cache;
mod engine;
mod holder;
mod locked;
mod open;
mod rings;
mod threads;
mod transfer;
mod uring;

pub use cache::WriteCache;
pub use engine::Engine;
pub use holder::{Holder, holders};

use crate::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, Result, check_count,
    check_range, check_reads, check_segments, check_writes,
};
use engine::Backend;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr as retry};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use transfer::Medium;

/// Whether requests go around the kernel's page cache (`O_DIRECT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direct {
    /// Through the page cache.
    #[default]
    Off,
    /// Around the page cache where the host file system can do it, through it where not:
    /// [`FileDevice::is_direct`] and [`FileDevice::direct_refusal`] tell which.
    Prefer,
    /// Around the page cache, or the device is not opened.
    Require,
}

/// Options for opening a [`FileDevice`].
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Refuse writes; needs no write permission and shares the device with other readers.
    pub read_only: bool,
    /// Whether to go around the page cache.
    pub direct: Direct,
    /// Whether to lock the device. Leave it on unless the host file system cannot lock.
    pub lock: bool,
    /// Engine for scattered requests. Where the system refuses it, the next best is used
    /// instead: see [`FileDevice::engine`] and [`FileDevice::engine_refusal`].
    pub engine: Engine,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions {
            read_only: false,
            direct: Direct::Off,
            lock: true,
            engine: Engine::Auto,
        }
    }
}

/// A regular file or a block device as a [`BlockDevice`].
pub struct FileDevice {
    medium: Medium,
    backend: Backend,
    path: PathBuf,
    blocks: u64,
    read_only: bool,
    direct_refusal: Option<io::Error>,
    engine_refusal: Option<io::Error>,
    /// The first flush that failed; every later one repeats it.
    flush_failure: OnceLock<DeviceError>,
}

impl FileDevice {
    /// Path of the file or partition.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether requests go around the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.medium.direct
    }

    /// Reason why requests go through the page cache though [`Direct::Prefer`] was asked for.
    #[must_use]
    pub fn direct_refusal(&self) -> Option<&io::Error> {
        self.direct_refusal.as_ref()
    }

    /// The engine that is at work: never [`Engine::Auto`].
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.backend.engine()
    }

    /// Reason why another engine is at work than the requested one, and a remedy.
    #[must_use]
    pub fn engine_refusal(&self) -> Option<&io::Error> {
        self.engine_refusal.as_ref()
    }

    /// The kernel's view of the disk's volatile cache; see [`WriteCache`] for its meaning.
    /// [`Geometry::volatile_cache`] does not depend on it and stays on the safe side.
    #[must_use]
    pub fn write_cache(&self) -> WriteCache {
        rustix::fs::fstat(&self.medium.fd).map_or(WriteCache::Unknown, |stat| {
            cache::write_cache(Path::new("/sys"), &stat)
        })
    }

    /// Writes zeros to the blocks of `range`, for real: see [`prewrite`](crate::prewrite()).
    ///
    /// # Errors
    /// As for [`write`](BlockDevice::write) and [`flush`](BlockDevice::flush).
    pub fn prewrite(&self, range: Range<BlockNo>, progress: &mut dyn FnMut(u64)) -> Result<()> {
        crate::prewrite(self, range, progress)
    }

    /// Keeps the first failure and repeats it, also if later flushes succeed.
    fn sticky_flush(&self, outcome: io::Result<()>) -> Result<()> {
        if let Err(error) = outcome {
            let failure = io_error(DeviceOp::Flush, BlockNo(0), self.blocks, error);
            let _ = self.flush_failure.set(failure);
        }
        match self.flush_failure.get() {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    fn refuse_if_read_only(&self, op: DeviceOp) -> Result<()> {
        if self.read_only {
            Err(DeviceError::ReadOnly { op })
        } else {
            Ok(())
        }
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks,
            volatile_cache: true,
            read_only: self.read_only,
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        let count = check_range(DeviceOp::Read, at, buf.len(), self.blocks)?;
        let outcome = self.medium.read(buf, at.0 * BLOCK_SIZE as u64);
        outcome.map_err(|error| io_error(DeviceOp::Read, at, count, error))
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        self.refuse_if_read_only(DeviceOp::Write)?;
        let count = check_segments(at, segments, self.blocks)?;
        let outcome = self.medium.write(segments, at.0 * BLOCK_SIZE as u64);
        outcome.map_err(|error| io_error(DeviceOp::Write, at, count, error))
    }

    fn read_scattered(&self, reads: &mut [(BlockNo, &mut [u8])]) -> Result<()> {
        check_reads(reads, self.blocks)?;
        self.backend.read(&self.medium, reads).map_err(|failure| {
            let (at, buf) = &reads[failure.part];
            let count = (buf.len() / BLOCK_SIZE) as u64;
            io_error(DeviceOp::Read, *at, count, failure.error)
        })
    }

    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> Result<()> {
        self.refuse_if_read_only(DeviceOp::Write)?;
        check_writes(writes, self.blocks)?;
        self.backend.write(&self.medium, writes).map_err(|failure| {
            let (at, segments) = writes[failure.part];
            let bytes: usize = segments.iter().map(|segment| segment.len()).sum();
            let count = (bytes / BLOCK_SIZE) as u64;
            io_error(DeviceOp::Write, at, count, failure.error)
        })
    }

    fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.sticky_flush(retry(|| rustix::fs::fdatasync(&self.medium.fd)).map_err(Into::into))
    }

    /// Punches a hole (on a block device: unmaps) where the host can, and is ignored where not.
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.refuse_if_read_only(DeviceOp::Discard)?;
        check_count(DeviceOp::Discard, at, count, self.blocks)?;
        if count == 0 {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (offset, len) = (at.0 * BLOCK_SIZE as u64, count * BLOCK_SIZE as u64);
        match retry(|| rustix::fs::fallocate(&self.medium.fd, how, offset, len)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => Ok(()),
            Err(errno) => Err(io_error(DeviceOp::Discard, at, count, errno.into())),
        }
    }
}

impl std::fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileDevice")
            .field("path", &self.path)
            .field("blocks", &self.blocks)
            .field("read_only", &self.read_only)
            .field("direct", &self.medium.direct)
            .field("engine", &self.backend.engine())
            .finish_non_exhaustive()
    }
}

fn io_error(op: DeviceOp, at: BlockNo, count: u64, error: io::Error) -> DeviceError {
    DeviceError::Io {
        op,
        at,
        count,
        source: Arc::new(error),
    }
}

#[cfg(test)]
mod engine_tests;
#[cfg(test)]
mod tests;
