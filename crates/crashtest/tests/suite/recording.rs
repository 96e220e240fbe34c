//! Small programs, recorded call by call.
//!
//! The recorder adopts the processes that a program leaves behind and ends all of its descendants, so each recording
//! runs in a process of its own: this test binary, started again for the test `recorder`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use steadfast_crashtest::planted::{Planted, plant};
use steadfast_crashtest::record::{Options, record};
use steadfast_crashtest::trace::{Call, Ended, Names, Op, Outcome, Trace};
use steadfast_model::{Tree, tree::ROOT};
use steadfast_vfs::Caller;

const ROLE: &str = "STEADFAST_TEST_RECORDER";

const FAULTS: [Planted; 4] = [
    Planted::LostReply,
    Planted::LateAcknowledgement,
    Planted::SyncUnseen,
    Planted::CloseForgotten,
];

/// Not a test by itself: records as the environment asks.
#[test]
fn recorder() {
    let Some(trace) = std::env::var_os(ROLE) else {
        return;
    };
    let variable = |name: &str| std::env::var_os(format!("{ROLE}_{name}"));
    let words = variable("COMMAND").unwrap();
    let words = words.as_bytes().split(|&b| b == 0x1f);
    let words = words.map(|w| OsString::from_vec(w.to_vec())).collect();
    let mut options = Options::new(words, trace.into());
    options.from = variable("FROM").map(PathBuf::from);
    options.at = variable("AT").map(PathBuf::from);
    options.setup = variable("SETUP");
    for fault in FAULTS {
        if variable("FAULT").is_some_and(|name| name == *format!("{fault:?}")) {
            plant(fault);
        }
    }
    if let Some(limit) = variable("LIMIT") {
        options.time_limit = Duration::from_millis(limit.to_str().unwrap().parse().unwrap());
    }
    if let Some(limit) = variable("BYTES") {
        options.trace_bytes_max = limit.to_str().unwrap().parse().unwrap();
    }
    match record(options) {
        Ok(recorded) => eprintln!("RECORDED {}", recorded.counts.calls),
        Err(e) => {
            eprintln!("REFUSED {e}");
            std::process::exit(3);
        }
    }
}

struct Run {
    dir: tempfile::TempDir,
    set: Vec<(String, OsString)>,
}

impl Run {
    fn new() -> Run {
        Run {
            dir: tempfile::tempdir().unwrap(),
            set: Vec::new(),
        }
    }

    fn with(mut self, name: &str, value: impl Into<OsString>) -> Run {
        self.set.push((format!("{ROLE}_{name}"), value.into()));
        self
    }

    fn trace(&self) -> PathBuf {
        self.dir.path().join("trace")
    }

    /// Whether it was recorded, and the output.
    fn try_words(&self, words: &[&[u8]]) -> (bool, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                &steadfast_testkit::test_name(module_path!(), "recorder"),
            ])
            .args(["--nocapture", "--test-threads=1"])
            .env(ROLE, self.trace())
            .env(
                format!("{ROLE}_COMMAND"),
                OsString::from_vec(words.join(&0x1f)),
            )
            .env("TMPDIR", self.dir.path());
        for (name, value) in &self.set {
            command.env(name, value);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let ours = self.dir.path().to_str().unwrap();
        assert!(!mounts.contains(ours), "a mount is left: {mounts}");
        let left: Vec<_> = fs::read_dir(ours).unwrap().flatten().collect();
        assert!(left.len() <= 1, "left over: {left:?}");
        (output.status.success(), said)
    }

    fn words(&self, words: &[&[u8]]) -> Trace {
        let (recorded, said) = self.try_words(words);
        assert!(recorded && said.contains("RECORDED"), "{said}");
        let trace = Trace::open(&self.trace()).unwrap();
        assert!(trace.cut.is_none());
        replayed(&trace);
        trace
    }

    fn sh(&self, script: &str) -> Trace {
        self.words(&[b"/bin/sh", b"-c", script.as_bytes()])
    }
}

/// The tree after all calls.
fn replayed(trace: &Trace) -> Tree {
    let mut tree = trace.initial_tree().unwrap();
    for call in &trace.calls {
        trace.replay(&mut tree, call).unwrap();
    }
    tree.check().unwrap();
    tree
}

