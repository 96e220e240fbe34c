//! Reasons for which the server closes a connection.

/// Why a connection is ended by this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// The client has ended it, or it broke.
    Gone,
    /// It carries no RPC.
    Garbage,
    /// The client sends or takes nothing for too long.
    Slow,
    /// Others need the room.
    Crowded,
}
