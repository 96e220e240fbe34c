//! Volumes on an object store, through the program: their disks over NBD and with a cache, growing, key files, a
//! cache of reads.
#![cfg(all(feature = "flash", feature = "store"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use programs::{PROGRAM, Running, run, said};
use rustix::process::Signal;
use serde_json::Value;

use crate::place;
use crate::programs;

use place::Place;

fn plugin() -> PathBuf {
    let built = Path::new(PROGRAM).parent().unwrap();
    built.join("deps/libsteadfast_nbdkit.so")
}

impl Place {
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.must(args)).unwrap()
    }

    fn serve_disk(&self, args: &[&str]) -> (Running, Value) {
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "disk", "--json"]);
        if !args.contains(&"--fuse") {
            command.arg("--plugin").arg(plugin());
        }
        let mut child = command
            .args(args)
            .current_dir(self.dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        assert!(out.read_line(&mut line).unwrap() > 0, "the server ended");
        (Running(child), serde_json::from_str(&line).unwrap())
    }

    /// Runs qemu-io on the served disk; returns its output.
    #[track_caller]
    fn io(&self, told: &Value, commands: &[&str]) -> String {
        let uri = told["uri"].as_str().unwrap();
        let mut args = vec!["-f", "raw", uri];
        if told["read_only"] == true {
            args.insert(0, "-r");
        }
        for command in commands {
            args.extend(["-c", command]);
        }
        let output = run(self.dir.path(), "qemu-io", &args);
        let said = said(&output);
        assert!(
            output.status.success() && !said.contains("rror") && !said.contains("ailed"),
            "{commands:?}: {said}"
        );
        said
    }
}

/// Kills nbdkit, which has the disk open: only its flushes are left.
fn crash(mut server: Running) {
    let id = server.0.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let child: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(child).unwrap(), Signal::KILL)
        .unwrap();
    assert!(!server.0.wait().unwrap().success());
}

fn has_tools() -> bool {
    let has = |tool: &&str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|dir| dir.join(tool).exists())
    };
    let missing: Vec<&str> = ["nbdkit", "qemu-io", "nbdinfo"]
        .into_iter()
        .filter(|tool| !has(tool))
        .collect();
    if !missing.is_empty() {
        steadfast_testkit::skipped!("{missing:?} missing");
    }
    missing.is_empty()
}

/// Over NBD as a flash image: bytes of any length, holes, flushes that outlive a killed server, a clean end that releases it.
#[test]
fn the_disk_of_a_volume_is_served_over_nbd() {
    if !has_tools() {
        return;
    }
    let place = Place::anywhere();
    let url = place.url("store");
    place.must(&["mkfs", "--size", "64M", "--on", &url]);
    let (server, told) = place.serve_disk(&["--socket", "sock", &url]);
    assert_eq!(told["bytes"], 64 << 20);
    assert_eq!(told["epoch_bytes"], 256 << 20);
    // Outside of what mkfs wrote: a flushed write, and one that is not.
    place.io(&told, &["write -P 7 33000001 5000", "flush"]);
    let map = run(
        place.dir.path(),
        "nbdinfo",
        &["--map", told["uri"].as_str().unwrap()],
    );
    assert!(said(&map).contains("hole"), "{}", said(&map));
    place.must_refuse(&["info", &url, "--json", "--key-file", "none"], "none");
    crash(server);
    let (server, told) = place.serve_disk(&["--socket", "sock", &url]);
    place.io(&told, &["read -P 7 33000001 5000", "write -P 9 40M 8k"]);
    let info = place.must(&["store", "info", &url]);
    assert!(info.contains("in-use"), "{info}");
    assert_eq!(server.end(Signal::TERM), Some(0));
    let info = place.must(&["store", "info", &url]);
    assert!(info.contains("released"), "{info}");
    // At an address, read-only, beside others; data answered before the end is there.
    let (server, told) = place.serve_disk(&["--read-only", "--socket", "sock", &url]);
    place.io(&told, &["read -P 9 40M 8k", "read -P 7 33000001 5000"]);
    assert_eq!(told["read_only"], true);
    assert_eq!(server.end(Signal::TERM), Some(0));
    place.must(&["fsck", &url]);
    for (args, words) in [
        (["--epoch-full", "wait"], "flushes when its epoch is full"),
        (["-o", "commit=5"], "unknown option 'commit'"),
        (["-o", "flush=cache"], "needs a cache"),
    ] {
        let begin = ["serve", "disk", "--socket", "sock"];
        let args = [&begin[..], &args[..], &[url.as_str()]].concat();
        place.must_refuse(&args, words);
    }
    let absent = place.url("absent");
    place.must_refuse(&["serve", "disk", "--socket", "sock", &absent], "no volume");
    place.must_refuse(
        &["serve", "disk", "-o", "take_over", "--socket", "sock", "x"],
        "for the URL",
    );
}

