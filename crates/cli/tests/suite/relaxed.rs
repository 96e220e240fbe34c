//! The contract `relaxed` on real mounts: the kernel caches writes, and what it must not cache survives a killed
//! server, with which everything is lost that the kernel has not sent and the server has not committed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;

use common::Place;
use rustix::process::{Pid, Signal, kill_process};

fn make(place: &Place, contract: &str) {
    let args = ["mkfs", "--force", "--size", "64M", "--contract", contract];
    place.must(&[&args[..], &["img"]].concat());
    place.must(&["mount", "-o", "commit=3600", "img", "mnt"]);
}

/// The server is killed, and the volume mounted anew.
fn kill_and_mount(place: &Place) {
    let pid = steadfast_fuse::server_pid(&place.mnt()).unwrap();
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    while steadfast_fuse::unmount(&place.mnt(), steadfast_fuse::Unmount::Detach).is_ok() {}
    let mounted = || place.steadfast(&["mount", "img", "mnt"]);
    // The image is free when the process has ended.
    let done = (0..300).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        mounted().status.success()
    });
    assert!(done, "{}", common::said(&mounted()));
}

#[test]
fn the_kernel_keeps_what_is_written_under_relaxed_alone() {
    let Some(place) = Place::new() else { return };
    for contract in ["ordered", "metadata-prefix", "sync", "relaxed"] {
        make(&place, contract);
        let on = steadfast_fuse::writes_back(&place.mnt()).unwrap();
        assert_eq!(on, contract == "relaxed", "{contract}");
        place.must(&["umount", "mnt"]);
    }
    // Nor on a mount that changes nothing.
    place.must(&["mount", "-o", "ro", "img", "mnt"]);
    assert!(!steadfast_fuse::writes_back(&place.mnt()).unwrap());
    place.end();
}

#[test]
fn a_file_that_was_replaced_after_a_close_is_whole() {
    let Some(place) = Place::new() else { return };
    make(&place, "relaxed");
    let (file, new) = (place.mnt().join("file"), place.mnt().join("new"));
    let content = |n: u8| vec![n; 10_000 + 1000 * usize::from(n)];
    for n in 1..100 {
        fs::write(&new, content(n)).unwrap();
        fs::rename(&new, &file).unwrap();
        // Only the order is committed: by a sync of another file.
        if n == 60 {
            let other = File::create(place.mnt().join("other")).unwrap();
            other.sync_all().unwrap();
        }
    }
    kill_and_mount(&place);
    let found = fs::read(&file).unwrap();
    assert!(found[0] >= 60, "not what was there before: {}", found[0]);
    assert_eq!(found, content(found[0]));
    place.end();
}

#[test]
fn what_was_synced_survives_while_the_file_stays_open() {
    let Some(place) = Place::new() else { return };
    make(&place, "relaxed");
    let names = ["fsync", "fdatasync", "sync"];
    let mut files = Vec::new();
    for name in names {
        let mut file = File::create(place.mnt().join(name)).unwrap();
        file.write_all(&[b's'; 123_456]).unwrap();
        match name {
            "fsync" => file.sync_all().unwrap(),
            "fdatasync" => file.sync_data().unwrap(),
            _ => drop(place.must(&["sync", "mnt"])),
        }
        files.push(file);
    }
    kill_and_mount(&place);
    for name in names {
        assert_eq!(
            fs::read(place.mnt().join(name)).unwrap(),
            [b's'; 123_456],
            "{name}"
        );
    }
    drop(files);
    place.end();
}

/// What was neither closed nor synced may be lost; existing bytes were written, or are zeros.
#[test]
fn a_file_that_stays_open_never_shows_foreign_bytes() {
    let Some(place) = Place::new() else { return };
    make(&place, "relaxed");
    // Blocks that had other content before.
    fs::write(place.mnt().join("old"), vec![b'o'; 8 << 20]).unwrap();
    fs::remove_file(place.mnt().join("old")).unwrap();
    place.must(&["sync", "mnt"]);
    let path = place.mnt().join("file");
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .unwrap();
    for n in 0..2000 {
        file.write_all(&[b'n'; 1500]).unwrap();
        if n == 1000 {
            // Commits the order, and makes the kernel send some pages.
            place.must(&["sync", "mnt"]);
        }
    }
    kill_and_mount(&place);
    drop(file);
    let found = fs::read(&path).unwrap();
    assert!(found.len() >= 1001 * 1500, "{}", found.len());
    let strange = found.iter().position(|byte| ![b'n', 0].contains(byte));
    assert_eq!(strange, None);
    place.end();
}

#[test]
fn a_volume_that_is_full_says_so_at_the_close() {
    let Some(place) = Place::new() else { return };
    make(&place, "relaxed");
    let script = "f=mnt/big; if head -c 200M /dev/zero >$f; then echo stored; fi; \
        stat -c %s $f; rm $f; echo x >mnt/after && cat mnt/after";
    let output = place.command("sh", &["-c", script]);
    let said = common::said(&output);
    assert!(!said.contains("stored"), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(said.lines().any(|line| line == "x"), "not usable: {said}");
    place.end();
}
