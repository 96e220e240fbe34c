//! `steadfast mount`: mounts a volume, in the background unless asked otherwise.
//!
//! A background mount has two processes. Both are this program run anew, because a fork would copy half of a threaded
//! process: the watcher (`watch`) and the server. The server writes to a pipe on its standard output when the mount
//! answers. Until then it reports errors on the standard error that it shares with this process.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::commands::{serve, watch};
use crate::failure::{Failure, notice};
use crate::syslog::{self, Level};
use crate::volume;
use crate::{mount_options, source};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Mount options, separated by commas (--help lists them)
    #[arg(short = 'o', value_name = "OPTIONS", long_help = mount_options::help())]
    options: Vec<String>,
    /// Serve the mount in this process until it is unmounted
    #[arg(long)]
    foreground: bool,
    /// Internal: this process starts the background server and watches it
    #[arg(long, hide = true, conflicts_with = "foreground")]
    background: bool,
    /// Internal: this process is the background server
    #[arg(long, hide = true, conflicts_with_all = ["foreground", "background"])]
    served: bool,
    /// Messages of the server go to the system's log from the beginning, as for mount(8)
    #[arg(skip)]
    quiet: bool,
    /// Image file or block device; LABEL=NAME or UUID=NUMBER of a volume on a block device; or the URL of a volume on an object
    /// store, with @SNAPSHOT to look at a snapshot (-o ro)
    image: PathBuf,
    /// Directory to mount at
    dir: PathBuf,
}

impl Args {
    /// A mount in the background.
    pub(crate) fn new(options: Vec<String>, image: PathBuf, dir: PathBuf) -> Args {
        Args {
            options,
            foreground: false,
            background: false,
            served: false,
            quiet: false,
            image,
            dir,
        }
    }

    /// The same; messages about a mounted volume go to the system's log.
    pub(crate) fn quiet(self) -> Args {
        Args {
            quiet: true,
            ..self
        }
    }
}

/// Checks that the options are known, and that the mount point can be used.
pub(crate) fn check(args: &Args) -> Result<ExitCode, Failure> {
    let options = mount_options::parse(&args.options).map_err(Failure::usage)?;
    options.check_features()?;
    steadfast_fuse::check_mount_point(&args.dir, options.mount.over)
        .map_err(|e| Failure::new(e.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let options = mount_options::parse(&args.options).map_err(Failure::usage)?;
    options.check_features()?;
    if args.foreground || args.served {
        let image = source::resolve(&args.image)?;
        return serve::run(&image, &args.dir, &options, args.served);
    }
    if args.background {
        return watch::run(again(args, "--served")?, &args.image, &args.dir, &options);
    }
    spawn_server(args)
}

/// This program once more, in another role.
fn again(args: &Args, role: &str) -> Result<Command, Failure> {
    let program = std::env::current_exe()
        .map_err(|e| Failure::new(format!("finding this program to run as server: {e}")))?;
    let mut command = Command::new(program);
    command.args(["mount", role]);
    for options in &args.options {
        command.arg("-o").arg(options);
    }
    command
        .arg("--")
        .arg(absolute(&source::resolve(&args.image)?)?)
        .arg(absolute(&args.dir)?);
    Ok(command)
}

fn spawn_server(args: &Args) -> Result<ExitCode, Failure> {
    let mut server = again(args, "--background")?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::new(format!("starting the server: {e}")))?;
    let said = server.stdout.take().map(|out| BufReader::new(out).lines());
    for line in said.into_iter().flatten().map_while(Result::ok) {
        if line == serve::READY {
            return Ok(ExitCode::SUCCESS);
        }
        match args.quiet {
            true => syslog::send(Level::Warning, &line),
            false => notice(&line),
        }
    }
    // The pipe closed before the ready line: the server has failed, and has reported it.
    let status = server
        .wait()
        .map_err(|e| Failure::new(format!("waiting for the server: {e}")))?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Err(Failure::new("the server ended before the mount answered")),
        Some(code) if let Some(signal) = watch::signal_of(code) => Err(Failure::new(format!(
            "the server was killed by {signal} before the mount answered"
        ))),
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(Failure::new(format!(
            "the server died before the mount answered: {status}"
        ))),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    if volume::store::url(path).is_some() {
        return Ok(path.to_owned());
    }
    std::path::absolute(path).map_err(|e| Failure::at(path, e))
}
