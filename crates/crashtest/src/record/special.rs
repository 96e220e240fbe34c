//! The files that are not in the tree: standard output of the program, and the file that `steadfast crash ack` writes
//! to; for a checker, the lines that must be there and those that may be. They have names in the root that no listing
//! shows.

use steadfast_fuse_wire::abi;
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
pub(super) fn special(ino: Ino) -> Option<Special> {
    let number = ino.checked_sub(FIRST)?;
    Special::ALL.get(usize::try_from(number).ok()?).copied()
}

/// The special file of a name.
pub(super) fn special_name(parent: Ino, name: &[u8]) -> Option<Special> {
    let mut all = Special::ALL.into_iter();
    all.find(|special| parent == abi::ROOT && name == special.name().as_bytes())
}

/// Attributes of one with this size.
pub(super) fn special_attr(special: Special, size: u64) -> abi::Attr {
    const REGULAR: u32 = 0o100_000;
    abi::Attr {
        ino: special.ino(),
        size,
        // Programs that give up their privileges still acknowledge, and read.
        mode: match special.source() {
            Some(_) => REGULAR | 0o666,
            None => REGULAR | 0o444,
        },
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        blksize: 4096,
        ..abi::Attr::default()
    }
}
