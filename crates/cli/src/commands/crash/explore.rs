//! `steadfast crash explore`: judges the states that a power cut in a recorded run could leave.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfast_crashtest::check::{Checker, Verdict};
use steadfast_crashtest::effects::{Effects, Run, readable};
use steadfast_crashtest::explore::{self, Options};
use steadfast_crashtest::models::Model;
use steadfast_crashtest::real::{Kind, confirm};
use steadfast_crashtest::report::{self, About, Report};
use steadfast_crashtest::states::{Former, Limits};
use steadfast_crashtest::trace::{Ended, Trace};

use super::{duration, not_run, read_report, record, report_of, usage};
use crate::failure::{Code, Failure};
use crate::progress::Meter;
use crate::{size, text};

/// Models that are explored if none is named.
const MODELS: &str = "ext4,xfs,btrfs,posix";

/// Options of the exploration and of its reports.
#[derive(Debug, clap::Args)]
pub(crate) struct ExploreOptions {
    /// Models of file systems, separated by commas: names of 'crash models', or files such as ./mine.toml
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = MODELS)]
    fs: Vec<String>,
    /// Shell command that runs in each state before the check, and may write
    #[arg(long, value_name = "CMD")]
    recover: Option<String>,
    /// Shell command that judges a state, which is its working directory and $CRASH_DIR. $CRASH_ACKED names a file
    /// with the acknowledged lines; $CRASH_ISSUED names one with the lines that may be there. Exit status: 0 good, 77
    /// no verdict, 126 and 127 an error, any other broken. Without this option, the recovery must exit with 0 and
    /// print the same when it runs again
    #[arg(long, value_name = "CMD", required_unless_present = "recover")]
    check: Option<String>,
    /// Stop after this time; the report has the findings up to then
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    budget: Duration,
    /// Number of checks at a time (default: one per processor)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Number of random states, after the systematic ones
    #[arg(long, value_name = "N", default_value_t = Limits::default().samples)]
    samples: usize,
    /// Seed of the random states: the same seed gives the same states
    #[arg(long, value_name = "N", default_value_t = Limits::default().seed)]
    seed: u64,
    /// Maximum number of states of each kind and model; the report says what was left out
    #[arg(long, value_name = "N", default_value_t = 4000)]
    states: usize,
    /// Time limit of each recovery and each check
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    check_time: Duration,
    /// Limit of the address space of each recovery and each check
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    check_memory: Option<u64>,
    /// Do not look for syncs that repair a finding
    #[arg(long)]
    no_repair: bool,
    /// Judge every state, also one that equals a judged state or differs from it only where the check never looked
    #[arg(long, visible_alias = "no-prune")]
    no_pruning: bool,
    /// Record the recovery of this many states (for each model, with --recover), and judge every state that a power
    /// cut during it could leave
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "30", default_value_t = 0, hide_default_value = true)]
    recovery_cuts: usize,
    /// On each model, look for syncs whose removal makes no state worse
    #[arg(long)]
    superfluous: bool,
    /// Also look for each finding on the real ext4, xfs or btrfs, with this many power cuts (needs root)
    #[arg(long, value_name = "CUTS", num_args = 0..=1, require_equals = true, default_missing_value = "100", default_value_t = 0, hide_default_value = true)]
    confirm: usize,
    /// The disk says that data is durable when it is not: syncs keep order, but make nothing durable
    #[arg(long)]
    lying_disk: bool,
    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the report as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the findings as SARIF 2.1.0
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// Print the report as JSON: docs/crash-test.schema.json describes it
    #[arg(long)]
    json: bool,
    /// Report (--json) of an earlier run: its findings do not count again
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Models whose findings alone count for the exit status, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    fail_on: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    how: ExploreOptions,
    /// A trace of 'crash record'
    trace: PathBuf,
}

/// Options, checked before the program runs.
pub(super) struct Prepared {
    models: Vec<Model>,
    baseline: Option<Report>,
    checker: Checker,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let stop = super::stopped_by_signals()?;
    let prepared = prepare(&args.how, &stop)?;
    let (report, code) = explore(&args.how, prepared, &args.trace)?;
    tell(&args.how, &report)?;
    Ok(code)
}

