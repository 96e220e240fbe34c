//! Counts of streams: the activity of each, and which of them became one (ccfs §3).

use crate::StreamId;
pub use crate::changes::Together;
use std::time::Duration;

/// Number of merges that are remembered.
pub const MERGES_KEPT: usize = 256;
/// Shortest commit interval: a shorter one is this one.
pub const COMMIT_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Counts of a stream since the journal was opened, or since the stream was last forgotten. A merge changes no count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamCounts {
    /// Operations that changed something.
    pub operations: u64,
    /// Commits that the stream asked for: syncs that found something uncommitted, and ends of its commit interval.
    pub commits: u64,
    /// Bytes of its operations that reached the device: its part of records, and data. Of a transaction of several
    /// streams each has a part in proportion to the changes of its operations.
    pub own_bytes: u64,
    /// Bytes of other streams that its commits had to take along.
    pub carried_bytes: u64,
    /// Times that it waited for each other stream, for a commit or for room. The 64 with the most times at least.
    pub waited_for: Vec<(StreamId, u64)>,
    /// Operations that are not durable.
    pub uncommitted: u64,
}

/// Two running transactions became one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merge {
    /// The stream whose operation joined them, and the other's.
    pub streams: [StreamId; 2],
    /// Cause of the merge.
    pub cause: Together,
}

/// Merges since the journal was opened, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeCounts {
    /// [`Object::File`](crate::Object::File).
    pub file: u64,
    /// [`Object::Name`](crate::Object::Name).
    pub name: u64,
    /// [`Object::Directory`](crate::Object::Directory).
    pub directory: u64,
    /// [`Object::Block`](crate::Object::Block).
    pub block: u64,
    /// [`Object::Topology`](crate::Object::Topology).
    pub topology: u64,
    /// [`Object::Key`](crate::Object::Key).
    pub key: u64,
    /// [`Together::Bytes`].
    pub bytes: u64,
    /// [`Together::Life`].
    pub life: u64,
}

/// Totals of all streams since the journal was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamTotals {
    /// Streams that changed or synced something and were not forgotten.
    pub known: u64,
    /// Streams with uncommitted operations.
    pub live: u64,
    /// Sums of [`StreamCounts`].
    pub commits: u64,
    /// The same.
    pub own_bytes: u64,
    /// The same.
    pub carried_bytes: u64,
    /// Times that a stream waited for another one.
    pub waits: u64,
    /// Merges, by cause.
    pub merges: MergeCounts,
}
