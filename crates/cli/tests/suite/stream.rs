//! `steadfast stream run` through a real mount: it ends like the command, the process tree stays in the stream,
//! signals reach it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use common::{PROGRAM, Place, said};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A mount on which nothing is durable before a sync: the counters of a stream stay.
fn mounted() -> Option<Place> {
    Place::mounted("allow_other,commit=3600")
}

/// A command in the stream `tree`, killed at the end of a test that fails.
struct Running(Child);

impl Running {
    /// A shell with the mount as its directory.
    fn sh(place: &Place, script: &str) -> Running {
        Running::of(place, &["run", "tree", "--mount", "mnt", "--"], script)
    }

    fn of(place: &Place, stream: &[&str], script: &str) -> Running {
        let mut command = Command::new(PROGRAM);
        command.arg("stream").args(stream);
        command.args(["sh", "-c", &format!("cd mnt; {script}")]);
        // A process group that this process may end, and that may be stopped.
        command
            .current_dir(place.path())
            .stdin(Stdio::null())
            .process_group(0);
        Running(command.spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the command ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process_group(self.pid(), Signal::KILL);
        let _ = self.0.wait();
    }
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("waited in vain: {what}");
}

/// Waits until a script has written a file, which it makes under another name first; returns its content.
fn told(path: &Path) -> String {
    eventually(&path.display().to_string(), || path.exists());
    fs::read_to_string(path).unwrap().trim().to_owned()
}

fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// A letter, after the name of the program.
fn state_of(pid: &str) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest[..1].to_owned()
}

fn stats(place: &Place) -> Value {
    serde_json::from_str(&place.must(&["stream", "stats", "--json", "mnt"])).unwrap()
}

/// Operations of each stream; the default stream has an empty name.
fn operations(place: &Place) -> Vec<(String, u64)> {
    let stats = stats(place);
    let streams = stats["streams"].as_array().unwrap().iter();
    let of = |stream: &Value| {
        let name = stream["name"].as_str().unwrap_or_default().to_owned();
        (name, stream["operations"].as_u64().unwrap())
    };
    streams.map(of).filter(|(_, count)| *count > 0).collect()
}

#[track_caller]
fn all_in(place: &Place, name: &str) {
    let found = operations(place);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, name);
}

/// The cgroup that a run of this number makes, if it may make one.
fn cgroup_of(run: u32) -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mounts = steadfast_fuse::mountinfo::mounts().unwrap();
    let root = mounts.into_iter().find(|m| m.fs_type == "cgroup2")?;
    let dir = root.mount_point.join(own.trim_start_matches('/'));
    let probe = dir.join(format!("test-{run}"));
    fs::create_dir(&probe).ok()?;
    fs::remove_dir(&probe).unwrap();
    Some(dir.join(format!("steadfast-stream-{run}")))
}

#[test]
fn the_end_is_that_of_the_command() {
    let Some(place) = mounted() else { return };
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)] {
        let status = Running::sh(&place, script).wait();
        assert_eq!(status.code(), Some(code), "{script}");
    }
    for (name, signal) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("USR1", 10)] {
        let status = Running::sh(&place, &format!("kill -{name} $$")).wait();
        assert_eq!(status.signal(), Some(signal), "{name}");
    }
    let said = place.refused(
        1,
        &[
            "stream",
            "run",
            "x",
            "--mount",
            "mnt",
            "--",
            "no-such-command",
        ],
    );
    assert!(said.contains("no-such-command: "), "{said}");
    place.end();
}

#[test]
fn what_a_tree_does_is_in_its_stream_and_its_environment_names_it() {
    let Some(place) = mounted() else { return };
    let script =
        "echo 1 >a; (echo 2 >b; mkdir d); sh -c 'echo 3 >d/c' & wait; echo $STEADFAST_STREAM >name";
    assert!(Running::sh(&place, script).wait().success());
    all_in(&place, "tree");
    assert_eq!(told(&place.mnt().join("name")), "tree");
    // The next one is another process.
    assert!(place.command("touch", &["mnt/later"]).status.success());
    let found = operations(&place);
    assert!(found.iter().any(|(name, _)| name.is_empty()), "{found:?}");
    // It joins the stream of its name; another name is another stream.
    assert!(Running::sh(&place, "echo 4 >e").wait().success());
    let other = ["run", "other", "--mount", "mnt", "--"];
    assert!(Running::of(&place, &other, "echo 5 >f").wait().success());
    let found = operations(&place);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["", "tree", "other"]);
    place.end();
}

