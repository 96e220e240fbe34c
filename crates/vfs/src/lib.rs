//! The interface between file systems and front ends.
//!
//! [`FileSystem`] is inode-based with POSIX semantics. Front ends (FUSE, NFS) and
//! library users call it; they own no storage logic. Every call names its
//! [`Caller`]: identity for permission checks, and the *stream* whose order the
//! call joins. Errors are [`Error`], mapped to an errno once, here.
//!
//! ```
//! use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, NewNode, Result, Stream};
//!
//! /// Makes a file durable under its name, with its content or not at all. Works on any file system.
//! fn publish(fs: &dyn FileSystem, name: &[u8], content: &[u8]) -> Result<()> {
//!     // The operations of one stream survive a crash in their order.
//!     let me = Caller { stream: Stream(7), ..Caller::root() };
//!     let node = NewNode { kind: FileKind::Regular, perm: 0o644, rdev: 0 };
//!     let file = fs.mknod(&me, fs.root(), b"new", &node)?.ino;
//!     let mut done = 0;
//!     while done < content.len() {
//!         done += fs.write(&me, file, done as u64, &content[done..])?;
//!     }
//!     fs.rename(&me, (fs.root(), b"new"), (fs.root(), name), Default::default())?;
//!     fs.fsync(&me, file, false)
//! }
//!
//! let error = steadfast_vfs::Error::new(Errno::NoSpc, "the volume is full");
//! assert!(error == Errno::NoSpc && Errno::NoSpc.code() == 28);
//! ```

pub mod acl;
mod error;
mod flags;
pub mod metrics;
mod note;
mod pass_through;
pub mod policy;
mod replica;
mod scrub;
mod streams;

pub use error::{Errno, Error, Result};
pub use flags::InodeFlags;
pub use note::Note;
pub use replica::Replica;
pub use scrub::{ScrubCursor, ScrubFinding, ScrubPiece, Severity};
pub use streams::{MERGES_KEPT, MergeCause, StreamMerge, StreamStats, Streams};

use std::ops::Range;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of an inode, unique among live inodes of its volume.
pub type Ino = u64;

/// An opaque position in a directory, stable while entries come and go. 0 is the start.
pub type Cookie = u64;

/// Longest file name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link target in bytes.
pub const SYMLINK_MAX: usize = 4095;

/// Health of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Health {
    /// It can only be read: mounted so, or because it has failed.
    pub read_only: bool,
    /// Reason why nothing is written any more.
    pub failed: Option<String>,
}

/// The stream that a caller's operations belong to (ccfs §3.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stream(pub u32);

/// The caller of an operation.
#[derive(Clone, Debug)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
    /// Stream whose order this call joins.
    pub stream: Stream,
    /// The front end has already decided that the caller may do this (the kernel did,
    /// under `default_permissions`): access modes are not checked again. Effects of the
    /// identity (set-id bits cleared by a write, the group of a new file) still apply.
    pub checked: bool,
    /// Permission bits that a new inode does not get, unless its directory has a default ACL.
    /// 0 if the front end has taken them away already.
    pub umask: u16,
    /// Note that becomes durable together with the operations of this call, on a file system that keeps notes.
    pub note: Option<Arc<Note>>,
}

impl Caller {
    /// The superuser in the default stream.
    #[must_use]
    pub fn root() -> Caller {
        Caller {
            uid: 0,
            gid: 0,
            groups: Arc::from([]),
            stream: Stream(0),
            checked: false,
            umask: 0,
            note: None,
        }
    }

    /// Whether the caller belongs to `gid`.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// A point in time: seconds and nanoseconds since 1970, as file systems keep them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time {
    /// Seconds since 1970-01-01, may be negative.
    pub secs: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

/// Source of a file system's time. Tests bring their own.
pub trait Clock: Send + Sync {
    /// The time now; never goes backwards by much.
    fn now(&self) -> Time;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => Time {
                secs: d.as_secs() as i64,
                nanos: d.subsec_nanos(),
            },
            Err(e) => Time {
                secs: -(e.duration().as_secs() as i64),
                nanos: 0,
            },
        }
    }
}

/// Kind of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    Regular = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Character device.
    CharDevice = 4,
    /// Block device.
    BlockDevice = 5,
    /// Named pipe.
    Fifo = 6,
    /// Socket.
    Socket = 7,
}

/// An inode's attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Distinguishes successive uses of one inode number.
    pub generation: u64,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits (12 bits).
    pub perm: u16,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device inodes.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The file system's present time.
    Now,
    /// This time.
    At(Time),
}

/// Attributes to change; `None` leaves one alone. The change is one atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (12 bits).
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncates or extends with zeros.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Only if the ctime is this (NFS `sattrguard3`), else [`Errno::Again`] is reported.
    pub guard: Option<Time>,
    /// The size comes through an open handle (`ftruncate`): no write permission is asked.
    pub by_handle: bool,
}

/// Properties of a new inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNode {
    /// Regular, device, pipe or socket; directories and symlinks have calls of their own.
    pub kind: FileKind,
    /// Permission bits; [`Caller::umask`] is applied to them.
    pub perm: u16,
    /// Device number for device inodes.
    pub rdev: u32,
}

