//! `steadfast stream`: puts processes into streams of mounted volumes, and shows what streams do.
//!
//! A stream keeps its own order across a crash, independent of all others (ccfs §3.2). Requests go to the server of
//! the mount through the client library; a failed request changes nothing and says why in one line.

mod cgroup;
mod mounts;
mod rules;
mod run;
mod show;
mod signals;
mod stats;
mod supervise;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use steadfast_stream::wire::Interval;
use steadfast_stream::{Error, Settings, Who};

use crate::failure::Failure;
use mounts::Target;

/// Longest commit interval of a stream, that of a volume.
const INTERVAL_SECONDS_MAX: f64 = 3600.0;
/// Shortest commit interval of a stream.
const INTERVAL_SECONDS_MIN: f64 = 0.001;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Run a command, and all processes that it starts, in a stream of its own
    ///
    /// The command runs unchanged but for STEADFAST_STREAM=NAME in its environment. This program enters the stream on
    /// each of the mounts, starts the command, and stays until the command and all that it started have ended,
    /// daemons too: until then it is their ancestor, and they belong to its stream. If permitted, it puts them into a
    /// cgroup of their own, which holds them even if this program is killed; otherwise each mount that lets its rules
    /// be changed looks at the environment. Signals are passed on to the command; after its end they go to the
    /// remaining processes, except SIGHUP.
    ///
    /// Without --mount, the stream is set on the volume of the current directory. If that is no Steadfast volume, it
    /// is set on every mounted volume with streams that this user may use.
    Run(run::Args),
    /// Move a running process into a stream
    Set(SetArgs),
    /// Move a running process into the default stream
    Leave(LeaveArgs),
    /// Change the settings of a stream
    Alter(AlterArgs),
    /// Make all changes of a stream durable
    Sync(SyncArgs),
    /// List the streams of a volume
    List(show::ListArgs),
    /// Show the stream of a process, and why it belongs there
    Show(show::Args),
    /// Show what streams did since the mount, and what merged two of them
    ///
    /// OWN counts bytes that a stream's commits wrote for itself; FOR OTHERS counts bytes of other streams that they
    /// had to write, too. WAITS counts how often it waited for each other stream. A merge makes two streams one order
    /// until they commit: after a crash, both or neither survive up to there. Root sees all streams, other users see
    /// their own.
    Stats(stats::Args),
    /// Rules that put processes into streams: by cgroup, by directory, by environment
    ///
    /// When a process first changes something on the volume, the first of these decides: a stream set for its thread,
    /// a stream set for the process, a stream set for its nearest ancestor, a rule for its cgroup (the longest path),
    /// STEADFAST_STREAM in its environment if there is a rule for that, a rule for a directory above what it changes.
    /// Otherwise it belongs to the default stream. The decision stays until another stream is set. Only root and the
    /// owner of the mount may change rules, and rules end with the mount.
    #[command(subcommand)]
    Rules(rules::Command),
}

/// Mounts to act on.
#[derive(Debug, clap::Args)]
struct On {
    /// Any file or directory of a mounted volume; may be repeated. Default: the volume of the current directory, or
    /// else all mounted volumes with streams
    #[arg(long = "mount", value_name = "DIR")]
    mounts: Vec<PathBuf>,
}

/// Settings of a stream that is made or joined.
#[derive(Debug, clap::Args)]
struct SettingArgs {
    /// Let fsync(2) and its like return at once in this stream; the order is kept, but only a stream sync, a sync of the volume
    /// or the commit interval makes changes durable
    #[arg(long)]
    ignore_fsync: bool,
    /// Maximum age of uncommitted changes of this stream, such as 30 or 0.5; 'volume' for that of the volume
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    commit_interval: Option<Interval>,
}

