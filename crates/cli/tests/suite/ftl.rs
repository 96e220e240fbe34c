//! `steadfast ftl`: the disks that it makes, shows, tests and measures, and the requests that it refuses.
#![cfg(feature = "flash")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_ftl::{Disk, WhenFull};

use crate::programs;
use programs::said;

fn ftl<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["ftl"], args].concat()
}

fn run(dir: &Path, args: &[&str]) -> Output {
    programs::run(dir, programs::PROGRAM, &ftl(args))
}

fn must(dir: &Path, args: &[&str]) -> String {
    programs::must(dir, programs::PROGRAM, &ftl(args))
}

fn refused(dir: &Path, code: i32, args: &[&str]) -> String {
    programs::refused(dir, code, &ftl(args))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A small disk.
const FORMAT: [&str; 8] = [
    "format",
    "--size",
    "16M",
    "--epoch",
    "256K",
    "--page-size",
    "4K",
    "disk",
];

#[test]
fn a_disk_is_made_and_shown_and_keeps_its_last_flush() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let told = must(dir, &FORMAT);
    assert!(
        told.contains("disk of 16 MiB") && told.contains("snapshot"),
        "{told}"
    );
    let shown = json(&must(dir, &["info", "--json", "disk"]));
    assert_eq!(shown["contract"], "snapshot");
    assert_eq!(shown["disk_bytes"], 16 << 20);
    assert_eq!(shown["epoch_bytes"], 256 << 10);
    assert_eq!(shown["mapped_bytes"], 0);
    assert!(shown["flash_bytes"].as_u64() >= Some(20 << 20));

    let disk = Disk::open(&dir.join("disk"), WhenFull::default()).unwrap();
    disk.write(BlockNo(4095), &[&[7; BLOCK_SIZE]]).unwrap();
    disk.flush().unwrap();
    disk.write(BlockNo(4095), &[&[8; BLOCK_SIZE]]).unwrap();
    let busy = refused(dir, 1, &["info", "disk"]);
    assert!(busy.contains("in use"), "{busy}");
    let busy = refused(dir, 1, &["format", "--size", "16M", "--force", "disk"]);
    assert!(busy.contains("in use"), "{busy}");
    drop(disk);

    let before = std::fs::read(dir.join("disk")).unwrap();
    let text = must(dir, &["info", "disk"]);
    assert!(
        text.contains("mapped:   4 KiB") && text.contains("16 MiB"),
        "{text}"
    );
    assert!(
        std::fs::read(dir.join("disk")).unwrap() == before,
        "info changed the image"
    );
    let disk = Disk::open(&dir.join("disk"), WhenFull::default()).unwrap();
    let mut block = [0; BLOCK_SIZE];
    disk.read(BlockNo(4095), &mut block).unwrap();
    assert_eq!(block, [7; BLOCK_SIZE]);
}

#[test]
fn a_delta_region_is_chosen_when_a_disk_is_made_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let with = |region: &'static str| {
        let mut args = FORMAT.to_vec();
        args.extend(["--force", "--delta-region", region]);
        args
    };
    must(dir, &FORMAT);
    let usual = json(&must(dir, &["info", "--json", "disk"]));
    assert_eq!(usual["delta_region_bytes"], 8 * 4096);
    assert_eq!(usual["map_bytes"], 4 * 4096);
    // Rounded up to whole pages.
    must(dir, &with("100K"));
    let shown = json(&must(dir, &["info", "--json", "disk"]));
    assert_eq!(shown["delta_region_bytes"], 100 << 10);
    must(dir, &with("101K"));
    let text = must(dir, &["info", "disk"]);
    assert!(text.contains("deltas:   104 KiB"), "{text}");
    let before = std::fs::read(dir.join("disk")).unwrap();
    for small in ["0", "4K", "28K"] {
        let refused = refused(dir, 2, &with(small));
        let least = "at least 32 KiB are needed: 8 pages of 4 KiB";
        assert!(refused.contains(least), "{refused}");
    }
    let large = refused(dir, 2, &with("100T"));
    assert!(large.contains("a smaller delta region"), "{large}");
    assert!(std::fs::read(dir.join("disk")).unwrap() == before);
}

#[test]
fn only_a_flash_image_is_replaced_and_only_if_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    must(dir, &FORMAT);
    let there = refused(dir, 1, &FORMAT);
    assert!(there.contains("--force"), "{there}");
    let mut forced = FORMAT.to_vec();
    forced.push("--force");
    must(dir, &forced);
    std::fs::write(dir.join("letter"), "dear").unwrap();
    let other = refused(dir, 1, &["format", "--size", "16M", "--force", "letter"]);
    assert!(other.contains("no flash image"), "{other}");
    assert_eq!(std::fs::read(dir.join("letter")).unwrap(), b"dear");
}

#[test]
fn errors_say_what_to_do_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let missing = refused(dir, 1, &["info", "nothing"]);
    assert!(missing.contains("steadfast ftl format"), "{missing}");
    refused(dir, 2, &["format", "--size", "0", "disk"]);
    refused(
        dir,
        2,
        &["format", "--size", "16M", "--page-size", "5000", "disk"],
    );
    refused(
        dir,
        2,
        &["format", "--size", "16M", "--channels", "0", "disk"],
    );
    let large = refused(dir, 2, &["format", "--size", "100T", "disk"]);
    assert!(large.contains("at most"), "{large}");
    refused(dir, 2, &["bench", "--size", "1M"]);
    refused(dir, 2, &["bench", "--interval", "0"]);
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    must(dir, &FORMAT);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(dir.join("disk"));
    file.unwrap().set_len(100_000).unwrap();
    let short = refused(dir, 1, &["info", "disk"]);
    assert!(short.contains("100000 bytes of"), "{short}");
}

#[test]
fn the_stress_test_repeats_itself_and_shows_how_far_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "stress",
        "--seed",
        "5",
        "--operations",
        "1",
        "--json",
        "--progress",
    ];
    let output = run(dir.path(), &args);
    assert!(output.status.success(), "{}", said(&output));
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(progress.contains("operations: "), "{progress}");
    let first = json(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(first["violation"], Value::Null);
    assert_eq!(first["operations"], 100_000);
    assert!(first["crashes"].as_u64() > Some(20), "{first}");
    let second = json(&must(dir.path(), &args[..6]));
    assert_eq!(first["crashes"], second["crashes"]);
    assert_eq!(first["sectors_compared"], second["sectors_compared"]);
}

#[test]
fn the_measurement_gives_each_layer_at_each_interval() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "bench",
        "--size",
        "256M",
        "--writes",
        "512",
        "--interval",
        "16,256",
        "--json",
    ];
    let rows = json(&must(dir.path(), &args));
    let rows = rows["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert!(row["megabytes_per_second"].as_f64() > Some(0.1), "{row}");
        assert!(row["write_amplification"].as_f64() >= Some(0.99), "{row}");
        if row["layer"] == "async" {
            assert_eq!(row["ratio_to_async"], 1.0);
        }
    }
}
