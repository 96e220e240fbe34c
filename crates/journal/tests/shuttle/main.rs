//! The real threads under explored schedules: `cargo test -p steadfast-journal --features
//! shuttle,trace --test shuttle`.
//!
//! After each schedule the memory state must be complete, and every sampled power cut must
//! leave a prefix of each stream that holds what was synced. Besides, everything that device and
//! core did is handed to the checkers extracted from the proofs: a trace that they accept is one of
//! the model, so that for *each* of its crash points the theorems say what any recovery leaves. Of some
//! crash points the recovery of the code is traced as well, also cut again, and must be the model's.
#![allow(clippy::unwrap_used, clippy::panic)]

mod delayed;
mod home;
mod lives;
mod oracle;
mod prefix;
mod room;

use oracle::{Oracle, Verdict};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_journal::trace::{Recorder, Start, Trace};
use steadfast_journal::{Config, Credits, Faults, Journal, Kind, Region, StreamId, seal};
use steadfast_sim::{CrashImage, Image, Limits, SimDevice, TraceEvent};

const VOLUME: [u8; 16] = [6; 16];
const BLOCKS: u64 = 130;
const REGION: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(2),
    log_blocks: 64,
};
const META: BlockNo = BlockNo(66);
/// The device's marks from here on are the recorder's: the number of events, added to this.
const RECORDED: u64 = 1 << 32;
/// Records that the volume has seen before: its log wraps in the middle of a trace.
const RECORDS_BEFORE: u64 = 58;

/// Marks in the device's trace that a stream, 0 or 1, has synced its operation `number`.
fn synced(sim: &SimDevice, stream: usize, number: u64) {
    sim.mark(1000 * stream as u64 + number);
}

/// A world of threads on one journal.
trait World: Send + Sync + 'static {
    /// Sets it up, with its client.
    fn new(sim: Arc<SimDevice>, journal: Journal) -> Arc<Self>;
    const THREADS: &'static [fn(&Self)];
    /// The state that the threads have left in memory is complete.
    fn complete(&self);
    /// A journal's content follows from a prefix of each stream, of at least this length.
    fn check(&self, journal: &Journal, least: [u64; 2]);
    fn journal(&self) -> &Journal;
    fn sim(&self) -> &Arc<SimDevice>;
    /// Blocks that are not in flight in the end, for the checker to compare.
    fn reads(&self) -> Vec<(BlockNo, Kind)>;
}

fn config(faults: Faults) -> Config {
    Config::new(REGION, VOLUME)
        .without_workers()
        .with(|config| {
            config.faults = faults;
        })
}

/// A volume with one metadata block in use, whose log has come near its end.
fn prepared() -> Image {
    static PREPARED: Mutex<Option<Image>> = Mutex::new(None);
    let mut prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    let image = prepared.get_or_insert_with(|| {
        let sim = Arc::new(SimDevice::new(BLOCKS));
        Journal::format(&*sim, &REGION, &VOLUME).unwrap();
        let mut block = [0; BLOCK_SIZE];
        seal(&VOLUME, META, &mut block);
        sim.write(META, &[&block]).unwrap();
        sim.flush().unwrap();
        let (journal, _) = Journal::open(sim.clone(), config(Faults::default())).unwrap();
        let credits = Credits {
            log_bytes: 100,
            data_blocks: 0,
        };
        for _ in 0..RECORDS_BEFORE {
            let mut op = journal.begin(StreamId(0), credits).unwrap();
            op.write(META, Kind::Meta, 3000, &[1]).unwrap();
            let ticket = op.commit();
            journal.wait(ticket).unwrap();
        }
        journal.close().unwrap();
        sim.image()
    });
    image.clone()
}

/// Checks of a schedule.
struct Watch {
    faults: Faults,
    /// Whether the world's own checks are made.
    asserts: bool,
    checkers: Mutex<Option<Checkers>>,
    schedules: AtomicU64,
    recoveries: AtomicU64,
}

struct Checkers {
    journal: Oracle,
    streams: Oracle,
}

impl Watch {
    fn new(faults: Faults, asserts: bool, traces: bool) -> Arc<Watch> {
        let checkers = traces.then(|| Checkers {
            journal: Oracle::start("journal"),
            streams: Oracle::start("streams"),
        });
        Arc::new(Watch {
            faults,
            asserts,
            checkers: Mutex::new(checkers),
            schedules: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
        })
    }

    fn checkers<R>(&self, act: impl FnOnce(&mut Checkers) -> R) -> Option<R> {
        let mut checkers = self.checkers.lock().unwrap_or_else(PoisonError::into_inner);
        checkers.as_mut().map(act)
    }

    /// Verdicts of the checkers: of journals, of streams.
    fn verdicts(&self) -> Option<[Verdict; 2]> {
        let checkers = self
            .checkers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        checkers.map(|c| [c.journal.finish(), c.streams.finish()])
    }
}

