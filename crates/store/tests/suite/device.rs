//! The disk over a misbehaving store: after any crash of the machine, the disk is the state of a flush that is not older than
//! the last acknowledged one; a fenced writer acknowledges nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::support;

use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, Snapshot, Ticket};
use steadfast_store::protocol::{self, Faults};
use steadfast_store::{
    Access, Compression, CreateOptions, DeviceFault, Found, OpenOptions, StoreDevice, create,
    create_with,
};
use support::{Client, Random, key_file, names, options};

const BLOCKS: u64 = 1 << 14;

fn fresh(client: &Arc<Client>) {
    create(client.location("v"), BLOCKS, Duration::from_secs(5)).unwrap();
}

/// The contents of a block that was written with this number; 0 is never written.
fn block(at: u64, number: u64) -> Vec<u8> {
    if number == 0 {
        return vec![0; BLOCK_SIZE];
    }
    let word = (at << 32 | number).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK_SIZE).collect()
}

fn number_of(at: u64, bytes: &[u8]) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    let word = u64::from_le_bytes(word);
    assert_eq!(word >> 32, at, "block {at} holds another block's bytes");
    let number = word & 0xffff_ffff;
    assert_eq!(bytes, block(at, number), "block {at} is a mixture");
    number
}

/// The whole disk, as numbers.
fn contents(disk: &StoreDevice) -> Vec<u64> {
    let mut all = Vec::with_capacity(BLOCKS as usize);
    let mut buf = vec![0; 256 * BLOCK_SIZE];
    for at in (0..BLOCKS).step_by(256) {
        disk.read(BlockNo(at), &mut buf).unwrap();
        for (i, bytes) in buf.chunks_exact(BLOCK_SIZE).enumerate() {
            all.push(number_of(at + i as u64, bytes));
        }
    }
    all
}

fn write(disk: &StoreDevice, model: &mut [u64], at: u64, count: u64, number: u64) -> bool {
    let bytes: Vec<u8> = (at..at + count).flat_map(|at| block(at, number)).collect();
    let done = disk.write(BlockNo(at), &[&bytes]).is_ok();
    if done {
        model[at as usize..(at + count) as usize].fill(number);
    }
    done
}

/// One run of a machine: random requests until it dies, or `steps` of them. `flushed` becomes the contents of the last
/// acknowledged flush. `live` returns further contents that may survive: those of flushes in flight.
struct Life<'a> {
    random: &'a mut Random,
    number: &'a mut u64,
    flushed: &'a mut Vec<u64>,
    steps: u64,
}

impl Life<'_> {
    fn live(&mut self, disk: &StoreDevice) -> Vec<Vec<u64>> {
        let mut model = self.flushed.clone();
        // Epochs that were closed and not waited for, and the contents that they leave.
        let mut closed: Vec<(Ticket, Vec<u64>)> = Vec::new();
        let left = |closed: Vec<(Ticket, Vec<u64>)>| closed.into_iter().map(|(_, disk)| disk);
        for _ in 0..self.steps {
            *self.number += 1;
            let at = self.random.below(BLOCKS - 4000);
            let alive = match self.random.below(20) {
                // A large epoch: several data objects.
                0 => write(
                    disk,
                    &mut model,
                    at,
                    2100 + self.random.below(1500),
                    *self.number,
                ),
                1..=8 => {
                    let count = 1 + self.random.below(40);
                    write(disk, &mut model, at, count, *self.number)
                }
                9 | 10 => {
                    let count = 1 + self.random.below(3000);
                    let done = disk.discard(BlockNo(at), count).is_ok();
                    if done {
                        model[at as usize..(at + count) as usize].fill(0);
                    }
                    done
                }
                11 => {
                    // Waits for closed epochs.
                    let done = disk.rollback().is_ok();
                    if done {
                        let last = left(std::mem::take(&mut closed)).next_back();
                        *self.flushed = last.unwrap_or_else(|| self.flushed.clone());
                    }
                    model.clone_from(self.flushed);
                    done
                }
                15 | 16 => match disk.close_epoch() {
                    Ok(ticket) => {
                        closed.push((ticket, model.clone()));
                        true
                    }
                    Err(_) => return left(closed).chain([model]).collect(),
                },
                17 if !closed.is_empty() => {
                    let which = self.random.below(closed.len() as u64) as usize;
                    let done = Snapshot::wait(disk, closed[which].0).is_ok();
                    if done {
                        // This epoch and all before it are durable.
                        let durable = closed.drain(..=which).next_back();
                        self.flushed.clone_from(&durable.unwrap().1);
                    }
                    done
                }
                12 => disk.checkpoint().is_ok(),
                13 => disk.collect(90).is_ok(),
                14 => {
                    // Reads return the written blocks, flushed or not.
                    let mut buf = vec![0; 64 * BLOCK_SIZE];
                    match disk.read(BlockNo(at), &mut buf) {
                        Ok(()) => {
                            for (i, bytes) in buf.chunks_exact(BLOCK_SIZE).enumerate() {
                                let at = at + i as u64;
                                assert_eq!(number_of(at, bytes), model[at as usize], "block {at}");
                            }
                            true
                        }
                        Err(_) => false,
                    }
                }
                _ => match disk.flush() {
                    Ok(()) => {
                        self.flushed.clone_from(&model);
                        closed.clear();
                        true
                    }
                    // Flushes in flight may survive.
                    Err(_) => return left(closed).chain([model]).collect(),
                },
            };
            if !alive {
                break;
            }
        }
        left(closed).collect()
    }
}

