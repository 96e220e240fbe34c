//! A program of many threads is recorded and explored: each call has its thread, and the one thread that forgets a sync is
//! found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeSet;
use std::time::Duration;

use steadfast_crashtest::check::Checker;
use steadfast_crashtest::effects::Run;
use steadfast_crashtest::explore::{Options, explore};
use steadfast_crashtest::models::Model;
use steadfast_crashtest::record::{self, record};
use steadfast_crashtest::states::Limits;
use steadfast_crashtest::trace::{Ended, Op, Trace};

const THREADS: usize = 200;

/// All threads are there before the first one writes. Thread 7 does not sync its file.
const WORKLOAD: &str = "import os, threading\n\
    begin = threading.Barrier(THREADS)\n\
    def work(i):\n\
    \x20   begin.wait()\n\
    \x20   f = os.open(f't{i}', os.O_CREAT | os.O_WRONLY)\n\
    \x20   os.write(f, b'x')\n\
    \x20   if i != 7:\n\
    \x20       os.fsync(f)\n\
    \x20   os.close(f)\n\
    \x20   os.rename(f't{i}', f'f{i}')\n\
    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]\n\
    for t in threads: t.start()\n\
    for t in threads: t.join()\n";

/// Names no file, so that all that are empty are one finding.
const CHECK: &str = "test -z \"$(find . -name 'f*' -size 0)\" || { echo a file is empty; exit 1; }";

#[test]
fn a_program_of_many_threads_is_recorded_and_the_thread_that_forgets_a_sync_is_found() {
    let dir = tempfile::tempdir().unwrap();
    if !std::path::Path::new("/dev/fuse").exists() {
        steadfast_testkit::skipped!("nothing can be recorded here");
        return;
    }
    let script = WORKLOAD.replace("THREADS", &THREADS.to_string());
    let command = vec!["python3".into(), "-c".into(), script.into()];
    let path = dir.path().join("trace");
    let recorded = record(record::Options::new(command, path.clone())).unwrap();
    assert_eq!(recorded.end.how, Ended::Exited(0));
    let trace = Trace::open(&path).unwrap();
    let renames = trace.calls.iter().filter(|c| c.op.word() == "rename");
    let by: BTreeSet<u32> = renames.clone().map(|c| c.who.thread).collect();
    assert_eq!((renames.count(), by.len()), (THREADS, THREADS));
    let known = trace
        .calls
        .iter()
        .map(|c| c.who.process)
        .filter(|p| *p != 0);
    let processes: BTreeSet<u32> = known.collect();
    assert_eq!(processes.len(), 1);
    let syncs = trace
        .calls
        .iter()
        .filter(|c| matches!(c.op, Op::Fsync { .. }));
    assert_eq!(syncs.count(), THREADS - 1);

    let run = Run::of_trace(&trace).unwrap();
    let options = Options {
        limits: Limits {
            each_max: 100,
            samples: 20,
            seed: 1,
        },
        budget: Duration::from_secs(3600),
        jobs: 2,
        ..Options::new(vec![Model::shipped("ext4").unwrap()])
    };
    let checker = Checker::new(None, Some(CHECK.to_owned())).unwrap();
    let outcome = explore(&run, &checker, &options).unwrap();
    assert_eq!((outcome.error, outcome.cut_short), (None, false));
    let [finding] = &outcome.findings[..] else {
        panic!("{:?}", outcome.findings);
    };
    assert_eq!(finding.line, "a file is empty");
    let under = &finding.under[0];
    // Which of the later calls is the last one of the state follows from how the threads ran.
    let lost = under
        .cause
        .lost
        .iter()
        .map(|t| run.steps[t.step].text.as_str());
    let lost: BTreeSet<&str> = lost.collect();
    assert_eq!(lost, BTreeSet::from(["write t7, 1 bytes at 0"]));
}