/// The calls in words, without opens and closes.
fn listed(trace: &Trace) -> Vec<String> {
    let mut names = Names::new();
    trace.setup.iter().for_each(|call| names.note(call));
    let mut lines = Vec::new();
    for call in &trace.calls {
        if !matches!(
            call.op,
            Op::Open { .. } | Op::Close { .. } | Op::Release { .. }
        ) {
            lines.push(names.describe(call).replace(" (no replace)", ""));
        }
        names.note(call);
    }
    lines
}

fn content(tree: &Tree, name: &[u8]) -> Option<Vec<u8>> {
    let ino = tree.lookup(&Caller::root(), ROOT, name).ok()?;
    let mut bytes = vec![0; tree.getattr(ino).unwrap().size as usize];
    let n = tree.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(n);
    Some(bytes)
}

#[test]
fn the_calls_of_a_shell_script_are_recorded_in_order_with_acknowledgements() {
    let run = Run::new();
    let trace = run.sh(
        "mkdir d; printf hello > d/a; ln d/a d/b; ln -s a d/c; mv d/a e; echo done one; \
         printf ' world' >> e; rm d/b; echo done two; rm -r d; mkfifo p; chmod 600 e; printf unfinished",
    );
    assert_eq!(
        listed(&trace),
        [
            "mkdir d",
            "create d/a",
            "write d/a, 5 bytes at 0",
            "link d/a \u{2192} d/b",
            "symlink d/c \u{2192} a",
            "rename d/a \u{2192} e",
            "acknowledge \"done one\"",
            "write e, 6 bytes at 5 (append)",
            "unlink d/b",
            "acknowledge \"done two\"",
            "unlink d/c",
            "rmdir d",
            "mknod p",
            "setattr e",
        ]
    );
    let end = trace.end.unwrap();
    assert_eq!(end.how, Ended::Exited(0));
    assert_eq!(end.blind.unfinished_line, 10);
    let tree = replayed(&trace);
    assert_eq!(content(&tree, b"e").unwrap(), b"hello world");
    // Each program has a process of its own, and the shell's redirections are the shell's.
    let process = |word: &str| {
        let call = trace.calls.iter().find(|c| c.op.word() == word);
        call.unwrap().who.process
    };
    assert_ne!(process("mkdir"), process("create"));
    assert_eq!(process("create"), process("write"));
    assert!(trace.calls.iter().all(|c| c.begin <= c.end));
}

#[test]
fn syncs_of_files_and_directories_are_recorded() {
    let script = "import os\n\
        f = os.open('f', os.O_CREAT|os.O_RDWR, 0o600)\n\
        os.write(f, b'x' * 3000000)\n\
        os.fdatasync(f)\n\
        os.pwrite(f, b'yy', 10)\n\
        os.fsync(f)\n\
        os.ftruncate(f, 100)\n\
        os.posix_fallocate(f, 0, 200)\n\
        os.setxattr('f', 'user.k', b'v')\n\
        os.close(f)\n\
        os.open('f', os.O_WRONLY|os.O_TRUNC)\n\
        d = os.open('.', os.O_RDONLY)\n\
        os.fsync(d)\n\
        s = os.open('s', os.O_CREAT|os.O_WRONLY|os.O_DSYNC)\n\
        os.write(s, b'z')\n";
    let trace = Run::new().words(&[b"python3", b"-c", script.as_bytes()]);
    let lines = listed(&trace);
    let written: u64 = trace
        .calls
        .iter()
        .map(|c| match &c.op {
            Op::Write { data, how, .. } if !how.dsync => data.len,
            _ => 0,
        })
        .sum();
    assert_eq!(written, 3_000_002);
    let rest: Vec<&str> = lines
        .iter()
        .map(String::as_str)
        .filter(|l| !l.contains("bytes at 0") || l.contains("dsync") || l.contains("fallocate"))
        .filter(|l| !l.ends_with("at 1048576") && !l.ends_with("at 2097152"))
        .collect();
    assert_eq!(
        rest,
        [
            "create f",
            "fdatasync f",
            "write f, 2 bytes at 10",
            "fsync f",
            "truncate f to 100 bytes",
            "fallocate f, 200 bytes at 0 (Allocate)",
            "setxattr f user.k",
            "fsync .",
            "create s",
            "write s, 1 bytes at 0 (dsync)",
            "fdatasync s",
        ]
    );
    let truncated = trace
        .calls
        .iter()
        .any(|c| matches!(c.op, Op::Open { truncate: true, .. }));
    assert!(truncated);
}

