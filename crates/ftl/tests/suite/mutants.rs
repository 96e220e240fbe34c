//! A stress test that cannot fail proves nothing: each fault, planted on purpose, is found by
//! the same runs that find nothing without it, in seconds. Those that need a history of their own are in the
//! tests of that: free space in `space.rs`, failed programs and formats in `disk`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use steadfast_ftl::Faults;
use steadfast_ftl::stress::{Plan, plans, run};

/// Cuts and failures come often here, and one plan overwrites a few sectors again and again.
fn harsh() -> Vec<Plan> {
    let mut plans: Vec<Plan> = plans().into();
    plans.push(Plan {
        name: "few sectors",
        hot_percent: 1,
        ..plans[2].clone()
    });
    for plan in &mut plans {
        plan.cut_one_in = 120;
        plan.rates.program *= 20;
    }
    plans
}

/// Whether a planted fault is found within a bounded number of runs. A panic (a count that
/// underflows, say) finds it, too.
fn is_found(name: &str, faults: Faults) -> bool {
    let plans = harsh();
    for seed in 1..=24 {
        for plan in &plans {
            let run = || run(plan, seed, 12_000, faults);
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(_)) => {}
                Ok(Err(broken)) => {
                    println!("{name}: {broken}");
                    return true;
                }
                Err(_) => {
                    println!("{name}: panic in {}", plan.name);
                    return true;
                }
            }
        }
    }
    false
}

macro_rules! mutants {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                let faults = Faults { $name: true, ..Faults::default() };
                assert!(is_found(stringify!($name), faults));
                steadfast_testkit::caught_in("ftl", &faults);
            }
        )*
    };
}

mutants!(
    erase_before_flush,
    free_stable,
    skip_sync,
    skip_commit_tag,
    skip_delta_commit,
    accept_uncommitted,
    skip_gap,
    trust_the_end,
    flushed_early,
    forget_age,
    move_stale,
    root_early,
    free_old_checkpoint,
    ignore_failed,
    forget_trim,
    delta_early,
    skip_room,
    extra_unsynced,
);

#[test]
fn without_a_fault_the_same_runs_find_nothing() {
    for plan in &harsh() {
        for seed in 1..=2 {
            run(plan, seed, 12_000, Faults::default()).unwrap();
        }
    }
}
