//! A state that differs only where the checker never looked has the verdict of the judged one; and superfluous syncs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::check::Checker;
use crate::effects::Run;
use crate::explore::{Options, Outcome, explore};
use crate::models::Model;
use crate::planted::{Planted, plant_here};
use crate::script::Script;
use crate::states::Limits;
use std::path::Path;

fn explored(run: &Run, check: &str, prune: bool, fault: Option<Planted>) -> Outcome {
    let options = Options {
        limits: Limits {
            samples: 10,
            ..Limits::default()
        },
        jobs: 2,
        repair: false,
        prune,
        superfluous: fault.is_some_and(|f| f == Planted::WorseUnseen),
        ..Options::new(vec![
            Model::shipped("ext4").unwrap(),
            Model::shipped("posix").unwrap(),
        ])
    };
    let checker = Checker::new(None, Some(check.to_owned())).unwrap();
    plant_here(fault);
    let outcome = explore(run, &checker, &options).unwrap();
    plant_here(None);
    assert_eq!(outcome.error, None);
    outcome
}

/// The findings: kind, line and number of broken states by model.
fn found(outcome: &Outcome) -> Vec<String> {
    let findings = outcome.findings.iter();
    let mut all: Vec<String> = findings
        .flat_map(|f| {
            f.under
                .iter()
                .map(move |u| format!("{:?} {} {} {}", f.kind, f.line, u.model, u.broken))
        })
        .collect();
    all.sort();
    all
}

