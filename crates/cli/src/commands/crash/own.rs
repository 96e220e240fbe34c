//! `steadfast crash self`: explores crashes of this stack itself.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::commands::mkfs::{Kind, contract_parser};
use crate::failure::Failure;
use crate::text;
use crate::volume::{self, Contract, Explored};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The kind of medium: a disk with a volatile cache, or flash through the translation layer, where
    /// volumes have no log
    #[arg(long, value_enum, default_value_t = Kind::Block)]
    on: Kind,
    /// Contract to explore
    #[arg(long, value_parser = contract_parser(), default_value_t)]
    contract: Contract,
    /// Seed of all random choices; the same seed repeats a run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Minimum number of crash images to check
    #[arg(long, default_value_t = 10_000)]
    images: u64,
    /// Number of threads (default: one per processor)
    #[arg(long)]
    jobs: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let contract = args.contract;
    let medium = match args.on {
        Kind::Flash => volume::Medium::Flash,
        Kind::Block => volume::Medium::Block,
        Kind::Pm => {
            return Err(Failure::usage(
                "volumes in persistent memory are explored store by store: 'cargo test -p steadfast-pmfs --test suite crash::'",
            ));
        }
        Kind::Store => {
            return Err(Failure::usage(
                "volumes on object stores are explored by the tests of their crate",
            ));
        }
    };
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let jobs = args.jobs.unwrap_or(processors).max(1);
    let watched = std::io::stderr().is_terminal();
    let explored = volume::explore_crashes(
        medium,
        contract,
        args.seed,
        args.images,
        jobs,
        &|done, wanted| {
            if watched {
                let _ = write!(std::io::stderr(), "\r{done} of {wanted} crash images\x1b[K");
            }
        },
    )?;
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
        "{} violations of the contract; 'steadfast crash self --on {} --contract {contract} --seed {} --images {}' repeats them",
        explored.violations.len(),
        explored.on,
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
        "  {} of {} pairs of operations, {} triples, {} random sequences; {} recoveries cut, {} volumes filled and emptied",
        explored.pairs,
        explored.pairs_all,
        explored.triples,
        explored.sequences,
        explored.recoveries_cut,
        explored.volumes_used
    ));
    lines.join("\n")
}
