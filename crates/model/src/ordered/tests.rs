#![allow(clippy::unwrap_used, clippy::panic)]
//! The checker accepts the results of honest implementations, and rejects planted faults.
use super::*;
use crate::op::Op;
use crate::workload::{Shape, Workload};
use steadfast_vfs::{Caller, Time};

pub(super) fn step(stream: u32, line: &str, at: usize) -> Step {
    let at = Time {
        secs: 10 + at as i64,
        nanos: 0,
    };
    Step::new(stream, line.parse::<Op>().unwrap()).at(at)
}

/// A history from lines `STREAM OP`, results as the model gives them.
fn history(setup: &[&str], lines: &[&str]) -> History {
    let rules = Rules {
        observe: Observe::ALL,
        ..Rules::default()
    };
    let mut h = History::with_rules(tree(setup), rules);
    for (i, line) in lines.iter().enumerate() {
        let (stream, op) = line.split_once(' ').unwrap();
        let s = step(stream.parse().unwrap(), op, i);
        let result = h.expected(&s);
        h.record(&s, result).unwrap();
    }
    h
}

pub(super) fn tree(lines: &[&str]) -> Tree {
    let mut tree = Tree::new(Time::default());
    for line in lines {
        tree.step(&step(0, line, 0)).unwrap();
    }
    tree
}

/// The snapshot after the chosen operations of a history, results ignored.
fn after(h: &History, chosen: &[usize]) -> Snapshot {
    let mut tree = h.initial.clone();
    for i in chosen {
        let _ = tree.step(&h.ops[*i].step);
    }
    tree.snapshot()
}

fn rejected(h: &History, chosen: &[usize], cut: Cut) -> Why {
    let violation = h.check(&after(h, chosen), cut).unwrap_err();
    assert!(violation.to_string().contains("violated"));
    violation.why
}

fn accepted(h: &History, chosen: &[usize], cut: Cut) -> Vec<Prefix> {
    h.check(&after(h, chosen), cut)
        .unwrap_or_else(|v| panic!("{h}{v}"))
}

#[test]
fn one_stream_may_lose_any_tail_and_nothing_else() {
    let lines = [
        "0 mkdir /d 755",
        "0 mknod /d/f file 644 0",
        "0 append /d/f =ab",
        "0 mkdir /e 755",
    ];
    let h = history(&[], &lines);
    for n in 0..=4 {
        let got = accepted(&h, &(0..n).collect::<Vec<_>>(), Cut::after(4));
        assert_eq!(
            got,
            [Prefix {
                stream: Stream(0),
                ops: n,
                partial: false
            }]
        );
    }
    // Dropped from the middle, and swapped.
    assert_eq!(rejected(&h, &[0, 1, 3], Cut::after(4)), Why::Unknown);
    let h = history(&[], &["0 mkdir /a 755", "0 mkdir /b 755"]);
    assert_eq!(rejected(&h, &[1], Cut::after(2)), Why::Unknown);
    assert_eq!(
        rejected(&h, &[1, 0], Cut::after(2)),
        Why::Unknown,
        "times differ"
    );
}

#[test]
fn operations_fsynced_before_the_cut_are_there_and_later_ones_are_not() {
    let lines = [
        "0 mkdir /a 755",
        "0 mkdir /b 755",
        "0 fsync /a",
        "0 mkdir /c 755",
    ];
    let h = history(&[], &lines);
    accepted(&h, &[0], Cut::after(2));
    accepted(&h, &[0], Cut::during(2));
    accepted(&h, &[0, 1], Cut::after(3));
    // The whole prefix, not only the file.
    let Why::Lost { missing } = rejected(&h, &[0], Cut::after(3)) else {
        panic!()
    };
    assert_eq!(missing, ["1: s0 0:0 11.000000000 mkdir /b 755"]);
    assert!(matches!(
        rejected(&h, &[0], Cut::after(4)),
        Why::Lost { .. }
    ));
    let Why::NotCalled { present } = rejected(&h, &[0, 1, 3], Cut::after(3)) else {
        panic!()
    };
    assert_eq!(present.len(), 1);
    accepted(&h, &[0, 1, 3], Cut::during(3));
}

#[test]
fn a_later_write_is_not_there_without_the_earlier_one() {
    let lines = [
        "0 write /f 0 =aaaa",
        "0 write /g 0 =bbbb",
        "0 write /f 1 =cc",
    ];
    let h = history(&["mknod /f file 644 0", "mknod /g file 644 0"], &lines);
    assert_eq!(rejected(&h, &[1], Cut::after(3)), Why::Unknown);
    assert_eq!(rejected(&h, &[0, 2], Cut::after(3)), Why::Unknown);
    assert_eq!(rejected(&h, &[1, 2], Cut::after(3)), Why::Unknown);
    accepted(&h, &[0, 1], Cut::after(3));
}

