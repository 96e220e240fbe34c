//! The operations that are compared, and the tree that each of them finds.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom,
    Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags, mknodat, open, utimensat,
};

use crate::common::User;

pub(crate) type Act = fn(&Path) -> io::Result<String>;

/// Owner of most files.
const OWNER: User = User {
    uid: 1000,
    gid: 1000,
    groups: &[],
};
/// Belongs to group 2000 by a supplementary group.
const MEMBER: User = User {
    uid: 1001,
    gid: 1001,
    groups: &[2000],
};
/// Owns nothing, and is in no group.
const OTHER: User = User {
    uid: 1002,
    gid: 1002,
    groups: &[],
};

/// Fills a new directory.
pub(crate) fn fill(dir: &Path) {
    let file = |name: &str, len: usize, mode: u32, (uid, gid): (u32, u32)| {
        let path = dir.join(name);
        fs::write(&path, vec![b'x'; len]).unwrap();
        chown(&path, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    };
    let subdir = |name: &str, mode: u32, (uid, gid): (u32, u32)| {
        let path = dir.join(name);
        fs::create_dir(&path).unwrap();
        chown(&path, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    };
    fs::create_dir(dir).unwrap();
    fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap();
    file("file", 7, 0o644, (1000, 1000));
    file("other", 9, 0o666, (1000, 1000));
    file("big", 100_000, 0o666, (1000, 1000));
    file("empty", 0, 0o666, (1000, 1000));
    file("suid", 8000, 0o6777, (1000, 1000));
    file("sgid", 8000, 0o2766, (1000, 1000));
    file("group", 10, 0o660, (0, 2000));
    file("gsuid", 10, 0o6770, (0, 2000));
    subdir("a", 0o755, (1000, 1000));
    subdir("b", 0o755, (1000, 1000));
    subdir("a/sub", 0o755, (1000, 1000));
    file("a/inner", 3, 0o644, (1000, 1000));
    subdir("sticky", 0o1777, (0, 0));
    file("sticky/theirs", 3, 0o666, (1000, 1000));
    subdir("setgid", 0o2777, (1000, 2000));
    subdir("void", 0o755, (1000, 1000));
    fs::hard_link(dir.join("file"), dir.join("hard")).unwrap();
    symlink("file", dir.join("link")).unwrap();
    lchown(dir.join("link"), Some(1000), Some(1000)).unwrap();
    mknodat(
        CWD,
        dir.join("fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"data", 1 << 16).unwrap();
    sparse.set_len(1 << 18).unwrap();
    rustix::fs::setxattr(dir.join("other"), "user.x", b"value", XattrFlags::empty()).unwrap();
}

fn at(path: impl AsRef<Path>, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(open(
        path.as_ref(),
        flags | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o640),
    )?)
}
fn rw(path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    at(path, OFlags::RDWR)
}
/// Copies a program in another process. A child that another test of this process forks meanwhile would inherit a
/// file open for writing here, and running the copy would fail with "Text file busy".
fn copy_program(from: &str, to: &Path) -> io::Result<()> {
    let status = std::process::Command::new("cp")
        .arg(from)
        .arg(to)
        .status()?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| io::Error::other("cp failed"))
}
fn ok(_: impl Sized) -> io::Result<String> {
    Ok(String::new())
}
fn show(what: impl std::fmt::Debug) -> io::Result<String> {
    Ok(format!("{what:?}"))
}
fn time(tv_sec: i64, tv_nsec: u32) -> Timespec {
    Timespec {
        tv_sec,
        tv_nsec: tv_nsec.into(),
    }
}
fn times(
    path: impl AsRef<Path>,
    last_access: Timespec,
    last_modification: Timespec,
) -> io::Result<String> {
    let times = Timestamps {
        last_access,
        last_modification,
    };
    ok(utimensat(
        CWD,
        path.as_ref(),
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: UTIME_NOW,
};
const OMIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: UTIME_OMIT,
};
fn chmod(path: impl AsRef<Path>, mode: u32) -> io::Result<String> {
    ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}
fn allocate(
    path: impl AsRef<Path>,
    flags: FallocateFlags,
    offset: u64,
    len: u64,
) -> io::Result<String> {
    ok(rustix::fs::fallocate(rw(path)?, flags, offset, len)?)
}
fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>, flags: RenameFlags) -> io::Result<String> {
    ok(rustix::fs::renameat_with(
        CWD,
        from.as_ref(),
        CWD,
        to.as_ref(),
        flags,
    )?)
}
fn find(path: impl AsRef<Path>, from: SeekFrom) -> io::Result<String> {
    show(rustix::fs::seek(rw(path)?, from)?)
}
/// A buffer for direct input and output: aligned to 4 KiB within a longer one.
fn aligned(space: &mut Vec<u8>, len: usize) -> &mut [u8] {
    space.resize(len + 4096, b'd');
    let skip = space.as_ptr().align_offset(4096);
    &mut space[skip..skip + len]
}

include!("rows.rs");