/// The daemon loses all of its ancestors but the run itself, and does nothing on the volume before.
#[test]
fn a_daemon_that_forked_twice_stays_and_is_waited_for() {
    let Some(place) = mounted() else { return };
    let daemon = "while [ -e ../wait ]; do sleep 0.02; done; echo done >done";
    fs::write(place.path().join("wait"), "").unwrap();
    let script = format!(
        "( ( setsid nohup sh -c '{daemon}' </dev/null >/dev/null 2>&1 & ) ); echo $$ >../command.new; mv ../command.new ../command; exit 3"
    );
    let mut running = Running::sh(&place, &script);
    let command = told(&place.path().join("command"));
    eventually("the command is reaped", || {
        !Path::new("/proc").join(&command).exists()
    });
    assert!(running.0.try_wait().unwrap().is_none(), "a daemon is left");
    fs::remove_file(place.path().join("wait")).unwrap();
    assert_eq!(running.wait().code(), Some(3));
    assert_eq!(told(&place.mnt().join("done")), "done", "it was waited for");
    all_in(&place, "tree");
    place.end();
}

#[test]
fn a_tree_whose_run_is_killed_keeps_its_stream() {
    let Some(place) = mounted() else { return };
    let script =
        "echo $$ >../pid.new; mv ../pid.new ../pid; while [ ! -e ../go ]; do sleep 0.02; done;
                  sh -c 'echo 1 >child'; (setsid sh -c 'echo 2 >done.new; mv done.new done' & )";
    let mut running = Running::sh(&place, script);
    let command = told(&place.path().join("pid"));
    // The command is registered itself, not only its ancestor.
    eventually("the command is registered", || {
        let args = ["stream", "show", &command, "--json", "--mount", "mnt"];
        let shown: Value = serde_json::from_str(&place.must(&args)).unwrap();
        shown["because"] == "process"
    });
    running.signal(Signal::KILL);
    assert_eq!(running.wait().signal(), Some(9));
    fs::write(place.path().join("go"), "").unwrap();
    told(&place.mnt().join("done"));
    all_in(&place, "tree");
    place.end();
}

/// No process is left for which the stream was set: only the cgroup keeps the rest in it.
#[test]
fn a_cgroup_holds_what_has_lost_its_ancestors_and_is_removed_later() {
    let Some(place) = mounted() else { return };
    let daemon = "while [ -e ../img ] && [ ! -e ../go ]; do sleep 0.02; done; echo $0 >done.new; mv done.new done";
    let script = format!(
        "(setsid env -u STEADFAST_STREAM sh -c '{daemon}' & ); echo $$ >../pid.new; mv ../pid.new ../pid;
         while :; do sleep 0.02; done"
    );
    let mut running = Running::sh(&place, &script);
    let Some(cgroup) = cgroup_of(running.0.id()) else {
        return steadfast_testkit::skipped!("there is no cgroup of version 2 to write to");
    };
    let command = told(&place.path().join("pid"));
    assert!(cgroup.exists());
    running.signal(Signal::KILL);
    running.wait();
    let pid = Pid::from_raw(command.parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    eventually("the command has ended", || {
        !Path::new("/proc").join(&command).exists() || state_of(&command) == "Z"
    });
    fs::write(place.path().join("go"), "").unwrap();
    told(&place.mnt().join("done"));
    all_in(&place, "tree");
    // The next run removes what the killed one has left.
    eventually("the next run removes it", || {
        assert!(Running::sh(&place, "true").wait().success());
        !cgroup.exists()
    });
    // Once, a run on another mount removed the cgroup, but the rule here stayed for ever.
    let mut running = Running::sh(&place, "echo >../again; while :; do sleep 0.02; done");
    told(&place.path().join("again"));
    let cgroup = cgroup_of(running.0.id()).unwrap();
    rustix::process::kill_process_group(running.pid(), Signal::KILL).unwrap();
    running.wait();
    eventually("its cgroup is removed", || {
        fs::remove_dir(&cgroup).is_ok() || !cgroup.exists()
    });
    assert!(Running::sh(&place, "true").wait().success());
    let rules: Value =
        serde_json::from_str(&place.must(&["stream", "rules", "list", "--json", "mnt"])).unwrap();
    assert_eq!(rules["rules"].as_array().map(Vec::len), Some(0), "{rules}");
    place.end();
}

#[test]
fn signals_reach_the_command_and_what_is_left_of_it() {
    let Some(place) = mounted() else { return };
    for (name, signal) in [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        // Below nohup(1) SIGHUP stays ignored, and no shell can catch it.
        if is_ignored(signal) {
            continue;
        }
        let script =
            format!("trap 'exit 42' {name}; echo >../ready-{name}; while :; do sleep 0.02; done");
        let mut running = Running::sh(&place, &script);
        told(&place.path().join(format!("ready-{name}")));
        running.signal(signal);
        assert_eq!(running.wait().code(), Some(42), "{name}");
    }
    // The command has ended, and its exit code is kept; the daemon ends by the signal.
    let daemon = "trap \"echo >../ended; exit\" TERM; echo $PPID >../parent.new; mv ../parent.new ../parent; \
                  while :; do sleep 0.02; done";
    let mut running = Running::sh(&place, &format!("(setsid sh -c '{daemon}' & ); exit 5"));
    told(&place.path().join("parent"));
    eventually("the daemon is the run's child", || {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.0.id()));
        let children = children.unwrap();
        let mut children = children.split_whitespace();
        // The command's own line has the daemon's in it.
        matches!((children.next(), children.next()), (Some(one), None)
            if fs::read_to_string(format!("/proc/{one}/cmdline")).unwrap_or_default().starts_with("sh\0-c\0trap"))
    });
    // It outlives its terminal.
    running.signal(Signal::HUP);
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(5));
    told(&place.path().join("ended"));
    place.end();
}

