//! Only their owner can access files and sockets that hold or reveal other people's files, whatever the umask.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{PROGRAM, Place, programs};

/// Runs `steadfast` with this umask.
fn under(umask: &str, dir: &Path, args: &str) -> String {
    let script = format!("umask {umask}; exec {PROGRAM} {args}");
    programs::must(dir, "sh", &["-c", &script])
}

#[track_caller]
fn private(path: &Path) {
    let mode = fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600, "{}", path.display());
}

/// Once, flash images had the mode that the umask left of 0666: everyone could read the files in them, and the key of
/// NFS handles.
#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn images_are_their_owners_alone() {
    for umask in ["022", "000"] {
        let dir = tempfile::tempdir().unwrap();
        for (name, args) in [
            ("block", "mkfs --size 32M block"),
            ("flash", "mkfs --size 32M --on flash:flash"),
            ("disk", "ftl format --size 16M disk"),
        ] {
            under(umask, dir.path(), args);
            private(&dir.path().join(name));
        }
        // Made again, larger.
        under(
            umask,
            dir.path(),
            "mkfs --force --size 48M --on flash:flash",
        );
        private(&dir.path().join("flash"));
        under(umask, dir.path(), "ftl format --force --size 20M disk");
        private(&dir.path().join("disk"));
        // A new file that a user replaces takes the umask, as files do; an existing one keeps its mode.
        let put = format!(
            "umask {umask}; echo a | {PROGRAM} put new; chmod 600 new; echo b | {PROGRAM} put new"
        );
        programs::must(dir.path(), "sh", &["-ec", &put]);
        private(&dir.path().join("new"));
    }
}

#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn logs_traces_and_disks_are_their_owners_alone() {
    for umask in ["022", "000"] {
        let Some(place) = Place::new() else { return };
        under(umask, place.path(), "mount -o log=log,trace=trace img mnt");
        fs::write(place.mnt().join("secret name"), "x").unwrap();
        for name in ["log", "trace"] {
            private(&place.path().join(name));
        }
        place.must(&["umount", "mnt"]);

        place.must(&["ftl", "format", "--size", "16M", "disk"]);
        let mut server = Command::new("sh")
            .arg("-c")
            .arg(format!(
                "umask {umask}; exec {PROGRAM} serve disk --fuse mnt disk"
            ))
            .current_dir(place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let disk = fs::metadata(place.mnt().join("disk")).map(|m| m.permissions().mode() & 0o7777);
        place.must(&["umount", "mnt"]);
        assert!(server.wait().unwrap().success(), "{line}");
        assert_eq!(disk.ok(), Some(0o600));
    }
}

#[test]
#[cfg_attr(not(feature = "nfs"), ignore = "needs nfs")]
fn the_servers_sockets_are_their_owners_alone() {
    for umask in ["022", "000"] {
        let dir = tempfile::tempdir().unwrap();
        under(umask, dir.path(), "mkfs --size 32M img");
        let mut server = Command::new("sh")
            .arg("-c")
            .arg(format!(
                "umask {umask}; exec {PROGRAM} serve nfs --listen 127.0.0.1:0 --control control img"
            ))
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let mode =
            fs::metadata(dir.path().join("control")).map(|m| m.permissions().mode() & 0o7777);
        let pid = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        server.wait().unwrap();
        assert_eq!(mode.ok(), Some(0o600), "{line}");
    }
}
