//! `steadfast dump` on clean volumes, on logs that wait for recovery, on damage, and on images without a volume. It
//! never changes anything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::Value;
use steadfast_block::{BLOCK_SIZE, BlockNo, FileDevice, FileOptions};
use steadfast_fs::VolumeMap;
use steadfast_journal::{Config, Credits, Journal, Kind, StreamId};

use crate::programs;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A place with a volume in `img`.
    fn with_volume() -> Place {
        let place = Place {
            dir: tempfile::tempdir().unwrap(),
        };
        place.ok(&["mkfs", "--size", "16M", "--label", "test", "img"]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_steadfast"))
            .args(args)
            .current_dir(self.dir.path())
            .output()
            .unwrap()
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let output = programs::run_when_free(|| self.run(args));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refused(&self, args: &[&str], code: i32, words: &[&str]) {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "no '{word}': {said}");
        }
    }

    /// Dumps the image, and checks that nothing changed.
    #[track_caller]
    fn dump(&self, options: &[&str]) -> String {
        let before = fs::read(self.path("img")).unwrap();
        let said = self.ok(&[&["dump"], options, &["img"]].concat());
        assert!(fs::read(self.path("img")).unwrap() == before);
        said
    }

    #[track_caller]
    fn json(&self, options: &[&str]) -> Value {
        let options = [&["--json"], options].concat();
        serde_json::from_str(&self.dump(&options)).unwrap()
    }

    fn device(&self) -> Arc<FileDevice> {
        let options = FileOptions::default();
        Arc::new(FileDevice::open(self.path("img"), &options).unwrap())
    }

    fn overwrite(&self, block: u64, offset: u64, bytes: &[u8]) {
        let image = OpenOptions::new().write(true).open(self.path("img"));
        let at = block * BLOCK_SIZE as u64 + offset;
        image.unwrap().write_all_at(bytes, at).unwrap();
    }
}

/// Leaves a log of three records in the volume, and a block that all of them patch. The second one covers the block
/// after it and zeros the next, which the third one frees.
fn leave_log(p: &Place) -> u64 {
    let device = p.device();
    let map = VolumeMap::read(&*device).unwrap();
    let at = map.groups().0.0 + 1000;
    let config = Config::new(map.journal().unwrap(), map.uuid()).without_workers();
    let (journal, _) = Journal::open(device, config).unwrap();
    for i in 0..3 {
        let credits = Credits {
            log_bytes: 1000,
            data_blocks: 1,
        };
        let mut op = journal.begin(StreamId(0), credits).unwrap();
        op.write(BlockNo(at), Kind::Data, 10 * i, &[0xc0 + i as u8; 5])
            .unwrap();
        match i {
            0 => op.set_bits(map.groups().0, 8000, 2, true).unwrap(),
            1 => {
                let image = Arc::new([7; BLOCK_SIZE]);
                op.write_around(BlockNo(at + 1), vec![image]).unwrap();
                op.zero(BlockNo(at + 2), Kind::Data).unwrap();
            }
            _ => op.free(BlockNo(at + 2), 1).unwrap(),
        }
        let _ = op.commit();
        journal.sync_all().unwrap();
    }
    at
}

#[test]
fn a_clean_volume_is_dumped_with_an_empty_log() {
    let p = Place::with_volume();
    let said = p.dump(&[]);
    for part in [
        "label:    test",
        "16 MiB",
        "tail header 0",
        "closed cleanly",
        "nothing to do",
    ] {
        assert!(said.contains(part), "no '{part}': {said}");
    }
    let shown = p.json(&[]);
    let info: Value = serde_json::from_str(&p.ok(&["info", "--json", "img"])).unwrap();
    assert_eq!(shown["superblock"]["uuid"], info["uuid"]);
    assert_eq!(shown["superblock"]["log_bytes"], info["log_bytes"]);
    assert_eq!(shown["log"]["recovery"]["outcome"], "clean");
    assert_eq!(shown["log"]["record_count"], 0);
    assert_eq!(shown["log"]["headers"][0]["state"], "valid");
    assert_eq!(shown["log"]["headers"][0]["counts"], true);
    assert!(p.json(&["--log"])["superblock"].is_null());
    assert!(!p.dump(&["--log"]).contains("label:"));
}

