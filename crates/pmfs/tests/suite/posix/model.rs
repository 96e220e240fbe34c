//! Random operations, by several users, on the file system and on the model's tree: the same results, and the same tree
//! whenever one looks, also after remounts and after cuts that lose nothing.
#![allow(missing_docs, unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::common::*;
use proptest::prelude::*;
use std::sync::Arc;
use steadfast_model::workload::{Shape, Workload, small_space};
use steadfast_model::{Handles, Observe, Op, Snapshot, Step, TestClock, Tree};
use steadfast_pm::Region;
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_vfs::{Attr, Caller, Errno, FileSystem, Ino, Time};

const START: Time = Time {
    secs: 500,
    nanos: 0,
};

fn options_with(clock: &TestClock, in_place: bool) -> MountOptions {
    let mut options = options();
    options.clock = Arc::new(clock.clone());
    options.in_place = in_place;
    options
}

fn made_at_start(bytes: u64) -> Region {
    let region = Region::anonymous(bytes);
    let options = MkfsOptions {
        bytes_per_inode: 4096,
        now: Some(START),
        ..MkfsOptions::default()
    };
    mkfs(&region, &options, &mut |_, _| {}).unwrap();
    region
}

fn compare(tree: &Tree, fs: &PmFs) -> Result<(), TestCaseError> {
    let found = Snapshot::of_fs(fs).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
    let expected = Snapshot::of_tree(tree);
    let diff = expected.diff(&found, Observe::ALL);
    prop_assert!(found == expected, "{diff}");
    Ok(())
}

/// All attributes of everything that has a name, and every cookie.
fn everything(fs: &PmFs) -> Vec<(Vec<u8>, Ino, u64, Attr)> {
    let mut all = Vec::new();
    let mut dirs = vec![fs.root()];
    while let Some(dir) = dirs.pop() {
        let mut found = Vec::new();
        fs.readdir(&root(), dir, 0, &mut |entry| {
            found.push((entry.name.to_vec(), entry.ino, entry.next));
            true
        })
        .unwrap();
        for (name, ino, next) in found {
            let attr = fs.attr(ino);
            if attr.kind == steadfast_vfs::FileKind::Directory && name != b"." && name != b".." {
                dirs.push(ino);
            }
            all.push((name, ino, next, attr));
        }
    }
    all
}

/// A mount finds the state that the indexes have.
fn remount_agrees(fs: &PmFs, options: &MountOptions) -> Result<(), TestCaseError> {
    let before = (everything(fs), fs.statfs().unwrap());
    let again = mount_with(copy(fs), options);
    let after = (everything(&again), again.statfs().unwrap());
    prop_assert_eq!(before.0, after.0);
    prop_assert_eq!(before.1, after.1);
    Ok(())
}

fn run(seed: u64, shape: Shape, in_place: bool, steps: usize) -> Result<(), TestCaseError> {
    let clock = TestClock::new();
    clock.set(START);
    let options = options_with(&clock, in_place);
    let mut fs = mount_with(made_at_start(4 << 20), &options);
    let mut tree = Tree::new(START);
    let mut handles = Handles::new();
    let workload: Vec<Step> = Workload::new(seed, shape).take(steps).collect();
    for (index, step) in workload.iter().enumerate() {
        clock.set(step.at);
        let found = step.op.run(&fs, &step.caller, &mut handles);
        let expected = tree.step(step);
        prop_assert!(
            found == expected,
            "seed {seed}, step {index}: {} by {:?}: {found:?}, the model says {expected:?}",
            step.op,
            step.caller
        );
        if index % 25 == 24 {
            compare(&tree, &fs)?;
        }
        if index % 50 == 49 && handles.is_empty() {
            remount_agrees(&fs, &options)?;
            let region = match index % 100 {
                49 => copy(&fs),
                _ => fs.into_region(),
            };
            fs = mount_with(region, &options);
            compare(&tree, &fs)?;
        }
    }
    compare(&tree, &fs)?;
    // A crash closes everything that is open.
    must_be_sound(copy(&fs));
    fs = mount_with(copy(&fs), &options);
    compare(&tree, &fs)?;
    remount_agrees(&fs, &options)?;
    must_be_sound(fs.into_region());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_file_system_does_what_the_model_does(
        seed: u64, names in 2u32..6, depth in 1u32..5,
        handles: bool, users: bool, odd_names: bool, in_place: bool,
    ) {
        let shape = Shape { names, depth, handles, users, odd_names, ..Shape::default() };
        run(seed, shape, in_place, 400)?;
    }
}

