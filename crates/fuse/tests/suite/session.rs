//! Mounts as sessions: their entries in the system's tables, the users that may use them, and their end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::Mount;
use rustix::io::Errno;
use steadfast_fuse::{Ended, MountError, MountOptions, Unmount, mountinfo};

/// Longer than anything takes on a busy machine: only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(300);

macro_rules! mounted {
    () => {
        mounted!(|_| {})
    };
    ($change:expr) => {
        match Mount::new($change) {
            Some(mount) => mount,
            None => return,
        }
    };
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.expect_err("must fail").raw_os_error()
}

fn code(errno: Errno) -> Option<i32> {
    Some(errno.raw_os_error())
}

#[test]
fn the_mount_shows_its_source_and_the_space_of_the_volume() {
    use steadfast_vfs::FileSystem;
    let m = mounted!();
    let entry = mountinfo::mount_at(&m.path().canonicalize().unwrap())
        .unwrap()
        .unwrap();
    assert_eq!(entry.fs_type, "fuse");
    assert!(!entry.is_ours());
    assert_eq!(
        entry.source,
        std::path::Path::new("/tmp/a volume, of sorts")
    );
    let space = rustix::fs::statvfs(m.path()).unwrap();
    let own = m.fs.statfs().unwrap();
    assert_eq!(
        (space.f_blocks, space.f_bfree, space.f_bavail),
        (own.blocks, own.blocks_free, own.blocks_free)
    );
    assert_eq!(
        (space.f_files, space.f_ffree),
        (own.inodes, own.inodes_free)
    );
    assert_eq!(
        (space.f_frsize, space.f_namemax),
        (u64::from(own.block_size), 255)
    );
}

/// Runs a shell command as an ordinary user; returns whether it succeeded.
fn as_nobody(command: &str, dir: &std::path::Path) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir("/").env("D", dir);
    shell
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap()
        .status
        .success()
}

#[test]
fn corner_63_other_users_get_in_only_if_let_and_only_as_far_as_modes_permit() {
    if !rustix::process::geteuid().is_root() {
        return steadfast_testkit::skipped!("only root can become another user");
    }
    let own = mounted!();
    assert!(!as_nobody("ls $D", &own.path()), "owner only");

    let m = mounted!(|options| options.allow_other = true);
    let dir = m.path();
    let set = |name: &str, mode| fs::set_permissions(m.join(name), PermissionsExt::from_mode(mode));
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(m.join("public"), "x").unwrap();
    set("public", 0o644).unwrap();
    fs::write(m.join("secret"), "x").unwrap();
    set("secret", 0o600).unwrap();
    fs::create_dir(m.join("closed")).unwrap();
    fs::write(m.join("closed/inside"), "x").unwrap();
    fs::metadata(m.join("closed/inside")).unwrap(); // now the kernel knows the name
    set("closed", 0o700).unwrap();
    assert!(as_nobody("cat $D/public", &dir));
    assert!(!as_nobody("cat $D/secret", &dir));
    assert!(!as_nobody("echo y >> $D/public", &dir));
    assert!(!as_nobody("cat $D/closed/inside", &dir));
    assert!(!as_nobody("touch $D/new", &dir));
    assert!(!as_nobody("chmod 777 $D/secret", &dir));
    assert!(!as_nobody("rm -f $D/public", &dir));
    fs::create_dir(m.join("shared")).unwrap();
    set("shared", 0o1777).unwrap();
    fs::write(m.join("shared/root"), "x").unwrap();
    assert!(as_nobody("touch $D/shared/mine", &dir));
    assert_eq!(fs::metadata(m.join("shared/mine")).unwrap().uid(), 65534);
    assert!(!as_nobody("rm -f $D/shared/root", &dir), "sticky");
    assert!(as_nobody("rm $D/shared/mine", &dir));

    // A write by another user takes the set-id bits away; one by root does not.
    fs::write(m.join("setid"), "x").unwrap();
    set("setid", 0o6777).unwrap();
    fs::write(m.join("setid"), "y").unwrap();
    assert_eq!(
        fs::metadata(m.join("setid")).unwrap().mode() & 0o7777,
        0o6777
    );
    assert!(as_nobody("echo y >> $D/setid", &dir));
    assert_eq!(
        fs::metadata(m.join("setid")).unwrap().mode() & 0o7777,
        0o777
    );
}

#[test]
fn a_request_that_panics_is_answered_and_the_session_says_so() {
    let mut m = mounted!();
    fs::write(m.join("before"), "x").unwrap();
    m.fs.panic_in_statfs.store(true, SeqCst);
    assert_eq!(rustix::fs::statvfs(m.path()).err(), Some(Errno::IO));
    m.fs.panic_in_statfs.store(false, SeqCst);
    assert_eq!(
        errno(fs::write(m.join("after"), "x")),
        code(Errno::IO),
        "nothing goes on as if"
    );
    let path = m.path();
    let ended = m.session.take().unwrap().shutdown(PATIENCE);
    assert_eq!(ended, Ended::Failed("statfs panics on purpose".to_owned()));
    assert!(mountinfo::mount_at(&path).unwrap().is_none());
}

