//! Programs at work on a mount with streams.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs
)]

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use steadfast_stream::{Settings, Who};

use super::Mount;

/// A user who owns nothing.
pub(crate) const OTHER: u32 = 65534;

pub(crate) fn mount() -> Option<Mount> {
    Mount::with_streams(|options| {
        options.allow_other = rustix::process::geteuid().is_root();
    })
}

/// Operations of each stream, by name; the default stream's is empty.
pub(crate) fn operations(m: &Mount) -> BTreeMap<String, u64> {
    let stats = steadfast_stream::stats(&m.path()).unwrap();
    let of = |one: steadfast_stream::Stats| {
        let name = one.stream.name.map_or(String::new(), |(name, _)| name);
        (name, one.operations)
    };
    stats.into_iter().map(of).collect()
}

/// All operations were made in this stream, and there were at least `least`.
#[track_caller]
pub(crate) fn all_in(m: &Mount, name: &str, least: u64) {
    let found = operations(m);
    let of_name = found.get(name).copied().unwrap_or_default();
    assert!(of_name >= least, "{name}: {found:?}");
    assert_eq!(found.len(), 1, "{found:?}");
}

/// Forgets all operations so far.
pub(crate) fn clear(m: &Mount) {
    let streams = m.fs.streams.as_ref().unwrap();
    streams.operations.lock().unwrap().clear();
}

/// A shell that waits before it runs its script, with the mount as `$D`.
pub(crate) struct Waiting(pub(crate) Child);

impl Waiting {
    pub(crate) fn new(m: &Mount, script: &str) -> Waiting {
        Waiting::of(m, script, |_| {})
    }

    pub(crate) fn of(m: &Mount, script: &str, change: impl FnOnce(&mut Command)) -> Waiting {
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(format!("read go\n{script}"))
            .env("D", m.path())
            .stdin(Stdio::piped());
        change(&mut command);
        Waiting(command.spawn().unwrap())
    }

    pub(crate) fn set(&self, m: &Mount, name: &str) {
        let who = Who::Pid(self.0.id());
        steadfast_stream::set(&m.path(), who, name, &Settings::default()).unwrap();
    }

    /// Lets it run, to its end.
    pub(crate) fn run(mut self) {
        self.go();
        assert!(self.0.wait().unwrap().success());
    }

    pub(crate) fn go(&mut self) {
        let mut stdin = self.0.stdin.take().unwrap();
        writeln!(stdin, "go").unwrap();
    }
}

pub(crate) fn set(m: &Mount, who: Who, name: &str) {
    steadfast_stream::set(&m.path(), who, name, &Settings::default()).unwrap();
}

/// Runs `act` in a thread of another user's.
pub(crate) fn as_other<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_thread_groups(&[]).unwrap();
            let (gid, uid) = (
                rustix::fs::Gid::from_raw(OTHER),
                rustix::fs::Uid::from_raw(OTHER),
            );
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}
