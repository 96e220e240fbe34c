//! A cgroup (version 2) of its own for a process tree, and the rule that puts it into a stream.
//!
//! The cgroup also holds processes that no ancestor holds any more. It is made below the cgroup of this process, if
//! the user may do that, and removed when its last process has ended. A killed run leaves an empty cgroup; the next
//! run of the same user in the same place removes it. Without a cgroup, everything else works.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;
use steadfast_fuse::mountinfo;
use steadfast_stream::{Place, Settings};

use super::mounts::Target;

/// Prefix of the cgroup's name; the number of the process that made it follows.
const PREFIX: &str = "steadfast-stream-";
/// Maximum number of cgroups that are examined for removal.
const STALE_MAX: usize = 4096;
/// Attempts to remove a cgroup that the kernel calls busy, and the time between two.
const REMOVALS_MAX: u32 = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(2);

/// A cgroup that was made, with rules for it on some mounts.
#[derive(Debug)]
pub(super) struct Cgroup {
    /// The cgroup of this process.
    parent: PathBuf,
    /// As in `/proc/PID/cgroup`.
    path: String,
    dir: PathBuf,
    /// Paths on the mounts that have a rule.
    ruled: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes a cgroup and rules for it. None if that is not possible or not permitted.
    pub(super) fn make(targets: &[Target], name: &str, settings: &Settings) -> Option<Cgroup> {
        let (parent, own) = own()?;
        remove_stale(&parent, &own, targets);
        let file = format!("{PREFIX}{}", std::process::id());
        let dir = parent.join(&file);
        fs::create_dir(&dir).ok()?;
        let mut cgroup = Cgroup {
            parent,
            path: below(&own, &file),
            dir,
            ruled: Vec::new(),
        };
        for target in targets {
            let place = Place::Cgroup(cgroup.path.clone());
            if steadfast_stream::add_rule(&target.path, &place, name, settings).is_ok() {
                cgroup.ruled.push(target.path.clone());
            }
        }
        if cgroup.ruled.is_empty() || join(&cgroup.dir).is_err() {
            cgroup.end();
            return None;
        }
        Some(cgroup)
    }

    /// Moves this process back; the processes that it started stay.
    pub(super) fn leave(&self) -> io::Result<()> {
        join(&self.parent)
    }

    /// Its path for people.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Removes cgroup and rules, unless a process is in it.
    pub(super) fn end(self) {
        if remove(&self.dir) {
            for path in &self.ruled {
                // The mount may be gone.
                let _ = steadfast_stream::remove_rule(path, &Place::Cgroup(self.path.clone()));
            }
        }
    }
}

/// Removes a cgroup without processes. The kernel may count an ended process for a moment longer.
fn remove(dir: &Path) -> bool {
    for _ in 0..REMOVALS_MAX {
        match fs::remove_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && is_empty(dir) => {
                std::thread::sleep(REMOVAL_PAUSE);
            }
            // Another run found it empty and removed it.
            Err(e) => return e.kind() == io::ErrorKind::NotFound,
            Ok(()) => return true,
        }
    }
    false
}

fn is_empty(dir: &Path) -> bool {
    fs::read_to_string(dir.join("cgroup.procs")).is_ok_and(|processes| processes.is_empty())
}

/// Moves this process.
fn join(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("cgroup.procs"), std::process::id().to_string())
}

fn below(parent: &str, file: &str) -> String {
    format!("{}/{file}", parent.trim_end_matches('/'))
}

/// The cgroup of this process: its directory, and its path as in `/proc/PID/cgroup`.
fn own() -> Option<(PathBuf, String)> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = root()?;
    let dir = root.join(path.trim_start_matches('/'));
    dir.join("cgroup.procs").exists().then_some(())?;
    Some((dir, path.to_owned()))
}

/// Mount point of cgroups of version 2.
fn root() -> Option<PathBuf> {
    let mounts = mountinfo::mounts().ok()?;
    let found = mounts.into_iter().find(|mount| mount.fs_type == "cgroup2");
    found.map(|mount| mount.mount_point)
}

/// Removes the cgroups of killed runs, and rules whose cgroup is gone.
fn remove_stale(parent: &Path, own: &str, targets: &[Target]) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.take(STALE_MAX).flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let maker = name.strip_prefix(PREFIX).and_then(|n| n.parse().ok());
        let Some(maker) = maker.and_then(Pid::from_raw) else {
            continue;
        };
        // Its maker may not have entered it yet. A cgroup with a process in it is not removed.
        if rustix::process::test_kill_process(maker) == Err(rustix::io::Errno::SRCH) {
            let _ = fs::remove_dir(entry.path());
        }
    }
    // A rule is made after its cgroup and removed after it. A run on another mount removes the cgroup, not the rules
    // of this mount.
    for target in targets {
        for rule in steadfast_stream::rules(&target.path).unwrap_or_default() {
            let Place::Cgroup(path) = &rule.place else {
                continue;
            };
            let name = path.rsplit('/').next().unwrap_or_default();
            let ours = name.starts_with(PREFIX) && *path == below(own, name);
            if ours && !parent.join(name).exists() {
                let _ = steadfast_stream::remove_rule(&target.path, &rule.place);
            }
        }
    }
}

/// The path of a cgroup as in `/proc/PID/cgroup`, given that path or its directory.
pub(super) fn path_of(named: &Path) -> Option<String> {
    let root = root();
    let inside = root.and_then(|root| named.strip_prefix(root).map(Path::to_owned).ok());
    let text = match inside {
        Some(inside) => format!("/{}", inside.to_str()?),
        None => named.to_str()?.to_owned(),
    };
    let path = text.trim_end_matches('/');
    match path {
        "" => text.starts_with('/').then(|| "/".to_owned()),
        path => path.starts_with('/').then(|| path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_has_the_path_of_proc() {
        for (named, path) in [
            ("/a/b", Some("/a/b")),
            ("/a/b/", Some("/a/b")),
            ("/", Some("/")),
            ("a", None),
            ("", None),
        ] {
            assert_eq!(path_of(Path::new(named)).as_deref(), path, "{named}");
        }
        if let Some(root) = root() {
            assert_eq!(path_of(&root.join("a")).as_deref(), Some("/a"));
            assert_eq!(path_of(&root).as_deref(), Some("/"));
        }
        assert_eq!(below("/", "x"), "/x");
        assert_eq!(below("/a", "x"), "/a/x");
    }
}
