//! `steadfast crash confirm`: looks for a finding on the real file system.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use steadfast_crashtest::check::Checker;
use steadfast_crashtest::effects::{Effects, Run};
use steadfast_crashtest::models::Model;
use steadfast_crashtest::real::Kind;
use steadfast_crashtest::real::confirm::{Confirmation, Options, confirm};
use steadfast_crashtest::states::Former;
use steadfast_crashtest::trace::Trace;

use super::calibrate::kind;
use super::{finding, not_run, saved_report, stopped_by_signals, usage};
use crate::failure::{Code, Failure};
use crate::progress::Meter;
use crate::text;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A trace that was explored
    trace: PathBuf,
    /// The finding: V1, V2, …
    finding: String,
    /// The file system: ext4, xfs or btrfs
    #[arg(long, value_name = "FS")]
    fs: String,
    /// Its mount options, separated by commas
    #[arg(short = 'o', long, value_name = "OPTIONS", default_value = "")]
    options: String,
    /// Number of power cuts
    #[arg(long, value_name = "N", default_value_t = 400)]
    cuts: usize,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Shell command that runs in each tree before the check, as for 'crash explore'
    #[arg(long, value_name = "CMD")]
    recover: Option<String>,
    /// Shell command that judges each tree, as for 'crash explore'. Without it, only the exact tree of the finding
    /// counts
    #[arg(long, value_name = "CMD")]
    check: Option<String>,
    /// Number of mounts at a time (default: one per processor)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let fs = kind(&args.fs)?;
    if args.cuts == 0 {
        return Err(usage("--cuts: at least 1 is needed"));
    }
    let report = saved_report(&args.trace)?;
    let finding = finding(&report, &args.finding)?;
    let trace = Trace::open(&args.trace).map_err(not_run)?;
    let run = Run::of_trace(&trace).map_err(not_run)?;
    // The state on this file system's model, else on the first shipped model.
    let wanted = fs.model(&args.options);
    let under = finding.under.iter().find(|u| u.model == wanted);
    let under = under.or_else(|| {
        finding
            .under
            .iter()
            .find(|u| Model::text(&u.model).is_some())
    });
    let tree = match under {
        None => None,
        Some(under) => {
            let model = Model::shipped(&under.model).map_err(usage)?;
            let effects = Effects::new(&run, &model);
            let state = under.state.state(&effects).map_err(not_run)?;
            Some(Former::new(&effects).disk(&state.bits, state.tear))
        }
    };
    let stop = stopped_by_signals()?;
    let checker = match (&args.recover, &args.check) {
        (None, None) => None,
        (recover, check) => {
            let mut checker = Checker::new(recover.clone(), check.clone()).map_err(not_run)?;
            checker.stop = Arc::clone(&stop);
            Some(checker)
        }
    };
    let meter = Meter::new(false);
    let found = confirm(
        &run,
        &Options {
            fs,
            mount: args.options.clone(),
            cuts: args.cuts,
            seed: args.seed,
            jobs: args.jobs.unwrap_or_else(super::explore::processors).max(1),
            tree,
            checker: checker.as_ref(),
            line: Some(finding.line.clone()),
        },
        &stop,
        &|done| meter.show("power cuts", done as u64, args.cuts as u64),
    )
    .map_err(not_run)?;
    drop(meter);
    match args.json {
        true => text::print_json(&serde_json::json!({
            "finding": finding.id,
            "confirmation": found,
        }))?,
        false => text::print(&lines(&finding.id, &finding.line, fs, &found))?,
    }
    Ok(match found.shown() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(Code::Failed),
    })
}

fn lines(id: &str, line: &str, fs: Kind, found: &Confirmation) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{id} \"{line}\"");
    let _ = writeln!(out, "  {}", found.line());
    let _ = writeln!(
        out,
        "  the run was carried out {} times on {} ({}) in {:.0} s; {} cuts left the exact tree of the finding, {} a tree with the same verdict",
        found.runs,
        fs.name(),
        found.kernel,
        found.seconds,
        found.same_tree,
        found.same_line
    );
    if found.unreadable > 0 {
        let _ = writeln!(
            out,
            "  {} cuts left a file system that did not mount or could not be read",
            found.unreadable
        );
    }
    for (line, times) in &found.lines {
        let _ = writeln!(out, "  {times:>6}  \"{line}\"");
    }
    if let Some(example) = &found.example {
        let _ = writeln!(out, "  the tree: {example}");
    }
    out.truncate(out.trim_end().len());
    out
}