/// Reads the files that the options name, so that errors come before the program runs. Checks end when `stop` is set.
pub(super) fn prepare(how: &ExploreOptions, stop: &Arc<AtomicBool>) -> Result<Prepared, Failure> {
    let models = how.fs.iter().map(|name| Model::load(name.trim()));
    let mut models = models.collect::<Result<Vec<_>, _>>().map_err(usage)?;
    for (i, model) in models.iter().enumerate() {
        if models.iter().take(i).any(|m| m.name == model.name) {
            return Err(usage(format!("--fs names '{}' twice", model.name)));
        }
    }
    if let Some(other) = how
        .fail_on
        .iter()
        .find(|n| !models.iter().any(|m| m.name == **n))
    {
        return Err(usage(format!(
            "--fail-on {other}: this model is not explored; --fs names {}",
            how.fs.join(",")
        )));
    }
    for model in &mut models {
        model.lying_disk = how.lying_disk;
    }
    if how.recovery_cuts > 0 && how.recover.is_none() {
        return Err(usage(
            "--recovery-cuts: there is no recovery to cut; --recover names it",
        ));
    }
    let baseline = how.baseline.as_deref().map(read_report).transpose()?;
    let mut checker = Checker::new(how.recover.clone(), how.check.clone()).map_err(not_run)?;
    checker.time = how.check_time;
    checker.memory = how.check_memory;
    checker.stop = Arc::clone(stop);
    Ok(Prepared {
        models,
        baseline,
        checker,
    })
}

/// Explores a trace and writes the report beside it.
pub(super) fn explore(
    how: &ExploreOptions,
    prepared: Prepared,
    path: &Path,
) -> Result<(Report, ExitCode), Failure> {
    let trace = Trace::open(path).map_err(not_run)?;
    let run = Run::of_trace(&trace).map_err(not_run)?;
    let mut about = about(&trace);
    if run.steps.is_empty() {
        return Err(not_run(
            "the workload made no call that changes a file in its directory: there is nothing to explore; does it write elsewhere? See --at",
        ));
    }
    about
        .warnings
        .extend(sanity(&prepared.checker, &run, &prepared.models)?);
    let options = Options {
        models: prepared.models,
        limits: Limits {
            each_max: how.states,
            samples: how.samples,
            seed: how.seed,
        },
        budget: how.budget,
        jobs: how.jobs.unwrap_or_else(processors).max(1),
        repair: !how.no_repair,
        prune: !how.no_pruning,
        recovery_cuts: how.recovery_cuts,
        superfluous: how.superfluous,
    };
    let meter = Meter::new(false);
    let outcome =
        explore::explore_watched(&run, &prepared.checker, &options, &|step, done, total| {
            meter.show(step, done as u64, total as u64);
        })
        .map_err(|e| not_run(format!("laying out a state: {e}")))?;
    drop(meter);
    trace.check().map_err(not_run)?;
    if let Some(error) = &outcome.error {
        return Err(not_run(error));
    }
    let mut report = report::make(&run, &options.models, &outcome, about);
    if let Some(baseline) = &prepared.baseline {
        report.forgive(baseline);
    }
    if how.confirm > 0 {
        let real = Confirm {
            cuts: how.confirm,
            seed: how.seed,
            jobs: options.jobs,
            checker: &prepared.checker,
        };
        real.all(&run, &options.models, &mut report)?;
    }
    if how.html.is_some() {
        report.add_points(&run, &options.models);
        report.add_sources();
    }
    let saved = report_of(path);
    let json = serde_json::to_vec(&report).map_err(not_run)?;
    steadfast::atomic_replace(&saved, &json).map_err(not_run)?;
    let code = if report.fails(&how.fail_on) {
        ExitCode::from(Code::Failed)
    } else if !report.basic {
        ExitCode::from(Code::CutShort)
    } else {
        ExitCode::SUCCESS
    };
    Ok((report, code))
}

/// Settings of the search for findings on real file systems.
struct Confirm<'a> {
    cuts: usize,
    seed: u64,
    jobs: usize,
    checker: &'a Checker,
}

