//! One recorded call: its caller, its time, its operation and its outcome.

use serde::{Deserialize, Serialize};
use steadfast_vfs::{
    AllocateMode, FileKind, Ino, NewNode, RenameMode, SetAttr, SetTime, Time, XattrMode,
};

/// Nanoseconds since the recording began.
pub type Moment = u64;

/// Bytes in the trace file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub struct Span {
    /// Position of the first byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Number of a stack in the trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StackId(pub u32);

/// A point in time since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub struct Wall {
    /// Seconds, may be negative.
    pub secs: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

impl Wall {
    /// This point in time plus `moment` nanoseconds.
    #[must_use]
    pub fn after(self, moment: Moment) -> Time {
        let nanos = u64::from(self.nanos) + moment % 1_000_000_000;
        let secs = (moment / 1_000_000_000 + nanos / 1_000_000_000) as i64;
        Time {
            secs: self.secs.saturating_add(secs),
            nanos: (nanos % 1_000_000_000) as u32,
        }
    }
}

impl From<Time> for Wall {
    fn from(time: Time) -> Wall {
        Wall {
            secs: time.secs,
            nanos: time.nanos,
        }
    }
}

impl From<Wall> for Time {
    fn from(wall: Wall) -> Time {
        Time {
            secs: wall.secs,
            nanos: wall.nanos,
        }
    }
}

/// The caller of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub struct Who {
    /// Process; 0 if the kernel called for nobody.
    pub process: u32,
    /// Thread; 0 likewise.
    pub thread: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// One call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Place in the order of effect: the first call of the file, setup included, is 0.
    pub number: u64,
    /// The caller.
    pub who: Who,
    /// When the call arrived. Every call with a smaller `end` took effect before it.
    pub begin: Moment,
    /// Moment of its effect; the return to the caller comes later. Not smaller than that of the call before.
    pub end: Moment,
    /// The operation.
    pub op: Op,
    /// The outcome.
    pub outcome: Outcome,
    /// Place in the program that it comes from, if stacks were taken.
    pub stack: Option<StackId>,
}

/// Outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It made this inode.
    Made(Ino),
    /// It changed nothing: the error number of Linux.
    Failed(i32),
}

impl Outcome {
    /// Whether the call took effect.
    #[must_use]
    pub fn is_done(self) -> bool {
        !matches!(self, Outcome::Failed(_))
    }

    /// The inode that was made.
    #[must_use]
    pub fn made(self) -> Option<Ino> {
        match self {
            Outcome::Made(ino) => Some(ino),
            _ => None,
        }
    }
}

/// Kind of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Kind {
    Regular,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

/// Kind of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
pub struct WriteHow {
    /// The file is open with `O_APPEND`; the offset is where the bytes went.
    pub append: bool,
    /// With `O_DIRECT`.
    pub direct: bool,
    /// The kernel wrote back pages that were stored to through mmap: no caller, no order among stores.
    pub by_kernel: bool,
    /// The file is open with `O_DSYNC`: the data is durable when the call returns.
    pub dsync: bool,
    /// The file is open with `O_SYNC`: all of the file's metadata, too.
    pub sync: bool,
}

/// Mode of a rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Rename {
    Replace,
    NoReplace,
    Exchange,
    Whiteout,
    WhiteoutNoReplace,
}

/// Mode of fallocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Alloc {
    Allocate,
    KeepSize,
    PunchHole,
    ZeroRange,
    ZeroRangeKeepSize,
}

/// Mode of setting an extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum XattrHow {
    Any,
    Create,
    Replace,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum When {
    /// The time of the call.
    Now,
    /// This time.
    At(Wall),
}

/// Attributes to change in one operation; the size is a call of its own kind, [`Op::Truncate`], unless both are asked at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Change {
    pub perm: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<When>,
    pub mtime: Option<When>,
}

/// Source of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum AckSource {
    /// A line of standard output.
    Stdout,
    /// `steadfast crash ack`.
    Command,
}

/// An operation. Inode numbers are those of the tree that a replay gives ([`super::replay`]); names are any bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Op {
    /// `open` with `O_CREAT` of a name that was free: a regular file, made and opened.
    Create {
        parent: Ino,
        name: Vec<u8>,
        perm: u16,
        /// The flags of `open`, as Linux has them.
        flags: u32,
    },
    /// A file, pipe, socket or device, not opened.
    Mknod {
        parent: Ino,
        name: Vec<u8>,
        kind: Kind,
        perm: u16,
        rdev: u32,
    },
    Mkdir {
        parent: Ino,
        name: Vec<u8>,
        perm: u16,
    },
    Symlink {
        parent: Ino,
        name: Vec<u8>,
        target: Vec<u8>,
    },
    Link {
        ino: Ino,
        parent: Ino,
        name: Vec<u8>,
    },
    Unlink {
        parent: Ino,
        name: Vec<u8>,
        /// The inode of the name, if there was one.
        ino: Option<Ino>,
    },
    Rmdir {
        parent: Ino,
        name: Vec<u8>,
        /// The inode of the name, if there was one.
        ino: Option<Ino>,
    },
    Rename {
        parent: Ino,
        name: Vec<u8>,
        new_parent: Ino,
        new_name: Vec<u8>,
        mode: Rename,
        /// The inode that is renamed, if there was one.
        ino: Option<Ino>,
        /// The former inode of the new name.
        replaced: Option<Ino>,
    },
    /// Opened; `truncate` means that the content was cut to nothing, in the same operation.
    Open {
        ino: Ino,
        /// The flags of `open`, as Linux has them.
        flags: u32,
        truncate: bool,
    },
    /// `close` of one descriptor. The file may be open through others.
    Close {
        ino: Ino,
    },
    /// The last descriptor of one `open` was closed.
    Release {
        ino: Ino,
    },
    /// A `write` may arrive in several pieces, one call each: 1 MiB at most.
    Write {
        ino: Ino,
        offset: u64,
        data: Span,
        how: WriteHow,
    },
    Truncate {
        ino: Ino,
        size: u64,
    },
    Fallocate {
        ino: Ino,
        mode: Alloc,
        offset: u64,
        len: u64,
    },
    SetAttr {
        ino: Ino,
        change: Change,
    },
    SetXattr {
        ino: Ino,
        name: Vec<u8>,
        value: Vec<u8>,
        how: XattrHow,
    },
    RemoveXattr {
        ino: Ino,
        name: Vec<u8>,
    },
    Fsync {
        ino: Ino,
    },
    Fdatasync {
        ino: Ino,
    },
    /// `fsync` or `fdatasync` of a directory.
    FsyncDir {
        ino: Ino,
        data_only: bool,
    },
    Syncfs,
    Sync,
    SyncFileRange {
        ino: Ino,
        offset: u64,
        len: u64,
        /// The flags of `sync_file_range`.
        flags: u32,
    },
    /// An acknowledgement of the program: its text must survive from here on.
    Ack {
        source: AckSource,
        text: Vec<u8>,
    },
}

