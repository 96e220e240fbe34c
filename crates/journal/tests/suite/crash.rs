//! Crash exploration of the journal against its specification: after a cut, every stream
//! recovers a prefix of its operations that contains everything synced, and each
//! operation's prerequisites are there with it. Each planted fault must be caught.
//!
//! The storage program on top: `REGISTERS` registers of 8 bytes in metadata blocks, each of
//! them empty, a value, or a pointer to a block of its own (written around the log, or
//! begun with zeros and patched), which is overwritten in halves and freed.
#![cfg(not(feature = "shuttle"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};
use steadfast_journal::{
    Access, Client, Config, Credits, Error, Faults, Journal, Kind, Object, Op, Region, Result,
    StreamId, Ticket, seal,
};
use steadfast_sim::{CrashImage, Limits, SimDevice};
use steadfast_testkit::Random;

const VOLUME: [u8; 16] = [9; 16];
const REGION: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(2),
    log_blocks: 64,
};
const META: u64 = 66;
const REGISTERS: u64 = 8;
const PER_BLOCK: u64 = 4;
const POOL: std::ops::Range<u64> = 70..82;
const BLOCKS: u64 = 82;
const POINTER: u64 = 1 << 63;

/// Meaning of a register: nothing, a value, or the two halves of its block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Reg {
    #[default]
    Empty,
    Value(u64),
    Block(u64, u64),
}

type State = [Reg; REGISTERS as usize];

#[derive(Clone, Copy, Debug)]
enum Step {
    Set {
        stream: u32,
        reg: u64,
        tag: u64,
    },
    Around {
        stream: u32,
        reg: u64,
        tag: u64,
    },
    Begun {
        stream: u32,
        reg: u64,
        tag: u64,
    },
    Half {
        stream: u32,
        reg: u64,
        tag: u64,
        upper: bool,
    },
    Sync {
        stream: u32,
    },
    Checkpoint,
}

struct Pool(Mutex<BTreeSet<u64>>);

impl Client for Pool {
    fn close(&self, op: Op<'_>, _: &[u64]) -> Result<Ticket> {
        Ok(op.commit())
    }
    fn released(&self, runs: &[(BlockNo, u64)]) {
        let mut free = self.0.lock().unwrap();
        free.extend(runs.iter().flat_map(|(at, n)| at.0..at.0 + n));
    }
}

fn place(reg: u64) -> (BlockNo, usize) {
    (
        BlockNo(META + reg / PER_BLOCK),
        (reg % PER_BLOCK) as usize * 8,
    )
}

fn word(block: &Block, offset: usize) -> u64 {
    u64::from_le_bytes(block[offset..offset + 8].try_into().unwrap())
}

fn half(tag: u64) -> [u8; BLOCK_SIZE / 2] {
    let mut bytes = [0; BLOCK_SIZE / 2];
    for chunk in bytes.chunks_exact_mut(8) {
        chunk.copy_from_slice(&tag.to_le_bytes());
    }
    bytes
}

fn config(read_only: bool, faults: Faults) -> Config {
    Config::new(REGION, VOLUME)
        .without_workers()
        .with(|config| {
            config.read_only = read_only;
            config.faults = faults;
        })
}

fn fresh() -> SimDevice {
    let sim = SimDevice::new(BLOCKS);
    Journal::format(&sim, &REGION, &VOLUME).unwrap();
    for at in META..META + REGISTERS / PER_BLOCK {
        let mut block = [0; BLOCK_SIZE];
        seal(&VOLUME, BlockNo(at), &mut block);
        sim.write(BlockNo(at), &[&block]).unwrap();
    }
    sim.flush().unwrap();
    SimDevice::from_image(sim.explorer().cut(usize::MAX).everything())
}

/// Reads the registers' values. An error: a block holds content that no operation wrote there as a whole.
fn observe(journal: &Journal) -> std::result::Result<State, String> {
    let mut state = State::default();
    for reg in 0..REGISTERS {
        let (at, offset) = place(reg);
        let raw = word(
            &*journal.read(at, Kind::Meta).map_err(|e| e.to_string())?,
            offset,
        );
        state[reg as usize] = if raw == 0 {
            Reg::Empty
        } else if raw & POINTER == 0 {
            Reg::Value(raw)
        } else {
            let mut block = [0; BLOCK_SIZE];
            journal
                .read_data(BlockNo(raw & !POINTER), &mut block)
                .map_err(|e| e.to_string())?;
            let (low, high) = block.split_at(BLOCK_SIZE / 2);
            let (a, b) = (word(&block, 0), word(&block, BLOCK_SIZE / 2));
            if low != half(a) || high != half(b) {
                return Err(format!("register {reg}: block {} is torn", raw & !POINTER));
            }
            Reg::Block(a, b)
        };
    }
    Ok(state)
}

