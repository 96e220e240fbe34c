//! Signals that this process passes on to a command that it has started.
//!
//! A signal of the terminal goes to the whole process group: the command has got it already. Any other signal goes to
//! this process alone, and is passed on. A signal that is ignored here stays ignored, for the command too (nohup).

use rustix::process::Pid;
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::low_level::siginfo::Cause;

use crate::failure::Failure;

/// Signals that are passed on.
const PASSED_ON: [i32; 8] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT,
];

/// Signals that are caught from now on.
pub(super) struct Signals(SignalsInfo<WithOrigin>);

/// A caught signal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caught {
    pub(super) number: i32,
    /// The kernel sent it for the terminal, to a whole process group.
    pub(super) of_terminal: bool,
    /// The process that sent it, if it is one of this process namespace.
    pub(super) sender: Option<Pid>,
}

impl Signals {
    pub(super) fn catch() -> Result<Signals, Failure> {
        let ignored = ignored();
        let caught = PASSED_ON
            .into_iter()
            .filter(|signal| ignored & (1 << (signal - 1)) == 0)
            .chain([SIGCHLD]);
        SignalsInfo::new(caught)
            .map(Signals)
            .map_err(|e| Failure::new(format!("catching signals: {e}")))
    }

    /// Waits for signals; returns none if they only report a change of a child.
    pub(super) fn wait(&mut self) -> Vec<Caught> {
        let signals = self.0.wait().filter(|origin| origin.signal != SIGCHLD);
        signals.map(|origin| Caught::from(&origin)).collect()
    }
}

impl From<&Origin> for Caught {
    fn from(origin: &Origin) -> Caught {
        let of_terminal = origin.cause == Cause::Kernel;
        let sender = origin.process.filter(|_| !of_terminal);
        Caught {
            number: origin.signal,
            of_terminal,
            sender: sender.and_then(|process| Pid::from_raw(process.pid)),
        }
    }
}

/// The signals that this process ignores, a bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
