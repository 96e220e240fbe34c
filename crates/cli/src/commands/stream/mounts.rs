//! Mounts for a command about streams.
//!
//! Promise: each volume comes once, and each has streams. A named mount, or that of the current directory, must have
//! them; if there is neither, mounts without streams are left out.

use std::path::{Path, PathBuf};

use steadfast_fuse::mountinfo::{self, MountEntry};
use steadfast_stream::Error;

use crate::commands::sync::mount_of;
use crate::failure::Failure;

/// A mount with streams.
#[derive(Debug)]
pub(super) struct Target {
    /// A path on it, absolute.
    pub(super) path: PathBuf,
    pub(super) mount: MountEntry,
}

impl Target {
    /// The failure for an error on this mount, which it names if there are `several`.
    pub(super) fn failure(&self, error: Error, several: bool) -> Failure {
        match error {
            Error::NoServer { .. } | Error::Unavailable { .. } => error.into(),
            error if several => Failure::at(&self.mount.mount_point, Failure::from(error).message),
            error => error.into(),
        }
    }
}

/// The named mounts; else that of the current directory; else all.
pub(super) fn chosen(named: &[PathBuf]) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    for path in named {
        add(&mut targets, with_streams(path, mount_of(path)?)?);
    }
    if !targets.is_empty() {
        return Ok(targets);
    }
    let here = Path::new(".");
    if let Ok(mount) = mount_of(here) {
        return Ok(vec![with_streams(here, mount)?]);
    }
    let mounts = mountinfo::mounts().map_err(|e| Failure::new(format!("list of mounts: {e}")))?;
    let mut why_not = None;
    for mount in mounts.into_iter().filter(MountEntry::is_ours) {
        match with_streams(&mount.mount_point.clone(), mount) {
            Ok(target) => add(&mut targets, target),
            Err(failure) => why_not = why_not.or(Some(failure.message)),
        }
    }
    if targets.is_empty() {
        let why_not = why_not.map_or_else(String::new, |why| format!(" ({why})"));
        return Err(Failure::new(format!(
            "the current directory is on no mounted Steadfast volume, and none with streams is mounted elsewhere{why_not}; \
             mount one, or name it with --mount DIR"
        )));
    }
    Ok(targets)
}

/// The named mount, or the only one.
pub(super) fn one(named: Option<&PathBuf>) -> Result<Target, Failure> {
    let named = named.map_or(&[][..], std::slice::from_ref);
    let mut targets = chosen(named)?;
    match targets.pop() {
        Some(target) if targets.is_empty() => Ok(target),
        last => {
            let all: Vec<String> = targets
                .iter()
                .chain(&last)
                .map(|target| target.mount.mount_point.display().to_string())
                .collect();
            Err(Failure::new(format!(
                "several volumes with streams are mounted: name one of {}",
                all.join(", ")
            )))
        }
    }
}

fn add(targets: &mut Vec<Target>, new: Target) {
    let known = |target: &Target| target.mount.is_same_file_system(&new.mount);
    if !targets.iter().any(known) {
        targets.push(new);
    }
}

fn with_streams(path: &Path, mount: MountEntry) -> Result<Target, Failure> {
    match steadfast_stream::available(path) {
        Ok(()) => {}
        Err(Error::NoServer { .. }) => {
            return Err(Failure::at(
                path,
                "the server of this mount is of a version without streams; unmount the volume, and mount it again",
            ));
        }
        Err(e) => return Err(e.into()),
    }
    let path = path.canonicalize().map_err(|e| Failure::at(path, e))?;
    Ok(Target { path, mount })
}
