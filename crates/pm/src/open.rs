//! Regions in files: opening, locking, creating and enlarging them.
//!
//! The lock is taken before anything is read or changed, and is given up when the region is dropped. Nothing is mapped that
//! could lose the order of stores: a file must lie in memory, or the kernel must give a synchronous mapping of it. A region
//! that is opened read-only has no such needs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat};
use rustix::io::{Errno, retry_on_intr as retry};

use crate::mapping::{MapError, Mapping};
use crate::platform::{self, Device, Memory};
use crate::{Durability, Error, Instruction, PAGE_BYTES, Region, Result};

/// Whether caches survive a power cut (eADR).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Eadr {
    /// If the platform says so.
    #[default]
    Detect,
    /// Yes, regardless of the platform. If that is wrong, a power cut damages the volume.
    Assume,
    /// No, regardless of the platform: lines are written back.
    Ignore,
}

/// Options for opening a region.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Refuse stores. Needs no write permission, shares the file with other readers, and takes files on any file system.
    pub read_only: bool,
    /// Whether to lock the file. Leave it on unless the file system cannot lock.
    pub lock: bool,
    /// Whether caches survive a power cut.
    pub eadr: Eadr,
    /// Whether all pages of a sparse file are reserved. Without it, a store to a hole marks the region as failed if the file
    /// system is full.
    pub reserve: bool,
    /// Whether all pages are mapped at once. Opening then takes longer, and the first store to a page less.
    pub populate: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            lock: true,
            eadr: Eadr::Detect,
            reserve: true,
            populate: false,
        }
    }
}

impl Region {
    /// Opens a region in a file, or in a DAX device.
    ///
    /// The file lies on tmpfs, ramfs or hugetlbfs, or on a file system that is mounted with DAX; with
    /// [`read_only`](OpenOptions::read_only) on any. It is locked: exclusively, or, for reading, shared.
    ///
    /// # Errors
    /// [`Error::InUse`] if it is locked; others if it cannot be opened, locked, mapped or used: see [`Error`].
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Region> {
        let path = path.as_ref();
        let file = open_locked(path, options)?;
        from_locked(file, path, options)
    }

    /// Makes a file of exactly `bytes` bytes, readable by its owner only, or gives an existing file that size, and opens it
    /// for writing, with its pages reserved if the options say so. New bytes are zeros, old ones stay. The file's size and
    /// its name are durable on return.
    ///
    /// Unless `force` is set, an existing file must hold no data (empty or one hole). A DAX device needs `force` and at least
    /// `bytes` bytes; it keeps its size and its content.
    ///
    /// # Errors
    /// As for [`open`](Region::open), or if the file holds data and `force` is not set, or there is no room; a file made by
    /// this call is then removed.
    pub fn create(
        path: impl AsRef<Path>,
        bytes: u64,
        force: bool,
        options: &OpenOptions,
    ) -> Result<Region> {
        let path = path.as_ref();
        check_size(path, bytes, PAGE_BYTES)?;
        let options = &OpenOptions {
            read_only: false,
            ..options.clone()
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match retry(|| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)) {
            Ok(fd) => {
                let made = LockedFile::new(fd, path, options)
                    .and_then(|file| resized(file, path, bytes, options));
                if made.is_err() {
                    // Best effort: the first error is the one to report.
                    let _ = rustix::fs::unlink(path);
                }
                made
            }
            Err(Errno::EXIST) => reuse(path, bytes, force, options),
            Err(errno) => Err(failure("create", path)(errno)),
        }
    }

    /// Opens a region whose file is first enlarged to `bytes` bytes, if it is smaller. New bytes are zeros. A DAX device
    /// must have that size.
    ///
    /// # Errors
    /// As for [`open`](Region::open), or if there is no room.
    pub fn enlarge(path: impl AsRef<Path>, bytes: u64, options: &OpenOptions) -> Result<Region> {
        let path = path.as_ref();
        let options = &OpenOptions {
            read_only: false,
            ..options.clone()
        };
        let file = open_locked(path, options)?;
        let place = Place::of(&file, path)?;
        match place.device {
            _ if place.bytes >= bytes => from_locked(file, path, options),
            Device::Character(_) => Err(device_too_small(path, place.bytes, bytes)),
            Device::Block(_) => resized(file, path, bytes, options),
        }
    }

    /// Checks that the region has at least the size that its content needs.
    ///
    /// # Errors
    /// [`Error::Truncated`] if it has not.
    pub fn require(&self, bytes: u64) -> Result<()> {
        if bytes <= self.len() {
            return Ok(());
        }
        Err(Error::Truncated {
            path: self.path().unwrap_or(Path::new("the region")).to_owned(),
            bytes: self.len(),
            bytes_expected: bytes,
        })
    }
}

