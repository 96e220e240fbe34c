//! Gaps in directory leaves that an operation left and that is not durable yet.
//!
//! Only the stream of that operation puts an entry there; for the others the bytes are free when the removal is durable
//! (ccfs §3.3.4). Else the commit of one stream would have to take the other's removal along, because both changed the
//! same bytes.
//!
//! Invariants: a gap is entered before the directory's lock is let go, and looked for under that lock. A gap that is
//! entered longer than it need be costs room for others, never safety. Entries are as many as removals that are not
//! durable, or fewer than twice [`SWEPT`].

use crate::work::Store;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use steadfast_block::BlockNo;
use steadfast_journal::{StreamId, Ticket};

/// From so many entries on the durable ones are looked for.
const SWEPT: usize = 4096;

/// The gaps of a volume. See the module's header.
#[derive(Default)]
pub(crate) struct Gaps {
    state: Mutex<State>,
    /// Planted fault: gaps are everybody's at once.
    pub(crate) ignored: bool,
}

#[derive(Default)]
struct State {
    leaves: HashMap<BlockNo, Vec<Gap>>,
    count: usize,
    sweep_at: usize,
    /// All entries are of this stream.
    only: Option<StreamId>,
}

#[derive(Clone)]
struct Gap {
    space: Range<usize>,
    stream: StreamId,
    ticket: Ticket,
}

impl Gaps {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream's operation removed what lay in this space of a leaf.
    pub(crate) fn hold(
        &self,
        store: &Store,
        leaf: BlockNo,
        space: Range<usize>,
        (stream, ticket): (StreamId, Ticket),
    ) {
        let mut state = self.lock();
        match state.count {
            0 => state.only = Some(stream),
            _ if state.only != Some(stream) => state.only = None,
            _ => {}
        }
        let gaps = state.leaves.entry(leaf).or_default();
        let before = gaps.len();
        let inside = |gap: &Gap| space.start <= gap.space.start && gap.space.end <= space.end;
        gaps.retain(|gap| gap.stream != stream || !inside(gap));
        gaps.push(Gap {
            space,
            stream,
            ticket,
        });
        let after = gaps.len();
        state.count = state.count + after - before;
        if state.count >= state.sweep_at.max(SWEPT) {
            state.sweep(store);
        }
    }

    /// Bytes of a leaf that the stream must leave alone, in order.
    pub(crate) fn foreign(&self, leaf: BlockNo, stream: StreamId) -> Vec<Range<usize>> {
        let state = self.lock();
        if state.only == Some(stream) || self.ignored {
            return Vec::new();
        }
        let gaps = state.leaves.get(&leaf).into_iter().flatten();
        let foreign = gaps.filter(|gap| gap.stream != stream);
        let mut spaces: Vec<_> = foreign.map(|gap| gap.space.clone()).collect();
        spaces.sort_unstable_by_key(|space| space.start);
        spaces
    }

    /// The same after the leaf's durable gaps were let go.
    pub(crate) fn still_foreign(
        &self,
        store: &Store,
        leaf: BlockNo,
        stream: StreamId,
    ) -> Vec<Range<usize>> {
        self.lock().settle(store, leaf);
        self.foreign(leaf, stream)
    }
}

impl State {
    /// Forgets the durable gaps of a leaf.
    fn settle(&mut self, store: &Store, leaf: BlockNo) {
        let Some(gaps) = self.leaves.get_mut(&leaf) else {
            return;
        };
        let before = gaps.len();
        let tickets: Vec<Ticket> = gaps.iter().map(|gap| gap.ticket).collect();
        let mut durable = store.journal.are_durable(&tickets).into_iter();
        gaps.retain(|_| !durable.next().unwrap_or(false));
        self.count -= before - gaps.len();
        if gaps.is_empty() {
            self.leaves.remove(&leaf);
        }
    }

    fn sweep(&mut self, store: &Store) {
        let leaves: Vec<BlockNo> = self.leaves.keys().copied().collect();
        for leaf in leaves {
            self.settle(store, leaf);
        }
        self.sweep_at = 2 * self.count;
    }
}