/// Planted faults of the disk and of the protocol.
type Fault = (Option<DeviceFault>, Faults);

/// The power fails at any PUT, which takes effect or not; the next machine finds the last flush, or the one in flight. Returns
/// the number of crashes, and the number of flushes in flight that survived.
fn deaths(seeds: std::ops::Range<u64>, faults: Fault) -> (u64, u64) {
    let (mut deaths, mut unclean) = (0, 0);
    for seed in seeds {
        let mut random = Random(seed);
        let store = Arc::new(InMemory::new());
        let first = Client::of(&store);
        // Every other volume is compressed and encrypted.
        let key = (seed % 2 == 1).then(|| key_file(seed as u8));
        let coded = CreateOptions {
            compression: key.as_ref().map(|_| Compression::Zstd),
            key: key.clone(),
            unit_blocks: None,
            flush_cache: false,
        };
        create_with(first.location("v"), BLOCKS, &coded, Duration::from_secs(5)).unwrap();
        let access = Access {
            key: key.clone(),
            ..Access::default()
        };
        let (mut flushed, mut number) = (vec![0; BLOCKS as usize], 0);
        let clock = Arc::clone(&first.clock);
        for life in 0..6 {
            let client = Arc::new(Client {
                store: Arc::clone(&store),
                clock: Arc::clone(&clock),
                ..Client::default()
            });
            client.die_at.store(1 + random.below(30), SeqCst);
            client.die_after_effect.store(random.below(2) == 0, SeqCst);
            if random.below(3) == 0 {
                client.lose_every.store(2 + random.below(4), SeqCst);
            }
            let dying = OpenOptions {
                store_timeout: Some(Duration::ZERO),
                patience: Duration::ZERO,
                faults,
                ..options()
            };
            let place = client.location("v");
            let Ok(found) = Found::new(place, &access, Duration::ZERO) else {
                continue;
            };
            let mut allowed = Vec::new();
            if let Ok(disk) = found.open(&dying) {
                assert_eq!(
                    contents(&disk),
                    flushed,
                    "seed {seed}, life {life}: reopened"
                );
                let mut life = Life {
                    random: &mut random,
                    number: &mut number,
                    flushed: &mut flushed,
                    steps: 60,
                };
                allowed = life.live(&disk);
            }
            deaths += u64::from(client.dead.load(SeqCst));
            allowed.push(flushed.clone());
            // Another machine, with a healthy connection to the store.
            let other = Client::of(&store);
            other.key.lock().unwrap().clone_from(&key);
            let disk = other.volume().open(&options()).unwrap();
            let found = contents(&disk);
            let which = allowed.iter().position(|allowed| *allowed == found);
            let which = which.unwrap_or_else(|| panic!("seed {seed}, life {life}: no flush"));
            unclean += u64::from(which + 1 < allowed.len());
            flushed = found;
            let look = other.volume().look(&options()).unwrap();
            assert_eq!(
                contents(&look),
                flushed,
                "seed {seed}, life {life}: looked at"
            );
            if random.below(2) == 0 {
                disk.release().unwrap();
            }
            drop(disk);
            let checked = other.volume().check(&mut |_, _| {}).unwrap();
            assert_eq!(checked.findings, [], "seed {seed}, life {life}");
        }
    }
    (deaths, unclean)
}

#[test]
fn after_a_death_at_any_request_the_disk_is_the_last_flush() {
    let (deaths, unclean) = deaths(0..5, Fault::default());
    assert!(deaths > 6 && unclean > 0, "{deaths} deaths, {unclean}");
}