/// History for the specification.
#[derive(Default)]
struct History {
    /// (stream, register, its meaning afterwards)
    ops: Vec<(u32, u64, Reg)>,
    /// At each mark: operations that must survive.
    durable: Vec<usize>,
    durable_sets: Vec<Vec<usize>>,
}

impl History {
    /// All states that a cut may leave when the last mark passed is `mark`.
    fn allowed(&self, mark: usize, streams: u32) -> HashSet<State> {
        let mut states = HashSet::new();
        let must = &self.durable_sets[mark];
        let mut counts = vec![0usize; streams as usize];
        for (s, ..) in &self.ops {
            counts[*s as usize] += 1;
        }
        let mut choice = vec![0usize; streams as usize];
        loop {
            self.replay(&choice, must, &mut states);
            let Some(i) = (0..streams as usize).find(|i| choice[*i] < counts[*i]) else {
                break;
            };
            choice[i] += 1;
            choice[..i].fill(0);
        }
        states
    }

    /// The state after these prefixes of the streams, if it is one: an operation builds on
    /// every earlier one on its register.
    fn replay(&self, choice: &[usize], must: &[usize], states: &mut HashSet<State>) {
        let (mut state, mut seen, mut broken) =
            (State::default(), vec![0; choice.len()], HashSet::new());
        for (i, (stream, reg, after)) in self.ops.iter().enumerate() {
            let s = *stream as usize;
            seen[s] += 1;
            if seen[s] <= choice[s] {
                if broken.contains(reg) {
                    return;
                }
                state[*reg as usize] = *after;
            } else {
                if must.contains(&i) {
                    return;
                }
                broken.insert(*reg);
            }
        }
        states.insert(state);
    }
}

struct Run {
    sim: Arc<SimDevice>,
    history: History,
    streams: u32,
}

fn random_steps(seed: u64, len: usize, streams: u32) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut next = move |n: u64| (random.number() >> 20) % n;
    (0..len as u64)
        .map(|i| {
            let stream = next(u64::from(streams)) as u32;
            // Mostly registers of one's own, sometimes another stream's.
            let own =
                (next(REGISTERS / u64::from(streams)) * u64::from(streams)) + u64::from(stream);
            let reg = if next(6) == 0 { next(REGISTERS) } else { own };
            let tag = i + 1;
            match next(16) {
                0..=2 => Step::Set { stream, reg, tag },
                3..=6 => Step::Around { stream, reg, tag },
                7..=8 => Step::Begun { stream, reg, tag },
                9..=11 => Step::Half {
                    stream,
                    reg,
                    tag,
                    upper: next(2) == 0,
                },
                12..=14 => Step::Sync { stream },
                _ => Step::Checkpoint,
            }
        })
        .collect()
}

/// Carries the steps out on a fresh device that records everything.
fn run(steps: &[Step], streams: u32, faults: Faults) -> Run {
    let sim = Arc::new(fresh());
    let (journal, _) = Journal::open(sim.clone(), config(false, faults)).unwrap();
    let pool = Arc::new(Pool(Mutex::new(POOL.collect())));
    let client: Arc<dyn Client> = pool.clone();
    journal.set_client(Arc::downgrade(&client));
    let mut history = History::default();
    history.durable_sets.push(Vec::new());
    history.durable.push(0);
    let mut state = State::default();
    for step in steps {
        match *step {
            Step::Checkpoint => journal.checkpoint().unwrap(),
            Step::Sync { stream } => {
                journal.sync(StreamId(stream), &[]).unwrap();
                let mut must = history.durable_sets.last().unwrap().clone();
                must.extend((0..history.ops.len()).filter(|i| history.ops[*i].0 == stream));
                history.durable_sets.push(must);
                sim.mark(history.durable_sets.len() as u64 - 1);
            }
            Step::Set { stream, reg, tag }
            | Step::Around { stream, reg, tag }
            | Step::Begun { stream, reg, tag }
            | Step::Half {
                stream, reg, tag, ..
            } => {
                if let Some(after) =
                    change(&journal, &pool, step, stream, reg, tag, state[reg as usize])
                {
                    state[reg as usize] = after;
                    history.ops.push((stream, reg, after));
                }
            }
        }
    }
    Run {
        sim,
        history,
        streams,
    }
}

