//! `steadfast shutdown`: ends all access to a mounted volume at once, for tests of crashes.

use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_vfs::Shutdown;

use crate::commands::sync;
use crate::failure::Failure;

/// What a shutdown makes durable before it ends all access.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Flush {
    /// Everything, at its place: the next mount has nothing to recover
    #[value(alias = "everything")]
    All,
    /// Everything, in the log: the next mount replays it
    Log,
    /// Nothing: as if the power failed now
    #[value(alias = "nothing")]
    None,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to make durable before access ends
    #[arg(long, alias = "first", value_enum, default_value = "all")]
    flush: Flush,
    /// Any file or directory of the mounted volume
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    sync::mount_of(&args.path)?;
    let how = match args.flush {
        Flush::All => Shutdown::Everything,
        Flush::Log => Shutdown::Log,
        Flush::None => Shutdown::Nothing,
    };
    if how != Shutdown::Nothing {
        sync::send_kept(&args.path, "shutdown")?;
    }
    steadfast_fuse::shut_down(&args.path, how)
        .map_err(|e| Failure::at(&args.path, format!("shutting down failed: {e}")))?;
    Ok(ExitCode::SUCCESS)
}
