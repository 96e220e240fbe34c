//! `steadfast umount`: unmounts, and waits until the server has closed the image.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use steadfast_fuse::mountinfo::{self, MountEntry};
use steadfast_fuse::{Unmount, server_pid, unmount};

use crate::failure::Failure;
use crate::volume::{self, Access, LogState};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the volume is mounted
    dir: PathBuf,
}

impl Args {
    pub(crate) fn new(dir: PathBuf) -> Args {
        Args { dir }
    }
}

/// How long a server that has closed its image may take to end.
const LINGER: Duration = Duration::from_secs(5);
/// Users of a busy mount that are named.
const USERS_NAMED_MAX: usize = 5;

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let dir = mountinfo::resolve(&args.dir).map_err(|e| Failure::at(&args.dir, e))?;
    let mount = find(&dir)?;
    // Asked before it is gone. A dead mount has no server.
    let server = server_pid(&dir).ok().and_then(start_time);
    // One that was shut down on purpose is not closed cleanly.
    let shut_down = steadfast_fuse::stats(&dir)
        .is_ok_and(|stats| stats.contains(&("shut_down_now".to_owned(), 1)));
    let clean_before = server.is_some() && !shut_down;
    match unmount(&dir, Unmount::IfIdle) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::ResourceBusy => return Err(busy(&mount)),
        Err(e) => return Err(Failure::at(&dir, format!("unmounting failed: {e}"))),
    }
    wait_until_closed(&mount.source, server)?;
    if clean_before {
        check_closed(&mount.source)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The volume mounted at a directory.
pub(crate) fn find(dir: &Path) -> Result<MountEntry, Failure> {
    let mount =
        mountinfo::mount_at(dir).map_err(|e| Failure::new(format!("list of mounts: {e}")))?;
    match mount {
        Some(mount) if mount.is_ours() => Ok(mount),
        Some(other) => Err(Failure::at(
            dir,
            format!(
                "is a mount of type {}, not of a Steadfast volume; use umount(8)",
                other.fs_type
            ),
        )),
        None => Err(Failure::at(dir, "nothing is mounted there")),
    }
}

/// A process and when it started, which together name it for good.
type Process = (u32, String);

fn start_time(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 22, counted behind the name, which may hold anything but ends with the last ')'.
    let start = stat.rsplit_once(") ")?.1.split(' ').nth(19)?;
    Some((pid, start.to_owned()))
}

/// Waits for the server to unlock the image, which it does after everything is durable,
/// and then a moment for it to end.
fn wait_until_closed(image: &Path, server: Option<Process>) -> Result<(), Failure> {
    // The image may have been removed while mounted: then only the process tells.
    let file = File::open(image).ok();
    let gone = |server: &Option<Process>| match server {
        Some((pid, start)) => start_time(*pid).is_none_or(|now| now.1 != *start),
        None => true,
    };
    let mut pause = Duration::from_millis(1);
    let mut unlocked_at = None;
    loop {
        let locked = match &file {
            Some(file) => match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => {
                    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
                    false
                }
                Err(rustix::io::Errno::WOULDBLOCK) => true,
                Err(e) => {
                    return Err(Failure::at(
                        image,
                        format!("waiting for it to be closed: {e}"),
                    ));
                }
            },
            None => !gone(&server),
        };
        if !locked {
            let since = *unlocked_at.get_or_insert_with(Instant::now);
            if gone(&server) || since.elapsed() > LINGER {
                return Ok(());
            }
        } else if unlocked_at.is_none() && server.is_some() && gone(&server) {
            // Somebody else has locked it meanwhile: ours is closed.
            return Ok(());
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// A server that could not make everything durable leaves the volume open.
fn check_closed(image: &Path) -> Result<(), Failure> {
    // In use again, or removed: nothing to be said.
    let Ok(device) = volume::open_device(image, Access::Look, None) else {
        return Ok(());
    };
    match volume::summary(image, &device) {
        Ok(summary) if summary.log != LogState::Clean => Err(Failure::at(
            image,
            "was not closed cleanly: its last changes may be missing; the next mount recovers it",
        )),
        _ => Ok(()),
    }
}

/// Names who uses a mount, as far as this user may know.
fn busy(mount: &MountEntry) -> Failure {
    let users = users(&mount.mount_point);
    let named = match users.len() {
        0 => String::new(),
        n if n > USERS_NAMED_MAX => {
            let first: Vec<String> = users.into_iter().take(USERS_NAMED_MAX).collect();
            format!(" by {} and {} more", first.join(", "), n - USERS_NAMED_MAX)
        }
        _ => format!(" by {}", users.into_iter().collect::<Vec<_>>().join(", ")),
    };
    Failure::at(
        &mount.mount_point,
        format!("is in use{named}; end or leave that, then try again"),
    )
}

/// Processes with a working directory or an open file below a path. Only names of links
/// are read, so the mount itself is not asked.
fn users(dir: &Path) -> BTreeSet<String> {
    let mut users = BTreeSet::new();
    let below =
        |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        let path = process.path();
        let fds = std::fs::read_dir(path.join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        if below(path.join("cwd")) || below(path.join("root")) || fds.map(|fd| fd.path()).any(below)
        {
            let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            users.insert(format!("{} (pid {pid})", name.trim()));
        }
    }
    users
}
