#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::models::Model;
use crate::script::Script;
use crate::states::{Limits, enumerate};
use std::collections::BTreeSet;

/// A tree in words: `path=content` for files, `path/` for directories.
fn words(disk: &Disk) -> BTreeSet<String> {
    let seen = disk.observe();
    let files = seen.iter().filter(|(p, _)| !p.is_empty());
    files
        .map(|(path, seen)| {
            let path = String::from_utf8_lossy(path);
            if seen.kind == FileKind::Directory {
                return format!("{path}/");
            }
            let mut bytes = vec![0; seen.data.size().min(20_000) as usize];
            seen.data.read(0, &mut bytes);
            let mut runs: Vec<(u8, usize)> = Vec::new();
            for b in bytes {
                match runs.last_mut() {
                    Some((last, n)) if *last == b => *n += 1,
                    _ => runs.push((b, 1)),
                }
            }
            let show = |b: u8| if b == 0 { '0' } else { b as char };
            let runs: Vec<String> = runs
                .iter()
                .map(|(b, n)| format!("{}{n}", show(*b)))
                .collect();
            format!("{path}={}", runs.join("+"))
        })
        .collect()
}

/// All trees that a power cut may leave after at least this many calls have returned.
fn trees(script: Script, model: &str, after: usize) -> BTreeSet<String> {
    trees_with(script, model, after, None)
}

fn trees_with(script: Script, model: &str, after: usize, fault: Option<Fault>) -> BTreeSet<String> {
    let model = Model::load(model).unwrap();
    let effects = Effects::with_fault(&script.run(), &model, fault);
    let states = enumerate(&effects, model.sync_jumps, model.tear, Limits::default());
    let late = states.all.iter().filter(|s| s.moments.1 >= after);
    late.map(|s| {
        let tree = words(&crate::states::Former::new(&effects).disk(&s.bits, s.tear));
        tree.into_iter().collect::<Vec<_>>().join(" ")
    })
    .collect()
}

fn new_file() -> Script {
    Script::new()
        .make("tmp")
        .write("tmp", 0, b"aaaa")
        .rename("tmp", "f")
}

#[test]
fn ext4_may_leave_a_renamed_new_file_empty_and_a_file_that_is_replaced_never() {
    let all = trees(new_file(), "ext4", 0);
    assert!(
        all.contains("/f=") && all.contains("/f=a4") && all.contains(""),
        "{all:?}"
    );
    assert!(
        !all.contains("/f=a4 /tmp=a4"),
        "a rename is one effect: {all:?}"
    );
    let over = Script::new().make("f").write("f", 0, b"bb").durable();
    let over = over.make("tmp").write("tmp", 0, b"aaaa").rename("tmp", "f");
    let all = trees(over, "ext4", 0);
    assert!(
        !all.iter().any(|t| t.contains("/f= ") || t.ends_with("/f=")),
        "{all:?}"
    );
    assert!(
        all.contains("/f=a4") && all.iter().any(|t| t.contains("/f=b2")),
        "{all:?}"
    );
    // Its blocks are allocated, and read as zeros until the data is there: a real ext4 showed it.
    assert!(all.contains("/f=04"), "{all:?}");
    let over = || {
        let over = Script::new().make("f").write("f", 0, b"bb").durable();
        over.make("tmp").write("tmp", 0, b"aaaa").rename("tmp", "f")
    };
    assert!(trees(over(), "ext4-noauto_da_alloc", 0).contains("/f="));
    assert!(trees(over(), "xfs", 0).contains("/f="));
    let btrfs = trees(over(), "btrfs", 0);
    assert!(
        !btrfs.contains("/f=04") && !btrfs.contains("/f="),
        "{btrfs:?}"
    );
}

#[test]
fn the_order_of_ordered_leaves_prefixes_alone() {
    let all = trees(new_file(), "ordered", 0);
    let expected = ["", "/tmp=", "/tmp=a4", "/f=a4"];
    assert_eq!(all, expected.iter().map(|s| (*s).to_owned()).collect());
}

#[test]
fn fsync_of_a_file_keeps_its_name_on_ext4_xfs_btrfs_and_not_on_posix() {
    let run = || Script::new().make("f").write("f", 0, b"aaaa").fsync("f");
    for model in ["ext4", "xfs", "btrfs", "ordered", "metadata-prefix", "zfs"] {
        let all = trees(run(), model, 3);
        assert_eq!(all, BTreeSet::from(["/f=a4".to_owned()]), "{model}");
    }
    let all = trees(run(), "posix", 3);
    assert_eq!(all, BTreeSet::from([String::new(), "/f=a4".to_owned()]));
    let both = run().fsync(".");
    assert_eq!(
        trees(both, "posix", 4),
        BTreeSet::from(["/f=a4".to_owned()])
    );
}

