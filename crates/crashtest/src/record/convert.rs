//! Conversions between the tree's types and the protocol's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, RenameFlags, TimeOrNow};
use steadfast_vfs::{Attr, FileKind, Time};

use crate::trace::{Alloc, Kind, Rename, When, XattrHow};

pub(super) fn time(at: SystemTime) -> Time {
    match at.duration_since(UNIX_EPOCH) {
        Ok(d) => Time {
            secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            nanos: d.subsec_nanos(),
        },
        // The protocol crate gives times before 1970 as 1970 − (seconds + nanoseconds): this undoes it.
        Err(before) => Time {
            secs: i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |s| -s),
            nanos: before.duration().subsec_nanos(),
        },
    }
}

fn system_time(time: Time) -> SystemTime {
    let secs = Duration::from_secs(time.secs.unsigned_abs());
    let whole = match time.secs >= 0 {
        true => UNIX_EPOCH.checked_add(secs),
        false => UNIX_EPOCH.checked_sub(secs),
    };
    whole
        .and_then(|t| t.checked_add(Duration::from_nanos(u64::from(time.nanos))))
        .unwrap_or(UNIX_EPOCH)
}

pub(super) fn when(time_or_now: TimeOrNow) -> When {
    match time_or_now {
        TimeOrNow::Now => When::Now,
        TimeOrNow::SpecificTime(at) => When::At(time(at).into()),
    }
}

pub(super) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
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

pub(super) fn file_type(kind: FileKind) -> FileType {
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

pub(super) fn rename(flags: RenameFlags) -> Option<Rename> {
    let (no_replace, whiteout) = (RenameFlags::RENAME_NOREPLACE, RenameFlags::RENAME_WHITEOUT);
    match flags {
        f if f.is_empty() => Some(Rename::Replace),
        f if f == no_replace => Some(Rename::NoReplace),
        f if f == RenameFlags::RENAME_EXCHANGE => Some(Rename::Exchange),
        f if f == whiteout => Some(Rename::Whiteout),
        f if f == whiteout | no_replace => Some(Rename::WhiteoutNoReplace),
        _ => None,
    }
}

/// The mode of fallocate(2); None for collapse, insert, unshare.
pub(super) fn alloc(mode: i32) -> Option<Alloc> {
    match mode {
        0 => Some(Alloc::Allocate),
        0x01 => Some(Alloc::KeepSize),
        0x03 => Some(Alloc::PunchHole),
        0x10 => Some(Alloc::ZeroRange),
        0x11 => Some(Alloc::ZeroRangeKeepSize),
        _ => None,
    }
}

pub(super) fn xattr(flags: i32) -> Option<XattrHow> {
    match flags {
        0 => Some(XattrHow::Any),
        1 => Some(XattrHow::Create),
        2 => Some(XattrHow::Replace),
        _ => None,
    }
}
