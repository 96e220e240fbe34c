//! `flush=cache` with the disk as it ships, over the simulated store and a simulated cache device: machines lose their power
//! while the cache takes a flush, lose their cache, and take the volume from one another. `model::flushes` is the judge. A seed
//! decides the store's trouble and the machines' actions; threads have their own timing, so a run does not repeat exactly, and
//! the conditions hold for every run.

#![allow(clippy::panic, reason = "a test that fails says why")]

use crate::power_disk;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use power_disk::PowerDisk;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, Snapshot, Ticket};
use steadfast_model::flushes::{Contract, Flushes, Loss};
use steadfast_store::protocol::{Fault, Faults};
use steadfast_store::{
    Access, CacheOptions, CachedDevice, CreateOptions, DeviceFault, Found, KeyFile, LagClock,
    Location, OpenError, OpenOptions, create_with,
};
use steadfast_store_sim::{Clock, Pace, Random, SimStore, Trouble};

const BLOCKS: u64 = 1 << 12;
/// Blocks that the test writes.
const USED: u64 = 24;
const CACHE_BLOCKS: u64 = 2 + 256;
const LAG_MS: u64 = 2000;
/// Blocks that the store may lack.
const LAG_BLOCKS: u64 = 48;
const PATIENCE: Duration = Duration::from_secs(60);

type Disk = Vec<u64>;
type Planted = (Option<DeviceFault>, Faults);

fn empty_cache() -> Vec<u8> {
    vec![0; CACHE_BLOCKS as usize * BLOCK_SIZE]
}

fn block(number: u64) -> Vec<u8> {
    let word = number.to_le_bytes();
    word.iter().copied().cycle().take(BLOCK_SIZE).collect()
}

fn read(disk: &dyn BlockDevice) -> Option<Disk> {
    let mut bytes = vec![0; USED as usize * BLOCK_SIZE];
    disk.read(BlockNo(0), &mut bytes).ok()?;
    // A block that is a mixture has a number that no flush has.
    let number = |bytes: &[u8]| {
        let (first, _) = bytes.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let number = u64::from_le_bytes(*first);
        match bytes == block(number) {
            true => number,
            false => u64::MAX,
        }
    };
    Some(bytes.chunks_exact(BLOCK_SIZE).map(number).collect())
}

struct World {
    seed: u64,
    random: Random,
    store: SimStore,
    trouble: Trouble,
    planted: Planted,
    key: Option<KeyFile>,
    now_ms: Arc<AtomicU64>,
    history: Flushes<Disk>,
    next: u64,
    /// Content of the cache device while no machine runs.
    cache: Vec<u8>,
    flushes: usize,
    salvaged: usize,
}

/// End of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The process ends; the cache has all that it was sent.
    Killed,
    /// The power goes: any unflushed writes survive.
    Power,
    /// The cache device fails a little earlier, then the power goes.
    CacheFails,
    Released,
}

impl World {
    fn new(seed: u64, trouble: Trouble, planted: Planted, plain: bool) -> World {
        let clock = Clock::new();
        let store = SimStore::new(clock.clone(), seed, Trouble::default());
        // It runs as long as the process does.
        std::mem::forget(Pace::start(clock, 500));
        let random = Random::new(seed);
        let key = (!plain && seed.is_multiple_of(3))
            .then(|| KeyFile::new(&[seed as u8; 32]).ok())
            .flatten();
        let contract = Contract::Cache {
            lag_ms: LAG_MS,
            lag_weight: LAG_BLOCKS,
        };
        let world = World {
            seed,
            random,
            store,
            trouble,
            planted,
            key,
            now_ms: Arc::new(AtomicU64::new(1000)),
            history: Flushes::new(contract, vec![0; USED as usize]),
            next: 1,
            cache: empty_cache(),
            flushes: 0,
            salvaged: 0,
        };
        let options = CreateOptions {
            key: world.key.clone(),
            flush_cache: true,
            ..CreateOptions::default()
        };
        if let Err(error) = create_with(world.place("volume"), BLOCKS, &options, PATIENCE) {
            panic!("seed {seed}: {error}");
        }
        world
    }

    fn place(&self, prefix: &str) -> Location {
        let url = format!("memory://{prefix}");
        Location::within(Arc::new(self.store.clone()), prefix, &url)
    }

    fn find(&self) -> Option<Found> {
        let access = Access {
            key: self.key.clone(),
            ..Access::default()
        };
        Found::new(self.place("volume"), &access, PATIENCE).ok()
    }

    fn options(&self) -> OpenOptions {
        OpenOptions {
            access: Access {
                key: self.key.clone(),
                ..Access::default()
            },
            take_over: true,
            patience: PATIENCE,
            keep_deleted: Duration::ZERO,
            faults: self.planted,
            ..OpenOptions::default()
        }
    }

    fn cache_options(&self, device: &Arc<PowerDisk>) -> CacheOptions {
        let device: Arc<dyn BlockDevice> = device.clone();
        CacheOptions {
            lag: Duration::from_millis(LAG_MS),
            lag_bytes: LAG_BLOCKS * BLOCK_SIZE as u64,
            clock: LagClock::moved(Arc::clone(&self.now_ms)),
            ..CacheOptions::new(device, "cache")
        }
    }