impl Op {
    /// Whether the call asks for durability.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        matches!(
            self,
            Op::Fsync { .. }
                | Op::Fdatasync { .. }
                | Op::FsyncDir { .. }
                | Op::Syncfs
                | Op::Sync
                | Op::SyncFileRange { .. }
        )
    }

    /// The name of the call, as a reader of a report knows it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Op::Create { .. } => "create",
            Op::Mknod { .. } => "mknod",
            Op::Mkdir { .. } => "mkdir",
            Op::Symlink { .. } => "symlink",
            Op::Link { .. } => "link",
            Op::Unlink { .. } => "unlink",
            Op::Rmdir { .. } => "rmdir",
            Op::Rename { .. } => "rename",
            Op::Open { .. } => "open",
            Op::Close { .. } => "close",
            Op::Release { .. } => "release",
            Op::Write { .. } => "write",
            Op::Truncate { .. } => "truncate",
            Op::Fallocate { .. } => "fallocate",
            Op::SetAttr { .. } => "setattr",
            Op::SetXattr { .. } => "setxattr",
            Op::RemoveXattr { .. } => "removexattr",
            Op::Fsync { .. } | Op::FsyncDir { .. } => "fsync",
            Op::Fdatasync { .. } => "fdatasync",
            Op::Syncfs => "syncfs",
            Op::Sync => "sync",
            Op::SyncFileRange { .. } => "sync_file_range",
            Op::Ack { .. } => "acknowledge",
        }
    }
}

impl From<FileKind> for Kind {
    fn from(kind: FileKind) -> Kind {
        match kind {
            FileKind::Regular => Kind::Regular,
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink,
            FileKind::CharDevice => Kind::CharDevice,
            FileKind::BlockDevice => Kind::BlockDevice,
            FileKind::Fifo => Kind::Fifo,
            FileKind::Socket => Kind::Socket,
        }
    }
}

impl From<Kind> for FileKind {
    fn from(kind: Kind) -> FileKind {
        match kind {
            Kind::Regular => FileKind::Regular,
            Kind::Directory => FileKind::Directory,
            Kind::Symlink => FileKind::Symlink,
            Kind::CharDevice => FileKind::CharDevice,
            Kind::BlockDevice => FileKind::BlockDevice,
            Kind::Fifo => FileKind::Fifo,
            Kind::Socket => FileKind::Socket,
        }
    }
}

impl Kind {
    /// The new inode for the tree.
    #[must_use]
    pub fn node(self, perm: u16, rdev: u32) -> NewNode {
        NewNode {
            kind: self.into(),
            perm,
            rdev,
        }
    }
}

impl From<Rename> for RenameMode {
    fn from(mode: Rename) -> RenameMode {
        match mode {
            Rename::Replace => RenameMode::Replace,
            Rename::NoReplace => RenameMode::NoReplace,
            Rename::Exchange => RenameMode::Exchange,
            Rename::Whiteout => RenameMode::Whiteout,
            Rename::WhiteoutNoReplace => RenameMode::WhiteoutNoReplace,
        }
    }
}

impl From<Alloc> for AllocateMode {
    fn from(mode: Alloc) -> AllocateMode {
        match mode {
            Alloc::Allocate => AllocateMode::Allocate,
            Alloc::KeepSize => AllocateMode::KeepSize,
            Alloc::PunchHole => AllocateMode::PunchHole,
            Alloc::ZeroRange => AllocateMode::ZeroRange,
            Alloc::ZeroRangeKeepSize => AllocateMode::ZeroRangeKeepSize,
        }
    }
}

impl From<XattrHow> for XattrMode {
    fn from(how: XattrHow) -> XattrMode {
        match how {
            XattrHow::Any => XattrMode::Any,
            XattrHow::Create => XattrMode::Create,
            XattrHow::Replace => XattrMode::Replace,
        }
    }
}

impl From<&Change> for SetAttr {
    fn from(change: &Change) -> SetAttr {
        let time = |when: When| match when {
            When::Now => SetTime::Now,
            When::At(wall) => SetTime::At(wall.into()),
        };
        SetAttr {
            perm: change.perm,
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            atime: change.atime.map(time),
            mtime: change.mtime.map(time),
            guard: None,
            by_handle: true,
        }
    }
}