/// Mode of a rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// Replace the target if there is one.
    #[default]
    Replace,
    /// Fail with EEXIST if there is a target (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap source and target atomically (`RENAME_EXCHANGE`).
    Exchange,
    /// Replace the target if there is one, and leave a *whiteout*, the character device 0, under the source's
    /// name, in one atomic operation (`RENAME_WHITEOUT`): union file systems hide lower files with it.
    Whiteout,
    /// The same, but fail with EEXIST if there is a target.
    WhiteoutNoReplace,
}

impl RenameMode {
    /// Whether a target is not replaced.
    #[must_use]
    pub fn is_no_replace(self) -> bool {
        matches!(self, RenameMode::NoReplace | RenameMode::WhiteoutNoReplace)
    }

    /// Whether a whiteout is left.
    #[must_use]
    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameMode::Whiteout | RenameMode::WhiteoutNoReplace)
    }
}

/// Mode of setting an extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Any,
    /// Fail with EEXIST if it is there.
    Create,
    /// Fail with ENODATA if it is not.
    Replace,
}

/// Mode of changing a file's allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Make room; the size grows to cover the range.
    Allocate,
    /// Make room beyond the end without changing the size.
    KeepSize,
    /// Turn the range into a hole.
    PunchHole,
    /// The range reads as zeros afterwards; the size grows to cover it.
    ZeroRange,
    /// The same without changing the size.
    ZeroRangeKeepSize,
}

/// Target of a search for data or a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// The next offset with data.
    Data,
    /// The next hole (the end of the file is one).
    Hole,
}

/// One directory entry as `readdir` reports it.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// Inode it names.
    pub ino: Ino,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Position *after* this entry: where to go on.
    pub next: Cookie,
    /// Its name.
    pub name: &'a [u8],
}

/// The request of one of several callers that sync together ([`FileSystem::fsync_together`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Wanted {
    /// The stream of its operations.
    pub stream: Stream,
    /// The inode, as for `fsync`.
    pub ino: Ino,
    /// As `fdatasync`.
    pub data_only: bool,
}

/// [`FileSystem::fsync_together`] one after the other. Changes of an inode that is gone are durable with everything else:
/// its stream cannot be named without it.
///
/// # Errors
/// The first that is met.
pub fn fsync_each<F: FileSystem + ?Sized>(fs: &F, wanted: &[Wanted]) -> Result<()> {
    for one in wanted {
        let caller = Caller {
            stream: one.stream,
            ..Caller::root()
        };
        match fs.fsync(&caller, one.ino, one.data_only) {
            Err(e) if e == Errno::Stale => fs.sync()?,
            other => other?,
        }
    }
    Ok(())
}

/// State of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Blocks for data and metadata, without log and superblocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Inodes in use plus inodes that could still be made.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
    /// Longest name.
    pub name_max: u32,
}

/// The changes that are made durable before a file system goes down ([`FileSystem::shutdown`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Everything, at its place: nothing is left to recover.
    Everything,
    /// Everything, in the log: the next mount replays it.
    Log,
    /// Nothing more: as if the power failed now.
    Nothing,
}

/// A mounted file system. All calls may come from any thread; each is atomic with
/// respect to all others unless it says otherwise.
///
/// *Durability* is the volume's contract plus `fsync`/`sync`: no other call waits for
/// the medium (except where the contract is `sync`).
pub trait FileSystem: Send + Sync {
    /// The root directory's inode.
    fn root(&self) -> Ino;

    /// Finds `name` in `parent`. `.` and `..` are understood. ENOENT, ENOTDIR, EACCES, ENAMETOOLONG.
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr>;
    /// Attributes of an inode. ESTALE if there is no such inode.
    fn getattr(&self, caller: &Caller, ino: Ino) -> Result<Attr>;
    /// Changes attributes atomically (ownership rules of POSIX, set-id bits included).
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr>;
    /// Whether the caller may read (4), write (2), execute or search (1): EACCES if not.
    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()>;