/// A test that cannot fail proves nothing: with a planted fault, it fails.
#[test]
fn a_rule_that_is_left_out_is_found() {
    for fault in [
        DeviceFault::FlushUnacknowledged,
        DeviceFault::RollbackPartial,
        DeviceFault::CellLeftOut,
        DeviceFault::MoveFlushes,
    ] {
        let found = std::panic::catch_unwind(|| deaths(0..12, (Some(fault), Faults::default())));
        assert!(found.is_err(), "{fault:?} was not found");
        steadfast_testkit::caught_in("store", &fault);
    }
    let found =
        std::panic::catch_unwind(|| snapshots((Some(DeviceFault::PinsIgnored), Faults::default())));
    assert!(
        found.is_err(),
        "a snapshot that is not pinned was not found"
    );
    steadfast_testkit::caught("store.pins_ignored");
    let unconditional = Faults::only(protocol::Fault::CheckpointWithoutSwap);
    let found = std::panic::catch_unwind(|| deposed(0..1, (None, unconditional)));
    assert!(found.is_err(), "a checkpoint without a swap was not found");
    steadfast_testkit::caught("protocol.checkpoint_without_swap");
    let taken = Faults::only(protocol::Fault::ForeignTakenForOwn);
    let found = std::panic::catch_unwind(|| fencing((None, taken)));
    assert!(found.is_err(), "a fenced writer that goes on was not found");
    steadfast_testkit::caught("protocol.foreign_taken_for_own");
}

/// The old writer goes on after a take-over: it is fenced, and none of its writes is visible.
#[test]
fn a_fenced_writer_acknowledges_nothing() {
    fencing(Fault::default());
}

