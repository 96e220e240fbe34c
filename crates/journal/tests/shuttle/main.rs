//! The real threads under explored schedules: `cargo test -p steadfast-journal --features
//! shuttle --test shuttle`. After each schedule the memory state must be complete, and every
//! sampled power cut must leave a prefix of each stream that holds what was synced, with the
//! operations on the shared object in their one order.
#![cfg(feature = "shuttle")]
#![allow(clippy::unwrap_used, clippy::panic)]

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use steadfast_block::sim::{Limits, SimDevice};
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_journal::{
    Access, Config, Credits, Faults, Journal, Kind, Lockmap, Object, Region, StreamId, seal,
};

const VOLUME: [u8; 16] = [6; 16];
const REGION: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(2),
    log_blocks: 64,
};
const META: u64 = 66;
const DATA: u64 = 70;
const SHARED_OFFSET: usize = 2048;
const SHARED: Object = Object::File(9);

/// What happened: operations on the shared object in their order, as (stream, number).
#[derive(Default)]
struct History {
    shared: Mutex<Vec<(usize, u64)>>,
    done: [AtomicU64; 2],
}

fn prepared() -> SimDevice {
    let sim = SimDevice::new(90);
    Journal::format(&sim, &REGION, &VOLUME).unwrap();
    let mut block = [0; BLOCK_SIZE];
    seal(&VOLUME, BlockNo(META), &mut block);
    sim.write(BlockNo(META), &[&block]).unwrap();
    sim.flush().unwrap();
    SimDevice::from_image(sim.image())
}

fn config(faults: Faults) -> Config {
    Config {
        faults,
        ..Config::new(REGION, VOLUME)
    }
}

struct World {
    sim: Arc<SimDevice>,
    journal: Journal,
    locks: Lockmap,
    history: History,
}

impl World {
    /// The next operation of a stream: counts it, and names it; perhaps on the shared object,
    /// perhaps with a new block around the log.
    fn act(&self, stream: usize, shared: bool, around: bool) {
        let number = self.history.done[stream].load(SeqCst) + 1;
        let credits = Credits {
            log_bytes: 600,
            data_blocks: 1,
        };
        let mut op = self
            .journal
            .begin(StreamId(stream as u32), credits)
            .unwrap();
        let at = BlockNo(META);
        let set = shared.then(|| self.locks.acquire(&[(9, Access::Exclusive)]));
        if shared {
            op.relate(SHARED, Access::Exclusive);
            let mut order = self.history.shared.lock().unwrap();
            order.push((stream, number));
            let length = order.len() as u64;
            drop(order);
            op.write(at, Kind::Meta, SHARED_OFFSET, &length.to_le_bytes())
                .unwrap();
        }
        op.write(at, Kind::Meta, 8 * stream, &number.to_le_bytes())
            .unwrap();
        op.set_bits(at, 8 * 512 + 64 * stream + number as usize, 1, true)
            .unwrap();
        op.add(at, 1024, 1).unwrap();
        if around {
            let home = BlockNo(DATA + 8 * stream as u64 + number);
            op.write_around(home, vec![Arc::new([number as u8; BLOCK_SIZE])])
                .unwrap();
        }
        let _ = op.commit();
        drop(set);
        self.history.done[stream].store(number, SeqCst);
    }

    fn sync(&self, stream: usize) {
        let number = self.history.done[stream].load(SeqCst);
        self.journal.sync(StreamId(stream as u32), &[]).unwrap();
        self.sim.mark(100 * stream as u64 + number);
    }