fn change(
    journal: &Journal,
    pool: &Pool,
    step: &Step,
    stream: u32,
    reg: u64,
    tag: u64,
    before: Reg,
) -> Option<Reg> {
    let (at, offset) = place(reg);
    let credits = Credits {
        log_bytes: 6000,
        data_blocks: 1,
    };
    let mut op = journal.begin(StreamId(stream), credits).unwrap();
    op.relate(Object::File(reg), Access::Exclusive);
    let raw = word(op.read(at, Kind::Meta).unwrap(), offset);
    let after = match *step {
        Step::Half { upper, .. } => {
            let Reg::Block(a, b) = before else {
                return None;
            };
            let block = BlockNo(raw & !POINTER);
            op.write(
                block,
                Kind::Data,
                if upper { BLOCK_SIZE / 2 } else { 0 },
                &half(tag),
            )
            .unwrap();
            let _ = op.commit();
            return Some(if upper {
                Reg::Block(a, tag)
            } else {
                Reg::Block(tag, b)
            });
        }
        Step::Set { .. } => {
            op.write(at, Kind::Meta, offset, &tag.to_le_bytes())
                .unwrap();
            Reg::Value(tag)
        }
        _ => {
            let block = pool.0.lock().unwrap().pop_first()?;
            let bytes = half(tag);
            let mut whole = [0; BLOCK_SIZE];
            whole[..BLOCK_SIZE / 2].copy_from_slice(&bytes);
            whole[BLOCK_SIZE / 2..].copy_from_slice(&bytes);
            if matches!(step, Step::Around { .. }) {
                op.write_around(BlockNo(block), vec![Arc::new(whole)])
                    .unwrap();
            } else {
                op.zero(BlockNo(block), Kind::Data).unwrap();
                op.write(BlockNo(block), Kind::Data, 0, &whole).unwrap();
            }
            op.write(at, Kind::Meta, offset, &(POINTER | block).to_le_bytes())
                .unwrap();
            Reg::Block(tag, tag)
        }
    };
    if raw & POINTER != 0 {
        op.free(BlockNo(raw & !POINTER), 1).unwrap();
    }
    let _ = op.commit();
    Some(after)
}

#[derive(Default)]
struct Explored {
    images: u64,
    seen: HashSet<u128>,
}

/// Cuts a run everywhere, recovers, compares; cuts the recoveries as well, `depth` deep.
fn explore(
    run: &Run,
    limits: &Limits,
    faults: Faults,
    depth: u32,
    out: &mut Explored,
) -> std::result::Result<(), String> {
    let mut explorer = run.sim.explorer();
    let mut allowed: HashMap<usize, HashSet<State>> = HashMap::new();
    for position in 0..=explorer.len() {
        let cut = explorer.cut(position);
        let mark = cut.marks().last().copied().unwrap_or(0) as usize;
        let states = allowed
            .entry(mark)
            .or_insert_with(|| run.history.allowed(mark, run.streams));
        for image in cut.images(limits) {
            if !out
                .seen
                .insert(image.fingerprint() ^ (u128::from(depth) << 64) ^ mark as u128)
            {
                continue;
            }
            let name = format!("cut at {position} (mark {mark}): {image}");
            check(image, states, faults, depth, out).map_err(|e| format!("{name}: {e}"))?;
        }
        if position % 3 == 0 && depth > 0 {
            killed(cut.killed(), states, faults, out)
                .map_err(|e| format!("killed at {position}: {e}"))?;
        }
    }
    Ok(())
}

fn check(
    image: CrashImage,
    allowed: &HashSet<State>,
    faults: Faults,
    depth: u32,
    out: &mut Explored,
) -> std::result::Result<(), String> {
    out.images += 1;
    let sim = Arc::new(SimDevice::from_image(image));
    // Read-only recovery sees the same state and writes nothing (corner 65).
    let (peek, _) =
        Journal::open(sim.clone(), config(true, faults)).map_err(|e| format!("read-only: {e}"))?;
    let seen = observe(&peek)?;
    if sim.trace_len() > 0 {
        return Err("a read-only opening wrote".into());
    }
    if !allowed.contains(&seen) {
        return Err(format!(
            "recovered to {seen:?}, which no allowed prefix gives"
        ));
    }
    let (journal, recovery) =
        Journal::open(sim.clone(), config(false, faults)).map_err(|e| e.to_string())?;
    let state = observe(&journal)?;
    if state != seen {
        return Err(format!(
            "read-only recovery saw {seen:?}, recovery made {state:?}"
        ));
    }
    if depth > 0 {
        let limits = Limits {
            exhaustive_writes: 3,
            sampled: 4,
            tears: true,
            seed: 7,
        };
        let mut explorer = sim.explorer();
        for position in 0..=explorer.len() {
            let cut = explorer.cut(position);
            for image in cut.images(&limits) {
                if !out
                    .seen
                    .insert(image.fingerprint() ^ (u128::from(depth - 1) << 64) ^ (1 << 127))
                {
                    continue;
                }
                let only = HashSet::from([state]);
                // A rejected record may not come back, an accepted one may not vanish.
                check(image, &only, faults, depth - 1, out)
                    .map_err(|e| format!("recovery ({recovery:?}) cut at {position}: {e}"))?;
            }
        }
    }
    Ok(())
}

