#![allow(clippy::unwrap_used, clippy::panic)]
//! The contract, line by line.
use super::*;
use crate::op::Op;
use steadfast_vfs::Time;

fn step(line: &str) -> Step {
    Step::new(0, line.parse::<Op>().unwrap())
}

fn tree(lines: &[&str]) -> Tree {
    let mut tree = Tree::new(Time::default());
    for line in lines {
        tree.step(&step(line)).unwrap();
    }
    tree
}

/// A history that begins with `setup` durable; results as the model gives them.
fn history(setup: &[&str], lines: &[&str]) -> RelaxedHistory {
    let mut h = RelaxedHistory::new(tree(setup));
    for line in lines {
        let step = step(line);
        let result = h.expected(&step);
        result.unwrap();
        h.record(&step, result).unwrap();
    }
    h
}

/// Whether a crash after everything was answered may leave the tree of these lines.
fn allows(h: &RelaxedHistory, lines: &[&str]) -> bool {
    let found = Snapshot::of_tree(&tree(lines));
    h.check(&found, Cut::after(h.len())).is_ok()
}

const EMPTY: &str = "mknod /f file 644 0";

#[test]
fn pages_arrive_in_any_order_and_missing_ones_are_zeros_or_absent() {
    let h = history(&[EMPTY], &["write /f 0 #1*8192"]);
    assert!(allows(&h, &[EMPTY]), "nothing has arrived");
    assert!(allows(&h, &[EMPTY, "write /f 0 #1*8192"]), "all has");
    assert!(allows(&h, &[EMPTY, "write /f 0 #1*4096"]), "the first page");
    let second = ["write /f 0 #1*8192", "fallocate /f zero 0 4096"];
    assert!(allows(&h, &[EMPTY, second[0], second[1]]), "the second");
    assert!(!allows(&h, &[EMPTY, "write /f 0 #1*5000"]), "a part of one");
    assert!(!allows(&h, &[EMPTY, "write /f 0 #2*8192"]), "other bytes");
    assert!(
        !allows(&h, &[EMPTY, "setattr /f size=8192"]),
        "a size that nothing has brought"
    );
    assert!(!allows(&h, &[EMPTY, "setattr /f size=4096"]));
}

#[test]
fn the_old_end_of_a_file_that_grew_may_arrive_with_zeros() {
    let h = history(&[EMPTY], &["write /f 0 #1*100", "write /f 9000 #2*10"]);
    assert!(allows(&h, &[EMPTY, "write /f 0 #1*100"]));
    let page = ["write /f 0 #1*100", "setattr /f size=4096"];
    assert!(allows(&h, &[EMPTY, page[0], page[1]]), "its page, whole");
    assert!(allows(&h, &[EMPTY, "write /f 9000 #2*10"]), "the other");
    assert!(!allows(&h, &[EMPTY, page[0], "setattr /f size=9010"]));
    // A page that was closed is not sent again.
    let open = "open /f @1";
    let h = history(
        &[EMPTY],
        &[open, "write @1 0 #1*100", "close @1", "write /f 9000 #2*10"],
    );
    assert!(allows(&h, &[EMPTY, page[0]]));
    assert!(!allows(&h, &[EMPTY, page[0], page[1]]));
}

