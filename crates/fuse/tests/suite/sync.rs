//! The mount options `sync` and `dirsync`: changes are durable before the call returns.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::sync::atomic::Ordering::SeqCst;

use common::Mount;
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};

/// A change, and its name.
type Change<'a> = (&'static str, Box<dyn Fn() + 'a>);

/// Changes of names, one by one.
fn names(m: &Mount) -> [Change<'_>; 8] {
    [
        ("mkdir", Box::new(|| fs::create_dir(m.join("d")).unwrap())),
        (
            "create",
            Box::new(|| drop(fs::File::create(m.join("f")).unwrap())),
        ),
        ("symlink", Box::new(|| symlink("f", m.join("s")).unwrap())),
        (
            "link",
            Box::new(|| fs::hard_link(m.join("f"), m.join("l")).unwrap()),
        ),
        (
            "rename",
            Box::new(|| fs::rename(m.join("l"), m.join("d/l")).unwrap()),
        ),
        (
            "unlink",
            Box::new(|| fs::remove_file(m.join("d/l")).unwrap()),
        ),
        ("rmdir", Box::new(|| fs::remove_dir(m.join("d")).unwrap())),
        (
            "create directly",
            Box::new(|| {
                drop(
                    OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .open(m.join("g"))
                        .unwrap(),
                );
            }),
        ),
    ]
}

/// Changes of content and attributes of `f` and `g`.
fn content(m: &Mount) -> [Change<'_>; 7] {
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(m.join("f"))
            .unwrap()
    };
    [
        (
            "write",
            Box::new(move || open(OFlags::empty()).write_all(b"x").unwrap()),
        ),
        (
            "direct write",
            Box::new(move || {
                // Aligned, because it lies within a large allocation.
                let page = vec![0u8; 8192];
                let start = page.as_ptr().align_offset(4096);
                open(OFlags::DIRECT)
                    .write_all_at(&page[start..start + 4096], 0)
                    .unwrap();
            }),
        ),
        (
            "write to a new file",
            Box::new(|| {
                fs::File::create(m.join("new"))
                    .unwrap()
                    .write_all(b"x")
                    .unwrap();
            }),
        ),
        (
            "truncate",
            Box::new(move || open(OFlags::empty()).set_len(1).unwrap()),
        ),
        (
            "chmod",
            Box::new(|| {
                fs::set_permissions(m.join("f"), fs::Permissions::from_mode(0o640)).unwrap();
            }),
        ),
        (
            "setxattr",
            Box::new(|| {
                rustix::fs::setxattr(m.join("f"), "user.x", b"y", XattrFlags::empty()).unwrap();
            }),
        ),
        (
            "fallocate",
            Box::new(move || {
                rustix::fs::fallocate(open(OFlags::empty()), FallocateFlags::empty(), 0, 8192)
                    .unwrap();
            }),
        ),
    ]
}

fn shows(m: &Mount, word: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = m.path();
    let line = mounts
        .lines()
        .find(|line| line.contains(point.to_str().unwrap()))
        .unwrap();
    line.split([' ', ',']).any(|shown| shown == word)
}

#[test]
fn under_dirsync_every_change_of_names_is_durable_when_the_call_returns() {
    let Some(m) = Mount::new(|options| options.dir_sync = true) else {
        return;
    };
    for (name, change) in names(&m) {
        let before = m.fs.fsyncs.load(SeqCst);
        change();
        assert!(m.fs.fsyncs.load(SeqCst) > before, "{name}");
    }
    let before = m.fs.fsyncs.load(SeqCst);
    OpenOptions::new()
        .write(true)
        .open(m.join("f"))
        .unwrap()
        .write_all(b"x")
        .unwrap();
    assert_eq!(
        m.fs.fsyncs.load(SeqCst),
        before,
        "content is not what dirsync is about"
    );
    assert!(shows(&m, "dirsync"));
}

#[test]
fn under_sync_every_change_is_durable_when_the_call_returns() {
    let change = |options: &mut steadfast_fuse::MountOptions| {
        (options.sync, options.dir_sync) = (true, true);
    };
    let Some(m) = Mount::new(change) else { return };
    for (name, change) in names(&m).into_iter().chain(content(&m)) {
        let before = m.fs.fsyncs.load(SeqCst);
        change();
        assert!(m.fs.fsyncs.load(SeqCst) > before, "{name}");
    }
    assert!(shows(&m, "sync"));
}

#[test]
fn without_them_nothing_is_made_durable_that_was_not_asked_for() {
    let Some(m) = Mount::new(|_| {}) else { return };
    for (_, change) in names(&m).into_iter().chain(content(&m)) {
        change();
    }
    assert_eq!(m.fs.fsyncs.load(SeqCst), 0);
}

#[test]
fn symbolic_links_are_not_followed_if_so_wanted() {
    let Some(m) = Mount::new(|options| options.no_symlinks = true) else {
        return;
    };
    fs::write(m.join("f"), "content").unwrap();
    symlink("f", m.join("s")).unwrap();
    assert_eq!(fs::read_link(m.join("s")).unwrap().to_str(), Some("f"));
    assert_eq!(
        fs::read(m.join("s")).unwrap_err().raw_os_error(),
        Some(rustix::io::Errno::LOOP.raw_os_error())
    );
}