#[test]
fn the_initial_tree_comes_from_a_directory_and_a_setup_and_is_no_part_of_the_run() {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("sub")).unwrap();
    fs::write(from.path().join("sub/one"), b"1").unwrap();
    fs::hard_link(from.path().join("sub/one"), from.path().join("two")).unwrap();
    std::os::unix::fs::symlink("x", from.path().join("link")).unwrap();
    let run = Run::new()
        .with("FROM", from.path())
        .with("SETUP", "echo from setup > made; echo not acknowledged");
    let trace = run.sh("cat made sub/one; rm two");
    let tree = trace.initial_tree().unwrap();
    assert_eq!(content(&tree, b"made").unwrap(), b"from setup\n");
    let two = tree.lookup(&Caller::root(), ROOT, b"two").unwrap();
    assert_eq!(tree.getattr(two).unwrap().nlink, 2);
    let link = tree.lookup(&Caller::root(), ROOT, b"link").unwrap();
    assert_eq!(tree.readlink(link).unwrap(), b"x");
    assert_eq!(listed(&trace), ["acknowledge \"from setup\"", "unlink two"]);
}

#[test]
fn stores_through_mmap_are_counted_as_the_kernels_writes() {
    let script = "import mmap, os\n\
        f = os.open('m', os.O_CREAT|os.O_RDWR)\n\
        os.ftruncate(f, 8192)\n\
        m = mmap.mmap(f, 8192)\n\
        m[100:105] = b'hello'\n\
        m.flush()\n";
    let trace = Run::new().words(&[b"python3", b"-c", script.as_bytes()]);
    let blind = trace.end.unwrap().blind;
    assert!(blind.mapped_writes >= 1 && blind.mapped_bytes >= 4096);
    assert!(blind.syncs_watched);
    assert_eq!(
        &content(&replayed(&trace), b"m").unwrap()[100..105],
        b"hello"
    );
    let write = trace.calls.iter().find(|c| c.op.word() == "write").unwrap();
    assert_eq!(write.who.process, 0);
}

#[test]
fn threads_have_their_process_and_failed_calls_their_errors() {
    let script = "import threading, os\n\
        os.mkdir('d')\n\
        t = threading.Thread(target=lambda: open('d/t', 'w').write('t'))\n\
        t.start(); t.join()\n\
        try: os.rmdir('d')\n\
        except OSError: pass\n";
    let trace = Run::new().words(&[b"python3", b"-c", script.as_bytes()]);
    let by = |word: &str| -> &Call { trace.calls.iter().find(|c| c.op.word() == word).unwrap() };
    let (main, thread) = (by("mkdir"), by("create"));
    assert_eq!(main.who.process, thread.who.process);
    assert_eq!(main.who.thread, main.who.process);
    assert_ne!(thread.who.thread, thread.who.process);
    assert_eq!(by("rmdir").outcome, Outcome::Failed(39));
}

#[test]
fn names_that_are_no_text_are_kept() {
    let run = Run::new();
    let name = b"a\xff\n\x1b[31m";
    let trace = run.words(&[b"/bin/mkdir", name]);
    assert_eq!(listed(&trace), ["mkdir a\\xff\\n\\x1b[31m"]);
    assert!(replayed(&trace).lookup(&Caller::root(), ROOT, name).is_ok());
}

#[test]
fn a_program_that_fails_or_is_killed_leaves_its_trace() {
    let run = Run::new();
    assert_eq!(run.sh("mkdir x; exit 7").end.unwrap().how, Ended::Exited(7));
    assert_eq!(
        run.sh("mkdir y; kill -9 $$").end.unwrap().how,
        Ended::Signalled(9)
    );
    let (recorded, said) = run.try_words(&[b"/no/such/program"]);
    assert!(
        !recorded && said.contains("REFUSED /no/such/program"),
        "{said}"
    );
}

