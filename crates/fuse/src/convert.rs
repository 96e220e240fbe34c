//! The one translation between the file system's words and the protocol's:
//! attributes, times, kinds, node numbers, modes and error numbers.
//!
//! Invariants: no conversion panics, for any number; a file system's "not implemented"
//! never reaches the kernel as ENOSYS, because the kernel takes that as "never ask again"
//! and would let every later fsync succeed unasked.

use std::time::Duration;

use steadfast_fuse_wire::abi::{self, fattr, rename};
use steadfast_vfs::{
    AllocateMode, Attr, Errno, Error, FileKind, Ino, RenameMode, SetTime, Time, XattrMode,
};

use crate::values::{Changes, Node};

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
        const ROOT: u64 = Node::ROOT.0;
        match number {
            n if n == self.root => ROOT,
            ROOT => self.root,
            n => n,
        }
    }

    /// The protocol's number of an inode.
    pub(crate) fn node(self, ino: Ino) -> Node {
        Node(self.swap(ino))
    }

    /// The inode of a protocol's number.
    pub(crate) fn ino(self, node: Node) -> Ino {
        self.swap(node.0)
    }

    /// Attributes as the protocol carries them.
    pub(crate) fn attr(self, attr: &Attr) -> abi::Attr {
        abi::Attr {
            ino: self.swap(attr.ino),
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.secs,
            mtime: attr.mtime.secs,
            ctime: attr.ctime.secs,
            atimensec: attr.atime.nanos,
            mtimensec: attr.mtime.nanos,
            ctimensec: attr.ctime.nanos,
            mode: attr.kind.mode_bits() | u32::from(attr.perm & 0o7777),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }

    /// The same, as statx(2) has them, with the time of birth.
    pub(crate) fn statx(self, attr: &Attr) -> abi::Statx {
        let time = |at: Time| abi::StatxTime {
            tv_sec: at.secs,
            tv_nsec: at.nanos,
            reserved: 0,
        };
        abi::Statx {
            mask: abi::STATX_BASIC_STATS | abi::STATX_BTIME,
            blksize: BLOCK_BYTES,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: (attr.kind.mode_bits() | u32::from(attr.perm & 0o7777)) as u16,
            ino: self.swap(attr.ino),
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.atime),
            btime: time(attr.btime),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            // As the kernel encodes a device's number in 32 bits.
            rdev_major: (attr.rdev & 0xf_ff00) >> 8,
            rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00),
            ..abi::Statx::default()
        }
    }
}

/// Preferred size of a read or write.
const BLOCK_BYTES: u32 = 4096;

/// Seconds and nanoseconds of a time that the kernel may trust something.
pub(crate) fn valid(time: Duration) -> (u64, u32) {
    (time.as_secs(), time.subsec_nanos())
}

/// What a SETATTR request changes.
pub(crate) fn changes(asked: &abi::SetattrIn) -> Changes {
    let has = |field: u32| asked.valid & field != 0;
    let time = |set: u32, now: u32, secs: i64, nanos: u32| match (has(now), has(set)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At(Time { secs, nanos })),
        (false, false) => None,
    };
    let (atime, mtime) = (
        (asked.atime, asked.atimensec),
        (asked.mtime, asked.mtimensec),
    );
    Changes {
        mode: has(fattr::MODE).then_some(asked.mode),
        uid: has(fattr::UID).then_some(asked.uid),
        gid: has(fattr::GID).then_some(asked.gid),
        size: has(fattr::SIZE).then_some(asked.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, atime.0, atime.1),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, mtime.0, mtime.1),
        by_handle: has(fattr::FH),
    }
}

/// The kind that a `mknod` mode asks for; none for a kind that `mknod` does not make.
pub(crate) fn node_kind(mode: u32) -> Option<FileKind> {
    match FileKind::of_mode(mode) {
        None if mode & FileKind::TYPE_BITS == 0 => Some(FileKind::Regular),
        Some(FileKind::Directory | FileKind::Symlink) => None,
        kind => kind,
    }
}