impl Confirm<'_> {
    /// Looks for each finding on the file systems of its models; one that cannot be tried here gives a warning.
    fn all(&self, run: &Run, models: &[Model], report: &mut Report) -> Result<(), Failure> {
        let meter = Meter::new(false);
        let mut unable = BTreeSet::new();
        for finding in &mut report.findings {
            let line = finding.line.clone();
            for under in &mut finding.under {
                let model = models.iter().find(|m| m.name == under.model);
                let (Some((fs, mount)), Some(model)) = (Kind::of_model(&under.model), model) else {
                    continue;
                };
                if self.checker.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let effects = Effects::new(run, model);
                let state = under.state.state(&effects).map_err(not_run)?;
                let what = format!("power cuts for {} on {}", finding.id, fs.name());
                let found = confirm::confirm(
                    run,
                    &confirm::Options {
                        fs,
                        mount: mount.to_owned(),
                        cuts: self.cuts,
                        seed: self.seed,
                        jobs: self.jobs,
                        tree: Some(Former::new(&effects).disk(&state.bits, state.tear)),
                        checker: Some(self.checker),
                        line: Some(line.clone()),
                    },
                    &self.checker.stop,
                    &|done| meter.show(&what, done as u64, self.cuts as u64),
                );
                match found {
                    Ok(found) => under.confirmation = Some((&found).into()),
                    Err(e) => {
                        unable.insert(format!("not confirmed on {}: {e}", fs.name()));
                    }
                }
            }
        }
        report.warnings.extend(unable);
        Ok(())
    }
}

pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

fn about(trace: &Trace) -> About {
    let words = trace.header.command.iter();
    let words: Vec<String> = words
        .map(|w| String::from_utf8_lossy(w).into_owned())
        .collect();
    let mut about = About {
        command: words.join(" "),
        ..About::default()
    };
    match &trace.end {
        Some(end) => {
            about.blind = record::blind_spots(&end.blind);
            match end.how {
                Ended::Exited(0) => {}
                Ended::Exited(code) => about
                    .warnings
                    .push(format!("the workload failed with exit status {code}")),
                Ended::Signalled(signal) => about
                    .warnings
                    .push(format!("signal {signal} ended the workload")),
                Ended::TimeLimit => about
                    .warnings
                    .push("the workload was ended at its time limit".to_owned()),
                Ended::Interrupted => about
                    .warnings
                    .push("the recording was interrupted".to_owned()),
            }
            if end.left_over > 0 {
                about.warnings.push(format!(
                    "{} processes were left when the workload had ended, and were killed",
                    end.left_over
                ));
            }
        }
        None => about.warnings.push(
            "the trace is cut off: what the workload did after its last whole frame is missing"
                .to_owned(),
        ),
    }
    about
}

/// Refuses a check that rejects the files as the workload left them: it says nothing about power cuts. Returns a
/// warning if the check rejects the files before the workload: it would blame the workload for having begun.
fn sanity(checker: &Checker, run: &Run, models: &[Model]) -> Result<Option<String>, Failure> {
    let Some(model) = models.first() else {
        return Err(usage("--fs names no model"));
    };
    let effects = Effects::new(run, model);
    let former = Former::new(&effects);
    let judge = |steps: usize| -> Result<Verdict, Failure> {
        let disk = former.disk(&effects.prefix(steps), None);
        let acks = &effects.acks[..effects.acked.get(steps).copied().unwrap_or(0)];
        checker.judge(&disk, acks, acks).map_err(not_run)
    };
    match judge(effects.steps())? {
        Verdict::Broken { line, .. } => {
            return Err(not_run(format!(
                "the check refuses the files as the workload left them, without any power cut: \"{}\"; mend the check or the workload",
                readable(line.as_bytes())
            )));
        }
        Verdict::Error(why) => return Err(not_run(why)),
        Verdict::Unfinished => {
            return Err(not_run("interrupted before the first state was judged"));
        }
        Verdict::Fine | Verdict::None => {}
    }
    Ok(match judge(0)? {
        Verdict::Broken { line, .. } => Some(format!(
            "the check refuses the files as they were before the workload began: \"{line}\"; it should accept that nothing was done yet"
        )),
        _ => None,
    })
}

/// Writes the report in all requested forms.
pub(super) fn tell(how: &ExploreOptions, report: &Report) -> Result<(), Failure> {
    let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
        Some(path) => {
            std::fs::write(path, text()).map_err(|e| Failure::at(path, e).with_code(Code::NotRun))
        }
        None => Ok(()),
    };
    write(&how.html, &|| report::html(report))?;
    write(&how.junit, &|| report::junit(report))?;
    write(&how.sarif, &|| format!("{:#}\n", report::sarif(report)))?;
    match how.json {
        true => text::print_json(report),
        false => text::print(&report::text(report)),
    }
}
