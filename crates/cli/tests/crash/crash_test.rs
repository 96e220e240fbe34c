//! `steadfast crash test` and its steps, on small programs.
#![cfg(feature = "crash")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::programs;
use programs::{PROGRAM, said};

const NOT_EMPTY: &str = "test -s f || { echo 'f is empty'; exit 1; }";
const FORGETS: &str = "echo new >tmp; mv tmp f; echo done";
const SYNCS: &str = "echo new >tmp; sync tmp; mv tmp f; sync .; echo done";

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["100", PROGRAM, "crash"]).args(args);
        command.current_dir(self.dir()).env("TMPDIR", self.dir());
        command.stdin(Stdio::null());
        command
    }

    fn crash(&self, args: &[&str]) -> Output {
        let output = self.command(args).output().unwrap();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let ours = self.dir().to_str().unwrap();
        assert!(!mounts.contains(ours), "a mount is left: {mounts}");
        output
    }

    /// The exit status and the output.
    fn said(&self, args: &[&str]) -> (i32, String) {
        let output = self.crash(args);
        (output.status.code().unwrap(), said(&output))
    }

    fn test(&self, options: &[&str], script: &str) -> (i32, String) {
        let setup = ["test", "--setup", "echo old >f", "--check", NOT_EMPTY];
        self.said(&[&setup, options, &["--", "sh", "-c", script]].concat())
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir()).unwrap();
        names
            .map(|n| n.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

#[test]
fn a_forgotten_fsync_is_found_with_its_repair_and_the_repaired_program_is_clean() {
    let place = Place::new();
    let (status, text) = place.test(&[], FORGETS);
    assert_eq!(status, 1, "{text}");
    for part in [
        "V1 broken on",
        "\"f is empty\"",
        "write tmp, 4 bytes",
        "rename tmp → f",
        "repair   fdatasync of the file of",
        "the trace is kept",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (status, text) = place.test(&[], SYNCS);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("0 findings"), "{text}");
}

#[test]
fn the_steps_say_the_same_and_lay_the_state_out() {
    let place = Place::new();
    let (status, text) = place.said(&[
        "record",
        "-o",
        "trace",
        "--setup",
        "echo old >f",
        "--",
        "sh",
        "-c",
        FORGETS,
    ]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("1 acknowledgements"), "{text}");
    let (status, text) = place.said(&["explain", "trace", "V1"]);
    assert_eq!(status, 3, "{text}");
    assert!(text.contains("crash explore trace"), "{text}");
    let (status, text) = place.said(&["explore", "--fs", "xfs", "--check", NOT_EMPTY, "trace"]);
    assert_eq!(status, 1, "{text}");
    let (status, text) = place.said(&["explain", "trace", "V1"]);
    assert_eq!(status, 0, "{text}");
    assert!(
        text.contains("| f is empty") && text.contains("xfs: "),
        "{text}"
    );
    let (status, text) = place.said(&["show", "trace", "V1", "state"]);
    assert_eq!(status, 0, "{text}");
    assert_eq!(fs::read(place.dir().join("state/f")).unwrap(), b"");
    let (status, text) = place.said(&["show", "trace", "V7", "other"]);
    assert_eq!(status, 2, "{text}");
    assert!(text.contains("there are V1"), "{text}");
}

#[test]
fn reports_are_written_in_all_forms_and_a_baseline_forgives() {
    let place = Place::new();
    let files = [
        "--html", "r.html", "--junit", "r.xml", "--sarif", "r.sarif", "--json",
    ];
    let (status, text) = place.test(&files, FORGETS);
    assert_eq!(status, 1, "{text}");
    let from = text.find('{').unwrap();
    let to = text.rfind('}').unwrap();
    let report: Value = serde_json::from_str(&text[from..=to]).unwrap();
    assert_eq!(report["findings"][0]["line"], "f is empty");
    let schema: Value =
        serde_json::from_str(include_str!("../../../../docs/crash-test.schema.json")).unwrap();
    assert_eq!(differs(&schema, &schema, &report, "report"), None);
    let mut other = report.clone();
    other["findings"][0]["under"][0]["repair"]["result"] = "perhaps".into();
    assert!(differs(&schema, &schema, &other, "report").is_some());
    fs::write(place.dir().join("known.json"), &text[from..=to]).unwrap();
    let read = |name: &str| fs::read_to_string(place.dir().join(name)).unwrap();
    assert!(read("r.html").contains("f is empty"));
    assert!(read("r.xml").contains("<failure"));
    let sarif: Value = serde_json::from_str(&read("r.sarif")).unwrap();
    assert_eq!(sarif["version"], "2.1.0");
    let (status, text) = place.test(&["--baseline", "known.json"], FORGETS);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("(known)"), "{text}");
    // Models that do not count.
    let (status, text) = place.test(&["--fs", "ext4,xfs", "--fail-on", "ext4"], FORGETS);
    assert_eq!(status, 0, "{text}");
}

