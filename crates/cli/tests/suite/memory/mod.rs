//! Volumes in persistent memory, end to end: made, inspected, mounted, filled and lost, and every wrong way to ask.
//! The memory is a file on tmpfs.
#![cfg(feature = "pm")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;
mod dump;
mod lost;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{Place, said};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// With a volume of this size in `img`.
fn place(size: &str) -> Option<Place> {
    let place = Place::in_memory()?;
    place.must(&[
        "mkfs", "--on", "pm", "--size", size, "--label", "test", "img",
    ]);
    Some(place)
}

/// The same, mounted.
fn mounted(size: &str, options: &str) -> Option<Place> {
    if !common::can_mount() {
        return None;
    }
    let place = place(size)?;
    place.must(&["mount", "-o", options, "img", "mnt"]);
    Some(place)
}

fn json(place: &Place, args: &[&str]) -> Value {
    let output = place.steadfast(args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn state(place: &Place) -> String {
    let info = json(place, &["info", "--json", "img"]);
    info["state"].as_str().unwrap().to_owned()
}

/// Runs a command that must fail with this code and print all of these words.
#[track_caller]
fn refused(place: &Place, code: i32, args: &[&str], words: &[&str]) {
    let text = place.refused(code, args);
    for word in words {
        assert!(
            text.contains(word),
            "{args:?} does not say '{word}': {text}"
        );
    }
}

fn server(place: &Place) -> Pid {
    let pid = steadfast_fuse::server_pid(&place.mnt()).unwrap();
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

fn image(place: &Place) -> File {
    let image = place.path().join("img");
    OpenOptions::new()
        .write(true)
        .read(true)
        .open(image)
        .unwrap()
}

// ---------------------------------------------------------------- made, used, checked

#[test]
fn a_volume_is_made_mounted_used_grown_and_clean() {
    let Some(place) = mounted("16M", "rw") else {
        return;
    };
    let file = place.mnt().join("file");
    fs::write(&file, vec![5; 100_000]).unwrap();
    fs::create_dir(place.mnt().join("dir")).unwrap();
    fs::rename(&file, place.mnt().join("dir/file")).unwrap();
    assert_eq!(state(&place), "mounted");
    place.must(&["sync", "mnt"]);
    place.must(&["umount", "mnt"]);
    assert_eq!(state(&place), "clean");
    let checked = json(&place, &["fsck", "--json", "img"]);
    assert_eq!(
        (&checked["result"], &checked["files"]),
        (&"clean".into(), &1.into())
    );
    let before = json(&place, &["info", "--json", "img"])["data_bytes"].clone();
    place.must(&["grow", "--size", "32M", "img"]);
    let after = json(&place, &["info", "--json", "img"])["data_bytes"].clone();
    assert!(
        after.as_u64() > before.as_u64().map(|bytes| bytes + (15 << 20)),
        "{after}"
    );
    refused(
        &place,
        1,
        &["grow", "--size", "16M", "img"],
        &["cannot shrink"],
    );
    place.must(&["mount", "img", "mnt"]);
    assert_eq!(
        fs::read(place.mnt().join("dir/file")).unwrap(),
        vec![5; 100_000]
    );
    place.end();
}

#[test]
fn info_counts_inodes_and_tells_the_medium() {
    let Some(place) = mounted("16M", "rw") else {
        return;
    };
    let inodes = |info: &Value| {
        let [all, free] = ["inodes", "free_inodes"].map(|name| info[name].as_u64().unwrap());
        (all, free)
    };
    for i in 0..10 {
        fs::write(place.mnt().join(i.to_string()), "").unwrap();
    }
    let shown = json(&place, &["info", "--json", "mnt"]);
    assert_eq!(
        (&shown["medium"], &shown["contract"]),
        (&"pm".into(), &"sync".into())
    );
    assert_eq!(
        (&shown["log_bytes"], &shown["format_version"]),
        (&0.into(), &1.into())
    );
    let (all, free) = inodes(&shown);
    assert_eq!(all - free, 11);
    let text = place.must(&["info", "img"]);
    assert!(
        text.contains(&format!("inodes:   {free} of {all} free")),
        "{text}"
    );
    place.must(&["umount", "mnt"]);
    assert_eq!(
        inodes(&json(&place, &["info", "--json", "img"])),
        (all, free)
    );
    // A volume on blocks makes inodes on demand.
    place.must(&["mkfs", "--size", "16M", "blocks"]);
    let blocks = json(&place, &["info", "--json", "blocks"]);
    assert_eq!(
        (&blocks["medium"], &blocks["inodes"]),
        (&"block".into(), &Value::Null)
    );
    assert!(!place.must(&["info", "blocks"]).contains("inodes:"));
}

/// Once, the volume had counters of its own with the names of those that the mount adds.
#[test]
fn no_counter_is_shown_twice() {
    let Some(place) = mounted("16M", "rw") else {
        return;
    };
    let metrics = place.must(&["metrics", "mnt"]);
    let mut samples: Vec<&str> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    samples.sort_unstable();
    let name = |line: &str| line.rsplit_once(' ').unwrap().0.to_owned();
    for pair in samples.windows(2) {
        assert_ne!(name(pair[0]), name(pair[1]));
    }
    let stat = place.must(&["stat", "--json", "mnt"]);
    for field in [
        "\"free_bytes_now\"",
        "\"volume_bytes_now\"",
        "\"operations\"",
    ] {
        assert_eq!(stat.matches(field).count(), 1, "{field}: {stat}");
    }
    place.end();
}

#[test]
fn udev_and_file_know_such_a_volume() {
    let Some(place) = place("1M") else { return };
    let udev = place.must(&["info", "--udev", "img"]);
    let uuid = json(&place, &["info", "--json", "img"])["uuid"].clone();
    let uuid = uuid.as_str().unwrap();
    for line in [
        "ID_FS_TYPE=steadfast",
        "ID_FS_VERSION=1",
        "ID_FS_LABEL=test",
    ] {
        assert!(udev.lines().any(|it| it == line), "{line}: {udev}");
    }
    assert!(udev.contains(&format!("ID_FS_UUID={uuid}\n")), "{udev}");
    let magic = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/magic");
    if std::process::Command::new("file")
        .arg("-v")
        .output()
        .is_err()
    {
        return steadfast_testkit::skipped!("there is no file(1)");
    }
    let named = said(&place.command("file", &["-m", magic, "img"]));
    for what in ["persistent memory", "format 1", "label \"test\""] {
        assert!(named.contains(what), "{named}");
    }
    // A device with only the copy of the superblock holds a volume, but udev does not report it.
    image(&place).write_all_at(&[0; 4096], 0).unwrap();
    refused(&place, 1, &["info", "--udev", "img"], &["superblock"]);
    assert!(place.must(&["info", "img"]).contains("label:    test"));
}

// ---------------------------------------------------------------- what mkfs refuses

#[test]
fn nothing_is_overwritten_without_force() {
    let Some(place) = place("1M") else { return };
    let on_pm = |image| ["mkfs", "--on", "pm", image];
    refused(
        &place,
        1,
        &on_pm("img"),
        &["img", "'test' in persistent memory", "--force"],
    );
    fs::write(place.path().join("text"), "a letter\n".repeat(100_000)).unwrap();
    refused(&place, 1, &on_pm("text"), &["text", "--force"]);
    place.must(&["mkfs", "--size", "16M", "blocks"]);
    refused(
        &place,
        1,
        &on_pm("blocks"),
        &["blocks", "a Steadfast volume", "--force"],
    );
    // The other way round.
    let taken = ["mkfs", "--size", "16M", "img"];
    refused(
        &place,
        1,
        &taken,
        &["img", "'test' in persistent memory", "--force"],
    );
    assert!(place.must(&["info", "img"]).contains("label:    test"));
    // Zeros do not count as content.
    File::create(place.path().join("zeros"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    place.must(&on_pm("zeros"));
    place.must(
        &["mkfs", "--on", "pm", "--force", "text"].map(|word| match word {
            "text" => "img",
            word => word,
        }),
    );
    assert!(place.must(&["info", "img"]).contains("label:    (none)"));
    place.must(&["mkfs", "--force", "--size", "16M", "img"]);
    assert_eq!(json(&place, &["info", "--json", "img"])["medium"], "block");
    place.must(&["fsck", "img"]);
}

#[test]
#[cfg_attr(not(feature = "crash"), ignore = "needs crash")]
fn options_that_do_not_go_together_are_refused() {
    let Some(place) = place("1M") else { return };
    for (words, args) in [
        (["--contract", "'sync' alone"], ["--contract", "ordered"]),
        (
            ["--contract", "'sync' alone"],
            ["--contract", "metadata-prefix"],
        ),
        (["--log-size", "no log"], ["--log-size", "16M"]),
    ] {
        let line = [&["mkfs", "--on", "pm", "--size", "1M"][..], &args, &["new"]].concat();
        refused(&place, 2, &line, &words);
        assert!(!place.path().join("new").exists());
    }
    let line = ["mkfs", "--bytes-per-inode", "4096", "--size", "16M", "new"];
    refused(&place, 2, &line, &["--bytes-per-inode", "--on pm"]);
    refused(
        &place,
        1,
        &["mkfs", "--on", "pm", "new"],
        &["new", "--size"],
    );
    let line = ["mkfs", "--on", "pm", "--size", "128K", "new"];
    refused(&place, 1, &line, &["new", "131072 bytes"]);
    assert!(!place.path().join("new").exists());
    let long = "a label that is longer than thirty-two bytes";
    let line = ["mkfs", "--on", "pm", "--size", "1M", "--label", long, "new"];
    refused(&place, 1, &line, &["32"]);
    refused(
        &place,
        2,
        &["crash", "self", "--on", "pm"],
        &["steadfast-pmfs"],
    );
    place.must(&[
        "mkfs",
        "--on",
        "pm",
        "--contract",
        "sync",
        "--size",
        "1M",
        "new",
    ]);
}

/// The kernel writes the pages of such a file back at any time.
#[test]
fn a_file_on_a_disk_is_refused_but_for_reading() {
    let Some(place) = place("1M") else { return };
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // tmpfs and overlayfs on it.
    if rustix::fs::statfs(disk.path()).unwrap().f_type == 0x0102_1994 {
        return steadfast_testkit::skipped!("the build lies on tmpfs");
    }
    let image = disk.path().join("img");
    let name = image.to_str().unwrap();
    let words = [
        "not in persistent memory",
        "MAP_SYNC",
        "/dev/shm",
        "read-only",
    ];
    refused(
        &place,
        1,
        &["mkfs", "--on", "pm", "--size", "1M", name],
        &words,
    );
    assert!(!image.exists(), "nothing is left");
    fs::copy(place.path().join("img"), &image).unwrap();
    let before = fs::read(&image).unwrap();
    refused(&place, 1, &["mount", name, "mnt"], &words);
    refused(&place, 8, &["fsck", "--repair", name], &words);
    place.must(&["info", name]);
    place.must(&["fsck", name]);
    if common::can_mount() {
        place.must(&["mount", "-o", "ro", name, "mnt"]);
        let write = fs::write(place.mnt().join("new"), "");
        assert_eq!(write.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        place.must(&["umount", "mnt"]);
    }
    assert!(before == fs::read(&image).unwrap());
}

// ---------------------------------------------------------------- what is no volume

#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn what_is_for_blocks_does_not_apply() {
    let Some(place) = mounted("1M", "rw") else {
        return;
    };
    refused(&place, 1, &["trim", "mnt"], &["mnt", "not supported"]);
    place.must(&["umount", "mnt"]);
    for args in [&["trim", "img"][..], &["scrub", "img"]] {
        let code = if args[0] == "scrub" { 8 } else { 1 };
        refused(&place, code, args, &["img", "persistent memory"]);
    }
    refused(&place, 1, &["dump", "--log", "img"], &["img", "no log"]);
    refused(&place, 1, &["serve", "disk", "img"], &["no flash image"]);
    // And the reverse: options for memory alone.
    place.must(&["mkfs", "--size", "16M", "blocks"]);
    refused(
        &place,
        1,
        &["mount", "-o", "in_place", "blocks", "mnt"],
        &["in_place"],
    );
    place.must(&["mount", "-o", "in_place", "img", "mnt"]);
    place.end();
}

#[test]
fn wrong_words_at_the_beginning_are_seen() {
    let Some(place) = place("1M") else { return };
    let whole = fs::read(place.path().join("img")).unwrap();
    let written = |at: u64, bytes: &[u8]| {
        fs::write(place.path().join("img"), &whole).unwrap();
        image(&place).write_all_at(bytes, at).unwrap();
    };
    // The magic number of the superblock, then another word: the copy counts, and a note says so.
    for at in [0, 64] {
        written(at, b"\xff\xff\xff");
        let found = place.steadfast(&["fsck", "img"]);
        assert!(said(&found).contains("superblock"), "{}", said(&found));
        assert_ne!(found.status.code(), Some(0));
        assert_eq!(
            place.steadfast(&["fsck", "--repair", "img"]).status.code(),
            Some(1)
        );
        place.must(&["fsck", "img"]);
    }
    // In both.
    written(0, b"\xff");
    image(&place).write_all_at(b"\xff", 4096).unwrap();
    for args in [
        &["mount", "img", "mnt"][..],
        &["info", "img"],
        &["dump", "img"],
    ] {
        refused(&place, 1, args, &["img", "no Steadfast volume"]);
    }
    written(64, b"\xff");
    image(&place).write_all_at(b"\xff", 4096 + 64).unwrap();
    for args in [
        &["mount", "img", "mnt"][..],
        &["info", "img"],
        &["dump", "img"],
    ] {
        refused(
            &place,
            1,
            args,
            &["img", "both copies of the superblock are damaged", "backup"],
        );
    }
}

#[test]
fn a_file_of_the_wrong_size_is_refused() {
    let Some(place) = place("1M") else { return };
    let resize = |bytes| image(&place).set_len(bytes).unwrap();
    let commands = [
        &["mount", "img", "mnt"][..],
        &["info", "img"],
        &["dump", "img"],
    ];
    resize((1 << 20) - 4096);
    for args in commands {
        refused(
            &place,
            1,
            args,
            &["img", "cut short", "restore its full size"],
        );
    }
    refused(&place, 8, &["fsck", "--repair", "img"], &["cut short"]);
    resize((1 << 20) + 100);
    for args in commands {
        refused(
            &place,
            1,
            args,
            &["img", "1048676 bytes", "no multiple of 4096"],
        );
    }
    resize(4096);
    for args in commands {
        refused(&place, 1, args, &["img", "no Steadfast volume"]);
    }
    resize(0);
    refused(
        &place,
        1,
        &["mount", "img", "mnt"],
        &["img", "no Steadfast volume"],
    );
    // A longer file is as good as one of the right size.
    place.must(&["mkfs", "--on", "pm", "--size", "1M", "--force", "img"]);
    resize(2 << 20);
    place.must(&["fsck", "img"]);
    let grown = place.must(&["grow", "img"]);
    assert!(grown.contains("grown from 1 MiB to 2 MiB"), "{grown}");
    place.must(&["fsck", "img"]);
}

#[test]
fn a_second_opener_learns_which_process_has_it() {
    let Some(place) = mounted("1M", "rw") else {
        return;
    };
    let pid = format!("(process {})", server(&place).as_raw_nonzero());
    fs::create_dir(place.path().join("other")).unwrap();
    for (code, args) in [
        (1, &["mount", "img", "other"][..]),
        (1, &["mount", "-o", "ro", "img", "other"]),
        (8, &["fsck", "img"]),
        (1, &["grow", "--size", "2M", "img"]),
        (1, &["dump", "img"]),
        (1, &["mkfs", "--on", "pm", "--force", "img"]),
        (
            1,
            &["mkfs", "--on", "pm", "--force", "--size", "512K", "img"],
        ),
        (1, &["mkfs", "--force", "--size", "16M", "img"]),
    ] {
        let words = ["is in use", "mounted at", "steadfast mount", &pid, "umount"];
        refused(&place, code, args, &words);
    }
    assert_eq!(
        fs::metadata(place.path().join("img")).unwrap().len(),
        1 << 20
    );
    let holders = json(&place, &["info", "--json", "img"])["held_by"].clone();
    assert_eq!(holders[0]["pid"], server(&place).as_raw_nonzero().get());
    place.end();
}

#[test]
fn a_read_only_mount_stores_nothing() {
    let Some(place) = mounted("1M", "rw") else {
        return;
    };
    fs::write(place.mnt().join("file"), "content").unwrap();
    lost::kill(&place);
    place.refused(1, &["umount", "mnt"]);
    // Not even a recovery.
    let before = fs::read(place.path().join("img")).unwrap();
    place.must(&["mount", "-o", "ro", "img", "mnt"]);
    let file = place.mnt().join("file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    let errors = [
        fs::write(&file, "other").unwrap_err(),
        fs::remove_file(&file).unwrap_err(),
        fs::create_dir(place.mnt().join("dir")).unwrap_err(),
        fs::rename(&file, place.mnt().join("new")).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    }
    // Others may read it, too.
    place.must(&["dump", "img"]);
    place.must(&["umount", "mnt"]);
    assert!(before == fs::read(place.path().join("img")).unwrap());
    assert_eq!(state(&place), "needs-recovery");
}
