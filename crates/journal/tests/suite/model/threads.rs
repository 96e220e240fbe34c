//! Threads of their own streams on shared objects under a `Lockmap`, workers running, the log small: with
//! any schedule, a crash at any point leaves everything acknowledged, a prefix of each stream, and with
//! every operation those that it relates to.

use super::cases;
use super::disk::{META, POOL, REGION, config, fresh, model, shows};
use super::drive::{Rng, Setup, explore, log_access};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_journal::{
    Access, Client, Credits, Faults, Journal, Kind, Lockmap, Object, Op, Result as Outcome,
    StreamId, Ticket,
};
use steadfast_model::log::{Change, Log, Operation, Promise};
use steadfast_sim::SimDevice;

/// Operations of each thread.
const OPERATIONS: u64 = 200;
const OBJECTS: u64 = 4;
/// In each of the fixed blocks: a slot for each object, a counter, a slot and a bit for each thread.
const COUNTER: usize = 400;
const OWN: usize = 800;
const BITMAP: usize = 1200;

/// State that all threads share. The specification is in the order in which operations took effect.
struct Shared {
    sim: Arc<SimDevice>,
    journal: Journal,
    locks: Lockmap,
    log: Mutex<Log>,
    free: Mutex<BTreeSet<u64>>,
}

/// Receives released blocks; holds no lock that a thread in the journal could want.
struct Releases(std::sync::Weak<Shared>);

impl Client for Releases {
    fn close(&self, op: Op<'_>, _: &[u64]) -> Outcome<Ticket> {
        Ok(op.commit())
    }
    fn released(&self, runs: &[(BlockNo, u64)]) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        for block in runs.iter().flat_map(|(at, n)| at.0..at.0 + n) {
            let mut log = shared.log.lock().unwrap();
            assert!(
                log.release(block, shared.sim.trace_len()),
                "block {block} was not freed"
            );
            shared.free.lock().unwrap().insert(block);
        }
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    id: u64,
    rng: Rng,
    tag: u64,
    /// Blocks of the pool that this thread has.
    blocks: Vec<u64>,
    last: Option<(Ticket, usize)>,
}

impl Worker<'_> {
    fn stream(&mut self) -> u32 {
        // Two streams each: their operations relate through the thread's own objects.
        self.id as u32 * 2 + self.rng.below(2) as u32
    }

    fn operation(&mut self) {
        let stream = self.stream();
        self.tag += 1;
        let value = self.tag.to_le_bytes();
        let wanted: Vec<(u64, Access)> = (0..self.rng.below(3))
            .map(|_| match self.rng.below(3) {
                0 => (self.rng.below(OBJECTS), Access::Shared),
                _ => (self.rng.below(OBJECTS), Access::Exclusive),
            })
            .collect();
        let _locks = self.shared.locks.acquire(&wanted);
        let credits = Credits {
            log_bytes: 3 * BLOCK_SIZE as u64,
            data_blocks: 1,
        };
        let mut op = self
            .shared
            .journal
            .begin(StreamId(stream), credits)
            .unwrap();
        let mut ours = Operation {
            stream,
            ..Operation::default()
        };
        let mut write = |op: &mut Op<'_>, block: u64, kind, offset, data: &[u8]| {
            op.write(BlockNo(block), kind, offset, data).unwrap();
            ours.changes.push(Change::Bytes {
                block,
                offset,
                data: data.into(),
            });
        };
        // A slot of each stream in a block of all: the mark by which its prefix is known.
        write(
            &mut op,
            META.start,
            Kind::Meta,
            OWN + 8 * stream as usize,
            &value,
        );
        for (object, access) in &wanted {
            op.relate(Object::File(*object), *access);
            if *access == Access::Exclusive {
                let at = META.start + 1 + object % 3;
                write(
                    &mut op,
                    at,
                    Kind::Meta,
                    24 * *object as usize,
                    &[self.tag as u8; 20],
                );
            }
        }
        let (block, bit) = (META.start + 1, BITMAP * 8 + stream as usize);
        match self.rng.below(10) {
            0..=3 => {
                let delta = self.rng.below(9) as i64 - 3;
                op.add(BlockNo(block), COUNTER, delta).unwrap();
                ours.changes.push(Change::Add {
                    block,
                    offset: COUNTER,
                    delta,
                });
            }
            4 | 5 => {
                let set = self.tag.is_multiple_of(2);
                op.set_bits(BlockNo(block), bit, 1, set).unwrap();
                ours.changes.push(Change::Bits {
                    block,
                    first: bit,
                    count: 1,
                    value: set,
                });
            }
            6 | 7 => {
                // A block of one's own: begun one way or the other, or overwritten.
                let free = self.shared.free.lock().unwrap().pop_first();
                let contents = [self.tag as u8; BLOCK_SIZE];
                if let Some(block) = free {
                    if self.rng.below(2) == 0 {
                        op.write_around(BlockNo(block), vec![Arc::new(contents)])
                            .unwrap();
                    } else {
                        op.zero(BlockNo(block), Kind::Data).unwrap();
                        op.write(BlockNo(block), Kind::Data, 0, &contents).unwrap();
                    }
                    let contents = contents.into();
                    ours.changes.push(Change::Begin { block, contents });
                    self.blocks.push(block);
                }
            }
            8 => {
                if let Some(block) = self.blocks.first().copied() {
                    let half = [self.tag as u8; BLOCK_SIZE / 2];
                    op.write(BlockNo(block), Kind::Data, BLOCK_SIZE / 2, &half)
                        .unwrap();
                    ours.changes.push(Change::Bytes {
                        block,
                        offset: BLOCK_SIZE / 2,
                        data: half.into(),
                    });
                }
            }
            _ => {
                if let Some(block) = self.blocks.pop() {
                    op.free(BlockNo(block), 1).unwrap();
                    ours.changes.push(Change::Free { block });
                }
            }
        }
        ours.objects = wanted.iter().map(|(o, a)| (*o, log_access(*a))).collect();
        // The order of the specification is that of the effects.
        let mut log = self.shared.log.lock().unwrap();
        let at = self.shared.sim.trace_len();
        let ticket = op.commit();
        let position = log.apply(ours, at).unwrap();
        self.last = Some((ticket, position));
    }

    fn synced(
        &mut self,
        promise: impl Fn(&Log) -> Promise,
        sync: impl Fn(&Journal) -> Outcome<()>,
    ) {
        let promise = promise(&self.shared.log.lock().unwrap());
        sync(&self.shared.journal).unwrap();
        let mut log = self.shared.log.lock().unwrap();
        log.acknowledge(&promise, self.shared.sim.trace_len());
    }

    fn work(mut self) {
        for _ in 0..OPERATIONS {
            self.operation();
            let stream = self.stream();
            let object = self.rng.below(OBJECTS);
            match self.rng.below(24) {
                0 | 1 => self.synced(
                    |l| l.promise(stream, &[]),
                    |j| j.sync(StreamId(stream), &[]),
                ),
                2 => self.synced(
                    |l| l.promise(stream, &[object]),
                    |j| j.sync(StreamId(stream), &[Object::File(object)]),
                ),
                3 => {
                    if let Some((ticket, position)) = self.last {
                        self.synced(|l| l.promise_of(position), |j| j.wait(ticket));
                    }
                }
                4 => self.synced(Log::promise_all, Journal::sync_all),
                5 => self.shared.journal.checkpoint().unwrap(),
                6 => self.synced(Log::promise_all, |j| j.reclaim().map(|_| ())),
                _ => {}
            }
        }
    }
}

