//! A device in a regular file or on a partition.
//!
//! Requests go straight to the kernel (`preadv`, `pwritev`, `fdatasync`, `fallocate`),
//! through its page cache or, with [`Direct`], around it. What this module promises:
//!
//! * **Nobody else writes.** A device opened for writing holds an exclusive `flock`, one
//!   opened for reading a shared one; both hold against other processes and against a
//!   second open in this one. A partition is also claimed with `O_EXCL`, which keeps the
//!   kernel from mounting it meanwhile.
//! * **A failed flush stays failed.** After a failed `fdatasync` the kernel marks the lost
//!   pages clean and reports success the next time. The device therefore repeats the first
//!   failure for ever; only opening it again shows what the medium really holds.
//! * **Any buffer will do.** With `O_DIRECT`, buffers that are not aligned to a block take a
//!   detour through aligned ones; aligned buffers ([`BlockBuf`]) are handed on as they are.

use crate::{
    BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, Result,
    check_count, check_range, check_segments,
};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr as retry};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Blocks in a bounce buffer (256 KiB).
const BOUNCE_BLOCKS: usize = 64;
/// Bounce buffers kept for the next request.
const BOUNCE_BUFFERS_MAX: usize = 4;
/// Segments handed to the kernel in one call.
const IOV_MAX: usize = 64;

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

/// How to open a [`FileDevice`].
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Refuse writes; needs no write permission and shares the device with other readers.
    pub read_only: bool,
    /// Whether to go around the page cache.
    pub direct: Direct,
    /// Whether to lock the device. Leave it on unless the host file system cannot lock.
    pub lock: bool,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions {
            read_only: false,
            direct: Direct::Off,
            lock: true,
        }
    }
}

/// A regular file or a block device as a [`BlockDevice`].
pub struct FileDevice {
    fd: LockedFd,
    path: PathBuf,
    blocks: u64,
    read_only: bool,
    direct: bool,
    direct_refusal: Option<Arc<io::Error>>,
    bounce: Mutex<Vec<BlockBuf>>,
    /// The first flush that failed; every later one repeats it.
    flush_failure: OnceLock<DeviceError>,
}