    fn now(&self) -> u64 {
        self.now_ms.load(SeqCst)
    }

    /// The disk that a machine opens with is one that the contract allows.
    fn opened(&mut self, disk: &dyn BlockDevice, loss: Loss) -> Result<Option<Disk>, String> {
        let Some(found) = read(disk) else {
            return Ok(None);
        };
        match self.history.found(&found, loss) {
            Ok(_) => Ok(Some(found)),
            Err(wrong) => Err(format!("seed {}: {loss:?}: {wrong}: {found:?}", self.seed)),
        }
    }

    /// Writes a few blocks, the content of a flush. Returns the number of its blocks and holes.
    fn write(&mut self, disk: &dyn BlockDevice, model: &mut Disk) -> Option<u64> {
        let mut blocks = BTreeSet::new();
        for _ in 0..self.random.between(1, 8) {
            let at = self.random.between(0, USED - 1);
            blocks.insert(at);
            let number = self.next;
            self.next += 1;
            disk.write(BlockNo(at), &[&block(number)]).ok()?;
            model[at as usize] = number;
        }
        if self.random.permille(150) {
            let at = self.random.between(0, USED - 3);
            disk.discard(BlockNo(at), 3).ok()?;
            model[at as usize..at as usize + 3].fill(0);
            blocks.retain(|block| !(at..at + 3).contains(block));
            return Some(blocks.len() as u64 + 1);
        }
        Some(blocks.len() as u64)
    }

    /// A machine with the cache. Returns whether it opened the volume.
    fn live(&mut self, end: End, loss: Loss) -> Result<bool, String> {
        let device = Arc::new(PowerDisk::new(self.cache.clone()));
        let cache = self.cache_options(&device);
        self.store.set_trouble(self.trouble);
        let opened = self
            .find()
            .map(|found| found.open_cached(&self.options(), &cache));
        let disk = match opened {
            Some(Ok(disk)) => disk,
            Some(Err(error @ OpenError::Deposed { .. })) => {
                return Err(format!("seed {}: {error}", self.seed));
            }
            _ => {
                // The store was in the way. The cache stays as it is, with the writes of opening.
                self.cache = self.left(&device, End::Power);
                return Ok(false);
            }
        };
        if let Some(mut model) = self.opened(&disk, loss)? {
            if end == End::CacheFails {
                device.fail_after(self.random.between(1, 60));
            }
            let mut closed = Vec::new();
            for _ in 0..self.random.between(4, 16) {
                if self.step(&disk, &mut model, &mut closed).is_none() {
                    break;
                }
            }
        }
        if end == End::Released && disk.release().is_ok() {
            let all = self.history.oldest(Loss::Power);
            self.history.stored(all);
        }
        drop(disk);
        self.cache = self.left(&device, end);
        Ok(true)
    }

    fn step(
        &mut self,
        disk: &CachedDevice,
        model: &mut Disk,
        closed: &mut Vec<(Ticket, usize)>,
    ) -> Option<()> {
        self.now_ms.fetch_add(self.random.between(0, 500), SeqCst);
        if self.random.permille(100) {
            let last = self.history.oldest(Loss::Power);
            disk.wait_for_store().ok()?;
            self.history.stored(last);
        }
        let weight = self.write(disk, model)?;
        let flush = self.history.begin(model.clone(), self.now(), weight);
        closed.push((disk.close_epoch().ok()?, flush));
        while self.random.permille(700) && !closed.is_empty() {
            let (ticket, flush) = closed.remove(0);
            Snapshot::wait(disk, ticket).ok()?;
            self.history.acknowledged(flush, self.now());
            self.flushes += 1;
        }
        Some(())
    }

    /// Content of the cache device after a machine's end.
    fn left(&mut self, device: &PowerDisk, end: End) -> Vec<u8> {
        match end {
            End::Power | End::CacheFails => device.cut(&mut self.random),
            End::Killed | End::Released => device.bytes(),
        }
    }

    /// Another machine takes over without the cache. The cache's flushes, if any, are refused afterwards, and saved in a clone.
    fn take_over(&mut self) -> Result<(), String> {
        self.store.set_trouble(Trouble::default());
        let before = self.history.clone();
        let Some(found) = self.find() else {
            return Err(format!("seed {}: the volume is not found", self.seed));
        };
        let disk = found.open(&self.options());
        let disk = disk.map_err(|error| format!("seed {}: taking over: {error}", self.seed))?;
        let Some(mut model) = self.opened(&disk, Loss::Cache)? else {
            return Err(format!("seed {}: the disk cannot be read", self.seed));
        };
        for _ in 0..self.random.between(1, 4) {
            let (Some(weight), now) = (self.write(&disk, &mut model), self.now()) else {
                break;
            };
            let flush = self.history.begin(model.clone(), now, weight);
            if disk.flush().is_err() {
                return Err(format!("seed {}: a calm store fails", self.seed));
            }
            self.history.acknowledged(flush, now);
            self.history.stored(flush);
        }
        if self.random.permille(500) && disk.release().is_err() {
            return Err(format!("seed {}: a calm store fails", self.seed));
        }
        drop(disk);
        self.cache_is_refused(&found, before)
    }

