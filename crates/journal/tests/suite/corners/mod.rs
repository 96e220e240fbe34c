//! The hard corners that the journal must keep, one directed test each: a short story on a
//! recording device, cut everywhere, recovered, and compared byte by byte. Where a planted
//! fault breaks exactly that corner, the test shows that the story notices.
//!
//! `crash.rs` explores random stories; these conditions must hold in each one by name.
#![cfg(not(feature = "shuttle"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// One planted fault.
macro_rules! fault {
    ($name:ident) => {
        Faults {
            $name: true,
            ..Faults::default()
        }
    };
}

mod commit;
mod home;
mod reuse;
mod room;

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo, DeviceError, Geometry};
use steadfast_journal::{
    Client, Config, Credits, Faults, Journal, Kind, Op, Region, Result, StreamId, Ticket, seal,
};
use steadfast_sim::{CrashImage, Limits, SimDevice, TraceEvent};

const VOLUME: [u8; 16] = [8; 16];
const LOG: u64 = 2;
const REGION: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(LOG),
    log_blocks: 64,
};
/// Sealed blocks of zeros from here to `DATA`, where garbage begins that was never theirs.
const META: u64 = 66;
const DATA: u64 = 72;
const BLOCKS: u64 = 400;
const GARBAGE: u8 = 0xee;
const PATIENCE: Duration = Duration::from_secs(300);
const CREDITS: Credits = Credits {
    log_bytes: 9000,
    data_blocks: 4,
};

/// Result of a story: images explored, or a failure.
type Outcome = std::result::Result<u64, String>;

