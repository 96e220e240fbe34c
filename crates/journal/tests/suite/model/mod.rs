//! The journal against its specification, the logical log of `steadfast_model::log`: random
//! histories of one thread (module `history` makes them, `drive` carries them out, shrunk to
//! the relevant part when something is wrong), and threads on shared objects (module
//! `threads`). Seeds are fixed; `STEADFAST_LONG=1` raises the number of cases a hundredfold.
#![cfg(not(feature = "shuttle"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod disk;
mod drive;
mod history;
mod threads;

use drive::Tally;
use history::{History, Shape};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::{Cell, RefCell};
use steadfast_journal::Faults;

/// A few bytes here and there.
const SMALL: Shape = Shape {
    streams: 3,
    large: false,
};
/// Whole blocks, in transactions that fill the log.
const LARGE: Shape = Shape {
    streams: 6,
    large: true,
};

/// Number of cases of a test.
fn cases(n: u32) -> u32 {
    if std::env::var_os("STEADFAST_LONG").is_some() {
        n * 100
    } else {
        n
    }
}

/// Carries out `cases` histories. An error is the shortest one found that goes wrong, as text.
fn run(shape: Shape, faults: Faults, seed: u8, cases: u32, shrinks: u32) -> Result<Tally, String> {
    let config = Config {
        cases,
        max_shrink_iters: shrinks,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let (tally, first) = (RefCell::new(Tally::default()), Cell::new(None));
    let result = runner.run(&history::histories(shape), |history: History| {
        let result = drive::drive(&history, faults, &mut tally.borrow_mut());
        if result.is_err() && first.get().is_none() {
            first.set(Some(tally.borrow().cases));
        }
        result.map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => Ok(tally.into_inner()),
        Err(TestError::Fail(story, _)) => {
            let case = first.get().unwrap_or(0);
            Err(format!("seed {seed}, case {case}: {story}"))
        }
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

fn holds(shape: Shape, seed: u8, n: u32) {
    let tally =
        run(shape, Faults::default(), seed, cases(n), 20_000).unwrap_or_else(|e| panic!("{e}"));
    println!("{tally:?}");
    assert!(
        tally.images > u64::from(n) * 5 && tally.wraps > 0 && tally.merges > 0,
        "{tally:?}"
    );
}

#[test]
fn one_stream_recovers_a_prefix_of_its_operations() {
    let shape = Shape {
        streams: 1,
        ..SMALL
    };
    // One stream has nothing to merge with.
    let tally =
        run(shape, Faults::default(), 1, cases(300), 20_000).unwrap_or_else(|e| panic!("{e}"));
    println!("{tally:?}");
    assert!(
        tally.images > 1_500 && tally.wraps > 0 && tally.merges == 0,
        "{tally:?}"
    );
}

#[test]
fn three_streams_recover_related_prefixes() {
    holds(SMALL, 2, 1_000);
}

#[test]
fn large_operations_fill_the_log_and_wrap() {
    holds(LARGE, 3, 300);
}

/// Cases in which a fault must show.
const CAUGHT_WITHIN: u32 = 4_000;

fn is_caught(faults: Faults, shape: Shape, name: &str) {
    let shrinks = cases(60);
    // A journal's own assertion that fires is a catch, too.
    match run(shape, faults, 4, CAUGHT_WITHIN, shrinks) {
        Err(story) => println!("{name}: {story}"),
        Ok(tally) => panic!("the property test misses {name}: {tally:?}"),
    }
    steadfast_testkit::caught_in("journal", &faults);
}

macro_rules! mutation {
    ($test:ident, $fault:ident, $shape:expr) => {
        #[test]
        fn $test() {
            let faults = Faults {
                $fault: true,
                ..Faults::default()
            };
            is_caught(faults, $shape, stringify!($fault));
        }
    };
}

// All faults that a power cut can show. `replay_past_bad` needs a damaged medium: after a record
// that a cut tore there is never another one.
mutation!(a_skipped_flush_is_caught, skip_flush, SMALL);
mutation!(an_early_acknowledgement_is_caught, acknowledge_early, SMALL);
mutation!(corner_01_early_reuse_is_caught, reuse_early, SMALL);
mutation!(
    corner_04_a_missing_covered_check_is_caught,
    skip_covered_check,
    SMALL
);
mutation!(
    corner_20_foreign_uncommitted_bytes_are_caught,
    lay_current,
    SMALL
);
mutation!(corner_02_a_dropped_revoke_is_caught, drop_revoke, SMALL);
mutation!(
    relations_that_are_not_indexed_when_a_second_stream_comes_are_caught,
    relations_unindexed,
    SMALL
);
mutation!(
    corner_53_early_reuse_of_log_space_is_caught,
    trim_early,
    LARGE
);
mutation!(an_unflushed_home_write_is_caught, skip_home_flush, SMALL);
mutation!(
    corner_51_a_home_write_over_an_unproved_covered_block_is_caught,
    install_unproved,
    SMALL
);
mutation!(
    corner_52_replay_before_the_verdict_is_caught,
    replay_before_verdict,
    SMALL
);
