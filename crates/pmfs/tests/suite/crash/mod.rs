//! Power cuts at every store, write-back and fence of sequences of calls: a mount of every image has the tree of
//! before or of after the call that was cut, and of after once it has returned.
//!
//! `STEADFAST_LONG=1` explores all pairs and many triples (more than a million images); `STEADFAST_SEED` chooses the sample.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod explore;
mod mutants;
mod rules;
pub(crate) mod sequences;

use explore::{Sequence, Sum, explore};
use sequences::Choice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use steadfast_pm::Model;

/// The switch of the long tier.
fn long() -> bool {
    std::env::var_os("STEADFAST_LONG").is_some()
}

fn seed() -> u64 {
    let seed = std::env::var("STEADFAST_SEED").ok();
    seed.and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// The violation of the shortest sequence that has one.
fn shortest(sequence: &Sequence, model: Model, images_max: u64, violation: String) -> String {
    // A call that is left out may make another fail.
    let explored = |less: &Sequence| {
        let run = || explore(less, model, images_max, seed());
        std::panic::catch_unwind(run).unwrap_or(Ok(Sum::default()))
    };
    let less = sequence.clone().shrunk(|less| explored(less).is_err());
    explored(&less).err().unwrap_or(violation)
}

/// Explores all of them in two threads; panics with the first violation.
fn all(sequences: &[Sequence], model: Model, images_max: u64) -> Sum {
    let next = AtomicUsize::new(0);
    let sum = Mutex::new(Sum::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(sequence) = sequences.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match explore(sequence, model, images_max, seed()) {
                        Ok(found) => sum.lock().unwrap().add(&found),
                        Err(violation) => {
                            next.store(sequences.len(), Ordering::Relaxed);
                            panic!("{}", shortest(sequence, model, images_max, violation));
                        }
                    }
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap();
    println!("{model:?}: {} sequences, {sum}", sequences.len());
    sum
}

#[test]
fn every_call_is_there_whole_or_not_at_all() {
    let sum = all(&sequences::singles(), Model::Line, 4096);
    assert!(sum.images > 10_000, "{sum}");
}

#[test]
fn pairs_of_calls_are_there_in_order() {
    let choice = if long() {
        Choice::All
    } else {
        Choice::Sample(80)
    };
    let sum = all(&sequences::pairs(choice, seed()), Model::Line, 256);
    assert!(sum.images > 5_000, "{sum}");
}

#[test]
fn three_calls_are_there_in_order() {
    let count = if long() { 6000 } else { 12 };
    let sum = all(&sequences::triples(count, seed()), Model::Line, 256);
    assert!(sum.images > 500, "{sum}");
}

/// Caches that survive a power cut: stores survive as a prefix, data that bypasses them in any order until its fence.
#[test]
fn every_call_is_atomic_under_eadr() {
    let sum = all(&sequences::singles(), Model::Eadr, 1024);
    assert!(sum.images > 500, "{sum}");
}

#[test]
fn a_file_without_a_name_is_nowhere_until_it_is_linked_and_then_whole() {
    for size in [0, 100, 9000] {
        let recorded = explore::record_nameless(size);
        for model in [Model::Line, Model::Eadr] {
            let found = explore::explore_trace(&recorded, &recorded.trace, model, 64, seed());
            found.unwrap_or_else(|why| panic!("{size} bytes, {model:?}: {why}"));
        }
    }
}

#[test]
fn a_failing_sequence_is_reported_without_irrelevant_calls() {
    let op = |line: &str| line.parse().unwrap();
    let lines = ["mknod /a file 600 0", "mknod /b file 600 0", "mkdir /d 700"];
    let sequence = Sequence {
        setup: lines.map(op).to_vec(),
        calls: vec![op("unlink /b"), op("unlink /a")],
    };
    let needs = |less: &Sequence| {
        let all: Vec<String> = less
            .setup
            .iter()
            .chain(&less.calls)
            .map(ToString::to_string)
            .collect();
        all.contains(&"mknod /a file 600 0".to_owned()) && all.contains(&"unlink /a".to_owned())
    };
    let shortest = sequence.shrunk(needs);
    assert_eq!((shortest.setup.len(), shortest.calls.len()), (1, 1));
}
