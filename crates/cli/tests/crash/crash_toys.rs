//! Twelve small programs with one planted bug each, and their repaired twins: `steadfast crash test` finds the bug in each, at
//! the right call, and nothing in the twins.
//!
//! The programs are functions of this file. They run in this test binary, started again for the test `toy`.
#![cfg(feature = "crash")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::programs;
use programs::PROGRAM;

const TOY: &str = "STEADFAST_TEST_TOY";

/// Acknowledges something.
fn acknowledge(what: &str) {
    let path = std::env::var_os("STEADFAST_CRASH_ACK").unwrap();
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    writeln!(file, "{what}").unwrap();
}

fn sync(path: &str) {
    File::open(path).unwrap().sync_all().unwrap();
}

fn made(path: &str, content: &[u8]) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file
}

fn opened(path: &str) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

/// A file is replaced, and its new content is not synced before the rename.
fn replace_without_sync(repaired: bool) {
    let file = made("tmp", b"new content");
    if repaired {
        file.sync_all().unwrap();
    }
    fs::rename("tmp", "config").unwrap();
}

/// A new file is acknowledged before it is synced.
fn save_without_sync(repaired: bool) {
    let file = made("note", b"text");
    if repaired {
        file.sync_all().unwrap();
        sync(".");
    }
    acknowledge("note");
}

/// A new file is synced, its name is not.
fn save_without_name(repaired: bool) {
    let file = made("note", b"text");
    file.sync_all().unwrap();
    if repaired {
        sync(".");
    }
    acknowledge("note");
}

/// A file is emptied and written again: no sync helps.
fn rewrite_in_place(repaired: bool) {
    if repaired {
        let file = made("tmp", b"new content");
        file.sync_all().unwrap();
        fs::rename("tmp", "config").unwrap();
    } else {
        made("config", b"new content");
    }
}

/// An index refers to a record that is not synced.
fn index_before_record(repaired: bool) {
    let log = opened("log");
    log.write_all_at(&[b'r'; 512], 0).unwrap();
    if repaired {
        log.sync_all().unwrap();
    }
    opened("index").write_all_at(b"1", 0).unwrap();
}

/// An undo journal is removed before what it protects is synced.
fn journal_goes_early(repaired: bool) {
    made("journal", b"old a, old b").sync_all().unwrap();
    sync(".");
    let (a, b) = (opened("a"), opened("b"));
    a.write_all_at(b"new", 0).unwrap();
    b.write_all_at(b"new", 0).unwrap();
    if repaired {
        a.sync_all().unwrap();
        b.sync_all().unwrap();
    }
    fs::remove_file("journal").unwrap();
}

/// A name that marks everything as ready becomes durable before the content.
fn ready_before_content(repaired: bool) {
    made("data", b"content").sync_all().unwrap();
    if repaired {
        sync(".");
    }
    made("ready", b"").sync_all().unwrap();
}

/// A file in a new directory: the name of the directory is not synced.
fn directory_without_name(repaired: bool) {
    fs::create_dir("box").unwrap();
    made("box/note", b"text").sync_all().unwrap();
    sync("box");
    if repaired {
        sync(".");
    }
    acknowledge("box/note");
}

/// The directory is synced, the file is not.
fn sync_of_the_wrong_file(repaired: bool) {
    let file = made("tmp", b"new content");
    if repaired {
        file.sync_all().unwrap();
    }
    sync(".");
    fs::rename("tmp", "config").unwrap();
    sync(".");
}

/// A record of several sectors counts as whole if its first byte is there.
fn torn_record(repaired: bool) {
    let file = opened("log");
    if repaired {
        file.write_all_at(&[b'r'; 2047], 1).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(b"+", 0).unwrap();
    } else {
        let mut record = [b'r'; 2048];
        record[0] = b'+';
        file.write_all_at(&record, 0).unwrap();
    }
}

/// A new content is linked into place before it is synced.
fn link_without_sync(repaired: bool) {
    let file = made("tmp", b"text");
    if repaired {
        file.sync_all().unwrap();
    }
    fs::hard_link("tmp", "object").unwrap();
    fs::remove_file("tmp").unwrap();
}