/// Small workloads, each with a check that ignores a part of the files, or changes some of them.
fn workloads() -> Vec<(&'static str, Run, &'static str)> {
    let s = Script::new;
    let big = [b'x'; 9000];
    vec![
        (
            "a file that is never read",
            s().make("log")
                .write("log", 0, &big)
                .make("tmp")
                .write("tmp", 0, b"new")
                .rename("tmp", "f")
                .run(),
            "test ! -e f || test \"$(cat f)\" = new || { echo 'f is not new'; exit 1; }",
        ),
        (
            "a file whose size alone counts",
            s().make("f")
                .write("f", 0, &big)
                .write("f", 4096, &big)
                .run(),
            "test ! -e f || test -s f || { echo 'f is empty'; exit 1; }",
        ),
        (
            "the first page of a file",
            s().make("f")
                .write("f", 0, &big)
                .fsync("f")
                .write("f", 100, b"abc")
                .write("f", 5000, b"def")
                .run(),
            "test \"$(dd if=f bs=1 skip=100 count=3 2>/dev/null)\" != abc || { echo 'abc is there'; exit 1; }",
        ),
        (
            "names in a directory",
            s().mkdir("d")
                .make("d/a")
                .make("d/b")
                .write("d/a", 0, &big)
                .unlink("d/b")
                .run(),
            "test ! -d d || test \"$(ls d)\" != b || { echo 'b without a'; exit 1; }",
        ),
        (
            "permission bits",
            s().make("f").write("f", 0, &big).chmod("f", 0o600).run(),
            "test ! -e f || test \"$(stat -c %a f)\" != 600 || { echo private; exit 1; }",
        ),
        (
            "what is acknowledged",
            s().make("a")
                .write("a", 0, b"a")
                .ack("a")
                .make("b")
                .write("b", 0, &big)
                .ack("b")
                .run(),
            "while read n; do test -e $n || { echo \"$n is lost\"; exit 1; }; done <\"$CRASH_ACKED\"",
        ),
        (
            "a size that is asked for before the file is opened",
            s().make("f")
                .write("f", 0, &big[..100])
                .write("f", 100, &big[..100])
                .run(),
            "test ! -e f || python3 -c 'import os
size = os.stat(\"f\").st_size
os.open(\"f\", os.O_RDONLY)
if size == 200:
    print(\"200 bytes\")
    exit(1)'",
        ),
        (
            "a file of which the check overwrites a part",
            s().make("f")
                .write("f", 0, &big[..4096])
                .write("f", 4096, b"yes")
                .run(),
            "test -e f || exit 0
             printf z | dd of=f conv=notrunc 2>/dev/null
             ! grep -q yes f || { echo 'the end is there'; exit 1; }",
        ),
        (
            "a file to which the check appends",
            s().make("f")
                .write("f", 0, &big[..100])
                .write("f", 100, &big[..100])
                .run(),
            "test -e f || exit 0
             echo yes >>f
             test \"$(dd if=f bs=1 skip=100 count=3 2>/dev/null)\" != yes || { echo 'at 100'; exit 1; }",
        ),
        (
            "a name that the check replaces",
            s().mkdir("d")
                .make("d/a")
                .make("d/b")
                .make("d/c")
                .unlink("d/b")
                .run(),
            "cd d 2>/dev/null || exit 0
             touch new; mv new b
             ! ls | grep -q c || { echo 'c is there'; exit 1; }",
        ),
        (
            "a link count that is asked for again and again, while the check changes it",
            s().make("f").write("f", 0, &big).mkdir("d").run(),
            "first=$(stat -c %h .); second=$(stat -c %h .); mkdir x; third=$(stat -c %h .); rmdir x
             test $second = $first && test $third = $((first + 1)) || { echo 'another count'; exit 1; }
             test $first = 2 || { echo 'd is there'; exit 1; }",
        ),
        (
            "a size that is asked for again and again, while the check changes it",
            s().make("f")
                .write("f", 0, &big[..100])
                .write("f", 100, &big[..100])
                .run(),
            "test -e f || exit 0
             first=$(stat -c %s f); second=$(stat -c %s f); echo z >>f; third=$(stat -c %s f)
             test $second = $first && test $third = $((first + 2)) || { echo 'another size'; exit 1; }
             test $first != 200 || { echo '200 bytes'; exit 1; }",
        ),
    ]
}

/// Whether a state can be served to a checker here.
fn can_serve() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists()
}

#[test]
fn pruning_leaves_the_findings_as_they_are_and_runs_fewer_checks() {
    let (mut with, mut without) = (0, 0);
    for (name, run, check) in workloads() {
        let (pruned, all) = (
            explored(&run, check, true, None),
            explored(&run, check, false, None),
        );
        assert_eq!(found(&pruned), found(&all), "{name}");
        assert!(!found(&all).is_empty(), "{name} finds nothing");
        assert_eq!(pruned.flaky, Vec::<String>::new(), "{name}");
        with += pruned.checks;
        without += all.checks;
    }
    assert!(with < without, "{with} of {without}");
    if can_serve() {
        assert!(with * 3 < without, "{with} of {without}");
    }
}

#[test]
fn a_look_that_is_forgotten_is_noticed() {
    if !can_serve() {
        steadfast_testkit::skipped!("no state can be served here");
        return;
    }
    let workloads = workloads();
    let all: Vec<Vec<String>> = workloads
        .iter()
        .map(|(_, run, check)| found(&explored(run, check, false, None)))
        .collect();
    for fault in [
        Planted::LookForgotten,
        Planted::StatForgotten,
        Planted::ListForgotten,
        Planted::OwnWhole,
    ] {
        let differs = workloads.iter().zip(&all).any(|((_, run, check), all)| {
            let forgotten = explored(run, check, true, Some(fault));
            found(&forgotten) != *all
        });
        assert!(differs, "{fault:?} is not noticed");
        steadfast_testkit::caught_in("crashtest", &fault);
    }
}

#[test]
fn a_needed_sync_that_is_called_superfluous_is_noticed() {
    let run = Script::new()
        .make("tmp")
        .write("tmp", 0, b"new")
        .fsync("tmp")
        .rename("tmp", "f")
        .run();
    let check = "test ! -e f || test -s f || { echo 'f is empty'; exit 1; }";
    let outcome = explored(&run, check, true, Some(Planted::WorseUnseen));
    assert_eq!(outcome.findings.len(), 0);
    let gone = outcome.superfluous.iter().map(|s| s.steps.len());
    // The sync is needed on posix, and the fault calls it superfluous.
    assert_eq!(gone.collect::<Vec<_>>(), [1, 1]);
    let gone = crate::superfluous::without(&run, &[2].into());
    assert_eq!(explored(&gone, check, true, None).findings.len(), 1);
    steadfast_testkit::caught("crashtest.worse_unseen");
}