fn device_too_small(path: &Path, bytes: u64, bytes_expected: u64) -> Error {
    Error::DeviceTooSmall {
        path: path.to_owned(),
        bytes,
        bytes_expected,
    }
}

/// Opens the file or device at `path`, and locks it.
fn open_locked(path: &Path, options: &OpenOptions) -> Result<LockedFile> {
    // Looked at before it is opened: opening a fifo would wait for its other end.
    let stat = rustix::fs::stat(path).map_err(failure("open", path))?;
    Kind::of(path, &stat)?;
    let access = if options.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = retry(|| rustix::fs::open(path, flags, Mode::empty()));
    LockedFile::new(fd.map_err(failure("open", path))?, path, options)
}

/// The part of [`Region::create`] that finds something at `path`.
fn reuse(path: &Path, bytes: u64, force: bool, options: &OpenOptions) -> Result<Region> {
    let file = open_locked(path, options)?;
    let place = Place::of(&file, path)?;
    let found = match place.device {
        Device::Character(_) if !force => "is a device with content",
        Device::Character(_) if place.bytes < bytes => {
            return Err(device_too_small(path, place.bytes, bytes));
        }
        Device::Character(_) => return from_locked(file, path, options),
        Device::Block(_) if !force && holds_data(&file, place.bytes) => "exists and holds data",
        Device::Block(_) => return resized(file, path, bytes, options),
    };
    Err(Error::Exists {
        path: path.to_owned(),
        found,
    })
}

/// Whether a file has any byte that was written. If the file system cannot tell, one that is not empty has.
fn holds_data(file: &LockedFile, bytes: u64) -> bool {
    bytes > 0 && rustix::fs::seek(file, SeekFrom::Data(0)) != Err(Errno::NXIO)
}

/// Gives a locked file its size, makes that and its name durable, and opens it.
fn resized(file: LockedFile, path: &Path, bytes: u64, options: &OpenOptions) -> Result<Region> {
    let place = Place::of(&file, path)?;
    // All reasons to refuse are checked before the file is changed.
    check_size(path, bytes, place.unit)?;
    durability(path, options, &place)?;
    map(&file, path, place.unit, &place, options)?;
    retry(|| rustix::fs::ftruncate(&file, bytes)).map_err(failure("resize", path))?;
    let sync = |fd: BorrowedFd<'_>| retry(|| rustix::fs::fsync(fd));
    sync(file.as_fd()).map_err(failure("sync", path))?;
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let synced = match retry(|| rustix::fs::open(parent, flags, Mode::empty())) {
        Ok(parent) => sync(parent.as_fd()),
        // A directory that may be written but not read cannot be synced by us.
        Err(Errno::ACCESS) => Ok(()),
        Err(errno) => Err(errno),
    };
    synced.map_err(failure("sync the directory of", path))?;
    from_locked(file, path, options)
}

/// Maps a locked file.
fn from_locked(file: LockedFile, path: &Path, options: &OpenOptions) -> Result<Region> {
    let place = Place::of(&file, path)?;
    check_size(path, place.bytes, place.unit)?;
    let durability = durability(path, options, &place)?;
    let mapping = map(&file, path, place.bytes, &place, options)?;
    if !options.read_only && options.reserve && place.sparse {
        reserve(&file, path, place.bytes)?;
    }
    if options.populate {
        let populated = mapping.populate(!options.read_only);
        populated.map_err(|source| io_failure("populate", path, source))?;
    }
    Ok(Region::in_file(
        mapping,
        durability,
        options.read_only,
        file,
        path,
    ))
}

/// Place of an open file.
struct Place {
    /// Size of the file.
    bytes: u64,
    /// Bytes of its pages.
    unit: u64,
    /// Whether it is a file with holes.
    sparse: bool,
    memory: Memory,
    device: Device,
}

impl Place {
    fn of(file: &LockedFile, path: &Path) -> Result<Place> {
        let stat = rustix::fs::fstat(file).map_err(failure("look at", path))?;
        match Kind::of(path, &stat)? {
            Kind::File => {
                let file_system = rustix::fs::fstatfs(file).map_err(failure("look at", path))?;
                let (memory, unit) = platform::memory(&file_system);
                let bytes = u64::try_from(stat.st_size).unwrap_or(0);
                let bytes_held = u64::try_from(stat.st_blocks)
                    .unwrap_or(0)
                    .saturating_mul(512);
                Ok(Place {
                    bytes,
                    unit,
                    sparse: bytes_held < bytes,
                    memory,
                    device: Device::Block(stat.st_dev),
                })
            }
            Kind::DaxDevice(dax) => Ok(Place {
                bytes: dax.bytes,
                unit: dax.unit,
                sparse: false,
                memory: Memory::Mapped,
                device: Device::Character(stat.st_rdev),
            }),
        }
    }
}

