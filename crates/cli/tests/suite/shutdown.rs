//! Shutdowns of each kind, by `FS_IOC_SHUTDOWN` and by command; and the live counters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::programs;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A volume that commits nothing by itself, mounted.
    fn mounted() -> Option<Place> {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            steadfast_testkit::skipped!("mounting needs /dev/fuse and root here");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        let place = Place { dir };
        place.ok(&["mkfs", "--size", "64M", "img"]);
        place.mount();
        Some(place)
    }

    /// A mount namespace that another program made meanwhile may hold the last mount, and so the server, for a while.
    fn mount(&self) -> String {
        let options = "commit=3600,allow_other";
        let mount = || self.run(&["mount", "-o", options, "img", "mnt"]);
        let output = programs::run_when_free(mount);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    }

    fn mnt(&self, name: &str) -> PathBuf {
        self.dir.path().join("mnt").join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        programs::run(self.dir.path(), programs::PROGRAM, args)
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let output = programs::run_when_free(|| self.run(args));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn stats(&self, name: &str) -> u64 {
        let stats: serde_json::Value =
            serde_json::from_str(&self.ok(&["stat", "--json", "mnt"])).unwrap();
        stats[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {stats}"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = steadfast_fuse::unmount(&self.mnt(""), steadfast_fuse::Unmount::Detach);
    }
}

/// `FS_IOC_SHUTDOWN` as test suites call it, on a file or directory; by a user.
fn ioctl(path: &Path, flags: u32, user: u32) -> Output {
    let script = "$) = $( = $< = $> = $ARGV[2]; open(my $f, '<', $ARGV[0]) or die \"open: $!\"; \
        ioctl($f, 0x8004587d, pack('L', $ARGV[1])) or die \"ioctl: $!\"";
    let mut command = Command::new("timeout");
    command.args(["60", "perl", "-e", script]).arg(path);
    command.args([flags.to_string(), user.to_string()]);
    command.output().unwrap()
}

/// Writes, shuts down by `down`, and mounts again. Returns whether unsynced data is there, and how many records
/// recovery replayed.
fn round(down: impl FnOnce(&Place)) -> Option<(bool, u64)> {
    let place = Place::mounted()?;
    fs::write(place.mnt("synced"), "durable").unwrap();
    place.ok(&["sync", "mnt"]);
    let mut open = fs::File::create(place.mnt("written")).unwrap();
    open.write_all(&[7; 100_000]).unwrap();
    down(&place);
    // Everything fails now, and nothing hangs.
    let eio = Some(rustix::io::Errno::IO.raw_os_error());
    let failed = |result: std::io::Result<()>| result.err().and_then(|e| e.raw_os_error());
    assert_eq!(failed(open.write_all(b"more")), eio);
    assert_eq!(failed(open.sync_all()), eio);
    assert_eq!(failed(fs::write(place.mnt("new"), "x")), eio);
    assert_eq!(failed(fs::create_dir(place.mnt("dir"))), eio);
    assert_eq!(failed(fs::remove_file(place.mnt("synced"))), eio);
    assert_eq!(failed(steadfast_fuse::sync(&place.mnt(""))), eio);
    assert_eq!(place.stats("shut_down_now"), 1);
    drop(open);
    place.ok(&["umount", "mnt"]);
    let info: serde_json::Value =
        serde_json::from_str(&place.ok(&["info", "--json", "img"])).unwrap();
    assert_ne!(info["state"], "damaged", "{info}");
    let said = place.mount();
    let replayed = said.split("recovered: ").nth(1).map_or(0, |rest| {
        rest.split(' ').next().and_then(|n| n.parse().ok()).unwrap()
    });
    assert_eq!(fs::read(place.mnt("synced")).unwrap(), b"durable");
    let written = fs::read(place.mnt("written")).ok();
    if let Some(written) = &written {
        assert!(written.len() == 100_000 && written.iter().all(|b| *b == 7));
    }
    assert!(!place.mnt("new").exists());
    // It works again.
    fs::write(place.mnt("after"), "x").unwrap();
    place.ok(&["umount", "mnt"]);
    place.ok(&["fsck", "img"]);
    Some((written.is_some(), replayed))
}

fn down_by_ioctl(flags: u32, name: &'static str) -> impl FnOnce(&Place) {
    move |place| {
        let output = ioctl(&place.mnt(name), flags, 0);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn down_by_command(first: &'static str) -> impl FnOnce(&Place) {
    move |place| {
        place.ok(&["shutdown", "--flush", first, "mnt"]);
    }
}

#[test]
fn going_down_fully_synced_leaves_everything_and_nothing_to_replay() {
    for down in [
        Box::new(down_by_ioctl(0, "")) as Box<dyn FnOnce(&Place)>,
        Box::new(down_by_command("everything")),
    ] {
        let Some(found) = round(down) else { return };
        assert_eq!(found, (true, 0));
    }
}

#[test]
fn going_down_with_the_log_flushed_leaves_everything_in_the_log() {
    for down in [
        Box::new(down_by_ioctl(1, "synced")) as Box<dyn FnOnce(&Place)>,
        Box::new(down_by_command("log")),
    ] {
        let Some((written, replayed)) = round(down) else {
            return;
        };
        assert!(written && replayed > 0, "{replayed} records");
    }
}

#[test]
fn going_down_without_flushing_loses_what_was_not_synced_and_no_more() {
    for down in [
        Box::new(down_by_ioctl(2, "")) as Box<dyn FnOnce(&Place)>,
        Box::new(down_by_command("nothing")),
    ] {
        let Some((written, _)) = round(down) else {
            return;
        };
        assert!(!written, "what was not synced must be gone");
    }
}

#[test]
fn going_down_under_load_hangs_nobody() {
    let Some(place) = Place::mounted() else {
        return;
    };
    std::thread::scope(|scope| {
        for n in 0..4 {
            let path = place.mnt(&format!("{n}"));
            scope.spawn(move || {
                for i in 0..100_000_u32 {
                    let written = fs::File::create(&path).and_then(|mut f| {
                        f.write_all(&i.to_le_bytes()).and_then(|()| f.sync_all())
                    });
                    if written.is_err() {
                        return;
                    }
                }
                panic!("it never went down");
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
        let output = ioctl(&place.mnt(""), 2, 0);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    });
    place.ok(&["umount", "mnt"]);
    place.mount();
    place.ok(&["umount", "mnt"]);
    place.ok(&["fsck", "img"]);
}

#[test]
fn only_known_flags_and_only_root_or_the_owner_shut_down() {
    let Some(place) = Place::mounted() else {
        return;
    };
    fs::set_permissions(
        place.dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    for (flags, user, word) in [(3, 0, "Invalid argument"), (2, 65534, "not permitted")] {
        let output = ioctl(&place.mnt(""), flags, user);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(word), "{said}");
    }
    fs::write(place.mnt("file"), "works").unwrap();
    assert_eq!(place.stats("shut_down_now"), 0);
    let refused = place.run(&["shutdown", "."]);
    assert_eq!(refused.status.code(), Some(1));
    place.ok(&["umount", "mnt"]);
}

#[test]
fn counters_count_what_is_done() {
    let Some(place) = Place::mounted() else {
        return;
    };
    let before = ["requests_create", "requests_fsync", "commits"].map(|name| place.stats(name));
    for n in 0..5 {
        let mut file = fs::File::create(place.mnt(&format!("{n}"))).unwrap();
        file.write_all(&[1; 1000]).unwrap();
        file.sync_all().unwrap();
    }
    let after = ["requests_create", "requests_fsync", "commits"].map(|name| place.stats(name));
    assert_eq!(after[0] - before[0], 5);
    assert_eq!(after[1] - before[1], 5);
    assert!(after[2] - before[2] >= 5);
    assert_eq!(place.stats("bytes_written"), 5000);
    assert!(place.stats("free_bytes_now") > 1 << 20);
    let text = place.ok(&["stat", "mnt/0"]);
    assert!(
        text.contains("requests create") && text.contains("bytes written"),
        "{text}"
    );
    let watched = place.ok(&["stat", "--watch", "1", "--count", "1", "--json", "mnt"]);
    let line: serde_json::Value = serde_json::from_str(watched.trim()).unwrap();
    assert_eq!(line["requests_create"], 0, "only what has changed since");
    assert!(line["seconds"].as_f64().unwrap() >= 1.0);
    place.ok(&["umount", "mnt"]);
    let refused = place.run(&["stat", "mnt"]);
    assert_eq!(refused.status.code(), Some(1));
}
