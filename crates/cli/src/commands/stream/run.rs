//! `steadfast stream run`: a command and all that it starts, in a stream.
//!
//! This process enters the stream and starts the command. A process belongs to the stream of its nearest registered
//! ancestor, so the tree follows, and nothing in it changes. Three more things hold the tree if this process is
//! killed: the command is registered, too; a cgroup of its own, if permitted; otherwise `STEADFAST_STREAM` in its
//! environment, if the mount looks at that. Nothing is started before every mount has accepted the stream.

use std::ffi::OsString;
use std::process::{Child, Command, ExitCode};

use rustix::process::{Pid, getpid, set_child_subreaper};
use steadfast_stream::{ENVIRONMENT, Place, Settings, Who};

use super::cgroup::Cgroup;
use super::mounts::{self, Target};
use super::signals::Signals;
use super::{On, SettingArgs, name_of, on_each, supervise};
use crate::failure::{Failure, notice};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    settings: SettingArgs,
    /// Return at once, and leave the command running. Only a cgroup or their environment then keeps its daemons in
    /// the stream
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    on: On,
    /// Name of the stream, which is made if it does not exist
    name: OsString,
    /// Command to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let name = name_of(&args.name)?;
    let targets = mounts::chosen(&args.on.mounts)?;
    let settings = args.settings.settings();
    on_each(&targets, |path| {
        steadfast_stream::set(path, Who::Process, name, &settings)
    })?;
    // Set before the command starts, so that no signal is missed.
    let signals = match args.detach {
        true => None,
        false => {
            set_child_subreaper(Some(getpid()))
                .map_err(|e| Failure::new(format!("becoming the reaper of the command: {e}")))?;
            Some(Signals::catch()?)
        }
    };
    let cgroup = Cgroup::make(&targets, name, &settings);
    let by_environment = cgroup.is_none() && look_at_environments(&targets);
    let started = start(&args.command, name);
    if let Some(cgroup) = &cgroup
        && let Err(e) = cgroup.leave()
    {
        notice(&format!("leaving the cgroup {}: {e}", cgroup.path()));
    }
    let child = match started {
        Ok(child) => child,
        Err(failure) => {
            cgroup.into_iter().for_each(Cgroup::end);
            return Err(failure);
        }
    };
    register(&targets, &child, name);
    let Some(signals) = signals else {
        notice(&detached(name, &child, cgroup.as_ref(), by_environment));
        return Ok(ExitCode::SUCCESS);
    };
    let command = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let command = command.ok_or_else(|| Failure::new("the command has no number"))?;
    // The current directory may be on a volume that is to be unmounted when the command has ended.
    let _ = std::env::set_current_dir("/");
    let ended = supervise::stay(command, signals);
    cgroup.into_iter().for_each(Cgroup::end);
    Ok(ended.follow())
}

fn start(command: &[OsString], name: &str) -> Result<Child, Failure> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| Failure::usage("there is no command to run"))?;
    Command::new(program)
        .args(arguments)
        .env(ENVIRONMENT, name)
        .spawn()
        .map_err(|e| Failure::new(format!("{}: {e}", program.display())))
}

/// Keeps the processes of the command in the stream when this process is gone. The command may have ended already, or
/// be a program that only its ancestors can move.
fn register(targets: &[Target], child: &Child, name: &str) {
    for target in targets {
        let _ = steadfast_stream::set(
            &target.path,
            Who::Pid(child.id()),
            name,
            &Settings::default(),
        );
    }
}

/// Makes the mounts look at the environment of processes; returns whether all do.
fn look_at_environments(targets: &[Target]) -> bool {
    let mut looking = true;
    for target in targets {
        let added =
            steadfast_stream::add_rule(&target.path, &Place::Environment, "", &Settings::default());
        looking &= added.is_ok();
    }
    looking
}

fn detached(name: &str, child: &Child, cgroup: Option<&Cgroup>, by_environment: bool) -> String {
    let daemons = match (cgroup, by_environment) {
        (Some(cgroup), _) => format!("its cgroup {} holds its daemons there", cgroup.path()),
        (None, true) => format!("{ENVIRONMENT} in their environment holds its daemons there"),
        (None, false) => {
            "its daemons leave it when the command ends, for lack of a cgroup".to_owned()
        }
    };
    format!("process {} runs in stream {name}; {daemons}", child.id())
}