/// A log is cut before the state that makes it superfluous is synced.
fn log_cut_early(repaired: bool) {
    let state = opened("state");
    state.write_all_at(b"1", 0).unwrap();
    if repaired {
        state.sync_all().unwrap();
    }
    opened("log").set_len(0).unwrap();
}

struct Toy {
    name: &'static str,
    run: fn(bool),
    setup: &'static str,
    check: &'static str,
    /// The call to blame: what is lost, or torn.
    blame: &'static str,
    /// Its repair.
    repair: &'static str,
}

const CONFIG: &str = "echo old content >config";
const CONFIG_CHECK: &str = "test -s config || { echo 'config is empty'; exit 1; }";
const SAVED: &str = "grep -qxE 'note|box/note' \"$CRASH_ACKED\" || exit 0; f=$(grep -xE 'note|box/note' \"$CRASH_ACKED\"); \
     test \"$(cat $f 2>/dev/null)\" = text || { echo \"$f is lost\"; exit 1; }";

const TOYS: [Toy; 12] = [
    Toy {
        name: "replace_without_sync",
        run: replace_without_sync,
        setup: CONFIG,
        check: CONFIG_CHECK,
        blame: "write tmp",
        repair: "the file of",
    },
    Toy {
        name: "save_without_sync",
        run: save_without_sync,
        setup: ":",
        check: SAVED,
        blame: "create note",
        repair: "note",
    },
    Toy {
        name: "save_without_name",
        run: save_without_name,
        setup: ":",
        check: SAVED,
        blame: "create note",
        repair: "the directory of",
    },
    Toy {
        name: "rewrite_in_place",
        run: rewrite_in_place,
        setup: CONFIG,
        check: CONFIG_CHECK,
        blame: "open with O_TRUNC config",
        repair: "",
    },
    Toy {
        name: "index_before_record",
        run: index_before_record,
        setup: "head -c 512 /dev/zero >log; printf 0 >index",
        check: "test \"$(cat index)\" = 0 || test \"$(head -c 512 log | tr -d r | wc -c)\" = 0 || { echo 'no record'; exit 1; }",
        blame: "write log",
        repair: "the file of",
    },
    Toy {
        name: "journal_goes_early",
        run: journal_goes_early,
        setup: "printf old >a; printf old >b",
        check: "test -s journal && exit; test \"$(cat a)\" = \"$(cat b)\" || { echo 'half of it'; exit 1; }",
        blame: "write",
        repair: "the file of",
    },
    Toy {
        name: "ready_before_content",
        run: ready_before_content,
        setup: ":",
        check: "test ! -e ready || test -s data || { echo 'ready without data'; exit 1; }",
        blame: "create data",
        repair: "the directory of",
    },
    Toy {
        name: "directory_without_name",
        run: directory_without_name,
        setup: ":",
        check: SAVED,
        blame: "mkdir box",
        repair: "the directory of",
    },
    Toy {
        name: "sync_of_the_wrong_file",
        run: sync_of_the_wrong_file,
        setup: CONFIG,
        check: CONFIG_CHECK,
        blame: "write tmp",
        repair: "the file of",
    },
    Toy {
        name: "torn_record",
        run: torn_record,
        setup: "head -c 4096 /dev/zero >log",
        check: "test \"$(head -c 1 log)\" != + || test \"$(tr -dc r <log | wc -c)\" = 2047 || { echo 'a part of a record'; exit 1; }",
        blame: "write log",
        repair: "",
    },
    Toy {
        name: "link_without_sync",
        run: link_without_sync,
        setup: ":",
        check: "test ! -e object || test -s object || { echo 'object is empty'; exit 1; }",
        blame: "write tmp",
        repair: "the file of",
    },
    Toy {
        name: "log_cut_early",
        run: log_cut_early,
        setup: "printf 0 >state; echo 1 >log",
        check: "test -s log || test \"$(cat state)\" = 1 || { echo 'neither log nor state'; exit 1; }",
        blame: "write state",
        repair: "the file of",
    },
];

