//! Cuts inside the recovery: each fault planted there is noticed. There is only one test, since a recording reaps all
//! children of its process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::Path;

use steadfast_crashtest::check::Checker;
use steadfast_crashtest::effects::Run;
use steadfast_crashtest::explore::{Kind, Options, explore};
use steadfast_crashtest::models::Model;
use steadfast_crashtest::planted::{Planted, plant};
use steadfast_crashtest::record;
use steadfast_crashtest::recovery::Recoveries;
use steadfast_crashtest::trace::Trace;

/// A change is written to a log and acknowledged.
fn logged(dir: &Path) -> Run {
    let script = "printf new >log; sync log; sync .; echo logged";
    let command = ["sh", "-c", script].map(Into::into).to_vec();
    let mut options = record::Options::new(command, dir.join("trace"));
    let from = dir.join("from");
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("data"), "old").unwrap();
    options.from = Some(from);
    record::record(options).unwrap();
    Run::of_trace(&Trace::open(&dir.join("trace")).unwrap()).unwrap()
}

const CHECK: &str = "grep -qx logged \"$CRASH_ACKED\" || exit 0
    test \"$(cat data)\" = new || { echo 'the logged change is lost'; exit 1; }";

fn inside(run: &Run, recover: &str) -> Recoveries {
    let options = Options {
        jobs: 2,
        repair: false,
        recovery_cuts: 10,
        ..Options::new(vec![Model::shipped("ext4").unwrap()])
    };
    let checker = Checker::new(Some(recover.to_owned()), Some(CHECK.to_owned())).unwrap();
    let outcome = explore(run, &checker, &options).unwrap();
    assert_eq!((outcome.error, outcome.findings.len()), (None, 0));
    outcome.recoveries.unwrap()
}

#[test]
fn each_fault_of_cuts_inside_the_recovery_is_noticed() {
    if !Path::new("/dev/fuse").exists() {
        steadfast_testkit::skipped!("no recovery can be recorded here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = logged(dir.path());
    let early = "if test -e log; then new=$(cat log); rm log; printf %s \"$new\" >data; fi";
    let late = "if test -e log; then cat log >data; sync data; rm log; fi";
    let twin = inside(&run, late);
    assert!(twin.findings.is_empty() && twin.judged > 0, "{twin:#?}");
    let found = inside(&run, early).findings;
    assert_eq!(found.len(), 1, "{found:#?}");
    let told = (found[0].kind, found[0].line.as_str());
    assert_eq!(told, (Kind::Lost, "the logged change is lost"));
    for fault in [Planted::RecoveryForgets, Planted::RecoveryWhole] {
        plant(fault);
        let recoveries = inside(&run, early);
        assert!(recoveries.writing > 0, "{fault:?}");
        assert!(recoveries.findings.is_empty(), "{fault:?} is not noticed");
        steadfast_testkit::caught_in("crashtest", &fault);
    }
}