/// The place where a value differs from the schema, in the schema's words; fields that the schema does not name
/// count, too.
fn differs(root: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/$defs/")?;
        return differs(root, &root["$defs"][name], value, at);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let all: Option<Vec<String>> = any.iter().map(|s| differs(root, s, value, at)).collect();
        return all.map(|all| all.join(" and "));
    }
    if let Some(all) = schema["enum"].as_array() {
        return (!all.contains(value)).then(|| format!("{at}: {value}"));
    }
    let wrong = |fits: bool| (!fits).then(|| format!("{at}: {value}"));
    match schema["type"].as_str() {
        Some("string") => wrong(value.is_string()),
        Some("integer") => {
            let least = schema["minimum"].as_i64().unwrap_or(0);
            wrong(value.as_i64().is_some_and(|n| n >= least))
        }
        Some("boolean") => wrong(value.is_boolean()),
        Some("null") => wrong(value.is_null()),
        Some("array") => match value.as_array() {
            None => wrong(false),
            // Each has a schema of its own.
            Some(all) if schema["prefixItems"].is_array() => {
                let each = schema["prefixItems"].as_array()?;
                let mut pairs = all.iter().zip(each);
                let first = pairs.find_map(|(v, s)| differs(root, s, v, at));
                first.or_else(|| wrong(all.len() == each.len()))
            }
            Some(all) => all
                .iter()
                .find_map(|v| differs(root, &schema["items"], v, at)),
        },
        Some("object") => {
            let Some(fields) = value.as_object() else {
                return wrong(false);
            };
            let required = schema["required"].as_array()?;
            let missing = required
                .iter()
                .filter_map(Value::as_str)
                .find(|r| !fields.contains_key(*r));
            if let Some(missing) = missing {
                return Some(format!("{at}: no {missing}"));
            }
            fields
                .iter()
                .find_map(|(name, v)| match &schema["properties"][name] {
                    Value::Null => Some(format!("{at}: {name} is not in the schema")),
                    known => differs(root, known, v, &format!("{at}.{name}")),
                })
        }
        _ => Some(format!("{at}: the schema says nothing")),
    }
}