/// kill -9, a new process on the same device whose cache lives on, and a cut while it recovers
/// or later: the bytes that it read may be lost, its decision may not change any more (corner
/// 52).
fn killed(
    sim: SimDevice,
    allowed: &HashSet<State>,
    faults: Faults,
    out: &mut Explored,
) -> std::result::Result<(), String> {
    let sim = Arc::new(sim);
    let (journal, _) =
        Journal::open(sim.clone(), config(false, faults)).map_err(|e| e.to_string())?;
    let state = observe(&journal)?;
    if !allowed.contains(&state) {
        return Err(format!(
            "recovered to {state:?}, which no allowed prefix gives"
        ));
    }
    let limits = Limits {
        exhaustive_writes: 3,
        sampled: 4,
        tears: true,
        seed: 11,
    };
    let mut explorer = sim.explorer();
    for position in 0..=explorer.len() {
        let only = HashSet::from([state]);
        let allowed = if position == explorer.len() {
            &only
        } else {
            allowed
        };
        for image in explorer.cut(position).images(&limits) {
            if out.seen.insert(image.fingerprint() ^ (3 << 126)) {
                check(image, allowed, faults, 0, out)
                    .map_err(|e| format!("recovery cut at {position}: {e}"))?;
            }
        }
    }
    Ok(())
}

fn limits(seed: u64) -> Limits {
    Limits {
        exhaustive_writes: 4,
        sampled: 12,
        tears: true,
        seed,
    }
}

fn hunt(
    seeds: std::ops::Range<u64>,
    len: usize,
    streams: u32,
    faults: Faults,
) -> std::result::Result<u64, String> {
    let mut out = Explored::default();
    for seed in seeds {
        let steps = random_steps(seed, len, streams);
        let run = run(&steps, streams, faults);
        explore(&run, &limits(seed), faults, 1, &mut out)
            .map_err(|e| format!("seed {seed}: {e}\n{steps:#?}"))?;
        out.seen.clear();
    }
    Ok(out.images)
}

/// Seeds per hunt; `STEADFAST_LONG=1` multiplies them.
fn seeds(n: u64) -> std::ops::Range<u64> {
    let factor = if std::env::var_os("STEADFAST_LONG").is_some() {
        110
    } else {
        1
    };
    1..1 + n * factor
}

#[test]
fn corner_13_one_stream_recovers_a_prefix_at_every_cut_and_in_cut_recoveries() {
    let images = hunt(seeds(55), 24, 1, Faults::default()).unwrap_or_else(|e| panic!("{e}"));
    println!("{images} images");
    assert!(images > 50_000, "only {images} images");
}

#[test]
fn corner_20_two_streams_recover_a_prefix_each() {
    let images = hunt(seeds(60), 24, 2, Faults::default()).unwrap_or_else(|e| panic!("{e}"));
    println!("{images} images");
    assert!(images > 50_000, "only {images} images");
}

fn is_caught(name: &str, streams: u32, faults: Faults) {
    for len in [16, 24, 60] {
        // An assertion of the journal's own that fires is a catch, too.
        match std::panic::catch_unwind(|| hunt(1..40, len, streams, faults)) {
            Err(_) => return steadfast_testkit::caught_in("journal", &faults),
            Ok(Err(story)) => {
                println!("{name}: {}", story.lines().next().unwrap_or_default());
                return steadfast_testkit::caught_in("journal", &faults);
            }
            Ok(Ok(images)) => println!("{name}: {images} images without a violation"),
        }
    }
    panic!("the exploration misses {name}");
}

