#![allow(clippy::unwrap_used, clippy::panic)]
//! The figures of DFSCQ, one by one; then honest and faulty implementations.
use super::*;
use crate::op::Op;
use crate::workload::{Shape, Workload};
use steadfast_vfs::{Caller, Time};

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
fn history(setup: &[&str], lines: &[&str]) -> PrefixHistory {
    let mut h = PrefixHistory::new(tree(setup));
    for line in lines {
        let s = step(line);
        let result = h.expected(&s);
        h.record(&s, result).unwrap();
    }
    h
}

/// Content after other operations.
fn after(lines: &[&str]) -> Snapshot {
    tree(lines).snapshot()
}

#[track_caller]
fn accepted(h: &PrefixHistory, cut: Cut, lines: &[&str]) -> usize {
    h.check(&after(lines), cut)
        .unwrap_or_else(|v| panic!("{h}{v}"))
}

#[track_caller]
fn rejected(h: &PrefixHistory, cut: Cut, lines: &[&str]) -> PrefixViolation {
    let violation = h.check(&after(lines), cut).unwrap_err();
    assert!(violation.to_string().contains("violated"));
    *violation
}

const F: [&str; 2] = ["mknod /f file 644 0", "write /f 0 #1*1024"];

/// The lines of `F`, and more.
fn f<'a>(more: &[&'a str]) -> Vec<&'a str> {
    F.iter().chain(more).copied().collect()
}

#[test]
fn figure_3_each_change_of_metadata_adds_a_tree_and_a_crash_leaves_one_of_them() {
    let h = history(&F, &["mkdir /d 755", "unlink /f"]);
    assert_eq!(accepted(&h, Cut::after(2), &F), 0);
    assert_eq!(accepted(&h, Cut::after(2), &f(&["mkdir /d 755"])), 1);
    assert_eq!(
        accepted(&h, Cut::after(2), &f(&["mkdir /d 755", "unlink /f"])),
        2
    );
    // Out of order.
    rejected(&h, Cut::after(2), &f(&["unlink /f"]));
    // Not called yet, and under way.
    rejected(&h, Cut::after(1), &f(&["mkdir /d 755", "unlink /f"]));
    accepted(&h, Cut::during(1), &f(&["mkdir /d 755", "unlink /f"]));
    accepted(&h, Cut::during(1), &F);
}

#[test]
fn figure_4_fsync_of_anything_leaves_the_latest_tree_alone() {
    let h = history(&F, &["mkdir /d 755", "unlink /f", "fsync /d"]);
    let all = f(&["mkdir /d 755", "unlink /f"]);
    accepted(&h, Cut::after(3), &all);
    rejected(&h, Cut::after(3), &f(&["mkdir /d 755"]));
    rejected(&h, Cut::after(3), &F);
    // Under way, it has done nothing yet.
    accepted(&h, Cut::during(2), &F);
}

#[test]
fn figure_5_a_write_in_place_is_in_every_tree_that_has_the_file_under_whatever_name() {
    let h = history(&F, &["rename /f /g replace", "write /g 0 #2*512"]);
    let cut = Cut::after(2);
    for lines in [
        f(&[]),
        f(&["write /f 0 #2*512"]),
        f(&["rename /f /g replace"]),
        f(&["rename /f /g replace", "write /g 0 #2*512"]),
    ] {
        accepted(&h, cut, &lines);
    }
    // Another file of the same name is not touched.
    let h = history(
        &F,
        &[
            "unlink /f",
            "mknod /f file 644 0",
            "write /f 0 #2*1024",
            "write /f 0 #3*1024",
        ],
    );
    let cut = Cut::after(4);
    accepted(&h, cut, &F);
    accepted(
        &h,
        cut,
        &[
            "mknod /f file 644 0",
            "write /f 0 #2*1024",
            "write /f 512 #3*512",
        ][..2],
    );
    rejected(&h, cut, &["mknod /f file 644 0", "write /f 0 #9*1024"]);
    let violation = rejected(&h, cut, &f(&["write /f 0 #3*512"]));
    assert!(violation.strange[0].starts_with("/f: bytes 512.."));
}