fn fencing(faults: Fault) {
    let options = || OpenOptions {
        faults,
        ..options()
    };
    let store = Arc::new(InMemory::new());
    let (one, two) = (Client::of(&store), Client::of(&store));
    fresh(&one);
    let old = one.volume().open(&options()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    assert!(write(&old, &mut model, 10, 5, 1));
    old.flush().unwrap();
    assert!(write(&old, &mut model.clone(), 11, 1, 2));
    let new = two.volume().open(&options()).unwrap();
    assert_eq!(contents(&new), model);
    let error = old.flush().unwrap_err().to_string();
    assert!(error.contains("taken over"), "{error}");
    // For good: later writes and flushes fail, too.
    assert!(old.flush().is_err() && old.checkpoint().is_err());
    assert!(!write(&old, &mut model.clone(), 12, 1, 3));
    assert!(write(&new, &mut model, 20, 1, 4));
    new.flush().unwrap();
    drop(old);
    drop(new);
    let third = Client::of(&store).volume().open(&options()).unwrap();
    assert_eq!(contents(&third), model);
}

/// A fenced machine does not know it yet: whatever it does first, including checkpoints and collection, its successor loses
/// nothing, and no new flush of the old machine is acknowledged.
fn deposed(seeds: std::ops::Range<u64>, faults: Fault) {
    for seed in seeds {
        let mut random = Random(seed);
        let store = Arc::new(InMemory::new());
        let (one, two) = (Client::of(&store), Client::of(&store));
        fresh(&one);
        let options = || OpenOptions {
            faults,
            ..options()
        };
        let old = one.volume().open(&options()).unwrap();
        let (mut flushed, mut number) = (vec![0; BLOCKS as usize], 0);
        let mut life = Life {
            random: &mut random,
            number: &mut number,
            flushed: &mut flushed,
            steps: 25,
        };
        let closed = life.live(&old).pop();
        // Waits for closed epochs.
        old.rollback().unwrap();
        flushed = closed.unwrap_or(flushed);
        assert!(write(&old, &mut flushed, 1, 40, 1 << 20), "seed {seed}");
        old.flush().unwrap();
        let new = two.volume().open(&options()).unwrap();
        assert_eq!(contents(&new), flushed, "seed {seed}");
        let mut act = |disk: &StoreDevice, fenced: bool| {
            for _ in 0..6 {
                match random.below(3) {
                    0 => drop(disk.checkpoint()),
                    1 => drop(disk.collect(95)),
                    _ if fenced => {
                        let at = random.below(BLOCKS - 10);
                        let written = disk.write(BlockNo(at), &[&block(at, 7)]).is_ok();
                        let acknowledged = written && disk.flush().is_ok();
                        assert!(!acknowledged, "seed {seed}: a fenced flush");
                    }
                    _ => {
                        number += 1;
                        let at = random.below(BLOCKS - 3000);
                        let count = 1 + random.below(2500);
                        assert!(write(disk, &mut flushed, at, count, number), "seed {seed}");
                        disk.flush().unwrap();
                    }
                }
            }
        };
        if seed % 2 == 0 {
            // Its first action that could affect the successor.
            assert!(
                old.checkpoint().is_err(),
                "seed {seed}: a fenced checkpoint"
            );
        }
        act(&old, true);
        act(&new, false);
        act(&old, true);
        act(&new, false);
        assert_eq!(contents(&new), flushed, "seed {seed}");
        assert!(new.failed().is_none(), "seed {seed}: {:?}", new.failed());
        drop((old, new));
        let checked = two.volume().check(&mut |_, _| {}).unwrap();
        assert_eq!(checked.findings, [], "seed {seed}");
        let third = Client::of(&store).volume().open(&options()).unwrap();
        assert_eq!(contents(&third), flushed, "seed {seed}");
    }
}

#[test]
fn a_machine_that_was_taken_over_harms_nothing() {
    deposed(0..6, Fault::default());
}

/// Answers are lost and requests fail: each request is repeated or recognised as done, and none takes effect twice.
#[test]
fn lost_answers_and_errors_end_by_themselves() {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    fresh(&client);
    client.lose_every.store(3, SeqCst);
    client.fail_every.store(4, SeqCst);
    let disk = client.volume().open(&options()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    for number in 1..15 {
        assert!(write(&disk, &mut model, number * 100, 30, number));
        disk.flush().unwrap();
    }
    disk.checkpoint().unwrap();
    assert_eq!(contents(&disk), model);
    drop(disk);
    let disk = Client::of(&store).volume().open(&options()).unwrap();
    assert_eq!(contents(&disk), model);
}

#[test]
fn rollback_forgets_what_was_not_flushed_and_its_objects_go() {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    fresh(&client);
    let disk = client.volume().open(&options()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    assert!(write(&disk, &mut model, 0, 3000, 1));
    disk.flush().unwrap();
    let mut lost = model.clone();
    assert!(write(&disk, &mut lost, 1000, 5000, 2));
    disk.discard(BlockNo(0), 500).unwrap();
    assert_eq!(disk.room(), disk.epoch_blocks() - 5001);
    disk.rollback().unwrap();
    assert_eq!(disk.room(), disk.epoch_blocks());
    assert_eq!(contents(&disk), model);
    assert!(write(&disk, &mut model, 9, 1, 3));
    disk.flush().unwrap();
    disk.checkpoint().unwrap();
    disk.collect(0).unwrap();
    disk.collect(0).unwrap();
    let left = names(&store)
        .iter()
        .filter(|name| name.contains("data/"))
        .count();
    assert_eq!(left, 2, "{:?}", names(&store));
    assert_eq!(contents(&disk), model);
}

/// Requests cost money: none when idle, one for a flush, a few for a mount.
#[test]
fn requests_are_as_few_as_stated() {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    fresh(&client);
    let disk = client.volume().open(&options()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    let puts = |client: &Client| client.puts.load(SeqCst);
    let before = puts(&client);
    for number in 1..=20 {
        assert!(write(&disk, &mut model, number * 7, 3, number));
        disk.flush().unwrap();
        // With nothing new there is nothing to send.
        disk.flush().unwrap();
    }
    assert_eq!(puts(&client) - before, 20);
    // 64 MiB: eight data objects and a slot.
    let (before, bytes) = (puts(&client), client.put_bytes.load(SeqCst));
    for part in 0..4 {
        assert!(write(&disk, &mut model, part * 4096, 4096, 50 + part));
    }
    disk.flush().unwrap();
    assert_eq!(puts(&client) - before, 9);
    let sent = client.put_bytes.load(SeqCst) - bytes;
    assert!(sent < (64 << 20) * 102 / 100, "{sent} bytes for 64 MiB");
    disk.release().unwrap();
    drop(disk);
    let client = Client::of(&store);
    let disk = client.volume().open(&options()).unwrap();
    let gets = client.gets.load(SeqCst);
    assert!(gets <= 6, "{gets} GETs for a clean mount");
    assert_eq!(puts(&client), 3, "PUTs for a clean mount");
    assert_eq!(contents(&disk), model);
    // Read in order, cells come many at a time: 64 MiB in fewer than 30 requests.
    let gets = client.gets.load(SeqCst) - gets;
    assert!(gets < 30, "{gets} GETs for all of the disk");
}

/// Repeated overwriting does not fill the store, snapshots keep their contents, and clones stay usable.
#[test]
fn collection_frees_what_is_dead_and_snapshots_keep_theirs() {
    snapshots(Fault::default());
}

fn snapshots(faults: Fault) {
    let options = || OpenOptions {
        faults,
        ..options()
    };
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    fresh(&client);
    let disk = client.volume().open(&options()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    let mut random = Random(5);
    let mut round = |model: &mut Vec<u64>, disk: &StoreDevice, number: u64| {
        for _ in 0..40 {
            let at = random.below(4000);
            assert!(write(disk, model, at, 1 + random.below(20), number));
        }
        disk.flush().unwrap();
    };
    for number in 1..60 {
        round(&mut model, &disk, number);
    }
    disk.checkpoint().unwrap();
    let volume = client.volume();
    volume.make_snapshot("one").unwrap();
    assert!(volume.make_snapshot("one").is_err());
    let kept = model.clone();
    let place = client.location("clone");
    volume
        .clone_to("one", place.clone(), None, Duration::from_secs(5))
        .unwrap();
    for number in 60..160 {
        round(&mut model, &disk, number);
        if number % 20 == 0 {
            disk.collect(70).unwrap();
        }
    }
    for _ in 0..3 {
        disk.collect(70).unwrap();
    }
    assert!(disk.counters().moved_blocks > 0 && disk.counters().deletes > 50);
    assert_eq!(contents(&disk), model);
    assert_eq!(contents(&volume.look_at("one", &options()).unwrap()), kept);
    let usage = volume.usage().unwrap();
    assert!(
        usage.live_bytes * 100 >= 60 * usage.held_bytes.min(usage.live_bytes * 2),
        "{usage:?}"
    );
    assert_eq!(volume.check(&mut |_, _| {}).unwrap().findings, []);
    // The clone begins with the snapshot, and writes to it do not change the original.
    drop(disk);
    let clone = || Client::of(&store).location("clone");
    let open = |place| {
        // Its parent is found under the URL of this test's store.
        {
            let parents = [client.location("v")];
            Found::with_parents(place, &Access::default(), &parents, Duration::from_secs(5))
        }
        .unwrap()
    };
    let copy = open(clone()).open(&options()).unwrap();
    let mut copied = kept.clone();
    assert_eq!(contents(&copy), copied);
    assert!(write(&copy, &mut copied, 5, 100, 1000));
    copy.flush().unwrap();
    copy.release().unwrap();
    drop(copy);
    let copy = open(clone()).open(&options()).unwrap();
    assert_eq!(contents(&copy), copied);
    assert_eq!(open(clone()).check(&mut |_, _| {}).unwrap().findings, []);
    // Without snapshot and clone, the objects that only they needed are deleted.
    let objects = names(&store).len();
    volume.forget_clone("memory://clone").unwrap();
    volume.delete_snapshot("one").unwrap();
    let disk = Client {
        clock: Arc::clone(&client.clock),
        ..Client::default()
    };
    drop(disk);
    let disk = client.volume().open(&options()).unwrap();
    for number in 200..210 {
        round(&mut model, &disk, number);
        disk.checkpoint().unwrap();
    }
    assert!(names(&store).len() < objects, "{objects}");
    assert_eq!(contents(&disk), model);
    assert_eq!(volume.check(&mut |_, _| {}).unwrap().findings, []);
}

/// Story: the root of a checkpoint listed what it retired, then a snapshot was made, then the checkpoint was published without
/// retiring what the snapshot needs. The writer died. Its successor believed the root's list, and the snapshot lost its
/// objects.
#[test]
fn a_snapshot_made_while_a_writer_runs_outlives_the_writer() {
    let store = Arc::new(InMemory::new());
    let one = Client::of(&store);
    fresh(&one);
    let old = one.volume().open(&options()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    assert!(write(&old, &mut model, 0, 3000, 1));
    old.flush().unwrap();
    old.checkpoint().unwrap();
    let kept = model.clone();
    Client::of(&store).volume().make_snapshot("kept").unwrap();
    // The writer has not seen the snapshot, and retires the objects that it overwrites.
    assert!(write(&old, &mut model, 0, 3000, 2));
    old.flush().unwrap();
    old.checkpoint().unwrap();
    drop(old);
    for number in 3..6 {
        let next = Client::of(&store).volume().open(&options()).unwrap();
        assert_eq!(contents(&next), model);
        assert!(write(&next, &mut model, 0, 3000, number));
        next.flush().unwrap();
        next.checkpoint().unwrap();
        next.collect(95).unwrap();
    }
    let look = Client::of(&store).volume();
    let look = look.look_at("kept", &options()).unwrap();
    assert!(contents(&look) == kept);
    let checked = Client::of(&store).volume().check(&mut |_, _| {}).unwrap();
    assert_eq!(checked.findings, []);
}
