//! `steadfast crash`: what crashes can do, to this stack and to programs. One file per command.
//!
//! Exit codes of the commands for programs: 0 nothing was found, 1 findings, 2 wrong usage, 3 it could not run, 4 the
//! budget ended before all states with one lost effect were judged.

mod ack;
mod calibrate;
mod confirm;
mod explain;
mod explore;
mod import;
mod live;
mod models;
mod own;
mod put;
mod record;
mod show;
mod test;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use steadfast_crashtest::report::{FindingReport, Report};

use crate::failure::{Code, Failure};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Find out whether a program survives a power cut: record it once, judge every state that a cut could leave
    Test(Box<test::Args>),
    /// Run a program and record every call on its files
    Record(record::Args),
    /// Make a trace from a log of strace, where nothing can be mounted
    Import(import::Args),
    /// Judge the states that a power cut in a recorded run could leave
    Explore(Box<explore::Args>),
    /// Show a finding in full, for each model
    Explain(explain::Args),
    /// Make a directory with the state of a finding
    Show(show::Args),
    /// Look for a finding on the real file system: repeat the recorded run there, cut the power, compare (needs root)
    Confirm(confirm::Args),
    /// Compare a model with the real file system: run short sequences of calls, cut the power, and see whether the
    /// model allows what is left (needs root)
    Calibrate(calibrate::Args),
    /// Mount a directory whose power can be cut while programs use it
    Mount(live::MountArgs),
    /// Cut the power of such a mount: every later call fails until 'power-on'
    Cut(live::CutArgs),
    /// Switch the power of such a mount on again: it shows what survived
    PowerOn(live::PlainArgs),
    /// Make calls on such a mount fail, or do less than they say
    Fail(live::FailArgs),
    /// End all faults of such a mount
    Heal(live::PlainArgs),
    /// Unmount such a mount, whether its power is on or not
    Stop(live::PlainArgs),
    /// Show what is not durable on such a mount, by file, range and name
    Status(live::PlainArgs),
    /// List the models of file systems, or print one
    Models(models::Args),
    /// Say, within a recorded program, that something is done and must survive
    Ack(ack::Args),
    /// Explore this stack itself: cut its power everywhere, recover, compare with the model
    #[command(name = "self")]
    Own(own::Args),
    /// Explore how a file is replaced ('steadfast put'): all disks that a crash may leave, and
    /// the trees that recovery makes of them; then the same with steps left out
    Put(put::Args),
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Test(args) => test::run(args),
        Command::Record(args) => record::run(args),
        Command::Import(args) => import::run(args),
        Command::Explore(args) => explore::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Show(args) => show::run(args),
        Command::Confirm(args) => confirm::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Mount(args) => live::mount(args),
        Command::Cut(args) => live::cut(args),
        Command::PowerOn(args) => live::power_on(args),
        Command::Fail(args) => live::fail(args),
        Command::Heal(args) => live::heal(args),
        Command::Stop(args) => live::stop(args),
        Command::Status(args) => live::status(args),
        Command::Models(args) => models::run(args),
        Command::Ack(args) => ack::run(args),
        Command::Own(args) => own::run(args),
        Command::Put(args) => put::run(args),
    }
}

/// The run says nothing about the program.
fn not_run(why: impl Display) -> Failure {
    Failure::new(why.to_string()).with_code(Code::NotRun)
}

/// An option, or a file that it names, is wrong.
fn usage(why: impl Display) -> Failure {
    Failure::usage(why.to_string())
}

/// A flag that a termination signal sets. A second signal does no more: what was started and mounted must end first,
/// which takes a moment. A real file system that lost its disk would even hang in the kernel.
fn stopped_by_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let caught = |e| not_run(format!("catching signals: {e}"));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(caught)?;
    }
    Ok(stop)
}

/// A time as people write it: `90`, `90s`, `10m`, `1h`, `0.5s`.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.as_bytes().last() {
        _ if text.ends_with("ms") => (&text[..text.len() - 2], 0.001),
        Some(b's') => (&text[..text.len() - 1], 1.0),
        Some(b'm') => (&text[..text.len() - 1], 60.0),
        Some(b'h') => (&text[..text.len() - 1], 3600.0),
        _ => (text, 1.0),
    };
    let seconds = number.parse::<f64>().ok().filter(|n| *n > 0.0);
    seconds
        .and_then(|n| Duration::try_from_secs_f64(n * factor).ok())
        .ok_or_else(|| format!("'{text}' is no time: write 10ms, 90s, 10m or 1h"))
}

/// Path of a trace's report, for `explain` and `show`.
fn report_of(trace: &Path) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".report.json");
    PathBuf::from(name)
}

/// The report of an earlier exploration of a trace.
fn saved_report(trace: &Path) -> Result<Report, Failure> {
    let path = report_of(trace);
    if !trace.exists() {
        return Err(Failure::absent(trace).with_code(Code::NotRun));
    }
    if !path.exists() {
        return Err(not_run(format!(
            "{}: it has not been explored: run 'steadfast crash explore {}' first",
            trace.display(),
            trace.display()
        )));
    }
    read_report(&path)
}

fn read_report(path: &Path) -> Result<Report, Failure> {
    let wrong = |why: String| usage(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|e| wrong(format!("no report of 'steadfast crash': {e}")))?;
    match report.version {
        steadfast_crashtest::report::VERSION => Ok(report),
        other => Err(wrong(format!(
            "a report of version {other}; this program reads version {}",
            steadfast_crashtest::report::VERSION
        ))),
    }
}

/// The finding of a name such as `V3`.
fn finding<'a>(report: &'a Report, name: &str) -> Result<&'a FindingReport, Failure> {
    let found = report.findings.iter().find(|f| f.id == name);
    found.ok_or_else(|| {
        let ids: Vec<&str> = report.findings.iter().map(|f| f.id.as_str()).collect();
        usage(match ids.is_empty() {
            true => format!("there is no finding {name}: nothing was found"),
            false => format!("there is no finding {name}; there are {}", ids.join(", ")),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::duration;
    use std::time::Duration;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("10m", 600), ("1h", 3600)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "m", "0", "-1s", "1d", "10 minutes", "NaN"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
