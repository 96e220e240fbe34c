//! Streams as the journal's callers see them: what each did, when it commits by itself, who
//! changed what, and which of them became one (ccfs §3).

pub use crate::changes::Together;
use crate::core::Request;
use crate::engine::{Inner, Journal};
use crate::{Object, Result, StreamId};
use std::time::Duration;

/// How many merges are remembered.
pub const MERGES_KEPT: usize = 256;
/// Shortest commit interval: a shorter one is this one.
pub const COMMIT_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// What a stream did since the journal was opened, or since the stream was last forgotten. A merge changes no count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamCounts {
    /// Operations that changed something.
    pub operations: u64,
    /// Commits that the stream asked for: syncs that found something uncommitted, and ends of its commit interval.
    pub commits: u64,
    /// Bytes of its operations that reached the device: its part of records, and data. Of a transaction of several
    /// streams each has a part in proportion to what its operations changed.
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
    /// What they had in common.
    pub cause: Together,
}

/// Merges since the journal was opened, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeCounts {
    /// [`Object::File`].
    pub file: u64,
    /// [`Object::Name`].
    pub name: u64,
    /// [`Object::Directory`].
    pub directory: u64,
    /// [`Object::Block`].
    pub block: u64,
    /// [`Object::Topology`].
    pub topology: u64,
    /// [`Object::Key`].
    pub key: u64,
    /// [`Together::Bytes`].
    pub bytes: u64,
    /// [`Together::Life`].
    pub life: u64,
}

/// What all streams did since the journal was opened.
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

impl Journal {
    /// Makes durable everything uncommitted of a stream, and what that depends on.
    ///
    /// # Errors
    /// The sticky failure: what was not durable before may be lost.
    pub fn sync_stream(&self, stream: StreamId) -> Result<()> {
        self.sync(stream, &[])
    }

    /// A stream with an uncommitted change of the object: of several the newest. One that names it exclusively comes
    /// before those that share it.
    #[must_use]
    pub fn stream_of(&self, object: Object) -> Option<StreamId> {
        self.inner().told().1.stream_of(object)
    }

    /// What each stream did, by number. Streams that did nothing are left out.
    #[must_use]
    pub fn stream_counts(&self) -> Vec<(StreamId, StreamCounts)> {
        self.inner().told().1.streams.counts()
    }

    /// The newest merges, oldest first, at most [`MERGES_KEPT`].
    #[must_use]
    pub fn merges(&self) -> Vec<Merge> {
        self.inner().told().1.streams.merges()
    }

    /// What all streams did, also those that were forgotten.
    #[must_use]
    pub fn stream_totals(&self) -> StreamTotals {
        self.inner().told().1.streams.totals()
    }

    /// Forgets counts and interval of a stream. False, and nothing is forgotten, while it has uncommitted operations.
    #[must_use]
    pub fn forget(&self, stream: StreamId) -> bool {
        self.inner().told().1.streams.forget(stream)
    }

    /// Sets how long the first uncommitted operation of a stream may stay so; `None`: as long as the
    /// configuration says.
    pub fn set_commit_interval(&self, stream: StreamId, interval: Option<Duration>) {
        let interval = interval.map(|interval| interval.max(COMMIT_INTERVAL_MIN));
        self.inner().told().1.streams.set_interval(stream, interval);
        // It may be due earlier than the timekeeper thinks.
        self.inner().tick.notify_all();
    }

    /// Commits the streams whose commit interval has passed, as the workers do; returns how long it is until the next
    /// one has passed. For those that run a journal without workers.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn commit_due(&self) -> Result<Option<Duration>> {
        self.inner().commit_due(false)
    }
}

impl Inner {
    /// See [`Journal::commit_due`]. With `leave`, transactions with much data are only closed, and left to the flusher.
    pub(crate) fn commit_due(&self, leave: bool) -> Result<Option<Duration>> {
        let due = {
            let (_lanes, core) = self.told();
            core.check()?;
            core.streams.due(self.config.clock.now())
        };
        if !due.is_empty() {
            let mut ids = self.close(|core| core.concerned(&due, &[]))?;
            let mut core = self.core.lock();
            core.requested(Request::Interval(&due), &ids);
            if leave {
                ids.retain(|id| !core.has_much_data(*id));
                self.work.notify_all();
            }
            drop(core);
            self.drive(Request::Housekeeping, &ids)?;
        }
        let next = self.told().1.streams.next_due();
        Ok(next.map(|next| next.saturating_sub(self.config.clock.now())))
    }
}
