//! `flush=cache`: a flush is durable on the cache first. Random crashes and take-overs are in `lab/store-sim`; these tests
//! check each rule alone, and damaged or foreign caches.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::support;

use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, MemDevice, Snapshot};
use steadfast_store::{
    CacheOptions, CachedDevice, CreateOptions, LagClock, OpenError, VolumeId, create, create_with,
};
use support::{Client, Random, options};

const BLOCKS: u64 = 1 << 12;
const PATIENCE: Duration = Duration::from_secs(5);
const CACHE_BLOCKS: u64 = 2 + 512;
const LAG: Duration = Duration::from_secs(2);

fn volume(store: &Arc<InMemory>, prefix: &str) -> VolumeId {
    let contract = CreateOptions {
        flush_cache: true,
        ..CreateOptions::default()
    };
    let place = Client::of(store).location(prefix);
    create_with(place, BLOCKS, &contract, PATIENCE).unwrap()
}

/// A cache on a device, and its clock.
fn cache(device: &Arc<MemDevice>) -> (CacheOptions, Arc<AtomicU64>) {
    let now_ms = Arc::new(AtomicU64::new(0));
    let device: Arc<dyn BlockDevice> = device.clone();
    let options = CacheOptions {
        lag: LAG,
        clock: LagClock::moved(Arc::clone(&now_ms)),
        ..CacheOptions::new(device, "/dev/cache")
    };
    (options, now_ms)
}

fn open(client: &Arc<Client>, device: &Arc<MemDevice>) -> Result<CachedDevice, OpenError> {
    client.volume().open_cached(&options(), &cache(device).0)
}

fn block(number: u64) -> Vec<u8> {
    let word = number.to_le_bytes();
    word.iter().copied().cycle().take(BLOCK_SIZE).collect()
}

fn number(disk: &dyn BlockDevice, at: u64) -> u64 {
    let mut bytes = vec![0; BLOCK_SIZE];
    disk.read(BlockNo(at), &mut bytes).unwrap();
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    let number = u64::from_le_bytes(word);
    assert_eq!(bytes, block(number), "block {at} is a mixture");
    number
}

fn write(disk: &dyn BlockDevice, at: u64, value: u64) {
    disk.write(BlockNo(at), &[&block(value)]).unwrap();
}

#[test]
fn the_next_opening_sends_flushes_that_only_the_cache_has() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v");
    let device = Arc::new(MemDevice::new(CACHE_BLOCKS));
    let first = Client::of(&store);
    let disk = open(&first, &device).unwrap();
    write(&disk, 1, 1);
    disk.flush().unwrap();
    disk.wait_for_store().unwrap();
    assert_eq!(disk.lag().flushes, 0);
    // From now on the store is unreachable.
    first.dead.store(true, SeqCst);
    for value in 2..20 {
        write(&disk, value % 5, value);
        disk.flush().unwrap();
    }
    write(&disk, 9, 99);
    assert_eq!((number(&disk, 4), number(&disk, 9)), (19, 99));
    assert!(disk.lag().flushes == 18 && disk.lag().bytes == 18 * BLOCK_SIZE as u64);
    drop(disk);
    // Without the cache, the disk is an earlier flush.
    let look = Client::of(&store).volume().look(&options()).unwrap();
    assert_eq!((number(&look, 1), number(&look, 4)), (1, 0));
    let disk = open(&Client::of(&store), &device).unwrap();
    let all: Vec<u64> = (0..5).map(|at| number(&disk, at)).collect();
    assert_eq!(all, [15, 16, 17, 18, 19]);
    assert_eq!(number(&disk, 9), 0, "what was not flushed");
    disk.wait_for_store().unwrap();
    let look = Client::of(&store).volume().look(&options()).unwrap();
    assert_eq!((number(&look, 4), number(&look, 9)), (19, 0));
    disk.release().unwrap();
    drop(disk);
    // Released: any machine opens it, and no snapshot is kept.
    let state = Client::of(&store).volume().state().unwrap();
    assert!(state.released && state.roots.pins.is_empty());
}

#[test]
fn a_flush_waits_while_the_store_lacks_one_that_is_too_old() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v");
    let device = Arc::new(MemDevice::new(CACHE_BLOCKS));
    let client = Client::of(&store);
    let (cache, now_ms) = cache(&device);
    let disk = client.volume().open_cached(&options(), &cache).unwrap();
    client.dead.store(true, SeqCst);
    write(&disk, 1, 1);
    disk.flush().unwrap();
    now_ms.store(LAG.as_millis() as u64 - 1, SeqCst);
    write(&disk, 2, 2);
    disk.flush().unwrap();
    now_ms.store(LAG.as_millis() as u64, SeqCst);
    write(&disk, 3, 3);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| disk.flush());
        client.dead.store(false, SeqCst);
        late.join().unwrap().unwrap();
    });
    let look = Client::of(&store).volume().look(&options()).unwrap();
    assert_eq!(
        number(&look, 1),
        1,
        "the store has what is older than the lag"
    );
    // After a take-over by another machine, nothing is acknowledged once the lag has passed.
    let other = Client::of(&store).volume().open(&options()).unwrap();
    write(&disk, 4, 4);
    now_ms.fetch_add(2 * LAG.as_millis() as u64, SeqCst);
    let end = disk.close_epoch().and_then(|ticket| {
        now_ms.fetch_add(2 * LAG.as_millis() as u64, SeqCst);
        Snapshot::wait(&disk, ticket)
    });
    assert!(end.unwrap_err().to_string().contains("taken over"));
    assert!(disk.failed().is_some() && disk.flush().is_err());
    drop(other);
}