#[test]
fn what_btrfs_syncs_does_not_wait_for_what_came_before() {
    let run = || Script::new().make("a").make("b").fsync("b");
    assert_eq!(
        trees(run(), "ext4", 3),
        BTreeSet::from(["/a= /b=".to_owned()])
    );
    let all = trees(run(), "btrfs", 3);
    assert!(all.contains("/b=") && all.contains("/a= /b="), "{all:?}");
}

#[test]
fn fdatasync_keeps_a_size_that_grew_and_leaves_attributes() {
    let base = || Script::new().make("f").write("f", 0, b"aa").durable();
    let grown = trees(
        base()
            .chmod("f", 0o600)
            .write("f", 0, b"bbbb")
            .fdatasync("f"),
        "posix",
        3,
    );
    assert_eq!(grown, BTreeSet::from(["/f=b4".to_owned()]));
    let model = Model::shipped("posix").unwrap();
    let run = base().chmod("f", 0o600).fdatasync("f").run();
    let effects = Effects::new(&run, &model);
    assert!(effects.demanded[2].is_empty(), "the mode may be lost");
    let run = base().chmod("f", 0o600).fsync("f").run();
    assert_eq!(Effects::new(&run, &model).demanded[2].len(), 1);
}

#[test]
fn overwrites_tear_and_go_out_of_order_where_the_model_says_so() {
    let base = || {
        Script::new()
            .make("f")
            .write("f", 0, &[b'a'; 8192])
            .durable()
    };
    let over = || base().write("f", 0, &[b'b'; 8192]);
    let all = trees(over(), "ext4", 0);
    assert!(
        all.contains("/f=a4096+b4096") && all.contains("/f=b4096+a4096"),
        "{all:?}"
    );
    assert!(
        all.contains("/f=b512+a7680") && all.contains("/f=a512+b3584+a4096"),
        "{all:?}"
    );
    let all = trees(over(), "ordered", 0);
    assert_eq!(
        all,
        ["/f=a8192", "/f=b4096+a4096", "/f=b8192"]
            .map(str::to_owned)
            .into()
    );
    let all = trees(base().write("f", 0, &[b'b'; 1024]), "metadata-prefix", 0);
    assert!(all.contains("/f=a512+b512+a7168"), "{all:?}");
}

#[test]
fn a_size_without_its_data_reads_as_zeros_or_as_what_the_model_says() {
    let run = || Script::new().make("f").durable().write("f", 0, b"aaaa");
    assert_eq!(
        trees(run(), "xfs", 0),
        ["/f=", "/f=a4"].map(str::to_owned).into()
    );
    assert!(trees(run(), "posix", 0).contains("/f=04"));
    assert!(trees(run(), "ext4", 0).contains("/f=04"));
    let all = trees(run(), "ext4-writeback", 0);
    assert!(all.len() == 3 && !all.contains("/f=04"), "{all:?}");
}

/// A real XFS showed both: the end of an append is there, and zeros where it filled the old last block; and a file that was
/// emptied, written, closed and renamed is empty, although the directory was synced then.
#[test]
fn xfs_writes_the_rest_of_an_old_block_beside_new_ones_and_waits_for_no_close() {
    let append = || {
        let old = Script::new().make("f").write("f", 0, &[b'a'; 5120]);
        old.durable().write("f", 5120, &[b'b'; 5120])
    };
    let tail = "/f=a5120+03072+b2048";
    assert!(trees(append(), "xfs", 0).contains(tail));
    assert!(!trees(append(), "btrfs", 0).contains(tail));
    let gone = "/f=a5120+b3072+02048";
    assert!(!trees(append(), "xfs", 0).contains(gone), "a new unit");
    let run = Script::new().mkdir("d").make("f").write("f", 0, b"aa");
    let run = run.durable().truncate("f", 0).write("f", 0, b"bb");
    let run = run.close("f").rename("f", "d/f").fsync("d");
    let all = trees(run, "xfs", 5);
    assert!(all.iter().any(|tree| tree.ends_with("/d/f=")), "{all:?}");
}