#[test]
fn a_log_to_replay_is_dumped_record_by_record() {
    let p = Place::with_volume();
    let at = leave_log(&p);
    let shown = p.json(&["--log", "--bytes"]);
    let log = &shown["log"];
    assert_eq!(log["recovery"]["outcome"], "replays");
    assert_eq!(log["recovery"]["records"], 3);
    assert_eq!(log["proved_sequence"], 2);
    let records = log["records"].as_array().unwrap();
    assert_eq!(records.len(), 3);
    for (i, record) in records.iter().enumerate() {
        assert_eq!(record["sequence"], i + 1);
        assert_eq!(record["block"], 3 + i);
        assert_eq!(
            (&record["accepted"], &record["proved"]),
            (&Value::Bool(true), &Value::Bool(i < 2))
        );
        let entries = record["entries"].as_array().unwrap();
        let patch = entries.iter().find(|e| e["block"] == at).unwrap();
        assert_eq!(patch["kind"], "data");
        assert_eq!(patch["ranges"][0]["offset"], 10 * i);
        assert_eq!(patch["ranges"][0]["length"], 5);
        let bytes = format!("c{i}").repeat(5);
        assert_eq!(patch["ranges"][0]["bytes"], bytes);
    }
    assert_eq!(records[0]["entries"][0]["bit_runs"][0]["first"], 8000);
    assert_eq!(records[0]["entries"][0]["bit_runs"][0]["value"], true);
    assert_eq!(records[1]["covered"][0]["block"], at + 1);
    assert_eq!(records[1]["covered"][0]["state"], "holds");
    let freed = records[2]["entries"].as_array().unwrap();
    assert!(
        freed
            .iter()
            .any(|e| e["block"] == at + 2 && e["revoke"] == true)
    );
    assert_eq!(log["end"]["sequence"], 4);

    let said = p.dump(&["--log", "--bytes"]);
    for part in [
        "record 2 at position 1 (block 4)",
        "5 B at offset 20: c2c2c2c2c2",
        "2 bit(s) from bit 8000 on = 1",
        "they hold what the hash says",
        "freed, earlier patches are void",
        "no record 4: it was never written",
        "3 records (12 KiB) accepted",
    ] {
        assert!(said.contains(part), "no '{part}': {said}");
    }
    assert!(!p.dump(&[]).contains("offset"), "details are asked for");
    assert!(p.json(&[])["log"]["records"][0]["entries"][0]["ranges"][0]["bytes"].is_null());
}

#[test]
fn damage_is_shown_and_no_reason_to_fail() {
    let p = Place::with_volume();
    let at = leave_log(&p);
    let whole = fs::read(p.path("img")).unwrap();
    let damaged = |block, offset, bytes: &[u8]| {
        fs::write(p.path("img"), &whole).unwrap();
        p.overwrite(block, offset, bytes);
        p.json(&["--log"])["log"].clone()
    };
    // In the middle of the log: recovery refuses, the dump shows what comes before.
    let log = damaged(4, 120, &[0xff; 100]);
    assert_eq!(
        (&log["record_count"], &log["end"]["block"]),
        (&1.into(), &4.into())
    );
    assert!(
        log["end"]["why"]
            .as_str()
            .unwrap()
            .contains("hash does not hold")
    );
    assert_eq!(log["recovery"]["outcome"], "refuses");
    assert!(log["recovery"]["why"].as_str().unwrap().contains("block 4"));
    // The last record: the log ends before it.
    let log = damaged(5, 0, b"XXXX");
    assert_eq!(
        (&log["record_count"], &log["recovery"]["records"]),
        (&2.into(), &2.into())
    );
    assert_eq!(log["end"]["why"], "it has no magic number");
    // A covered block that was overwritten once its record was proved.
    let log = damaged(at + 1, 0, &[1; 4096]);
    assert_eq!(log["records"][1]["covered"][0]["state"], "differs");
    assert_eq!(log["recovery"]["records"], 3);
    // One header, then both.
    let log = damaged(1, 0, &[0xaa; 4096]);
    assert_eq!(log["headers"][0]["state"], "invalid");
    assert_eq!(log["headers"][0]["why"], "it has no magic number");
    let log = damaged(1, 0, &[0; 8192]);
    assert_eq!(
        (&log["record_count"], &log["end"]),
        (&0.into(), &Value::Null)
    );
    assert_eq!(log["headers"][1]["why"], "it was never written");
    assert_eq!(log["recovery"]["outcome"], "refuses");
    // Random bytes in headers and log.
    let mut seed = 1u64;
    for block in 1..12 {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        })
        .take(BLOCK_SIZE)
        .collect();
        damaged(block, 0, &bytes);
        assert!(p.dump(&[]).contains("recovery: "));
    }
    // The superblock: its copy serves.
    fs::write(p.path("img"), &whole).unwrap();
    p.overwrite(0, 0, &[0x55; 4096]);
    assert!(p.dump(&[]).contains("note:     the superblock in block 0"));
    assert_eq!(p.json(&[])["log"]["record_count"], 3);
}

