//! `steadfast crash record`: runs a program and records every call on its files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use steadfast_crashtest::record::{self, Mapped, Options, Recorded};
use steadfast_crashtest::trace::{BlindSpots, Ended};

use super::{duration, not_run};
use crate::failure::Failure;
use crate::{size, text};

/// Options of a recorded run.
#[derive(Debug, clap::Args)]
pub(crate) struct RecordOptions {
    /// Shell command that makes the initial files, in the directory of the recording; all its changes are durable
    #[arg(long, value_name = "CMD")]
    setup: Option<OsString>,
    /// Begin with a copy of this directory
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Directory in which the program sees its files, for programs with fixed paths; other processes still see what
    /// is there. Default: a new directory, which is the working directory of the program and its $CRASH_DIR
    #[arg(long, value_name = "DIR")]
    at: Option<PathBuf>,
    /// End the workload after this time; what it did until then is kept
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    time_limit: Duration,
    /// Do not record the place in the program that each call comes from
    #[arg(long)]
    no_stacks: bool,
    /// Write back stores through mmap at this interval, or before each call that changes or syncs names or
    /// acknowledges (every-call). Default: when the kernel does it, so that their order is not known
    #[arg(long, value_name = "TIME|every-call", value_parser = mapped)]
    mmap: Option<Mapped>,
    /// Maximum size of the trace
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = size::parse)]
    trace_limit: u64,
    /// Go on even if the exit status of the workload is not 0
    #[arg(long)]
    allow_failure: bool,
}

fn mapped(text: &str) -> Result<Mapped, String> {
    match text {
        "every-call" => Ok(Mapped::EveryCall),
        _ => duration(text).map(Mapped::Every),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The trace to write
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,
    #[command(flatten)]
    how: RecordOptions,
    /// Print what was recorded as JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "WORKLOAD")]
    workload: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let stop = super::stopped_by_signals()?;
    let recorded = record(&args.how, &args.workload, &args.output, &stop)?;
    let counts = recorded.counts;
    if args.json {
        text::print_json(&serde_json::json!({
            "trace": args.output.display().to_string(),
            "calls": counts.calls,
            "setup_calls": counts.setup,
            "failed_calls": counts.failed,
            "writes": counts.writes,
            "written_bytes": counts.bytes_written,
            "syncs": counts.syncs,
            "acknowledgements": counts.acknowledged,
            "trace_bytes": counts.trace_bytes,
            "left_over_processes": recorded.end.left_over,
            "blind": blind_spots(&recorded.end.blind),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = vec![format!(
        "{}: {} calls, {} syncs, {} written, {} acknowledgements",
        args.output.display(),
        counts.calls,
        counts.syncs,
        size::show(counts.bytes_written),
        counts.acknowledged
    )];
    let blind = blind_spots(&recorded.end.blind);
    lines.extend(blind.iter().map(|b| format!("not seen: {b}")));
    text::print(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Records a run; fails if the run says nothing about the program.
pub(super) fn record(
    how: &RecordOptions,
    workload: &[OsString],
    trace: &Path,
    stop: &Arc<AtomicBool>,
) -> Result<Recorded, Failure> {
    // Before any thread starts. If the kernel refuses, the recording tries another way, which says what is missing.
    let _ = record::enter_user_namespace();
    let mut options = Options::new(workload.to_vec(), trace.to_owned());
    options.from.clone_from(&how.from);
    options.setup.clone_from(&how.setup);
    options.at.clone_from(&how.at);
    options.time_limit = how.time_limit;
    options.trace_bytes_max = how.trace_limit;
    options.stacks = !how.no_stacks;
    options.mapped = how.mmap.unwrap_or_default();
    options.interrupted = Arc::clone(stop);
    options.output = Some(Box::new(std::io::stderr()));
    let recorded = record::record(options).map_err(not_run)?;
    let kept = match recorded.counts.calls {
        0 => "it made no call until then".to_owned(),
        _ => format!("the trace is kept in {}", trace.display()),
    };
    match recorded.end.how {
        Ended::Interrupted => Err(not_run(format!("interrupted while it recorded; {kept}"))),
        Ended::Exited(0) | Ended::TimeLimit => Ok(recorded),
        _ if how.allow_failure => Ok(recorded),
        Ended::Exited(code) => Err(not_run(format!(
            "the workload failed with exit status {code}; --allow-failure goes on all the same; {kept}"
        ))),
        Ended::Signalled(signal) => Err(not_run(format!(
            "signal {signal} ended the workload; --allow-failure goes on all the same; {kept}"
        ))),
    }
}

/// What a recording cannot know, in the words of reports.
pub(super) fn blind_spots(blind: &BlindSpots) -> Vec<String> {
    let mut told = Vec::new();
    if !blind.syncs_watched {
        told.push("sync, syncfs and sync_file_range were not watched".to_owned());
    }
    if blind.mapped_writes > 0 {
        told.push(format!(
            "the order of stores through mmap between {} write-backs ({})",
            blind.mapped_writes,
            size::show(blind.mapped_bytes)
        ));
    }
    if blind.io_urings > 0 {
        told.push(format!(
            "callers of requests through {} io_uring instances",
            blind.io_urings
        ));
    }
    if blind.refused > 0 {
        told.push(format!(
            "{} calls that the recording does not offer failed with an error",
            blind.refused
        ));
    }
    if blind.unfinished_line > 0 {
        told.push(format!(
            "{} bytes on standard output without a newline at the end acknowledge nothing",
            blind.unfinished_line
        ));
    }
    told
}
