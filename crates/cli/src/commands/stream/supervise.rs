//! Stays with a command until its whole process tree is gone.
//!
//! This process is the child subreaper: processes that lose their parent become its children, so it remains the ancestor of
//! all that the command started, and knows when the last one has ended. It reaps every process that ends. Signals go
//! to the command, and after its end to the rest of the tree, except SIGHUP: daemons outlive their terminal.

use std::process::ExitCode;

use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpgid, getpid, getrlimit,
    kill_process, setrlimit, wait,
};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGTSTP, SIGTTIN, SIGTTOU};

use super::signals::{Caught, Signals};

/// Maximum number of processes that a signal is passed on to after the command has ended.
const LEFT_MAX: usize = 64 << 10;

/// End of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended(Option<WaitStatus>);

/// Waits until the command and all that it started have ended.
pub(super) fn stay(command: Pid, mut signals: Signals) -> Ended {
    let mut tree = Tree {
        command,
        ended: None,
    };
    while tree.reap() {
        for caught in signals.wait() {
            tree.pass_on(caught);
        }
    }
    Ended(tree.ended)
}

struct Tree {
    command: Pid,
    /// Set when the command is reaped: its number may belong to another process from then on.
    ended: Option<WaitStatus>,
}

impl Tree {
    /// Reaps ended processes; false if none is left.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.command && self.ended.is_none() => {
                    match status.stopping_signal() {
                        Some(SIGTSTP | SIGTTIN | SIGTTOU) if is_in_our_group(pid) => stop(),
                        Some(_) => {}
                        None => self.ended = Some(status),
                    }
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn pass_on(&self, caught: Caught) {
        let Some(signal) = Signal::from_named_raw(caught.number) else {
            return;
        };
        if self.ended.is_none() {
            let own = caught.number != SIGCONT && caught.sender == Some(self.command);
            if !own {
                send(self.command, signal, caught);
            }
            return;
        }
        match caught.number {
            SIGTSTP => stop(),
            // The rest of the tree outlives its terminal, and was not stopped.
            SIGHUP | SIGCONT => {}
            _ => children()
                .into_iter()
                .for_each(|pid| send(pid, signal, caught)),
        }
    }
}

/// Passes a signal on, unless the terminal has sent it to the process, too.
fn send(pid: Pid, signal: Signal, caught: Caught) {
    if !(caught.of_terminal && is_in_our_group(pid)) {
        // It may have ended.
        let _ = kill_process(pid, signal);
    }
}

fn is_in_our_group(pid: Pid) -> bool {
    getpgid(None).is_ok_and(|own| getpgid(Some(pid)) == Ok(own))
}

/// Stops this process, so that the shell that started it takes back its terminal.
fn stop() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// The children of this process.
fn children() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let lists = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        let numbers = list.split_whitespace().filter_map(|pid| pid.parse().ok());
        numbers.collect::<Vec<i32>>()
    });
    numbers.filter_map(Pid::from_raw).take(LEFT_MAX).collect()
}

impl Ended {
    /// The command's exit code. If a signal ended it, this process ends by the same one.
    pub(super) fn follow(self) -> ExitCode {
        let Some(status) = self.0 else {
            return ExitCode::FAILURE;
        };
        let code = match status.terminating_signal() {
            None => status.exit_status().unwrap_or(1),
            Some(signal) => {
                // The command has left its core file; this process needs none.
                let limit = Rlimit {
                    current: Some(0),
                    ..getrlimit(Resource::Core)
                };
                let _ = setrlimit(Resource::Core, limit);
                // Does not return, but for signals that it does not know.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
                128 + signal
            }
        };
        u8::try_from(code).unwrap_or(1).into()
    }
}
