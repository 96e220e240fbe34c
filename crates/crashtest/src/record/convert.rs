//! Conversions between the tree's types and the protocol's.

use std::time::{SystemTime, UNIX_EPOCH};

use steadfast_fuse_wire::abi::{self, fattr, rename};
use steadfast_vfs::{Attr, Time};

use crate::trace::{Alloc, Change, Kind, Rename, When, XattrHow};

/// A time of the system's clock; before 1970 seconds are negative, and nanoseconds are not.
pub(super) fn time(at: SystemTime) -> Time {
    let parts = |of: std::time::Duration| {
        (
            i64::try_from(of.as_secs()).unwrap_or(i64::MAX),
            of.subsec_nanos(),
        )
    };
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            let (secs, nanos) = parts(since);
            Time { secs, nanos }
        }
        Err(before) => match parts(before.duration()) {
            (secs, 0) => Time {
                secs: -secs,
                nanos: 0,
            },
            (secs, nanos) => Time {
                secs: -secs - 1,
                nanos: 1_000_000_000 - nanos,
            },
        },
    }
}

/// What a SETATTR request changes.
pub(super) fn change(asked: &abi::SetattrIn) -> Change {
    let has = |field: u32| asked.valid & field != 0;
    let when = |set: u32, now: u32, secs: i64, nanos: u32| match (has(now), has(set)) {
        (true, _) => Some(When::Now),
        (false, true) => Some(When::At(Time { secs, nanos }.into())),
        (false, false) => None,
    };
    Change {
        perm: has(fattr::MODE).then_some((asked.mode & 0o7777) as u16),
        uid: has(fattr::UID).then_some(asked.uid),
        gid: has(fattr::GID).then_some(asked.gid),
        size: has(fattr::SIZE).then_some(asked.size),
        atime: when(fattr::ATIME, fattr::ATIME_NOW, asked.atime, asked.atimensec),
        mtime: when(fattr::MTIME, fattr::MTIME_NOW, asked.mtime, asked.mtimensec),
    }
}

pub(super) fn attr(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.ino,
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
        blksize: 4096,
        flags: 0,
    }
}

/// The kind that a `mknod` mode asks for.
pub(super) fn kind(mode: u32) -> Option<Kind> {
    match mode & 0o170_000 {
        0 | 0o100_000 => Some(Kind::Regular),
        0o020_000 => Some(Kind::CharDevice),
        0o060_000 => Some(Kind::BlockDevice),
        0o010_000 => Some(Kind::Fifo),
        0o140_000 => Some(Kind::Socket),
        _ => None,
    }
}

pub(super) fn rename(flags: u32) -> Option<Rename> {
    const WHITEOUT_NOREPLACE: u32 = rename::WHITEOUT | rename::NOREPLACE;
    match flags {
        0 => Some(Rename::Replace),
        rename::NOREPLACE => Some(Rename::NoReplace),
        rename::EXCHANGE => Some(Rename::Exchange),
        rename::WHITEOUT => Some(Rename::Whiteout),
        WHITEOUT_NOREPLACE => Some(Rename::WhiteoutNoReplace),
        _ => None,
    }
}

/// The mode of fallocate(2); None for collapse, insert, unshare.
pub(super) fn alloc(mode: u32) -> Option<Alloc> {
    match mode {
        0 => Some(Alloc::Allocate),
        0x01 => Some(Alloc::KeepSize),
        0x03 => Some(Alloc::PunchHole),
        0x10 => Some(Alloc::ZeroRange),
        0x11 => Some(Alloc::ZeroRangeKeepSize),
        _ => None,
    }
}

pub(super) fn xattr(flags: u32) -> Option<XattrHow> {
    match flags {
        0 => Some(XattrHow::Any),
        1 => Some(XattrHow::Create),
        2 => Some(XattrHow::Replace),
        _ => None,
    }
}