#[test]
fn a_program_that_hangs_is_ended_with_all_its_children() {
    // Long enough for a loaded machine to start all three.
    let run = Run::new().with("LIMIT", "5000");
    let began = Instant::now();
    let trace = run.sh("mkdir x; sleep 471 & sleep 471");
    assert!(began.elapsed() < Duration::from_secs(60));
    let end = trace.end.unwrap();
    assert_eq!(end.how, Ended::TimeLimit);
    assert_eq!(end.left_over, 2);
    assert_eq!(listed(&trace), ["mkdir x"]);
}

#[test]
fn a_daemon_that_outlives_the_program_is_ended_and_its_late_calls_do_not_count() {
    let run = Run::new();
    let pid = run.dir.path().join("trace.pid");
    let script = format!(
        "setsid sh -c 'echo $$ > {}; cd /; while :; do date >> \"$CRASH_DIR\"/late; done' & \
         while ! test -e late; do :; done; echo up",
        pid.display()
    );
    // The file beside the trace belongs to the test.
    let (recorded, said) = {
        let keep = tempfile::tempdir().unwrap();
        let script = script.replace(
            pid.to_str().unwrap(),
            keep.path().join("pid").to_str().unwrap(),
        );
        let done = run.try_words(&[b"/bin/sh", b"-c", script.as_bytes()]);
        let daemon = fs::read_to_string(keep.path().join("pid")).unwrap();
        assert!(!Path::new("/proc").join(daemon.trim()).exists());
        done
    };
    assert!(recorded, "{said}");
    let trace = Trace::open(&run.trace()).unwrap();
    assert!(trace.end.unwrap().left_over >= 1);
    assert!(listed(&trace).contains(&"acknowledge \"up\"".to_owned()));
    replayed(&trace);
}

#[test]
fn a_trace_that_reaches_its_limit_ends_the_recording_and_is_readable() {
    let run = Run::new().with("BYTES", "300000");
    let (recorded, said) = run.try_words(&[
        b"/bin/sh",
        b"-c",
        b"mkdir x; dd if=/dev/zero of=big bs=64k count=100; :",
    ]);
    assert!(
        !recorded && said.contains("limit of 300000 bytes"),
        "{said}"
    );
    let trace = Trace::open(&run.trace()).unwrap();
    assert!(trace.cut.is_some());
    assert_eq!(listed(&trace)[..2], ["mkdir x", "create big"]);
    replayed(&trace);
}

#[test]
fn as_root_a_program_with_a_fixed_path_is_recorded_there_and_nobody_else_sees_it() {
    if !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("a directory that is not this user's needs root");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("real"), b"untouched").unwrap();
    let run = Run::new().with("AT", place.path());
    let path = place.path().join("made");
    let trace = run.words(&[b"/usr/bin/touch", path.as_os_str().as_bytes()]);
    assert_eq!(listed(&trace)[0], "create made");
    assert!(!path.exists() && place.path().join("real").exists());
}

/// The required trace of a program that writes, closes, syncs and acknowledges: a fault of the recorder gives another
/// one.
#[test]
fn each_fault_of_the_recorder_is_noticed() {
    let script = "echo one >a; sync; echo first; echo two >b; echo second";
    let told = |run: Run| {
        let trace = run.sh(script);
        let mut names = Names::default();
        let mut lines = Vec::new();
        for call in &trace.calls {
            if !matches!(call.op, Op::Release { .. } | Op::Open { .. }) {
                lines.push(names.describe(call));
            }
            names.note(call);
        }
        lines.join("\n")
    };
    let right = told(Run::new());
    for part in [
        "write a, 4 bytes at 0\nclose a\nsync\nacknowledge \"first\"\ncreate b",
        "write b, 4 bytes at 0\nclose b\nacknowledge \"second\"",
    ] {
        let calls: Vec<&str> = right.lines().collect();
        // The shell closes its copies of descriptors, too.
        let mut plain: Vec<&str> = Vec::new();
        for line in calls {
            if plain.last() != Some(&line) {
                plain.push(line);
            }
        }
        let plain: Vec<&str> = plain
            .iter()
            .enumerate()
            .filter(|(i, l)| {
                !(l.starts_with("close") && *i > 0 && plain[i - 1].starts_with("create"))
            })
            .map(|(_, l)| *l)
            .collect();
        assert!(plain.join("\n").contains(part), "{right}");
    }
    for fault in FAULTS {
        let wrong = told(Run::new().with("FAULT", format!("{fault:?}")));
        assert_ne!(wrong, right, "{fault:?} is not noticed");
        steadfast_testkit::caught_in("crashtest", &fault);
    }
}

