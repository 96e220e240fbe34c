//! Freezes a mounted volume, and copies its image meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use common::Place;

/// Threads write and sync all the time. Without the freeze, a plain copy mixes blocks of different moments.
#[test]
fn a_copy_of_a_frozen_image_is_whole_and_holds_what_was_done_before() {
    let Some(place) = Place::mounted("commit=1") else {
        return;
    };
    fs::write(place.mnt().join("before"), "not synced by its writer").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (place, stop) = (&place, &stop);
            scope.spawn(move || {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = place.mnt().join(format!("{thread}-{}", round % 20));
                    let mut file = File::create(name).unwrap();
                    file.write_all(&vec![round as u8; 30_000]).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
        for copy in ["copy1", "copy2", "copy3"] {
            place.must(&[
                "freeze",
                "--limit",
                "3600",
                "mnt",
                "--",
                "cp",
                "--sparse=always",
                "img",
                copy,
            ]);
        }
        stop.store(true, Ordering::Relaxed);
    });
    place.must(&["umount", "mnt"]);
    for copy in ["copy1", "copy2", "copy3"] {
        place.must(&["fsck", copy]);
        place.must(&["mount", copy, "mnt"]);
        let before = fs::read_to_string(place.mnt().join("before"));
        place.must(&["umount", "mnt"]);
        assert_eq!(before.unwrap(), "not synced by its writer", "{copy}");
    }
}

#[test]
fn nothing_changes_the_image_until_thaw_and_a_freeze_never_outlives_its_server_or_its_limit() {
    let Some(place) = Place::mounted("commit=1") else {
        return;
    };
    place.must(&["freeze", "--limit", "3600", "mnt"]);
    let frozen = fs::read(place.path().join("img")).unwrap();
    fs::write(place.mnt().join("meanwhile"), "in memory").unwrap();
    assert_eq!(
        fs::read_to_string(place.mnt().join("meanwhile")).unwrap(),
        "in memory"
    );
    assert!(
        place
            .must(&["stat", "--json", "mnt"])
            .contains("\"frozen_now\": 1")
    );
    assert!(
        place
            .refused(1, &["freeze", "mnt"])
            .contains("is frozen already")
    );
    // The commit interval passes meanwhile.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(
        fs::read(place.path().join("img")).unwrap() == frozen,
        "something was written"
    );
    place.must(&["thaw", "mnt"]);
    assert!(place.refused(1, &["thaw", "mnt"]).contains("not frozen"));
    place.must(&["sync", "mnt"]);
    assert!(fs::read(place.path().join("img")).unwrap() != frozen);

    // The exit code is the command's; a freeze that was too short is no success.
    place.refused(7, &["freeze", "mnt", "--", "sh", "-c", "exit 7"]);
    let torn = place.refused(1, &["freeze", "--limit", "1", "mnt", "--", "sleep", "2"]);
    assert!(torn.contains("may be torn"), "{torn}");
    place.refused(2, &["freeze", "--limit", "3601", "mnt"]);
    place.refused(1, &["freeze", "mnt", "--", "no-such-command"]);
    assert!(
        place.refused(1, &["thaw", "mnt"]).contains("not frozen"),
        "a command that cannot be run leaves no freeze"
    );

    // An unmount does not wait for the limit.
    place.must(&["freeze", "--limit", "3600", "mnt"]);
    fs::write(place.mnt().join("last"), "word").unwrap();
    place.must(&["umount", "mnt"]);
    place.must(&["mount", "img", "mnt"]);
    assert_eq!(
        fs::read_to_string(place.mnt().join("last")).unwrap(),
        "word"
    );
    place.end();
}

/// FUSE does not pass FIFREEZE on; the guide says so.
#[test]
fn fifreeze_is_refused_by_the_kernel() {
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    let output = place.command("fsfreeze", &["--freeze", "mnt"]);
    let text = common::said(&output);
    place.end();
    if output.status.success() || !text.contains("Operation not supported") {
        assert!(
            text.contains("timeout: failed to run"),
            "the guide says otherwise: {text}"
        );
    }
}
