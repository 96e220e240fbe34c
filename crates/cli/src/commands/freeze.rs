//! `steadfast freeze` and `steadfast thaw`: hold the image of a mounted volume still, so that it can be copied.
//!
//! A copy holds everything done before the freeze. It equals the image after a crash at that moment, and its first
//! mount recovers it. A freeze ends at its limit, because the process that asked for it may have died; a later thaw
//! reports that the copy may be torn. FIFREEZE does not reach a FUSE server: the kernel refuses it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use steadfast_fuse::FREEZE_SECONDS_MAX;

use crate::commands::sync::{mount_of, send_kept};
use crate::failure::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Time limit of the freeze in seconds, 1 to 3600; then the volume thaws by itself
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=FREEZE_SECONDS_MAX))]
    limit: u64,
    /// Any file or directory of the mounted volume
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Command to run while the volume is frozen; then it thaws. The command must not write to the volume
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ThawArgs {
    /// Any file or directory of the mounted volume
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    mount_of(&args.path)?;
    if args.command.is_empty() {
        freeze(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Signals of the terminal go to the command; this process must live to thaw.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|e| Failure::new(format!("catching signals: {e}")))?;
    }
    freeze(args)?;
    let ended = Command::new(&args.command[0])
        .args(&args.command[1..])
        .status();
    let thawed = steadfast_fuse::thaw(&args.path);
    let status = ended.map_err(|e| Failure::new(format!("{}: {e}", args.command[0].display())))?;
    match thawed {
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            return Err(Failure::at(
                &args.path,
                format!(
                    "the freeze ended after {} seconds, before the command did: what it copied may be torn; give a longer --limit",
                    args.limit
                ),
            ));
        }
        thawed => thawed.map_err(|e| Failure::at(&args.path, format!("thawing failed: {e}")))?,
    }
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(code
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1)
        .into())
}

fn freeze(args: &Args) -> Result<(), Failure> {
    send_kept(&args.path, "freeze")?;
    steadfast_fuse::freeze(&args.path, args.limit).map_err(|e| {
        let busy = e.raw_os_error() == Some(Errno::BUSY.raw_os_error());
        match busy {
            true => Failure::at(&args.path, "is frozen already; 'steadfast thaw' ends that"),
            false => failed(&args.path, "freezing", &e),
        }
    })
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    Failure::at(path, format!("{what} failed: {error}"))
}

pub(crate) fn thaw(args: &ThawArgs) -> Result<ExitCode, Failure> {
    mount_of(&args.path)?;
    steadfast_fuse::thaw(&args.path).map_err(|e| {
        let not_frozen = e.raw_os_error() == Some(Errno::INVAL.raw_os_error());
        match not_frozen {
            true => Failure::at(
                &args.path,
                "is not frozen, or not any more: a freeze ends after its limit",
            ),
            false => failed(&args.path, "thawing", &e),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
