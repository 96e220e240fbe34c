//! A promoted clone needs no object of its parent: the parent may be deleted. A promotion that is interrupted anywhere can be
//! continued, and loses nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::support;

use object_store::memory::InMemory;
use object_store::{ObjectStoreExt, path::Path};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_store::protocol;
use steadfast_store::{Access, DeviceFault, Found, OpenError, OpenOptions, StoreDevice, create};
use support::{Client, Random, names, options};

const BLOCKS: u64 = 1 << 15;
const PATIENCE: Duration = Duration::from_secs(5);

fn block(at: u64, number: u64) -> Vec<u8> {
    let word = (at << 32 | number).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK_SIZE).collect()
}

/// Writes runs of blocks, and notes their contents in `model`.
fn load(disk: &StoreDevice, model: &mut [u64], random: &mut Random, numbers: std::ops::Range<u64>) {
    for number in numbers {
        for _ in 0..20 {
            let at = random.below(BLOCKS - 40);
            let bytes: Vec<u8> = (at..at + 30).flat_map(|at| block(at, number)).collect();
            disk.write(BlockNo(at), &[&bytes]).unwrap();
            model[at as usize..at as usize + 30].fill(number);
        }
        disk.flush().unwrap();
    }
}

#[track_caller]
fn holds(disk: &StoreDevice, model: &[u64]) {
    let mut bytes = vec![0; BLOCK_SIZE];
    for (at, number) in model.iter().enumerate() {
        disk.read(BlockNo(at as u64), &mut bytes).unwrap();
        let wanted = match number {
            0 => vec![0; BLOCK_SIZE],
            number => block(at as u64, *number),
        };
        assert!(bytes == wanted, "block {at} is not what was written");
    }
}

/// A store with a volume `v`, its snapshot `day`, and the clone `c` of that; and the contents of the clone.
fn cloned() -> (Arc<InMemory>, Vec<u64>) {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    create(client.location("v"), BLOCKS, PATIENCE).unwrap();
    let (mut model, mut random) = (vec![0; BLOCKS as usize], Random(3));
    let disk = client.volume().open(&options()).unwrap();
    load(&disk, &mut model, &mut random, 1..20);
    disk.checkpoint().unwrap();
    client.volume().make_snapshot("day").unwrap();
    let kept = model.clone();
    let made = (client.volume()).clone_to("day", client.location("c"), None, PATIENCE);
    made.unwrap();
    load(&disk, &mut model, &mut random, 60..64);
    disk.release().unwrap();
    (store, kept)
}

/// The clone, opened through this client.
fn clone(client: &Arc<Client>) -> Found {
    let parents = [client.location("v")];
    Found::with_parents(client.location("c"), &Access::default(), &parents, PATIENCE).unwrap()
}

/// Deletes all objects of the parent.
fn delete_parent(store: &Arc<InMemory>) {
    let runtime = tokio_of_tests();
    for name in names(store) {
        if name.starts_with("v/") {
            runtime.block_on(store.delete(&Path::from(name))).unwrap();
        }
    }
}

fn tokio_of_tests() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

#[test]
fn a_promoted_clone_needs_nothing_of_its_parent() {
    let (store, mut model) = cloned();
    let client = Client::of(&store);
    let found = clone(&client);
    let disk = found.open(&options()).unwrap();
    let mut random = Random(9);
    load(&disk, &mut model, &mut random, 100..105);
    let before = found.leave_parent(PATIENCE);
    assert!(matches!(before, Err(OpenError::NeedsParents { ref names, .. }) if names.is_empty()));
    let mut last = (0, 0);
    let copied = disk.promote(&mut |done, all| {
        assert!(done <= all && done > last.0);
        last = (done, all);
    });
    let copied = copied.unwrap();
    assert!(
        copied > 1000 && last == (copied, copied),
        "{copied} of {last:?}"
    );
    holds(&disk, &model);
    assert_eq!(
        disk.promote(&mut |_, _| panic!("nothing is left")).unwrap(),
        0
    );
    disk.release().unwrap();
    drop(disk);
    found.leave_parent(PATIENCE).unwrap();
    found.leave_parent(PATIENCE).unwrap();
    let pins = client.volume().state().unwrap().roots.pins;
    assert_eq!(pins.len(), 1, "the snapshot alone: {pins:?}");
    delete_parent(&store);
    let found = clone(&Client::of(&store));
    assert_eq!(found.usage().unwrap().parents_bytes, 0);
    assert_eq!(found.check(&mut |_, _| {}).unwrap().findings, []);
    let disk = found.open(&options()).unwrap();
    holds(&disk, &model);
    found.leave_parent(PATIENCE).unwrap();
}

