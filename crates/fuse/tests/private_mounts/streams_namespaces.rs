//! Streams where numbers of threads and processes mean something else: used again, in a namespace below, or in another one than
//! the server's.
//!
//! Each test runs itself once more in a process namespace of its own, where it may choose the next number.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use common::Mount;
use common::streams::{OTHER, Waiting, all_in, clear, mount, operations};
use steadfast_stream::{Error, Settings, Who};
use steadfast_vfs::Stream;

const INSIDE: &str = "STEADFAST_TEST_NAMESPACE";

/// True inside of a namespace; else runs the test there, with these options of unshare(1).
fn inside(test: &str, options: &[&str]) -> bool {
    if std::env::var_os(INSIDE).is_some_and(|name| name == test) {
        return true;
    }
    let run = Command::new("unshare")
        .args(["--pid", "--fork"])
        .args(options)
        .arg(std::env::current_exe().unwrap())
        .args([
            &steadfast_testkit::test_name(module_path!(), test),
            "--exact",
            "--nocapture",
        ])
        .env(INSIDE, test)
        .output();
    match run {
        Ok(run) => {
            let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
            if said.contains("unshare failed") {
                steadfast_testkit::skipped!("no namespace can be made here");
            } else {
                assert!(run.status.success() && said.contains("1 passed"), "{said}");
            }
        }
        Err(e) => steadfast_testkit::skipped!("unshare: {e}"),
    }
    false
}

/// The next thread gets this number, if it is free.
fn next_number(number: u32) {
    fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).unwrap();
}

/// A waiting process of this number. Another thread may begin in between and take it: then again. `None` if it keeps it.
fn numbered(m: &Mount, number: u32, script: &str) -> Option<Waiting> {
    for _ in 0..200 {
        next_number(number);
        let mut waiting = Waiting::new(m, script);
        if waiting.0.id() == number {
            return Some(waiting);
        }
        // It has not been let go, so it has done nothing.
        waiting.0.kill().unwrap();
        waiting.0.wait().unwrap();
    }
    None
}

const OWN_PROC: &[&str] = &["--mount-proc"];

#[test]
fn a_process_that_gets_the_number_of_an_ended_one_has_not_its_stream() {
    let test = "a_process_that_gets_the_number_of_an_ended_one_has_not_its_stream";
    if !inside(test, OWN_PROC) {
        return;
    }
    let Some(m) = mount() else { return };
    // False if a thread that lives on has the number.
    let round = |number: u32| {
        clear(&m);
        let Some(first) = numbered(&m, number, ": > $D/f") else {
            return false;
        };
        first.set(&m, "first");
        first.run();
        // Now the same number at once, often within the same clock tick: a stranger.
        let Some(second) = numbered(&m, number, ": > $D/g") else {
            return false;
        };
        second.run();
        let found = operations(&m);
        assert_eq!(
            (found.get("first"), found.get("")),
            (Some(&1), Some(&1)),
            "{number}: {found:?}"
        );
        // And one whose parent's number was that of a process with a stream.
        clear(&m);
        let Some(third) = numbered(&m, number, "( : > $D/h )") else {
            return false;
        };
        third.run();
        all_in(&m, "", 1);
        // Nor does a child whose parent got the number at once, and has asked for nothing itself.
        clear(&m);
        let Some(fourth) = numbered(&m, number, ": > $D/i") else {
            return false;
        };
        fourth.set(&m, "fourth");
        fourth.run();
        let Some(fifth) = numbered(&m, number, "( : > $D/j )") else {
            return false;
        };
        fifth.run();
        let found = operations(&m);
        assert_eq!(
            (found.get("fourth"), found.get("")),
            (Some(&1), Some(&1)),
            "{number}: {found:?}"
        );
        true
    };
    let rounds = (5000..5100).filter(|number| round(*number)).take(20);
    assert_eq!(rounds.count(), 20, "numbers were free");
}

#[test]
fn a_thread_that_gets_the_number_of_an_ended_one_has_not_its_stream() {
    let test = "a_thread_that_gets_the_number_of_an_ended_one_has_not_its_stream";
    if !inside(test, OWN_PROC) {
        return;
    }
    let Some(m) = mount() else { return };
    // False if another thread has the number, and keeps it.
    let in_thread = |number: u32, file: PathBuf, set: Option<&'static str>| {
        let path = m.path();
        // The number is free when the kernel has removed the thread, which is soon after it is joined.
        (0..1000).any(|_| {
            next_number(number);
            let (file, path) = (file.clone(), path.clone());
            let ran = thread::spawn(move || {
                let own = rustix::thread::gettid().as_raw_nonzero().get();
                if own as u32 != number {
                    return false;
                }
                if let Some(name) = set {
                    let settings = Settings::default();
                    steadfast_stream::set(&path, Who::Thread, name, &settings).unwrap();
                }
                fs::write(file, "x").unwrap();
                true
            });
            ran.join().unwrap()
        })
    };
    let mut rounds = 0;
    for number in 6000..6100 {
        clear(&m);
        if !in_thread(number, m.join("f"), Some("own")) || !in_thread(number, m.join("g"), None) {
            continue;
        }
        let found = operations(&m);
        assert!(found["own"] >= 1 && found[""] >= 1, "{number}: {found:?}");
        assert!(found["own"] <= 2 && found[""] <= 2, "{number}: {found:?}");
        rounds += 1;
        if rounds == 20 {
            return;
        }
    }
    panic!("only {rounds} of a hundred numbers were free");
}

