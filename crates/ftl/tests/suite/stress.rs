//! Random histories with crashes: see `steadfast_ftl::stress`.
#![allow(clippy::unwrap_used, clippy::panic)]

use steadfast_ftl::Faults;
use steadfast_ftl::stress::{Report, plans, run};

/// Seconds; with STEADFAST_LONG=1 more than twelve million flushes and ten thousand crashes.
#[test]
fn every_crash_returns_to_the_last_flush() {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let (operations, runs) = if long { (3_500_000, 5) } else { (60_000, 2) };
    let plans = plans();
    let reports: Vec<Report> = std::thread::scope(|scope| {
        let threads: Vec<_> = (plans.iter())
            .map(|plan| {
                scope.spawn(move || {
                    let mut total = Report::default();
                    for seed in steadfast_testkit::seeds(runs) {
                        total += run(plan, seed, operations, Faults::default()).unwrap();
                    }
                    println!("{}: {total:?}", plan.name);
                    total
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut total = Report::default();
    for report in reports {
        assert!(
            report.crashes > 30 && report.recovery_crashes > 3,
            "{report:?}"
        );
        assert!(
            report.flushed_crashes > 0 && report.checkpoints > 30,
            "{report:?}"
        );
        total += report;
    }
    println!("all: {total:?}");
    assert!(total.spoiled > 0 && total.refused > 0, "{total:?}");
    if long {
        assert!(total.flushes >= 12_000_000 && total.crashes >= 10_000);
    }
}
