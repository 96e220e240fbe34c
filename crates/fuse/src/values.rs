//! Values that requests and replies consist of.

use std::time::SystemTime;

use fuser::{FileAttr, FileHandle, INodeNo};
use steadfast_vfs::SetTime;

/// The handle of every open file but those that are written directly.
pub(crate) const CACHED: FileHandle = FileHandle(0);

/// Attributes of nothing.
pub(crate) const NOTHING: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: fuser::FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 4096,
    flags: 0,
};

/// The requested mode of a new inode, and the bits that the caller's umask takes from it.
#[derive(Clone, Copy)]
pub(crate) struct NewMode {
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

/// Changes of a SETATTR request.
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
    /// Through an open file.
    pub(crate) by_handle: bool,
}