#[test]
fn a_namespace_below_changes_nothing_for_the_server() {
    let test = "a_namespace_below_changes_nothing_for_the_server";
    if !inside(test, OWN_PROC) {
        return;
    }
    let Some(m) = mount() else { return };
    let waiting = Waiting::new(
        &m,
        "unshare --pid --fork --mount-proc sh -c ': > $D/a; ( ( setsid sh -c \": > $D/b\" ) ); : > $D/c'",
    );
    waiting.set(&m, "container");
    waiting.run();
    all_in(&m, "container", 3);
    // A process in there does not know its neighbours by the server's numbers.
    let asked = "import os,sys\ntry: os.getxattr(sys.argv[1],'system.steadfast.stream.show.1')\n\
        except OSError as e: sys.exit(0 if e.errno==3 else 1)\nsys.exit(2)";
    let status = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "python3", "-c", asked])
        .arg(m.path())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn streams_are_off_where_proc_is_that_of_another_namespace() {
    let test = "streams_are_off_where_proc_is_that_of_another_namespace";
    // Without a mount namespace of its own, `/proc` stays the one outside.
    if !inside(test, &[]) {
        return;
    }
    let said = Arc::new(Mutex::new(Vec::new()));
    let hear = Arc::clone(&said);
    let Some(m) = Mount::with_streams(move |options| {
        options.log = Some(Arc::new(move |line| {
            hear.lock().unwrap().push(line.to_owned());
        }));
    }) else {
        return;
    };
    let path = m.path();
    for _ in 0..3 {
        let refused = steadfast_stream::set(&path, Who::Process, "x", &Settings::default());
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("another process namespace"), "{text}");
        assert!(matches!(
            steadfast_stream::get(&path),
            Err(Error::Unavailable { .. })
        ));
    }
    fs::write(m.join("f"), "x").unwrap();
    let streams = m.fs.streams.as_ref().unwrap();
    assert!(streams.operations.lock().unwrap().keys().eq([&Stream(0)]));
    assert_eq!(said.lock().unwrap().len(), 1, "{said:?}");
}

#[test]
fn streams_are_off_where_proc_hides_processes_from_the_server() {
    let test = "streams_are_off_where_proc_hides_processes_from_the_server";
    if !inside(test, OWN_PROC) {
        return;
    }
    if rustix::process::geteuid().is_root() {
        let hidden = ["-t", "proc", "-o", "hidepid=2", "proc", "/proc"];
        let mounted = Command::new("mount").args(hidden).status();
        assert!(mounted.unwrap().success());
        // The server of root sees all.
        let Some(m) = mount() else { return };
        let waiting = Waiting::new(&m, ": > $D/f");
        waiting.set(&m, "seen");
        waiting.run();
        all_in(&m, "seen", 1);
        let other = OTHER.to_string();
        let run = Command::new("setpriv")
            .args(["--reuid", &other, "--regid", &other, "--clear-groups"])
            .arg(std::env::current_exe().unwrap())
            .args([
                &steadfast_testkit::test_name(module_path!(), test),
                "--exact",
                "--nocapture",
            ])
            .output();
        let run = run.unwrap();
        let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        // Where that user may not run the test, there is nothing to see.
        assert!(
            run.status.success() || said.contains("Permission denied"),
            "{said}"
        );
        println!("{said}");
        return;
    }
    let Some(m) = mount() else { return };
    let refused = steadfast_stream::set(&m.path(), Who::Process, "x", &Settings::default());
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("hidepid"), "{text}");
    fs::write(m.join("f"), "x").unwrap();
    println!("streams are off for a user");
}

#[test]
fn a_caller_from_outside_of_the_servers_namespace_joins_the_inodes_last_stream() {
    let test = "a_caller_from_outside_of_the_servers_namespace_joins_the_inodes_last_stream";
    if std::env::var_os(INSIDE).is_some_and(|name| name == test) {
        let Some(m) = mount() else { return };
        let waiting = Waiting::new(&m, "echo inside > $D/f");
        waiting.set(&m, "inside");
        waiting.run();
        clear(&m);
        println!("\nmount: {}", m.path().display());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let moved = steadfast_stream::get(&m.path()).unwrap();
        println!("\ndone: {:?}, {}", operations(&m), moved.number);
        return;
    }
    let run = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(std::env::current_exe().unwrap())
        .args([
            &steadfast_testkit::test_name(module_path!(), test),
            "--exact",
            "--nocapture",
        ])
        .env(INSIDE, test)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut run) = run else {
        steadfast_testkit::skipped!("no namespace can be made here");
        return;
    };
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    let mut after =
        |word: &str| lines.find_map(|line| Some(line.ok()?.strip_prefix(word)?.to_owned()));
    if let Some(point) = after("mount: ") {
        let children = format!("/proc/{0}/task/{0}/children", run.id());
        let server = fs::read_to_string(children).unwrap();
        let outside = format!("/proc/{}/root{point}", server.trim());
        let file = File::options()
            .write(true)
            .open(format!("{outside}/f"))
            .unwrap();
        file.write_at(b"outside", 0).unwrap();
        // It cannot set a stream: the server does not see it.
        let refused =
            steadfast_stream::set(outside.as_ref(), Who::Thread, "x", &Settings::default());
        assert!(matches!(refused, Err(Error::Process { .. })), "{refused:?}");
        drop(file);
        writeln!(run.stdin.take().unwrap()).unwrap();
        assert_eq!(after("done: ").as_deref(), Some("{\"inside\": 1}, 0"));
    } else {
        steadfast_testkit::skipped!("nothing can be mounted there");
    }
    assert!(run.wait().unwrap().success());
}