    /// What a journal holds must follow from these prefixes; `full`: everything.
    fn check(&self, journal: &Journal, least: [u64; 2]) {
        let block = journal.read(BlockNo(META), Kind::Meta).unwrap();
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        let count = [word(0), word(8)];
        for stream in 0..2 {
            let n = count[stream];
            assert!(n >= least[stream], "stream {stream}: {n} of {least:?}");
            assert_eq!(
                word(512 + 8 * stream),
                (1 << (n + 1)) - 2,
                "stream {stream} has a hole"
            );
        }
        assert_eq!(word(1024), count[0] + count[1], "the counter is wrong");
        let order = self.history.shared.lock().unwrap();
        let inside = order.iter().filter(|(s, n)| *n <= count[*s]).count();
        let first = order.iter().take_while(|(s, n)| *n <= count[*s]).count();
        assert_eq!(inside, first, "{order:?} at {count:?} has a hole");
        assert_eq!(word(SHARED_OFFSET), first as u64, "{order:?} at {count:?}");
    }
}

fn scenario(faults: Faults) {
    let sim = Arc::new(prepared().with_hook(|_, _| shuttle::thread::yield_now()));
    let (journal, _) = Journal::open(sim.clone(), config(faults)).unwrap();
    let world = Arc::new(World {
        sim,
        journal,
        locks: Lockmap::new(),
        history: History::default(),
    });
    let spawn = |work: fn(&World)| {
        let world = world.clone();
        shuttle::thread::spawn(move || work(&world))
    };
    let threads = [
        spawn(|w| {
            w.act(0, false, true);
            w.act(0, true, false);
            w.sync(0);
            w.act(0, false, false);
            w.act(0, true, false);
        }),
        spawn(|w| {
            w.act(1, true, false);
            w.act(1, false, true);
            w.sync(1);
            w.act(1, true, false);
            w.sync(1);
        }),
        spawn(|w| {
            w.journal.checkpoint().unwrap();
            w.journal.sync(StreamId(7), &[SHARED]).unwrap();
            w.journal.checkpoint().unwrap();
            w.journal.reclaim().unwrap();
        }),
    ];
    for thread in threads {
        thread.join().unwrap();
    }
    world.check(&world.journal, [4, 3]);
    let mut explorer = world.sim.explorer();
    let limits = Limits {
        exhaustive_writes: 1,
        sampled: 2,
        tears: true,
        seed: 1,
    };
    let step = explorer.len() / 12 + 1;
    for position in (0..=explorer.len()).rev().step_by(step) {
        let cut = explorer.cut(position);
        let mut least = [0; 2];
        for mark in cut.marks() {
            let stream = (mark / 100) as usize;
            least[stream] = least[stream].max(mark % 100);
        }
        for image in cut.images(&limits) {
            let device = Arc::new(SimDevice::from_image(image));
            let (journal, _) = Journal::open(device, config(Faults::default())).unwrap();
            world.check(&journal, least);
        }
    }
    world.journal.close().unwrap();
}

fn explore(scheduler: impl Scheduler + 'static, faults: Faults) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    shuttle::Runner::new(scheduler, config).run(move || scenario(faults));
}

/// Schedules of each kind; `STEADFAST_LONG=1` multiplies them.
fn schedules() -> usize {
    if std::env::var_os("STEADFAST_LONG").is_some() {
        100_000
    } else {
        2_000
    }
}

#[test]
fn random_schedules_keep_every_streams_prefix() {
    explore(RandomScheduler::new(schedules()), Faults::default());
}

#[test]
fn schedules_with_few_preemptions_keep_every_streams_prefix() {
    explore(PctScheduler::new(4, schedules()), Faults::default());
}

#[test]
fn schedules_show_planted_faults() {
    let faults = [
        Faults {
            skip_flush: true,
            ..Faults::default()
        },
        Faults {
            acknowledge_early: true,
            ..Faults::default()
        },
        Faults {
            absorb_frozen: true,
            ..Faults::default()
        },
        // An operation that comes after a transaction had changed the image that it froze:
        // these schedules found it.
        Faults {
            freeze_beside_applying: true,
            ..Faults::default()
        },
    ];
    for faults in faults {
        let caught = std::panic::catch_unwind(|| explore(RandomScheduler::new(300), faults));
        assert!(caught.is_err(), "{faults:?} goes unnoticed");
    }
}
