//! The changes that an operation brings to its transaction, and the names that the parts of the journal use for them.

use crate::patch::{Edit, Patch};
use crate::{Access, Credits, Kind, Object, StreamId};
use foldhash::fast::FixedState;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use steadfast_block::{Block, BlockNo};

/// Lanes of a journal: see `lanes`.
pub(crate) const LANES: u8 = 8;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TxnId(pub(crate) u64);

/// A run of consecutive blocks `(first, count)`.
pub(crate) type Run = (BlockNo, u64);
/// New data for consecutive blocks.
pub(crate) type DataRun = (BlockNo, Vec<Arc<Block>>);

/// Makes an operation's note beside its changes: called when its batch is sent, because the note may be completed until then.
/// None: there is no note.
pub type NoteFn = Box<dyn Fn() -> Option<Vec<u8>> + Send + Sync>;

/// Number of a lane; below [`LANES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LaneId(pub(crate) u8);

impl LaneId {
    /// The lane of this thread's operations.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn mine(_: StreamId) -> LaneId {
        use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
        static NEXT: AtomicU8 = AtomicU8::new(0);
        thread_local!(static MINE: LaneId = LaneId(NEXT.fetch_add(1, Relaxed) % LANES));
        MINE.with(|mine| *mine)
    }

    /// Explored threads are one thread to the system: streams tell them apart.
    #[cfg(feature = "shuttle")]
    pub(crate) fn mine(stream: StreamId) -> LaneId {
        LaneId((stream.0 % u32::from(LANES)) as u8)
    }
}

/// The name of an operation, while a trace is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpName {
    #[cfg(feature = "trace")]
    pub(crate) number: u64,
}

/// Maps keyed by block addresses. The hash is the same in every run, so that runs repeat.
pub(crate) type BlockMap<V> = HashMap<u64, V, FixedState>;

/// The keys of `map` in `first .. first + count`. O(the smaller of `count` and the map).
pub(crate) fn keys_within<V>(map: &BlockMap<V>, (first, count): Run) -> Vec<u64> {
    let run = first.0..first.0 + count;
    if count < map.len() as u64 {
        run.filter(|at| map.contains_key(at)).collect()
    } else {
        map.keys().copied().filter(|at| run.contains(at)).collect()
    }
}

/// Changes that an operation brings to its transaction.
pub(crate) struct OpChanges {
    pub(crate) name: OpName,
    pub(crate) stream: StreamId,
    /// Set while the transaction closes: the changes go exactly there.
    pub(crate) closing: Option<TxnId>,
    /// Log blocks that were reserved for the operation.
    pub(crate) reserved: u64,
    /// The lane that it was admitted in, and its number there.
    pub(crate) lane: Option<LaneId>,
    pub(crate) number: u64,
    /// Time of the commit in memory, or a bit earlier.
    pub(crate) since: Duration,
    pub(crate) relations: Vec<(Object, Access)>,
    pub(crate) blocks: Vec<OpBlock>,
    pub(crate) frees: Vec<Run>,
    pub(crate) data: Vec<DataRun>,
    pub(crate) attached: Vec<(u64, Credits)>,
    pub(crate) note: Option<NoteFn>,
}

impl OpChanges {
    /// Whether it can be put off until something freezes: see `lanes`.
    pub(crate) fn commutes(&self) -> bool {
        let plain = |block: &OpBlock| !block.zero && !block.revoke;
        self.frees.is_empty()
            && self.data.is_empty()
            && self.attached.is_empty()
            && self.blocks.iter().all(plain)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
            && self.frees.is_empty()
            && self.data.is_empty()
            && self.attached.is_empty()
    }
}

/// One block's part of an operation, which the cache's current image shows already. The
/// operation's hold of the cache entry goes with it.
pub(crate) struct OpBlock {
    pub(crate) at: BlockNo,
    pub(crate) kind: Kind,
    /// The block begins a new life.
    pub(crate) zero: bool,
    /// The block was freed.
    pub(crate) revoke: bool,
    pub(crate) edits: SmallVec<[Edit; 2]>,
}

impl OpBlock {
    /// Reason why it cannot be reordered with another owner's patch, if it cannot.
    pub(crate) fn meets(&self, patch: &Patch) -> Option<Together> {
        if self.zero || self.revoke || patch.zero || patch.revoke {
            return Some(Together::Life(self.at));
        }
        let overlaps = self.edits.iter().any(|edit| patch.overlaps(edit));
        overlaps.then_some(Together::Bytes(self.at))
    }
}

/// Relation between two operations of different streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Together {
    /// Both named the object ([`Op::relate`](crate::Op::relate)).
    Object(Object),
    /// Both changed the same bytes of the block.
    Bytes(BlockNo),
    /// One began or ended the block's life, or wrote it around the log; the other changed or freed it.
    Life(BlockNo),
}
