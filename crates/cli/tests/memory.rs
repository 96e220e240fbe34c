//! Volumes in persistent memory, end to end: how they are made, looked at, mounted, filled and lost, and every wrong way to ask.
//! The memory is a file on tmpfs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

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

/// Runs what must fail with this code and say all of these words.
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
    // Of a volume on blocks they are made as they are needed.
    place.must(&["mkfs", "--size", "16M", "blocks"]);
    let blocks = json(&place, &["info", "--json", "blocks"]);
    assert_eq!(
        (&blocks["medium"], &blocks["inodes"]),
        (&"block".into(), &Value::Null)
    );
    assert!(!place.must(&["info", "blocks"]).contains("inodes:"));
}

/// The volume's own counters had some of those that the mount adds.
#[test]
fn no_counter_is_told_twice() {
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
        return println!("skipped: there is no file(1)");
    }
    let named = said(&place.command("file", &["-m", magic, "img"]));
    for what in ["persistent memory", "format 1", "label \"test\""] {
        assert!(named.contains(what), "{named}");
    }
    // One of which only the copy of the superblock is left is a volume, but no name for its place.
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
    // Zeros are nothing.
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

/// The kernel writes the pages of such a file back whenever it likes.
#[test]
fn a_file_on_a_disk_is_refused_but_for_reading() {
    let Some(place) = place("1M") else { return };
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // tmpfs and overlayfs on it.
    if rustix::fs::statfs(disk.path()).unwrap().f_type == 0x0102_1994 {
        return println!("skipped: the build lies on tmpfs");
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
    // And the reverse: what is for memory alone.
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
    // The magic number, then another word, of the superblock: the copy counts, and that is said.
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
    // Of both.
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
    // A longer one is as good as one of the right size.
    place.must(&["mkfs", "--on", "pm", "--size", "1M", "--force", "img"]);
    resize(2 << 20);
    place.must(&["fsck", "img"]);
    let grown = place.must(&["grow", "img"]);
    assert!(grown.contains("grown from 1 MiB to 2 MiB"), "{grown}");
    place.must(&["fsck", "img"]);
}

#[test]
fn a_second_opener_is_told_which_process_has_it() {
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
    kill(&place);
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

// ---------------------------------------------------------------- full, killed, cut short

/// Waits for what is so once the kernel has told the server that nobody has a file open any more, which it does on its own time.
fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it does not come"
        );
        std::thread::yield_now();
    }
}