#[test]
fn a_stop_from_the_terminal_stops_both_and_both_go_on() {
    let Some(place) = mounted() else { return };
    let script = "echo $$ >../pid.new; mv ../pid.new ../pid; while [ ! -e ../go ]; do sleep 0.02; done; exit 6";
    let mut running = Running::sh(&place, script);
    let command = told(&place.path().join("pid"));
    let run = running.0.id().to_string();
    running.signal(Signal::TSTP);
    eventually("both are stopped", || {
        state_of(&command) == "T" && state_of(&run) == "T"
    });
    running.signal(Signal::CONT);
    eventually("both go on", || {
        state_of(&command) != "T" && state_of(&run) != "T"
    });
    fs::write(place.path().join("go"), "").unwrap();
    assert_eq!(running.wait().code(), Some(6));
    place.end();
}

/// The terminal sends its signals to the whole group; the run must not repeat them. The second signal comes after the first.
#[test]
fn an_interrupt_from_the_terminal_comes_once() {
    let Some(place) = mounted() else { return };
    // A shell runs one trap for two signals that come close together: this counts each.
    let count = "import os, select, signal, sys\n\
        r, w = os.pipe2(os.O_NONBLOCK); signal.set_wakeup_fd(w)\n\
        for s in (signal.SIGINT, signal.SIGUSR1): signal.signal(s, lambda *a: None)\n\
        def tell(name, text): open(name + '.new', 'w').write(text); os.rename(name + '.new', name)\n\
        tell('run', str(os.getppid())); n = 0\n\
        while True:\n\
        \x20select.select([r], [], [])\n\
        \x20for s in os.read(r, 100):\n\
        \x20\x20if s == signal.SIGUSR1: sys.exit(n + 10)\n\
        \x20\x20n += 1; tell('interrupt', '')\n";
    fs::write(place.path().join("count.py"), count).unwrap();
    if Command::new("python3").arg("--version").output().is_err() {
        return steadfast_testkit::skipped!("there is no python3");
    }
    // `exec`: not every shell replaces itself by its last command, and the interrupt would end the shell.
    let line = format!("exec {PROGRAM} stream run tree --mount mnt -- python3 count.py");
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    terminal.current_dir(place.path());
    let terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut terminal = match terminal {
        Ok(terminal) => terminal,
        Err(e) => return steadfast_testkit::skipped!("script: {e}"),
    };
    // The run handles the interrupt first: its number is smaller.
    let run: i32 = told(&place.path().join("run")).parse().unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    std::io::Write::write_all(&mut keys, b"\x03").unwrap();
    told(&place.path().join("interrupt"));
    kill_process(Pid::from_raw(run).unwrap(), Signal::USR1).unwrap();
    let status = terminal.wait().unwrap();
    assert_eq!(status.code(), Some(11));
    place.end();
}

