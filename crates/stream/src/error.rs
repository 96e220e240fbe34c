//! Errors of requests about streams, in words that name a remedy.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::wire::NAME_RULE;

/// Error of a request. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path is on no mount with streams: of another file system, or of an older server.
    #[error("{}: not on a mounted Steadfast volume, or its server is too old for streams", path.display())]
    NoServer {
        /// The path that was given.
        path: PathBuf,
    },
    /// The mount has no streams.
    #[error("{}: this mount has no streams: {reason}", path.display())]
    Unavailable {
        /// The path that was given.
        path: PathBuf,
        /// The server's reason.
        reason: String,
    },
    /// The name breaks the rule.
    #[error("stream name {name:?}: {}", NAME_RULE)]
    Name {
        /// The name that was given.
        name: String,
    },
    /// The process has no stream and cannot get one.
    #[error("process {pid}: {why}")]
    Process {
        /// The number that was given.
        pid: u32,
        /// Reason.
        why: &'static str,
    },
    /// The caller may not do this.
    #[error("{what}: not permitted: {rule}")]
    NotPermitted {
        /// Operation that failed.
        what: String,
        /// Callers that are permitted.
        rule: &'static str,
    },
    /// The limit of streams or rules is reached.
    #[error(
        "{what}: the limit is reached; end processes of other streams or remove rules, or wait for commits"
    )]
    TooMany {
        /// Operation that failed.
        what: String,
    },
    /// There is no stream of this name.
    #[error("there is no stream {name:?}{}", of_user(*user))]
    NoStream {
        /// The name that was given.
        name: String,
        /// The user whose stream it would be, if one was given.
        user: Option<u32>,
    },
    /// Several users have a stream of this name.
    #[error("several users have a stream {name:?}: name one of them")]
    Ambiguous {
        /// The name that was given.
        name: String,
    },
    /// The server's answer makes no sense to this library.
    #[error("{}: the server's answer is not understood: {what}", path.display())]
    Answer {
        /// The path that was given.
        path: PathBuf,
        /// The malformed answer.
        what: &'static str,
    },
    /// Another error of the system.
    #[error("{what}: {source}")]
    Io {
        /// Operation that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Result of a request about streams.
pub type Result<T> = std::result::Result<T, Error>;

fn of_user(user: Option<u32>) -> String {
    user.map_or_else(String::new, |user| format!(" of user {user}"))
}

impl Error {
    /// The system's error number that stands for it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Error::NoServer { .. } | Error::Unavailable { .. } => Errno::OPNOTSUPP,
            Error::Name { .. } => Errno::INVAL,
            Error::Process { .. } => Errno::SRCH,
            Error::NotPermitted { .. } => Errno::PERM,
            Error::TooMany { .. } => Errno::AGAIN,
            Error::NoStream { .. } => Errno::NOENT,
            Error::Ambiguous { .. } => Errno::NOTUNIQ,
            Error::Answer { .. } => Errno::PROTO,
            Error::Io { source, .. } => {
                return source.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            }
        };
        errno.raw_os_error()
    }

    pub(crate) fn io(what: impl Into<String>, errno: Errno) -> Error {
        Error::Io {
            what: what.into(),
            source: errno.into(),
        }
    }

    pub(crate) fn answer(path: &Path, what: &'static str) -> Error {
        Error::Answer {
            path: path.to_owned(),
            what,
        }
    }
}
