//! Habits from other file systems, and interfaces for scripts: options of fsck, JSON with a version, errors as JSON,
//! the output of file(1) and udev(7) for a volume.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;

use common::PROGRAM;
use common::programs::{must, refused, run};
use serde_json::Value;

fn volume(dir: &Path) -> fs::File {
    must(
        dir,
        PROGRAM,
        &["mkfs", "--size", "32M", "--label", "my data", "img"],
    );
    fs::File::options()
        .read(true)
        .write(true)
        .open(dir.join("img"))
        .unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn fsck_takes_n_y_and_p_with_their_usual_meaning() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let img = volume(dir);
    let fsck = |args: &[&str]| code(&run(dir, PROGRAM, &[&["fsck"], args, &["img"]].concat()));
    for options in [&["-n"][..], &["-y"], &["-p"], &["-a"], &["-fp"], &["-fy"]] {
        assert_eq!(fsck(options), Some(0), "{options:?}");
    }
    assert_eq!(fsck(&["-n", "-y"]), Some(2));
    assert_eq!(fsck(&["-p", "-y"]), Some(2));
    let said = must(dir, PROGRAM, &["fsck", "-p", "img"]);
    assert!(said.contains("not checked"), "{said}");

    // A repair changes no content here: it is done without a question.
    let last = (32 << 20) - 4096;
    img.write_all_at(&[7; 100], last).unwrap();
    assert_eq!(fsck(&["-n"]), Some(4));
    assert_eq!(fsck(&["-p"]), Some(0), "a mount can use it as it is");
    assert_eq!(fsck(&["-fp"]), Some(1));
    assert_eq!(fsck(&["-n"]), Some(0));

    // A bitmap: somebody should look before a repair.
    let dumped: Value = serde_json::from_str(&must(
        dir,
        PROGRAM,
        &["dump", "--superblock", "--json", "img"],
    ))
    .unwrap();
    let bitmap = dumped["groups_start_block"].as_u64().unwrap() * 4096;
    img.write_all_at(&[0; 4096], bitmap).unwrap();
    let before = fs::read(dir.join("img")).unwrap();
    assert_eq!(fsck(&["-fp"]), Some(4));
    assert!(
        fs::read(dir.join("img")).unwrap() == before,
        "-p repaired what concerns content"
    );
    assert_eq!(fsck(&["-y"]), Some(1));
    assert_eq!(fsck(&["-n"]), Some(0));
}

#[test]
fn findings_have_block_inode_and_path_as_fields() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let img = volume(dir);
    img.write_all_at(&[7; 100], (32 << 20) - 4096).unwrap();
    let output = run(dir, PROGRAM, &["fsck", "--json", "img"]);
    assert_eq!(code(&output), Some(4));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = &found["findings"][0];
    assert_eq!(finding["kind"], "SuperblockCopyDamaged");
    assert_eq!(finding["severity"], "minor");
    assert_eq!(finding["block"], (32 << 20) / 4096 - 1);
    assert_eq!(finding["inode"], Value::Null);
    assert!(finding.get("path").is_some_and(Value::is_null));
    assert_eq!(finding["repair"], "writes it anew");
    assert!(
        finding["text"]
            .as_str()
            .unwrap()
            .contains(finding["detail"].as_str().unwrap())
    );
}

#[test]
#[cfg_attr(
    any(not(feature = "crash"), not(feature = "flash")),
    ignore = "needs crash and flash"
)]
fn everything_written_as_json_is_an_object_with_a_version() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    drop(volume(dir));
    must(dir, PROGRAM, &["ftl", "format", "--size", "16M", "disk"]);
    for args in [
        &["info", "--json", "img"][..],
        &["fsck", "--json", "img"],
        &["fsck", "-p", "--json", "img"],
        &["dump", "--json", "img"],
        &["dump", "--json", "--superblock", "img"],
        &["dump", "--json", "--log", "img"],
        &["dump", "--json", "--block", "0", "img"],
        &["dump", "--json", "--inode", "/", "img"],
        &["dump", "--json", "--directory", "/", "img"],
        &["trim", "--json", "img"],
        &["scrub", "--json", "img"],
        &["grow", "--json", "--size", "40M", "img"],
        &["ftl", "info", "--json", "disk"],
        &["ftl", "stress", "--json", "--operations", "1"],
        &[
            "ftl",
            "bench",
            "--json",
            "--size",
            "256M",
            "--writes",
            "64",
            "--interval",
            "16",
        ],
        &["crash", "self", "--json", "--images", "10"],
        &["crash", "put", "--json", "--size", "1K"],
    ] {
        let text = must(dir, PROGRAM, args);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}"));
        assert_eq!(value["schema_version"], 1, "{args:?}");
    }
}

