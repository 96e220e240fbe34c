//! Opening and creating the file or partition of a device.
//!
//! The lock is taken before anything is read or changed.

use super::engine::Backend;
use super::locked::{LockedFd, locked, open_error, refusal};
use super::rings::MakeRing;
use super::transfer::{Medium, read_fully};
use super::uring::Ring;
use super::{Direct, FileDevice, FileOptions};
use crate::{BLOCK_SIZE, BlockBuf, Result};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr as retry};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

impl FileDevice {
    /// Opens a regular file or a block device. A trailing part that is no whole block is
    /// left alone.
    ///
    /// # Errors
    /// [`Locked`](crate::DeviceError::Locked) if the device is in use; [`Open`](crate::DeviceError::Open) if it cannot
    /// be opened, is neither a file nor a block device, cannot be locked, or cannot be
    /// accessed directly though [`Direct::Require`] was asked for.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<FileDevice> {
        FileDevice::open_with(path.as_ref(), options, Ring::new)
    }

    /// As [`open`](FileDevice::open), with rings from elsewhere: or refusals, in tests.
    pub(super) fn open_with(
        path: &Path,
        options: &FileOptions,
        make_ring: MakeRing,
    ) -> Result<FileDevice> {
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
            LockedFd::unlocked(fd)
        };
        FileDevice::from_locked(Arc::new(fd), path, options, make_ring)
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
                let made = LockedFd::lock(fd, path, false)
                    .and_then(|fd| resize(Arc::new(fd), path, bytes));
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
        let stat = rustix::fs::fstat(&device.medium.fd).map_err(|errno| open_error(path, errno))?;
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
        if !force && holds_data(&device.medium.fd, stat.st_size) {
            let what = "exists and holds data, which would be lost; force it if it may";
            return Err(refusal(path, io::ErrorKind::AlreadyExists, what));
        }
        resize(device.medium.fd.clone(), path, bytes)
    }

    /// Takes over an open and, if asked for, locked descriptor.
    fn from_locked(
        fd: Arc<LockedFd>,
        path: &Path,
        options: &FileOptions,
        make_ring: MakeRing,
    ) -> Result<FileDevice> {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| open_error(path, errno))?;
        let bytes = match Kind::of(path, FileType::from_raw_mode(stat.st_mode))? {
            Kind::File => u64::try_from(stat.st_size).unwrap_or(0),
            Kind::BlockDevice => {
                rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(|errno| open_error(path, errno))?
            }
        };
        let blocks = bytes / BLOCK_SIZE as u64;
        let mut medium = Medium::buffered(fd);
        let mut direct_refusal = None;
        if options.direct != Direct::Off {
            match go_direct(&medium.fd, blocks) {
                Ok(()) => medium.direct = true,
                Err(error) if options.direct == Direct::Require => {
                    let what = format!(
                        "cannot be accessed directly (O_DIRECT: {error}): \
                         open it buffered, or move it to a file system that can"
                    );
                    return Err(refusal(path, io::ErrorKind::Unsupported, &what));
                }
                Err(error) => direct_refusal = Some(error),
            }
        }
        let (backend, engine_refusal) = Backend::start(options.engine, &medium, make_ring);
        Ok(FileDevice {
            medium,
            backend,
            path: path.to_owned(),
            blocks,
            read_only: options.read_only,
            direct_refusal,
            engine_refusal,
            flush_failure: OnceLock::new(),
        })
    }
}

/// Switches the descriptor to `O_DIRECT` and tries it out: some file systems accept the flag
/// and refuse the requests.
fn go_direct(fd: &LockedFd, blocks: u64) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT)?;
    if blocks == 0 {
        return Ok(());
    }
    let mut probe = BlockBuf::zeroed(1);
    read_fully(fd, probe.as_bytes_mut(), 0).or_else(|error| {
        rustix::fs::fcntl_setfl(fd, flags)?;
        // A medium that cannot be read is not a refusal: the read itself will fail.
        if error.raw_os_error() == Some(Errno::IO.raw_os_error()) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Kind of file that can hold a device.
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

/// Gives a locked file its size, makes that and its name durable, and opens it.
fn resize(fd: Arc<LockedFd>, path: &Path, bytes: u64) -> Result<FileDevice> {
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
    FileDevice::from_locked(fd, path, &FileOptions::default(), Ring::new)
}

/// Whether anything was ever written to a file, as far as its file system can tell.
fn holds_data(fd: &LockedFd, bytes: i64) -> bool {
    bytes > 0 && rustix::fs::seek(fd, SeekFrom::Data(0)) != Err(Errno::NXIO)
}