#[test]
fn figure_6_bytes_past_the_end_of_an_older_tree_are_not_written_there() {
    let h = history(&F, &["setattr /f size=4096", "write /f 512 #2*2000"]);
    let cut = Cut::after(2);
    accepted(&h, cut, &f(&["write /f 512 #2*512"]));
    accepted(&h, cut, &f(&["setattr /f size=4096"]));
    accepted(
        &h,
        cut,
        &f(&["setattr /f size=4096", "write /f 512 #2*2000"]),
    );
    // Each sector for itself: the last one, 488 bytes of it, without those before.
    let mut some = tree(&f(&["setattr /f size=4096"]));
    let data = crate::op::Data::Pattern { seed: 2, len: 2000 }.bytes();
    let ino = some.lookup(&Caller::root(), 1, b"f").unwrap();
    some.write(&Caller::root(), Time::default(), ino, 2048, &data[1536..])
        .unwrap();
    h.check(&some.snapshot(), cut).unwrap();
    // But no part of a sector.
    let mut torn = tree(&F);
    torn.write(&Caller::root(), Time::default(), ino, 512, &data[..100])
        .unwrap();
    assert!(h.check(&torn.snapshot(), cut).is_err());
}

#[test]
fn figure_7_after_fdatasync_every_tree_has_the_newest_data() {
    let h = history(
        &F,
        &[
            "mkdir /d 755",
            "write /f 0 #2*1024",
            "fdatasync /f",
            "unlink /f",
        ],
    );
    let cut = Cut::after(4);
    // The metadata need not be there, the data must, unless the file is gone.
    accepted(&h, cut, &f(&["write /f 0 #2*1024"]));
    accepted(&h, cut, &f(&["mkdir /d 755", "write /f 0 #2*1024"]));
    accepted(&h, cut, &f(&["mkdir /d 755", "unlink /f"]));
    rejected(&h, cut, &F);
    rejected(&h, cut, &f(&["mkdir /d 755", "write /f 0 #2*512"]));
    accepted(&h, Cut::during(2), &F);
    // Of this file only.
    let setup = f(&["mknod /g file 644 0", "write /g 0 #1*512"]);
    let h = history(
        &setup,
        &["write /f 0 #2*512", "write /g 0 #2*512", "fdatasync /f"],
    );
    let g_old: Vec<&str> = setup.iter().copied().chain(["write /f 0 #2*512"]).collect();
    accepted(&h, Cut::after(3), &g_old);
    let f_old: Vec<&str> = setup.iter().copied().chain(["write /g 0 #2*512"]).collect();
    rejected(&h, Cut::after(3), &f_old);
}

#[test]
fn figure_8_a_crash_picks_one_value_of_its_history_for_each_sector() {
    let lines = ["write /f 0 #2*1024", "write /f 100 #3*200"];
    let h = history(&F, &lines);
    let cut = Cut::after(2);
    accepted(&h, cut, &F);
    accepted(&h, cut, &f(&lines));
    accepted(&h, cut, &f(&lines[..1]));
    accepted(&h, cut, &f(&["write /f 0 #2*512"]));
    // The second write was made over the first: never over the old bytes.
    rejected(&h, cut, &f(&["write /f 100 #3*200"]));
    // After sync there is one value.
    let h = history(&F, &["write /f 0 #2*1024", "sync"]);
    rejected(&h, Cut::after(2), &F);
    accepted(&h, Cut::after(2), &f(&lines[..1]));
}

#[test]
fn corner_27_an_append_appears_with_its_size_and_fdatasync_covers_both() {
    let h = history(&F, &["append /f #2*300", "append /f #3*1000"]);
    let cut = Cut::after(2);
    accepted(&h, cut, &F);
    accepted(&h, cut, &f(&["append /f #2*300"]));
    accepted(&h, cut, &f(&["append /f #2*300", "append /f #3*1000"]));
    rejected(&h, cut, &f(&["setattr /f size=1324"]));
    rejected(
        &h,
        cut,
        &f(&["setattr /f size=1324", "write /f 1324 #3*1000"]),
    );
    let h = history(&F, &["mkdir /d 755", "append /f #2*300", "fdatasync /f"]);
    rejected(&h, Cut::after(3), &F);
    accepted(&h, Cut::after(3), &f(&["mkdir /d 755", "append /f #2*300"]));
}

#[test]
fn a_file_that_was_truncated_or_punched_is_not_block_stable_and_fdatasync_commits_metadata() {
    for change in [
        "setattr /f size=512",
        "fallocate /f punch 0 512",
        "fallocate /f allocate 0 8192",
    ] {
        let h = history(&F, &["mkdir /d 755", change, "fdatasync /f"]);
        accepted(&h, Cut::after(2), &F);
        rejected(&h, Cut::after(3), &F);
        rejected(&h, Cut::after(3), &f(&["mkdir /d 755"]));
        accepted(&h, Cut::after(3), &f(&["mkdir /d 755", change]));
    }
    // Later changes need not be committed with it.
    let h = history(&F, &["append /f #2*300", "mkdir /d 755", "fdatasync /f"]);
    rejected(&h, Cut::after(3), &F);
    accepted(&h, Cut::after(3), &f(&["append /f #2*300"]));
    accepted(&h, Cut::after(3), &f(&["append /f #2*300", "mkdir /d 755"]));
    // Once committed, it is stable again.
    let h = history(
        &F,
        &[
            "setattr /f size=700",
            "fsync /f",
            "mkdir /d 755",
            "write /f 0 #2*512",
            "fdatasync /f",
        ],
    );
    accepted(
        &h,
        Cut::after(5),
        &f(&["setattr /f size=700", "write /f 0 #2*512"]),
    );
}