#[test]
fn a_signal_that_is_ignored_stays_so() {
    let Some(place) = mounted() else { return };
    let script = "echo >../ready; while [ ! -e ../go ]; do sleep 0.02; done; exit 8";
    let line = format!("exec {PROGRAM} stream run tree --mount mnt -- sh -c \"cd mnt; {script}\"");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' HUP; {line}")]);
    command.current_dir(place.path()).process_group(0);
    let mut running = Running(command.spawn().unwrap());
    told(&place.path().join("ready"));
    running.signal(Signal::HUP);
    fs::write(place.path().join("go"), "").unwrap();
    assert_eq!(running.wait().code(), Some(8));
    place.end();
}

#[test]
fn detached_it_returns_at_once_and_says_what_holds_the_tree() {
    let Some(place) = mounted() else { return };
    let script = "while [ -e ../img ] && [ ! -e ../go ]; do sleep 0.02; done; echo 1 >done.new; mv done.new done";
    let stream = ["run", "tree", "--detach", "--mount", "mnt", "--"];
    let mut command = Command::new(PROGRAM);
    command.arg("stream").args(stream);
    command.args(["sh", "-c", &format!("cd mnt; {script}")]);
    command
        .current_dir(place.path())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(place.path().join("said")).unwrap());
    let mut running = Running(command.spawn().unwrap());
    // The command waits for a file that is not there.
    assert!(running.wait().success());
    let text = fs::read_to_string(place.path().join("said")).unwrap();
    assert!(text.contains("runs in stream tree; "), "{text}");
    fs::write(place.path().join("go"), "").unwrap();
    told(&place.mnt().join("done"));
    all_in(&place, "tree");
    drop(running);
    place.end();
}

#[test]
fn where_there_is_no_stream_the_command_does_not_start() {
    let Some(place) = Place::new() else { return };
    let not_started = |stream: &[&str], word: &str| {
        let args = [&["stream", "run"], stream, &["--", "touch", "started"]].concat();
        let said = place.refused(1, &args);
        assert!(said.contains(word), "{stream:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert!(!place.path().join("started").exists(), "{stream:?}");
    };
    not_started(
        &["x", "--mount", "mnt"],
        "not on a mounted Steadfast volume",
    );
    not_started(&["x", "--mount", "nowhere"], "nowhere: ");
    for contract in ["sync", "metadata-prefix", "relaxed"] {
        place.must(&[
            "mkfs",
            "--force",
            "--size",
            "64M",
            "--contract",
            contract,
            "img",
        ]);
        place.must(&["mount", "img", "mnt"]);
        not_started(
            &["x", "--mount", "mnt"],
            "this mount has no streams: its contract keeps one order for the whole volume",
        );
        place.must(&["umount", "mnt"]);
    }
    place.must(&["mkfs", "--force", "--size", "64M", "img"]);
    place.must(&["mount", "img", "mnt"]);
    let long = "x".repeat(256);
    for name in ["", "a/b", "/", "a\tb", &long] {
        not_started(
            &[name, "--mount", "mnt"],
            "a stream's name has 1 to 255 bytes of UTF-8",
        );
    }
    // Not UTF-8.
    let mut command = Command::new(PROGRAM);
    command.args(["stream", "run", "--mount", "mnt"]);
    command.arg(std::ffi::OsStr::from_bytes(b"\xff"));
    command.args(["--", "touch", "started"]);
    let output = command.current_dir(place.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("1 to 255 bytes of UTF-8"));
    assert!(!place.path().join("started").exists());
    // A user whom the mount does not let in.
    let script = format!(
        "setpriv --reuid=65534 --regid=65534 --clear-groups {PROGRAM} stream run x --mount mnt -- touch started"
    );
    let output = place.command("sh", &["-c", &script]);
    assert_ne!(output.status.code(), Some(0), "{}", said(&output));
    assert!(!place.path().join("started").exists());
    place.end();
}