#[test]
fn a_block_is_dumped_with_what_it_is() {
    let p = Place::with_volume();
    let at = leave_log(&p);
    let map = VolumeMap::read(&*p.device()).unwrap();
    let group = map.groups().0.0;
    for (block, what, sealed) in [
        (0, "the superblock", true),
        (1, "tail header 0", false),
        (3, "block 0 of the log", false),
        (group, "the block bitmap of group 0", true),
        (group + 1, "the inode-block bitmap of group 0", true),
        (group + 2, "metadata in group 0", true),
        (at, "data in group 0, or free", false),
        (map.blocks() - 1, "the copy of the superblock", true),
    ] {
        let number = block.to_string();
        let shown = p.json(&["--block", &number]);
        assert_eq!(
            (&shown["block"], &shown["sealed"]),
            (&block.into(), &sealed.into()),
            "{what}"
        );
        assert!(shown["what"].as_str().unwrap().contains(what), "{shown}");
        assert_eq!(shown["bytes"].as_str().unwrap().len(), 2 * BLOCK_SIZE);
        assert!(
            p.dump(&["--block", &number])
                .starts_with(&format!("block {block}: "))
        );
    }
    let said = p.dump(&["--block", "3"]);
    assert!(
        said.contains("0000  53 54 44 46 52 45 43 44") && said.contains("STDFRECD"),
        "{said}"
    );
    assert!(said.contains("\n*\n0ff0  00"), "{said}");
    let beyond = map.blocks().to_string();
    p.refused(
        &["dump", "--block", &beyond, "img"],
        1,
        &["img", &beyond, "beyond the device"],
    );
}

#[test]
fn what_cannot_be_dumped_is_refused_by_name() {
    let p = Place::with_volume();
    fs::write(p.path("text"), "precious text\n".repeat(100_000)).unwrap();
    fs::write(p.path("empty"), "").unwrap();
    for name in ["text", "empty"] {
        p.refused(
            &["dump", name],
            1,
            &["steadfast: ", name, "no Steadfast volume"],
        );
        p.refused(
            &["dump", "--json", "--log", name],
            1,
            &[name, "no Steadfast volume"],
        );
    }
    p.refused(&["dump", "absent"], 1, &["absent", "does not exist"]);
    p.refused(&["dump", "--log", "--block", "3", "img"], 2, &["--block"]);
    p.refused(&["dump", "--block", "-3", "img"], 2, &[]);
    p.refused(&["dump"], 2, &["IMAGE"]);
    fs::copy(p.path("img"), p.path("short")).unwrap();
    let short = OpenOptions::new()
        .write(true)
        .open(p.path("short"))
        .unwrap();
    short.set_len(5 << 20).unwrap();
    p.refused(&["dump", "short"], 1, &["short", "cut short"]);
    // Held as by another process; the error names the process.
    let held = p.device();
    let holder = format!("process {}", std::process::id());
    p.refused(&["dump", "img"], 1, &["img", "in use", &holder]);
    drop(held);
    p.dump(&[]);
}

/// A directory of some files, one of them of two pieces with an attribute, and a link; all of it is in the log.
fn leave_files(p: &Place) {
    use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode, XattrMode};
    let (fs, _) = steadfast_fs::Fs::mount(p.device(), &Default::default()).unwrap();
    let me = &Caller::root();
    let dir = fs.mkdir(me, fs.root(), b"dir", 0o750).unwrap().ino;
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o640,
        rdev: 0,
    };
    for name in ["one", "two", "t\nhree"] {
        let ino = fs.mknod(me, dir, name.as_bytes(), &node).unwrap().ino;
        fs.write(me, ino, 0, &[1; 4096]).unwrap();
        fs.write(me, ino, 40_960, &[2; 100]).unwrap();
        fs.setxattr(me, ino, b"user.k", b"\x01v", XattrMode::Any)
            .unwrap();
        if name == "two" {
            fs.setxattr(me, ino, b"user.long", &[7; 60], XattrMode::Any)
                .unwrap();
        }
    }
    fs.symlink(me, dir, b"link", b"../else").unwrap();
    fs.shutdown(steadfast_vfs::Shutdown::Log).unwrap();
}

