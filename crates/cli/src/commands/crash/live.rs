//! `steadfast crash mount`, `cut`, `power-on`, `fail`, `heal`, `status`: a mount whose power can be cut while programs use it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use steadfast_crashtest::live::faults::Rule;
use steadfast_crashtest::live::socket::{Listener, ask};
use steadfast_crashtest::live::{Answer, Request, Session};
use steadfast_crashtest::models::Model;

use super::{duration, not_run, stopped_by_signals, usage};
use crate::failure::{Code, Failure};
use crate::{size, text};

/// Line that the server prints when the mount answers.
const READY: &str = "ready";

#[derive(Debug, clap::Args)]
pub(crate) struct MountArgs {
    /// Model of what a power cut may leave: a name of 'crash models', or a file
    #[arg(long, value_name = "MODEL", default_value = "ext4")]
    fs: String,
    /// Directory whose copy is the first, durable content of the mount. The directory itself is not changed
    dir: PathBuf,
    /// Mount point. Writes are kept in memory, and lost at the unmount
    mnt: PathBuf,
    /// Stay in the foreground; print 'ready' when the mount answers
    #[arg(long)]
    foreground: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CutArgs {
    /// A mount of 'crash mount'
    mnt: PathBuf,
    /// What survives besides durable data: nothing (durable), a random part (random), or all names and sizes that may
    /// be there without their data (worst)
    #[arg(long, value_name = "POLICY", default_value = "durable")]
    policy: String,
    /// Seed of 'random' (default: the number of the cut)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PlainArgs {
    /// A mount of 'crash mount'
    mnt: PathBuf,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FailArgs {
    /// A mount of 'crash mount'
    mnt: PathBuf,
    /// Calls that fail: write, fsync, fdatasync, rename, create, unlink, … ; default: every call that changes
    /// something, or the writes if --after is given
    #[arg(long, value_name = "CALL")]
    call: Option<String>,
    /// Files whose calls fail: a path from the mount's root, where * matches all but a slash, and ** anything
    #[arg(long, value_name = "PATTERN")]
    path: Option<String>,
    /// Fail with this error: EIO, ENOSPC, EROFS, ENOMEM or EACCES
    #[arg(long, value_name = "ERROR", required_unless_present = "how")]
    errno: Option<String>,
    /// Instead of an error: short, torn or lost (writes), ignored (syncs), slow
    #[arg(long, value_name = "WAY", conflicts_with = "errno")]
    how: Option<String>,
    /// Fail only the nth such call, counted from now on
    #[arg(long, value_name = "N")]
    nth: Option<u64>,
    /// Fail after this much was written
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    after: Option<u64>,
    /// Data that is not durable after a failed fsync: keep it for the next one, or drop it, as Linux does
    #[arg(long, value_name = "WHAT", default_value = "keep")]
    then: String,
    /// Duration of a slow call
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<std::time::Duration>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn mount(args: &MountArgs) -> Result<ExitCode, Failure> {
    let model = Model::load(&args.fs).map_err(usage)?;
    if !args.foreground {
        return in_background(args);
    }
    let stop = stopped_by_signals()?;
    let session = Session::mount(&args.dir, &args.mnt, model).map_err(not_run)?;
    let session = Arc::new(session);
    let listener = Listener::new(&args.mnt, &session)
        .map_err(|e| not_run(format!("the socket of {}: {e}", args.mnt.display())))?;
    text::print(READY)?;
    let ended = session.wait(&stop);
    drop(listener);
    ended.map_err(not_run)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs this command again in a process of its own; returns when the mount answers.
fn in_background(args: &MountArgs) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe().map_err(not_run)?;
    let mut server = Command::new(program)
        .args(["crash", "mount", "--foreground", "--fs", &args.fs, "--"])
        .args([&args.dir, &args.mnt])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // A pipe of its own: a caller that reads our standard error to its end would wait for the server.
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(not_run)?;
    let said = server.stdout.take().map(BufReader::new);
    let mut line = String::new();
    if let Some(mut said) = said {
        said.read_line(&mut line).map_err(not_run)?;
    }
    if line.trim() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let output = server.wait_with_output().map_err(not_run)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches("steadfast: ");
    let code = match output.status.code() {
        Some(2) => Code::Usage,
        _ => Code::NotRun,
    };
    Err(Failure::new(match said.is_empty() {
        true => format!("the server of the mount ended: {}", output.status),
        false => said.to_owned(),
    })
    .with_code(code))
}

fn asked(mnt: &Path, request: &Request, json: bool) -> Result<Option<Answer>, Failure> {
    let answer = ask(mnt, request).map_err(|e| not_run(format!("{}: {e}", mnt.display())))?;
    if let Some(why) = &answer.error {
        return Err(Failure::new(format!("{}: {why}", mnt.display())));
    }
    if json {
        text::print_json(&answer)?;
        return Ok(None);
    }
    Ok(Some(answer))
}

pub(crate) fn cut(args: &CutArgs) -> Result<ExitCode, Failure> {
    let request = Request::Cut {
        policy: Some(args.policy.clone()),
        seed: args.seed,
    };
    if let Some(answer) = asked(&args.mnt, &request, args.json)? {
        text::print(&format!(
            "the power is off: {} of {} pending effects are lost, {} bytes of data among them; every call fails until 'steadfast crash power-on {}'",
            answer.lost,
            answer.pending,
            answer.lost_bytes,
            args.mnt.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn power_on(args: &PlainArgs) -> Result<ExitCode, Failure> {
    asked(&args.mnt, &Request::PowerOn, args.json)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn heal(args: &PlainArgs) -> Result<ExitCode, Failure> {
    asked(&args.mnt, &Request::Heal, args.json)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn stop(args: &PlainArgs) -> Result<ExitCode, Failure> {
    asked(&args.mnt, &Request::Stop, args.json)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn fail(args: &FailArgs) -> Result<ExitCode, Failure> {
    let milliseconds = args
        .time
        .map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
    let rule = Rule {
        call: args.call.clone(),
        path: args.path.clone(),
        errno: args.errno.clone(),
        how: args.how.clone(),
        nth: args.nth,
        after: args.after,
        then: Some(args.then.clone()),
        milliseconds,
    };
    asked(&args.mnt, &Request::Fail(rule), args.json)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn status(args: &PlainArgs) -> Result<ExitCode, Failure> {
    let Some(answer) = asked(&args.mnt, &Request::Status, args.json)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let mut out = format!(
        "model {}, power {}, {} cuts so far; {} effects are not durable",
        answer.model,
        if answer.on { "on" } else { "off" },
        answer.cuts,
        answer.pending
    );
    for line in &answer.not_durable {
        let range = line
            .range
            .map_or_else(String::new, |(a, b)| format!(" {a}..{b}"));
        let _ = write!(out, "\n  {:<12} {}{range}", line.what, line.path);
    }
    if answer.more > 0 {
        let _ = write!(out, "\n  … and {} more", answer.more);
    }
    for (rule, times) in &answer.faults {
        let rule = serde_json::to_string(rule).unwrap_or_default();
        let _ = write!(out, "\n  fault, {times} calls so far: {rule}");
    }
    text::print(&out)?;
    Ok(ExitCode::SUCCESS)
}
