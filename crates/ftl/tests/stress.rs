//! Random histories with crashes: see `steadfast_ftl::stress`.

#![allow(clippy::unwrap_used, clippy::panic)]

use steadfast_ftl::Faults;
use steadfast_ftl::stress::{plans, run};

/// Seconds; with STEADFAST_LONG=1 more than twelve million flushes and ten thousand crashes.
#[test]
fn every_crash_returns_to_the_last_flush() {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let (operations, runs) = if long { (4_000_000, 5) } else { (60_000, 2) };
    for plan in plans() {
        for seed in 1..=runs {
            let report = run(&plan, seed, operations, Faults::default()).unwrap();
            println!("{}: {report:?}", plan.name);
            assert!(report.crashes > 10 && report.checkpoints > 0, "{report:?}");
        }
    }
}
