//! Values that requests and replies consist of.

use steadfast_vfs::SetTime;

/// A node as the kernel numbers it: the root is 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Node(pub(crate) u64);

impl Node {
    pub(crate) const ROOT: Node = Node(steadfast_fuse_wire::abi::ROOT);
}

/// The handle of every open file but those that are written directly.
pub(crate) const CACHED: u64 = 0;

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
