//! A disk that grows: its size is durable before a block beyond the old end is, whenever the machine dies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::support;

use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_store::protocol::Faults;
use steadfast_store::{
    Access, DeviceFault, Follower, Found, LagClock, OpenOptions, StoreDevice, create,
};
use support::{Client, names, options};

const BEFORE: u64 = 1 << 12;
const AFTER: u64 = 3 << 12;

fn fresh(client: &Arc<Client>) {
    create(client.location("v"), BEFORE, Duration::from_secs(5)).unwrap();
}

fn blocks(disk: &StoreDevice) -> u64 {
    disk.geometry().blocks
}

fn put(disk: &StoreDevice, at: u64, byte: u8) -> steadfast_block::Result<()> {
    disk.write(BlockNo(at), &[&[byte; BLOCK_SIZE]])?;
    disk.flush()
}

#[track_caller]
fn holds(disk: &StoreDevice, at: u64, byte: u8) {
    let mut buf = vec![0; BLOCK_SIZE];
    disk.read(BlockNo(at), &mut buf).unwrap();
    assert!(buf.iter().all(|b| *b == byte), "block {at} has {}", buf[0]);
}

#[test]
fn later_openings_find_the_new_size_and_the_old_contents() {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    fresh(&client);
    let disk = client.volume().open(&options()).unwrap();
    put(&disk, 7, 1).unwrap();
    assert!(put(&disk, BEFORE, 1).is_err(), "beyond the end");
    disk.checkpoint().unwrap();
    client.volume().make_snapshot("small").unwrap();
    // A follower, and a read-only opening.
    let reader = Client::of(&store);
    let (mut follower, first) =
        Follower::new(reader.volume(), options(), LagClock::default()).unwrap();
    let old = reader.volume().look(&options()).unwrap();
    disk.grow(AFTER).unwrap();
    disk.grow(BEFORE).unwrap();
    assert_eq!(blocks(&disk), AFTER);
    put(&disk, AFTER - 1, 2).unwrap();
    // Other machines that change `head` keep the size.
    client.volume().make_snapshot("large").unwrap();
    let state = follower.poll().unwrap().unwrap();
    assert_eq!(blocks(&state), AFTER);
    holds(&state, AFTER - 1, 2);
    for looked in [&first, &old] {
        assert_eq!(blocks(looked), BEFORE);
        holds(looked, 7, 1);
    }
    assert_eq!(client.volume().state().unwrap().blocks, AFTER);
    // After a crash, and after a clean shutdown, the successor has the size.
    client.dead.store(true, SeqCst);
    drop(disk);
    for _ in 0..2 {
        let next = Client::of(&store);
        let disk = next.volume().open(&options()).unwrap();
        assert_eq!(blocks(&disk), AFTER);
        holds(&disk, 7, 1);
        holds(&disk, AFTER - 1, 2);
        put(&disk, BEFORE, 3).unwrap();
        disk.release().unwrap();
    }
    let now = Client::of(&store);
    let snapshot = now.volume().look_at("small", &options()).unwrap();
    holds(&snapshot, 7, 1);
    holds(&snapshot, AFTER - 1, 0);
    // A clone has the size that the volume had when the clone was made.
    (now.volume())
        .clone_to("small", now.location("c"), None, Duration::from_secs(5))
        .unwrap();
    let parents = [now.location("v")];
    let clone = Found::with_parents(
        now.location("c"),
        &Access::default(),
        &parents,
        Duration::from_secs(5),
    );
    let clone = clone.unwrap().open(&options()).unwrap();
    put(&clone, AFTER - 1, 9).unwrap();
    holds(&clone, 7, 1);
    assert!(
        now.volume()
            .check(&mut |_, _| {})
            .unwrap()
            .findings
            .is_empty()
    );
}

/// The machine dies at each of its requests in turn, before or after the request takes effect. The successor can read every
/// acknowledged block beyond the old end. Returns the number of crashes that left the old size, and the new size.
fn deaths(fault: Option<DeviceFault>) -> (u64, u64) {
    let (mut small, mut large) = (0, 0);
    for after_effect in [false, true] {
        for die_at in 1..10 {
            let store = Arc::new(InMemory::new());
            let client = Client::of(&store);
            fresh(&client);
            let disk = client.volume().open(&OpenOptions {
                faults: (fault, Faults::default()),
                store_timeout: Some(Duration::ZERO),
                ..options()
            });
            let disk = disk.unwrap();
            put(&disk, 1, 1).unwrap();
            client.die_after_effect.store(after_effect, SeqCst);
            client
                .die_at
                .store(client.puts.load(SeqCst) + die_at, SeqCst);
            let mut acknowledged = 0;
            if disk.grow(AFTER).is_ok() {
                while acknowledged < 16
                    && put(&disk, BEFORE + acknowledged, 1 + acknowledged as u8).is_ok()
                {
                    acknowledged += 1;
                }
            }
            client.dead.store(true, SeqCst);
            drop(disk);
            let next = Client::of(&store);
            let disk = next.volume().open(&options()).unwrap();
            holds(&disk, 1, 1);
            if acknowledged > 0 {
                assert_eq!(
                    blocks(&disk),
                    AFTER,
                    "what was acknowledged is out of reach"
                );
            }
            match blocks(&disk) == AFTER {
                true => large += 1,
                false => small += 1,
            }
            for at in 0..acknowledged {
                holds(&disk, BEFORE + at, 1 + at as u8);
            }
            // After a restart, growing succeeds.
            disk.grow(AFTER).unwrap();
            put(&disk, AFTER - 1, 7).unwrap();
            holds(&disk, AFTER - 1, 7);
        }
    }
    (small, large)
}

#[test]
fn a_death_at_any_request_leaves_either_size_and_nothing_out_of_reach() {
    let (small, large) = deaths(None);
    assert!(small > 0 && large > 0, "{small} {large}");
}

#[test]
fn a_size_that_is_not_published_is_found() {
    let found = std::panic::catch_unwind(|| deaths(Some(DeviceFault::SizeUnpublished)));
    assert!(found.is_err());
    steadfast_testkit::caught("store.size_unpublished");
}

#[test]
fn a_fenced_writer_grows_nothing() {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    fresh(&client);
    let old = client.volume().open(&options()).unwrap();
    put(&old, 1, 1).unwrap();
    let next = Client::of(&store);
    let new = next.volume().open(&options()).unwrap();
    assert!(old.grow(AFTER).is_err());
    assert_eq!(blocks(&old), BEFORE);
    put(&new, 2, 2).unwrap();
    assert_eq!(next.volume().state().unwrap().blocks, BEFORE);
    assert!(names(&store).iter().any(|name| name == "v/head"));
}