#[test]
fn unmounting_from_outside_ends_the_session() {
    let mut m = mounted!();
    fs::write(m.join("file"), "x").unwrap();
    let session = m.session.take().unwrap();
    let unmounter = session.unmounter();
    let busy = File::open(m.join("file")).unwrap();
    let refused = unmounter.unmount(Unmount::IfIdle).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy);
    assert!(!session.has_ended());
    drop(busy);
    let other =
        std::thread::spawn(move || common::when_free(|| unmounter.unmount(Unmount::IfIdle)));
    assert_eq!(session.join(), Ended::Clean);
    other.join().unwrap().unwrap();
    assert_eq!(m.fs.held(), 0);
    assert!(mountinfo::mount_at(&m.path()).unwrap().is_none());
}

#[test]
fn a_busy_mount_is_taken_out_of_the_tree_and_stops_after_its_grace() {
    let mut m = mounted!();
    let mut file = File::create(m.join("file")).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let mut session = m.session.take().unwrap();
    session.on_end(move |ended| drop(tell.send(ended.clone())));
    let ended = session.shutdown(Duration::from_millis(200));
    assert_eq!(ended, Ended::Abandoned);
    assert_eq!(told.try_recv(), Ok(Ended::Abandoned));
    assert!(!m.join("file").exists());
    assert_eq!(errno(file.write_all(b"too late")), code(Errno::IO));
    assert_eq!(m.fs.held(), 0);
}

#[test]
fn a_dropped_session_leaves_no_mount_and_spares_the_one_below() {
    let m = mounted!();
    let path = m.path();
    let lower = mountinfo::mounts().unwrap().len();
    let options = MountOptions {
        over: true,
        ..MountOptions::new("second").subtype("second")
    };
    let upper = steadfast_fuse::mount(
        std::sync::Arc::new(common::Watched::default()),
        &path,
        &options,
    )
    .unwrap();
    fs::write(path.join("upper"), "").unwrap();
    // Unmounted by another process: the session must not unmount a mount that it finds there then.
    common::when_free(|| steadfast_fuse::unmount(&path, Unmount::IfIdle)).unwrap();
    assert_eq!(upper.join(), Ended::Clean);
    assert_eq!(
        mountinfo::mounts()
            .unwrap()
            .iter()
            .filter(|m| m.mount_point == path)
            .count(),
        1
    );
    assert!(mountinfo::mounts().unwrap().len() >= lower.min(1));
    assert!(!path.join("upper").exists());
    drop(m);
    assert!(mountinfo::mount_at(&path).unwrap().is_none());
}

#[test]
fn the_type_of_a_mount_is_the_embedders() {
    let Some(m) = Mount::new(|options| options.subtype = Some("example-fs".to_owned())) else {
        return;
    };
    let point = m.path().canonicalize().unwrap();
    let entry = mountinfo::mount_at(&point).unwrap().unwrap();
    assert_eq!(entry.fs_type, "fuse.example-fs");
    assert!(!entry.is_ours());
    // A program that asks by the type finds it, and no other mount.
    let found = Command::new("findmnt")
        .args(["-rno", "TARGET", "-t", "fuse.example-fs"])
        .output()
        .unwrap();
    assert_eq!(found.stdout, format!("{}\n", point.display()).as_bytes());
    // The session knows its mount by this type, and leaves nothing behind.
    drop(m);
    assert!(mountinfo::mount_at(&point).unwrap().is_none());
}

#[test]
fn a_subtype_that_would_be_an_option_is_refused_before_anything_is_mounted() {
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions::new("x").subtype("a,allow_other");
    let fs = std::sync::Arc::new(common::Watched::default());
    let refused = steadfast_fuse::mount(fs, dir.path(), &options).err();
    assert!(matches!(refused, Some(MountError::Subtype { .. })));
    assert!(mountinfo::mount_at(dir.path()).unwrap().is_none());
}

#[test]
fn a_mount_point_that_cannot_be_used_is_named() {
    let m = mounted!();
    let fs = || std::sync::Arc::new(common::Watched::default());
    let try_at =
        |path: &std::path::Path| steadfast_fuse::mount(fs(), path, &MountOptions::new("x")).err();
    assert!(matches!(try_at(&m.path()), Some(MountError::InUse { .. })));
    assert!(matches!(
        try_at(&m.join("absent")),
        Some(MountError::Absent { .. })
    ));
    fs::write(m.join("file"), "").unwrap();
    assert!(matches!(
        try_at(&m.join("file")),
        Some(MountError::NotADirectory { .. })
    ));
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    let m = mounted!(|options| options.read_only = true);
    assert_eq!(errno(fs::write(m.join("x"), "x")), code(Errno::ROFS));
    assert_eq!(fs::read_dir(m.path()).unwrap().count(), 0);
    steadfast_fuse::sync(&m.path()).unwrap();
}