/// A real ext4 and a real XFS showed both: the rest of the block is zero and the size is the old one; and bytes written after
/// the truncation are there, and the size is the old one.
#[test]
fn a_truncation_fills_the_rest_of_its_block_with_zeros_before_the_size_goes_down() {
    let run = || Script::new().make("f").write("f", 0, b"aaaa").durable();
    let cut = || run().truncate("f", 2);
    for model in ["ext4", "xfs", "posix"] {
        assert!(trees(cut(), model, 0).contains("/f=a2+02"), "{model}");
        let over = trees(cut().write("f", 0, b"b"), model, 0);
        assert!(over.contains("/f=b1+a1+02"), "{model}: {over:?}");
    }
    for model in ["btrfs", "ordered"] {
        assert!(!trees(cut(), model, 0).contains("/f=a2+02"), "{model}");
    }
}

#[test]
fn closing_a_file_that_was_emptied_orders_its_data_before_later_metadata_on_ext4() {
    let base = || Script::new().make("f").write("f", 0, b"aa").durable();
    let run = || {
        base()
            .truncate("f", 0)
            .write("f", 0, b"bb")
            .close("f")
            .make("done")
    };
    let bad = "/done= /f=";
    assert!(!trees(run(), "ext4", 0).contains(bad));
    assert!(trees(run(), "ext4-nodelalloc", 0).contains("/f="));
    assert!(trees(run(), "posix", 0).contains(bad));
}

#[test]
fn btrfs_logs_the_new_name_of_a_synced_file_with_the_next_sync() {
    let run = |synced: bool| {
        let s = Script::new().make("tmp").write("tmp", 0, b"aa");
        let s = if synced { s.fsync("tmp") } else { s };
        s.rename("tmp", "f").make("other").fsync("other")
    };
    let named = |synced: bool, after: usize| {
        let all = trees(run(synced), "btrfs", after);
        all.iter().all(|tree| tree.contains("/f="))
    };
    assert!(named(true, 6));
    assert!(!named(true, 5), "the sync has not returned");
    assert!(!named(false, 5), "nothing of the file was in the log");
}

#[test]
fn a_sync_of_btrfs_that_is_in_flight_has_logged_all_of_its_names_or_none() {
    let run = Script::new().mkdir("d").durable();
    let run = run.make("d/a").make("d/b").fsync("d");
    let trees = trees(run, "btrfs", 0);
    assert!(
        trees.contains("/d= /d/a=")
            || trees
                .iter()
                .any(|t| t.contains("d/a") && !t.contains("d/b"))
    );
    assert!(
        trees
            .iter()
            .all(|t| t.contains("d/a") || !t.contains("d/b")),
        "{trees:?}"
    );
}

#[test]
fn killed_leaves_every_call_that_returned_and_a_lying_disk_demands_nothing() {
    let run = || Script::new().make("a").write("a", 0, b"aa").make("b");
    assert_eq!(
        trees(run(), "killed", 3),
        BTreeSet::from(["/a=a2 /b=".to_owned()])
    );
    let mut model = Model::shipped("ext4").unwrap();
    model.lying_disk = true;
    let effects = Effects::new(&run().fsync("a").run(), &model);
    assert!(effects.demanded.iter().all(|d| d.is_empty()));
}

#[test]
fn directories_that_move_under_each_other_end_in_a_tree() {
    let run = Script::new().mkdir("a").mkdir("b").durable();
    let run = run.rename("b", "a/b");
    for tree in trees(run, "posix", 0) {
        assert!(tree.len() < 40, "{tree}");
    }
}

/// Each planted fault changes what some script may leave.
#[test]
fn every_planted_fault_is_noticed() {
    type Make = fn() -> Script;
    let two: Make = || Script::new().make("a").make("b");
    let over: Make = || {
        let s = Script::new()
            .make("f")
            .write("f", 0, &[b'a'; 8192])
            .durable();
        s.write("f", 0, &[b'b'; 8192])
            .write("f", 0, b"cc")
            .fdatasync("f")
            .chmod("f", 0o600)
    };
    let replace: Make = || {
        let s = Script::new().make("f").write("f", 0, b"bb").durable();
        s.make("tmp")
            .write("tmp", 0, b"aaaa")
            .rename("tmp", "f")
            .unlink("f")
    };
    let chained: Make = || {
        Script::new()
            .make("a")
            .make("b")
            .fsync("b")
            .chmod("a", 0o700)
            .unlink("a")
            .ack("x")
    };
    let scripts = [two, over, replace, new_file as Make, chained];
    let cases = [
        (Fault::NoRules, "ext4"),
        (Fault::MoreRules, "ext4"),
        (Fault::NoCells, "ext4"),
        (Fault::NoDemand, "ext4"),
        (Fault::FullDemand, "posix"),
        (Fault::EarlyDemand, "ext4"),
        (Fault::NoRemove, "ext4"),
        (Fault::NoSize, "ext4"),
        (Fault::NoLastPart, "ext4"),
        (Fault::SizeAlone, "xfs"),
        (Fault::NoHeuristics, "ext4"),
        (Fault::HalfRename, "ext4"),
    ];
    for (fault, model) in cases {
        let differs = scripts.iter().any(|script| {
            let steps = script().run().steps.len();
            (0..=steps).any(|after| {
                trees_with(script(), model, after, None)
                    != trees_with(script(), model, after, Some(fault))
            })
        });
        assert!(differs, "{fault:?} is not noticed");
        steadfast_testkit::caught_in("effects", &fault);
    }
    let late = Effects::with_fault(
        &chained().run(),
        &Model::shipped("ext4").unwrap(),
        Some(Fault::LateAck),
    );
    let right = Effects::new(&chained().run(), &Model::shipped("ext4").unwrap());
    assert_ne!(late.acked, right.acked);
    steadfast_testkit::caught("effects.late_ack");
}