impl SettingArgs {
    fn settings(&self) -> Settings {
        Settings {
            ignore_fsync: self.ignore_fsync.then_some(true),
            interval: self.commit_interval.unwrap_or_default(),
            user: None,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    settings: SettingArgs,
    /// Owner of the stream, by number; only root names another user. Default: the user of the process
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    #[command(flatten)]
    on: On,
    /// Name of the stream, which is made if it does not exist
    name: OsString,
    /// Number of the process, as the volume's server sees it
    pid: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LeaveArgs {
    #[command(flatten)]
    on: On,
    /// Number of the process, as the volume's server sees it
    pid: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AlterArgs {
    #[command(flatten)]
    settings: SettingArgs,
    /// Let fsync(2) and its like commit again
    #[arg(long, conflicts_with = "ignore_fsync")]
    honour_fsync: bool,
    /// Owner of the stream, by number. Default: the caller
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    #[command(flatten)]
    on: On,
    /// Name of the stream
    name: OsString,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SyncArgs {
    /// Owner of the stream, by number. Default: the caller, or for root the only stream of the name
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    #[command(flatten)]
    on: On,
    /// Name of the stream
    name: OsString,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => return run::run(args),
        Command::Set(args) => set(args)?,
        Command::Leave(args) => leave(args)?,
        Command::Alter(args) => alter(args)?,
        Command::Sync(args) => sync(args)?,
        Command::List(args) => show::list(args)?,
        Command::Show(args) => show::show(args)?,
        Command::Stats(args) => stats::stats(args)?,
        Command::Rules(command) => rules::run(command)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A stream's name from the command line.
fn name_of(name: &OsString) -> Result<&str, Failure> {
    let text = name.to_str().ok_or_else(|| Error::Name {
        name: name.to_string_lossy().into_owned(),
    })?;
    steadfast_stream::check_name(text)?;
    Ok(text)
}

/// A time in seconds, or the volume's own.
fn interval(text: &str) -> Result<Interval, String> {
    if text == "volume" {
        return Ok(Interval::Volume);
    }
    match text.parse::<f64>() {
        Ok(seconds) if (INTERVAL_SECONDS_MIN..=INTERVAL_SECONDS_MAX).contains(&seconds) => {
            Ok(Interval::Every(Duration::from_secs_f64(seconds)))
        }
        _ => Err(format!(
            "write seconds from {INTERVAL_SECONDS_MIN} to {INTERVAL_SECONDS_MAX}, or 'volume'"
        )),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let hint = match &error {
            Error::NoStream { .. } => "; 'steadfast stream list' shows those that there are",
            Error::Ambiguous { .. } => " with --user",
            _ => "",
        };
        Failure::new(format!("{error}{hint}"))
    }
}

/// Runs an action on each mount. An error names the mount, if there are several.
fn on_each(
    targets: &[Target],
    act: impl Fn(&Path) -> steadfast_stream::Result<()>,
) -> Result<(), Failure> {
    for target in targets {
        act(&target.path).map_err(|e| target.failure(e, targets.len() > 1))?;
    }
    Ok(())
}

fn set(args: &SetArgs) -> Result<(), Failure> {
    let name = name_of(&args.name)?;
    let targets = mounts::chosen(&args.on.mounts)?;
    let settings = Settings {
        user: args.user,
        ..args.settings.settings()
    };
    on_each(&targets, |path| {
        steadfast_stream::set(path, Who::Pid(args.pid), name, &settings)
    })
}

fn leave(args: &LeaveArgs) -> Result<(), Failure> {
    let targets = mounts::chosen(&args.on.mounts)?;
    on_each(&targets, |path| {
        steadfast_stream::leave(path, Who::Pid(args.pid))
    })
}

fn alter(args: &AlterArgs) -> Result<(), Failure> {
    let name = name_of(&args.name)?;
    let mut settings = args.settings.settings();
    settings.user = args.user;
    if args.honour_fsync {
        settings.ignore_fsync = Some(false);
    }
    if settings.ignore_fsync.is_none() && settings.interval == Interval::Keep {
        return Err(Failure::usage(
            "nothing to change: give --ignore-fsync, --honour-fsync or --commit-interval",
        ));
    }
    on_those_that_have(&args.on, |path| {
        steadfast_stream::alter(path, name, &settings)
    })
}

fn sync(args: &SyncArgs) -> Result<(), Failure> {
    let name = name_of(&args.name)?;
    on_those_that_have(&args.on, |path| {
        steadfast_stream::sync(path, name, args.user)
    })
}

/// Runs an action on each mount that has the stream. Every named mount must have it; without names, at least one.
fn on_those_that_have(
    on: &On,
    act: impl Fn(&Path) -> steadfast_stream::Result<()>,
) -> Result<(), Failure> {
    let targets = mounts::chosen(&on.mounts)?;
    if !on.mounts.is_empty() {
        return on_each(&targets, act);
    }
    let mut missing = None;
    let mut done = false;
    for target in &targets {
        match act(&target.path) {
            Ok(()) => done = true,
            Err(e @ Error::NoStream { .. }) => missing = Some(e),
            Err(e) => return Err(target.failure(e, targets.len() > 1)),
        }
    }
    match missing {
        Some(e) if !done => Err(e.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_as_people_write_them() {
        for (text, ms) in [("1", 1000), ("0.5", 500), ("3600", 3_600_000), ("0.001", 1)] {
            let expected = Interval::Every(Duration::from_millis(ms));
            assert_eq!(interval(text), Ok(expected), "{text}");
        }
        assert_eq!(interval("volume"), Ok(Interval::Volume));
        for text in ["", "0", "-1", "3601", "nan", "inf", "1s", "0.0001"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
