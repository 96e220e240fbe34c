//! `steadfast crash`: crash exploration.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::commands::mkfs::{Contract, Kind, offered};
use crate::failure::Failure;
use crate::text;
use crate::volume::{self, Explored};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Explore this stack itself: cut its power everywhere, recover, compare with the model
    #[command(name = "self")]
    Own(Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The contract that is explored
    #[arg(long, value_enum, default_value_t = Contract::Ordered)]
    contract: Contract,
    /// Seed of everything random; the same seed repeats a run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Crash images to check at least
    #[arg(long, default_value_t = 10_000)]
    images: u64,
    /// Threads (by default one per processor)
    #[arg(long)]
    jobs: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, Failure> {
    let Command::Own(args) = command;
    let contract = offered(Kind::Block, args.contract)?;
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let jobs = args.jobs.unwrap_or(processors).max(1);
    let watched = std::io::stderr().is_terminal();
    let explored =
        volume::explore_crashes(contract, args.seed, args.images, jobs, &|done, wanted| {
            if watched {
                let _ = write!(std::io::stderr(), "\r{done} of {wanted} crash images\x1b[K");
            }
        })?;
    if watched {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    if args.json {
        text::print_json(&explored)?;
    } else {
        text::print(&lines(&explored))?;
    }
    if explored.violations.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(format!(
        "{} violations of the contract; 'steadfast crash self --contract {contract} --seed {} --images {}' repeats them",
        explored.violations.len(),
        args.seed,
        args.images
    )))
}

fn lines(explored: &Explored) -> String {
    let mut lines: Vec<String> = explored.violations.clone();
    lines.push(format!(
        "{} crash images checked in {:.1} s, {} violations of '{}' (seed {})",
        explored.images,
        explored.seconds,
        explored.violations.len(),
        explored.contract,
        explored.seed
    ));
    lines.push(format!(
        "  {} of {} pairs of operations, {} random sequences; {} recoveries cut, {} volumes filled and emptied",
        explored.pairs,
        explored.pairs_all,
        explored.sequences,
        explored.recoveries_cut,
        explored.volumes_used
    ));
    lines.join("\n")
}