#[test]
fn every_page_and_every_inode_can_be_used_and_comes_back() {
    let Some(place) = mounted("4M", "rw") else {
        return;
    };
    let counts = || {
        let of = rustix::fs::statvfs(place.mnt()).unwrap();
        (of.f_bfree, of.f_ffree)
    };
    let empty = counts();
    let mut file = File::create(place.mnt().join("big")).unwrap();
    let error = loop {
        if let Err(error) = file.write_all(&[7; 4096]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(counts().0, 0, "pages are left");
    // What is there can still be read, named otherwise and removed.
    fs::rename(place.mnt().join("big"), place.mnt().join("new")).unwrap();
    let len = file.metadata().unwrap().len();
    assert_eq!(len, (empty.0 - 1) * 4096, "one page has the names");
    assert!(
        fs::read(place.mnt().join("new"))
            .unwrap()
            .iter()
            .all(|byte| *byte == 7)
    );
    drop(file);
    fs::remove_file(place.mnt().join("new")).unwrap();
    // The names keep their page.
    until(|| counts() == (empty.0 - 1, empty.1));
    for i in 0..empty.1 {
        File::create(place.mnt().join(format!("{i}"))).unwrap();
    }
    let more = File::create(place.mnt().join("more"));
    assert_eq!(more.unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(counts().1, 0, "inodes are left");
    place.must(&["umount", "mnt"]);
    place.must(&["fsck", "img"]);
    place.must(&["mount", "img", "mnt"]);
    assert_eq!(counts().1, 0);
    for i in 0..empty.1 {
        fs::remove_file(place.mnt().join(format!("{i}"))).unwrap();
    }
    until(|| counts().1 == empty.1);
    place.must(&["umount", "mnt"]);
    place.must(&["mount", "img", "mnt"]);
    // The root directory keeps its pages.
    let kept = fs::metadata(place.mnt()).unwrap().blocks() / 8;
    assert!(kept < 8, "{kept}");
    until(|| counts() == (empty.0 - kept, empty.1));
    place.end();
}

/// Kills the server, and waits until the kernel knows.
fn kill(place: &Place) {
    kill_process(server(place), Signal::KILL).unwrap();
    while fs::metadata(place.mnt()).is_ok() {
        std::thread::yield_now();
    }
}

/// What a writer has been told is done.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Done {
    Written(u32, u32),
    Renamed(u32, u32),
    Removed(u32, u32),
}

/// Writes, renames and removes files until something fails; each call that returned is told about before the next begins.
fn work(mnt: &Path, writer: u32, told: &mpsc::Sender<Done>) {
    let name = |i: u32, to: &str| mnt.join(format!("{writer}-{i}{to}"));
    let step = |i: u32| -> std::io::Result<()> {
        let content = vec![i as u8; 3000 + i as usize % 9000];
        let mut file = File::create(name(i, "")).and_then(|file| {
            file.write_all_at(&content, 0)?;
            Ok(file)
        })?;
        file.flush()?;
        let _ = told.send(Done::Written(writer, i));
        if !i.is_multiple_of(3) {
            fs::rename(name(i, ""), name(i, "-renamed"))?;
            let _ = told.send(Done::Renamed(writer, i));
        }
        if i % 3 == 2 {
            fs::remove_file(name(i, "-renamed"))?;
            let _ = told.send(Done::Removed(writer, i));
        }
        Ok(())
    };
    let _: Option<u32> = (0..).find(|i| step(*i).is_err());
}

/// Three clients are in the middle of their work when the server is killed, at a moment that they decide by how much they did.
#[test]
fn every_call_that_returned_is_there_after_the_server_was_killed() {
    let Some(place) = mounted("64M", "rw") else {
        return;
    };
    let mut last = Vec::new();
    for round in 0..3 {
        let dir = place.mnt().join(format!("round-{round}"));
        fs::create_dir(&dir).unwrap();
        let (tell, told) = mpsc::channel();
        let mut done = Vec::new();
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let (dir, tell) = (&dir, tell.clone());
                scope.spawn(move || work(dir, writer, &tell));
            }
            drop(tell);
            done.extend(told.iter().take(200 + 37 * round));
            kill(&place);
            done.extend(told.iter());
        });
        refused(
            &place,
            1,
            &["umount", "mnt"],
            &[
                "its server was dead",
                "every call that had returned is durable",
                "the next mount recovers it",
            ],
        );
        assert_eq!(state(&place), "needs-recovery");
        place.must(&["fsck", "img"]);
        let said = place.must(&["mount", "img", "mnt"]);
        assert!(
            said.contains("not unmounted") || said.contains("recovered"),
            "{said}"
        );
        last.push((dir, done));
        // Those of earlier rounds, too.
        for (dir, done) in &last {
            look(dir, done);
        }
    }
    place.end();
}

/// Compares a directory with what was told of it. A call that had not returned may have happened.
fn look(dir: &Path, done: &[Done]) {
    for writer in 0..3 {
        let of_mine = |done: &&Done| match done {
            Done::Written(it, _) | Done::Renamed(it, _) | Done::Removed(it, _) => *it == writer,
        };
        let mine: Vec<&Done> = done.iter().filter(of_mine).collect();
        let path = |i: u32, to: &str| dir.join(format!("{writer}-{i}{to}"));
        let whole = |i: u32, to: &str| {
            let content = fs::read(path(i, to)).unwrap_or_else(|e| panic!("{writer}-{i}{to}: {e}"));
            assert!(
                content == vec![i as u8; 3000 + i as usize % 9000],
                "{writer}-{i}{to}"
            );
        };
        for (at, step) in mine.iter().enumerate() {
            let is_last = at + 1 == mine.len();
            match *step {
                Done::Written(_, i) if i % 3 == 0 => whole(*i, ""),
                Done::Written(_, i) if is_last => {
                    // The rename, and then the removal, were on their way.
                    let place = ["", "-renamed"]
                        .into_iter()
                        .find(|to| path(*i, to).exists());
                    whole(*i, place.expect("neither name is there"));
                }
                Done::Renamed(_, i) if i % 3 == 1 => whole(*i, "-renamed"),
                Done::Renamed(_, i) if is_last => {
                    assert!(!path(*i, "").exists());
                    if path(*i, "-renamed").exists() {
                        whole(*i, "-renamed");
                    }
                }
                Done::Written(..) | Done::Renamed(..) => {}
                Done::Removed(_, i) => {
                    assert!(!path(*i, "").exists() && !path(*i, "-renamed").exists());
                }
            }
        }
        assert!(!mine.is_empty(), "writer {writer} did nothing");
    }
}

