//! The two files that are not in the tree: standard output of the program, and the file that `steadfast crash ack` writes to. They have
//! names in the root that no listing shows.

use std::ffi::OsStr;
use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};
use steadfast_vfs::Ino;

use super::calls::Calls;
use crate::trace::AckSource;

/// Name of standard output in the root.
pub(super) const STDOUT_NAME: &str = ".steadfast-crash-stdout";
/// Name of the file for `steadfast crash ack`.
pub(super) const ACK_NAME: &str = ".steadfast-crash-ack";
const STDOUT: Ino = 1 << 62;
const ACK: Ino = STDOUT + 1;

/// Which of the two an inode is.
pub(super) fn special(ino: INodeNo) -> Option<AckSource> {
    match ino.0 {
        STDOUT => Some(AckSource::Stdout),
        ACK => Some(AckSource::Command),
        _ => None,
    }
}

/// The inode of such a name.
pub(super) fn special_name(parent: INodeNo, name: &OsStr) -> Option<Ino> {
    match parent == INodeNo::ROOT {
        true if name == STDOUT_NAME => Some(STDOUT),
        true if name == ACK_NAME => Some(ACK),
        _ => None,
    }
}

/// Attributes of the two.
pub(super) fn special_attr(calls: &Calls, ino: Ino) -> FileAttr {
    let epoch = UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(ino),
        size: if ino == STDOUT {
            calls.output_bytes()
        } else {
            0
        },
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        crtime: epoch,
        kind: FileType::RegularFile,
        // Programs that give up their privileges still acknowledge.
        perm: 0o666,
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
