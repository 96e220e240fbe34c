//! `steadfast crash explain`: one finding in full.

use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_crashtest::report;

use super::{finding, saved_report};
use crate::failure::Failure;
use crate::text;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A trace that was explored
    trace: PathBuf,
    /// The finding: V1, V2, …
    finding: String,
    /// Print the finding as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let report = saved_report(&args.trace)?;
    let finding = finding(&report, &args.finding)?;
    match args.json {
        true => text::print_json(&serde_json::json!({ "finding": finding }))?,
        false => text::print(&report::explain(finding))?,
    }
    Ok(ExitCode::SUCCESS)
}