/// Holds without faults, over more than a handful of images, and fails with each of `broken`.
fn holds(story: impl Fn(Faults) -> Outcome, broken: &[Faults]) {
    let images = story(Faults::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(images > 10, "only {images} images");
    for faults in broken {
        let found = story(*faults).expect_err("the planted fault goes unnoticed");
        println!("{found}");
        steadfast_testkit::caught_in("journal", faults);
    }
}

/// Receives released blocks, and does nothing when a transaction closes.
#[derive(Default)]
struct Pool(Mutex<Vec<u64>>);

impl Pool {
    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Client for Pool {
    fn close(&self, op: Op<'_>, _: &[u64]) -> Result<Ticket> {
        Ok(op.commit())
    }
    fn released(&self, runs: &[(BlockNo, u64)]) {
        let blocks = runs.iter().flat_map(|(at, count)| at.0..at.0 + count);
        self.0.lock().unwrap().extend(blocks);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Stop {
    Nothing,
    Flush,
    /// A write that begins in these blocks.
    Write(u64, u64),
    /// A read of this block, which has the bytes already.
    Read(u64),
}

#[derive(Clone, Copy, PartialEq)]
enum Held {
    Free,
    Inside,
    LetGo,
}

/// A device that holds one request back until it is let go, and sees writes in flight meet.
struct Slow {
    sim: Arc<SimDevice>,
    state: Mutex<(Stop, Held)>,
    changed: Condvar,
    in_flight: Mutex<Vec<std::ops::Range<u64>>>,
}

impl Slow {
    fn arm(&self, stop: Stop) {
        *self.state.lock().unwrap() = (stop, Held::Free);
    }

    fn until_inside(&self) {
        let state = self.state.lock().unwrap();
        let free = |s: &mut (Stop, Held)| s.1 == Held::Free;
        let waited = self.changed.wait_timeout_while(state, PATIENCE, free);
        assert!(waited.unwrap().0.1 == Held::Inside, "no thread came");
    }

    fn let_go(&self) {
        self.state.lock().unwrap().1 = Held::LetGo;
        self.changed.notify_all();
    }

    fn pass(&self, matches: impl Fn(Stop) -> bool) {
        let mut state = self.state.lock().unwrap();
        if matches(state.0) {
            *state = (Stop::Nothing, Held::Inside);
            self.changed.notify_all();
            let held = |s: &mut (Stop, Held)| s.1 != Held::LetGo;
            drop(self.changed.wait_timeout_while(state, PATIENCE, held));
        }
    }
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.sim.geometry()
    }
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
        self.sim.read(at, buf)?;
        self.pass(|stop| stop == Stop::Read(at.0));
        Ok(())
    }
    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> std::result::Result<(), DeviceError> {
        let bytes: usize = segments.iter().map(|s| s.len()).sum();
        let blocks = at.0..at.0 + (bytes / BLOCK_SIZE) as u64;
        {
            let mut all = self.in_flight.lock().unwrap();
            let meets =
                |other: &std::ops::Range<u64>| blocks.start < other.end && other.start < blocks.end;
            assert!(!all.iter().any(meets), "two writes in flight to {blocks:?}");
            all.push(blocks.clone());
        }
        self.pass(|stop| matches!(stop, Stop::Write(from, to) if (from..to).contains(&at.0)));
        let result = self.sim.write(at, segments);
        let mut all = self.in_flight.lock().unwrap();
        all.retain(|other| *other != blocks);
        result
    }
    fn flush(&self) -> std::result::Result<(), DeviceError> {
        self.pass(|stop| stop == Stop::Flush);
        self.sim.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> std::result::Result<(), DeviceError> {
        self.sim.discard(at, count)
    }
}

/// A fresh journal on a recording device, and its client.
struct Stage {
    sim: Arc<SimDevice>,
    slow: Arc<Slow>,
    journal: Journal,
    pool: Arc<Pool>,
    faults: Faults,
}

impl Stage {
    fn new(faults: Faults) -> Stage {
        Stage::with(
            Config::new(REGION, VOLUME)
                .without_workers()
                .with(|config| {
                    config.faults = faults;
                }),
        )
    }

    fn with(config: Config) -> Stage {
        let sim = SimDevice::new(BLOCKS);
        Journal::format(&sim, &REGION, &VOLUME).unwrap();
        for at in META..BLOCKS {
            let mut block = [if at < DATA { 0 } else { GARBAGE }; BLOCK_SIZE];
            if at < DATA {
                seal(&VOLUME, BlockNo(at), &mut block);
            }
            sim.write(BlockNo(at), &[&block]).unwrap();
        }
        let sim = Arc::new(SimDevice::from_image(sim.image()));
        let slow = Arc::new(Slow {
            sim: sim.clone(),
            state: Mutex::new((Stop::Nothing, Held::Free)),
            changed: Condvar::new(),
            in_flight: Mutex::default(),
        });
        let faults = config.faults;
        let (journal, _) = Journal::open(slow.clone(), config).unwrap();
        let pool = Arc::new(Pool::default());
        let client: Arc<dyn Client> = pool.clone();
        journal.set_client(Arc::downgrade(&client));
        Stage {
            sim,
            slow,
            journal,
            pool,
            faults,
        }
    }

    /// Carries an operation out, in memory.
    fn op(&self, stream: u32, work: impl FnOnce(&mut Op<'_>)) {
        let mut op = self.journal.begin(StreamId(stream), CREDITS).unwrap();
        work(&mut op);
        let _ = op.commit();
    }

    /// Makes everything durable; from here on a cut must leave state `n` or a later one.
    fn ack(&self, n: u64) {
        self.journal.sync_all().unwrap();
        self.sim.mark(n);
    }

    /// The blocks that may be allocated again, once these are among them.
    fn released(&self, at: u64) {
        let mut found = self.pool.take();
        if !found.contains(&at) {
            self.journal.reclaim().unwrap();
            found.extend(self.pool.take());
        }
        assert!(found.contains(&at), "block {at} is not released: {found:?}");
    }

    fn sync_in_thread(&self, stream: u32) -> Receiver<Result<()>> {
        let journal = self.journal.clone();
        spawn(move || journal.sync(StreamId(stream), &[]))
    }

    fn checkpoint_in_thread(&self) -> Receiver<Result<()>> {
        let journal = self.journal.clone();
        spawn(move || journal.checkpoint())
    }

    /// Cuts the story everywhere, recovers, and observes. Read-only and for writing alike, the result must be
    /// one that `allowed` admits after the last acknowledgement. Recoveries are cut as
    /// well, and must then come to the same.
    fn explore<T: Eq + Debug>(
        &self,
        observe: &dyn Fn(&Journal) -> std::result::Result<T, String>,
        allowed: &dyn Fn(u64, &T) -> bool,
    ) -> Outcome {
        self.explore_and_look(observe, allowed, &mut |_| {})
    }

    fn explore_and_look<T: Eq + Debug>(
        &self,
        observe: &dyn Fn(&Journal) -> std::result::Result<T, String>,
        allowed: &dyn Fn(u64, &T) -> bool,
        look: &mut dyn FnMut(&CrashImage),
    ) -> Outcome {
        let limits = Limits {
            exhaustive_writes: 9,
            sampled: 24,
            tears: true,
            seed: 1,
        };
        let mut seen = HashSet::new();
        let mut again = HashSet::new();
        let mut explorer = self.sim.explorer();
        for position in 0..=explorer.len() {
            let cut = explorer.cut(position);
            let acked = cut.marks().last().copied().unwrap_or(0);
            for image in cut.images(&limits) {
                if !seen.insert((image.fingerprint(), acked)) {
                    continue;
                }
                look(&image);
                let name = format!("cut at {position}, {acked} acknowledged: {image}");
                let found = self
                    .recover(image, observe, &mut again)
                    .map_err(|e| format!("{name}: {e}"))?;
                if !allowed(acked, &found) {
                    return Err(format!("{name}: recovered to {found:?}"));
                }
            }
        }
        Ok(seen.len() as u64)
    }

    /// Recovers an image, and every image that a cut of the recovery leaves.
    fn recover<T: Eq + Debug>(
        &self,
        image: CrashImage,
        observe: &dyn Fn(&Journal) -> std::result::Result<T, String>,
        again: &mut HashSet<u128>,
    ) -> std::result::Result<T, String> {
        let open = |sim: &Arc<SimDevice>, read_only| {
            let config = Config::new(REGION, VOLUME)
                .without_workers()
                .with(|config| {
                    config.read_only = read_only;
                    config.faults = self.faults;
                });
            Journal::open(sim.clone(), config).map_err(|e| e.to_string())
        };
        let sim = Arc::new(SimDevice::from_image(image));
        let peeked = observe(&open(&sim, true)?.0)?;
        let found = observe(&open(&sim, false)?.0)?;
        if found != peeked {
            return Err(format!("read-only {peeked:?}, but for writing {found:?}"));
        }
        let limits = Limits {
            exhaustive_writes: 3,
            sampled: 4,
            tears: true,
            seed: 2,
        };
        let mut explorer = sim.explorer();
        for position in 0..=explorer.len() {
            for image in explorer.cut(position).images(&limits) {
                if again.insert(image.fingerprint()) {
                    let sim = Arc::new(SimDevice::from_image(image));
                    let later = open(&sim, false).and_then(|(journal, _)| observe(&journal));
                    if !matches!(&later, Ok(later) if *later == found) {
                        return Err(format!(
                            "{found:?}, but {later:?} when the recovery is cut at {position}"
                        ));
                    }
                }
            }
        }
        Ok(found)
    }
}

/// Runs `work` in a thread of its own.
fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (send, receive) = channel();
    std::thread::spawn(move || send.send(work()));
    receive
}

fn soon<T>(receiver: &Receiver<T>, what: &str) -> T {
    receiver
        .recv_timeout(PATIENCE)
        .unwrap_or_else(|_| panic!("{what} waits for ever"))
}

fn not_yet<T>(receiver: &Receiver<T>, what: &str) {
    let waited = receiver.recv_timeout(Duration::from_millis(60));
    assert!(waited.is_err(), "{what} did not wait");
}

fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} never comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn page(value: u8) -> Arc<Block> {
    Arc::new([value; BLOCK_SIZE])
}

/// A word of a metadata block becomes `value`.
fn set(op: &mut Op<'_>, at: u64, offset: usize, value: u64) {
    op.write(BlockNo(at), Kind::Meta, offset, &value.to_le_bytes())
        .unwrap();
}

fn around(op: &mut Op<'_>, at: u64, value: u8) {
    op.write_around(BlockNo(at), vec![page(value)]).unwrap();
}

fn word(journal: &Journal, at: u64, offset: usize) -> std::result::Result<u64, String> {
    let block = journal.read(BlockNo(at), Kind::Meta);
    let block = block.map_err(|e| e.to_string())?;
    let bytes = block[offset..offset + 8].try_into();
    Ok(u64::from_le_bytes(bytes.unwrap()))
}

/// A data block is `expected`, also if the log has patches of it.
fn expect_data(journal: &Journal, at: u64, expected: &[u8]) -> std::result::Result<(), String> {
    let mut block = [0; BLOCK_SIZE];
    let read = journal.read_data(BlockNo(at), &mut block);
    read.map_err(|e| e.to_string())?;
    expect_bytes(at, &block, expected)
}

/// A metadata block is `expected`, except for its seal.
fn expect_meta(journal: &Journal, at: u64, expected: &[u8]) -> std::result::Result<(), String> {
    let block = journal.read(BlockNo(at), Kind::Meta);
    let block = block.map_err(|e| e.to_string())?;
    expect_bytes(at, &block[..steadfast_journal::META_BYTES], expected)
}

fn expect_bytes(at: u64, found: &[u8], expected: &[u8]) -> std::result::Result<(), String> {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(i) => Err(format!(
            "block {at} has {:#x} at byte {i}, not {:#x}",
            found[i], expected[i]
        )),
    }
}