/// The kernel sends SIGBUS for what is no longer there.
#[test]
fn a_file_that_is_cut_short_under_its_mount_fails_calls_and_not_the_server() {
    let Some(place) = mounted("64M", "rw") else {
        return;
    };
    fs::write(place.mnt().join("early"), vec![1; 100_000]).unwrap();
    fs::write(place.mnt().join("late"), vec![2; 60 << 20]).unwrap();
    place.must(&["umount", "mnt"]);
    let last_page = |path: &str| {
        let shown = json(&place, &["dump", "--json", "--inode", path, "img"]);
        let runs = shown["pages"].as_array().unwrap().iter();
        runs.map(|run| run["pages"][1].as_u64().unwrap() - 1)
            .max()
            .unwrap()
    };
    let cut = last_page("/late");
    assert!(cut > last_page("/early"), "the other file is cut, too");
    // Nothing of it is in the kernel's cache.
    place.must(&["mount", "img", "mnt"]);
    let pid = server(&place);
    image(&place).set_len(cut * 4096).unwrap();
    let late = fs::read(place.mnt().join("late"));
    assert_eq!(late.unwrap_err().raw_os_error(), Some(5), "EIO, not zeros");
    let write = fs::write(place.mnt().join("new"), "new");
    assert_eq!(write.unwrap_err().raw_os_error(), Some(5));
    // Zeros may lie in the place of any word: nothing is shown any more that is not known to be true.
    let early = fs::read(place.mnt().join("early"));
    assert_eq!(early.unwrap_err().raw_os_error(), Some(5));
    assert_eq!(server(&place), pid, "the server lives");
    let stat = json(&place, &["stat", "--json", "mnt"]);
    assert_eq!(
        (&stat["failed_now"], &stat["read_only_now"]),
        (&1.into(), &1.into())
    );
    let words = [
        "not closed cleanly",
        "the persistent memory failed",
        "cut short",
        "restore its full size",
    ];
    refused(&place, 1, &["umount", "mnt"], &words);
    image(&place).set_len(64 << 20).unwrap();
    assert_eq!(state(&place), "needs-recovery");
}

#[test]
fn a_dead_server_of_a_volume_in_memory_took_nothing_along() {
    let Some(place) = mounted("1M", "rw") else {
        return;
    };
    fs::write(place.mnt().join("file"), "never synced").unwrap();
    kill(&place);
    refused(
        &place,
        1,
        &["mount", "img", "mnt"],
        &["server is gone", "steadfast umount"],
    );
    let words = [
        "its server was dead",
        "every call that had returned is durable",
        "mmap",
    ];
    refused(&place, 1, &["umount", "mnt"], &words);
    place.must(&["mount", "img", "mnt"]);
    assert_eq!(
        fs::read_to_string(place.mnt().join("file")).unwrap(),
        "never synced"
    );
    assert_eq!(fs::metadata(place.mnt().join("file")).unwrap().nlink(), 1);
    place.end();
}

// ---------------------------------------------------------------- dump