fn scenario<W: World>(watch: &Watch) {
    let sim = Arc::new(SimDevice::from_image(prepared()).with_hook(|_, _| {
        shuttle::thread::yield_now();
    }));
    let noted = Arc::clone(&sim);
    let recorder = Recorder::new(Some(Box::new(move |events| {
        noted.mark(RECORDED + events as u64);
    })));
    let config = config(watch.faults).with(|config| {
        config.probe = recorder.probe();
    });
    let (journal, _) = Journal::open(recorder.device(sim.clone()), config.clone()).unwrap();
    let start = Start::read(&*sim, &config, &[META]).unwrap();
    recorder.start();
    let world = W::new(sim, journal);
    let threads: Vec<_> = W::THREADS
        .iter()
        .map(|work| {
            let world = world.clone();
            shuttle::thread::spawn(move || work(&world))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    if watch.asserts {
        world.complete();
    }
    world.journal().sync_all().unwrap();
    for (at, kind) in world.reads() {
        let image = world.journal().read(at, kind).unwrap();
        recorder.read(at, kind, &image);
    }
    let mut trace = Trace::of(&start, &recorder);
    let end = world.sim().trace_len();
    watch.checkers(|checkers| {
        checkers.journal.say(trace.lines());
        checkers.streams.say(trace.streams());
    });
    cuts(&*world, watch, &mut trace, end);
    world.journal().close().unwrap();
    watch.schedules.fetch_add(1, SeqCst);
}

/// Cuts the power where most may be lost or torn: the images of other cuts are among these. The trace
/// reaches to position `end`.
fn cuts<W: World>(world: &W, watch: &Watch, trace: &mut Trace, end: usize) {
    let mut explorer = world.sim().explorer();
    let schedule = watch.schedules.load(SeqCst);
    let limits = Limits {
        exhaustive_writes: 1,
        sampled: 2,
        tears: true,
        seed: schedule,
    };
    let recorded = (explorer.trace().iter())
        .position(|event| matches!(event, TraceEvent::Mark(RECORDED)))
        .unwrap();
    let mut positions = explorer.maximal_cuts();
    positions.retain(|position| (recorded + 1..end).contains(position));
    positions.push(end);
    let traced = schedule as usize % positions.len();
    for (i, position) in positions.into_iter().enumerate() {
        let cut = explorer.cut(position);
        let (mut least, mut events) = ([0; 2], 0);
        for mark in cut.marks() {
            match mark.checked_sub(RECORDED) {
                Some(n) => events = n as usize,
                None => {
                    let stream = (mark / 1000) as usize;
                    least[stream] = least[stream].max(mark % 1000);
                }
            }
        }
        for image in cut.images(&limits) {
            watch.recoveries.fetch_add(1, SeqCst);
            if i == traced {
                recover_traced(world, watch, trace, events, image, least);
            } else if watch.asserts {
                let device = Arc::new(SimDevice::from_image(image));
                let (journal, _) = Journal::open(device, config(watch.faults)).unwrap();
                world.check(&journal, least);
            }
        }
    }
}

/// Recovers from an image, cut once more on the way, and passes both recoveries to the checker.
fn recover_traced<W: World>(
    world: &W,
    watch: &Watch,
    trace: &mut Trace,
    events: usize,
    image: CrashImage,
    least: [u64; 2],
) {
    let mut cut = trace.cut(events, &image).unwrap();
    let sim = Arc::new(SimDevice::from_image(image));
    let noted = Arc::clone(&sim);
    let recorder = Recorder::new(Some(Box::new(move |events| {
        noted.mark(RECORDED + events as u64);
    })));
    recorder.start();
    let opened = Journal::open(recorder.device(sim.clone()), config(watch.faults));
    let (_, recovery) = opened.unwrap();
    // Up to somewhere, cut there, and once more to the end; or to the end.
    let mut explorer = sim.explorer();
    let positions = explorer.maximal_cuts();
    let at = watch.recoveries.load(SeqCst) as usize % (positions.len() + 1);
    let again = positions.get(at).map(|position| explorer.cut(*position));
    let last = match again {
        None => {
            cut.recovery(&recorder, usize::MAX, Some(&recovery));
            sim
        }
        Some(again) => {
            let events = again
                .marks()
                .last()
                .map_or(0, |mark| (mark - RECORDED) as usize);
            cut.recovery(&recorder, events, None);
            let limits = Limits {
                exhaustive_writes: 0,
                sampled: 1,
                tears: true,
                seed: events as u64,
            };
            let image = again.images(&limits).last().unwrap();
            cut.again(&image).unwrap();
            let sim = Arc::new(SimDevice::from_image(image));
            recorder.start();
            let opened = Journal::open(recorder.device(sim.clone()), config(watch.faults));
            let (_, recovery) = opened.unwrap();
            cut.recovery(&recorder, usize::MAX, Some(&recovery));
            sim
        }
    };
    watch.checkers(|checkers| checkers.journal.say(cut.lines()));
    if watch.asserts {
        let (journal, _) = Journal::open(last, config(Faults::default())).unwrap();
        world.check(&journal, least);
    }
}

fn explore<W: World>(scheduler: impl Scheduler + 'static, watch: &Arc<Watch>) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    let watch = Arc::clone(watch);
    shuttle::Runner::new(scheduler, config).run(move || scenario::<W>(&watch));
}

/// Schedules of each world and scheduler; `STEADFAST_LONG=1` multiplies them.
fn schedules() -> usize {
    if std::env::var_os("STEADFAST_LONG").is_some() {
        105_000
    } else {
        2_100
    }
}

fn holds<W: World>() {
    let watch = Watch::new(Faults::default(), true, true);
    explore::<W>(RandomScheduler::new(schedules()), &watch);
    explore::<W>(PctScheduler::new(4, schedules()), &watch);
    let (schedules, recoveries) = (&watch.schedules, &watch.recoveries);
    for verdict in watch.verdicts().unwrap() {
        assert!(verdict.accepted, "{}", verdict.said);
        println!(
            "{schedules:?} schedules, {recoveries:?} recoveries: {}",
            verdict.said
        );
    }
}

#[test]
fn prefixes_of_streams_on_every_schedule() {
    holds::<prefix::Prefix>();
}

#[test]
fn lives_of_blocks_on_every_schedule() {
    holds::<lives::Lives>();
}

#[test]
fn delayed_work_on_every_schedule() {
    holds::<delayed::Delayed>();
}

#[test]
fn room_in_the_log_on_every_schedule() {
    holds::<room::Room<false>>();
}

#[test]
fn background_checkpoints_on_every_schedule() {
    holds::<room::Room<true>>();
}

/// Whether each check notices a planted fault: the world's, the checker of journals, that of streams.
fn refused_by<W: World>(faults: Faults, schedules: usize) -> [bool; 3] {
    let quietly = |watch: &Arc<Watch>| {
        let run = || {
            explore::<W>(RandomScheduler::new(schedules / 2), watch);
            explore::<W>(PctScheduler::new(3, schedules / 2), watch);
        };
        catch_unwind(AssertUnwindSafe(run)).is_err()
    };
    let asserts = quietly(&Watch::new(faults, true, false));
    let watch = Watch::new(faults, false, true);
    quietly(&watch);
    let [journal, streams] = watch.verdicts().unwrap();
    [asserts, !journal.accepted, !streams.accepted]
}

#[test]
fn planted_faults_are_refused() {
    let none = Faults::default();
    let mut unnoticed = Vec::new();
    let mut tried = |name: &str, noticed: [bool; 3]| {
        let [asserts, journal, streams] = noticed;
        println!("{name:24} recovered state {asserts:5}  journal {journal:5}  streams {streams:5}");
        if noticed.contains(&true) {
            steadfast_testkit::caught(&format!("journal.{name}"));
        } else {
            unnoticed.push(name.to_owned());
        }
    };
    macro_rules! plant {
        ($world:ty: $($fault:ident),*) => {$(
            let faults = Faults { $fault: true, ..none };
            tried(stringify!($fault), refused_by::<$world>(faults, 300));
        )*};
    }
    plant!(prefix::Prefix: skip_flush, acknowledge_early, absorb_frozen, lay_current);
    // An operation that comes after a transaction had changed the image that it froze:
    // these schedules found it.
    plant!(prefix::Prefix: freeze_beside_applying, trim_early, skip_home_flush);
    // That an overtaken transaction gives up its times is a story of tests/suite/corners.
    plant!(prefix::Prefix: newest_when_laid);
    plant!(prefix::Prefix: relations_unindexed);
    plant!(lives::Lives: reuse_early, drop_revoke, install_unproved);
    // Replay past a bad record needs damage: tests/suite/failures.rs has it.
    plant!(lives::Lives: skip_covered_check, replay_before_verdict);
    assert!(unnoticed.is_empty(), "{unnoticed:?} go unnoticed");
}

/// Prints which checks refuse the journal as it is, for `proofs/mutants/code`, which changes it before.
#[test]
#[ignore = "proofs/mutants/code runs it"]
fn who_refuses() {
    fn ask<W: World>(name: &str, refused: &mut Vec<String>) {
        let noticed = refused_by::<W>(Faults::default(), 600);
        let who = [
            "recovered state",
            "checker of journals",
            "checker of streams",
        ];
        let who = who.iter().zip(noticed).filter(|(_, noticed)| *noticed);
        refused.extend(who.map(|(who, _)| format!("{who} ({name})")));
    }
    let mut refused = Vec::new();
    ask::<prefix::Prefix>("prefix", &mut refused);
    ask::<lives::Lives>("lives", &mut refused);
    ask::<delayed::Delayed>("delayed", &mut refused);
    ask::<room::Room<false>>("room", &mut refused);
    ask::<room::Room<true>>("background", &mut refused);
    println!("refused by: {}", refused.join(", "));
}
