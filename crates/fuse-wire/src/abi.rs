//! The kernel's FUSE protocol, version 7, as its header `linux/fuse.h` defines it: numbers, flags and structures in the
//! byte order of this machine. Names follow the header, without its prefix.
#![allow(missing_docs, reason = "the fields are those of linux/fuse.h")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const MAJOR: u32 = 7;
/// The version whose structures these are (Linux 6.14).
pub const MINOR: u32 = 42;
/// The oldest version that is served (Linux 5.4).
pub const MINOR_MIN: u32 = 31;

/// Node number of the root.
pub const ROOT: u64 = 1;

macro_rules! numbers {
    ($(#[$doc:meta])* $space:ident: $type:ty { $($name:ident = $value:expr,)* }) => {
        $(#[$doc])*
        pub mod $space {
            $(pub const $name: $type = $value;)*
        }
    };
}

numbers! {
    /// Opcodes.
    op: u32 {
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9,
        UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18,
        FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26,
        OPENDIR = 27, READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, ACCESS = 34, CREATE = 35, INTERRUPT = 36,
        DESTROY = 38, IOCTL = 39, BATCH_FORGET = 42, FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46,
        COPY_FILE_RANGE = 47, SYNCFS = 50, TMPFILE = 51, STATX = 52,
    }
}

numbers! {
    /// Features that INIT negotiates. The upper half is sent in `flags2`.
    init: u64 {
        ASYNC_READ = 1, ATOMIC_O_TRUNC = 1 << 3, EXPORT_SUPPORT = 1 << 4, BIG_WRITES = 1 << 5, DONT_MASK = 1 << 6,
        HAS_IOCTL_DIR = 1 << 11, DO_READDIRPLUS = 1 << 13, READDIRPLUS_AUTO = 1 << 14, WRITEBACK_CACHE = 1 << 16,
        NO_OPEN_SUPPORT = 1 << 17, PARALLEL_DIROPS = 1 << 18, POSIX_ACL = 1 << 20, MAX_PAGES = 1 << 22,
        CACHE_SYMLINKS = 1 << 23, NO_OPENDIR_SUPPORT = 1 << 24, HANDLE_KILLPRIV_V2 = 1 << 28, INIT_EXT = 1 << 30,
        DIRECT_IO_ALLOW_MMAP = 1 << 36, ALLOW_IDMAP = 1 << 40, OVER_IO_URING = 1 << 41,
    }
}

numbers! {
    /// Flags of a reply to OPEN and CREATE.
    fopen: u32 {
        DIRECT_IO = 1, KEEP_CACHE = 1 << 1, NONSEEKABLE = 1 << 2, CACHE_DIR = 1 << 3, NOFLUSH = 1 << 5,
        PARALLEL_DIRECT_WRITES = 1 << 6,
    }
}

numbers! {
    /// Fields of SETATTR that are valid.
    fattr: u32 {
        MODE = 1, UID = 1 << 1, GID = 1 << 2, SIZE = 1 << 3, ATIME = 1 << 4, MTIME = 1 << 5, FH = 1 << 6,
        ATIME_NOW = 1 << 7, MTIME_NOW = 1 << 8, CTIME = 1 << 10, KILL_SUIDGID = 1 << 11,
    }
}

numbers! {
    /// Flags of WRITE.
    write: u32 { CACHE = 1, LOCKOWNER = 1 << 1, KILL_SUIDGID = 1 << 2, }
}

numbers! {
    /// Flags of OPEN and CREATE.
    open: u32 { KILL_SUIDGID = 1, }
}

numbers! {
    /// Flags of RENAME2.
    rename: u32 { NOREPLACE = 1, EXCHANGE = 2, WHITEOUT = 4, }
}

numbers! {
    /// Codes of notifications.
    notify: i32 { INVAL_INODE = 2, INVAL_ENTRY = 3, }
}

numbers! {
    /// Commands of io_uring.
    uring: u32 { REGISTER = 1, COMMIT_AND_FETCH = 2, }
}

pub const GETATTR_FH: u32 = 1;
pub const FSYNC_FDATASYNC: u32 = 1;
/// Fields of [`Statx`] that have values: the basic ones, and the birth time.
pub const STATX_BASIC_STATS: u32 = 0x7ff;
pub const STATX_BTIME: u32 = 0x800;

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
            #[repr(C)]
            pub struct $name { $(pub $field: $type,)* }
        )*
    };
}

