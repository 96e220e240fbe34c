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
mod file_system;
mod flags;
pub mod metrics;
mod note;
mod pass_through;
pub mod policy;
mod replica;
mod scrub;
mod streams;

pub use error::{Errno, Error, Result};
pub use file_system::{FileSystem, fsync_each};
pub use flags::InodeFlags;
pub use note::Note;
pub use replica::Replica;
pub use scrub::{ScrubCursor, ScrubFinding, ScrubPiece, Severity};
pub use streams::{MERGES_KEPT, MergeCause, StreamMerge, StreamStats, Streams};

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

impl FileKind {
    /// Bits of a mode that name the kind: `S_IFMT`.
    pub const TYPE_BITS: u32 = 0o170_000;

    const ALL: [(FileKind, u32); 7] = [
        (FileKind::Regular, 0o100_000),
        (FileKind::Directory, 0o040_000),
        (FileKind::Symlink, 0o120_000),
        (FileKind::CharDevice, 0o020_000),
        (FileKind::BlockDevice, 0o060_000),
        (FileKind::Fifo, 0o010_000),
        (FileKind::Socket, 0o140_000),
    ];

    /// The bits of a mode that name this kind.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        FileKind::ALL[self as usize - 1].1
    }

    /// The kind that a mode names; none for a mode without one.
    #[must_use]
    pub fn of_mode(mode: u32) -> Option<FileKind> {
        let bits = mode & FileKind::TYPE_BITS;
        let mut all = FileKind::ALL.iter();
        all.find(|(_, known)| *known == bits).map(|(kind, _)| *kind)
    }
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
