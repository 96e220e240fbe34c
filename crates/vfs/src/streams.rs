//! The interface of a volume's streams: commits and reports (ccfs §3).
//!
//! A stream is a number here. Its members and its name are the front end's business.

use std::time::Duration;

use crate::{Ino, Result, Stream};

/// Streams of a volume that distinguishes them.
pub trait Streams: Send + Sync {
    /// Commits the stream's uncommitted changes, and those that they depend on; returns when they are durable.
    ///
    /// # Errors
    /// The volume's failure, if it has failed.
    fn sync(&self, stream: Stream) -> Result<()>;
    /// The stream with an uncommitted change of the inode; the newest one, if several have.
    fn of_inode(&self, ino: Ino) -> Option<Stream>;
    /// Sets how long the stream's first uncommitted operation may stay so. `None`: as long as the volume's others.
    fn set_commit_interval(&self, stream: Stream, interval: Option<Duration>);
    /// The activity of each stream since the mount, by number; streams without any are left out.
    fn stats(&self) -> Vec<StreamStats>;
    /// The newest merges, oldest first, at most [`MERGES_KEPT`].
    fn merges(&self) -> Vec<StreamMerge>;
    /// Forgets counts and settings of a stream that will not be used any more. False, and nothing is forgotten, while it has
    /// uncommitted operations.
    fn forget(&self, stream: Stream) -> bool;
}

/// Number of merges that are kept.
pub const MERGES_KEPT: usize = 256;

/// Counts of a stream since the mount. A merge changes no count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamStats {
    /// The stream.
    pub stream: Stream,
    /// Operations that changed something.
    pub operations: u64,
    /// Commits that the stream asked for: syncs, and its commit interval.
    pub commits: u64,
    /// Bytes that reached the device in the stream's commits: its own.
    pub own_bytes: u64,
    /// Bytes of other streams, which it had to take along.
    pub carried_bytes: u64,
    /// Times that it waited for another stream, with each of them.
    pub waited_for: Vec<(Stream, u64)>,
    /// Operations that are not durable yet.
    pub uncommitted: u64,
}

/// Two streams form one order until they commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamMerge {
    /// The one whose operation joined them, and the other.
    pub streams: [Stream; 2],
    /// Cause.
    pub cause: MergeCause,
    /// The file or directory concerned, where there is one.
    pub inode: Option<Ino>,
    /// Its path within the volume, if it is still known.
    pub path: Option<Vec<u8>>,
}

/// Cause of a merge of two streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MergeCause {
    /// Both changed a file.
    File,
    /// Both changed a name in a directory, or one looked up a name that the other made.
    Name,
    /// One made, removed or set attributes of the directory that the other changed.
    Directory,
    /// Both rebuilt an index block.
    IndexBlock,
    /// Both moved directories.
    Topology,
    /// Both changed the same bytes of a block.
    Bytes,
    /// One frees an inode number that the other uses.
    InodeNumber,
}

impl MergeCause {
    /// Name for users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MergeCause::File => "file",
            MergeCause::Name => "name",
            MergeCause::Directory => "directory",
            MergeCause::IndexBlock => "index block",
            MergeCause::Topology => "topology",
            MergeCause::Bytes => "bytes",
            MergeCause::InodeNumber => "inode number",
        }
    }
}
