//! `steadfast sync`: makes everything written to a mounted volume durable.
//!
//! sync(2) does not reach a FUSE server; this command does. If the kernel caches writes (contract `relaxed`), it
//! first sends them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use steadfast_fuse::Sent;
use steadfast_fuse::mountinfo::{self, MountEntry};

use crate::failure::{Failure, notice};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// On a volume with a cache ('-o flush=cache'): wait until the object store has everything
    #[arg(long)]
    store: bool,
    /// Any file or directory of the mounted volume
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    mount_of(&args.path)?;
    send_kept(&args.path, "sync")?;
    let synced = match args.store {
        true => steadfast_fuse::sync_store(&args.path),
        false => steadfast_fuse::sync(&args.path),
    };
    synced.map_err(|e| {
        Failure::at(
            &args.path,
            format!("sync failed: {e}; what is not durable yet may be lost in a crash"),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the kernel send the writes that it caches for the mount; warns if not all of them may have arrived.
pub(crate) fn send_kept(path: &Path, command: &str) -> Result<(), Failure> {
    let sent = steadfast_fuse::send_kept(path).map_err(|e| {
        Failure::at(
            path,
            format!("{command}: the kernel did not send the cached writes of open files: {e}"),
        )
    })?;
    if let Sent::PerhapsUnderWay(why) = sent {
        notice(&format!(
            "{}: {command} may not include recent writes to files that are still open: {why}; fsync them",
            path.display()
        ));
    }
    Ok(())
}

/// The Steadfast mount that a file or directory belongs to.
pub(crate) fn mount_of(path: &Path) -> Result<MountEntry, Failure> {
    // A mount point is first looked up by its name: a volume that was shut down answers no calls.
    let there = mountinfo::resolve(path).and_then(|path| mountinfo::mount_at(&path));
    if let Ok(Some(mount)) = there
        && mount.is_ours()
    {
        return Ok(mount);
    }
    let stat = rustix::fs::stat(path).map_err(|e| Failure::at(path, e))?;
    let device = format!(
        "{}:{}",
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev)
    );
    let mounts = mountinfo::mounts().map_err(|e| Failure::new(format!("list of mounts: {e}")))?;
    mounts
        .into_iter()
        .find(|m| m.device == device && m.is_ours())
        .ok_or_else(|| Failure::at(path, "not on a mounted Steadfast volume"))
}
