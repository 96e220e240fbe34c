//! Optional parts of `steadfast crash test`: cuts inside the recovery, superfluous syncs, stores through mmap,
//! findings confirmed on the real file system. Each has a program with a planted bug and its repaired twin.
#![cfg(feature = "crash")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::programs;
use programs::PROGRAM;

/// The exit status, and the report.
fn tested(options: &[&str], workload: &[&str]) -> (i32, Value) {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args(["900", PROGRAM, "crash", "test", "--json", "--samples", "20"])
        .args(options)
        .arg("--")
        .args(workload)
        .env("TMPDIR", dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|e| panic!("{options:?}: {e}: {said}"));
    (output.status.code().unwrap(), report)
}

fn len(value: &Value) -> usize {
    value.as_array().unwrap().len()
}

/// A change is logged, and the recovery carries it out.
fn with_recovery(recover: &str, more: &[&str]) -> (i32, Value) {
    let options = [
        "--fs",
        "ext4,posix",
        "--setup",
        "echo old >data",
        "--recover",
        recover,
        "--recovery-cuts",
        "--check",
        "grep -qx logged \"$CRASH_ACKED\" || exit 0; test \"$(cat data)\" = new || { echo 'the logged change is lost'; exit 1; }",
    ];
    let workload = "echo new >log; sync log; sync .; echo logged";
    tested(&[&options, more].concat(), &["sh", "-c", workload])
}

#[test]
fn a_recovery_that_removes_its_log_too_early_is_found_and_its_twin_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["r.html", "r.xml", "r.sarif"].map(|name| dir.path().join(name));
    let names = files.each_ref().map(|f| f.to_str().unwrap());
    let written = ["--html", names[0], "--junit", names[1], "--sarif", names[2]];
    let early = "if test -e log; then new=$(cat log); rm log; echo $new >data; fi";
    let (status, report) = with_recovery(early, &written);
    assert_eq!(status, 1, "{report:#}");
    assert_eq!(len(&report["findings"]), 0, "{:#}", report["findings"]);
    let recovery = &report["recovery"];
    assert_eq!(len(&recovery["findings"]), 1, "{recovery:#}");
    let finding = &recovery["findings"][0];
    assert_eq!(finding["line"], "the logged change is lost");
    assert_eq!(finding["kind"], "acknowledged and lost");
    let durable = finding["durable"]["text"].as_str().unwrap();
    assert!(
        durable.contains("unlink log") || durable.contains("data"),
        "{durable}"
    );
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let told = ["the logged change is lost", "inside the recovery", durable];
        assert!(told.iter().all(|t| text.contains(t)), "{file:?}: {text}");
    }
    let late = "if test -e log; then cat log >data; sync data; rm log; fi";
    let (status, report) = with_recovery(late, &[]);
    let recovery = &report["recovery"];
    assert_eq!((status, len(&recovery["findings"])), (0, 0), "{recovery:#}");
    assert!(recovery["writing"].as_u64().unwrap() > 0, "{recovery:#}");
    assert!(recovery["judged"].as_u64().unwrap() > 10, "{recovery:#}");
    steadfast_testkit::caught("toy.recovery_removes_its_log_early");
}

#[test]
fn a_superfluous_sync_is_reported_and_needed_ones_are_not() {
    let check = "test -s f || { echo empty; exit 1; }; \
         ! grep -qx done \"$CRASH_ACKED\" || test \"$(cat f)\" = new || { echo lost; exit 1; }";
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("r.sarif");
    let options = [
        "--fs",
        "posix",
        "--superfluous",
        "--sarif",
        log.to_str().unwrap(),
        "--setup",
        "echo old >f",
        "--check",
        check,
    ];
    let twice = "echo new >tmp; sync tmp; sync tmp; mv tmp f; sync .; echo done";
    let (status, report) = tested(&options, &["sh", "-c", twice]);
    assert_eq!(status, 0, "{report:#}");
    let found = &report["superfluous"][0];
    assert_eq!(
        (&found["model"], &found["of"]),
        (&"posix".into(), &3.into())
    );
    assert_eq!(len(&found["syncs"]), 1, "{found:#}");
    assert_eq!(found["syncs"][0]["text"], "fsync tmp");
    let sarif: Value = serde_json::from_slice(&std::fs::read(&log).unwrap()).unwrap();
    let results = &sarif["runs"][0]["results"];
    assert_eq!(len(results), 1, "{results:#}");
    assert_eq!(results[0]["ruleId"], "superfluous-sync");
    let once = "echo new >tmp; sync tmp; mv tmp f; sync .; echo done";
    let (status, report) = tested(&options, &["sh", "-c", once]);
    assert_eq!(status, 0, "{report:#}");
    assert_eq!(len(&report["superfluous"][0]["syncs"]), 0, "{report:#}");
    steadfast_testkit::caught("toy.superfluous_sync");
}