impl FileDevice {
    /// Opens a regular file or a block device. A trailing part that is no whole block is
    /// left alone.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] if the device is in use; [`DeviceError::Open`] if it cannot
    /// be opened, is neither a file nor a block device, cannot be locked, or cannot be
    /// accessed directly though [`Direct::Require`] was asked for.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<FileDevice> {
        let path = path.as_ref();
        // Looked at before it is opened: opening a fifo would wait for its other end.
        let stat = rustix::fs::stat(path).map_err(|errno| open_error(path, errno))?;
        let kind = Kind::of(path, FileType::from_raw_mode(stat.st_mode))?;
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
        flags |= if options.read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        if kind == Kind::BlockDevice && options.lock && !options.read_only {
            flags |= OFlags::EXCL;
        }
        let fd = match retry(|| rustix::fs::open(path, flags, Mode::empty())) {
            Err(Errno::BUSY) => return Err(locked(path)),
            result => result.map_err(|errno| open_error(path, errno))?,
        };
        let fd = if options.lock {
            LockedFd::lock(fd, path, options.read_only)?
        } else {
            LockedFd { fd, locked: false }
        };
        FileDevice::from_locked(fd, path, options)
    }

    /// Makes an image file of exactly `blocks` blocks (readable by its owner only, since it
    /// will hold other people's files), or gives an existing file that size, and opens it
    /// buffered, locked, for writing. New blocks read as zeros; old ones keep their bytes.
    /// The file's size and directory entry are durable on return.
    ///
    /// Unless `force` is set, an existing file must hold no data (empty or one hole). A
    /// block device needs `force` and at least `blocks` blocks; it keeps its size.
    ///
    /// # Errors
    /// As for [`open`](FileDevice::open), or if the file holds data and `force` is not set,
    /// or the host file system has no room for it; a file made by this call is then removed.
    pub fn create(path: impl AsRef<Path>, blocks: u64, force: bool) -> Result<FileDevice> {
        let path = path.as_ref();
        let bytes = (blocks.checked_mul(BLOCK_SIZE as u64))
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or_else(|| open_error(path, Errno::FBIG))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match retry(|| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)) {
            Ok(fd) => {
                let made = LockedFd::lock(fd, path, false).and_then(|fd| resize(fd, path, bytes));
                if made.is_err() {
                    // Best effort: the first error is the one to report.
                    let _ = rustix::fs::unlink(path);
                }
                made
            }
            Err(Errno::EXIST) => FileDevice::reuse(path, blocks, bytes, force),
            Err(errno) => Err(open_error(path, errno)),
        }
    }

    /// The part of [`create`](FileDevice::create) that finds something at `path`.
    fn reuse(path: &Path, blocks: u64, bytes: u64, force: bool) -> Result<FileDevice> {
        let device = FileDevice::open(path, &FileOptions::default())?;
        let stat = rustix::fs::fstat(&device.fd).map_err(|errno| open_error(path, errno))?;
        if Kind::of(path, FileType::from_raw_mode(stat.st_mode))? == Kind::BlockDevice {
            if !force {
                let what = "is a block device, whose contents would be lost; force it if they may";
                return Err(refusal(path, io::ErrorKind::AlreadyExists, what));
            }
            if device.blocks < blocks {
                let what = format!("holds {} blocks, fewer than the {blocks}", device.blocks);
                return Err(refusal(path, io::ErrorKind::InvalidInput, &what));
            }
            return Ok(device);
        }
        if !force && holds_data(&device.fd, stat.st_size) {
            let what = "exists and holds data, which would be lost; force it if it may";
            return Err(refusal(path, io::ErrorKind::AlreadyExists, what));
        }
        resize(device.fd, path, bytes)
    }

    /// Takes over an open and, if asked for, locked descriptor.
    fn from_locked(fd: LockedFd, path: &Path, options: &FileOptions) -> Result<FileDevice> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| open_error(path, errno))?;
        let bytes = match Kind::of(path, FileType::from_raw_mode(stat.st_mode))? {
            Kind::File => u64::try_from(stat.st_size).unwrap_or(0),
            Kind::BlockDevice => {
                rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(|errno| open_error(path, errno))?
            }
        };
        let mut device = FileDevice {
            fd,
            path: path.to_owned(),
            blocks: bytes / BLOCK_SIZE as u64,
            read_only: options.read_only,
            direct: false,
            direct_refusal: None,
            bounce: Mutex::default(),
            flush_failure: OnceLock::new(),
        };
        if options.direct != Direct::Off {
            match device.go_direct() {
                Ok(()) => device.direct = true,
                Err(error) if options.direct == Direct::Require => {
                    let what = format!(
                        "cannot be accessed directly (O_DIRECT: {error}): \
                         open it buffered, or move it to a file system that can"
                    );
                    return Err(refusal(path, io::ErrorKind::Unsupported, &what));
                }
                Err(error) => device.direct_refusal = Some(Arc::new(error)),
            }
        }
        Ok(device)
    }

    /// Switches the descriptor to `O_DIRECT` and tries it out: some file systems accept the
    /// flag and refuse the requests.
    fn go_direct(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::DIRECT)?;
        if self.blocks == 0 {
            return Ok(());
        }
        let mut probe = BlockBuf::zeroed(1);
        self.read_at(probe.as_bytes_mut(), 0).or_else(|error| {
            rustix::fs::fcntl_setfl(&self.fd, flags)?;
            // A medium that cannot be read is not a refusal: the reader will be told.
            if error.raw_os_error() == Some(Errno::IO.raw_os_error()) {
                Ok(())
            } else {
                Err(error)
            }
        })
    }

    /// What was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether requests go around the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Why requests go through the page cache though [`Direct::Prefer`] was asked for.
    #[must_use]
    pub fn direct_refusal(&self) -> Option<&io::Error> {
        self.direct_refusal.as_deref()
    }

    /// Writes zeros to the blocks of `range`, for real: see [`prewrite`](crate::prewrite()).
    ///
    /// # Errors
    /// As for [`write`](BlockDevice::write) and [`flush`](BlockDevice::flush).
    pub fn prewrite(&self, range: Range<BlockNo>, progress: &mut dyn FnMut(u64)) -> Result<()> {
        crate::prewrite(self, range, progress)
    }

    /// Reads exactly `buf.len()` bytes from byte `offset` on.
    fn read_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match retry(|| rustix::io::pread(&self.fd, &mut *buf, offset))? {
                0 => {
                    let what = "the file ends here: it was cut short while open";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                n => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }

    /// Writes all of `segments` from byte `offset` on; returns the offset behind them.
    fn write_at(&self, segments: &[&[u8]], mut offset: u64) -> io::Result<u64> {
        for group in segments.chunks(IOV_MAX) {
            let mut iov = [IoSlice::new(&[]); IOV_MAX];
            let mut used = 0;
            for segment in group.iter().filter(|segment| !segment.is_empty()) {
                iov[used] = IoSlice::new(segment);
                used += 1;
            }
            let mut left = &mut iov[..used];
            while !left.is_empty() {
                match retry(|| rustix::io::pwritev(&self.fd, left, offset))? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    n => {
                        IoSlice::advance_slices(&mut left, n);
                        offset += n as u64;
                    }
                }
            }
        }
        Ok(offset)
    }

    /// Runs `work` with an aligned buffer of [`BOUNCE_BLOCKS`].
    fn with_bounce<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let kept = self
            .bounce
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut buffer = kept.unwrap_or_else(|| BlockBuf::zeroed(BOUNCE_BLOCKS));
        let result = work(buffer.as_bytes_mut());
        let mut pool = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.len() < BOUNCE_BUFFERS_MAX {
            pool.push(buffer);
        }
        result
    }

    fn read_bounced(&self, buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        self.with_bounce(|bounce| {
            for part in buf.chunks_mut(bounce.len()) {
                let bounce = &mut bounce[..part.len()];
                self.read_at(bounce, offset)?;
                part.copy_from_slice(bounce);
                offset += part.len() as u64;
            }
            Ok(())
        })
    }

    fn write_bounced(&self, segments: &[&[u8]], mut offset: u64) -> io::Result<u64> {
        self.with_bounce(|bounce| {
            let mut filled = 0;
            // Segments are whole blocks, so the buffer is only ever sent in whole blocks.
            for block in segments
                .iter()
                .flat_map(|segment| segment.chunks(BLOCK_SIZE))
            {
                bounce[filled..filled + block.len()].copy_from_slice(block);
                filled += block.len();
                if filled == bounce.len() {
                    offset = self.write_at(&[&*bounce], offset)?;
                    filled = 0;
                }
            }
            self.write_at(&[&bounce[..filled]], offset)
        })
    }

    /// Keeps the first failure and repeats it, whatever the kernel says later.
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
        let offset = at.0 * BLOCK_SIZE as u64;
        let outcome = if self.direct && !is_aligned(buf) {
            self.read_bounced(buf, offset)
        } else {
            self.read_at(buf, offset)
        };
        outcome.map_err(|error| io_error(DeviceOp::Read, at, count, error))
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        self.refuse_if_read_only(DeviceOp::Write)?;
        let count = check_segments(at, segments, self.blocks)?;
        let offset = at.0 * BLOCK_SIZE as u64;
        let outcome = if self.direct && !segments.iter().all(|segment| is_aligned(segment)) {
            self.write_bounced(segments, offset)
        } else {
            self.write_at(segments, offset)
        };
        outcome
            .map(drop)
            .map_err(|error| io_error(DeviceOp::Write, at, count, error))
    }

    fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.sticky_flush(retry(|| rustix::fs::fdatasync(&self.fd)).map_err(Into::into))
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
        match retry(|| rustix::fs::fallocate(&self.fd, how, offset, len)) {
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
            .field("direct", &self.direct)
            .finish_non_exhaustive()
    }
}