#[test]
fn each_page_has_any_of_its_contents_since_the_last_close() {
    let setup = [EMPTY, "write /f 0 #1*8192"];
    let h = history(&setup, &["write /f 0 #2*8192", "write /f 0 #3*8192"]);
    let mixed = |first: u32, second: u32| {
        let lines = [
            EMPTY.to_string(),
            format!("write /f 0 #{second}*8192"),
            format!("write /f 0 #{first}*4096"),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        allows(&h, &lines)
    };
    for first in 1..=3 {
        for second in 1..=3 {
            assert!(mixed(first, second), "{first}, {second}");
        }
    }
    assert!(!mixed(4, 1));
}

#[test]
fn a_rename_after_a_close_never_shows_less_than_was_written() {
    let setup = ["mknod /f file 644 0", "write /f 0 #1*5000"];
    let lines = [
        "mknod /new file 644 0",
        "open /new @1",
        "write @1 0 #2*9000",
        "close @1",
        "rename /new /f replace",
    ];
    let h = history(&setup, &lines);
    assert!(allows(&h, &setup), "none of it");
    assert!(allows(&h, &["mknod /f file 644 0", "write /f 0 #2*9000"]));
    assert!(!allows(&h, &["mknod /f file 644 0"]), "empty");
    assert!(!allows(&h, &["mknod /f file 644 0", "write /f 0 #2*8192"]));
    // Without the close it may.
    let open: Vec<&str> = lines.into_iter().filter(|l| *l != "close @1").collect();
    let h = history(&setup, &open);
    assert!(allows(&h, &["mknod /f file 644 0"]));
}

#[test]
fn a_sync_makes_the_order_durable_and_the_content_of_its_file_alone() {
    let setup = ["mknod /a file 644 0", "mknod /b file 644 0"];
    let lines = ["write /a 0 #1*100", "mkdir /d 755", "write /b 0 #2*100"];
    let h = history(&setup, &[lines[0], lines[1], lines[2], "fsync /b"]);
    let mkdir = "mkdir /d 755";
    let b = "write /b 0 #2*100";
    assert!(allows(&h, &[setup[0], setup[1], mkdir, b]));
    assert!(allows(&h, &[setup[0], setup[1], mkdir, b, lines[0]]));
    assert!(!allows(&h, &[setup[0], setup[1], b]), "the directory");
    assert!(!allows(&h, &[setup[0], setup[1], mkdir]), "its content");
    let h = history(&setup, &[lines[0], lines[1], lines[2], "sync"]);
    assert!(!allows(&h, &[setup[0], setup[1], mkdir, b]), "of all");
}

#[test]
fn calls_about_the_size_are_in_the_order() {
    let h = history(&[EMPTY], &["write /f 0 #1*9000", "setattr /f size=5000"]);
    let long = "write /f 0 #1*9000";
    assert!(allows(&h, &[EMPTY, "setattr /f size=5000"]), "no content");
    assert!(allows(&h, &[EMPTY, long, "setattr /f size=5000"]));
    assert!(allows(&h, &[EMPTY, long]), "not yet truncated");
    // Bytes that were cut off do not come back.
    let h = history(
        &[EMPTY],
        &[long, "setattr /f size=5000", "setattr /f size=9000", "sync"],
    );
    assert!(!allows(&h, &[EMPTY, long]));
    let h = history(&[EMPTY], &[long, "fallocate /f allocate 0 20000"]);
    assert!(allows(&h, &[EMPTY, "setattr /f size=20000"]));
    let h = history(
        &[EMPTY, long],
        &["write /f 0 #2*9000", "fallocate /f punch 0 4096"],
    );
    let hole = "fallocate /f punch 0 4096";
    assert!(allows(&h, &[EMPTY, long, hole]));
    assert!(allows(&h, &[EMPTY, "write /f 0 #2*9000", hole]));
}

#[test]
fn metadata_is_a_prefix() {
    let h = history(
        &[EMPTY],
        &["write /f 0 #1*100", "mkdir /d 755", "mkdir /e 755"],
    );
    assert!(allows(&h, &[EMPTY, "mkdir /d 755"]));
    assert!(!allows(&h, &[EMPTY, "mkdir /e 755"]));
}

#[test]
fn a_violation_names_the_strange_files() {
    let h = history(&[EMPTY], &["write /f 0 #1*9000"]);
    let found = Snapshot::of_tree(&tree(&[EMPTY, "write /f 0 #2*9000"]));
    let said = h.check(&found, Cut::after(1)).unwrap_err().to_string();
    assert!(said.contains("/f: bytes 0.. hold nothing"), "{said}");
    assert!(h.check(&found, Cut::after(2)).is_err(), "no such cut");
}