#[test]
fn a_long_write_survives_as_a_prefix_of_its_blocks_and_as_nothing_else() {
    let h = history(
        &["mknod /f file 644 0"],
        &["0 write /f 100 #7*10000", "0 mkdir /d 755"],
    );
    let data = crate::op::Data::Pattern {
        seed: 7,
        len: 10_000,
    }
    .bytes();
    let (root, at) = (Caller::root(), h.ops[0].step.at);
    let written = |ranges: &[(usize, usize)]| {
        let mut tree = h.initial.clone();
        let ino = tree.lookup(&root, crate::tree::ROOT, b"f").unwrap();
        for (from, to) in ranges {
            tree.write(&root, at, ino, 100 + *from as u64, &data[*from..*to])
                .unwrap();
        }
        tree.snapshot()
    };
    let full = [(0, 3996), (3996, 8092), (8092, 10_000)];
    for n in 0..=3 {
        let got = h.check(&written(&full[..n]), Cut::after(2)).unwrap();
        assert_eq!(got[0].partial, n == 1 || n == 2);
        assert_eq!(got[0].ops, usize::from(n == 3));
    }
    assert!(h.check(&written(&full[1..]), Cut::after(2)).is_err());
    assert!(h.check(&written(&[(0, 2000)]), Cut::after(2)).is_err());
    assert!(
        h.check(&written(&[full[0], full[2]]), Cut::after(2))
            .is_err()
    );
    let rules = Rules {
        split: atomic,
        ..Rules::default()
    };
    let mut strict = History::with_rules(h.initial.clone(), rules);
    for op in h.ops() {
        strict.record(&op.step, op.result.unwrap()).unwrap();
    }
    assert!(strict.check(&written(&full[..2]), Cut::after(2)).is_err());
    assert!(strict.check(&written(&full), Cut::after(2)).is_ok());
}

#[test]
fn streams_are_independent_until_they_touch_the_same_object() {
    let h = history(
        &[],
        &[
            "0 mkdir /a 755",
            "1 mkdir /b 755",
            "0 mkdir /c 755",
            "1 mkdir /d 755",
        ],
    );
    for chosen in [
        &[][..],
        &[0],
        &[1],
        &[0, 1],
        &[0, 2],
        &[1, 3],
        &[0, 1, 3],
        &[0, 1, 2, 3],
    ] {
        accepted(&h, chosen, Cut::after(4));
    }
    assert_eq!(rejected(&h, &[2], Cut::after(4)), Why::Unknown);
    assert_eq!(rejected(&h, &[0, 3], Cut::after(4)), Why::Unknown);
}

#[test]
fn corner_57_an_operation_is_never_there_without_its_prerequisites() {
    let cases: &[(&[&str], &[&str])] = &[
        // Attributes of a file that another stream wrote.
        (
            &["mknod /f file 644 0"],
            &["0 append /f =x", "1 setattr /f perm=600"],
        ),
        (
            &["mknod /f file 644 0"],
            &["0 write /f 0 =x", "1 write /f 9000 =y"],
        ),
        // Two links of one file unlinked in two streams.
        (
            &["mknod /f file 644 0", "link /f /g"],
            &["0 unlink /f", "1 unlink /g"],
        ),
        (&["mknod /f file 644 0"], &["0 link /f /g", "1 unlink /f"]),
        (
            &["mkdir /d 755", "mknod /d/x file 644 0"],
            &["0 unlink /d/x", "1 rmdir /d"],
        ),
        (
            &["mkdir /d 755", "mknod /d/x file 644 0"],
            &["0 unlink /d/x", "1 mknod /d/x fifo 600 0"],
        ),
        (&[], &["0 mkdir /d 755", "1 mknod /d/f file 644 0"]),
        (
            &["mknod /f file 644 0"],
            &["0 rename /f /g replace", "1 rename /g /h replace"],
        ),
        // Renames of directories that would form a cycle.
        (
            &["mkdir /a 755", "mkdir /b 755", "mkdir /a/x 755"],
            &["0 rename /a/x /y replace", "1 rename /a /y/a replace"],
        ),
        // Unlink of a file that is dirty in another stream.
        (
            &["mknod /f file 644 0"],
            &["0 mkdir /d 755", "0 append /f =x", "1 unlink /f"],
        ),
    ];
    for (setup, lines) in cases {
        let h = history(setup, lines);
        let n = lines.len();
        let second = [n - 1];
        let cut = Cut::after(n);
        accepted(&h, &[0], cut);
        accepted(&h, &(0..n).collect::<Vec<_>>(), cut);
        let found = after(&h, &second);
        if found == after(&h, &[]) {
            continue; // the second does nothing without the first
        }
        let violation = h.check(&found, cut).unwrap_err();
        assert!(
            matches!(violation.why, Why::Relation { .. }),
            "{lines:?}: {violation}"
        );
    }
}

