//! Rules of the disk that can be left out on purpose. In a release there are none.

/// A rule that a disk leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "faults"),
    allow(dead_code, unreachable_pub, reason = "only tests plant faults")
)]
pub enum DeviceFault {
    /// A flush returns before its slot is acknowledged.
    FlushUnacknowledged,
    /// What snapshots need is retired.
    PinsIgnored,
    /// A rollback keeps blocks in memory.
    RollbackPartial,
    /// A checkpoint leaves out a cell that changed.
    CellLeftOut,
    /// A move takes blocks of the open epoch along.
    MoveFlushes,
    /// A flush is acknowledged before the cache device has made it durable.
    CacheUnflushed,
    /// A record of the cache is believed though its hash fails.
    CacheTornBelieved,
    /// Flushes do not wait for a store that is too far behind.
    LagUnbounded,
    /// Salts of encrypted objects count up from the opening on, as they would in a copied virtual machine.
    SaltsCounted,
    /// What the cache of reads holds is believed without its hash.
    ReadsBelieved,
    /// A disk grows, and `head` does not say it.
    SizeUnpublished,
    /// A promotion leaves one object of a parent out.
    PromotedInPart,
    /// An epoch is sent without its notes.
    NoteLost,
    /// A note is sent in an epoch before the one with its blocks.
    NoteEarly,
    /// A successor does not wait for the lease of the writer before.
    LeaseNotAwaited,
    /// A machine answers clients as long as it is not told that it was fenced.
    LeaseUnheeded,
}
