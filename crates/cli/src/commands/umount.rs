//! `steadfast umount`: unmounts, and waits until the server has closed the image.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use steadfast_fuse::mountinfo::{self, MountEntry};
use steadfast_fuse::{Unmount, server_pid, unmount};

use crate::failure::{Failure, notice};
use crate::volume::{self, Access, Contract, LogState};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Take the mount out of the tree at once; files in use there work until they are closed
    #[arg(short, long)]
    lazy: bool,
    /// First cut the connection to a server that does not answer: waiting calls fail, and so does every later use of
    /// the mount
    #[arg(short, long)]
    force: bool,
    /// Directory where the volume is mounted
    dir: PathBuf,
}

impl Args {
    pub(crate) fn new(dir: PathBuf, lazy: bool, force: bool) -> Args {
        Args { lazy, force, dir }
    }

    fn how(&self) -> Unmount {
        match (self.lazy, self.force) {
            (false, false) => Unmount::IfIdle,
            (false, true) => Unmount::Force,
            (true, _) => Unmount::Detach,
        }
    }
}

/// Time for a server that has closed its image to end.
const LINGER: Duration = Duration::from_secs(5);
/// Longest interval of checks whether the server has closed the image.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);
/// Maximum number of users of a busy mount that are named.
const USERS_NAMED_MAX: usize = 5;

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let dir = mountinfo::resolve(&args.dir).map_err(|e| Failure::at(&args.dir, e))?;
    let mount = find(&dir)?;
    // Asked before the unmount; with --force, the server may not answer.
    let asked = if args.force {
        Err(ErrorKind::TimedOut.into())
    } else {
        server_pid(&dir)
    };
    let dead = matches!(&asked, Err(e) if is_dead(e));
    let server = asked.ok().and_then(start_time);
    // A volume that was shut down on purpose is not closed cleanly.
    let shut_down = server.is_some()
        && steadfast_fuse::stats(&dir)
            .is_ok_and(|stats| stats.contains(&("shut_down_now".to_owned(), 1)));
    let clean_before = server.is_some() && !shut_down;
    let failed = clean_before.then(|| steadfast_fuse::health(&dir).ok());
    let failed = failed.flatten().and_then(|health| health.failed);
    match unmount(&dir, args.how()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::ResourceBusy => return Err(busy(&mount)),
        Err(e) => return Err(Failure::at(&dir, format!("unmounting failed: {e}"))),
    }
    if dead {
        // The kernel closes the files of a killed process a moment after its end.
        wait_until_closed(&mount, None)?;
        return after_death(&mount);
    }
    // A lazy unmount may take long.
    if args.lazy || is_mounted(&mount)? {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(process) = wait_until_closed(&mount, server)? {
        let (dir, image) = (dir.display(), mount.source.display());
        notice(&format!(
            "{dir}: unmounted here; {image} stays mounted in the mount namespace of process {process}, and its server goes on"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    // A read-only mount leaves the log as it found it.
    if (clean_before || args.force) && !mount.read_only {
        check_closed(&mount.source, failed.as_deref())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether this error means that no process serves the mount any more.
fn is_dead(error: &std::io::Error) -> bool {
    let dead = [Errno::NOTCONN, Errno::CONNABORTED].map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|code| dead.contains(&code))
}

/// Reports what a dead server may have lost. Its log does not tell: changes that were in memory alone left no trace.
fn after_death(mount: &MountEntry) -> Result<ExitCode, Failure> {
    if mount.read_only {
        let dir = mount.mount_point.display();
        notice(&format!(
            "{dir}: unmounted; its server was dead, but the mount was read-only: nothing is lost"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let image = &mount.source;
    if volume::store::url(image).is_some() {
        return Err(Failure::at(
            &mount.mount_point,
            format!(
                "unmounted, but its server was dead: what was changed since the last sync, fsync or commit is lost; {}: the next \
                 mount on this machine recovers it, one on another machine takes it over ('-o take_over')",
                image.display()
            ),
        ));
    }
    let summary = volume::open_device(image, Access::Peek, None)
        .and_then(|device| volume::summary(image, &device));
    let lost = match &summary {
        Ok(summary) if summary.contract == Contract::Sync.name() => {
            "every call that had returned is durable, stores through mmap since the last msync are not"
        }
        _ => {
            "what was changed since the last sync, fsync or commit (one every 5 seconds, unless the option 'commit' \
              said otherwise) is not known to be durable"
        }
    };
    let next = match summary {
        Ok(summary) => match summary.log {
            LogState::Damaged(why) => format!("its log is damaged ({why}): run 'steadfast fsck'"),
            _ => "the next mount recovers it".to_owned(),
        },
        Err(failure) => format!("it cannot be read now: {}", failure.message),
    };
    Err(Failure::at(
        &mount.mount_point,
        format!(
            "unmounted, but its server was dead: {lost}; {}: {next}; the system's log may say what ended the server",
            image.display()
        ),
    ))
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

/// A process and its start time, which together are unique.
type Process = (u32, String);

/// None for a process that has ended, even if its parent has not reaped it (a zombie).
fn start_time(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Fields 3 and 22, counted after the name, which may hold anything but ends with the last ')'.
    let fields = stat.rsplit_once(") ")?.1;
    if fields.starts_with(['Z', 'X']) {
        return None;
    }
    let start = fields.split(' ').nth(19)?;
    Some((pid, start.to_owned()))
}

/// Whether the same file system is mounted at another place, too (a bind mount).
fn is_mounted(mount: &MountEntry) -> Result<bool, Failure> {
    let mounts = mountinfo::mounts().map_err(|e| Failure::new(format!("list of mounts: {e}")))?;
    Ok(mounts.iter().any(|other| other.is_same_file_system(mount)))
}

/// A process in whose mount namespace the file system is mounted.
fn mounted_elsewhere(mount: &MountEntry) -> Option<u32> {
    let mut namespaces = BTreeSet::new();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    for process in processes {
        let namespace = std::fs::read_link(format!("/proc/{process}/ns/mnt"));
        let new = namespace.is_ok_and(|namespace| namespaces.insert(namespace));
        if new
            && mountinfo::mounts_of(process)
                .is_ok_and(|mounts| mounts.iter().any(|other| other.is_same_file_system(mount)))
        {
            return Some(process);
        }
    }
    None
}

/// Waits until the server unlocks the image, which it does when everything is durable, and then a moment for its end.
/// A mount in another namespace keeps the server: then a process of that namespace is returned.
fn wait_until_closed(mount: &MountEntry, server: Option<Process>) -> Result<Option<u32>, Failure> {
    let image = &mount.source;
    // The image may have been removed while mounted: then only the process shows the end.
    let file = File::open(image).ok();
    let gone = |server: &Option<Process>| match server {
        Some((pid, start)) => start_time(*pid).is_none_or(|now| now.1 != *start),
        None => true,
    };
    let mut pause = Duration::from_millis(1);
    let (mut unlocked_at, mut gone_at) = (None, None);
    loop {
        let locked = match &file {
            Some(file) => match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => {
                    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
                    false
                }
                Err(Errno::WOULDBLOCK) => true,
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
                return Ok(None);
            }
        } else if unlocked_at.is_none() && server.is_some() && gone(&server) {
            // The kernel closes the files of a process a moment after its end. Or another process has locked it meanwhile.
            if gone_at.get_or_insert_with(Instant::now).elapsed() > LINGER {
                return Ok(None);
            }
        } else if pause == LONGEST_PAUSE
            && let Some(process) = mounted_elsewhere(mount)
        {
            return Ok(Some(process));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Checks that the server closed the volume: it leaves the volume open if it could not make everything durable.
/// `failed`: the failure after which nothing was written, before the end.
fn check_closed(image: &Path, failed: Option<&str>) -> Result<(), Failure> {
    let why = failed.map_or(String::new(), |why| format!(" ({why})"));
    let left_open = |next: &str| {
        let text = format!("was not closed cleanly{why}: its last changes may be missing; {next}");
        Err(Failure::at(image, text))
    };
    if volume::store::url(image).is_some() {
        return match failed {
            Some(_) => left_open("the next mount finds its last acknowledged flush"),
            None => Ok(()),
        };
    }
    let summary = match volume::open_device(image, Access::Look, None) {
        Ok(device) => volume::summary(image, &device),
        // In use again, or removed: nothing to report.
        Err(_) if failed.is_none() => return Ok(()),
        Err(failure) => Err(failure),
    };
    match summary {
        Ok(summary) if summary.log != LogState::Clean => left_open("the next mount recovers it"),
        Err(failure) if failed.is_some() => left_open(&failure.message),
        _ => Ok(()),
    }
}

/// Names the processes that use a mount, as far as this user may know.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Once the wait went on until its parent reaped it, up to five seconds, with the image closed long ago.
    #[test]
    fn a_process_that_its_parent_has_not_reaped_has_ended() {
        let Ok(mut child) = std::process::Command::new("true").spawn() else {
            return steadfast_testkit::skipped!("there is no 'true'");
        };
        assert!(start_time(std::process::id()).is_some());
        // Waits for its end and leaves it a zombie.
        let id = rustix::process::WaitId::Pid(rustix::process::Pid::from_child(&child));
        let how = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        assert!(rustix::process::waitid(id, how).is_ok());
        assert_eq!(start_time(child.id()), None);
        assert!(child.wait().is_ok());
    }
}