structures! {
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16,
        padding: u16,
    }
    OutHeader { len: u32, error: i32, unique: u64, }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    ForgetIn { nlookup: u64, }
    ForgetOne { nodeid: u64, nlookup: u64, }
    BatchForgetIn { count: u32, dummy: u32, }
    GetattrIn { flags: u32, dummy: u32, fh: u64, }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { newdir: u64, }
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    LinkIn { oldnodeid: u64, }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    OpenIn { flags: u32, open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    /// The reply to CREATE and TMPFILE.
    CreateOut { entry: EntryOut, open: OpenOut, }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteOut { size: u32, padding: u32, }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    FsyncIn { fh: u64, flags: u32, padding: u32, }
    /// Without the extension that SETXATTR_EXT negotiates.
    SetxattrIn { size: u32, flags: u32, }
    GetxattrIn { size: u32, padding: u32, }
    GetxattrOut { size: u32, padding: u32, }
    AccessIn { mask: u32, padding: u32, }
    InterruptIn { unique: u64, }
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut { offset: u64, }
    CopyFileRangeIn { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64, }
    SyncfsIn { padding: u64, }
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    StatxTime { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime, ctime: StatxTime,
        mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
    /// The head of a listed name, which follows it.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    NotifyInvalInodeOut { ino: u64, off: i64, len: i64, }
    NotifyInvalEntryOut { parent: u64, namelen: u32, flags: u32, }
    UringEntInOut { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
    UringCmdReq { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
}

/// Bytes that a structure of arguments has in the header of a ring's entry.
pub const URING_OP_IN_OUT_BYTES: usize = 128;

/// The header of a ring's entry: the request's or the reply's header, the structure of arguments, the entry's state.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct UringReqHeader {
    pub in_out: [u8; 128],
    pub op_in: [u8; URING_OP_IN_OUT_BYTES],
    pub ent: UringEntInOut,
}

// Sizes that the kernel's header gives: a field that is missing or too wide changes one of them.
const _: () = {
    assert!(size_of::<InHeader>() == 40);
    assert!(size_of::<OutHeader>() == 16);
    assert!(size_of::<InitIn>() == 64);
    assert!(size_of::<InitOut>() == 64);
    assert!(size_of::<Attr>() == 88);
    assert!(size_of::<EntryOut>() == 128);
    assert!(size_of::<AttrOut>() == 104);
    assert!(size_of::<SetattrIn>() == 88);
    assert!(size_of::<WriteIn>() == 40);
    assert!(size_of::<ReadIn>() == 40);
    assert!(size_of::<StatfsOut>() == 80);
    assert!(size_of::<IoctlIn>() == 32);
    assert!(size_of::<Statx>() == 256);
    assert!(size_of::<StatxOut>() == 288);
    assert!(size_of::<Dirent>() == 24);
    assert!(size_of::<UringReqHeader>() == 288);
    assert!(size_of::<UringCmdReq>() == 24);
};

/// Bytes of the structure of arguments that a request of this opcode begins with; none for an opcode that is not
/// served.
#[must_use]
pub const fn arguments_bytes(opcode: u32) -> Option<usize> {
    Some(match opcode {
        op::LOOKUP
        | op::READLINK
        | op::SYMLINK
        | op::UNLINK
        | op::RMDIR
        | op::STATFS
        | op::REMOVEXATTR
        | op::DESTROY => 0,
        op::FORGET => size_of::<ForgetIn>(),
        op::BATCH_FORGET => size_of::<BatchForgetIn>(),
        op::GETATTR => size_of::<GetattrIn>(),
        op::SETATTR => size_of::<SetattrIn>(),
        op::MKNOD => size_of::<MknodIn>(),
        op::MKDIR => size_of::<MkdirIn>(),
        op::RENAME => size_of::<RenameIn>(),
        op::RENAME2 => size_of::<Rename2In>(),
        op::LINK => size_of::<LinkIn>(),
        op::OPEN | op::OPENDIR => size_of::<OpenIn>(),
        op::CREATE | op::TMPFILE => size_of::<CreateIn>(),
        op::READ | op::READDIR | op::READDIRPLUS => size_of::<ReadIn>(),
        op::WRITE => size_of::<WriteIn>(),
        op::RELEASE | op::RELEASEDIR => size_of::<ReleaseIn>(),
        op::FSYNC | op::FSYNCDIR => size_of::<FsyncIn>(),
        op::SETXATTR => size_of::<SetxattrIn>(),
        op::GETXATTR | op::LISTXATTR => size_of::<GetxattrIn>(),
        op::FLUSH => size_of::<FlushIn>(),
        op::INIT => size_of::<InitIn>(),
        op::ACCESS => size_of::<AccessIn>(),
        op::INTERRUPT => size_of::<InterruptIn>(),
        op::IOCTL => size_of::<IoctlIn>(),
        op::FALLOCATE => size_of::<FallocateIn>(),
        op::LSEEK => size_of::<LseekIn>(),
        op::COPY_FILE_RANGE => size_of::<CopyFileRangeIn>(),
        op::SYNCFS => size_of::<SyncfsIn>(),
        op::STATX => size_of::<StatxIn>(),
        _ => return None,
    })
}