/// With a cache device: a flush survives the killed server, over NBD and as a file.
#[test]
fn the_served_disk_has_a_cache_of_flushes() {
    if !has_tools() {
        return;
    }
    let place = Place::anywhere();
    let url = place.url("store");
    place.must(&["mkfs", "--size", "64M", "--on", &url, "--flush", "cache"]);
    let options = "cache=./cache,flush=cache,cache_size=64M";
    let (server, told) = place.serve_disk(&["-o", options, "--socket", "sock", &url]);
    assert_eq!(
        told["epoch_bytes"].as_u64().map(|bytes| bytes >> 20),
        Some(15)
    );
    place.io(&told, &["write -P 5 33M 100k", "flush"]);
    crash(server);
    // Without the cache it is not opened; with it, the flush is there.
    let refused = place.run(&[
        "serve",
        "disk",
        "--plugin",
        plugin().to_str().unwrap(),
        "--socket",
        "sock",
        &url,
    ]);
    let why = said(&refused);
    assert!(
        !refused.status.success() && why.contains("kept flushes on the cache"),
        "{why}"
    );
    let (server, told) = place.serve_disk(&["-o", options, "--socket", "sock", &url]);
    place.io(&told, &["read -P 5 33M 100k", "write -P 6 33M 4k", "flush"]);
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(place.must(&["store", "info", &url]).contains("released"));
    place.must(&["fsck", &url]);
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        return;
    }
    let (server, told) = place.serve_disk(&["-o", options, "--fuse", "mnt", &url]);
    let mut options = fs::File::options();
    let options = options.read(true).write(true);
    let disk = options.open(told["file"].as_str().unwrap()).unwrap();
    let mut buf = [0; 4];
    disk.read_exact_at(&mut buf, 33 << 20).unwrap();
    assert_eq!(buf, [6; 4]);
    disk.write_all_at(&[8; 4096], 34 << 20).unwrap();
    disk.sync_all().unwrap();
    drop(disk);
    place.must(&["umount", "mnt"]);
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn a_volume_on_a_store_grows_while_it_is_not_mounted() {
    let Some(place) = Place::new() else {
        return;
    };
    let url = place.url("store");
    fs::write(place.at("key"), [9; 32]).unwrap();
    fs::set_permissions(place.at("key"), fs::Permissions::from_mode(0o600)).unwrap();
    let made = [
        "mkfs",
        "--size",
        "64M",
        "--on",
        &url,
        "--encrypt",
        "--key-file",
        "key",
    ];
    place.must(&made);
    place.must_refuse(&["grow", "--size", "1G", &url], "is encrypted");
    place.must(&["mount", "-o", "key_file=key", &url, "mnt"]);
    fs::write(place.at("mnt/before"), "before").unwrap();
    place.must_refuse(
        &["grow", "--key-file", "key", "--size", "1G", &url],
        "in use",
    );
    place.must(&["umount", "mnt"]);
    place.must(&[
        "store",
        "snapshot",
        "create",
        "--key-file",
        "key",
        &url,
        "small",
    ]);
    place.must_refuse(
        &["grow", "--key-file", "key", "--size", "32M", &url],
        "cannot shrink",
    );
    let grown = place.json(&["grow", "--json", "--key-file", "key", "--size", "1G", &url]);
    assert_eq!(grown["bytes_before"], 64 << 20);
    assert_eq!(grown["bytes"], 1 << 30);
    let info = place.json(&["info", "--json", "--key-file", "key", &url]);
    assert_eq!(info["volume_bytes"], 1 << 30);
    assert_eq!(info["state"], "clean");
    place.must(&["fsck", "--key-file", "key", &url]);
    place.must_refuse(&["fsck", &url], "is encrypted");
    place.must_refuse(&["info", &url], "is encrypted");
    let again = place.must(&["grow", "--key-file", "key", &url]);
    assert!(again.contains("fills its disk of 1 GiB already"), "{again}");
    place.must(&["mount", "-o", "key_file=key", &url, "mnt"]);
    fs::write(place.at("mnt/large"), vec![3; 100 << 20]).unwrap();
    assert_eq!(
        fs::read_to_string(place.at("mnt/before")).unwrap(),
        "before"
    );
    place.must(&["umount", "mnt"]);
    place.must(&["store", "check", "--key-file", "key", &url]);
    // A snapshot from before has its own size; a clone of it grows by itself.
    let old = format!("{url}@small");
    assert_eq!(
        place.json(&["info", "--json", "--key-file", "key", &old])["volume_bytes"],
        64 << 20
    );
    place.must_refuse(
        &["grow", "--key-file", "key", "--size", "2G", &old],
        "can only be looked at",
    );
    let clone = place.url("clone");
    place.must(&["store", "clone", "--key-file", "key", &old, &clone]);
    let grown = place.json(&["grow", "--json", "--key-file", "key", &clone]);
    assert_eq!(
        (&grown["bytes_before"], &grown["bytes"]),
        (&(64 << 20).into(), &(1 << 30).into())
    );
    place.must(&["mount", "-o", "key_file=key", &clone, "mnt"]);
    assert_eq!(
        fs::read_to_string(place.at("mnt/before")).unwrap(),
        "before"
    );
    assert!(!place.at("mnt/large").exists());
    place.must(&["umount", "mnt"]);
    // A key file is of no use to an image.
    fs::write(place.at("image"), "").unwrap();
    for command in ["fsck", "info", "grow"] {
        place.must_refuse(
            &[command, "--key-file", "key", "image"],
            "--key-file is for",
        );
    }
}