#[test]
fn dump_shows_superblock_chunks_and_the_use_of_every_page() {
    let Some(place) = mounted("4M", "rw") else {
        return;
    };
    fs::write(place.mnt().join("file"), vec![1; 3 * 4096]).unwrap();
    place.must(&["umount", "mnt"]);
    let before = fs::read(place.path().join("img")).unwrap();
    let shown = json(&place, &["dump", "--json", "img"]);
    let number = |value: &Value| value.as_u64().unwrap();
    let superblock = &shown["superblock"];
    assert_eq!(
        (&superblock["label"], &superblock["clean"]),
        (&"test".into(), &true.into())
    );
    assert_eq!(number(&superblock["volume_pages"]), 1024);
    // Every page once, in order, and the chunks add up.
    let mut next = 0;
    for run in shown["pages"].as_array().unwrap() {
        assert_eq!(number(&run["pages"][0]), next);
        next = number(&run["pages"][1]);
    }
    assert_eq!(next, 1024);
    let chunk = &shown["chunks"][0];
    let parts = [
        "directory_pages",
        "content_pages",
        "attribute_pages",
        "free_pages",
    ];
    let parts = parts.map(|name| number(&chunk[name]));
    assert_eq!(parts[..3], [1, 3, 0]);
    assert_eq!(parts.iter().sum::<u64>(), number(&chunk["data_pages"]));
    let alone = json(&place, &["dump", "--json", "--superblock", "img"]);
    assert_eq!(alone["uuid"], superblock["uuid"]);
    let text = place.must(&["dump", "img"]);
    for line in [
        "mounts:   1, unmounted since",
        "page 0",
        "chunk 0:",
        ": free",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(
        before == fs::read(place.path().join("img")).unwrap(),
        "dump wrote"
    );
}

#[test]
fn dump_shows_single_inodes_directories_and_pages() {
    let Some(place) = mounted("4M", "rw") else {
        return;
    };
    let long = "a name of more than thirty-two bytes, which goes on in the next slot";
    fs::create_dir(place.mnt().join("dir")).unwrap();
    let file = place.mnt().join("dir").join(long);
    fs::write(&file, vec![b'x'; 5000]).unwrap();
    rustix::fs::setxattr(
        &file,
        "user.small",
        b"value",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    std::os::unix::fs::symlink("target", place.mnt().join("link")).unwrap();
    place.must(&["umount", "mnt"]);
    let path = format!("/dir/{long}");
    let inode = json(&place, &["dump", "--json", "--inode", &path, "img"]);
    assert_eq!(
        (&inode["kind"], &inode["size"]),
        (&"file".into(), &5000.into())
    );
    assert_eq!(
        (&inode["links"], &inode["alive"]),
        (&1.into(), &true.into())
    );
    assert_eq!(inode["xattrs"][0]["value"], "76616c7565");
    assert_eq!(inode["attributes_place"], "inline");
    let number = inode["inode"].to_string();
    let by_number = json(&place, &["dump", "--json", "--inode", &number, "img"]);
    assert_eq!(by_number, inode);
    let link = json(&place, &["dump", "--json", "--inode", "/link", "img"]);
    assert_eq!(
        (&link["target"], &link["damage"]),
        (&"target".into(), &Value::Array(vec![]))
    );
    let dir = json(&place, &["dump", "--json", "--directory", "/dir", "img"]);
    let slot = &dir["pages"][0]["slots"][0];
    assert_eq!((&dir["entries"], &slot["slots"]), (&1.into(), &2.into()));
    assert_eq!(
        (&slot["name"], &slot["inode"]),
        (&long.into(), &inode["inode"])
    );
    // The page that has the content.
    let first = inode["pages"][0]["pages"][0].to_string();
    let page = json(&place, &["dump", "--json", "--block", &first, "img"]);
    assert!(page["bytes"].as_str().unwrap().starts_with("787878"));
    assert_eq!(page["descriptor"]["inode"], inode["inode"]);
    let text = place.must(&["dump", "--block", &first, "img"]);
    assert!(
        text.contains(&format!("content of inode {number}")),
        "{text}"
    );
    for (block, what) in [
        ("0", "the superblock"),
        ("1", "the copy"),
        ("2", "inodes of chunk 0"),
    ] {
        assert!(
            place
                .must(&["dump", "--block", block, "img"])
                .contains(what)
        );
    }
    for (args, why) in [
        (["--inode", "/absent"], "does not exist"),
        (["--inode", "999999"], "is no inode"),
        (["--inode", "99999999999"], "is no inode"),
        (["--directory", "/link"], "no directory"),
        (["--directory", "77"], "is no inode"),
        (["--block", "1024"], "beyond its end"),
        (["--block", "18446744073709551615"], "beyond its end"),
    ] {
        refused(
            &place,
            1,
            &[&["dump"], &args[..], &["img"]].concat(),
            &[why],
        );
    }
    // One that is free is shown as its words are.
    let free = json(&place, &["dump", "--json", "--inode", "77", "img"]);
    assert_eq!(free["alive"], false);
}