/// What a device can live in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    BlockDevice,
}

impl Kind {
    fn of(path: &Path, found: FileType) -> Result<Kind> {
        let what = match found {
            FileType::RegularFile => return Ok(Kind::File),
            FileType::BlockDevice => return Ok(Kind::BlockDevice),
            FileType::Directory => "is a directory, not an image file or a block device",
            FileType::CharacterDevice => "is a character device, not a file or a block device",
            _ => "is neither an image file nor a block device",
        };
        Err(refusal(path, io::ErrorKind::InvalidInput, what))
    }
}

/// An open file and the lock on it. The lock belongs to the open file, not to the process:
/// a second open in this process is refused, too.
struct LockedFd {
    fd: OwnedFd,
    locked: bool,
}

impl LockedFd {
    fn lock(fd: OwnedFd, path: &Path, shared: bool) -> Result<LockedFd> {
        let how = if shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        match retry(|| rustix::fs::flock(&fd, how)) {
            Ok(()) => Ok(LockedFd { fd, locked: true }),
            Err(Errno::WOULDBLOCK) => Err(locked(path)),
            Err(errno) => {
                let what = format!("cannot be locked against other users ({errno})");
                Err(refusal(path, io::ErrorKind::Unsupported, &what))
            }
        }
    }
}

