//! Behaviour of mounts: for an ordinary user, with impossible options and places, when the server is asked to end and
//! when it is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{PROGRAM, Place, said};
use rustix::process::{Pid, Signal, kill_process};

const NOBODY: u32 = 65534;

/// Runs a script as root, in which `u COMMAND…` runs as the user `nobody`, in a directory of that user, where all users may
/// open /dev/fuse, as with udev. Its mounts are gone when it ends. None if that is not possible.
fn as_nobody(place: &Place, script: &str) -> Option<String> {
    for path in [
        place.path().to_owned(),
        place.mnt(),
        place.path().join("img"),
    ] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let script = format!(
        "u() {{ setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups \"$@\"; }}
         mount -t tmpfs -o mode=755 tmpfs /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/fuse c 10 229 &&
         u fusermount3 --version >/dev/null || exit 77
         steadfast() {{ u {PROGRAM} \"$@\"; }}
         # Fails unless the command fails with this code and says this.
         refused() {{
             code=$1 word=$2; shift 2
             status=0; said=$(\"$@\" 2>&1) || status=$?
             [ $status = $code ] && printf %s \"$said\" | grep -qF -- \"$word\" || {{ echo \"$*: $status: $said\"; exit 1; }}
         }}
         {script}
         echo done"
    );
    let output = place.command("unshare", &["-m", "sh", "-ec", &script]);
    if output.status.code() == Some(77) {
        steadfast_testkit::skipped!("setpriv, fusermount3 and a private /dev are needed");
        return None;
    }
    assert!(output.status.success(), "{}", said(&output));
    assert!(output.stdout.ends_with(b"done\n"), "{}", said(&output));
    Some(said(&output))
}

fn state(place: &Place) -> String {
    place.must(&["info", "--json", "img"])
}

#[test]
fn an_ordinary_user_mounts_uses_and_unmounts() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    let script = "
        rm img
        steadfast mkfs --size 64M img
        steadfast mount img mnt
        grep -q ' fuse.steadfast rw,nosuid,nodev,.*user_id=65534' /proc/self/mounts
        u sh -ec 'echo content >mnt/file; mkdir mnt/dir; mv mnt/file mnt/dir; cat mnt/dir/file'
        [ \"$(u stat -c %u mnt/dir)\" = 65534 ]
        # Without allow_other, not even root gets in.
        if ls mnt 2>/dev/null; then exit 1; fi
        steadfast sync mnt
        steadfast stat mnt >/dev/null
        steadfast info mnt | grep -q 'state: *mounted'
        refused 1 'is in use' steadfast mount img mnt
        steadfast umount mnt
        steadfast info img | grep -q 'state: *clean'
        # fusermount3 refuses, in its own words, what only root may allow.
        if ! grep -qsx user_allow_other /etc/fuse.conf; then
            refused 1 user_allow_other steadfast mount -o allow_other img mnt
        fi
        # root's directory is no mount point, root's image cannot be opened.
        mkdir roots
        refused 1 roots steadfast mount img roots
        chown 0 img
        refused 1 'this user may not read it' steadfast mount img mnt
        refused 1 'this user may not read it' steadfast mount -o ro img mnt
    ";
    if as_nobody(&place, script).is_some() {
        place.must(&["fsck", "img"]);
    }
}

#[test]
fn an_entry_of_fstab_lets_an_ordinary_user_mount() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    let script = format!(
        "mkdir sbin; {PROGRAM} install-helper sbin >/dev/null
         mount -t overlay overlay -o lowerdir=$PWD/sbin:/usr/sbin /usr/sbin || exit 77
         echo \"$PWD/img $PWD/mnt fuse.steadfast user,noauto,cache=8M 0 0\" >fstab
         mount --bind fstab /etc/fstab
         u mount $PWD/mnt
         grep \" $PWD/mnt fuse.steadfast rw,nosuid,nodev,noexec,.*user_id=65534\" /proc/self/mounts
         u umount $PWD/mnt
         steadfast info img | grep -q 'state: *clean'"
    );
    as_nobody(&place, &script);
}

#[test]
fn what_cannot_be_mounted_is_refused_and_says_why() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    fs::write(
        place.path().join("file"),
        "no volume, but long enough to be asked",
    )
    .unwrap();
    for (code, args, word) in [
        (
            2,
            &["mount", "-o", "frobnicate", "img", "mnt"][..],
            "unknown option 'frobnicate'; known are: ro, rw",
        ),
        (2, &["mount", "-o", "strictatime", "img", "mnt"], "relatime"),
        (
            2,
            &["mount", "-o", "cache=1K", "img", "mnt"],
            "1M is the least",
        ),
        (
            2,
            &["mount", "-o", "ro=yes", "img", "mnt"],
            "takes no value",
        ),
        (
            1,
            &["mount", "-o", "contract=sync", "img", "mnt"],
            "runs under the contract 'ordered'",
        ),
        (1, &["mount", "img", "nowhere"], "make it first (mkdir)"),
        (1, &["mount", "img", "file"], "is not a directory"),
        (
            1,
            &["mount", "nothing", "mnt"],
            "does not exist; check the name",
        ),
        (1, &["mount", "file", "mnt"], "no Steadfast volume"),
        (1, &["mount", "/dev/null", "mnt"], "character device"),
        (1, &["mount", "mnt", "mnt"], "is a directory"),
        (1, &["umount", "mnt"], "nothing is mounted there"),
        (1, &["umount", "/proc"], "use umount(8)"),
        (1, &["info", "nothing"], "does not exist; check the name"),
        (1, &["sync", "mnt"], "not on a mounted Steadfast volume"),
        (8, &["fsck", "nothing"], "does not exist; check the name"),
    ] {
        let said = place.refused(code, args);
        assert!(said.contains(word), "{args:?}: {said}");
        assert!(said.trim_end().lines().count() == 1, "{args:?}: {said}");
    }
    assert!(place.must(&["mount", "--help"]).contains("allow_other"));

    fs::create_dir(place.path().join("other")).unwrap();
    place.must(&["mount", "img", "mnt"]);
    for (args, word) in [
        (&["mount", "img", "other"][..], "is in use: it is mounted"),
        (&["mount", "img", "mnt"], "is mounted there"),
        (&["mkfs", "--force", "img"], "is in use"),
    ] {
        assert!(place.refused(1, args).contains(word), "{args:?}");
    }
    // Somebody works in it.
    let held = fs::File::create(place.mnt().join("held")).unwrap();
    assert!(
        place
            .refused(1, &["umount", "mnt"])
            .contains("is in use by")
    );
    drop(held);
    place.end();
}

#[test]
fn a_file_that_cannot_be_written_is_mounted_read_only_when_asked() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    let before = fs::read(place.path().join("img")).unwrap();
    let script = "
        chown 0 img; chmod 644 img
        refused 1 'mount -o ro' steadfast mount img mnt
        refused 8 \"without '--repair'\" steadfast fsck --repair img
        steadfast mount -o ro img mnt
        refused 1 'Read-only file system' u touch mnt/file
        steadfast umount mnt
        steadfast fsck img
    ";
    as_nobody(&place, script);
    assert!(
        fs::read(place.path().join("img")).unwrap() == before,
        "not a byte has changed"
    );
}