#[test]
fn an_inode_is_shown_by_number_and_by_path_with_the_log_applied() {
    let p = Place::with_volume();
    leave_files(&p);
    let file = p.json(&["--inode", "/dir/one"]);
    assert_eq!(file["kind"], "file");
    assert_eq!(file["mode"], "0640");
    assert_eq!(file["size"], 41_060);
    assert_eq!(file["extents"].as_array().unwrap().len(), 2);
    assert_eq!(file["extents"][1]["file_block"], 10);
    assert_eq!(file["xattrs"][0]["name"], "user.k");
    assert_eq!(file["xattrs"][0]["value"], "0176");
    assert_eq!(file["xattr_block"], Value::Null);
    let other = p.json(&["--inode", "/dir/two"]);
    assert!(other["xattr_block"].as_u64().is_some());
    assert_eq!(other["xattrs"][0]["name"], "user.k");
    assert_eq!(other["xattrs"][1]["value"], "07".repeat(60));
    let text = p.dump(&["--inode", "/dir/two"]);
    assert!(text.contains("attributes: block "), "{text}");
    let text = p.dump(&["--inode", "/dir/one"]);
    let expected = "attributes: in the inode\nattribute:  user.k = 0176";
    assert!(text.contains(expected), "{text}");
    assert_eq!(file["damage"], serde_json::json!([]));
    let number = file["inode"].as_u64().unwrap();
    let (block, slot) = (file["block"].as_u64(), file["slot"].as_u64());
    assert_eq!(block.unwrap() * 16 + slot.unwrap(), number);
    let by_number = p.dump(&["--inode", &number.to_string()]);
    assert_eq!(by_number, p.dump(&["--inode", "/dir/one"]));
    for words in [
        "size:       41060 B",
        "from file block 10 on",
        "user.k = 0176",
    ] {
        assert!(by_number.contains(words), "{by_number}");
    }
    let link = p.json(&["--inode", "/dir/link"]);
    assert_eq!(
        (&link["kind"], &link["target"]),
        (&"symlink".into(), &"../else".into())
    );
    assert_eq!(p.json(&["--inode", "/dir"])["entries"], 4);

    for (what, words) in [
        ("/dir/none", "does not exist on the volume"),
        ("/dir/one/x", "no directory"),
        ("16", "is no inode"),
        ("18446744073709551615", "is no inode"),
    ] {
        p.refused(&["dump", "--inode", what, "img"], 1, &["img", what, words]);
    }
    p.refused(
        &["dump", "--inode", "dir", "img"],
        2,
        &["begins with a slash"],
    );
}

#[test]
fn a_directory_is_shown_leaf_by_leaf() {
    let p = Place::with_volume();
    leave_files(&p);
    let dir = p.json(&["--directory", "/dir"]);
    assert_eq!(dir["entries"], 4);
    let entries = dir["leaves"][0]["entries"].as_array().unwrap();
    let mut names: Vec<_> = entries
        .iter()
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["link", "one", "t\\nhree", "two"]);
    // Four entries of two units each.
    assert_eq!(dir["leaves"][0]["free_bytes"], 4080 - 4 * 32);
    let text = p.dump(&["--directory", "/dir"]);
    assert!(
        text.contains("4 entries") && text.contains("t\\nhree"),
        "{text}"
    );
    // The places hold the empty volume: a damaged leaf is shown as damaged.
    let leaf = dir["leaves"][0]["block"].as_u64().unwrap();
    p.ok(&["fsck", "--repair", "img"]);
    p.overwrite(leaf, 20, b"rot");
    let dir = p.json(&["--directory", "/dir"]);
    let damage = dir["leaves"][0]["damage"].as_str().unwrap();
    assert!(!damage.is_empty(), "{dir}");
    p.refused(
        &["dump", "--directory", "/dir/one", "img"],
        1,
        &["/dir/one", "cannot be read"],
    );
    let root = p.json(&["--inode", "/"])["inode"].to_string();
    assert!(p.dump(&["--directory", &root]).contains("dir"));
}

#[test]
fn the_superblock_is_shown_alone() {
    let p = Place::with_volume();
    let all = p.dump(&[]);
    let superblock = p.dump(&["--superblock"]);
    assert!(all.starts_with(superblock.trim_end()), "{superblock}");
    let shown = p.json(&["--superblock"]);
    assert_eq!(shown["volume_bytes"], 16 << 20);
    let mut inside = p.json(&[])["superblock"].clone();
    inside["schema_version"] = shown["schema_version"].clone();
    assert_eq!(shown, inside);
}
