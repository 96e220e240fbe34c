//! `steadfast crash calibrate`: compares a model with the real file system.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_crashtest::models::Model;
use steadfast_crashtest::real::Kind;
use steadfast_crashtest::real::calibrate::{Calibration, Options, calibrate};

use super::{not_run, stopped_by_signals, usage};
use crate::failure::{Code, Failure};
use crate::progress::Meter;
use crate::text;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file system: ext4, xfs or btrfs
    fs: String,
    /// Its mount options, separated by commas; data=writeback, data=journal, nodelalloc and noauto_da_alloc have
    /// models of their own
    #[arg(short = 'o', long, value_name = "OPTIONS", default_value = "")]
    options: String,
    /// Model to compare: a name of 'crash models', or a file. Default: the model of the file system and its options
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Number of power cuts; about four for each sequence of calls
    #[arg(long, value_name = "N", default_value_t = 1000)]
    cuts: usize,
    /// Seed of sequences and cuts: the same seed gives the same sequences
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Number of mounts at a time (default: one per processor)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Write the model to this file, with the result in 'calibrated'
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The file system of this name.
pub(super) fn kind(name: &str) -> Result<Kind, Failure> {
    Kind::named(name).ok_or_else(|| {
        let all: Vec<&str> = Kind::ALL.into_iter().map(Kind::name).collect();
        usage(format!(
            "'{name}' is no file system that can be mounted here; there are {}",
            all.join(", ")
        ))
    })
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let fs = kind(&args.fs)?;
    let name = args.model.as_deref();
    let model = Model::load(name.unwrap_or(fs.model(&args.options))).map_err(usage)?;
    if args.cuts == 0 {
        return Err(usage("--cuts: at least 1 is needed"));
    }
    let stop = stopped_by_signals()?;
    let options = Options {
        fs,
        mount: args.options.clone(),
        model: model.clone(),
        cuts: args.cuts,
        seed: args.seed,
        jobs: args.jobs.unwrap_or_else(super::explore::processors).max(1),
    };
    let meter = Meter::new(false);
    let found = calibrate(&options, &stop, &|done| {
        meter.show("power cuts", done as u64, args.cuts as u64);
    })
    .map_err(not_run)?;
    drop(meter);
    if let Some(path) = &args.write {
        let text = with_calibration(&source(name, &model)?, &found.line());
        steadfast::atomic_replace(path, text.as_bytes()).map_err(|e| Failure::at(path, e))?;
    }
    match args.json {
        true => text::print_json(&serde_json::json!({ "calibration": found }))?,
        false => text::print(&lines(&found))?,
    }
    Ok(match found.forbidden {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(Code::Failed),
    })
}

/// The text of a model.
fn source(name: Option<&str>, model: &Model) -> Result<String, Failure> {
    match Model::text(name.unwrap_or(&model.name)) {
        Some(text) => Ok(text.to_owned()),
        None => {
            let path = PathBuf::from(name.unwrap_or(&model.name));
            std::fs::read_to_string(&path).map_err(|e| Failure::at(&path, e))
        }
    }
}

/// A model's text with this result.
fn with_calibration(model: &str, line: &str) -> String {
    let entry = format!("calibrated = {}", serde_json::Value::from(line));
    let mut lines: Vec<&str> = model.lines().collect();
    lines.retain(|l| !l.starts_with("calibrated"));
    let after = lines.iter().position(|l| l.starts_with("name"));
    lines.insert(after.map_or(0, |at| at + 1), &entry);
    lines.join("\n") + "\n"
}

fn lines(found: &Calibration) -> String {
    let mut out = String::new();
    let options = match found.options.is_empty() {
        true => String::new(),
        false => format!(" ({})", found.options),
    };
    let (pairs, longer) = found.sequences;
    let _ = writeln!(
        out,
        "{}{options} on {}, model '{}': {} cuts in {} sequences of two calls and {} of three or four, {} trees, {:.0} s (seed {})",
        found.fs,
        found.kernel,
        found.model,
        found.cuts,
        pairs,
        longer,
        found.trees,
        found.seconds,
        found.seed
    );
    match found.forbidden {
        0 => {
            let _ = writeln!(out, "outside the model: none");
        }
        n => {
            let _ = writeln!(
                out,
                "outside the model: {n} cuts. The model promises too much, or the file system has a bug:"
            );
        }
    }
    for v in &found.violations {
        let _ = writeln!(
            out,
            "  {}\n    after {} of {} steps, {}: {} ({} cuts)",
            v.sequence, v.returned.0, v.returned.1, v.cut, v.tree, v.times
        );
        if !v.nearest.is_empty() {
            let _ = writeln!(out, "    nearest state of the model: {}", v.nearest);
        }
    }
    if found.undecided > 0 {
        let _ = writeln!(out, "not decided: {} cuts", found.undecided);
    }
    for (relaxation, times) in &found.seen {
        let _ = writeln!(out, "  seen {times:>6}  {relaxation}");
    }
    for relaxation in &found.unseen {
        let _ = writeln!(out, "  never seen   {relaxation}");
    }
    let _ = write!(
        out,
        "calibrated = {}",
        serde_json::Value::from(found.line())
    );
    out
}

#[cfg(test)]
mod tests {
    use super::with_calibration;
    use steadfast_crashtest::models::{Model, parse};

    #[test]
    fn a_model_is_written_with_its_calibration_once() {
        let text = Model::text("ext4").unwrap_or_default();
        let once = with_calibration(text, "a \"kernel\", 1 cut");
        let twice = with_calibration(&once, "another kernel, 2 cuts");
        let model = parse(&twice, "ext4", None).map(|m| (m.name, m.calibrated));
        let wanted = ("ext4".to_owned(), "another kernel, 2 cuts".to_owned());
        assert_eq!(model, Ok(wanted));
    }
}
