//! Machines that run the fencing protocol over a simulated store and network; the model of a snapshot disk is the judge.
//!
//! Each seed decides all: the same seed gives the same run. `STEADFAST_LONG=1` runs 100,000 seeds.

#![allow(clippy::panic, reason = "a test that fails says why")]

mod codec;
mod judge;
mod machine;

use std::sync::{Arc, Mutex};

use judge::Judge;
use machine::{BLOCKS, World, live, locked, look_at_snapshots, machine, visitor};
use steadfast_store::protocol::{Fault, Faults};
use steadfast_store_sim::{Clock, Random, SimStore, Trouble};

const SECOND: u64 = 1_000_000;

/// Result of a run.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    digest: String,
    requests: u64,
    acks: u64,
    openings: usize,
    reads: u64,
    snapshots: usize,
    wrong: Option<String>,
}

fn run(seed: u64, faults: Faults) -> Run {
    let clock = Clock::new();
    let mut random = Random::new(seed);
    // Every fourth seed has a calm network: then crashes and pauses alone.
    let trouble = if seed.is_multiple_of(4) {
        Trouble::default()
    } else {
        Trouble::plenty()
    };
    let store = SimStore::new(clock.clone(), random.draw(), trouble);
    let machines = random.between(2, 4);
    let world = World {
        clock: clock.clone(),
        store: store.clone(),
        judge: Arc::new(Mutex::new(Judge::new(BLOCKS))),
        random: Arc::new(Mutex::new(random)),
        faults,
    };
    let begin = world.clone();
    clock.spawn(async move {
        begin.format().await;
        for _ in 0..machines {
            begin.clock.spawn(machine(begin.clone(), 2));
        }
        begin.clock.spawn(visitor(begin.clone(), 8));
    });
    clock.run(70 * SECOND);
    // The network recovers. A machine comes and must open, regardless of the others; then the snapshots are looked at.
    store.set_trouble(Trouble::default());
    clock.run(200 * SECOND);
    let (last, opened) = (world.clone(), Arc::new(Mutex::new(false)));
    let told = opened.clone();
    clock.spawn(async move {
        *locked(&told) = live(&last, 10 * SECOND, false).await;
    });
    clock.run(300 * SECOND);
    clock.end();
    look_at_snapshots(&world);
    let mut judge = locked(&world.judge);
    if !*locked(&opened) {
        judge
            .fail("the network recovered, and the last machine did not open the volume".to_owned());
    }
    Run {
        digest: store.digest(),
        requests: store.requests(),
        acks: judge.acks,
        openings: judge.openings(),
        reads: judge.reads,
        snapshots: judge.snapshots.len(),
        wrong: judge.wrong.take(),
    }
}

#[test]
fn an_acknowledged_flush_is_in_every_later_opening() {
    let seeds = if std::env::var_os("STEADFAST_LONG").is_some() {
        100_000
    } else {
        2_000
    };
    let now = std::time::Instant::now();
    let (mut acks, mut openings, mut requests, mut reads, mut snapshots) = (0, 0, 0, 0, 0);
    for seed in steadfast_testkit::seeds(seeds) {
        let run = run(seed, Faults::default());
        if let Some(wrong) = run.wrong {
            panic!("seed {seed}: {wrong}");
        }
        acks += run.acks;
        openings += run.openings;
        requests += run.requests;
        reads += run.reads;
        snapshots += run.snapshots;
    }
    println!(
        "{seeds} seeds: {requests} requests, {openings} openings, {acks} flushes acknowledged, {snapshots} snapshots, {reads} disks compared, {:?}",
        now.elapsed()
    );
    assert!(openings > 2 * seeds as usize && acks > 10 * seeds && snapshots > 0);
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in 1..=20 {
        assert_eq!(run(seed, Faults::default()), run(seed, Faults::default()));
    }
}

#[test]
fn planted_faults_are_found() {
    for fault in [
        Fault::NoSeal,
        Fault::SealDeleted,
        Fault::NoClaim,
        Fault::CheckpointWithoutSwap,
        Fault::SlotDeletedEarly,
        Fault::AcknowledgedOutOfOrder,
        Fault::ForeignTakenForOwn,
        Fault::DeletedBeforeSwap,
        Fault::DataNamedEarly,
        Fault::SnapshotNotPinned,
        Fault::ReaderOutlived,
        Fault::StaleListBelieved,
    ] {
        let wrong = |seed| Some((seed, run(seed, Faults::only(fault)).wrong?));
        match (1..=400).find_map(wrong) {
            Some((seed, wrong)) => println!("{fault:?}: seed {seed}: {wrong}"),
            None => panic!("{fault:?} was not found in 400 seeds"),
        }
        steadfast_testkit::caught_in("protocol", &fault);
    }
}