/// Maps the first `bytes` bytes of a file, which may be shorter.
fn map(
    file: &LockedFile,
    path: &Path,
    bytes: u64,
    place: &Place,
    options: &OpenOptions,
) -> Result<Mapping> {
    let writable = !options.read_only;
    let synchronous = writable && place.memory == Memory::Mapped;
    let (Ok(bytes), Ok(unit)) = (usize::try_from(bytes), usize::try_from(place.unit)) else {
        return Err(failure("map", path)(Errno::FBIG));
    };
    Mapping::file(file.as_fd(), bytes, unit, writable, synchronous).map_err(|error| match error {
        MapError::NotSynchronous => Error::NotPersistentMemory {
            path: path.to_owned(),
        },
        MapError::Io(source) => io_failure("map", path, source),
    })
}

/// Persistence of stores to a file.
fn durability(path: &Path, options: &OpenOptions, place: &Place) -> Result<Durability> {
    let eadr = match options.eadr {
        Eadr::Assume => true,
        Eadr::Ignore => false,
        Eadr::Detect => {
            let sys = Path::new("/sys");
            place.memory == Memory::Mapped && platform::caches_persist(sys, place.device)
        }
    };
    match Instruction::detect() {
        _ if eadr => Ok(Durability::Eadr),
        Instruction::None if !options.read_only => Err(Error::NoWriteBack {
            path: path.to_owned(),
        }),
        instruction => Ok(Durability::Line(instruction)),
    }
}

/// Gives every page of a file its memory, so that no store can find the file system full.
fn reserve(file: &LockedFile, path: &Path, bytes: u64) -> Result<()> {
    match retry(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)) {
        // Ramfs knows no limit, and no reservation.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) => Err(Error::NoRoom {
            path: path.to_owned(),
            bytes,
        }),
        Err(errno) => Err(failure("reserve the pages of", path)(errno)),
    }
}

fn check_size(path: &Path, bytes: u64, unit: u64) -> Result<()> {
    let path = path.to_owned();
    if bytes < PAGE_BYTES {
        return Err(Error::TooSmall { path, bytes });
    }
    if bytes.checked_rem(unit) != Some(0) {
        return Err(Error::UnevenSize { path, bytes, unit });
    }
    Ok(())
}

fn failure(action: &'static str, path: &Path) -> impl Fn(Errno) -> Error {
    move |errno| io_failure(action, path, errno.into())
}

fn io_failure(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// Kind of file that can hold a region.
enum Kind {
    File,
    DaxDevice(platform::DaxDevice),
}

impl Kind {
    fn of(path: &Path, stat: &Stat) -> Result<Kind> {
        let found = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(Kind::File),
            FileType::CharacterDevice => {
                match platform::dax_device(Path::new("/sys"), stat.st_rdev) {
                    Some(dax) => return Ok(Kind::DaxDevice(dax)),
                    None => "a character device",
                }
            }
            FileType::BlockDevice => "a block device",
            FileType::Directory => "a directory",
            _ => "no file",
        };
        Err(Error::WrongKind {
            path: path.to_owned(),
            found,
        })
    }
}

/// An open file and the lock on it. The lock belongs to the open file, not to the process: a second open in this process is
/// refused, too.
pub(crate) struct LockedFile {
    fd: OwnedFd,
    locked: bool,
}

impl LockedFile {
    fn new(fd: OwnedFd, path: &Path, options: &OpenOptions) -> Result<LockedFile> {
        if !options.lock {
            return Ok(LockedFile { fd, locked: false });
        }
        let how = if options.read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        let path = path.to_owned();
        match retry(|| rustix::fs::flock(&fd, how)) {
            Ok(()) => Ok(LockedFile { fd, locked: true }),
            Err(Errno::WOULDBLOCK) => Err(Error::InUse { path }),
            Err(errno) => Err(Error::NotLockable {
                path,
                source: errno.into(),
            }),
        }
    }
}

impl Drop for LockedFile {
    /// Closing alone would leave the lock to a child process that was forked meanwhile and has not yet run its program.
    fn drop(&mut self) {
        if self.locked {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
