//! The disk as it ships, over the simulated store: machines take the volume from one another while requests are late, repeated,
//! refused and lost. A seed decides the store's trouble; threads have their own timing, so a run does not repeat exactly, and
//! the conditions hold for every run.

#![allow(clippy::panic, reason = "a test that fails says why")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, Snapshot, Ticket};
use steadfast_store::protocol::{Fault, Faults};
use steadfast_store::{
    Access, Compression, CreateOptions, Found, KeyFile, Location, OpenOptions, StoreDevice,
    create_with,
};
use steadfast_store_sim::{Clock, Pace, Random, SimStore, Trouble};

const BLOCKS: u64 = 1 << 12;
/// Blocks that the test writes. Block 0 says which flush it is.
const USED: u64 = 40;

/// The disk as its clients know it: a number for each block.
type Disk = Vec<u64>;

#[derive(Default)]
struct Judge {
    /// Each flush: the one before it, and the disk.
    flushes: Vec<(u64, Disk)>,
    acknowledged: Vec<u64>,
    opened: Vec<u64>,
    wrong: Option<String>,
}

impl Judge {
    fn line(&self, flush: u64) -> HashSet<u64> {
        let mut line = HashSet::from([flush]);
        let mut at = flush;
        while at != 0 {
            at = self.flushes[at as usize].0;
            line.insert(at);
        }
        line
    }

    /// The disk is exactly a flush; it has all that was acknowledged before the opening began, and all that was opened with.
    fn opened(&mut self, disk: &Disk, acknowledged: usize, opened: usize) {
        let flush = disk[0];
        if self.flushes.get(flush as usize).map(|(_, disk)| disk) != Some(disk) {
            self.wrong
                .get_or_insert(format!("the disk is no flush: {disk:?}"));
            return;
        }
        let line = self.line(flush);
        let before = self.acknowledged[..acknowledged]
            .iter()
            .chain(&self.opened[..opened]);
        let lost: Vec<&u64> = before.filter(|flush| !line.contains(flush)).collect();
        if !lost.is_empty() {
            let what = format!("flush {flush} was opened without {lost:?}");
            self.wrong.get_or_insert(what);
        }
        self.opened.push(flush);
    }
}

fn locked(judge: &Mutex<Judge>) -> MutexGuard<'_, Judge> {
    judge.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block(number: u64) -> Vec<u8> {
    number
        .to_le_bytes()
        .iter()
        .copied()
        .cycle()
        .take(BLOCK_SIZE)
        .collect()
}

fn read(disk: &StoreDevice) -> Option<Disk> {
    let mut bytes = vec![0; USED as usize * BLOCK_SIZE];
    disk.read(BlockNo(0), &mut bytes).ok()?;
    // A block that is a mixture has a number that no flush has.
    let number = |bytes: &[u8]| {
        let (first, _) = bytes.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let number = u64::from_le_bytes(*first);
        if bytes == block(number) {
            number
        } else {
            u64::MAX
        }
    };
    Some(bytes.chunks_exact(BLOCK_SIZE).map(number).collect())
}

struct Machine {
    access: Access,
    faults: Faults,
    store: SimStore,
    random: Random,
}

impl Machine {
    fn place(&self) -> Location {
        Location::within(Arc::new(self.store.clone()), "volume", "memory://volume")
    }

    fn open(&self) -> Option<StoreDevice> {
        let options = OpenOptions {
            take_over: true,
            patience: Duration::from_secs(60),
            keep_deleted: Duration::ZERO,
            faults: (None, self.faults),
            ..OpenOptions::default()
        };
        let found = Found::new(self.place(), &self.access, options.patience).ok()?;
        found.open(&options).ok()
    }

    /// One ownership: from the take-over to the machine's death, or until it is fenced.
    fn live(&mut self, judge: &Mutex<Judge>) {
        let (acknowledged, opened) = {
            let judge = locked(judge);
            (judge.acknowledged.len(), judge.opened.len())
        };
        let Some(disk) = self.open() else { return };
        let Some(mut model) = read(&disk) else { return };
        locked(judge).opened(&model, acknowledged, opened);
        let mut tip = model[0];
        let mut closed: Vec<(Ticket, u64)> = Vec::new();
        for step in 0..self.random.between(3, 14) {
            let flush = locked(judge).flushes.len() as u64;
            model[0] = flush;
            for _ in 0..self.random.between(1, 6) {
                let at = self.random.between(1, USED - 1);
                model[at as usize] = (flush << 8) | step;
                if disk
                    .write(BlockNo(at), &[&block(model[at as usize])])
                    .is_err()
                {
                    return;
                }
            }
            {
                // The number is taken once the flush is about to begin; another machine may have taken it first.
                let mut judge = locked(judge);
                let flush = judge.flushes.len() as u64;
                model[0] = flush;
                judge.flushes.push((tip, model.clone()));
            }
            let flush = model[0];
            if disk.write(BlockNo(0), &[&block(flush)]).is_err() {
                return;
            }
            // Several epochs are on their way; each is acknowledged when it and all before it are durable.
            let Ok(ticket) = disk.close_epoch() else {
                return;
            };
            closed.push((ticket, flush));
            tip = flush;
            while self.random.permille(600) && !closed.is_empty() {
                let (ticket, _) = closed[0];
                if Snapshot::wait(&disk, ticket).is_err() {
                    return;
                }
                locked(judge).acknowledged.push(closed.remove(0).1);
            }
            if self.random.permille(150) && disk.checkpoint().is_err() {
                return;
            }
        }
    }
}

