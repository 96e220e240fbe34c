//! `steadfast crash put`: explores the replacement of a file.

use std::process::ExitCode;

use crate::commands::mkfs::contract_parser;
use crate::failure::Failure;
use crate::text;
use crate::volume::{self, Contract, PutExplored};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The contract of the volume
    #[arg(long, value_parser = contract_parser(), default_value_t)]
    contract: Contract,
    /// Size of the new content, up to 32K
    #[arg(long, default_value = "12K", value_parser = crate::size::parse)]
    size: u64,
    /// Let power cuts tear blocks: each sector of 512 bytes survives or not by itself
    #[arg(long)]
    tears: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let contract = args.contract;
    let explored = volume::explore_put(contract, args.size, args.tears)?;
    if args.json {
        text::print_json(&serde_json::json!({ "explored": explored }))?;
    } else {
        let lines: Vec<String> = explored.iter().map(lines).collect();
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

fn lines(explored: &PutExplored) -> String {
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