/// The sum of a counter's values.
fn counter(place: &Place, name: &str) -> u64 {
    let stat = place.json(&["stat", "--json", "mnt"]);
    let text = stat.to_string();
    let found = text.split(&format!("\"{name}\":")).nth(1);
    let digits = found.unwrap_or_else(|| panic!("{name}: {text}"));
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap();
    digits[..end].parse().unwrap()
}

#[test]
fn a_mount_keeps_what_it_read_over_restarts() {
    let Some(place) = Place::new() else {
        return;
    };
    let url = place.url("store");
    place.must(&["mkfs", "--size", "1G", "--on", &url]);
    place.must(&["mount", &url, "mnt"]);
    let bytes: Vec<u8> = (0..20 << 20_u32).map(|i| (i ^ i >> 9) as u8).collect();
    fs::write(place.at("mnt/file"), &bytes).unwrap();
    place.must(&["umount", "mnt"]);
    for (round, options) in ["cache=./reads", "cache=./reads", "ro,cache=./reads"]
        .iter()
        .enumerate()
    {
        place.must(&["mount", "-o", options, &url, "mnt"]);
        assert!(fs::read(place.at("mnt/file")).unwrap() == bytes);
        let (hits, bytes) = (
            counter(&place, "store_cached_reads"),
            counter(&place, "store_get_bytes"),
        );
        match round {
            0 => assert!(bytes > 20 << 20, "{bytes}"),
            _ => assert!(hits > 100 && bytes < 4 << 20, "{hits} {bytes}"),
        }
        place.must(&["umount", "mnt"]);
    }
    let other = place.url("other");
    place.must(&["mkfs", "--size", "1G", "--on", &other]);
    place.must_refuse(
        &["mount", "-o", "cache=./reads", &other, "mnt"],
        "cache of the volume",
    );
    place.must_refuse(
        &["mount", "-o", "cache=./reads,lag=1s", &url, "mnt"],
        "need 'cache=FILE,flush=cache'",
    );
}
