//! A command that could not do what it was asked to: one line, and an exit code.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The command failed; nothing was lost by it.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// `fsck` could not run.
    CouldNotRun = 8,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code as u8)
    }
}

/// See the module's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    /// The command failed.
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure {
            code: Code::Failed,
            message: message.into(),
        }
    }

    /// The command line is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure {
            code: Code::Usage,
            message: message.into(),
        }
    }

    /// Something about a file failed.
    pub(crate) fn at(path: &Path, why: impl Display) -> Failure {
        Failure::new(format!("{}: {why}", path.display()))
    }

    /// The same failure with another exit code.
    pub(crate) fn with_code(self, code: Code) -> Failure {
        Failure { code, ..self }
    }

    /// Prints the line.
    pub(crate) fn report(&self) {
        notice(&self.message);
    }
}

/// One line on standard error; nobody listening is no reason to stop.
pub(crate) fn notice(message: &str) {
    let _ = writeln!(std::io::stderr(), "steadfast: {message}");
}