/// A real Btrfs showed all three.
#[test]
fn btrfs_shows_two_names_after_a_sync_of_the_new_directory_and_sizes_that_overtake_data() {
    let base = || {
        Script::new()
            .make("a")
            .write("a", 0, b"aaaa")
            .mkdir("d")
            .durable()
    };
    let moved = trees(base().rename("a", "d/a").fsync("d"), "btrfs", 2);
    assert!(moved.contains("/a=a4 /d/ /d/a=a4"), "{moved:?}");
    assert!(moved.iter().all(|t| t.contains("/d/a=a4")), "{moved:?}");
    let grown = trees(base().write("a", 4, b"bb").truncate("a", 8), "btrfs", 0);
    assert!(grown.contains("/a=a4+04 /d/"), "{grown:?}");
    // A file that had nothing to sync is in no log: its new name waits for a commit.
    let renamed = || base().make("o").fsync("a").rename("a", "b").fsync("o");
    assert!(
        trees(renamed(), "btrfs", 4)
            .iter()
            .any(|t| t.contains("/a=a4"))
    );
    let logged = base().make("o").write("a", 0, b"b").fsync("a");
    let logged = trees(logged.rename("a", "b").fsync("o"), "btrfs", 5);
    assert!(logged.iter().all(|t| t.contains("/b=b1+a3")), "{logged:?}");
}

/// A real ext4 showed both.
#[test]
fn on_ext4_a_hole_and_room_inside_the_size_do_not_wait_for_sizes_that_are_still_to_be_written() {
    let base = || {
        let base = Script::new().make("a").write("a", 0, &[b'a'; 5120]);
        base.durable().write("a", 5120, &[b'b'; 5120])
    };
    let punched = trees(base().punch("a", 0, 4096), "ext4", 0);
    assert!(punched.contains("/a=04096+a1024+03072"), "{punched:?}");
    let roomy = trees(base().allocate("a", 9000), "ext4", 0);
    assert!(roomy.contains("/a=a5120+b3072+0808"), "{roomy:?}");
    // A synced file has no older size.
    let synced = trees(base().fsync("a").allocate("a", 9000), "ext4", 2);
    assert!(!synced.iter().any(|t| t.ends_with("0808")), "{synced:?}");
    for model in ["btrfs", "xfs"] {
        let whole = trees(base().allocate("a", 9000), model, 0);
        assert!(!whole.iter().any(|t| t.ends_with("0808")), "{whole:?}");
    }
    // A real XFS showed the old size after another file had been synced.
    let old = base().make("o").allocate("a", 9000).fsync("o");
    let old = trees(old, "xfs", 4);
    assert!(old.iter().any(|t| t.starts_with("/a=a5120 ")), "{old:?}");
}

/// A real ext4 showed it with `data=writeback`.
#[test]
fn with_writeback_a_truncation_does_not_wait_for_the_zeros_that_its_last_block_gets() {
    let base = || {
        Script::new()
            .make("a")
            .write("a", 0, &[b'a'; 5000])
            .durable()
    };
    let grown = |model| trees(base().truncate("a", 1000).truncate("a", 6000), model, 0);
    assert!(
        grown("ext4-writeback").contains("/a=a4096+01904"),
        "{:?}",
        grown("ext4-writeback")
    );
    assert!(grown("ext4-writeback").contains("/a=a1000+05000"));
    assert!(!grown("ext4").contains("/a=a4096+01904"));
    let synced = base().truncate("a", 1000).fsync("a").truncate("a", 6000);
    assert!(!trees(synced, "ext4-writeback", 2).contains("/a=a4096+01904"));
}