#[test]
fn a_kernel_without_fuse_is_named() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    let script = format!(
        "mount -t tmpfs tmpfs /dev && mknod /dev/null c 1 3 || exit 77; {PROGRAM} mount img mnt"
    );
    let output = place.command("unshare", &["-m", "sh", "-c", &script]);
    if output.status.code() == Some(77) {
        return steadfast_testkit::skipped!("no private /dev: {}", said(&output));
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("is the kernel module 'fuse' loaded"),
        "{}",
        said(&output)
    );
    assert!(state(&place).contains("\"clean\""));
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "waited in vain: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn server(place: &Place) -> Pid {
    let pid = steadfast_fuse::server_pid(&place.mnt()).unwrap();
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

#[test]
fn sigterm_unmounts_cleanly_even_while_files_are_open() {
    let _alone = common::alone();
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    fs::write(place.mnt().join("file"), "unsynced").unwrap();
    let held = fs::File::open(place.mnt().join("file")).unwrap();
    let pid = server(&place);
    kill_process(pid, Signal::TERM).unwrap();
    wait_until("the mount is gone", || {
        steadfast_fuse::mountinfo::mount_at(&place.mnt())
            .unwrap()
            .is_none()
    });
    wait_until("the server has ended", || {
        !Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
    });
    drop(held);
    assert!(state(&place).contains("\"clean\""));
    place.must(&["mount", "img", "mnt"]);
    assert_eq!(
        fs::read_to_string(place.mnt().join("file")).unwrap(),
        "unsynced"
    );
    place.end();
}

/// The dead mount stays in the tree until somebody unmounts it; every command reports it.
#[test]
fn sigkill_is_a_crash_that_keeps_what_was_synced() {
    let _alone = common::alone();
    let Some(place) = Place::mounted("commit=3600") else {
        return;
    };
    fs::write(place.mnt().join("synced"), "content").unwrap();
    place.must(&["sync", "mnt"]);
    fs::write(place.mnt().join("unsynced"), "content").unwrap();
    let pid = server(&place);
    kill_process(pid, Signal::KILL).unwrap();
    wait_until("the server is gone", || fs::metadata(place.mnt()).is_err());
    let asked = place.refused(1, &["mount", "img", "mnt"]);
    assert!(asked.contains("run 'steadfast umount"), "{asked}");
    let shown = place.must(&["info", "img"]);
    assert!(
        shown.contains("the server of the mount at") && shown.contains("is gone"),
        "{shown}"
    );
    assert!(
        place
            .refused(1, &["info", "mnt"])
            .contains("server is gone")
    );
    place.refused(1, &["umount", "mnt"]);
    assert!(state(&place).contains("\"needs-recovery\""));
    let told = place.must(&["mount", "img", "mnt"]);
    assert!(told.contains("recovered"), "{told}");
    assert_eq!(
        fs::read_to_string(place.mnt().join("synced")).unwrap(),
        "content"
    );
    assert!(
        !place.mnt().join("unsynced").exists(),
        "nothing made it durable within the hour"
    );
    place.end();
}

#[test]
fn the_service_is_one_that_systemd_takes() {
    let _alone = common::alone();
    let unit = include_str!("../../../../docs/systemd/steadfast@.service");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("steadfast@test.service");
    fs::write(&path, unit.replace("/usr/local/bin/steadfast", PROGRAM)).unwrap();
    let mut command = std::process::Command::new("systemd-analyze");
    let output = match command.args(["verify", "--man=no"]).arg(&path).output() {
        Ok(output) => output,
        Err(e) => return steadfast_testkit::skipped!("systemd-analyze: {e}"),
    };
    assert!(output.status.success(), "{}", said(&output));
    assert!(!said(&output).contains("steadfast@"), "{}", said(&output));
}
