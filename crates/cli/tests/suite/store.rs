//! Volumes on an object store, through the program: a directory as the store, mounts, a killed server, a take-over.
#![cfg(feature = "store")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::place;
use crate::programs;

use place::Place;

impl Place {
    /// Waits until the volume is in this state: a neighbour's mount namespace keeps a server for a while.
    #[track_caller]
    fn must_become(&self, url: &str, state: &str) {
        let words = format!("state:      {state}");
        let mut said = String::new();
        for _ in 0..600 {
            said = self.must(&["store", "info", url]);
            if said.contains(&words) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("{said}");
    }
}

fn synced(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[test]
fn a_volume_in_a_directory_lives_through_mounts_and_a_killed_server() {
    let Some(place) = Place::new() else { return };
    let url = place.url("store");
    let said = place.must(&["mkfs", "--size", "1G", "--on", &url, "-L", "far"]);
    assert!(said.contains("no log") && said.contains("far"), "{said}");
    let again = place.run(&["mkfs", "--size", "1G", "--on", &url]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        programs::said(&again).contains("there already"),
        "{}",
        programs::said(&again)
    );
    place.must(&["mount", &url, "mnt"]);
    let mut buf = [0; 4];
    synced(&place.at("mnt/kept"), "kept").unwrap();
    let info = place.must(&["info", "--json", &url]);
    assert!(
        info.contains("\"store\"") && info.contains("\"mounted\""),
        "{info}"
    );
    // In use: a second mount is refused, and says by which process.
    let second = place.run(&["mount", &url, "other"]);
    assert!(
        programs::said(&second).contains("is in use by process"),
        "{}",
        programs::said(&second)
    );
    place.must(&["umount", "mnt"]);
    place.must_become(&url, "released");
    place.must(&["fsck", &url]);
    // Killed: what fsync acknowledged is there after the next mount.
    let mut server = place.serve(&url, "mnt", "rw");
    synced(&place.at("mnt/last"), "last").unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let _ = place.run(&["umount", "mnt"]);
    place.must_become(&url, "not-released");
    place.must(&["mount", &url, "mnt"]);
    for (name, text) in [("kept", b"kept"), ("last", b"last")] {
        let file = fs::File::open(place.at("mnt").join(name)).unwrap();
        file.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(&buf, text);
    }
    place.must(&["umount", "mnt"]);
    place.must(&["fsck", &url]);
    let checked = place.must(&["store", "check", &url]);
    assert!(checked.contains("clean"), "{checked}");
    let cost = place.must(&["store", "cost", "--json", &url]);
    assert!(cost.contains("\"log\""), "{cost}");
}

/// Another mount takes the volume over. The first gets EIO, acknowledges nothing, and its umount reports a failure.
#[test]
fn a_writer_that_was_taken_over_gets_eio() {
    let Some(place) = Place::new() else { return };
    let url = place.url("store");
    place.must(&["mkfs", "--size", "1G", "--on", &url]);
    place.must(&["mount", &url, "mnt"]);
    synced(&place.at("mnt/before"), "before").unwrap();
    place.must(&["mount", "-o", "take_over", &url, "other"]);
    let late = synced(&place.at("mnt/late"), "late");
    let code = late.unwrap_err().raw_os_error();
    let (io, read_only) = (rustix::io::Errno::IO, rustix::io::Errno::ROFS);
    assert!(
        [io, read_only]
            .map(rustix::io::Errno::raw_os_error)
            .contains(&code.unwrap()),
        "{code:?}"
    );
    synced(&place.at("other/after"), "after").unwrap();
    let umount = place.run(&["umount", "mnt"]);
    let said = programs::said(&umount);
    let elsewhere = said.contains("mount namespace");
    assert!(
        !umount.status.success() || elsewhere,
        "it closed as if nothing were: {said}"
    );
    place.must(&["umount", "other"]);
    place.must_become(&url, "released");
    place.must(&["mount", &url, "mnt"]);
    assert!(place.at("mnt/before").exists() && place.at("mnt/after").exists());
    assert!(!place.at("mnt/late").exists());
    place.must(&["umount", "mnt"]);
    place.must(&["fsck", &url]);
}

#[test]
fn snapshots_and_clones_are_volumes_of_their_own() {
    let Some(place) = Place::new() else { return };
    let (url, copy) = (place.url("store"), place.url("copy"));
    place.must(&["mkfs", "--size", "1G", "--on", &url]);
    place.must(&["mount", &url, "mnt"]);
    synced(&place.at("mnt/file"), "one").unwrap();
    place.must(&["umount", "mnt"]);
    place.must_become(&url, "released");
    place.must(&["store", "snapshot", "create", &url, "monday"]);
    assert!(
        place
            .must(&["store", "snapshot", "list", &url])
            .contains("monday")
    );
    place.must(&["store", "clone", &format!("{url}@monday"), &copy]);
    place.must(&["mount", &url, "mnt"]);
    synced(&place.at("mnt/file"), "two").unwrap();
    place.must(&["umount", "mnt"]);
    place.must(&["store", "gc", &url]);
    let snapshot = format!("{url}@monday");
    let refused = place.run(&["mount", &snapshot, "mnt"]);
    assert!(
        programs::said(&refused).contains("clone"),
        "{}",
        programs::said(&refused)
    );
    place.must(&["mount", "-o", "ro", &snapshot, "mnt"]);
    assert_eq!(fs::read(place.at("mnt/file")).unwrap(), b"one");
    place.must(&["umount", "mnt"]);
    place.must(&["mount", &copy, "mnt"]);
    assert_eq!(fs::read(place.at("mnt/file")).unwrap(), b"one");
    synced(&place.at("mnt/more"), "more").unwrap();
    place.must(&["umount", "mnt"]);
    for url in [&url, &copy] {
        place.must(&["fsck", url]);
        place.must(&["store", "check", url]);
    }
    place.must(&["store", "snapshot", "delete", &url, "monday"]);
    let gone = place.run(&["mount", "-o", "ro", &snapshot, "mnt"]);
    assert!(
        programs::said(&gone).contains("no snapshot"),
        "{}",
        programs::said(&gone)
    );
}

/// The bare disk as a file: what fsync acknowledged is there. The server ignores the volume on it.
#[test]
fn the_bare_disk_is_served_as_a_file() {
    let Some(place) = Place::new() else { return };
    let url = place.url("store");
    place.must(&["mkfs", "--size", "64M", "--on", &url]);
    let serve = || {
        let mut server = Command::new(programs::PROGRAM)
            .current_dir(place.dir.path())
            .args(["serve", "disk", "--fuse", "mnt", &url])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(server.stdout.take().unwrap());
        assert!(said.read_line(&mut line).unwrap() > 0, "the server ended");
        server
    };
    let mut server = serve();
    let disk = fs::File::options()
        .read(true)
        .write(true)
        .open(place.at("mnt/disk"))
        .unwrap();
    disk.write_all_at(b"bytes", 12_345).unwrap();
    disk.sync_all().unwrap();
    drop(disk);
    place.must(&["umount", "mnt"]);
    assert!(server.wait().unwrap().success());
    let mut server = serve();
    let mut buf = [0; 5];
    let disk = fs::File::open(place.at("mnt/disk")).unwrap();
    disk.read_exact_at(&mut buf, 12_345).unwrap();
    assert_eq!(&buf, b"bytes");
    drop(disk);
    place.must(&["umount", "mnt"]);
    assert!(server.wait().unwrap().success());
}

#[test]
fn wrong_urls_and_options_are_explained() {
    let Some(place) = Place::new() else { return };
    for (args, words) in [
        (
            &["mount", "file:///nowhere-at-all/x", "mnt"][..],
            "no volume is there",
        ),
        (
            &["mkfs", "--on", "file:///nowhere-at-all/x"][..],
            "--size is missing",
        ),
        (
            &[
                "mkfs",
                "--size",
                "1G",
                "--force",
                "--on",
                "file:///nowhere-at-all/x",
            ][..],
            "--force",
        ),
        (&["store", "info", "https://a/b"][..], "s3://"),
        (
            &[
                "store",
                "clone",
                "file:///nowhere-at-all/x",
                "file:///tmp/y",
            ][..],
            "URL@SNAPSHOT",
        ),
        (
            &["serve", "disk", "file:///nowhere-at-all/x"][..],
            "no volume is there",
        ),
    ] {
        let output = place.run(args);
        assert!(!output.status.success());
        assert!(
            programs::said(&output).contains(words),
            "{args:?}: {}",
            programs::said(&output)
        );
    }
    assert!(
        !Path::new("/nowhere-at-all").exists(),
        "looking makes nothing"
    );
}

/// Compressed and encrypted: made, mounted, checked, cloned and given another key file through the program; none of
/// its content shows.
#[test]
fn an_encrypted_volume_opens_with_its_key_file_alone() {
    let Some(place) = Place::new() else { return };
    let url = place.url("secret");
    fs::write(place.at("key"), [7; 32]).unwrap();
    fs::write(place.at("new"), [8; 40]).unwrap();
    fs::write(place.at("short"), "too short").unwrap();
    let refused = |args: &[&str], code: i32, why: &str| {
        let output = place.run(args);
        let said = programs::said(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    };
    let mkfs = ["mkfs", "--size", "1G", "--on", &url, "--encrypt"];
    refused(&mkfs, 2, "needs a key file");
    refused(
        &[&mkfs[..], &["--key-file", "short"]].concat(),
        1,
        "9 bytes",
    );
    refused(
        &[&mkfs[..], &["--key-file", "key", "--unit", "5000"]].concat(),
        2,
        "--unit",
    );
    let image = ["mkfs", "--size", "1G", "--compress", "zstd", "image"];
    refused(&image, 2, "on an object store");
    place.must(&[&mkfs[..], &["--key-file", "key", "--compress", "zstd"]].concat());
    refused(&["mount", &url, "mnt"], 1, "is encrypted");
    refused(
        &["mount", "-o", "key_file=new", &url, "mnt"],
        1,
        "does not fit",
    );
    refused(&["store", "info", &url], 1, "is encrypted");
    let marker = "a line that must not show. ".repeat(4000);
    place.must(&["mount", "-o", "key_file=key", &url, "mnt"]);
    synced(&place.at("mnt/a-telling-name"), &marker).unwrap();
    place.must(&["umount", "mnt"]);
    let info = place.must(&["store", "info", "--key-file", "key", &url]);
    assert!(
        info.contains("zstd") && info.contains("AES-256-GCM"),
        "{info}"
    );
    for word in ["must not show", "a-telling-name"] {
        let found = Command::new("grep")
            .args(["-r", "-a", "-l", word])
            .arg(place.at("secret"))
            .output();
        assert_eq!(
            programs::said(&found.unwrap()),
            "",
            "'{word}' shows in the store"
        );
    }
    place.must(&[
        "store",
        "snapshot",
        "create",
        "--key-file",
        "key",
        &url,
        "one",
    ]);
    let (from, to) = (format!("{url}@one"), place.url("clone"));
    let clone = [
        "store",
        "clone",
        "--key-file",
        "key",
        "--new-key-file",
        "new",
        &from,
        &to,
    ];
    place.must(&clone);
    place.must(&[
        "store",
        "rekey",
        "--key-file",
        "key",
        "--new-key-file",
        "new",
        &url,
    ]);
    refused(
        &["store", "check", "--key-file", "key", &url],
        8,
        "does not fit",
    );
    for url in [&url, &to] {
        place.must(&["store", "check", "--key-file", "new", url]);
        place.must(&["mount", "-o", "key_file=new", url, "mnt"]);
        assert_eq!(
            fs::read_to_string(place.at("mnt/a-telling-name")).unwrap(),
            marker
        );
        place.must(&["umount", "mnt"]);
    }
    // Commands without the option take the file that the environment names.
    let fsck = |key: &str| {
        let mut command = Command::new(programs::PROGRAM);
        command.env("STEADFAST_KEY_FILE", place.at(key));
        command.args(["fsck", &url]).output().unwrap()
    };
    assert!(
        fsck("new").status.success(),
        "{}",
        programs::said(&fsck("new"))
    );
    assert!(programs::said(&fsck("key")).contains("does not fit"));
}

/// A replica shows each flush of the writer, while both are mounted, and the kernel's caches do not hide it.
#[test]
fn a_replica_follows_the_writer() {
    let Some(place) = Place::new() else { return };
    let url = place.url("store");
    place.must(&["mkfs", "--size", "1G", "--on", &url]);
    let refused = place.run(&["mount", "-o", "follow=1", &url, "other"]);
    assert_eq!(
        refused.status.code(),
        Some(2),
        "{}",
        programs::said(&refused)
    );
    assert!(programs::said(&refused).contains("needs 'ro'"));
    place.must(&["mount", &url, "mnt"]);
    fs::create_dir(place.at("mnt/dir")).unwrap();
    synced(&place.at("mnt/dir/file"), "first").unwrap();
    place.must(&["mount", "-o", "ro,follow=1", &url, "other"]);
    // In the kernel's caches: content, attributes, the listing, and that a name is absent.
    let read = |name: &str| fs::read_to_string(place.at(name)).ok();
    let names = || {
        let names = fs::read_dir(place.at("other/dir")).unwrap();
        let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(read("other/dir/file").as_deref(), Some("first"));
    assert_eq!(read("other/dir/more"), None);
    assert_eq!(names(), ["file"]);
    let open = fs::File::open(place.at("other/dir/file")).unwrap();
    let wait = |what: &str, seen: &dyn Fn() -> bool| {
        for _ in 0..600 {
            if seen() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("{what} is not seen");
    };
    // The same file with other bytes, of the same length; and a new one.
    let file = fs::OpenOptions::new()
        .write(true)
        .open(place.at("mnt/dir/file"))
        .unwrap();
    file.write_all_at(b"FIRST", 0).unwrap();
    file.sync_all().unwrap();
    wait("the new content", &|| {
        read("other/dir/file").as_deref() == Some("FIRST")
    });
    let mut buf = [0; 5];
    open.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"FIRST", "through a descriptor that was open before");
    synced(&place.at("mnt/dir/more"), "second").unwrap();
    wait("the new name", &|| {
        read("other/dir/more").as_deref() == Some("second")
    });
    assert_eq!(names(), ["file", "more"]);
    assert!(
        fs::write(place.at("other/dir/file"), "x").is_err(),
        "read-only"
    );
    // Removed, and its number given to another file.
    drop(file);
    fs::remove_file(place.at("mnt/dir/file")).unwrap();
    for number in 0..40 {
        synced(&place.at(&format!("mnt/dir/new-{number}")), "third").unwrap();
    }
    wait("the last file", &|| {
        read("other/dir/new-39").as_deref() == Some("third")
    });
    assert_eq!(read("other/dir/file"), None);
    let gone = open.read_exact_at(&mut buf, 0).unwrap_err();
    assert!(
        matches!(gone.raw_os_error(), Some(libc_estale) if libc_estale == rustix::io::Errno::STALE.raw_os_error()
            || libc_estale == rustix::io::Errno::IO.raw_os_error()),
        "{gone}: never another file's bytes"
    );
    for number in 0..40 {
        assert_eq!(
            read(&format!("other/dir/new-{number}")).as_deref(),
            Some("third")
        );
    }
    drop(open);
    // The writer unmounts; the replica stays as it was, and can be unmounted.
    place.must(&["umount", "mnt"]);
    assert_eq!(read("other/dir/more").as_deref(), Some("second"));
    place.must(&["umount", "other"]);
}
