//! Reasons for which the server closes a connection.

/// Reason for which the server ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// The client has ended it, or it broke.
    Gone,
    /// The client does not send RPC.
    Garbage,
    /// The client sent or took nothing for too long.
    Slow,
    /// Its memory or place is needed for other connections.
    Crowded,
}
