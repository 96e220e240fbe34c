//! `steadfast crash test`: records a program and explores the recording.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use steadfast_crashtest::trace::Trace;

use super::{explore, not_run, record, report_of};
use crate::failure::{Failure, notice};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    record: record::RecordOptions,
    #[command(flatten)]
    explore: explore::ExploreOptions,
    /// Keep the trace here. Default: a temporary file, which is kept if something was found
    #[arg(short, long, value_name = "TRACE")]
    output: Option<PathBuf>,
    /// Program and its arguments. Each line that it writes to standard output is an acknowledgement, like 'crash ack'
    #[arg(last = true, required = true, value_name = "WORKLOAD")]
    workload: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let stop = super::stopped_by_signals()?;
    let prepared = explore::prepare(&args.explore, &stop)?;
    let trace = match &args.output {
        Some(path) => path.clone(),
        None => {
            let name = format!("steadfast-crash.{}.trace", std::process::id());
            std::env::temp_dir().join(name)
        }
    };
    let recorded = record::record(&args.record, &args.workload, &trace, &stop);
    if recorded.is_err() && args.output.is_none() && is_empty(&trace) {
        // Nothing was mounted or started: there is nothing to keep, and the failure is reported anyway.
        let _ = std::fs::remove_file(&trace);
    }
    recorded?;
    let kept = |failure: Failure| Failure {
        message: format!(
            "{}; the trace is kept in {}",
            failure.message,
            trace.display()
        ),
        ..failure
    };
    let (report, code) = explore::explore(&args.explore, prepared, &trace).map_err(kept)?;
    explore::tell(&args.explore, &report)?;
    if args.output.is_some() {
        return Ok(code);
    }
    match report.findings.first() {
        Some(finding) => notice(&format!(
            "the trace is kept: 'steadfast crash show {} {} DIR' lays a state out, 'crash explain' says more",
            trace.display(),
            finding.id
        )),
        None if report.interrupted => notice(&format!(
            "the trace is kept: 'steadfast crash explore {}' judges its states",
            trace.display()
        )),
        None => {
            for path in [report_of(&trace), trace] {
                std::fs::remove_file(&path)
                    .map_err(|e| not_run(format!("{}: {e}", path.display())))?;
            }
        }
    }
    Ok(code)
}

/// Whether a trace holds no call.
fn is_empty(trace: &Path) -> bool {
    Trace::open(trace).is_ok_and(|t| t.calls.is_empty() && t.setup.is_empty())
}