/// One line of standard error instead of the usual one; standard output stays empty.
#[test]
fn an_error_is_json_where_the_result_would_be() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    drop(volume(dir));
    fs::write(dir.join("text"), "no volume".repeat(1000)).unwrap();
    for (args, exit, kind, word) in [
        (
            &["info", "--json", "text"][..],
            1,
            "not-a-volume",
            "no Steadfast volume",
        ),
        (
            &["info", "--json", "absent"],
            1,
            "not-found",
            "does not exist",
        ),
        (
            &["fsck", "--json", "absent"],
            8,
            "not-found",
            "does not exist",
        ),
        (
            &["fsck", "--json", "--frobnicate", "img"],
            2,
            "usage",
            "--frobnicate",
        ),
        (
            &["stat", "--json", "."],
            1,
            "failed",
            "not on a mounted Steadfast volume",
        ),
    ] {
        let output = run(dir, PROGRAM, args);
        assert_eq!(code(&output), Some(exit), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let value: Value =
            serde_json::from_slice(&output.stderr).unwrap_or_else(|e| panic!("{args:?}: {e}"));
        let error = &value["error"];
        assert_eq!(
            (&error["kind"], &error["exit_code"]),
            (&kind.into(), &exit.into()),
            "{args:?}"
        );
        assert!(
            error["message"].as_str().unwrap().contains(word),
            "{args:?}: {error}"
        );
        assert_eq!(value["schema_version"], 1);
    }
    // Without the option, and after the end of the options, it is the usual line.
    assert!(refused(dir, 1, &["info", "absent"]).starts_with("steadfast: "));
    assert!(refused(dir, 1, &["info", "--", "--json"]).starts_with("steadfast: "));
}

/// Every field that a command writes is in the reference.
#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn the_reference_describes_every_field() {
    let reference = include_str!("../../../../docs/reference/json.md");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let img = volume(dir);
    img.write_all_at(&[7; 100], (32 << 20) - 4096).unwrap();
    must(dir, PROGRAM, &["ftl", "format", "--size", "16M", "disk"]);
    for args in [
        &["info", "--json", "img"][..],
        &["fsck", "--json", "img"],
        &["fsck", "-p", "--json", "img"],
        &["trim", "--json", "img"],
        &["scrub", "--json", "img"],
        &["ftl", "info", "--json", "disk"],
    ] {
        let value: Value = serde_json::from_slice(&run(dir, PROGRAM, args).stdout).unwrap();
        let mut objects = vec![&value];
        while let Some(value) = objects.pop() {
            match value {
                Value::Object(fields) => {
                    for (name, value) in fields {
                        assert!(reference.contains(&format!("`{name}`")), "{args:?}: {name}");
                        objects.push(value);
                    }
                }
                Value::Array(values) => objects.extend(values),
                _ => {}
            }
        }
    }
}

#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn file_and_udev_know_a_volume() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    drop(volume(dir));
    let info: Value =
        serde_json::from_str(&must(dir, PROGRAM, &["info", "--json", "img"])).unwrap();
    let uuid = info["uuid"].as_str().unwrap();
    let said = must(dir, PROGRAM, &["info", "--udev", "img"]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "ID_FS_TYPE=steadfast");
    for line in [
        &format!("ID_FS_UUID={uuid}"),
        "ID_FS_USAGE=filesystem",
        "ID_FS_LABEL=my_data",
        "ID_FS_LABEL_ENC=my\\x20data",
    ] {
        assert!(lines.contains(&line), "{line}: {said}");
    }
    // Another file system was made over the volume: the copy of the superblock at the end does not count.
    fs::copy(dir.join("img"), dir.join("other")).unwrap();
    let other = fs::File::options()
        .write(true)
        .open(dir.join("other"))
        .unwrap();
    other.write_all_at(&[0; 65536], 0).unwrap();
    refused(dir, 1, &["info", "--udev", "other"]);

    must(dir, PROGRAM, &["ftl", "format", "--size", "16M", "disk"]);
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/magic");
    let known = match std::process::Command::new("file")
        .args(["-m", rules, "img", "disk"])
        .current_dir(dir)
        .output()
    {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(e) => return steadfast_testkit::skipped!("file: {e}"),
    };
    for words in [
        "Steadfast volume, format 2, contract ordered, label \"my data\"",
        "Steadfast flash image, format 1, 4 channels of 2 dies",
    ] {
        assert!(known.contains(words), "{words}: {known}");
    }
}