/// Runs `threads` threads; returns how many crash images were looked at and how often the log wrapped.
fn run(threads: u64, seed: u64, cuts: u64, faults: Faults) -> Result<(u64, u64), String> {
    let setup = Setup {
        faults,
        pages_max: 8,
        pool: POOL,
    };
    let sim = fresh(seed as usize % 3);
    let config = config(faults, false).with(|config| {
        config.commit_interval = Duration::from_millis(3);
        config.dirty_blocks = setup.pages_max;
    });
    let (journal, _) = Journal::open(sim.clone(), config).unwrap();
    let shared = Arc::new(Shared {
        sim: sim.clone(),
        journal: journal.clone(),
        locks: Lockmap::new(),
        log: Mutex::new(model()),
        free: Mutex::new(POOL.collect()),
    });
    let client: Arc<dyn Client> = Arc::new(Releases(Arc::downgrade(&shared)));
    journal.set_client(Arc::downgrade(&client));
    journal.start_workers();
    std::thread::scope(|scope| {
        for id in 0..threads {
            let worker = Worker {
                shared: &shared,
                id,
                rng: Rng::new(seed * 16 + id + 1),
                tag: 0,
                blocks: Vec::new(),
                last: None,
            };
            scope.spawn(move || worker.work());
        }
    });
    let log = shared.log.lock().unwrap().clone();
    shows(&journal, log.current())?;
    let images = explore(&log, &sim, 0, cuts, &setup, &mut Rng::new(seed));
    let images = images.map_err(|e| format!("{threads} threads, seed {seed}: {e}\n{log}"))?;
    let laps = journal.usage().1 / REGION.log_blocks;
    Ok((images, laps))
}

#[test]
fn threads_on_shared_objects_leave_related_prefixes_with_all_that_was_acknowledged() {
    let (mut images, mut laps) = (0, 0);
    for seed in 0..u64::from(cases(20)) {
        let result = run(2 + seed % 3, seed, 60, Faults::default());
        let (more, lapped) = result.unwrap_or_else(|e| panic!("{e}"));
        images += more;
        laps += lapped;
    }
    println!("{images} images, the log wrapped {laps} times");
    assert!(images > 1_000 && laps > 0);
}

#[test]
fn a_lost_acknowledgement_shows_with_threads_too() {
    let faults = [
        Faults {
            skip_flush: true,
            ..Faults::default()
        },
        Faults {
            acknowledge_early: true,
            ..Faults::default()
        },
    ];
    for faults in faults {
        let story = (0..20).find_map(|seed| run(3, seed, 60, faults).err());
        let story = story.unwrap_or_else(|| panic!("threads miss {faults:?}"));
        println!("{}", story.lines().next().unwrap());
        steadfast_testkit::caught_in("journal", &faults);
    }
}
