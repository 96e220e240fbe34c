//! `steadfast crash`: crash exploration.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::text;
use crate::volume;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Explore this stack itself: cut its power everywhere, recover, compare with the model
    #[command(name = "self")]
    Own(Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seed of everything random; the same seed repeats a run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Crash images to check at least
    #[arg(long, default_value_t = 10_000)]
    images: u64,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, Failure> {
    let Command::Own(args) = command;
    let explored = volume::explore_crashes(args.seed, args.images)?;
    text::print(&explored.summary)?;
    if explored.violations == 0 {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::new(format!(
            "{} violations of the contract; repeat with --seed {} --images {}",
            explored.violations, args.seed, args.images
        )))
    }
}