/// Stores through mmap, then renames; with an argument, waits until the kernel has written the page back.
const MAPPED: &str = r#"
import mmap, os, sys, time
file = open('data', 'r+b')
pages = mmap.mmap(file.fileno(), 4096)
pages[0:3] = b'new'
def dirty():
    ours = False
    for line in open('/proc/self/smaps'):
        if '-' in line.split(' ')[0]:
            ours = line.rstrip().endswith('/data')
        elif ours and line.split()[0] in ('Shared_Dirty:', 'Private_Dirty:') and line.split()[1] != '0':
            return True
    return False
tries = 0
while len(sys.argv) > 1 and dirty():
    tries += 1
    if tries > 1000:
        sys.exit('the page is still dirty')
    time.sleep(0.01)
os.rename('a', 'b')
"#;

#[test]
fn stores_through_mmap_are_ordered_on_request() {
    let options = [
        "--fs",
        "killed",
        "--setup",
        "head -c 4096 /dev/zero >data; echo >a",
        "--check",
        "test ! -e b || test \"$(head -c 3 data | tr -d '\\0')\" = new || { echo 'b without data'; exit 1; }",
    ];
    let run = |more: &[&str], arguments: &[&str]| {
        let options = [&options, more].concat();
        tested(&options, &[&["python3", "-c", MAPPED], arguments].concat())
    };
    // The store comes when the file is closed: a killed process seems to lose it.
    let (status, report) = run(&[], &[]);
    assert_eq!(status, 1, "{report:#}");
    assert!(
        report["blind"].to_string().contains("mmap"),
        "{:#}",
        report["blind"]
    );
    let (status, report) = run(&["--mmap", "every-call"], &[]);
    assert_eq!((status, len(&report["findings"])), (0, 0), "{report:#}");
    // The page is clean once the kernel has sent it; on a busy machine the rename may be served first.
    let in_order = (0..10).any(|_| {
        let (status, report) = run(&["--mmap", "10ms"], &["wait"]);
        (status, len(&report["findings"])) == (0, 0)
    });
    assert!(in_order);
}

#[test]
fn findings_are_confirmed_on_the_real_file_system_or_a_warning_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let options = [
        "--fs",
        "ext4-noauto_da_alloc,posix",
        "--confirm=200",
        "--no-repair",
        "--html",
        page.to_str().unwrap(),
        "--setup",
        "echo old >f",
        "--check",
        "test -s f || { echo 'f is empty'; exit 1; }",
    ];
    let (status, report) = tested(&options, &["sh", "-c", "echo new >tmp; mv tmp f"]);
    assert_eq!(status, 1, "{report:#}");
    let under = report["findings"][0]["under"].as_array().unwrap();
    assert_eq!(under.len(), 2, "{under:#?}");
    let real = &under[0]["confirmation"];
    let warnings = report["warnings"].to_string();
    // No file system here has this model.
    assert!(under[1]["confirmation"].is_null());
    if let Some(why) = steadfast_crashtest::real::unable(steadfast_crashtest::real::Kind::Ext4) {
        assert!(real.is_null(), "{real:#}");
        assert!(
            warnings.contains("not confirmed on ext4"),
            "{why}: {warnings}"
        );
        return;
    }
    let (cuts, shown) = (real["cuts"].as_u64(), real["shown"].as_u64());
    assert!(shown > Some(0) && shown <= cuts, "{real:#}");
    let line = real["line"].as_str().unwrap();
    assert!(
        line.starts_with("ext4 (noauto_da_alloc): confirmed: "),
        "{line}"
    );
    assert!(!warnings.contains("not confirmed"), "{warnings}");
    assert!(std::fs::read_to_string(&page).unwrap().contains(line));
}
