//! The one translation between the file system's words and the protocol's:
//! attributes, times, kinds, node numbers, modes and error numbers.
//!
//! Invariants: no conversion panics, for any number; a file system's "not implemented"
//! never reaches the kernel as ENOSYS, because the kernel takes that as "never ask again"
//! and would let every later fsync succeed unasked.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, Generation, INodeNo, RenameFlags, TimeOrNow};
use steadfast_vfs::{
    AllocateMode, Attr, Errno, Error, FileKind, Ino, RenameMode, SetTime, Time, XattrMode,
};

/// File type bits of a mode.
const S_IFMT: u32 = 0o170_000;

/// Maps the file system's root to the number that the protocol fixes for roots (1).
/// The mapping is an involution, so it serves both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeNumbers {
    root: Ino,
}

impl NodeNumbers {
    pub(crate) fn new(root: Ino) -> NodeNumbers {
        NodeNumbers { root }
    }

    fn swap(self, number: u64) -> u64 {
        const ROOT: u64 = INodeNo::ROOT.0;
        match number {
            n if n == self.root => ROOT,
            ROOT => self.root,
            n => n,
        }
    }

    /// The protocol's number of an inode.
    pub(crate) fn node(self, ino: Ino) -> INodeNo {
        INodeNo(self.swap(ino))
    }

    /// The inode of a protocol's number.
    pub(crate) fn ino(self, node: INodeNo) -> Ino {
        self.swap(node.0)
    }

    /// Attributes as the protocol carries them.
    pub(crate) fn attr(self, attr: &Attr) -> FileAttr {
        FileAttr {
            ino: self.node(attr.ino),
            size: attr.size,
            blocks: attr.blocks,
            atime: system_time(attr.atime),
            mtime: system_time(attr.mtime),
            ctime: system_time(attr.ctime),
            crtime: system_time(attr.btime),
            kind: file_type(attr.kind),
            perm: attr.perm & 0o7777,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// The generation that distinguishes uses of one inode number.
pub(crate) fn generation(attr: &Attr) -> Generation {
    Generation(attr.generation)
}

/// Protocol file type of a kind.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// The kind that a `mknod` mode asks for; none for a kind that `mknod` does not make.
pub(crate) fn node_kind(mode: u32) -> Option<FileKind> {
    match mode & S_IFMT {
        0 | 0o100_000 => Some(FileKind::Regular),
        0o020_000 => Some(FileKind::CharDevice),
        0o060_000 => Some(FileKind::BlockDevice),
        0o010_000 => Some(FileKind::Fifo),
        0o140_000 => Some(FileKind::Socket),
        _ => None,
    }
}

/// Permission bits of a mode.
pub(crate) fn perm(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// A time as the protocol crate carries it; a time out of its range becomes 1970.
fn system_time(time: Time) -> SystemTime {
    let whole = if time.secs >= 0 {
        UNIX_EPOCH.checked_add(Duration::from_secs(time.secs.unsigned_abs()))
    } else {
        UNIX_EPOCH.checked_sub(Duration::from_secs(time.secs.unsigned_abs()))
    };
    whole
        .and_then(|t| t.checked_add(Duration::from_nanos(u64::from(time.nanos))))
        .unwrap_or(UNIX_EPOCH)
}

/// A time to set. The protocol crate decodes (secs, nanos) before 1970 as
/// `epoch − (|secs| + nanos)`; taking the two parts back out restores the sent time.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(match at.duration_since(UNIX_EPOCH) {
            Ok(d) => Time {
                secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
                nanos: d.subsec_nanos(),
            },
            Err(before) => {
                let d = before.duration();
                let secs = i64::try_from(d.as_secs()).map_or(i64::MIN, |s| -s);
                Time {
                    secs,
                    nanos: d.subsec_nanos(),
                }
            }
        }),
    }
}

/// The rename that flags ask for; none for flags that contradict each other.
pub(crate) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    if flags.is_empty() {
        Some(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Some(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Some(RenameMode::Exchange)
    } else if flags == RenameFlags::RENAME_WHITEOUT {
        Some(RenameMode::Whiteout)
    } else if flags == RenameFlags::RENAME_WHITEOUT | RenameFlags::RENAME_NOREPLACE {
        Some(RenameMode::WhiteoutNoReplace)
    } else {
        None
    }
}

/// The allocation that a `fallocate` mode asks for; none for an unsupported mode.
pub(crate) fn allocate_mode(mode: i32) -> Option<AllocateMode> {
    const KEEP_SIZE: i32 = 0x01;
    const PUNCH_HOLE: i32 = 0x02;
    const ZERO_RANGE: i32 = 0x10;
    const PUNCH: i32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_KEEP: i32 = ZERO_RANGE | KEEP_SIZE;
    match mode {
        0 => Some(AllocateMode::Allocate),
        KEEP_SIZE => Some(AllocateMode::KeepSize),
        PUNCH => Some(AllocateMode::PunchHole),
        ZERO_RANGE => Some(AllocateMode::ZeroRange),
        ZERO_KEEP => Some(AllocateMode::ZeroRangeKeepSize),
        _ => None,
    }
}

/// The way that `setxattr` flags ask for; none for unknown flags.
pub(crate) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Any),
        1 => Some(XattrMode::Create),
        2 => Some(XattrMode::Replace),
        _ => None,
    }
}

/// The error number of a failed call: the only place where errors are mapped.
pub(crate) fn errno(error: &Error) -> fuser::Errno {
    match error.errno {
        Errno::NoSys => fuser::Errno::EOPNOTSUPP,
        other => fuser::Errno::from_i32(other.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_trades_numbers_with_inode_one_and_back() {
        let numbers = NodeNumbers::new(7);
        assert_eq!(numbers.node(7), INodeNo::ROOT);
        assert_eq!(numbers.node(1), INodeNo(7));
        for ino in [1, 2, 7, 8, u64::MAX] {
            assert_eq!(numbers.ino(numbers.node(ino)), ino);
        }
    }

    #[test]
    fn times_before_1970_and_out_of_range_do_not_panic() {
        let t = system_time(Time {
            secs: -2,
            nanos: 800_000_000,
        });
        assert_eq!(
            UNIX_EPOCH.duration_since(t).map(|d| d.as_millis()).ok(),
            Some(1200),
            "-2 s + 0.8 s is 1.2 s before the epoch"
        );
        for secs in [i64::MIN, i64::MAX] {
            let _ = system_time(Time {
                secs,
                nanos: 999_999_999,
            });
        }
        let sent = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(
            set_time(TimeOrNow::SpecificTime(sent)),
            SetTime::At(Time {
                secs: -2,
                nanos: 800_000_000
            })
        );
    }

    #[test]
    fn a_file_system_that_lacks_a_call_does_not_switch_it_off_for_ever() {
        assert_eq!(
            errno(&Errno::NoSys.into()).code(),
            fuser::Errno::EOPNOTSUPP.code()
        );
        assert_eq!(errno(&Errno::NoSpc.into()).code(), 28);
        assert_eq!(errno(&Errno::Uclean.into()).code(), 117);
    }

    #[test]
    fn unknown_flags_are_refused_not_ignored() {
        assert_eq!(
            rename_mode(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_WHITEOUT),
            None
        );
        assert_eq!(
            rename_mode(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_NOREPLACE),
            None
        );
        assert_eq!(allocate_mode(0x02), None, "a punch without KEEP_SIZE");
        assert_eq!(allocate_mode(0x08), None, "collapse");
        assert_eq!(xattr_mode(3), None);
        assert_eq!(node_kind(0o040_000), None, "mknod makes no directories");
    }
}