#[test]
fn a_create_in_a_directory_that_another_stream_renamed_does_not_need_the_rename() {
    let setup = ["mkdir /a 755", "mkdir /b 755", "mkdir /a/d 755"];
    let h = history(
        &setup,
        &["0 rename /a/d /b/d replace", "1 mknod /b/d/f file 644 0"],
    );
    let mut tree = h.initial.clone();
    tree.step(&step(1, "mknod /a/d/f file 644 0", 1)).unwrap();
    assert!(h.check(&tree.snapshot(), Cut::after(2)).is_ok());
}

#[test]
fn corner_59_fsync_by_another_stream_covers_the_file_and_its_prerequisites() {
    let lines = [
        "0 mkdir /d 755",
        "0 mknod /d/f file 644 0",
        "0 mkdir /later 755",
        "1 mkdir /mine 755",
        "2 fsync /d/f",
        "0 mkdir /more 755",
    ];
    let h = history(&[], &lines);
    accepted(&h, &[0, 1], Cut::after(5));
    accepted(&h, &[0, 1, 2], Cut::after(6));
    assert!(matches!(
        rejected(&h, &[0, 3], Cut::after(5)),
        Why::Lost { .. }
    ));
    assert!(matches!(
        rejected(&h, &[0], Cut::after(6)),
        Why::Lost { .. }
    ));
    accepted(&h, &[0], Cut::during(4));
    // Entries of a directory.
    let h = history(
        &["mkdir /d 755"],
        &["0 mknod /d/f file 644 0", "1 fsync /d"],
    );
    assert!(matches!(rejected(&h, &[], Cut::after(2)), Why::Lost { .. }));
    // A sync of everything.
    let h = history(&[], &["0 mkdir /a 755", "1 mkdir /b 755", "2 sync"]);
    assert!(matches!(
        rejected(&h, &[0], Cut::after(3)),
        Why::Lost { .. }
    ));
}

#[test]
fn failed_calls_bind_by_default_and_need_not() {
    let lines = ["0 mkdir /a 755", "1 mkdir /a 700", "1 mkdir /b 755"];
    let h = history(&[], &lines);
    assert!(matches!(
        rejected(&h, &[2], Cut::after(3)),
        Why::Relation { .. }
    ));
    let mut lax = History::with_rules(
        Tree::new(Time::default()),
        Rules {
            failures_bind: false,
            ..Rules::default()
        },
    );
    for op in h.ops() {
        lax.record(&op.step, op.result.unwrap()).unwrap();
    }
    accepted(&lax, &[2], Cut::after(3));
}

#[test]
fn refusals_have_no_effect_and_wrong_results_are_reported() {
    let mut h = History::new(Tree::new(Time::default()));
    h.record(&step(0, "mkdir /a 755", 0), Err(Errno::NoSpc))
        .unwrap();
    assert_eq!(h.current().inodes(), 1);
    let wrong = h
        .record(&step(0, "mkdir /a 755", 1), Err(Errno::Exist))
        .unwrap_err();
    assert!(wrong.to_string().contains("mkdir /a 755"));
    h.record(
        &step(0, "mkdir /a 755", 1),
        h.expected(&step(0, "mkdir /a 755", 1)),
    )
    .unwrap();
    h.record(&step(0, "fsync /a", 1), Err(Errno::Io)).unwrap();
    accepted(&h, &[], Cut::after(3));
    h.in_flight(&step(0, "append /a =x", 1)).unwrap();
    h.in_flight(&step(0, "mkdir /b 755", 1)).unwrap();
    assert!(
        h.check(
            &after(&h, &[1]),
            Cut {
                acked: 5,
                issued: 3
            }
        )
        .is_err()
    );
    assert!(
        h.check(
            &after(&h, &[1]),
            Cut {
                acked: 1,
                issued: 4
            }
        )
        .is_err()
    );
    assert!(
        h.check(
            &after(&h, &[1]),
            Cut {
                acked: 5,
                issued: 6
            }
        )
        .is_err()
    );
    accepted(&h, &[1, 4], Cut::during(4));
}

#[test]
fn an_orphan_is_gone_after_a_crash_and_writes_to_it_bind_nothing() {
    let lines = [
        "0 mknod /f file 644 0",
        "1 open /f @0",
        "0 unlink /f",
        "1 append @0 =abc",
        "1 mkdir /d 755",
        "1 close @0",
        "1 fsync /d",
    ];
    let h = history(&[], &lines);
    accepted(&h, &[4], Cut::after(7));
    assert!(h.allowed(Cut::after(7)).iter().all(|t| t.check().is_ok()));
    let mut tree = tree(&["mkdir /d 755"]);
    tree.step(&step(0, "mknod /f file 644 0", 0)).unwrap();
    assert!(h.check(&tree.snapshot(), Cut::after(7)).is_err());
}