    /// Makes a regular file, device, pipe or socket. EEXIST if the name is taken.
    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr>;
    /// Makes a directory.
    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr>;
    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr>;
    /// The target of a symbolic link.
    fn readlink(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>>;
    /// Makes another name for an inode. EPERM for directories, EMLINK at the limit.
    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr>;
    /// Removes a name. An open inode lives on until its last `release`.
    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()>;
    /// Renames atomically, with every case of POSIX and Linux.
    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()>;

    /// Keeps an inode alive while it is open, even without names. Pairs with `release`.
    /// Does not check permissions: front ends call `access` where the kernel did not.
    fn open(&self, caller: &Caller, ino: Ino) -> Result<()>;
    /// The same of an inode that was looked up before: ESTALE if it has gone, also if another has its
    /// number by now.
    fn open_generation(&self, caller: &Caller, ino: Ino, generation: u64) -> Result<()> {
        self.open(caller, ino)?;
        match self.getattr(caller, ino) {
            Ok(attr) if attr.generation == generation => Ok(()),
            other => {
                self.release(ino);
                other.and(Err(Errno::Stale.into()))
            }
        }
    }
    /// Ends one `open`. Frees an inode that has no names left.
    fn release(&self, ino: Ino);
    /// Reads up to `buf.len()` bytes at `offset`; returns how many (short only at the end).
    fn read(&self, caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Runs `look`, whose calls of this file system change nothing, without waiting for the device. Returns whether all
    /// that it asked for was in memory; if not, the answers mean nothing.
    fn in_memory(&self, look: &mut dyn FnMut()) -> bool {
        look();
        true
    }
    /// Writes `data` at `offset`; returns how much of it: less if there is space for a part only. EFBIG, ENOSPC before
    /// any effect; a very long write may be several operations, in order.
    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize>;
    /// The same at the end of the file, wherever that is; returns the offset it went to, too.
    fn append(&self, caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)>;
    /// Makes the inode durable: commits the caller's stream and every stream with an
    /// uncommitted change to it. `data_only` is `fdatasync`.
    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()>;
    /// `fsync` for each, together: they can share a flush. Inodes that are gone are passed over, their streams
    /// are not.
    fn fsync_together(&self, wanted: &[Wanted]) -> Result<()> {
        fsync_each(self, wanted)
    }
    /// Changes the allocation of a range. EOPNOTSUPP where a mode is not offered.
    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()>;
    /// Finds data or a hole at or after `offset`. ENXIO beyond the end.
    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64>;

    /// Lists a directory from `cookie` on (0: from the start), `.` and `..` included,
    /// until `sink` returns false (the entry it refused is not consumed) or the end.
    fn readdir(
        &self,
        caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Value of an extended attribute. ENODATA if there is none.
    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    /// Sets an extended attribute.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;
    /// Names of all extended attributes.
    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>>;
    /// Removes an extended attribute. ENODATA if there is none.
    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()>;

    /// The flags of a file or directory, as `lsattr` shows them. EOPNOTSUPP where there are none.
    fn flags(&self, caller: &Caller, ino: Ino) -> Result<InodeFlags> {
        let _ = (caller, ino);
        Err(Errno::OpNotSupp.into())
    }
    /// Sets the flags of a file or directory. EPERM, and EOPNOTSUPP for flags that are not offered.
    fn set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        let _ = (caller, ino, flags);
        Err(Errno::OpNotSupp.into())
    }

    /// State of the volume.
    fn statfs(&self) -> Result<StatFs>;
    /// Commits every stream.
    fn sync(&self) -> Result<()>;

    /// Commits every stream, and waits until that is where it is to stay: where a commit is durable on a cache first, until
    /// the store has it.
    fn sync_store(&self) -> Result<()> {
        self.sync()
    }

    /// The volume's streams; `None` if its contract has only one.
    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    /// Notes that an inode was read, where access times are wanted: `read`, `readdir` and
    /// `readlink` change none by themselves. As `relatime`: noted is the first read after a
    /// change, and one a day.
    fn accessed(&self, caller: &Caller, ino: Ino) -> Result<()> {
        let _ = (caller, ino);
        Ok(())
    }

    /// Tells the device of the free space in a range of its bytes, runs of fewer than `min_bytes` left out, while others
    /// work. Returns how many bytes that were. EINVAL if the range is shorter than a block or begins past the end;
    /// EOPNOTSUPP if that is not offered.
    fn trim(&self, bytes: Range<u64>, min_bytes: u64) -> Result<u64> {
        let _ = (bytes, min_bytes);
        Err(Errno::OpNotSupp.into())
    }

    /// Makes everything durable, then freezes the device until [`thaw`](FileSystem::thaw), at most for `limit`: writes
    /// to it wait, reads go on. EBUSY if it is frozen already; EOPNOTSUPP if that is not offered.
    fn freeze(&self, limit: std::time::Duration) -> Result<()> {
        let _ = limit;
        Err(Errno::OpNotSupp.into())
    }

    /// Ends a freeze: false if there is none, or if its limit has passed.
    fn thaw(&self) -> bool {
        false
    }

    /// Health of the volume. The default is healthy.
    fn health(&self) -> Health {
        Health::default()
    }

    /// Looks at about `blocks` blocks on the medium, from `from` on, while others work: whether metadata has its
    /// checksums, and, if `data`, whether file content can be read. EOPNOTSUPP if that is not offered.
    fn scrub(&self, from: ScrubCursor, blocks: u64, data: bool) -> Result<ScrubPiece> {
        let _ = (from, blocks, data);
        Err(Errno::OpNotSupp.into())
    }

    /// Counters, by name, since the mount. Values with a name in `_now` go up and down; [`metrics`] describes them.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Goes down now: when this has returned, nothing is written any more, and every call
    /// that changes or syncs fails. EOPNOTSUPP if that is not offered.
    fn shutdown(&self, how: Shutdown) -> Result<()> {
        let _ = how;
        Err(Errno::OpNotSupp.into())
    }
}
