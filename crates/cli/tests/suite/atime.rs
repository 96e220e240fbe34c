//! Access times on a mount: none by default, and like `relatime` if that is asked for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::programs;

struct Mount {
    dir: tempfile::TempDir,
}

impl Mount {
    fn with(options: &str) -> Option<Mount> {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            steadfast_testkit::skipped!("mounting needs /dev/fuse and root here");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        let mount = Mount { dir };
        mount.run(&["mkfs", "--size", "64M", "img"]);
        mount.run(&["mount", "-o", options, "img", "mnt"]);
        Some(mount)
    }

    fn run(&self, args: &[&str]) {
        let dir = self.dir.path();
        let output = programs::run_when_free(|| programs::run(dir, programs::PROGRAM, args));
        assert!(
            output.status.success(),
            "{args:?}: {}",
            programs::said(&output)
        );
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("mnt").join(name)
    }

    /// Access time and change time of a name itself: links are not followed.
    fn times(&self, name: &str) -> (SystemTime, SystemTime) {
        use std::os::unix::fs::MetadataExt;
        let found = fs::symlink_metadata(self.at(name)).unwrap();
        let changed = Duration::new(found.ctime() as u64, found.ctime_nsec() as u32);
        (found.accessed().unwrap(), SystemTime::UNIX_EPOCH + changed)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = steadfast_fuse::unmount(&self.at(""), steadfast_fuse::Unmount::Detach);
    }
}

fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

type Read<'a> = Box<dyn Fn() + 'a>;

/// One thing of each kind, and how to read it.
fn all(mount: &Mount) -> [(&'static str, Read<'_>); 3] {
    fs::create_dir(mount.at("dir")).unwrap();
    fs::write(mount.at("dir/inner"), "x").unwrap();
    fs::write(mount.at("file"), vec![1; 300_000]).unwrap();
    std::os::unix::fs::symlink("file", mount.at("link")).unwrap();
    [
        (
            "file",
            Box::new(|| drop(fs::read(mount.at("file")).unwrap())),
        ),
        (
            "dir",
            Box::new(|| assert_eq!(fs::read_dir(mount.at("dir")).unwrap().count(), 1)),
        ),
        (
            "link",
            Box::new(|| drop(fs::read_link(mount.at("link")).unwrap())),
        ),
    ]
}

#[test]
fn relatime_notes_the_first_read_after_a_change_and_keeps_it() {
    let Some(mount) = Mount::with("relatime") else {
        return;
    };
    let mut noted = Vec::new();
    for (name, read) in all(&mount) {
        let before = mount.times(name);
        pause();
        read();
        let first = mount.times(name);
        assert!(first.0 > before.0, "{name}: the first read is noted");
        assert_eq!(first.1, before.1, "{name}: reading is no change");
        pause();
        read();
        assert_eq!(mount.times(name), first, "{name}: the second read is not");
        noted.push((name, first));
    }
    // A change, through the kernel's cache, makes the next read count again.
    pause();
    let first = mount.times("file");
    fs::write(mount.at("file"), "changed").unwrap();
    pause();
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"changed");
    let second = mount.times("file");
    assert!(second.0 > first.0);
    noted[0].1 = second;
    mount.run(&["umount", "mnt"]);
    mount.run(&["mount", "-o", "noatime", "img", "mnt"]);
    for (name, times) in noted {
        assert_eq!(mount.times(name), times, "{name} after unmounting");
    }
    mount.run(&["umount", "mnt"]);
    mount.run(&["fsck", "img"]);
}

#[test]
fn without_it_reading_changes_nothing() {
    for options in ["defaults", "relatime,noatime"] {
        let Some(mount) = Mount::with(options) else {
            return;
        };
        for (name, read) in all(&mount) {
            let before = mount.times(name);
            pause();
            read();
            assert_eq!(mount.times(name), before, "{name} with {options}");
        }
        mount.run(&["umount", "mnt"]);
    }
}

#[test]
fn a_read_only_mount_notes_nothing() {
    let Some(mount) = Mount::with("relatime") else {
        return;
    };
    fs::write(mount.at("file"), "x").unwrap();
    mount.run(&["umount", "mnt"]);
    mount.run(&["mount", "-o", "ro,relatime", "img", "mnt"]);
    let before = mount.times("file");
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"x");
    assert_eq!(mount.times("file"), before);
    mount.run(&["umount", "mnt"]);
}
