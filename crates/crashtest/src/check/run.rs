//! One command under its limits.

use super::{Checker, End, Ran};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Maximum output that is read.
const OUTPUT_MAX: u64 = 64 << 10;
/// Longest pause between two checks of a command, on kernels that do not report its end.
const PAUSE_MAX: Duration = Duration::from_millis(4);
/// Interval at which a command is ended early if it must.
const STOP_EVERY: Duration = Duration::from_millis(20);

/// Isolation of commands from the rest of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// A process namespace and a mount namespace: processes of a command end with it.
    Namespaces,
    /// A user namespace, too: for all users but the superuser.
    UserNamespaces,
    /// A process group that is killed; processes that leave the group survive.
    Group,
}

impl Isolation {
    /// The best isolation that this machine offers.
    #[must_use]
    pub fn probe() -> Isolation {
        let root = rustix::process::geteuid().is_root();
        let best = if root {
            Isolation::Namespaces
        } else {
            Isolation::UserNamespaces
        };
        let mut command = best.command();
        command.args(["sh", "-c", ":"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => best,
            _ => Isolation::Group,
        }
    }

    fn command(self) -> Command {
        let options: &[&str] = match self {
            Isolation::Group => return Command::new("env"),
            Isolation::Namespaces => &["--pid", "--fork", "--kill-child", "--mount-proc"],
            Isolation::UserNamespaces => &[
                "--user",
                "--map-current-user",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
            ],
        };
        let mut command = Command::new("unshare");
        command.args(options);
        command
    }
}

pub(super) fn run(
    line: &str,
    dir: &Path,
    environment: &[(&str, &Path)],
    output: &Path,
    checker: &Checker,
) -> io::Result<Ran> {
    if checker.is_over() {
        return Ok(Ran {
            end: End::Early,
            output: String::new(),
        });
    }
    let file = File::create(output)?;
    let mut command = checker.isolation.command();
    command.args(["sh", "-c"]);
    match checker.memory {
        Some(bytes) => command.arg(format!(
            "ulimit -v {} || exit 126; exec sh -c \"$0\"",
            bytes.div_ceil(1024)
        )),
        None => command.arg("exec sh -c \"$0\""),
    };
    command.arg(line).current_dir(dir).process_group(0);
    command.envs(environment.iter().map(|(k, v)| (k, v.as_os_str())));
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    let mut child = command.spawn()?;
    let ended = wait(&mut child, checker);
    // Processes that the command left in its group.
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let end = match ended? {
        Some(status) => end_of(status),
        None => {
            child.kill()?;
            child.wait()?;
            match checker.is_over() {
                true => End::Early,
                false => End::Killed(format!(
                    "does not end within {} s",
                    checker.time.as_secs_f32()
                )),
            }
        }
    };
    let mut bytes = Vec::new();
    File::open(output)?
        .take(OUTPUT_MAX)
        .read_to_end(&mut bytes)?;
    Ok(Ran {
        end,
        output: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        // A shell reports the signal that ended its child this way.
        (Some(code), _) if code > 128 && code < 192 => {
            End::Killed(format!("ended by signal {}", code - 128))
        }
        (Some(code), _) => End::Code(code),
        (None, Some(signal)) => End::Killed(format!("ended by signal {signal}")),
        (None, None) => End::Killed("ended in an unknown way".to_owned()),
    }
}

/// The status; None after the time limit, or when it must end early.
fn wait(child: &mut Child, checker: &Checker) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    // Older kernels have none.
    let ended = Pid::from_raw(child.id() as i32)
        .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = checker.time.saturating_sub(begun.elapsed());
        if left.is_zero() || checker.is_over() {
            return Ok(None);
        }
        match &ended {
            Some(ended) => {
                let left = Timespec::try_from(left.min(STOP_EVERY)).ok();
                let mut ready = [PollFd::new(ended, PollFlags::IN)];
                match poll(&mut ready, left.as_ref()) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            None => {
                std::thread::sleep(pause.min(left));
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}