/// Names to try, if they are installed.
#[cfg(target_arch = "x86_64")]
const PYTHONS: [&str; 4] = ["python3", "python3.11", "python3.12", "python3.13"];

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_of_python_have_the_line_of_python() {
    let code = "import os, threading\n\
        def save(name):\n\
        \x20   f = os.open(name, os.O_CREAT | os.O_WRONLY)\n\
        \x20   os.write(f,\n\
        \x20       b'x')\n\
        \x20   os.fsync(f)\n\
        def grüße():\n\
        \x20   save('b')\n\
        save('a')\n\
        t = threading.Thread(target=grüße)\n\
        t.start()\n\
        t.join()\n\
        if os.fork() == 0:\n\
        \x20   save('c')\n\
        \x20   os._exit(0)\n\
        os.wait()\n";
    for python in PYTHONS {
        let version = Command::new(python).arg("--version").output();
        let known = |text: &str| ["3.11", "3.12", "3.13"].iter().any(|v| text.contains(v));
        if !version.is_ok_and(|v| known(&String::from_utf8_lossy(&v.stdout))) {
            continue;
        }
        let run = Run::new();
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("näme.py");
        fs::write(&script, code).unwrap();
        let trace = run.words(&[python.as_bytes(), script.as_os_str().as_bytes()]);
        let found = steadfast_crashtest::effects::Run::of_trace(&trace).unwrap();
        let mut places = Vec::new();
        for step in &found.steps {
            let word = step.text.split(' ').next().unwrap();
            // The kernel closes open files when a process ends.
            if word != "close" {
                let place = step.location.as_ref().unwrap();
                assert!(place.file.ends_with("näme.py"), "{python}: {step:?}");
                places.push((word, place.line));
            }
        }
        let once = [("create", Some(3)), ("write", Some(4)), ("fsync", Some(6))];
        assert_eq!(places, once.repeat(3), "{python}");
        // The callers, too.
        let functions = |stack: &steadfast_crashtest::trace::Stack| -> Vec<String> {
            let all = stack.frames.iter().filter_map(|f| f.function.clone());
            all.collect()
        };
        let has = |name: &str| {
            trace
                .stacks
                .iter()
                .any(|s| functions(s).contains(&name.to_owned()))
        };
        assert!(has("save") && has("grüße") && has("<module>"), "{python}");
    }
}