/// Without the parent, snapshots and clones of the clone would lose objects.
#[test]
fn a_clone_whose_snapshots_need_the_parent_does_not_leave_it() {
    let (store, model) = cloned();
    let client = Client::of(&store);
    let found = clone(&client);
    let disk = found.open(&options()).unwrap();
    disk.write(BlockNo(0), &[&block(0, 500)]).unwrap();
    disk.flush().unwrap();
    disk.checkpoint().unwrap();
    found.make_snapshot("early").unwrap();
    let needing = found.pins_with_parents().unwrap();
    assert_eq!(needing.len(), 1);
    disk.promote(&mut |_, _| {}).unwrap();
    let left = found.leave_parent(PATIENCE);
    assert!(matches!(left, Err(OpenError::NeedsParents { ref names, .. }) if names == &["early"]));
    assert_eq!(client.volume().state().unwrap().roots.pins.len(), 2);
    // It can still be read.
    let early = found.look_at("early", &options()).unwrap();
    let mut kept = model;
    kept[0] = 500;
    holds(&early, &kept);
    // A snapshot that was made afterwards needs no object of the parent.
    found.make_snapshot("late").unwrap();
    found.delete_snapshot("early").unwrap();
    found.leave_parent(PATIENCE).unwrap();
    assert_eq!(client.volume().state().unwrap().roots.pins.len(), 1);
}

/// With the planted fault, the pin is kept, and without the parent the check finds the missing object.
#[test]
fn a_promotion_that_leaves_an_object_out_is_found() {
    let (store, _) = cloned();
    let client = Client::of(&store);
    let faulty = OpenOptions {
        faults: (
            Some(DeviceFault::PromotedInPart),
            protocol::Faults::default(),
        ),
        ..options()
    };
    let found = clone(&client);
    let disk = found.open(&faulty).unwrap();
    assert!(disk.promote(&mut |_, _| {}).unwrap() > 0);
    disk.release().unwrap();
    drop(disk);
    let left = found.leave_parent(PATIENCE);
    assert!(
        matches!(left, Err(OpenError::NeedsParents { .. })),
        "{left:?}"
    );
    delete_parent(&store);
    let checked = clone(&Client::of(&store)).check(&mut |_, _| {});
    assert!(checked.is_err() || !checked.unwrap().findings.is_empty());
    steadfast_testkit::caught("store.promoted_in_part");
}

#[test]
fn an_interrupted_promotion_can_be_continued() {
    let whole = {
        let (store, _) = cloned();
        let client = Client::of(&store);
        let disk = clone(&client).open(&options()).unwrap();
        let before = client.puts.load(SeqCst);
        disk.promote(&mut |_, _| {}).unwrap();
        client.puts.load(SeqCst) - before
    };
    assert!(whole >= 4, "{whole} requests");
    for cut in 1..=whole {
        let (store, model) = cloned();
        let client = Client::of(&store);
        let dying = OpenOptions {
            store_timeout: Some(Duration::ZERO),
            ..options()
        };
        let disk = clone(&client).open(&dying).unwrap();
        client.die_after_effect.store(cut % 2 == 0, SeqCst);
        client.die_at.store(client.puts.load(SeqCst) + cut, SeqCst);
        assert!(disk.promote(&mut |_, _| {}).is_err(), "cut {cut}");
        drop(disk);
        let client = Client::of(&store);
        let found = clone(&client);
        let disk = found.open(&options()).unwrap();
        disk.promote(&mut |_, _| {}).unwrap();
        disk.release().unwrap();
        drop(disk);
        found.leave_parent(PATIENCE).unwrap();
        delete_parent(&store);
        let found = clone(&Client::of(&store));
        assert_eq!(
            found.check(&mut |_, _| {}).unwrap().findings,
            [],
            "cut {cut}"
        );
        holds(&found.look(&options()).unwrap(), &model);
    }
}
