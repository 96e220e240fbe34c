//! The files that are not in the tree: standard output of the program, and the file that `steadfast crash ack` writes
//! to; for a checker, the lines that must be there and those that may be. They have names in the root that no listing
//! shows.

use std::ffi::OsStr;
use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};
use steadfast_vfs::Ino;

use crate::trace::AckSource;

/// Name of standard output in the root.
pub(super) const STDOUT_NAME: &str = ".steadfast-crash-stdout";
/// Name of the file for `steadfast crash ack`.
pub(super) const ACK_NAME: &str = ".steadfast-crash-ack";
/// Name of the file with what must be there, for a checker.
pub(super) const ACKED_NAME: &str = ".steadfast-crash-acked";
/// Name of the file with what may be there, for a checker.
pub(super) const ISSUED_NAME: &str = ".steadfast-crash-issued";
const FIRST: Ino = 1 << 62;

/// A file that is not in the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Special {
    Stdout,
    Command,
    Acked,
    Issued,
}

impl Special {
    const ALL: [Special; 4] = [
        Special::Stdout,
        Special::Command,
        Special::Acked,
        Special::Issued,
    ];

    pub(super) fn ino(self) -> Ino {
        FIRST + self as Ino
    }

    fn name(self) -> &'static str {
        match self {
            Special::Stdout => STDOUT_NAME,
            Special::Command => ACK_NAME,
            Special::Acked => ACKED_NAME,
            Special::Issued => ISSUED_NAME,
        }
    }

    /// Writes to it acknowledge; files of lines are only read.
    pub(super) fn source(self) -> Option<AckSource> {
        match self {
            Special::Stdout => Some(AckSource::Stdout),
            Special::Command => Some(AckSource::Command),
            Special::Acked | Special::Issued => None,
        }
    }
}

/// The special file of an inode.
pub(super) fn special(ino: INodeNo) -> Option<Special> {
    let number = ino.0.checked_sub(FIRST)?;
    Special::ALL.get(usize::try_from(number).ok()?).copied()
}

/// The special file of a name.
pub(super) fn special_name(parent: INodeNo, name: &OsStr) -> Option<Special> {
    let mut all = Special::ALL.into_iter();
    all.find(|special| parent == INodeNo::ROOT && name == special.name())
}

/// Attributes of one with this size.
pub(super) fn special_attr(special: Special, size: u64) -> FileAttr {
    let epoch = UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(special.ino()),
        size,
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        crtime: epoch,
        kind: FileType::RegularFile,
        // Programs that give up their privileges still acknowledge, and read.
        perm: if special.source().is_some() {
            0o666
        } else {
            0o444
        },
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
