//! `steadfast shutdown`: ends all access to a mounted volume at once, for tests of crashes.

use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_vfs::Shutdown;

use crate::commands::sync;
use crate::failure::Failure;

/// What is made durable first.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum First {
    /// Everything, at its place: nothing is left to recover
    Everything,
    /// Everything, in the log: the next mount replays it
    Log,
    /// Nothing more: as if the power failed now
    Nothing,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What is made durable first
    #[arg(long, value_enum, default_value = "everything")]
    first: First,
    /// Any file or directory of the mounted volume
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    sync::mount_of(&args.path)?;
    let how = match args.first {
        First::Everything => Shutdown::Everything,
        First::Log => Shutdown::Log,
        First::Nothing => Shutdown::Nothing,
    };
    steadfast_fuse::shut_down(&args.path, how)
        .map_err(|e| Failure::at(&args.path, format!("shutting down failed: {e}")))?;
    Ok(ExitCode::SUCCESS)
}
