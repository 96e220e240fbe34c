//! `steadfast crash`: crash exploration.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::commands::mkfs::{Contract, Kind};
use crate::failure::Failure;
use crate::text;
use crate::volume::{self, Explored, PutExplored};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Explore this stack itself: cut its power everywhere, recover, compare with the model
    #[command(name = "self")]
    Own(Args),
    /// Explore how a file is replaced ('steadfast put'): all disks that a crash may leave, and
    /// the trees that recovery makes of them; then the same with steps left out
    Put(PutArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct PutArgs {
    /// The contract of the volume
    #[arg(long, value_enum, default_value_t = Contract::Ordered)]
    contract: Contract,
    /// Size of the new content, up to 32K
    #[arg(long, default_value = "12K", value_parser = crate::size::parse)]
    size: u64,
    /// Let power cuts tear blocks: each sector of 512 bytes has its own fate
    #[arg(long)]
    tears: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The kind of medium: a disk with a volatile cache, or flash through the translation layer, where
    /// volumes have no log
    #[arg(long, value_enum, default_value_t = Kind::Block)]
    on: Kind,
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
    match command {
        Command::Own(args) => run_self(args),
        Command::Put(args) => run_put(args),
    }
}

fn run_put(args: &PutArgs) -> Result<ExitCode, Failure> {
    let contract = args.contract.of_volume();
    let explored = volume::explore_put(contract, args.size, args.tears)?;
    if args.json {
        text::print_json(&serde_json::json!({ "explored": explored }))?;
    } else {
        let lines: Vec<String> = explored.iter().map(put_lines).collect();
        text::print(&lines.join("\n"))?;
    }
    let broken = explored.iter().filter(|e| e.right && e.violations > 0);
    match broken.count() {
        0 => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::new(
            "replacing a file is not safe: see the violations above",
        )),
    }
}

fn put_lines(explored: &PutExplored) -> String {
    let mut lines = vec![format!(
        "{}: {}, {}{}: {} {}{}, {} trees, {}",
        explored.file_system,
        explored.variant,
        if explored.exists {
            "over a file"
        } else {
            "new file"
        },
        if explored.commits {
            ", with commits in between"
        } else {
            ""
        },
        explored.disks,
        if explored.file_system == "weakest" {
            "states"
        } else {
            "disks"
        },
        if explored.exhaustive {
            ""
        } else {
            " (sampled)"
        },
        explored.trees.len(),
        match (explored.violations, explored.right) {
            (0, true) => "safe".to_owned(),
            (0, false) => "safe here, too".to_owned(),
            (n, _) => format!("UNSAFE on {n}"),
        }
    )];
    if explored.right {
        let trees = explored.trees.iter();
        lines.extend(trees.map(|tree| format!("  {:>6}  {}", tree.disks, tree.text)));
    }
    lines.extend(explored.examples.first().map(|e| format!("          {e}")));
    lines.join("\n")
}

fn run_self(args: &Args) -> Result<ExitCode, Failure> {
    let contract = args.contract.of_volume();
    let medium = match args.on {
        Kind::Flash => volume::Medium::Flash,
        Kind::Block => volume::Medium::Block,
        Kind::Pm => {
            return Err(Failure::usage(
                "volumes in persistent memory are explored store by store: 'cargo test -p steadfast-pmfs --test crash'",
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
