//! Failures, by name.

use std::fmt;

use nfs3_types::nfs3::nfsstat3;

/// Failure of a call, or of a client's sequence of calls.
#[derive(Debug)]
pub enum Failure {
    /// The connection is gone, or nothing came for too long.
    Lost(String),
    /// The other side does not speak the protocol as it is written, or refused to hear the call.
    Protocol(String),
    /// A procedure answered with an error.
    Status {
        /// Operation that failed.
        what: String,
        /// The answer.
        status: nfsstat3,
    },
    /// The answer is wrong.
    Wrong(String),
}

impl Failure {
    /// Adds the operation that failed, where it is missing.
    #[must_use]
    pub fn during(self, what: &str) -> Failure {
        match self {
            Failure::Lost(why) => Failure::Lost(format!("{what}: {why}")),
            Failure::Protocol(why) => Failure::Protocol(format!("{what}: {why}")),
            other => other,
        }
    }

    /// Says which client it happened to.
    #[must_use]
    pub fn of_client(self, client: usize) -> Failure {
        let named = |why| format!("client {client}: {why}");
        match self {
            Failure::Lost(why) => Failure::Lost(named(why)),
            Failure::Protocol(why) => Failure::Protocol(named(why)),
            Failure::Wrong(why) => Failure::Wrong(named(why)),
            Failure::Status { what, status } => Failure::Status {
                what: named(what),
                status,
            },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Lost(why) | Failure::Protocol(why) | Failure::Wrong(why) => f.write_str(why),
            Failure::Status { what, status } => write!(f, "{what}: {status}"),
        }
    }
}

/// The server's answer is wrong.
///
/// # Errors
/// Always [`Failure::Wrong`].
pub fn wrong<T>(why: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Wrong(why.into()))
}