/// Not a test by itself: runs a program.
#[test]
fn toy() {
    let Some(name) = std::env::var_os(TOY) else {
        return;
    };
    let name = name.into_string().unwrap();
    let (name, repaired) = match name.strip_suffix(" repaired") {
        Some(name) => (name, true),
        None => (name.as_str(), false),
    };
    let toy = TOYS.iter().find(|t| t.name == name).unwrap();
    (toy.run)(repaired);
}

/// The exit status, and the report.
fn tested(toy: &Toy, repaired: bool, dir: &Path) -> (i32, Value) {
    let this = std::env::current_exe().unwrap();
    let suffix = if repaired { " repaired" } else { "" };
    let output = Command::new(PROGRAM)
        .args(["crash", "test", "--json", "--jobs", "1", "--samples", "50"])
        .args(["--fs", "ext4,xfs,btrfs,posix"])
        .args(["--setup", toy.setup, "--check", toy.check, "--"])
        .arg(this)
        .args([
            "--exact",
            &steadfast_testkit::test_name(module_path!(), "toy"),
        ])
        .args(["--nocapture", "--test-threads=1"])
        .env(TOY, format!("{}{suffix}", toy.name))
        .env("TMPDIR", dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|e| panic!("{}: {e}: {said}", toy.name));
    (output.status.code().unwrap(), report)
}

/// The line of this file with the call of a toy that its report must name.
fn function_of(toy: &Toy) -> (u64, u64) {
    let source = include_str!("crash_toys.rs");
    let head = format!("fn {}(", toy.name);
    let first = source.lines().position(|l| l.starts_with(&head)).unwrap();
    let length = source.lines().skip(first).position(|l| l == "}").unwrap();
    (first as u64 + 1, (first + length) as u64 + 1)
}

/// A source line if the test was compiled with source lines; else the function, or a line of the library with its
/// caller's name.
fn is_in(toy: &Toy, location: &Value) -> bool {
    let file = location["file"].as_str().unwrap_or_default();
    match location["line"].as_u64() {
        Some(line) => {
            let (first, last) = function_of(toy);
            // Helpers above the programs make files and open them.
            file.ends_with("crash_toys.rs") && (line < 45 || (first..=last).contains(&line))
        }
        None => file.contains("crash_toys::"),
    }
}

#[test]
fn each_planted_bug_is_found_at_its_call_and_no_twin_has_one() {
    let dir = tempfile::tempdir().unwrap();
    for toy in &TOYS {
        let name = toy.name;
        let (status, report) = tested(toy, false, dir.path());
        assert_eq!(status, 1, "{name}: {report:#}");
        let findings = report["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 1, "{name}: {findings:#?}");
        let under = &findings[0]["under"];
        let blamed = |u: &Value| {
            let lost = u["lost"].as_array().unwrap().iter();
            let all = lost.chain([&u["torn"], &u["durable"]]);
            let mut named =
                all.filter(|e| e["text"].as_str().is_some_and(|t| t.starts_with(toy.blame)));
            named.next().cloned()
        };
        let under = under.as_array().unwrap();
        let blame = under.iter().find_map(blamed);
        let blame = blame.unwrap_or_else(|| panic!("{name} blames another call: {under:#?}"));
        if cfg!(target_arch = "x86_64") {
            assert!(
                is_in(toy, &blame["location"]),
                "{name}: {}",
                blame["location"]
            );
        }
        let repairs = under.iter().map(|u| &u["repair"]);
        for repair in repairs {
            match toy.repair {
                "" => assert_ne!(repair["result"], "found", "{name}: {repair:#}"),
                part => {
                    assert_eq!(repair["result"], "found", "{name}: {repair:#}");
                    let of = repair["syncs"].to_string();
                    assert!(of.contains(part), "{name}: {of}");
                }
            }
        }
        let (status, report) = tested(toy, true, dir.path());
        assert_eq!(
            (status, &report["findings"]),
            (0, &Value::Array(Vec::new())),
            "{name}, repaired"
        );
        steadfast_testkit::caught(&format!("toy.{name}"));
    }
}
