//! The volume's streams, as front ends see them: the journal's, with files for objects.
//!
//! Only `ordered` has streams of its own; elsewhere [`FileSystem::streams`](steadfast_vfs::FileSystem::streams) has none to
//! offer.

use crate::error::from_journal;
use crate::inode;
use crate::mounted::Mounted;
use crate::reader::Current;
use crate::work::Store;
use std::time::Duration;
use steadfast_block::BlockNo;
use steadfast_journal::{Object, StreamCounts, StreamId, Together};
use steadfast_vfs::{Ino, MergeCause, Result, Stream, StreamMerge, StreamStats, Streams};

impl Streams for Mounted {
    fn sync(&self, stream: Stream) -> Result<()> {
        self.check_open()?;
        if self.read_only {
            return Ok(());
        }
        let journal = &self.store.journal;
        journal
            .sync_stream(StreamId(stream.0))
            .map_err(from_journal)
    }

    fn of_inode(&self, ino: Ino) -> Option<Stream> {
        let journal = &self.store.journal;
        let found = journal.stream_of(Object::File(ino));
        let found = found.or_else(|| journal.stream_of(Object::Directory(ino)));
        found.map(|stream| Stream(stream.0))
    }

    fn set_commit_interval(&self, stream: Stream, interval: Option<Duration>) {
        let journal = &self.store.journal;
        journal.set_commit_interval(StreamId(stream.0), interval);
    }

    fn stats(&self) -> Vec<StreamStats> {
        let counts = self.store.journal.stream_counts();
        counts.into_iter().map(stats).collect()
    }

    fn merges(&self) -> Vec<StreamMerge> {
        let merges = self.store.journal.merges();
        let told = |merge: &steadfast_journal::Merge| {
            let (cause, inode) = self.store.cause(merge.cause);
            StreamMerge {
                streams: merge.streams.map(|stream| Stream(stream.0)),
                cause,
                inode,
                path: None,
            }
        };
        merges.iter().map(told).collect()
    }

    fn forget(&self, stream: Stream) -> bool {
        self.store.journal.forget(StreamId(stream.0))
    }
}

impl Mounted {
    /// Counters of streams, by name.
    pub(crate) fn stream_counters(&self) -> Vec<(&'static str, u64)> {
        let journal = &self.store.journal;
        let totals = journal.stream_totals();
        let merges = totals.merges;
        vec![
            ("stream_known_now", totals.known),
            ("stream_uncommitted_now", totals.live),
            ("stream_commits", totals.commits),
            ("stream_own_bytes", totals.own_bytes),
            ("stream_carried_bytes", totals.carried_bytes),
            ("stream_waits", totals.waits),
            ("stream_merges_file", merges.file),
            ("stream_merges_name", merges.name),
            ("stream_merges_directory", merges.directory),
            ("stream_merges_block", merges.block),
            ("stream_merges_topology", merges.topology),
            ("stream_merges_bytes", merges.bytes),
            ("stream_merges_life", merges.life),
        ]
    }
}

impl Store {
    /// Cause of the merge of two streams, and the file or directory concerned.
    fn cause(&self, together: Together) -> (MergeCause, Option<Ino>) {
        match together {
            Together::Object(Object::File(ino)) => (MergeCause::File, Some(ino)),
            Together::Object(Object::Name(dir, _)) => (MergeCause::Name, Some(dir)),
            Together::Object(Object::Directory(dir)) => (MergeCause::Directory, Some(dir)),
            Together::Object(Object::Topology) => (MergeCause::Topology, None),
            Together::Object(Object::Block(at)) if self.holds_inodes(BlockNo(at)) => {
                (MergeCause::InodeNumber, None)
            }
            Together::Object(Object::Block(_)) => (MergeCause::IndexBlock, None),
            Together::Bytes(at) | Together::Life(at) if self.holds_inodes(at) => {
                (MergeCause::InodeNumber, None)
            }
            _ => (MergeCause::Bytes, None),
        }
    }

    /// Whether the block holds inodes now.
    fn holds_inodes(&self, at: BlockNo) -> bool {
        let mut reader = Current(&self.journal);
        inode::is_inode_block(&self.volume, &mut reader, at).unwrap_or(false)
    }
}

fn stats((stream, counts): (StreamId, StreamCounts)) -> StreamStats {
    let waited_for = counts.waited_for.into_iter();
    StreamStats {
        stream: Stream(stream.0),
        operations: counts.operations,
        commits: counts.commits,
        own_bytes: counts.own_bytes,
        carried_bytes: counts.carried_bytes,
        waited_for: waited_for
            .map(|(stream, times)| (Stream(stream.0), times))
            .collect(),
        uncommitted: counts.uncommitted,
    }
}