macro_rules! mutation {
    ($test:ident, $streams:expr, $fault:ident) => {
        #[test]
        fn $test() {
            is_caught(
                stringify!($fault),
                $streams,
                Faults {
                    $fault: true,
                    ..Faults::default()
                },
            );
        }
    };
}

mutation!(a_skipped_flush_is_caught, 1, skip_flush);
mutation!(an_early_acknowledgement_is_caught, 1, acknowledge_early);
mutation!(corner_01_early_reuse_is_caught, 1, reuse_early);
mutation!(
    corner_04_a_missing_covered_check_is_caught,
    1,
    skip_covered_check
);
mutation!(data_that_no_record_covers_is_caught, 1, data_uncovered);
mutation!(
    corner_20_foreign_uncommitted_bytes_are_caught,
    2,
    lay_current
);
mutation!(corner_02_a_dropped_revoke_is_caught, 1, drop_revoke);
mutation!(an_unflushed_home_write_is_caught, 1, skip_home_flush);
mutation!(
    corner_51_a_home_write_over_an_unproved_covered_block_is_caught,
    1,
    install_unproved
);
mutation!(
    corner_52_replay_before_the_verdict_is_caught,
    1,
    replay_before_verdict
);

/// Three streams fill most of the log after a checkpoint and are committed as one record,
/// which wraps into the space that the checkpoint freed.
fn wrap_after_a_checkpoint(faults: Faults) -> std::result::Result<u64, String> {
    let blocks = BLOCKS + 70;
    let sim = SimDevice::new(blocks);
    Journal::format(&sim, &REGION, &VOLUME).unwrap();
    let sim = Arc::new(SimDevice::from_image(
        sim.explorer().cut(usize::MAX).everything(),
    ));
    let (journal, _) = Journal::open(sim.clone(), config(false, faults)).unwrap();
    let fill = |stream: u32, at: u64, value: u8| {
        let mut op = journal
            .begin(
                StreamId(stream),
                Credits {
                    log_bytes: 5000,
                    data_blocks: 0,
                },
            )
            .unwrap();
        op.zero(BlockNo(at), Kind::Data).unwrap();
        op.write(BlockNo(at), Kind::Data, 0, &[value; BLOCK_SIZE])
            .unwrap();
        let _ = op.commit();
    };
    for i in 0..24 {
        fill(0, BLOCKS + i, 1);
        if i % 12 == 11 {
            journal.sync(StreamId(0), &[]).unwrap();
        }
    }
    sim.mark(1);
    for i in 0..42 {
        fill(1 + i as u32 / 14, BLOCKS + 24 + i, 2);
    }
    journal.checkpoint().unwrap();
    journal.sync_all().unwrap();
    let (mut explorer, mut images) = (sim.explorer(), 0);
    for position in 0..=explorer.len() {
        let cut = explorer.cut(position);
        let acked = !cut.marks().is_empty();
        for image in cut.images(&limits(5)) {
            images += 1;
            let (journal, _) = Journal::open(
                Arc::new(SimDevice::from_image(image)),
                config(false, faults),
            )
            .map_err(|e| format!("cut at {position}: {e}"))?;
            let mut block = [0; BLOCK_SIZE];
            for i in 0..24 {
                journal.read_data(BlockNo(BLOCKS + i), &mut block).unwrap();
                if acked && block != [1; BLOCK_SIZE] {
                    return Err(format!("cut at {position}: block {i} lost what was synced"));
                }
            }
        }
    }
    Ok(images)
}

#[test]
fn corner_53_log_space_is_reused_only_after_a_durable_tail() {
    wrap_after_a_checkpoint(Faults::default()).unwrap_or_else(|e| panic!("{e}"));
    let broken = Faults {
        trim_early: true,
        ..Faults::default()
    };
    let story = wrap_after_a_checkpoint(broken).expect_err("the exploration misses trim_early");
    println!("{story}");
    steadfast_testkit::caught_in("journal", &broken);
}

#[test]
fn a_clean_shutdown_leaves_an_empty_log() {
    let run = run(&random_steps(3, 30, 2), 2, Faults::default());
    let (journal, _) = Journal::open(run.sim.clone(), config(false, Faults::default())).unwrap();
    let before = observe(&journal).unwrap();
    journal.close().unwrap();
    assert!(matches!(journal.sync_all(), Err(Error::Closed)));
    let (journal, recovery) = Journal::open(run.sim, config(false, Faults::default())).unwrap();
    assert!(recovery.clean && recovery.records == 0, "{recovery:?}");
    assert_eq!(observe(&journal).unwrap(), before);
}
