//! `mount -t fuse.steadfast`, entries in fstab, and umount(8), with the helpers in a private
//! mount namespace whose /sbin has them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::programs;
use programs::{PROGRAM, said};

fn steadfast(dir: &Path, args: &[&str]) -> Output {
    programs::run(dir, PROGRAM, args)
}

/// A directory with a volume `img`, a mount point `mnt`, and the helpers in `sbin`.
fn place() -> Option<tempfile::TempDir> {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("mounting needs /dev/fuse and root here");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["mnt", "sbin"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for args in [
        &["mkfs", "--size", "64M", "img"][..],
        &["install-helper", "sbin"],
    ] {
        let output = steadfast(dir.path(), args);
        assert!(output.status.success(), "{}", said(&output));
    }
    Some(dir)
}

/// Runs a script where /sbin has the helpers, too; nothing of it is left afterwards.
fn in_namespace(dir: &Path, script: &str) -> Option<Output> {
    let prepare = "mount -t overlay overlay -o lowerdir=$PWD/sbin:/usr/sbin /usr/sbin || exit 77\n";
    let output = Command::new("timeout")
        .args(["60", "unshare", "-m", "sh", "-ec"])
        .arg(format!("{prepare}{script}"))
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if output.status.code() == Some(77) {
        steadfast_testkit::skipped!("no overlay over /usr/sbin: {}", said(&output));
        return None;
    }
    Some(output)
}

#[test]
fn mount_and_umount_of_the_system_work_with_the_helpers() {
    let Some(dir) = place() else { return };
    let script = "
        trap 'umount -l mnt 2>/dev/null || true' EXIT
        # Looks at the mount's line for a pattern.
        shows() { grep \" $PWD/mnt fuse.steadfast \" /proc/self/mounts | grep -q \"$1\"; }
        mount -t fuse.steadfast -o noauto,x-test.y,cache=8M,contract=ordered img mnt
        # As mount(8) has it: 'dev' and 'suid' are its defaults, which it does not pass on.
        shows ' rw,'
        if shows 'no[ds][eu]'; then echo 'nodev or nosuid'; exit 1; fi
        echo content > mnt/file
        umount mnt
        # The image is closed when umount returns.
        $STEADFAST info --json img | grep -q '\"state\": \"clean\"'
        # A file of the volume mounted at another place: to unmount that, the volume need not be closed.
        mount -t steadfast -o nodiratime,lazytime,user_xattr,errors=remount-ro,dirsync img mnt
        shows dirsync
        touch other
        mount --bind mnt/file other
        umount other
        ls mnt/file
        # Seen from another namespace, it stays mounted: nothing to wait for.
        unshare -m --propagation private sh -c 'echo >ready; exec sleep 60' &
        while ! [ -e ready ]; do sleep 0.01; done
        $STEADFAST umount mnt
        kill $!
        wait $! || true
        for i in $(seq 600); do
            if mount -t steadfast -o ro img mnt 2>/dev/null; then break; fi
            sleep 0.1
        done
        cat mnt/file
        if touch mnt/new 2>/dev/null; then echo 'not read-only'; exit 1; fi
        # The server has the image open for reading: it is mounted anew, unless it is in use.
        exec 9<mnt/file
        if mount -o remount,rw mnt; then echo 'remounted'; exit 1; fi
        if touch mnt/new 2>/dev/null; then echo 'not read-only after all'; exit 1; fi
        exec 9<&-
        mount -o remount,rw mnt
        shows ' rw,'
        touch mnt/new
        umount mnt
        mount -t steadfast -o cache=8M,nodev img mnt
        echo before > mnt/new
        mount -o remount,ro,noexec mnt
        shows ' ro,nodev,noexec'
        if touch mnt/new 2>/dev/null; then echo 'not read-only'; exit 1; fi
        if mount -o remount,frobnicate mnt; then echo 'unknown option'; exit 1; fi
        if mount -o remount,sync mnt; then echo 'sync at last'; exit 1; fi
        mount -o remount,rw mnt
        shows ' rw,nodev,noexec'
        echo after > mnt/new
        mount -o remount,exec mnt
        if shows noexec; then echo 'noexec stays'; exit 1; fi
        umount mnt
        echo \"$PWD/img $PWD/mnt fuse.steadfast allow_other,nofail,x-systemd.automount,user 0 0\" > fstab
        mount -T fstab -a
        shows allow_other
        cat mnt/file
        umount -l mnt
        # Lazily means that it returns before the image is closed.
        for i in $(seq 300); do
            if $STEADFAST info --json img | grep -q '\"state\": \"clean\"'; then break; fi
            sleep 0.1
        done
        if mount -t steadfast -o frobnicate img mnt; then echo 'unknown option'; exit 1; fi
        if mount -t steadfast -o contract=sync img mnt; then echo 'another contract'; exit 1; fi
        if umount.steadfast mnt; then echo 'nothing was mounted'; exit 1; fi
        echo done
    ";
    let script = format!("STEADFAST={PROGRAM}\n{script}");
    let Some(output) = in_namespace(dir.path(), &script) else {
        return;
    };
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("content\n").count(), 2, "{text}");
    assert!(text.contains("done\n"), "{text}");
    assert!(text.contains("unknown option 'frobnicate'"), "{text}");
    assert!(text.contains("was mounted read-only"), "{text}");
    assert!(
        text.contains("stays mounted in the mount namespace of process"),
        "{text}"
    );
    assert!(text.contains("runs under the contract 'ordered'"), "{text}");
}

/// Once, messages of a mount went to the terminal; mount(8) is silent there, as test suites expect.
#[test]
fn volumes_are_found_by_label_and_recovered_in_silence() {
    let Some(dir) = place() else { return };
    let script = "
        device=
        trap 'umount -l mnt 2>/dev/null || true; [ -z $device ] || losetup -d $device' EXIT
        rm img
        $STEADFAST mkfs --size 64M --label of-a-test img
        uuid=$($STEADFAST info img | sed -n 's/^uuid: *//p')
        device=$(losetup --find --show img) || exit 77
        $STEADFAST mount LABEL=of-a-test mnt
        grep \"^$device $PWD/mnt \" /proc/self/mounts
        $STEADFAST shutdown --flush log mnt
        $STEADFAST umount mnt
        sbin/mount.steadfast UUID=$uuid mnt 2>said
        if [ -s said ]; then cat said; echo 'not silent'; exit 1; fi
        umount mnt
        if $STEADFAST mount LABEL=of-no-test mnt; then exit 1; fi
        # A read-only mount replays nothing, and its end is no crash.
        $STEADFAST mount $device mnt
        $STEADFAST shutdown --flush log mnt
        $STEADFAST umount mnt
        $STEADFAST mount -o ro $device mnt
        $STEADFAST umount mnt
        echo done
    ";
    let script = format!("STEADFAST={PROGRAM}\n{script}");
    let Some(output) = in_namespace(dir.path(), &script) else {
        return;
    };
    let text = said(&output);
    assert!(output.status.success() && text.contains("done\n"), "{text}");
    assert!(
        text.contains("no block device has a volume with the label 'of-no-test'"),
        "{text}"
    );
}

#[test]
fn helpers_are_installed_beside_nothing_else_and_removed() {
    let Some(dir) = place() else { return };
    let sbin = dir.path().join("sbin");
    let count = || fs::read_dir(&sbin).unwrap().count();
    // Eight names and the program: a link to a build directory would leave mount(8) with nothing, or with whatever is built
    // there next, run as root.
    assert_eq!(count(), 9);
    for entry in fs::read_dir(&sbin).unwrap() {
        let target = fs::canonicalize(entry.unwrap().path()).unwrap();
        assert_eq!(
            target,
            fs::canonicalize(&sbin).unwrap().join("steadfast-helper")
        );
    }
    // Again, for a program that has moved.
    assert!(
        steadfast(dir.path(), &["install-helper", "sbin"])
            .status
            .success()
    );
    assert!(
        steadfast(dir.path(), &["install-helper", "--remove", "sbin"])
            .status
            .success()
    );
    assert_eq!(count(), 0);
    // A program that stays in its place gets links: there is no second program to keep up to date.
    let installed = dir.path().join("steadfast");
    // By another process: a child that is just being started here would inherit an open descriptor, and the copy be busy.
    let mut copy = Command::new("cp");
    assert!(
        copy.args([Path::new(PROGRAM), &installed])
            .status()
            .unwrap()
            .success()
    );
    let install = |program: &Path| {
        let mut command = Command::new(program);
        command
            .args(["install-helper", "sbin"])
            .current_dir(dir.path());
        assert!(command.status().unwrap().success());
    };
    install(&installed);
    assert_eq!(
        fs::read_link(sbin.join("mount.steadfast")).unwrap(),
        fs::canonicalize(&installed).unwrap()
    );
    assert_eq!(count(), 8);
    // A program that others may write to is copied.
    fs::set_permissions(
        &installed,
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    install(&installed);
    assert_eq!(count(), 9);
    // mkfs(8) and fsck(8) find their names.
    let run = |name: &str, args: &[&str]| {
        let mut command = Command::new(sbin.join(name));
        command
            .args(args)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let made = run("mkfs.steadfast", &["--size", "64M", "other"]);
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(run("fsck.steadfast", &["other"]).status.code(), Some(0));
    assert!(
        steadfast(dir.path(), &["install-helper", "--remove", "sbin"])
            .status
            .success()
    );
    assert_eq!(count(), 0);
    fs::write(sbin.join("mount.steadfast"), "another program").unwrap();
    let output = steadfast(dir.path(), &["install-helper", "sbin"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("left alone"), "{}", said(&output));
    assert_eq!(count(), 1);
}

#[test]
fn a_service_manager_is_notified_when_the_mount_answers() {
    let Some(dir) = place() else { return };
    let name = dir.path().join("socket");
    let socket = UnixDatagram::bind(&name).unwrap();
    socket
        .set_read_timeout(Some(std::time::Duration::from_secs(300)))
        .unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["mount", "--foreground", "img", "mnt"]);
    command.current_dir(dir.path()).env("NOTIFY_SOCKET", &name);
    let mut server = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut buffer = [0; 64];
    let told = socket.recv(&mut buffer);
    let mounted = steadfast_fuse::server_pid(&dir.path().join("mnt"));
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert_eq!(&buffer[..told.unwrap()], b"READY=1");
    assert_eq!(mounted.unwrap(), server.id());
}