impl Drop for LockedFd {
    /// Closing alone would leave the lock to a child process that was forked meanwhile and
    /// has not yet run its program.
    fn drop(&mut self) {
        if self.locked {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

impl AsFd for LockedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Gives a locked file its size, makes that and its name durable, and opens it.
fn resize(fd: LockedFd, path: &Path, bytes: u64) -> Result<FileDevice> {
    let sized = retry(|| rustix::fs::ftruncate(&fd, bytes))
        .and_then(|()| retry(|| rustix::fs::fsync(&fd)))
        .and_then(|()| {
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let parent = parent.unwrap_or(Path::new("."));
            match retry(|| rustix::fs::open(parent, flags, Mode::empty())) {
                Ok(parent) => retry(|| rustix::fs::fsync(&parent)),
                // A directory that may be written but not read cannot be synced by us.
                Err(Errno::ACCESS) => Ok(()),
                Err(errno) => Err(errno),
            }
        });
    sized.map_err(|errno| open_error(path, errno))?;
    FileDevice::from_locked(fd, path, &FileOptions::default())
}

/// Whether anything was ever written to a file, as far as its file system can tell.
fn holds_data(fd: &LockedFd, bytes: i64) -> bool {
    bytes > 0 && rustix::fs::seek(fd, SeekFrom::Data(0)) != Err(Errno::NXIO)
}

fn is_aligned(buf: &[u8]) -> bool {
    buf.as_ptr().addr().is_multiple_of(BLOCK_SIZE)
}

fn io_error(op: DeviceOp, at: BlockNo, count: u64, error: io::Error) -> DeviceError {
    DeviceError::Io {
        op,
        at,
        count,
        source: Arc::new(error),
    }
}

fn open_error(path: &Path, errno: Errno) -> DeviceError {
    DeviceError::Open {
        path: path.display().to_string(),
        source: Arc::new(errno.into()),
    }
}

fn refusal(path: &Path, kind: io::ErrorKind, what: &str) -> DeviceError {
    let source = Arc::new(io::Error::new(kind, what.to_owned()));
    DeviceError::Open {
        path: path.display().to_string(),
        source,
    }
}

fn locked(path: &Path) -> DeviceError {
    DeviceError::Locked {
        path: path.display().to_string(),
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
