//! Each fault that is planted in the exploration changes the report.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::check::Checker;
use crate::effects::{Effects, Run};
use crate::explore::{Options, Outcome, explore};
use crate::models::Model;
use crate::planted::{Planted, plant_here};
use crate::script::Script;
use crate::states::Limits;
use crate::why::{Repair, with_syncs};
use std::time::Duration;

fn explored(run: &Run, check: &str, fault: Option<Planted>) -> Outcome {
    let options = Options {
        models: vec![Model::shipped("posix").unwrap()],
        limits: Limits {
            samples: 0,
            ..Limits::default()
        },
        budget: Duration::from_secs(100),
        jobs: 2,
        ..Options::new(Vec::new())
    };
    let checker = Checker::new(None, Some(check.to_owned())).unwrap();
    plant_here(fault);
    let outcome = explore(run, &checker, &options).unwrap();
    plant_here(None);
    outcome
}

/// Two files that must be whole before both are acknowledged: four syncs repair that.
const WHOLE: &str =
    "grep -qx both \"$CRASH_ACKED\" || exit 0; test -s a && test -s b || { echo lost; exit 1; }";

fn two_files() -> Run {
    let s = Script::new().make("a").write("a", 0, b"aa");
    s.make("b").write("b", 0, b"bb").ack("both").run()
}

/// Whether the outcome is right: a finding with a repair that holds, reduced to the minimum.
fn is_right(run: &Run, outcome: &Outcome, check: &str) -> bool {
    let [finding] = outcome.findings.as_slice() else {
        return false;
    };
    let under = &finding.under[0];
    let Repair::Found { syncs, .. } = &under.repair else {
        return false;
    };
    let repaired = with_syncs(run, syncs);
    let left = explored(&repaired, check, None).findings.len();
    left == 0 && under.cause.lost.len() == 1
}

#[test]
fn each_fault_of_the_exploration_is_noticed() {
    let run = two_files();
    let right = explored(&run, WHOLE, None);
    assert!(is_right(&run, &right, WHOLE), "{:#?}", right.findings);
    for fault in [
        Planted::LookAlike,
        Planted::FirstMoment,
        Planted::RepairBelieved,
        Planted::NotReduced,
    ] {
        let outcome = explored(&run, WHOLE, Some(fault));
        assert!(!is_right(&run, &outcome, WHOLE), "{fault:?} is not noticed");
        steadfast_testkit::caught_in("crashtest", &fault);
    }
}

#[test]
fn a_check_that_says_two_things_is_called_flaky() {
    let run = Script::new().make("a").run();
    let dir = tempfile::tempdir().unwrap();
    let once = dir.path().join("once");
    let check = format!(
        "test ! -e {0} && touch {0} && exit 1; exit 0",
        once.display()
    );
    let outcome = explored(&run, &check, None);
    assert_eq!(outcome.flaky.len(), 1);
    std::fs::remove_file(&once).unwrap();
    let outcome = explored(&run, &check, Some(Planted::FlakyUnsaid));
    assert_eq!(outcome.flaky.len(), 0, "the fault is in its place");
    steadfast_testkit::caught("crashtest.flaky_unsaid");
}

/// The fault is not the default.
#[test]
fn without_a_fault_effects_are_those_of_the_model() {
    let run = two_files();
    let model = Model::shipped("posix").unwrap();
    let (plain, again) = (
        Effects::new(&run, &model),
        Effects::with_fault(&run, &model, None),
    );
    assert_eq!(plain.demanded, again.demanded);
}
