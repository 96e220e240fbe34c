//! Planted faults: rules of the disk that tests leave out. A release has none.

/// A rule that a disk leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "faults"),
    allow(dead_code, unreachable_pub, reason = "only tests plant faults")
)]
pub enum DeviceFault {
    /// A flush returns before its slot is acknowledged.
    FlushUnacknowledged,
    /// Objects that snapshots need are retired.
    PinsIgnored,
    /// A rollback keeps blocks in memory.
    RollbackPartial,
    /// A checkpoint leaves out a cell that changed.
    CellLeftOut,
    /// A move also commits blocks of the open epoch.
    MoveFlushes,
    /// A flush is acknowledged before the cache device has made it durable.
    CacheUnflushed,
    /// A record of the cache is used although its hash fails.
    CacheTornBelieved,
    /// Flushes do not wait when the store lags too far behind.
    LagUnbounded,
    /// Salts of encrypted objects count up from the opening on, as they would in a copied virtual machine.
    SaltsCounted,
    /// Cells of the read cache are used without a check of their hash.
    ReadsBelieved,
    /// A disk grows, and `head` does not have the new size.
    SizeUnpublished,
    /// A promotion leaves one object of a parent out.
    PromotedInPart,
    /// An epoch is sent without its notes.
    NoteLost,
    /// A note is sent in an epoch before the one with its blocks.
    NoteEarly,
    /// A successor does not wait for the lease of the writer before.
    LeaseNotAwaited,
    /// A machine answers clients without a lease until it learns that it was fenced.
    LeaseUnheeded,
    /// A stand-by answers `head` from memory.
    HeadKept,
    /// A stand-by remembers that the store has no such object.
    AbsentKept,
    /// A stand-by keeps what the store sends before it is checked.
    UncheckedKept,
}