#[test]
fn too_many_states_are_reported_and_a_sync_keeps_them_few() {
    let run = |sync: bool| {
        let rules = Rules {
            states_max: 300,
            ..Rules::default()
        };
        let mut h = History::with_rules(Tree::new(Time::default()), rules);
        for i in 0..40 {
            let line = if sync && i % 8 == 7 {
                "sync".into()
            } else {
                format!("mkdir /d{i} 755")
            };
            let s = step(i % 3, &line, i as usize);
            h.record(&s, h.expected(&s))?;
        }
        Ok::<usize, RecordError>(h.states())
    };
    assert!(matches!(run(false), Err(RecordError::TooManyStates { .. })));
    assert!(run(true).unwrap() < 300);
}

#[test]
fn the_index_of_states_agrees_with_trying_every_choice() {
    for seed in 0..60 {
        let shape = Shape {
            streams: 2,
            names: 2,
            depth: 2,
            sync_every: 9,
            ..Shape::default()
        };
        let mut h = History::new(Tree::new(Time::default()));
        for s in Workload::new(seed, shape).take(16) {
            h.record(&s, h.expected(&s)).unwrap();
        }
        let n = h.len();
        let (least, most) = (h.least(n), h.most(n));
        let at = |v: &[u32], s: usize| v.get(s).copied().unwrap_or(0);
        for a in 0..=at(&most, 0) {
            for b in 0..=at(&most, 1) {
                let taken = [a, b];
                let mut tree = h.initial.clone();
                // Opens and closes are not replayed here: they do not show.
                let mut legal = true;
                for p in h.states.pieces().filter(|p| p.index < taken[p.stream]) {
                    legal &= states::put(&mut tree, p);
                }
                let inside = covers(&taken, &least);
                let handles = h.ops.iter().any(|o| matches!(o.step.op, Op::Open { .. }));
                if handles {
                    continue;
                }
                let known = h.states.all().any(|t| at(t, 0) == a && at(t, 1) == b);
                assert_eq!(
                    legal && inside,
                    known && inside,
                    "seed {seed} {taken:?}\n{h}"
                );
                if legal && inside {
                    assert!(h.allows(&tree.digest(), Cut::after(n)));
                }
            }
        }
    }
}

#[test]
fn any_single_change_to_an_allowed_tree_is_noticed() {
    let lines = [
        "0 mknod /f file 644 0",
        "0 append /f #3*5000",
        "0 setxattr /f user.a b any",
        "0 link /f /g",
        "0 symlink /l t",
    ];
    let h = history(&[], &lines);
    let changes = [
        "setattr /f perm=600",
        "setattr /f uid=1",
        "setattr /f gid=1",
        "setattr /f size=4999",
        "setattr /f mtime=1.0",
        "write /f 4999 =!",
        "setxattr /f user.a c any",
        "removexattr /f user.a",
        "unlink /g",
        "link /f /h",
        "mkdir /d 755",
        "rename /l /m replace",
    ];
    for change in changes {
        let mut tree = h.current().clone();
        tree.step(&step(0, change, 90)).unwrap();
        assert!(
            h.check(&tree.snapshot(), Cut::after(5)).is_err(),
            "{change}"
        );
    }
    // A copy instead of a link, the rest the same.
    let mut tree = h.current().clone();
    let copy = [
        "unlink /g",
        "mknod /g file 644 0",
        "append /g #3*5000",
        "setxattr /g user.a b any",
    ];
    for line in copy {
        tree.step(&step(0, line, 13)).unwrap();
    }
    assert!(h.check(&tree.snapshot(), Cut::after(5)).is_err());
}

#[test]
fn a_stream_is_independent_unless_it_builds_on_a_part_of_another() {
    let alone = |lines: &[&str]| history(&["mkdir /d 755"], lines).stands_alone(Stream(2));
    assert!(alone(&[
        "1 mknod /d/a file 644 0",
        "2 mknod /d/b file 644 0"
    ]));
    assert!(alone(&["1 mknod /d/a file 644 0"]), "it did nothing");
    assert!(!alone(&["1 mkdir /d/a 755", "2 mknod /d/a/b file 644 0"]));
    // Without the removal, but with the removed inode, the name would be taken.
    let lines = ["mknod /d/a file 644 0", "unlink /d/a"].map(|op| format!("1 {op}"));
    assert!(!alone(&[&lines[0], &lines[1], "2 mknod /d/a file 644 0"]));
}
