//! The cost of finding the stream of a request. Nothing is asserted about times: they are printed.
//!
//! `cargo test --release -p steadfast-fuse --test suite streams_cost -- --ignored --nocapture --test-threads 1`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use common::Mount;
use common::streams::{mount, set};
use steadfast_stream::{Settings, Who};

const CHILD: &str = "STEADFAST_TEST_CHILD";

/// The tenth part that is quickest, which other work on the machine disturbs least, and the median.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    format!(
        "{:?} ({:?})",
        times[times.len() / 10],
        times[times.len() / 2]
    )
}

/// One request each: the file was made for writing alone, so it is written directly.
fn writes(file: &File, count: usize) -> Vec<Duration> {
    let one = |_| {
        let start = Instant::now();
        file.write_at(b"x", 0).unwrap();
        start.elapsed()
    };
    (0..count).map(one).collect()
}

/// Origin of a process's first request.
#[derive(Clone, Copy)]
enum From {
    FirstThread,
    OtherThread,
}

/// Writes twice to its input.
const WRITER: &str = "import os, time\nt = time.perf_counter_ns\na = t(); os.pwrite(0, b'x', 0)\n\
    b = t(); os.pwrite(0, b'x', 0)\nprint('measured', b - a, t() - b)";

/// A process that writes, `depth` processes below this one. A test runs in another thread than its process's first.
fn child(depth: u32, from: From) -> Command {
    let program = match from {
        From::FirstThread => "python3".to_owned(),
        From::OtherThread => std::env::current_exe().unwrap().display().to_string(),
    };
    let measured = steadfast_testkit::test_name(module_path!(), "first_requests_are_measured");
    let again = ["--ignored", "--exact", &*measured, "--nocapture"];
    let mut words = Vec::new();
    for _ in 0..depth {
        words.extend(["sh", "-c", "\"$@\"; true", "sh"]);
    }
    words.push(&program);
    words.extend(match from {
        From::FirstThread => &["-c", WRITER][..],
        From::OtherThread => &again,
    });
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .env(CHILD, "")
        .stderr(Stdio::null());
    command
}

/// The first and the second write of a process that is new, in nanoseconds.
fn of_child(file: &File, depth: u32, from: From) -> (u64, u64) {
    let output = child(depth, from)
        .stdin(file.try_clone().unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("measured "));
    let (first, second) = line.unwrap().split_once(' ').unwrap();
    (first.parse().unwrap(), second.parse().unwrap())
}

#[test]
#[ignore = "measures"]
fn known_threads_are_measured() {
    let Some(m) = mount() else { return };
    let file = File::create(m.join("f")).unwrap();
    writes(&file, 2000);
    let mut rounds = Vec::new();
    for round in 0..6 {
        match round % 2 {
            0 => steadfast_stream::leave(&m.path(), Who::Process).unwrap(),
            _ => set(&m, Who::Process, "known"),
        }
        if round % 2 == 0 {
            // No stream: nothing is looked at.
            m.fs.streams.as_ref().unwrap().commit();
            while !steadfast_stream::list(&m.path()).unwrap().is_empty() {
                steadfast_stream::leave(&m.path(), Who::Process).unwrap();
            }
        }
        writes(&file, 1000);
        rounds.push(spread(writes(&file, 20_000)));
    }
    println!("a write without streams, with one, and so on: {rounds:?}");
    steadfast_stream::leave(&m.path(), Who::Process).unwrap();
}

#[test]
#[ignore = "measures"]
fn first_requests_are_measured() {
    if std::env::var_os(CHILD).is_some() {
        let file = std::io::stdin();
        let write = || {
            let start = Instant::now();
            rustix::io::pwrite(&file, b"x", 0).unwrap();
            start.elapsed().as_nanos()
        };
        let (first, second) = (write(), write());
        println!("\nmeasured {first} {second}");
        return;
    }
    let Some(m) = mount() else { return };
    let file = File::create(m.join("f")).unwrap();
    let show = |what: &str, depth: u32, from: From| {
        let times: Vec<_> = (0..100).map(|_| of_child(&file, depth, from)).collect();
        let more =
            |(first, second): &(u64, u64)| Duration::from_nanos(first.saturating_sub(*second));
        let first = |(first, _): &(u64, u64)| Duration::from_nanos(*first);
        println!(
            "{what}: first write {}, {} more than the second",
            spread(times.iter().map(first).collect()),
            spread(times.iter().map(more).collect())
        );
    };
    show("no stream", 0, From::FirstThread);
    set(&m, Who::Thread, "another's");
    show("in no stream", 0, From::FirstThread);
    show("in no stream, 3 processes deeper", 3, From::FirstThread);
    set(&m, Who::Process, "parent's");
    show("parent's stream", 0, From::FirstThread);
    show("parent's stream, from another thread", 0, From::OtherThread);
    show(
        "the stream of an ancestor 3 processes above",
        3,
        From::FirstThread,
    );
    let thread = |_| {
        let file = file.try_clone().unwrap();
        let times = thread::spawn(move || writes(&file, 2)).join().unwrap();
        times[0].saturating_sub(times[1])
    };
    let threads: Vec<_> = (0..500).map(thread).collect();
    println!(
        "first write of a thread of a known process: {} more",
        spread(threads)
    );
    steadfast_stream::leave(&m.path(), Who::Process).unwrap();
    steadfast_stream::leave(&m.path(), Who::Thread).unwrap();
}

/// Memory of this process, which is the server, too, in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[ignore = "measures"]
fn a_thousand_streams_and_ten_thousand_threads_are_measured() {
    const STREAMS: usize = 1000;
    const THREADS: usize = 10_000;
    let Some(m) = mount() else { return };
    let file = Arc::new(File::create(m.join("f")).unwrap());
    let (before, path) = (resident(), m.path());
    let (started, end) = (
        Arc::new(Barrier::new(THREADS + 1)),
        Arc::new(Barrier::new(THREADS + 1)),
    );
    let work = |at: usize| {
        let (file, path) = (Arc::clone(&file), path.clone());
        let (started, end) = (Arc::clone(&started), Arc::clone(&end));
        let run = move || {
            started.wait();
            if at < STREAMS {
                let settings = Settings::default();
                steadfast_stream::set(&path, Who::Thread, &format!("stream {at}"), &settings)
                    .unwrap();
            }
            file.write_at(b"x", 0).unwrap();
            end.wait();
            end.wait();
        };
        let builder = thread::Builder::new().stack_size(64 << 10);
        builder.spawn(run)
    };
    let threads: Result<Vec<_>, _> = (0..THREADS).map(work).collect();
    let Ok(threads) = threads else {
        steadfast_testkit::skipped!("this machine does not let a process have enough threads");
        std::process::exit(0);
    };
    let of_threads = resident() - before;
    started.wait();
    end.wait();
    let after = resident() - before - of_threads;
    let stats = steadfast_fuse::stats(&m.path()).unwrap();
    let of_streams: Vec<_> = stats
        .iter()
        .filter(|(name, _)| name.starts_with("stream_"))
        .collect();
    println!("threads {of_threads} KiB, then {after} KiB more; {of_streams:?}");
    end.wait();
    for thread in threads {
        thread.join().unwrap();
    }
    let _ = Mount::path(&m);
}