    fn cache_is_refused(&mut self, found: &Found, mut before: Flushes<Disk>) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| format!("seed {}: {error}", self.seed);
        let device = Arc::new(PowerDisk::new(self.cache.clone()));
        let mut cache = self.cache_options(&device);
        match found.open_cached(&self.options(), &cache) {
            Err(OpenError::Deposed { .. }) => {}
            Ok(disk) => {
                // Nothing was left to be sent.
                let seen = read(&disk);
                let expected = self.history.oldest(Loss::Power);
                let seen = seen.ok_or_else(|| failed(&"the disk cannot be read"))?;
                let now = self.history.found(&seen, Loss::Power);
                let now = now.map_err(|wrong| failed(&format!("after a take-over: {wrong}")))?;
                assert_eq!(now, expected);
                drop(disk);
                self.cache = device.bytes();
                return Ok(());
            }
            Err(error) => return Err(failed(&format!("with the old cache: {error}"))),
        }
        let to = format!("clone{}", self.salvaged);
        let place = self.place(&to);
        let key = self.key.clone();
        let saved = found.salvage(&cache, &place, key.as_ref(), false, &self.options());
        saved.map_err(|error| failed(&format!("salvage: {error}")))?;
        self.salvaged += 1;
        let access = self.options().access;
        let clone = Found::with_parents(place, &access, &[self.place("volume")], PATIENCE);
        let clone = clone.and_then(|clone| clone.look(&self.options()));
        let clone = clone.map_err(|error| failed(&format!("looking at the clone: {error}")))?;
        let seen = read(&clone).ok_or_else(|| failed(&"the clone cannot be read"))?;
        let is = before.found(&seen, Loss::Power);
        is.map_err(|wrong| failed(&format!("salvaged: {wrong}")))?;
        // The cache is empty now.
        cache.discard = false;
        let opened = found.open_cached(&self.options(), &cache);
        drop(opened.map_err(|error| failed(&format!("with the empty cache: {error}")))?);
        self.cache = device.bytes();
        Ok(())
    }
}

/// Lives of machines; returns the fault, if any, and the numbers of acknowledged flushes and of salvaged caches.
fn run(
    seed: u64,
    trouble: Trouble,
    planted: Planted,
    plain: bool,
) -> Result<(usize, usize), String> {
    let mut world = World::new(seed, trouble, planted, plain);
    for _ in 0..5 {
        let end = match world.random.below(8) {
            0 => End::Released,
            1 | 2 => End::Killed,
            3..=5 => End::Power,
            _ => End::CacheFails,
        };
        world.live(end, Loss::Power)?;
        if world.random.permille(350) {
            world.take_over()?;
        } else if world.random.permille(200) {
            // The cache is lost; another one takes its place.
            world.cache = empty_cache();
            world.live(End::Killed, Loss::Cache)?;
        }
    }
    world.store.set_trouble(Trouble::default());
    world.trouble = Trouble::default();
    match world.live(End::Released, Loss::Power)? {
        true => Ok((world.flushes, world.salvaged)),
        false => Err(format!(
            "seed {seed}: the last machine does not open the volume"
        )),
    }
}

fn trouble() -> Trouble {
    Trouble {
        resets: true,
        ..Trouble::plenty()
    }
}

#[test]
fn after_any_crash_the_disk_is_the_last_flush_and_without_its_cache_one_within_the_lag() {
    let seeds = match std::env::var_os("STEADFAST_LONG") {
        Some(_) => 2_000,
        None => 25,
    };
    let (mut flushes, mut salvaged) = (0, 0);
    for seed in steadfast_testkit::seeds(seeds) {
        match run(seed, trouble(), (None, Faults::default()), false) {
            Ok(done) => (flushes, salvaged) = (flushes + done.0, salvaged + done.1),
            Err(wrong) => panic!("{wrong}"),
        }
    }
    println!("{seeds} seeds: {flushes} flushes acknowledged, {salvaged} caches salvaged");
    assert!(flushes > 10 * seeds as usize && salvaged > 0);
}

#[test]
fn planted_faults_of_the_cache_are_found() {
    for planted in [
        (Some(DeviceFault::CacheUnflushed), Faults::default()),
        (Some(DeviceFault::CacheTornBelieved), Faults::default()),
        (Some(DeviceFault::LagUnbounded), Faults::default()),
        (None, Faults::only(Fault::TailUnderNewTerm)),
    ] {
        let wrong = |seed| run(seed, trouble(), planted, true).err();
        // The disk's own threads are real, and on a busy machine they meet the fault later.
        match (1..=600).find_map(wrong) {
            Some(wrong) => println!("{planted:?}: {wrong}"),
            None => panic!("{planted:?} was not found in 600 seeds"),
        }
        match planted {
            (Some(fault), _) => steadfast_testkit::caught_in("store", &fault),
            (None, _) => steadfast_testkit::caught("protocol.tail_under_new_term"),
        }
    }
}
