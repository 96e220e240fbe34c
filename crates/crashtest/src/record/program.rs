//! Starts the program on the mount, waits for it, and ends it with all that it started.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};

use super::special::{ACK_NAME, STDOUT_NAME};
use super::{ACK_VARIABLE, RecordError};
use crate::trace::Ended;

/// Interval of checks of a running program.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time limit for the end of a program's processes after SIGKILL.
const END_LIMIT: Duration = Duration::from_secs(10);

pub(super) struct Program<'a> {
    pub(super) mount: &'a Path,
    pub(super) interrupted: &'a AtomicBool,
}

impl Program<'_> {
    fn command(&self, name: &OsStr) -> Command {
        let mut command = Command::new(name);
        command
            .current_dir(self.mount)
            .env("CRASH_DIR", self.mount)
            .env(ACK_VARIABLE, self.mount.join(ACK_NAME))
            .env("PWD", self.mount);
        command
    }

    /// Runs the setup.
    pub(super) fn set_up(&self, setup: &OsStr, limit: Duration) -> Result<(), RecordError> {
        let mut command = self.command(OsStr::new("/bin/sh"));
        command.arg("-c").arg(setup);
        command.stdin(Stdio::null()).stdout(io::stderr());
        let start = |e: io::Error| RecordError::Setup(e.to_string());
        adopt_orphans().map_err(start)?;
        let child = command.spawn().map_err(start)?;
        let ended = self.wait(child, limit).map_err(start)?;
        end_descendants();
        match ended {
            Ended::Exited(0) | Ended::Interrupted => Ok(()),
            Ended::Exited(code) => Err(RecordError::Setup(format!("exit status {code}"))),
            Ended::Signalled(signal) => Err(RecordError::Setup(format!("signal {signal}"))),
            Ended::TimeLimit => Err(RecordError::Setup(format!(
                "it took longer than {} s",
                limit.as_secs()
            ))),
        }
    }

    /// Runs the program to its end. Its standard output is a file of the mount, so that the order of its lines among its
    /// calls is known.
    pub(super) fn run(&self, words: &[OsString], limit: Duration) -> io::Result<Ended> {
        let Some((name, arguments)) = words.split_first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let output: File = OpenOptions::new()
            .append(true)
            .open(self.mount.join(STDOUT_NAME))?;
        adopt_orphans()?;
        let child = self.command(name).args(arguments).stdout(output).spawn()?;
        self.wait(child, limit)
    }

    fn wait(&self, mut child: Child, limit: Duration) -> io::Result<Ended> {
        let until = Instant::now() + limit;
        let mut pause = Duration::from_micros(200);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(ended(status));
            }
            let early = match self.interrupted.load(Ordering::Relaxed) {
                true => Some(Ended::Interrupted),
                false if Instant::now() >= until => Some(Ended::TimeLimit),
                false => None,
            };
            if let Some(how) = early {
                child.kill()?;
                child.wait()?;
                return Ok(how);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK_EVERY);
        }
    }
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, signal) => Ended::Signalled(signal.unwrap_or(0)),
    }
}

/// Makes processes whose parent has ended children of this process.
fn adopt_orphans() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Ends everything below this process. Returns the number of these processes.
pub(super) fn end_descendants() -> u32 {
    let until = Instant::now() + END_LIMIT;
    let mut met = std::collections::BTreeSet::new();
    loop {
        let left = descendants();
        if left.is_empty() || Instant::now() >= until {
            return met.len() as u32;
        }
        for pid in left {
            met.insert(pid.as_raw_nonzero());
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            // Fails for those that are not our children yet: they will be.
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The processes below this one, zombies included.
fn descendants() -> Vec<Pid> {
    let mut parents: Vec<(i32, i32)> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        // "pid (name) state ppid …", and the name may hold anything.
        let stat = std::fs::read(entry.path().join("stat")).unwrap_or_default();
        let after = stat.iter().rposition(|&b| b == b')').map_or(0, |at| at + 1);
        let rest = String::from_utf8_lossy(stat.get(after..).unwrap_or_default()).into_owned();
        if let Some(parent) = rest.split_whitespace().nth(1).and_then(|p| p.parse().ok()) {
            parents.push((pid, parent));
        }
    }
    let mut below = vec![rustix::process::getpid().as_raw_pid()];
    let mut at = 0;
    while let Some(&parent) = below.get(at) {
        below.extend(parents.iter().filter(|p| p.1 == parent).map(|p| p.0));
        at += 1;
    }
    below
        .into_iter()
        .skip(1)
        .filter_map(Pid::from_raw)
        .collect()
}