#[test]
fn a_log_wraps_around_and_a_full_log_waits_for_the_store() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v");
    let device = Arc::new(MemDevice::new(2 + 64));
    let client = Client::of(&store);
    let mut random = Random(3);
    let mut model = vec![0; 40];
    for life in 0..6 {
        let disk = open(&client, &device).unwrap();
        let found: Vec<u64> = (0..40).map(|at| number(&disk, at)).collect();
        assert_eq!(found, model, "life {life}");
        assert_eq!(Snapshot::epoch_blocks(&disk), 16);
        for round in 0..30 {
            for _ in 0..=random.below(14) {
                let at = random.below(40);
                model[at as usize] = 1 + round + life * 100;
                write(&disk, at, model[at as usize]);
            }
            disk.flush().unwrap();
        }
        for at in 0..16 {
            write(&disk, at, 7);
        }
        assert!(
            disk.write(BlockNo(20), &[&block(7)]).is_err(),
            "the epoch is full"
        );
        disk.rollback().unwrap();
        drop(disk);
    }
}

#[test]
fn caches_of_other_volumes_foreign_devices_and_other_contracts_are_refused() {
    let store = Arc::new(InMemory::new());
    let id = volume(&store, "v");
    volume(&store, "w");
    let plain = Client::of(&store).location("plain");
    create(plain, BLOCKS, PATIENCE).unwrap();
    let client = Client::of(&store);
    let at = |prefix: &str, device: &Arc<MemDevice>| {
        let found = client.find(prefix).unwrap();
        found
            .open_cached(&options(), &cache(device).0)
            .err()
            .map(|error| error.to_string())
    };
    let device = Arc::new(MemDevice::new(CACHE_BLOCKS));
    let why = at("plain", &device).unwrap();
    assert!(why.contains("--flush store"), "{why}");
    assert_eq!(at("v", &device), None);
    let why = at("w", &device).unwrap();
    assert!(
        why.contains(&format!("a cache of the volume {id}")),
        "{why}"
    );
    let foreign = Arc::new(MemDevice::new(CACHE_BLOCKS));
    foreign.write(BlockNo(16), &[&block(1)]).unwrap();
    let why = at("v", &foreign).unwrap();
    assert!(why.contains("/dev/cache holds other data"), "{why}");
    let why = at("v", &Arc::new(MemDevice::new(20))).unwrap();
    assert!(why.contains("20 blocks, 66 are needed"), "{why}");
    let mut longer = device.to_bytes();
    longer.extend([0; BLOCK_SIZE]);
    let why = at("v", &Arc::new(MemDevice::from_bytes(&longer))).unwrap();
    assert!(why.contains("515 blocks, and had 514"), "{why}");
    // There is nothing to salvage.
    let salvage = |device: &Arc<MemDevice>| {
        let to = client.location("clone");
        let found = client.find("v").unwrap();
        found
            .salvage(&cache(device).0, &to, None, false, &options())
            .unwrap_err()
    };
    assert!(matches!(salvage(&device), OpenError::NothingToSalvage(_)));
    let disk = open(&client, &device).unwrap();
    client.dead.store(true, SeqCst);
    write(&disk, 1, 1);
    disk.flush().unwrap();
    drop(disk);
    client.dead.store(false, SeqCst);
    assert!(matches!(salvage(&device), OpenError::NotDeposed { .. }));
}

/// Flips of single bits, zeros, and old bytes: the disk is the state of some flush, or the cache is refused.
#[test]
fn a_damaged_cache_is_refused_or_ends_before_the_damage() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v");
    let device = Arc::new(MemDevice::new(CACHE_BLOCKS));
    let client = Client::of(&store);
    let disk = open(&client, &device).unwrap();
    client.dead.store(true, SeqCst);
    for value in 1..=12 {
        write(&disk, 0, value);
        write(&disk, 1 + value % 3, value);
        disk.flush().unwrap();
    }
    drop(disk);
    client.dead.store(false, SeqCst);
    let image = device.to_bytes();
    let mut random = Random(11);
    let (mut refused, mut shorter) = (0, 0);
    for round in 0..150 {
        let mut bytes = image.clone();
        // Records of 3 blocks each follow the headers.
        let at = random.below(if round % 3 == 0 { 2 } else { 40 }) as usize * BLOCK_SIZE;
        match round % 2 {
            0 => bytes[at + random.below(300) as usize] ^= 1 << random.below(8),
            _ => bytes[at..at + BLOCK_SIZE].fill(0),
        }
        let damaged = Arc::new(MemDevice::from_bytes(&bytes));
        // Each trial has its own copy of the store.
        let before = Arc::new(store.fork());
        match open(&Client::of(&before), &damaged) {
            Ok(disk) => {
                let last = number(&disk, 0);
                for at in 1..4 {
                    let newest = (1..=last).rev().find(|value| 1 + value % 3 == at);
                    assert_eq!(number(&disk, at), newest.unwrap_or(0), "flush {last}");
                }
                shorter += u64::from(last < 12);
            }
            Err(error) => {
                // Without its newest header, the cache belongs to an older term.
                let of_cache = matches!(error, OpenError::Cache { .. } | OpenError::Deposed { .. });
                assert!(of_cache, "{error}");
                refused += 1;
            }
        }
    }
    assert!(
        refused > 20 && shorter > 0,
        "{refused} refused, {shorter} shorter"
    );
}
