//! Leases: a writer may answer clients while its lease holds, its successor after that. And notes, which are durable exactly if
//! their epoch is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::support;

use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, Snapshot};
use steadfast_store::protocol::{Fault, Faults};
use steadfast_store::{
    Compression, CreateOptions, DeviceFault, LagClock, OpenOptions, ServingLease, StoreDevice,
    create, create_with,
};
use support::{Client, Hook, key_file, options};

const BLOCKS: u64 = 1 << 12;
const START: u64 = 1_000_000;
const LEASE: u64 = 5_000;
/// A successor waits a twentieth longer, and one more millisecond for the resolution of the clock.
const WAITED: u64 = LEASE + LEASE / 20 + 1;

struct World {
    store: Arc<InMemory>,
    now: Arc<AtomicU64>,
}

impl World {
    fn new() -> World {
        let store = Arc::new(InMemory::new());
        let client = Client::of(&store);
        create(client.location("v"), BLOCKS, Duration::from_secs(5)).unwrap();
        World {
            store,
            now: Arc::new(AtomicU64::new(START)),
        }
    }

    fn serving(&self) -> OpenOptions {
        OpenOptions {
            lease: Some(Duration::from_millis(LEASE)),
            clock: LagClock::moved(Arc::clone(&self.now)),
            ..options()
        }
    }

