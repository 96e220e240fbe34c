//! What the report says beside the findings is in HTML, JUnit and SARIF, too, and stays text there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

/// Text that a page must not take for a tag, and a line of its own.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

fn effect(call: u64, text: &str) -> EffectReport {
    EffectReport {
        call,
        class: "entry".to_owned(),
        text: text.to_owned(),
        location: Some(Place {
            file: format!("src/{call}.c"),
            line: Some(7),
        }),
        bytes: None,
    }
}

/// A report with one finding inside a recovery, a sync that can go, a confirmation, a warning and a blind spot.
fn report() -> Report {
    let state = StateReport {
        durable: Vec::new(),
        torn: None,
        digest: String::new(),
        moments: (0, 1),
        acknowledged: 0,
    };
    let under = UnderReport {
        model: "ext4".to_owned(),
        broken: 2,
        durable: Some(effect(2, "rename")),
        lost: vec![effect(1, "write")],
        torn: None,
        acknowledged: None,
        prefix: false,
        repair: RepairReport::NotTried,
        state,
        files: vec![FileReport {
            path: HOSTILE.to_owned(),
            written: Some("4 bytes, mode 0644".to_owned()),
            found: None,
            bytes: false,
            rows: vec![RowReport {
                same: false,
                written: Some((1, HOSTILE.to_owned())),
                found: None,
            }],
            cut: false,
        }],
        more_files: 1,
        confirmation: Some(ConfirmationReport {
            cuts: 50,
            shown: 9,
            line: "ext4: confirmed: 9 of 50 cuts".to_owned(),
        }),
    };
    let finding = FindingReport {
        id: "V1".to_owned(),
        key: "0".to_owned(),
        kind: "broken".to_owned(),
        line: "f is empty".to_owned(),
        output: "f is empty".to_owned(),
        known: false,
        under: vec![under],
        not_on: Vec::new(),
    };
    let inside = InsideReport {
        model: "posix".to_owned(),
        kind: "acknowledged and lost".to_owned(),
        line: format!("lost after a recovery {HOSTILE}"),
        output: HOSTILE.to_owned(),
        broken: 3,
        after: Some(effect(9, "acknowledge 'logged'")),
        without: vec![effect(8, "create other")],
        durable: Some(effect(4, "unlink log")),
        lost: vec![effect(3, "write data")],
        torn: None,
    };
    let model = |name: &str| ModelReport {
        name: name.to_owned(),
        calibration: "none".to_owned(),
        trees: 4,
        judged: 4,
        broken: 2,
        no_verdict: 0,
        ways: Vec::new(),
        durable: Vec::new(),
        points: Vec::new(),
    };
    Report {
        version: VERSION,
        command: "workload".to_owned(),
        calls: 3,
        acknowledged: 1,
        checks: 5,
        models: vec![model("ext4"), model("posix"), model("sync")],
        findings: vec![finding],
        recovery: Some(RecoveryReport {
            recorded: 6,
            writing: 5,
            judged: 44,
            findings: vec![inside],
        }),
        superfluous: vec![SuperfluousReport {
            model: "ext4".to_owned(),
            syncs: vec![StepReport {
                number: 6,
                text: format!("fsync {HOSTILE}"),
                location: Some(Place {
                    file: "src/sync.c".to_owned(),
                    line: Some(12),
                }),
                thread: 0,
            }],
            of: 3,
            tried: 3,
        }],
        blind: vec!["the order of stores through mmap between 2 write-backs".to_owned()],
        warnings: vec![format!("not confirmed on xfs: {HOSTILE}")],
        basic: true,
        interrupted: false,
        steps: vec![StepReport {
            number: 1,
            text: "</script><script>alert(1)</script>".to_owned(),
            location: None,
            thread: 7,
        }],
        sources: vec![SourceReport {
            place: "src/1.c:7".to_owned(),
            line: 7,
            first: 6,
            lines: vec!["{".to_owned(), format!("write({HOSTILE});")],
        }],
    }
}

/// Parts of the report above that each form must have: the recovery, the syncs, the confirmation, the blind spots.
const TOLD: [&str; 5] = [
    "lost after a recovery",
    "unlink log",
    "superfluous on ext4",
    "ext4: confirmed: 9 of 50 cuts",
    "mmap between 2 write-backs",
];

#[test]
fn a_page_tells_of_recoveries_syncs_and_confirmations() {
    let report = report();
    let page = html(&report);
    for told in TOLD {
        assert!(page.contains(told), "{told}: {page}");
    }
    assert!(page.contains("44 trees inside them, 3 broken for 1 reason"));
    assert!(page.contains("create other") && page.contains("acknowledge &#39;logged&#39;"));
    assert!(!page.contains("<img"), "{page}");
    assert_eq!(page.matches("&lt;img src=x").count(), 7, "{page}");
    assert!(page.contains("<strong>    7  write("), "{page}");
    // Without them there is nothing of it.
    let plain = Report {
        recovery: None,
        superfluous: Vec::new(),
        ..report
    };
    let page = html(&plain);
    assert!(
        !page.contains("recover") && !page.contains("can go"),
        "{page}"
    );
}