#[test]
fn corner_26_bytes_cut_off_do_not_come_back_in_any_sector() {
    let h = history(
        &F,
        &[
            "write /f 512 #2*512",
            "setattr /f size=600",
            "setattr /f size=1024",
        ],
    );
    let cut = Cut::after(3);
    accepted(
        &h,
        cut,
        &f(&["setattr /f size=600", "setattr /f size=1024"]),
    );
    accepted(
        &h,
        cut,
        &f(&[
            "write /f 512 #2*512",
            "setattr /f size=600",
            "setattr /f size=1024",
        ]),
    );
    let mut back = tree(&f(&["setattr /f size=600", "setattr /f size=1024"]));
    let ino = back.lookup(&Caller::root(), 1, b"f").unwrap();
    back.write(&Caller::root(), Time::default(), ino, 900, b"back")
        .unwrap();
    assert!(h.check(&back.snapshot(), cut).is_err());
}

#[test]
fn the_sync_contract_allows_answered_calls_and_the_call_under_way() {
    let rules = crate::Rules {
        sync: true,
        failures_bind: false,
        ..crate::Rules::default()
    };
    let mut h = crate::History::with_rules(tree(&F), rules);
    for line in ["mkdir /d 755", "write /f 0 #2*600", "mkdir /d 755"] {
        let s = step(line);
        let result = h.expected(&s);
        h.record(&s, result).unwrap();
    }
    let check = |cut, lines: &[&str]| h.check(&after(lines), cut).map_err(|v| v.to_string());
    check(Cut::after(1), &f(&["mkdir /d 755"])).unwrap();
    assert!(
        check(Cut::after(1), &F)
            .unwrap_err()
            .contains("contract 'sync' violated")
    );
    check(Cut::during(0), &F).unwrap();
    check(Cut::during(1), &f(&["mkdir /d 755"])).unwrap();
    check(Cut::during(1), &f(&["mkdir /d 755", "write /f 0 #2*600"])).unwrap();
    check(Cut::after(2), &f(&["mkdir /d 755"])).unwrap_err();
    // A refused call demands nothing of its own, and earlier operations are still there.
    check(Cut::after(3), &f(&["mkdir /d 755", "write /f 0 #2*600"])).unwrap();
    check(Cut::during(2), &f(&["mkdir /d 755"])).unwrap_err();
}

/// Pseudo-random choices.
fn chooser(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |n| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    }
}

#[test]
fn every_pick_of_a_crash_is_accepted_and_has_everything_durable() {
    let mut lost = 0;
    for seed in 0..60 {
        let shape = Shape {
            names: 3,
            depth: 2,
            bytes_max: 6000,
            sync_every: 7,
            ..Shape::default()
        };
        let mut h = PrefixHistory::new(Tree::new(Time::default()));
        for s in Workload::new(seed, shape).take(60) {
            let result = h.expected(&s);
            h.record(&s, result).unwrap();
        }
        for round in 0..40 {
            let mut choose = chooser(seed * 1000 + round);
            let n = choose(h.len() + 1);
            let cut = if n < h.len() && choose(2) == 0 {
                Cut::during(n)
            } else {
                Cut::after(n)
            };
            let found = h.pick(cut, &mut choose).unwrap();
            h.check(&found, cut).unwrap_or_else(|v| panic!("{h}{v}"));
            // A later sync makes the same loss a violation, if anything was lost at all.
            if found.digest().content == h.sequences[n].latest().digest().content {
                continue;
            }
            let mut synced = PrefixHistory {
                ops: h.ops[..n].to_vec(),
                sequences: h.sequences[..=n].to_vec(),
                shrinks: h.shrinks[..n].to_vec(),
            };
            if cut == Cut::after(n) {
                let sync = step("sync");
                let at = synced.record(&sync, Ok(crate::Outcome::Done)).unwrap();
                assert!(synced.check(&found, Cut::after(at + 1)).is_err());
                synced.check(&found, Cut::during(at)).unwrap();
                lost += 1;
            }
        }
    }
    assert!(lost > 300, "only {lost} crashes lost anything");
}
