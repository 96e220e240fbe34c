//! The quickstart: it finds a planted bug. Passed over where the `steadfast` command is not built.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use steadfast_crash_test::{CrashTest, LiveMount, State, ack};

/// The command that STEADFAST names.
fn is_there() -> bool {
    let there = std::env::var_os("STEADFAST").is_some_and(|s| Path::new(&s).exists());
    if !there {
        steadfast_testkit::skipped!("STEADFAST names no command");
    }
    there
}

#[test]
fn a_forgotten_fsync_is_found() {
    let save = |dir: &Path| {
        fs::write(dir.join("tmp"), "new").unwrap();
        fs::rename(dir.join("tmp"), dir.join("f")).unwrap();
    };
    let check = |state: &State| {
        let f = state.dir.join("f");
        assert!(
            !f.exists() || fs::read(f).unwrap() == b"new",
            "f is damaged"
        );
    };
    if is_there() {
        let report = CrashTest::new(save, check).on("ext4,xfs,ordered").run();
        let report = report.unwrap();
        assert!(report.has("xfs", "f is damaged"), "{report}");
        assert!(report.has("ext4", "f is damaged"), "{report}");
        assert!(!report.has("ordered", "f is damaged"), "{report}");
    }
}

#[test]
fn with_the_fsync_it_survives_and_what_it_acknowledged_is_there() {
    let save = |dir: &Path| {
        let mut file = File::create(dir.join("tmp")).unwrap();
        file.write_all(b"new").unwrap();
        file.sync_all().unwrap();
        fs::rename(dir.join("tmp"), dir.join("f")).unwrap();
        File::open(dir).unwrap().sync_all().unwrap();
        ack("saved").unwrap();
    };
    let check = |state: &State| {
        let f = state.dir.join("f");
        assert!(
            !f.exists() || fs::read(&f).unwrap() == b"new",
            "f is damaged"
        );
        assert!(f.exists() || state.acked.is_empty(), "f is lost");
        assert!(state.acked.iter().all(|line| line == "saved"));
    };
    if is_there() {
        CrashTest::new(save, check).run().unwrap().assert_survives();
    }
}

#[test]
fn a_live_mount_loses_unsynced_changes() {
    if !is_there() || !is_root() {
        steadfast_testkit::skipped!("live mounts need root and the program");
        return;
    }
    let place = std::env::temp_dir().join(format!("steadfast-live-{}", std::process::id()));
    let (dir, mnt): (PathBuf, PathBuf) = (place.join("dir"), place.join("mnt"));
    fs::create_dir_all(&dir).unwrap();
    fs::create_dir_all(&mnt).unwrap();
    {
        let live = LiveMount::mount("ext4", &dir, &mnt).unwrap();
        let mut kept = File::create(mnt.join("kept")).unwrap();
        kept.write_all(b"x").unwrap();
        kept.sync_all().unwrap();
        fs::write(mnt.join("lost"), "y").unwrap();
        live.cut("durable", 1).unwrap();
        assert!(fs::write(mnt.join("late"), "z").is_err());
        live.power_on().unwrap();
        assert_eq!(fs::read(mnt.join("kept")).unwrap(), b"x");
        assert!(!mnt.join("lost").exists() && !mnt.join("late").exists());
    }
    fs::remove_dir_all(&place).unwrap();
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}