/// Machines under a seed's trouble, then one more without any.
fn run(seed: u64, trouble: Trouble, faults: Faults) -> Judge {
    let clock = Clock::new();
    let store = SimStore::new(clock.clone(), seed, Trouble::default());
    let _pace = Pace::start(clock, 500);
    // Every other volume is compressed and encrypted.
    let key = seed
        .is_multiple_of(2)
        .then(|| KeyFile::new(&[seed as u8; 32]).ok())
        .flatten();
    let coding = CreateOptions {
        compression: key.as_ref().map(|_| Compression::Zstd),
        key: key.clone(),
        unit_blocks: None,
        flush_cache: false,
    };
    let machine = |number: u64| Machine {
        access: Access {
            key: key.clone(),
            ..Access::default()
        },
        faults,
        store: store.clone(),
        random: Random::new(seed * 100 + number),
    };
    let judge = Mutex::new(Judge {
        flushes: vec![(0, vec![0; USED as usize])],
        ..Judge::default()
    });
    let place = machine(0).place();
    if let Err(error) = create_with(place, BLOCKS, &coding, Duration::from_secs(60)) {
        panic!("seed {seed}: {error}");
    }
    store.set_trouble(trouble);
    std::thread::scope(|scope| {
        for number in 1..=3 {
            let (judge, mut machine) = (&judge, machine(number));
            scope.spawn(move || (0..4).for_each(|_| machine.live(judge)));
        }
    });
    store.set_trouble(Trouble::default());
    let before = locked(&judge).opened.len();
    machine(9).live(&judge);
    let mut judge = judge.into_inner().unwrap_or_else(PoisonError::into_inner);
    if judge.opened.len() == before {
        judge.wrong.get_or_insert(
            "the store recovered, and the last machine did not open the volume".to_owned(),
        );
    }
    judge
}

#[test]
fn a_disk_that_machines_take_from_one_another_is_always_a_flush() {
    let seeds = if std::env::var_os("STEADFAST_LONG").is_some() {
        2_000
    } else {
        15
    };
    let trouble = Trouble {
        resets: true,
        ..Trouble::plenty()
    };
    let (mut opened, mut acknowledged) = (0, 0);
    for seed in steadfast_testkit::seeds(seeds) {
        let judge = run(seed, trouble, Faults::default());
        if let Some(wrong) = judge.wrong {
            panic!("seed {seed}: {wrong}");
        }
        opened += judge.opened.len();
        acknowledged += judge.acknowledged.len();
    }
    println!("{seeds} seeds: {opened} openings, {acknowledged} flushes acknowledged");
    assert!(opened > 2 * seeds as usize && acknowledged > 5 * seeds as usize);
}

#[test]
fn a_store_that_ignores_conditions_is_found() {
    let trouble = Trouble {
        careless: true,
        ..Trouble::default()
    };
    let wrong = |seed| run(seed, trouble, Faults::default()).wrong;
    let found = (1..=40).find_map(|seed| Some((seed, wrong(seed)?)));
    match found {
        Some((seed, wrong)) => println!("seed {seed}: {wrong}"),
        None => panic!("a store that ignores conditions was not found in 40 seeds"),
    }
    steadfast_testkit::caught("store_sim.careless");
}

#[test]
fn planted_faults_of_the_protocol_are_found_under_the_disk() {
    let trouble = Trouble {
        resets: true,
        ..Trouble::plenty()
    };
    for fault in [
        Fault::NoSeal,
        Fault::ForeignTakenForOwn,
        Fault::StaleListBelieved,
    ] {
        let wrong = |seed| Some((seed, run(seed, trouble, Faults::only(fault)).wrong?));
        match (1..=60).find_map(wrong) {
            Some((seed, wrong)) => println!("{fault:?}: seed {seed}: {wrong}"),
            None => panic!("{fault:?} was not found in 60 seeds"),
        }
        steadfast_testkit::caught_in("protocol", &fault);
    }
}