/// Permission bits of a mode.
pub(crate) fn perm(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// The rename that flags ask for; none for flags that contradict each other.
pub(crate) fn rename_mode(flags: u32) -> Option<RenameMode> {
    const WHITEOUT_NOREPLACE: u32 = rename::WHITEOUT | rename::NOREPLACE;
    match flags {
        0 => Some(RenameMode::Replace),
        rename::NOREPLACE => Some(RenameMode::NoReplace),
        rename::EXCHANGE => Some(RenameMode::Exchange),
        rename::WHITEOUT => Some(RenameMode::Whiteout),
        WHITEOUT_NOREPLACE => Some(RenameMode::WhiteoutNoReplace),
        _ => None,
    }
}

/// The allocation that a `fallocate` mode asks for; none for an unsupported mode.
pub(crate) fn allocate_mode(mode: u32) -> Option<AllocateMode> {
    const KEEP_SIZE: u32 = 0x01;
    const PUNCH_HOLE: u32 = 0x02;
    const ZERO_RANGE: u32 = 0x10;
    const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
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
pub(crate) fn xattr_mode(flags: u32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Any),
        1 => Some(XattrMode::Create),
        2 => Some(XattrMode::Replace),
        _ => None,
    }
}

/// The error number of a failed call: the only place where errors are mapped.
pub(crate) fn errno(error: &Error) -> steadfast_fuse_wire::Errno {
    match error.errno {
        Errno::NoSys => steadfast_fuse_wire::Errno::OPNOTSUPP,
        other => steadfast_fuse_wire::Errno::from_raw_os_error(other.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_trades_numbers_with_inode_one_and_back() {
        let numbers = NodeNumbers::new(7);
        assert_eq!(numbers.node(7), Node::ROOT);
        assert_eq!(numbers.node(1), Node(7));
        for ino in [1, 2, 7, 8, u64::MAX] {
            assert_eq!(numbers.ino(numbers.node(ino)), ino);
        }
    }

    #[test]
    fn times_are_sent_and_set_as_they_are() {
        for (secs, nanos) in [(-2, 800_000_000), (i64::MIN, 999_999_999), (i64::MAX, 0)] {
            let asked = abi::SetattrIn {
                valid: fattr::MTIME,
                mtime: secs,
                mtimensec: nanos,
                ..abi::SetattrIn::default()
            };
            let at = Time { secs, nanos };
            assert_eq!(changes(&asked).mtime, Some(SetTime::At(at)));
            let attr = Attr {
                mtime: at,
                ..attributes()
            };
            let sent = NodeNumbers::new(1).attr(&attr);
            assert_eq!((sent.mtime, sent.mtimensec), (secs, nanos));
        }
    }

    #[test]
    fn a_device_number_reaches_statx_in_two_parts() {
        // 8:17, and numbers that take all bits: 0xabc:0xdef12.
        for (rdev, parts) in [(0x811, (8, 17)), (0xdef_abc12, (0xabc, 0xdef12))] {
            let attr = Attr {
                rdev,
                ..attributes()
            };
            let sent = NodeNumbers::new(1).statx(&attr);
            assert_eq!((sent.rdev_major, sent.rdev_minor), parts);
        }
    }

    fn attributes() -> Attr {
        let time = Time { secs: 0, nanos: 0 };
        Attr {
            ino: 2,
            generation: 0,
            kind: FileKind::Regular,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }

    #[test]
    fn a_file_system_that_lacks_a_call_does_not_switch_it_off_for_ever() {
        assert_eq!(
            errno(&Errno::NoSys.into()),
            steadfast_fuse_wire::Errno::OPNOTSUPP
        );
        assert_eq!(errno(&Errno::NoSpc.into()).raw_os_error(), 28);
        assert_eq!(errno(&Errno::Uclean.into()).raw_os_error(), 117);
    }

    #[test]
    fn unknown_flags_are_refused_not_ignored() {
        assert_eq!(rename_mode(rename::EXCHANGE | rename::WHITEOUT), None);
        assert_eq!(rename_mode(rename::EXCHANGE | rename::NOREPLACE), None);
        assert_eq!(allocate_mode(0x02), None, "a punch without KEEP_SIZE");
        assert_eq!(allocate_mode(0x08), None, "collapse");
        assert_eq!(xattr_mode(3), None);
        assert_eq!(node_kind(0o040_000), None, "mknod makes no directories");
    }
}
