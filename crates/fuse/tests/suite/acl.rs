//! POSIX ACLs through a mount: the kernel enforces them, keeps no stale ones, and leaves the umask to
//! the server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use common::Mount;
use rustix::fs::{Gid, Uid, XattrFlags};
use rustix::io::Errno;
use steadfast_fuse::MountOptions;
use steadfast_vfs::acl::{Acl, Entry, Who};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// Users who own nothing.
const NAMED: u32 = 65_533;
const OTHER: u32 = 65_534;

fn list(named: u8, mask: u8) -> Vec<u8> {
    let entry = |(who, perm)| Entry { who, perm };
    let entries = [
        (Who::Owner, 7),
        (Who::User(NAMED), named),
        (Who::OwningGroup, 0),
        (Who::Mask, mask),
        (Who::Other, 0),
    ];
    Acl::new(entries.map(entry).to_vec()).unwrap().to_xattr()
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Result<Acl, Errno> {
    let mut value = [0; 4096];
    let len = rustix::fs::getxattr(path, name, &mut value)?;
    Ok(Acl::from_xattr(&value[..len]).unwrap().unwrap())
}

fn names(path: &Path) -> String {
    let mut names = [0; 4096];
    let len = rustix::fs::listxattr(path, &mut names).unwrap();
    String::from_utf8_lossy(&names[..len]).into_owned()
}

/// Access of a user without capabilities to a file: read, write.
fn may(uid: u32, path: &Path) -> (bool, bool) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (gid, uid) = (Gid::from_raw(OTHER), Uid::from_raw(uid));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let write = File::options().append(true).open(path);
            (File::open(path).is_ok(), write.is_ok())
        });
        thread.join().unwrap()
    })
}

fn perm(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A mount that others may use; only root can be another user.
fn mounted(change: impl FnOnce(&mut MountOptions)) -> Option<Mount> {
    if !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("only root can act as other users");
        return None;
    }
    Mount::new(|options| {
        options.allow_other = true;
        change(options);
    })
}

#[test]
fn the_kernel_uses_the_current_list() {
    let Some(m) = mounted(|_| {}) else { return };
    let f = m.join("f");
    fs::write(&f, b"secret").unwrap();
    chmod(&f, 0o600);
    assert_eq!(may(NAMED, &f), (false, false));
    set(&f, ACCESS, &list(6, 7)).unwrap();
    assert_eq!(perm(&f), 0o770);
    assert_eq!(may(NAMED, &f), (true, true));
    assert_eq!(may(OTHER, &f), (false, false));
    // The mode changes the mask, in the list that the kernel has cached, too.
    chmod(&f, 0o740);
    assert_eq!(may(NAMED, &f), (true, false));
    assert_eq!(get(&f, ACCESS).unwrap().perm(Who::Mask), Some(4));
    set(&f, ACCESS, &list(0, 7)).unwrap();
    assert_eq!(may(NAMED, &f), (false, false));
    assert_eq!(names(&f), format!("{ACCESS}\0"));
    rustix::fs::removexattr(&f, ACCESS).unwrap();
    assert_eq!(get(&f, ACCESS), Err(Errno::NODATA));
    assert_eq!(names(&f), "");
}

#[test]
fn a_default_list_takes_the_place_of_the_umask() {
    let Some(m) = mounted(|_| {}) else { return };
    let d = m.join("d");
    fs::create_dir(&d).unwrap();
    let make = |dir: &Path| {
        let script = "umask 077; echo x > f; mkdir s; mknod p p; ln -s f l";
        let mut command = Command::new("sh");
        let made = command.args(["-ec", script]).current_dir(dir).status();
        assert!(made.unwrap().success());
    };
    make(&d);
    for (name, mode) in [("f", 0o600), ("s", 0o700), ("p", 0o600)] {
        assert_eq!(perm(&d.join(name)), mode, "{name}");
    }
    let e = m.join("e");
    fs::create_dir(&e).unwrap();
    set(&e, DEFAULT, &list(6, 7)).unwrap();
    make(&e);
    for (name, mode) in [("f", 0o660), ("s", 0o770), ("p", 0o660)] {
        assert_eq!(perm(&e.join(name)), mode, "{name}");
        let acl = get(&e.join(name), ACCESS).unwrap();
        assert_eq!(acl.perm(Who::User(NAMED)), Some(6), "{name}");
    }
    assert_eq!(get(&e.join("s"), DEFAULT).unwrap().to_xattr(), list(6, 7));
    assert_eq!(get(&e.join("f"), DEFAULT), Err(Errno::NODATA));
    chmod(&e, 0o711);
    assert_eq!(may(NAMED, &e.join("f")), (true, true));
}

#[test]
fn noacl_offers_none_and_hides_those_that_are_there() {
    let Some(m) = mounted(|options| options.acl = Some(false)) else {
        return;
    };
    let f = m.join("f");
    fs::write(&f, b"").unwrap();
    assert_eq!(set(&f, ACCESS, &list(6, 7)), Err(Errno::OPNOTSUPP));
    assert_eq!(get(&f, ACCESS), Err(Errno::OPNOTSUPP));
    let fs = &m.fs.inner;
    let root = steadfast_vfs::Caller::root();
    let ino = steadfast_vfs::FileSystem::lookup(fs, &root, 1, b"f")
        .unwrap()
        .ino;
    let any = steadfast_vfs::XattrMode::Any;
    steadfast_vfs::FileSystem::setxattr(fs, &root, ino, ACCESS.as_bytes(), &list(6, 7), any)
        .unwrap();
    assert_eq!(names(&f), "");
}

/// More than a page of entries, which the kernel refuses by itself, and as many as it passes on.
#[test]
fn a_thousand_entries_are_too_many_and_say_so() {
    let Some(m) = mounted(|_| {}) else { return };
    let f = m.join("f");
    fs::write(&f, b"").unwrap();
    let of = |users: u32| {
        let mut entries = vec![(Who::Owner, 6)];
        entries.extend((1..=users).map(|uid| (Who::User(uid), 4)));
        entries.extend([(Who::OwningGroup, 4), (Who::Mask, 7), (Who::Other, 0)]);
        let entries = entries.into_iter().map(|(who, perm)| Entry { who, perm });
        Acl::new(entries.collect()).unwrap().to_xattr()
    };
    assert_eq!(set(&f, ACCESS, &of(1000)), Err(Errno::TOOBIG));
    set(&f, ACCESS, &of(500)).unwrap();
    assert_eq!(get(&f, ACCESS).unwrap().entries().len(), 504);
    chmod(&f, 0o600);
    assert_eq!(names(&f), format!("{ACCESS}\0"));
}
