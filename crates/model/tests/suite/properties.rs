//! Properties of the model as a whole: the tree, the file system made of it, and the
//! snapshots of both agree after any operations.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::sync::Arc;
use steadfast_model::workload::{Shape, Workload};
use steadfast_model::{
    Cut, Handles, History, MemFs, Observe, Rules, Snapshot, Step, TestClock, Tree,
};
use steadfast_vfs::{Caller, Clock, FileSystem, Time};

/// Steps drawn from a workload; shrinks by leaving steps out.
fn steps(shape: Shape, max: usize) -> impl Strategy<Value = Vec<Step>> {
    (any::<u64>(), prop::collection::vec(any::<bool>(), 1..max)).prop_map(move |(seed, keep)| {
        Workload::new(seed, shape)
            .zip(keep)
            .filter(|(_, k)| *k)
            .map(|(s, _)| s)
            .collect()
    })
}

fn wild() -> Shape {
    Shape {
        streams: 3,
        users: true,
        odd_names: true,
        ..Shape::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_tree_and_the_file_system_made_of_it_agree_on_every_operation(steps in steps(wild(), 300)) {
        let clock = TestClock::new();
        let fs = MemFs::new(Arc::new(clock.clone()));
        let mut tree = Tree::new(clock.now());
        let mut handles = Handles::new();
        for step in &steps {
            clock.set(step.at);
            let want = tree.step(step);
            let got = step.op.run(&fs, &step.caller, &mut handles);
            prop_assert_eq!(got, want, "{}", step);
            prop_assert_eq!(tree.check(), Ok(()), "{}", step);
        }
        let observed = Snapshot::of_fs(&fs).unwrap();
        prop_assert_eq!(tree.snapshot().diff(&observed, Observe::ALL).to_string(), "  (no difference)");
        prop_assert_eq!(&observed, &tree.snapshot());
        prop_assert_eq!(observed.digest(), tree.digest());
        // A file that is closed and removed leaves nothing.
        for ino in handles.values() {
            fs.release(*ino);
        }
        prop_assert_eq!(fs.tree().inodes(), tree.closed().inodes());
        prop_assert_eq!(fs.tree().check(), Ok(()));
    }

    #[test]
    fn a_failed_operation_changes_nothing(steps in steps(wild(), 200)) {
        let mut tree = Tree::new(Time::default());
        for step in &steps {
            let before = tree.snapshot();
            if tree.step(step).is_err() {
                prop_assert_eq!(tree.snapshot(), before, "{}", step);
            }
        }
    }

    #[test]
    fn earlier_versions_of_a_tree_never_change(steps in steps(wild(), 200)) {
        let mut tree = Tree::new(Time::default());
        let mut kept = Vec::new();
        for step in &steps {
            kept.push((tree.clone(), tree.digest()));
            let _ = tree.step(step);
        }
        for (old, digest) in &kept {
            prop_assert_eq!(old.digest(), *digest);
        }
    }

    #[test]
    fn every_prefix_of_one_stream_is_allowed_from_its_last_sync_on(
        steps in steps(Shape { sync_every: 15, ..Shape::default() }, 150),
    ) {
        let rules = Rules { observe: Observe::ALL, ..Rules::default() };
        let mut history = History::with_rules(Tree::new(Time::default()), rules);
        let mut trees = vec![history.current().clone()];
        let mut durable = vec![0];
        for step in &steps {
            let result = history.expected(step);
            history.record(step, result).unwrap();
            trees.push(history.current().clone());
            let syncs = ["fsync", "fdatasync", "sync"];
            let word = step.op.to_string();
            let synced = result.is_ok() && syncs.contains(&word.split(' ').next().unwrap());
            durable.push(if synced { history.len() } else { durable[durable.len() - 1] });
        }
        let n = history.len();
        for k in 0..=n {
            let found = trees[k].snapshot();
            let allowed = history.check(&found, Cut::after(n)).is_ok();
            // An earlier state may look like one that is durable.
            let like = (durable[n]..=n).any(|j| trees[j].snapshot() == found);
            prop_assert_eq!(allowed, like, "prefix {} of {}\n{}", k, n, history);
            if k < n {
                prop_assert!(history.check(&found, Cut::during(k)).is_ok());
                let later = trees[n].snapshot();
                let like = (durable[k]..=k + 1).any(|j| trees[j].snapshot() == later);
                if !like && k + 1 < n {
                    let partial = history.allowed(Cut::during(k));
                    let like = partial.iter().any(|t| t.snapshot() == later);
                    prop_assert_eq!(history.check(&later, Cut::during(k)).is_ok(), like);
                }
            }
        }
    }
}

#[test]
fn reading_in_small_pieces_lists_every_entry_exactly_once() {
    let fs = MemFs::default();
    let root = Caller::root();
    for i in 0..1000 {
        fs.mkdir(&root, fs.root(), format!("d{i}").as_bytes(), 0o755)
            .unwrap();
    }
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let (before, mut left) = (names.len(), 7);
        fs.readdir(&root, fs.root(), cookie, &mut |e| {
            if left == 0 {
                return false;
            }
            left -= 1;
            names.push(e.name.to_vec());
            cookie = e.next;
            // The callback may call back.
            fs.getattr(&root, e.ino).is_ok()
        })
        .unwrap();
        if names.len() == before {
            break;
        }
    }
    assert_eq!(names.len(), 1002);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1002);
}

#[test]
fn a_check_costs_a_hash_lookup() {
    let mut history = History::new(Tree::new(Time::default()));
    for step in Workload::new(
        1,
        Shape {
            streams: 2,
            sync_every: 6,
            ..Shape::default()
        },
    )
    .take(120)
    {
        let result = history.expected(&step);
        history.record(&step, result).unwrap();
    }
    let n = history.len();
    let digest = history.current().digest();
    // A history that was replayed for each question would take hours here.
    for _ in 0..100_000 {
        assert!(history.allows(&digest, Cut::after(n)));
    }
}