/// The steps of a trace with their places, without what closes.
#[cfg(target_arch = "x86_64")]
fn places(trace: &Trace) -> Vec<(String, String, Option<u32>)> {
    let found = steadfast_crashtest::effects::Run::of_trace(trace).unwrap();
    let all = found.steps.iter().filter_map(|step| {
        let word = step.text.split(' ').next()?.to_owned();
        let place = step.location.as_ref()?;
        (word != "close").then(|| (word, place.file.clone(), place.line))
    });
    all.collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_of_node_have_the_place_in_javascript() {
    let version = Command::new("node").arg("--version").output();
    let known = |text: &str| {
        ["v18.", "v20.", "v22.", "v24."]
            .iter()
            .any(|v| text.starts_with(v))
    };
    if !version.is_ok_and(|v| known(&String::from_utf8_lossy(&v.stdout))) {
        steadfast_testkit::skipped!("there is no Node 18, 20, 22 or 24");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str, code: &str| -> Vec<u8> {
        let path = place.path().join(name);
        fs::write(&path, code).unwrap();
        path.into_os_string().into_vec()
    };
    // A character of two bytes makes the source one of two bytes each.
    let code = "// \u{2192}\n\
        const save = (name) => {\n\
        \x20 const f = fs.openSync(name, 'w');\n\
        \x20 fs.writeSync(f,\n\
        \x20   'x');\n\
        \x20 fs.fsyncSync(f);\n\
        \x20 fs.closeSync(f);\n\
        };\n\
        class Store {\n\
        \x20 put(name) {\n\
        \x20   save(name);\n\
        \x20 }\n\
        }\n\
        save('a');\n\
        new Store().put('b');\n\
        fs.mkdirSync('d');\n";
    let script = write("näme.js", &format!("const fs = require('fs'); {code}"));
    let module = write("a module.mjs", &format!("import fs from 'fs'; {code}"));
    for file in [&script, &module] {
        let trace = Run::new().words(&[b"node", file]);
        let once = [("create", Some(3)), ("write", Some(4)), ("fsync", Some(6))];
        let mut expected = once.repeat(2);
        expected.push(("mkdir", Some(16)));
        let expected = expected.iter().map(|(word, line)| {
            let file = String::from_utf8(file.clone()).unwrap();
            ((*word).to_owned(), file, *line)
        });
        assert_eq!(places(&trace), expected.collect::<Vec<_>>());
        // The callers, too.
        let functions = |stack: &steadfast_crashtest::trace::Stack| -> Vec<String> {
            let all = stack.frames.iter().filter_map(|f| f.function.clone());
            all.filter(|f| f == "save" || f == "put").collect()
        };
        let stacks: Vec<_> = trace.stacks.iter().map(functions).collect();
        assert!(stacks.contains(&vec!["save".to_owned(), "put".to_owned()]));
    }
    // Code that V8 has compiled, again and again from the same place.
    let hot = write(
        "hot.js",
        "const fs = require('fs');\n\
        const f = fs.openSync('f', 'w');\n\
        function grow(i) {\n\
        \x20 fs.writeSync(f, `${i}`);\n\
        }\n\
        for (let i = 0; i < 3000; i++) grow(i);\n",
    );
    let trace = Run::new().words(&[b"node", &hot]);
    let hot = String::from_utf8(hot).unwrap();
    let places_there = places(&trace);
    // The kernel parts what crosses a page.
    assert!(places_there.len() >= 3001);
    assert!(
        places_there
            .iter()
            .all(|(_, file, line)| *file == hot && line.is_some_and(|l| l <= 6))
    );
    // A thread of its pool has no frame of JavaScript.
    let pool = write(
        "pool.js",
        "require('fs').promises.writeFile('a', 'x').then(() => {});\n",
    );
    let trace = Run::new().words(&[b"node", &pool]);
    let places_there = places(&trace);
    assert_eq!(places_there.len(), 2);
    assert!(
        places_there
            .iter()
            .all(|(_, file, _)| !file.contains("pool.js"))
    );
}

#[test]
fn what_was_written_is_read_again_and_overwritten_while_it_is_recorded() {
    // Parts of pages in disorder, more of them than a page keeps in pieces, and reads that the kernel's cache does not answer.
    let script = "import os, random\n\
        random.seed(3)\n\
        f = os.open('f', os.O_CREAT | os.O_RDWR)\n\
        d = os.open('f', os.O_RDWR | os.O_DIRECT)\n\
        plain = bytearray(300000)\n\
        os.ftruncate(f, len(plain))\n\
        for i in range(800):\n\
        \x20   n = random.choice([1, 30, 4096, 10737])\n\
        \x20   at = random.randrange(len(plain) - n)\n\
        \x20   data = random.randbytes(n)\n\
        \x20   assert os.pwrite(f, data, at) == n\n\
        \x20   plain[at:at + n] = data\n\
        \x20   if i % 100 == 0:\n\
        \x20       os.posix_fallocate(f, 0, 10)\n\
        \x20   if i % 20 == 0:\n\
        \x20       assert os.pread(d, len(plain), 0) == plain, i\n\
        print('the same')\n";
    let trace = Run::new().words(&[b"python3", b"-c", script.as_bytes()]);
    assert_eq!(trace.end.unwrap().how, Ended::Exited(0));
    let last = listed(&trace).pop().unwrap();
    assert_eq!(last, "acknowledge \"the same\"");
    assert_eq!(content(&replayed(&trace), b"f").unwrap().len(), 300_000);
}