#[test]
fn a_test_case_fails_for_a_finding_inside_a_recovery() {
    let mut report = report();
    let text = junit(&report);
    for told in TOLD {
        assert!(text.contains(told), "{told}: {text}");
    }
    assert!(text.contains("tests=\"3\" failures=\"2\""), "{text}");
    assert!(!text.contains("<img"), "{text}");
    let case = |model: &str, text: &str| -> String {
        let from = text.split(&format!("name=\"{model}\"")).nth(1).unwrap();
        from.split("</testcase>").next().unwrap().to_owned()
    };
    assert!(case("posix", &text).contains("type=\"acknowledged and lost\""));
    assert!(!case("ext4", &text).contains("lost after a recovery"));
    assert!(!case("sync", &text).contains("<failure"), "{text}");
    // Superfluous syncs fail nothing.
    report.findings.clear();
    report.recovery = None;
    assert!(junit(&report).contains("failures=\"0\""));
    assert!(junit(&report).contains("<system-out>superfluous on ext4"));
}

#[test]
fn sarif_has_a_result_for_each_with_its_place() {
    let report = report();
    let log = sarif(&report);
    let run = &log["runs"][0];
    let results = run["results"].as_array().unwrap();
    let of = |i: usize| {
        let place = &results[i]["locations"][0]["physicalLocation"];
        (
            results[i]["ruleId"].as_str().unwrap(),
            results[i]["level"].as_str().unwrap(),
            place["artifactLocation"]["uri"].as_str().unwrap(),
            place["region"]["startLine"].as_u64().unwrap(),
        )
    };
    assert_eq!(results.len(), 3, "{log:#}");
    assert_eq!(of(0), ("broken", "error", "src/1.c", 7));
    assert_eq!(of(1), ("lost", "error", "src/3.c", 7));
    assert_eq!(of(2), ("superfluous-sync", "note", "src/sync.c", 12));
    assert_eq!(results[0]["properties"]["confirmations"][0]["shown"], 9);
    assert_eq!(results[1]["properties"]["insideRecovery"], true);
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    let known: Vec<&str> = rules.iter().map(|r| r["id"].as_str().unwrap()).collect();
    for result in results {
        assert!(known.contains(&result["ruleId"].as_str().unwrap()));
    }
    for told in TOLD {
        assert!(log.to_string().contains(told), "{told}: {log:#}");
    }
    let said = &run["invocations"][0]["toolExecutionNotifications"];
    assert_eq!(said[0]["level"], "warning", "{said:#}");
    assert_eq!(said[1]["level"], "note", "{said:#}");
}

#[test]
fn a_step_is_durable_from_the_sync_on_that_demands_it() {
    let run = crate::script::Script::new()
        .make("a")
        .write("a", 0, b"aa")
        .make("b")
        .fdatasync("a")
        .close("a")
        .fsync(".")
        .make("c")
        .run();
    let after = |model: &str| {
        let model = crate::models::Model::shipped(model).unwrap();
        Effects::new(&run, &model).durable_after()
    };
    let kept = |t: usize| Some(Some(t));
    let posix = [kept(6), kept(4), kept(6), None, None, None, Some(None)];
    assert_eq!(after("posix"), posix);
    let sync = [kept(1), kept(2), kept(3), None, None, None, kept(7)];
    assert_eq!(after("sync"), sync);
}

/// SHA-256 in base64, as policies name it: by the system's own program.
fn sha256(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    std::fs::write(&file, text).unwrap();
    let output = std::process::Command::new("sha256sum").arg(&file).output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let bits: String = output.trim_start_matches('\\')[..64]
        .chars()
        .map(|c| format!("{:04b}", c.to_digit(16).unwrap()))
        .collect();
    let alphabet: Vec<char> = ('A'..='Z')
        .chain('a'..='z')
        .chain('0'..='9')
        .chain(['+', '/'])
        .collect();
    let padded = format!("{bits}00");
    let digits = padded.as_bytes().chunks(6);
    let text: String = digits
        .map(|six| alphabet[six.iter().fold(0, |n, b| n * 2 + usize::from(b - b'0'))])
        .collect();
    format!("sha256-{text}=")
}

#[test]
fn the_policy_of_a_page_permits_its_own_script_and_style_alone() {
    let page = html(&report());
    let between = |from: &str, to: &str| {
        let rest = page.split(from).nth(1).unwrap();
        rest.split(to).next().unwrap().to_owned()
    };
    let policy = between("http-equiv=\"Content-Security-Policy\" content=\"", "\"");
    let script = sha256(&between("<script>", "</script>"));
    let style = sha256(&between("<style>", "</style>"));
    let wanted = format!("default-src 'none'; script-src '{script}'; style-src '{style}'");
    assert_eq!(
        policy, wanted,
        "page.js or page.css has changed: html.rs names their hashes"
    );
    assert_eq!(page.matches("<script").count(), 2);
    assert!(!page.contains("style=\"") && !page.contains(" onclick"));
}

#[test]
fn a_flaky_check_is_warned_of_in_one_line_that_says_what_to_do() {
    let warned = |flaky: &[&str]| {
        let outcome = crate::explore::Outcome {
            flaky: flaky.iter().map(|l| (*l).to_owned()).collect(),
            ..Default::default()
        };
        let run = crate::effects::Run::default();
        make(&run, &[], &outcome, About::default()).warnings
    };
    assert!(warned(&[]).is_empty());
    let [one] = warned(&["no answer"]).try_into().unwrap();
    assert!(one.starts_with("the check is flaky: judged twice, one state got two verdicts"));
    assert!(one.contains("'no answer'") && one.contains("--check-time, then explore"));
    assert!(!one.contains('\n') && !one.contains("  "));
    let [two] = warned(&["no answer", "timeout"]).try_into().unwrap();
    assert!(two.contains("2 states got two verdicts"));
}
