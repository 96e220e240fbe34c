//! A command that failed: one line, and an exit code.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use crate::text::SCHEMA_VERSION;

/// Exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The command failed; nothing was lost by it.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// `crash test` and its steps could not run.
    NotRun = 3,
    /// The budget of `crash test` ended early.
    #[cfg_attr(not(feature = "crash"), allow(dead_code, reason = "see `features`"))]
    CutShort = 4,
    /// Another machine took over a volume that this one served.
    #[cfg_attr(not(feature = "nfs"), allow(dead_code, reason = "see `features`"))]
    Fenced = 5,
    /// `fsck` could not run.
    CouldNotRun = 8,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code as u8)
    }
}

/// The kind of failure, a word for scripts: `docs/reference/json.md` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// No more specific kind.
    Failed,
    /// The command line, or a file that it names for its options, is wrong.
    Usage,
    /// A file does not exist.
    NotFound,
    /// An image is in use by another process.
    InUse,
    /// An image holds something that would be lost.
    HoldsData,
    /// A file or device holds no volume.
    NotAVolume,
    /// The program was built without the feature.
    NotBuilt,
}

/// See the module's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

impl Failure {
    /// The command failed.
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure {
            code: Code::Failed,
            kind: Kind::Failed,
            message: message.into(),
        }
    }

    /// The command line is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure {
            code: Code::Usage,
            kind: Kind::Usage,
            message: message.into(),
        }
    }

    /// An operation on a file failed.
    pub(crate) fn at(path: &Path, why: impl Display) -> Failure {
        Failure::new(format!("{}: {why}", path.display()))
    }

    /// A file does not exist.
    pub(crate) fn absent(path: &Path) -> Failure {
        Failure::at(path, "does not exist; check the name").of_kind(Kind::NotFound)
    }

    /// The same failure with another exit code.
    pub(crate) fn with_code(self, code: Code) -> Failure {
        Failure { code, ..self }
    }

    /// The same failure with a more specific kind.
    pub(crate) fn of_kind(self, kind: Kind) -> Failure {
        Failure { kind, ..self }
    }

    /// Prints the line.
    pub(crate) fn report(&self) {
        notice(&self.message);
    }

    /// Prints the failure as a line of JSON on standard error, instead of the text.
    pub(crate) fn report_json(&self) {
        let line = serde_json::json!({
            "schema_version": SCHEMA_VERSION,
            "error": {
                "message": self.message,
                "kind": self.kind,
                "exit_code": self.code as u8,
            },
        });
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// One line on standard error; a missing reader is no reason to stop.
pub(crate) fn notice(message: &str) {
    let _ = writeln!(std::io::stderr(), "steadfast: {message}");
}