    fn open(&self, options: &OpenOptions) -> StoreDevice {
        Client::of(&self.store).volume().open(options).unwrap()
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for the first proof.
fn lease_of(disk: &StoreDevice) -> ServingLease {
    let lease = disk.lease().unwrap();
    until("the lease", || !lease.left().is_zero());
    lease
}

/// Whether a second machine could answer while the first one still did, and how long it waited.
fn take_over(faults: (Option<DeviceFault>, Faults)) -> (bool, u64) {
    let world = World::new();
    let disk = world.open(&OpenOptions {
        faults,
        ..world.serving()
    });
    let lease = lease_of(&disk);
    let found = Client::of(&world.store).volume();
    let options = OpenOptions {
        faults,
        ..world.serving()
    };
    let opening = std::thread::spawn(move || found.open(&options).unwrap());
    let sealed = || {
        let head = Client::of(&world.store).volume().state().unwrap();
        head.term.0 == 3
    };
    until("the claim", sealed);
    let (mut both, mut waited) = (false, 0);
    for step in 0..=WAITED / 50 {
        let at = match step {
            0 => START,
            step => (START + step * 50).min(START + WAITED),
        };
        world.now.store(at, SeqCst);
        // Time for the waiting machine to check its clock.
        std::thread::sleep(Duration::from_millis(if step % 10 == 0 { 60 } else { 2 }));
        let opened = opening.is_finished();
        let answers = lease.left() > Duration::ZERO || faults.0 == Some(DeviceFault::LeaseUnheeded);
        both |= opened && answers && lease.may_answer();
        if !opened {
            waited = at - START;
        }
    }
    world.now.store(START + WAITED, SeqCst);
    let second = opening.join().unwrap();
    assert!(second.lease().unwrap().may_answer());
    both |= lease.may_answer();
    (both, waited)
}

#[test]
fn a_successor_answers_only_after_the_lease_has_run_out_by_its_own_clock() {
    let (both, waited) = take_over((None, Faults::default()));
    assert!(!both, "two machines answered");
    assert!(waited >= LEASE, "it waited for {waited} ms");
}

#[test]
fn a_successor_that_does_not_wait_is_found() {
    let (both, waited) = take_over((Some(DeviceFault::LeaseNotAwaited), Faults::default()));
    assert!(both && waited < LEASE, "{both}, {waited} ms");
    steadfast_testkit::caught("store.lease_not_awaited");
}

#[test]
fn a_machine_that_answers_without_a_lease_is_found() {
    let (both, _) = take_over((Some(DeviceFault::LeaseUnheeded), Faults::default()));
    assert!(both);
    steadfast_testkit::caught("store.lease_unheeded");
}

/// The answer takes three seconds, which count as part of the lease.
#[test]
fn a_lease_counts_from_the_start_of_the_request_that_proves_it() {
    for (faults, left) in [
        (Faults::default(), LEASE - 3_000),
        (Faults::only(Fault::LeaseFromAnswer), LEASE),
    ] {
        let world = World::new();
        let client = Client::of(&world.store);
        let options = OpenOptions {
            faults: (None, faults),
            ..world.serving()
        };
        let disk = client.volume().open(&options).unwrap();
        let lease = lease_of(&disk);
        let hook = {
            let (now, client) = (Arc::clone(&world.now), Arc::downgrade(&client));
            Hook(Box::new(move || {
                now.store(START + LEASE / 2 + 3_000, SeqCst);
                // Nothing renews it afterwards.
                if let Some(client) = client.upgrade() {
                    client.dead.store(true, SeqCst);
                }
            }))
        };
        *client.on_get.lock().unwrap() = Some(hook);
        world.now.store(START + LEASE / 2, SeqCst);
        let renewed = || lease.left() == Duration::from_millis(left);
        until("half of it is gone, and it is renewed", renewed);
    }
    steadfast_testkit::caught("protocol.lease_from_answer");
}

/// Flushes renew the lease; without flushes, reads of `head` do: at most two in the time of a lease.
#[test]
fn an_idle_lease_costs_a_request_in_half_its_time() {
    let world = World::new();
    let client = Client::of(&world.store);
    let disk = client.volume().open(&world.serving()).unwrap();
    let lease = lease_of(&disk);
    let before = (client.gets.load(Relaxed), client.puts.load(Relaxed));
    for second in 1..=100 {
        world.now.store(START + second * 1000, SeqCst);
        until("it holds", || {
            lease.left() > Duration::from_millis(LEASE / 2 - 1000)
        });
    }
    let gets = client.gets.load(Relaxed) - before.0;
    assert!((20..=40).contains(&gets), "{gets} GETs in 100 s");
    assert_eq!(client.puts.load(Relaxed), before.1);
    // Flushes also prove the ownership.
    let before = client.gets.load(Relaxed);
    for second in 101..=200 {
        disk.write(BlockNo(second), &[&[1; BLOCK_SIZE]]).unwrap();
        disk.flush().unwrap();
        world.now.store(START + second * 1000, SeqCst);
    }
    let gets = client.gets.load(Relaxed) - before;
    assert!(gets <= 10, "{gets} GETs beside flushes");
}

#[test]
fn a_planned_hand_over_waits_for_nothing_and_leaves_no_answer_behind() {
    let world = World::new();
    let disk = world.open(&world.serving());
    let lease = lease_of(&disk);
    disk.release().unwrap();
    assert!(!lease.may_answer());
    let next = world.open(&OpenOptions {
        take_over: false,
        ..world.serving()
    });
    assert_eq!(world.now.load(SeqCst), START);
    assert!(next.lease().unwrap().may_answer());
    assert_eq!(next.term().map(|term| term.0), Some(3));
}

/// A machine that claimed the volume and died before it opened a term has answered no client: the lease of the writer before
/// still counts.
#[test]
fn a_claim_alone_does_not_end_the_lease_of_the_open_term() {
    let world = World::new();
    let disk = world.open(&world.serving());
    let lease = lease_of(&disk);
    let dying = Client::of(&world.store);
    // Its claim is the first PUT, its seal the second.
    dying.die_at.store(2, SeqCst);
    let short = OpenOptions {
        patience: Duration::from_millis(50),
        lease: None,
        ..options()
    };
    assert!(dying.volume().open(&short).is_err());
    let found = Client::of(&world.store).volume();
    let plain = OpenOptions {
        lease: None,
        ..world.serving()
    };
    let opening = std::thread::spawn(move || found.open(&plain).unwrap());
    world.now.store(START + LEASE - 1, SeqCst);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!opening.is_finished());
    until("it is told, or its time is over", || {
        lease.left() <= Duration::from_millis(1)
    });
    world.now.store(START + 3 * LEASE, SeqCst);
    opening.join().unwrap();
    assert!(!lease.may_answer());
}

#[test]
fn a_fenced_machine_notices_it_and_a_snapshot_fences_nobody() {
    let world = World::new();
    let disk = world.open(&world.serving());
    let lease = lease_of(&disk);
    disk.write(BlockNo(0), &[&[1; BLOCK_SIZE]]).unwrap();
    disk.flush().unwrap();
    disk.checkpoint().unwrap();
    let other = Client::of(&world.store).volume();
    other.make_snapshot("monday").unwrap();
    world.now.store(START + LEASE - 1, SeqCst);
    until("renewed", || {
        lease.left() > Duration::from_millis(LEASE / 2)
    });
    assert!(lease.wait_for_end(Duration::ZERO).is_none());
    // The successor keeps the lease in `head` until its own term is open.
    let opening = {
        let options = world.serving();
        std::thread::spawn(move || other.open(&options).unwrap())
    };
    until("the claim", || {
        let state = Client::of(&world.store).volume().state().unwrap();
        state.term.0 == 3
    });
    world.now.fetch_add(LEASE, SeqCst);
    assert!(lease.wait_for_end(Duration::from_secs(30)).is_some());
    assert!(!lease.may_answer());
    world.now.fetch_add(2 * LEASE, SeqCst);
    opening.join().unwrap();
}

fn write(disk: &StoreDevice, at: u64, note: &[u8]) {
    disk.write(BlockNo(at), &[&[note[0]; BLOCK_SIZE]]).unwrap();
    disk.note(note);
}

fn has(disk: &StoreDevice, at: u64) -> u8 {
    let mut block = vec![0; BLOCK_SIZE];
    disk.read(BlockNo(at), &mut block).unwrap();
    block[0]
}

#[test]
fn notes_are_those_of_the_epochs_that_are_there() {
    for coded in [false, true] {
        let store = Arc::new(InMemory::new());
        let key = key_file(7);
        let client = Client::with_key(&store, key.clone());
        let made = CreateOptions {
            compression: coded.then_some(Compression::Zstd),
            key: Some(key),
            ..CreateOptions::default()
        };
        create_with(client.location("v"), BLOCKS, &made, Duration::from_secs(5)).unwrap();
        let open = || client.volume().open(&options()).unwrap();
        let mut disk = open();
        let mut expected: Vec<Vec<u8>> = Vec::new();
        for number in 1..=40_u8 {
            write(&disk, u64::from(number), &[number, 1]);
            expected.push(vec![number, 1]);
            disk.flush().unwrap();
            assert_eq!(disk.notes(), expected);
            match number % 8 {
                1 => disk.checkpoint().unwrap(),
                3 => {
                    // Unflushed writes are gone, with their notes.
                    write(&disk, 999, &[77]);
                    disk = open();
                }
                5 => {
                    write(&disk, 999, &[78]);
                    disk.rollback().unwrap();
                }
                6 => {
                    disk.release().unwrap();
                    disk = open();
                }
                7 => drop(disk.collect(90).unwrap()),
                _ => {}
            }
            assert_eq!((disk.notes(), has(&disk, 999)), (expected.clone(), 0));
        }
        // A note alone makes an epoch.
        disk.note(b"alone");
        disk.flush().unwrap();
        expected.push(b"alone".to_vec());
        assert_eq!(open().notes(), expected);
        disk = open();
        for number in 0..5000_u32 {
            disk.note(&number.to_le_bytes());
        }
        disk.flush().unwrap();
        disk.checkpoint().unwrap();
        let kept = open().notes();
        assert_eq!(kept.len(), 4096);
        assert_eq!(kept[0], (5000_u32 - 4096).to_le_bytes());
        let checked = client.volume().check(&mut |_, _| {}).unwrap();
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
    }
}

/// A clone is another volume: it does not inherit the notes of calls to its parent.
#[test]
fn a_clone_has_none_of_its_parents_notes() {
    let world = World::new();
    let client = Client::of(&world.store);
    let disk = client.volume().open(&options()).unwrap();
    write(&disk, 3, &[9]);
    disk.flush().unwrap();
    disk.release().unwrap();
    client.volume().make_snapshot("s").unwrap();
    let patience = Duration::from_secs(5);
    (client
        .volume()
        .clone_to("s", client.location("c"), None, patience))
    .unwrap();
    let found = steadfast_store::Found::with_parents(
        client.location("c"),
        &steadfast_store::Access::default(),
        &[client.location("v")],
        patience,
    );
    let found = found.unwrap();
    let cloned = found.open(&options()).unwrap();
    assert_eq!((cloned.notes().len(), has(&cloned, 3)), (0, 9));
    write(&cloned, 4, &[8]);
    cloned.flush().unwrap();
    cloned.checkpoint().unwrap();
    drop(cloned);
    assert_eq!(found.open(&options()).unwrap().notes(), [[8]]);
}

/// A machine dies in an epoch; its successor finds the block and its note, or neither.
fn found_after_a_cut(fault: Option<DeviceFault>, puts: u64, effect: bool) -> Option<(u8, bool)> {
    let world = World::new();
    let client = Client::of(&world.store);
    let faulty = OpenOptions {
        faults: (fault, Faults::default()),
        store_timeout: Some(Duration::from_millis(20)),
        ..options()
    };
    let disk = client.volume().open(&faulty).unwrap();
    client.die_at.store(client.puts.load(SeqCst) + puts, SeqCst);
    client.die_after_effect.store(effect, SeqCst);
    write(&disk, 5, &[6]);
    let acknowledged = disk.flush().is_ok();
    drop(disk);
    let next = Client::of(&world.store).volume().open(&options()).unwrap();
    let found = (has(&next, 5), next.notes() == [[6]]);
    assert!(
        !acknowledged || found.0 == 6,
        "an acknowledged flush is lost"
    );
    ((found.0 == 6) != found.1).then_some(found)
}

#[test]
fn a_note_lasts_exactly_if_its_blocks_do() {
    let cuts = [(1, false), (1, true), (2, false), (2, true), (9, false)];
    for (puts, effect) in cuts {
        assert_eq!(found_after_a_cut(None, puts, effect), None);
    }
    let wrong = |fault| {
        let found = |(puts, effect)| found_after_a_cut(Some(fault), puts, effect);
        cuts.into_iter().filter_map(found).collect::<Vec<_>>()
    };
    assert!(wrong(DeviceFault::NoteLost).contains(&(6, false)));
    steadfast_testkit::caught("store.note_lost");
    assert!(wrong(DeviceFault::NoteEarly).contains(&(0, true)));
    steadfast_testkit::caught("store.note_early");
}