/// Exit status 2 or 3, one line that says what is wrong.
#[test]
fn errors_are_reported_in_one_line() {
    let place = Place::new();
    fs::write(
        place.dir().join("wrong.toml"),
        "data = { unit = 4096 }\norder = [\n \"entry befor data\"\n]\n",
    )
    .unwrap();
    fs::write(place.dir().join("noise"), "not a trace").unwrap();
    let script = |options: &[&str], script: &str| place.test(options, script);
    for ((status, text), code, part) in [
        (script(&["--fs", "ext5"], ":"), 2, "ext5"),
        (script(&["--fs", "ext4,ext4"], ":"), 2, "twice"),
        (script(&["--fs", "./wrong.toml"], ":"), 2, "wrong.toml:3:"),
        (script(&["--fs", "./absent.toml"], ":"), 2, "absent.toml"),
        (script(&["--fail-on", "zfs"], ":"), 2, "not explored"),
        (script(&["--baseline", "noise"], ":"), 2, "no report"),
        (script(&["--budget", "soon"], ":"), 2, "'soon' is no time"),
        (script(&[], "exit 7"), 3, "exit status 7"),
        (script(&[], "kill -9 $$"), 3, "signal 9"),
        (script(&[], ":"), 3, "no call that changes a file"),
        (script(&[], "echo new >f; : >f"), 3, "without any power cut"),
        (
            place.said(&["test", "--check", "true", "--", "./absent"]),
            3,
            "absent",
        ),
        (
            place.said(&["test", "--setup", "exit 3", "--check", "true", "--", "true"]),
            3,
            "setup failed",
        ),
        (
            place.said(&["test", "--from", "absent", "--check", "true", "--", "true"]),
            3,
            "absent",
        ),
        (
            place.said(&["test", "--at", "absent", "--check", "true", "--", "true"]),
            3,
            "absent",
        ),
        (
            place.said(&["test", "--check", "no-such-program", "--", "touch", "a"]),
            3,
            "could not be run",
        ),
        (place.said(&["test", "--", "true"]), 2, "--check"),
        (
            place.said(&["explore", "--check", "true", "noise"]),
            3,
            "no trace",
        ),
        (
            place.said(&["explore", "--check", "true", "absent"]),
            3,
            "absent",
        ),
        (place.said(&["explain", "absent", "V1"]), 3, "absent"),
        (place.said(&["ack", "x"]), 1, "STEADFAST_CRASH_ACK"),
        (place.said(&["models", "ext5"]), 2, "ext5"),
    ] {
        assert_eq!(status, code, "{part}: {text}");
        let lines = text
            .lines()
            .filter(|l| l.starts_with("steadfast: ") || l.starts_with("error: "));
        let lines: Vec<&str> = lines.collect();
        assert!(lines.len() == 1 && text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_trace_that_is_cut_off_is_explored_as_far_as_it_goes_and_a_damaged_one_is_refused() {
    let place = Place::new();
    let (status, text) = place.said(&[
        "record",
        "-o",
        "trace",
        "--",
        "sh",
        "-c",
        "echo 1 >a; echo 2 >b",
    ]);
    assert_eq!(status, 0, "{text}");
    let mut bytes = fs::read(place.dir().join("trace")).unwrap();
    let half = bytes.len() - 40;
    fs::write(place.dir().join("cut"), &bytes[..half]).unwrap();
    let (status, text) = place.said(&["explore", "--check", "true", "cut"]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("the trace is cut off"), "{text}");
    bytes[half] ^= 1;
    fs::write(place.dir().join("damaged"), &bytes).unwrap();
    let (status, text) = place.said(&["explore", "--check", "true", "damaged"]);
    assert_eq!(status, 3, "{text}");
    assert!(text.contains("is damaged"), "{text}");
}

/// Each ends with its own status, and leaves no process and no file.
#[test]
fn workloads_and_checks_that_misbehave_are_ended() {
    let place = Place::new();
    let run = |options: &[&str], workload: &str| {
        let base = ["test", "--fs", "ext4"];
        place.said(&[&base, options, &["--", "sh", "-c", workload]].concat())
    };
    let (status, text) = run(
        &["--check", "true", "--time-limit", "4s"],
        "touch a; sleep 100",
    );
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("ended at its time limit"), "{text}");
    let daemon = "touch a; (setsid sleep 100 &)";
    let (status, text) = run(&["--check", "true"], daemon);
    assert_eq!(status, 0, "{text}");
    assert!(
        text.contains("were left when the workload had ended"),
        "{text}"
    );
    let endless = "test ! -e a || test -e b || sleep 100";
    let (status, text) = run(
        &["--check", endless, "--check-time", "3s"],
        "touch a; touch b",
    );
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("does not end within 3 s"), "{text}");
    for name in place.names() {
        fs::remove_file(place.dir().join(name)).unwrap();
    }
    // Nothing was recorded: nothing is kept.
    let (status, text) = run(&["--check", "true", "--setup", "exit 1"], "touch a");
    assert_eq!((status, place.names()), (3, Vec::new()), "{text}");
    let big = "head -c 1000000 /dev/zero >a";
    let (status, text) = run(&["--check", "true", "--trace-limit", "100K"], big);
    assert_eq!(status, 3, "{text}");
    assert!(text.contains("--trace-limit"), "{text}");
    // The output of a check does not reach the terminal unescaped.
    let escape = "test -e b || { printf 'bad\\033[31m\\n'; exit 1; }";
    let (_, text) = run(&["--check", escape], "touch b; touch a");
    assert!(
        text.contains("bad\\u{1b}") && !text.contains('\u{1b}'),
        "{text}"
    );
}

#[test]
fn acknowledgements_come_from_standard_output_and_from_the_command() {
    let place = Place::new();
    let check =
        "grep -qx one \"$CRASH_ACKED\" || exit 0; test -s a || { echo 'one is lost'; exit 1; }";
    for script in [
        "echo 1 >a; echo one".to_owned(),
        format!("echo 1 >a; {PROGRAM} crash ack one"),
    ] {
        let (status, text) = place.said(&["test", "--check", check, "--", "sh", "-c", &script]);
        assert_eq!(status, 1, "{text}");
        assert!(text.contains("acknowledged and lost"), "{text}");
        assert!(text.contains("told     'one'"), "{text}");
    }
}

#[test]
fn a_budget_that_ends_at_once_gives_its_own_exit_status() {
    let place = Place::new();
    let (status, text) = place.test(&["--budget", "0.000001s"], SYNCS);
    assert_eq!(status, 4, "{text}");
    assert!(text.contains("the budget ended"), "{text}");
}

#[test]
fn nothing_is_left_in_the_directory_for_temporary_files_when_nothing_was_found() {
    let place = Place::new();
    let (status, text) = place.test(&[], SYNCS);
    assert_eq!((status, place.names()), (0, Vec::new()), "{text}");
    let (status, text) = place.test(&["-o", "kept"], SYNCS);
    let mut names = place.names();
    names.sort();
    assert_eq!(
        (status, names),
        (0, vec!["kept".to_owned(), "kept.report.json".to_owned()]),
        "{text}"
    );
}

#[test]
fn an_interrupt_gives_what_was_found_so_far() {
    let place = Place::new();
    let fifo = |name: &str| {
        let path = place.dir().join(name);
        assert!(
            Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        path
    };
    let ready = fifo("ready");
    // The fifth check holds a lock until it is killed. Once, a signal waited for it, a second signal left it and its
    // directory, and the next check began.
    let check = "n=$(cat \"$COUNT\" 2>/dev/null || echo 0); echo $((n + 1)) >\"$COUNT\"; \
                 test $n = 5 || exit 0; \
                 pwd >\"$WHERE\"; exec 9>\"$LOCK\"; flock 9; echo >\"$READY\"; sleep 600";
    let workload = "for i in 1 2 3 4 5 6 7 8; do echo $i >f$i; done";
    let mut command = Command::new(PROGRAM);
    command.args([
        "crash",
        "test",
        "--jobs",
        "1",
        "--no-pruning",
        "--check",
        check,
        "--",
        "sh",
        "-c",
        workload,
    ]);
    let [count, lock, where_to] = ["count", "lock", "where"].map(|name| place.dir().join(name));
    command
        .env("TMPDIR", place.dir())
        .env("COUNT", &count)
        .env("LOCK", &lock)
        .env("WHERE", &where_to)
        .env("READY", &ready);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Opened for reading and writing, it needs no partner: a command that ends early is a failure, and no hang.
    let both = fs::OpenOptions::new().read(true).write(true).open(&ready);
    let mut ready = both.unwrap();
    rustix::fs::fcntl_setfl(&ready, rustix::fs::OFlags::NONBLOCK).unwrap();
    while ready.read_exact(&mut [0]).is_err() {
        if child.try_wait().unwrap().is_some() {
            panic!("{}", said(&child.wait_with_output().unwrap()));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&child);
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        rustix::process::kill_process(pid, signal).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("interrupted"), "{text}");
    assert!(text.contains("judges its states"), "{text}");
    let names = fs::read_dir(place.dir()).unwrap().flatten();
    let traces = names.filter(|e| e.file_name().to_string_lossy().ends_with(".trace"));
    assert_eq!(traces.count(), 1, "{text}");
    assert_eq!(fs::read_to_string(&count).unwrap(), "6\n", "no check began");
    let state = fs::read_to_string(&where_to).unwrap();
    assert!(!Path::new(state.trim_end()).exists(), "{state}");
    // The kernel ends the last process of a namespace a little later.
    let mut flock = Command::new("flock");
    flock.args(["--timeout", "60"]).arg(&lock).arg("true");
    assert!(flock.status().unwrap().success(), "the check goes on");
}

#[test]
fn a_user_who_is_not_root_has_a_mount_of_their_own() {
    if !rustix::process::geteuid().is_root() {
        // Without root, all other tests cover this.
        return steadfast_testkit::skipped!("only root becomes another user");
    }
    let place = Place::new();
    let free = Command::new("unshare").args(["--user", "true"]).status();
    if !free.is_ok_and(|s| s.success()) {
        return steadfast_testkit::skipped!("no user namespace to be had");
    }
    // The device may be root's: this makes a namespace with one for all users.
    let device = "mount --make-rprivate / && mkdir dev && mount -t tmpfs none dev && mknod -m 666 dev/fuse c 10 229 && \
                  mount --bind dev/fuse /dev/fuse";
    let inner = format!(
        "{device} && chmod 1777 . && exec setpriv --reuid 4711 --regid 4711 --clear-groups {PROGRAM} crash test --at /mnt --setup 'echo old >f' --check '{}' -- sh -c 'cd /mnt && {FORGETS}'",
        NOT_EMPTY.replace('\'', "'\\''")
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &inner])
        .current_dir(place.dir());
    let home = place.dir().to_owned();
    fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    command.env("TMPDIR", &home).process_group(0);
    let output = command.output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("repair   fdatasync"), "{text}");
}

