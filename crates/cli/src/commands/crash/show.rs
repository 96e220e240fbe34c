//! `steadfast crash show`: makes a directory with the state of a finding, for debugging.

use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_crashtest::check::lay_out;
use steadfast_crashtest::effects::{Effects, Run};
use steadfast_crashtest::models::Model;
use steadfast_crashtest::states::Former;
use steadfast_crashtest::trace::Trace;

use super::{finding, not_run, saved_report, usage};
use crate::failure::Failure;
use crate::text;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A trace that was explored
    trace: PathBuf,
    /// The finding: V1, V2, …
    finding: String,
    /// Directory to make, with the files as a power cut could leave them
    dir: PathBuf,
    /// Model of the state: a name, or a file of your own. Default: the first model of the finding
    #[arg(long, value_name = "MODEL")]
    fs: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let report = saved_report(&args.trace)?;
    let finding = finding(&report, &args.finding)?;
    let given = args.fs.as_deref().map(Model::load).transpose();
    let given = given.map_err(usage)?;
    let under = match &given {
        None => finding.under.first(),
        Some(model) => finding.under.iter().find(|u| u.model == model.name),
    };
    let Some(under) = under else {
        let on: Vec<&str> = finding.under.iter().map(|u| u.model.as_str()).collect();
        return Err(usage(format!(
            "{} is not on this model; it is on {}",
            finding.id,
            on.join(", ")
        )));
    };
    let model = match given {
        Some(model) => model,
        None => Model::shipped(&under.model).map_err(|_| {
            usage(format!(
                "the model '{}' does not come with this program: give its file with --fs",
                under.model
            ))
        })?,
    };
    let trace = Trace::open(&args.trace).map_err(not_run)?;
    let run = Run::of_trace(&trace).map_err(not_run)?;
    let effects = Effects::new(&run, &model);
    let state = under.state.state(&effects).map_err(not_run)?;
    let disk = Former::new(&effects).disk(&state.bits, state.tear);
    lay_out(&disk, &args.dir).map_err(|e| Failure::at(&args.dir, e))?;
    text::print(&format!(
        "{} on {}, in {}: what a power cut could leave between call {} and call {}",
        finding.id,
        model.name,
        args.dir.display(),
        under.state.moments.0,
        under.state.moments.1
    ))?;
    Ok(ExitCode::SUCCESS)
}