#[test]
fn the_file_system_does_what_the_model_does_for_long() {
    let shape = Shape {
        handles: true,
        users: true,
        ..Shape::default()
    };
    for seed in steadfast_testkit::seeds(4) {
        run(seed, shape, seed % 2 == 1, 3000).unwrap();
    }
}

/// A small volume under a random load that fills it again and again, beside the model. A call that finds no space leaves no
/// trace.
fn fill_and_use(seed: u64, steps: usize) -> usize {
    let clock = TestClock::new();
    clock.set(START);
    let options = options_with(&clock, seed % 2 == 1);
    let region = Region::anonymous((320 << 10) + ((seed % 5) << 14));
    let made = MkfsOptions {
        bytes_per_inode: 16 << 10,
        now: Some(START),
        ..MkfsOptions::default()
    };
    mkfs(&region, &made, &mut |_, _| {}).unwrap();
    let mut fs = mount_with(region, &options);
    let mut tree = Tree::new(START);
    let mut handles = Handles::new();
    let shape = Shape {
        names: 6 + (seed % 10) as u32,
        depth: 1 + (seed % 3) as u32,
        bytes_max: [20_000, 150_000, 2_000][(seed % 3) as usize],
        ..Shape::default()
    };
    let mut refused = 0;
    for (index, step) in Workload::new(seed, shape).take(steps).enumerate() {
        clock.set(step.at);
        let free = fs.statfs().unwrap();
        let found = step.op.run(&fs, &step.caller, &mut handles);
        let when = format!("seed {seed}, step {index}: {}", step.op);
        if found == Err(Errno::NoSpc) {
            refused += 1;
            let makes_room = matches!(
                step.op,
                Op::Unlink { .. }
                    | Op::Rmdir { .. }
                    | Op::Fsync { .. }
                    | Op::Fdatasync { .. }
                    | Op::Sync
                    | Op::Close { .. }
            );
            assert!(!makes_room, "{when} finds no space");
            assert_eq!(fs.statfs().unwrap(), free, "{when}");
            if refused % 8 == 0 {
                compare(&tree, &fs).unwrap();
            }
        } else {
            // Of a write a part may fit.
            let (done, found) = step.as_done(found);
            let expected = tree.step(&done);
            assert!(
                found == expected,
                "{when}: {found:?}, the model says {expected:?}"
            );
        }
        if index % 100 == 99 && handles.is_empty() {
            remount_agrees(&fs, &options).unwrap();
            fs = mount_with(copy(&fs), &options);
        }
    }
    compare(&tree, &fs).unwrap();
    for ino in handles.into_values() {
        fs.release(ino);
    }
    remount_agrees(&fs, &options).unwrap();
    must_be_sound(fs.into_region());
    refused
}

#[test]
fn corner_30_a_full_volume_does_what_the_model_does_or_refuses() {
    let refused: usize = (0..12).map(|seed| fill_and_use(seed, 1500)).sum();
    assert!(refused > 100, "{refused}");
}

/// Every pair of operations that meet in a small set-up, each with a cut between them.
#[test]
fn any_two_operations_do_what_the_model_says() {
    let (setup, ops) = small_space();
    let clock = TestClock::new();
    clock.set(START);
    let options = options_with(&clock, false);
    let apply = |fs: &PmFs, tree: &mut Tree, op: &Op| {
        let found = op.run(fs, &Caller::root(), &mut Handles::new());
        let expected = tree.apply(op, &Caller::root(), START);
        assert_eq!(found, expected, "{op}");
    };
    let fs = mount_with(made_at_start(1 << 20), &options);
    let mut tree = Tree::new(START);
    for op in &setup {
        apply(&fs, &mut tree, op);
    }
    for first in &ops {
        let one = mount_with(copy(&fs), &options);
        let mut after_one = tree.clone();
        apply(&one, &mut after_one, first);
        for second in &ops {
            let two = mount_with(copy(&one), &options);
            let mut after_two = after_one.clone();
            apply(&two, &mut after_two, second);
            let found = Snapshot::of_fs(&two).unwrap();
            let expected = Snapshot::of_tree(&after_two);
            let diff = expected.diff(&found, Observe::ALL);
            assert!(found == expected, "{first}, then {second}: {diff}");
            let again = mount_with(copy(&two), &options);
            assert!(
                Snapshot::of_fs(&again).unwrap() == expected,
                "{first}, then {second}"
            );
        }
    }
}