/// Calls that FUSE does not see: without the filter, this program would lose what it acknowledged.
#[test]
fn sync_and_syncfs_are_seen() {
    let place = Place::new();
    let check =
        "grep -qx one \"$CRASH_ACKED\" || exit 0; test -s a || { echo 'one is lost'; exit 1; }";
    for call in ["sync", "sync -f ."] {
        let script = format!("echo 1 >a; {call}; echo one");
        let (status, text) = place.said(&["test", "--check", check, "--", "sh", "-c", &script]);
        assert_eq!(status, 0, "{call}: {text}");
        assert!(!text.contains("not watched"), "{text}");
    }
    let (status, text) = place.said(&[
        "test",
        "--check",
        check,
        "--",
        "sh",
        "-c",
        "sync; echo 1 >a; echo one",
    ]);
    assert_eq!(status, 1, "{text}");
}

/// The same run, seen by the recorder and by strace.
#[test]
fn a_log_of_strace_gives_the_calls_that_were_recorded() {
    let place = Place::new();
    if Command::new("strace").arg("-V").output().is_err() {
        return steadfast_testkit::skipped!("there is no strace");
    }
    let scripts = [
        "echo one >a; echo two >>a; mv a b; sync b; echo done",
        "mkdir d; echo 1 >d/f; ln d/f d/g; rm d/f; sync d; rmdir d 2>/dev/null; sync",
        "printf abc >f; (printf d; printf e) >>f; cp f g; chmod 600 g; ln -s g h; truncate -s 2 f",
        "dd if=/dev/zero of=z bs=4096 count=3 conv=fsync 2>/dev/null; mv z y; mkdir -p p/q; mv y p/q/z; echo moved",
    ];
    for script in scripts {
        let traced = [
            "record", "-o", "recorded", "--at", "/mnt", "--", "strace", "-f", "-y", "-xx", "-ttt",
            "-s", "100000", "-o",
        ];
        let log = place.dir().join("log");
        let log = log.to_str().unwrap();
        let (status, text) = place.said(&[&traced, &[log, "sh", "-c", script][..]].concat());
        assert_eq!(status, 0, "{text}");
        let (status, text) = place.said(&[
            "import", "--strace", log, "--root", "/mnt", "-o", "imported",
        ]);
        assert_eq!(status, 0, "{text}");
        let steps = |trace: &str| {
            let (status, text) = place.said(&[
                "explore", "--fs", "sync", "--check", "true", "--json", trace,
            ]);
            assert_eq!(status, 0, "{text}");
            let report: Value = serde_json::from_str(&text).unwrap();
            let steps = report["steps"].as_array().unwrap().clone();
            let texts = steps.iter().map(|s| s["text"].as_str().unwrap().to_owned());
            // A shell that runs another program closes descriptors without a call.
            let texts = texts.filter(|t| !t.starts_with("close"));
            texts.collect::<Vec<String>>()
        };
        assert_eq!(steps("recorded"), steps("imported"), "{script}");
    }
    fs::write(place.dir().join("other"), "openat(AT_FDCWD, \"x\") = 3\n").unwrap();
    let (status, text) = place.said(&[
        "import", "--strace", "other", "--root", "/mnt", "-o", "imported",
    ]);
    assert_eq!(status, 3, "{text}");
    assert!(text.contains("other:1: "), "{text}");
}
