//! From a run to a report, with real checkers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::check::{Checker, Verdict};
use crate::effects::{Effects, Run};
use crate::explore::{Kind, Options, Outcome, explore};
use crate::models::Model;
use crate::report::{About, RepairReport, Report, html, junit, make, sarif, text};
use crate::script::Script;
use crate::states::Limits;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const NOT_EMPTY: &str = "test ! -e f || test -s f || { echo 'f is <empty>'; exit 1; }";
const ACKED: &str =
    "while read n; do test -s \"$n\" || { echo \"$n is lost\"; exit 1; }; done < \"$CRASH_ACKED\"";

fn explored(run: &Run, models: &[&str], check: &str) -> (Outcome, Report) {
    let models: Vec<Model> = models.iter().map(|m| Model::shipped(m).unwrap()).collect();
    let options = Options {
        models: models.clone(),
        limits: Limits {
            samples: 20,
            ..Limits::default()
        },
        budget: Duration::from_secs(100),
        jobs: 2,
        ..Options::new(Vec::new())
    };
    let checker = Checker::new(None, Some(check.to_owned())).unwrap();
    let outcome = explore(run, &checker, &options).unwrap();
    let report = make(run, &models, &outcome, About::default());
    (outcome, report)
}

#[test]
fn a_forgotten_fsync_before_a_rename_is_found_repaired_and_told() {
    let run = Script::new()
        .make("tmp")
        .write("tmp", 0, b"aaaa")
        .rename("tmp", "f")
        .run();
    let (outcome, mut report) = explored(&run, &["ext4", "ordered"], NOT_EMPTY);
    assert_eq!(outcome.error, None);
    assert_eq!(report.findings.len(), 1, "{report:#?}");
    let finding = &report.findings[0];
    assert_eq!(
        (finding.kind.as_str(), finding.not_on.as_slice()),
        ("broken", ["ordered".to_owned()].as_slice())
    );
    let under = &finding.under[0];
    assert_eq!(
        under.durable.as_ref().map(|e| e.call),
        Some(2),
        "the rename"
    );
    assert!(
        under.lost.iter().all(|e| e.call == 1) && !under.lost.is_empty(),
        "the write"
    );
    let RepairReport::Found { syncs, .. } = &under.repair else {
        panic!("{:?}", under.repair);
    };
    assert_eq!((syncs.len(), syncs[0].before.call), (1, 2));
    // The state can be formed again, and not from another run.
    let model = Model::shipped("ext4").unwrap();
    assert!(under.state.state(&Effects::new(&run, &model)).is_ok());
    let other = Script::new().make("x").run();
    assert!(under.state.state(&Effects::new(&other, &model)).is_err());
    assert!(text(&report).lines().count() <= 40);
    assert!(
        text(&report).contains("repair   fdatasync"),
        "{}",
        text(&report)
    );
    assert!(html(&report).contains("f is &lt;empty&gt;") && !html(&report).contains("<empty>"));
    assert!(junit(&report).contains("failures=\"1\"") && !junit(&report).contains("<empty>"));
    assert_eq!(
        sarif(&report)["runs"][0]["results"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let again: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(again, report);
    report.forgive(&again);
    assert_eq!(report.counted(&[]).count(), 0);
    // The repaired twin.
    let twin = Script::new()
        .make("tmp")
        .write("tmp", 0, b"aaaa")
        .fsync("tmp")
        .rename("tmp", "f")
        .run();
    assert_eq!(
        explored(&twin, &["ext4", "posix", "ordered"], NOT_EMPTY)
            .1
            .findings,
        []
    );
}

#[test]
fn what_was_acknowledged_and_lost_needs_a_sync_of_the_directory_on_posix() {
    let script = || Script::new().make("f").write("f", 0, b"aaaa").fsync("f");
    let run = script().ack("f").run();
    let (outcome, report) = explored(&run, &["posix", "ext4"], ACKED);
    assert_eq!(report.findings.len(), 1, "{report:#?}");
    assert_eq!(outcome.findings[0].kind, Kind::Lost);
    assert_eq!(report.findings[0].not_on, ["ext4"]);
    let RepairReport::Found { syncs, .. } = &report.findings[0].under[0].repair else {
        panic!("{:?}", report.findings[0].under[0].repair);
    };
    assert!(
        syncs.len() == 1 && syncs[0].of.contains("directory"),
        "{syncs:?}"
    );
    let twin = script().fsync(".").ack("f").run();
    assert_eq!(explored(&twin, &["posix", "ext4"], ACKED).1.findings, []);
}

#[test]
fn a_check_that_is_ended_early_gives_no_verdict() {
    let run = Script::new().make("f").run();
    let effects = Effects::new(&run, &Model::shipped("sync").unwrap());
    let disk = effects.disk(&effects.prefix(1));
    // It ends by a signal all the same.
    let mut checker = Checker::new(None, Some("echo bad; exec sleep 600".to_owned())).unwrap();
    checker.until = Some(Instant::now() + Duration::from_millis(200));
    let ended = checker.judge(&disk, &[], &[]).unwrap();
    assert_eq!(ended, Verdict::Unfinished);
    checker.until = None;
    checker.stop.store(true, Ordering::Relaxed);
    let begun = checker.judge(&disk, &[], &[]).unwrap();
    assert_eq!(begun, Verdict::Unfinished);
    // The end of the budget ends the check that runs then.
    checker.stop.store(false, Ordering::Relaxed);
    let options = Options {
        budget: Duration::from_millis(300),
        ..Options::new(vec![Model::shipped("sync").unwrap()])
    };
    let outcome = explore(&run, &checker, &options).unwrap();
    assert!(outcome.cut_short && outcome.findings.is_empty());
    assert_eq!((outcome.checks, outcome.explored[0].judged), (0, 0));
}

#[test]
fn the_checkers_exit_status_is_its_verdict() {
    let run = Script::new().make("f").run();
    let effects = Effects::new(&run, &Model::shipped("sync").unwrap());
    let disk = effects.disk(&effects.prefix(1));
    let judge = |check: &str| {
        let mut checker = Checker::new(None, Some(check.to_owned())).unwrap();
        checker.time = Duration::from_secs(2);
        checker.judge(&disk, &["a".to_owned()], &[]).unwrap()
    };
    assert_eq!(
        judge("test -e f && test \"$PWD\" = \"$CRASH_DIR\" && grep -qx a \"$CRASH_ACKED\""),
        Verdict::Fine
    );
    assert_eq!(judge("exit 77"), Verdict::None);
    assert!(matches!(judge("no-such-command"), Verdict::Error(_)));
    assert!(
        matches!(judge("echo why; echo more; exit 3"), Verdict::Broken { line, .. } if line == "why")
    );
    assert!(
        matches!(judge("sleep 60"), Verdict::Broken { line, .. } if line.contains("does not end"))
    );
}
