//! Gaps in directory leaves that an operation left and that is not durable yet.
//!
//! Only the stream of that operation puts an entry there; for the others the bytes are free when the removal is durable
//! (ccfs §3.3.4). Else the commit of one stream would have to take the other's removal along, because both changed the
//! same bytes.
//!
//! Invariants: a gap is entered before the directory's lock is let go, and looked for under that lock. A gap that is
//! entered longer than it need be costs room for others, never safety. While all gaps are of one stream they are a
//! list, and there is no search for any; they are indexed by leaf when a second stream comes. There are as many as removals that
//! are not durable, or fewer than twice [`SWEPT`].

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use steadfast_block::BlockNo;
use steadfast_journal::{Journal, StreamId, Ticket};

/// Number of gaps from which on the durable ones are looked for.
const SWEPT: usize = 4096;
/// Gaps that the journal is asked about at a time.
const ASKED_AT_ONCE: usize = 64;

/// The gaps of a volume. See the module's header.
#[derive(Default)]
pub(crate) struct Gaps {
    state: Mutex<State>,
    /// Planted fault: gaps are open to all streams at once.
    pub(crate) ignored: bool,
}

#[derive(Default)]
struct State {
    /// Those of one stream, oldest first, while no other has any.
    list: VecDeque<(BlockNo, Gap)>,
    /// Else all of them, by leaf.
    leaves: HashMap<BlockNo, Vec<Gap>>,
    indexed: usize,
    sweep_at: usize,
}

#[derive(Clone)]
struct Gap {
    space: Range<u16>,
    stream: StreamId,
    ticket: Ticket,
}

impl Gaps {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream's operation removed the content of this space of a leaf.
    pub(crate) fn hold(
        &self,
        journal: &Journal,
        leaf: BlockNo,
        space: Range<u16>,
        (stream, ticket): (StreamId, Ticket),
    ) {
        let gap = Gap {
            space,
            stream,
            ticket,
        };
        let mut state = self.lock();
        if state.is_alone(stream) {
            state.list.push_back((leaf, gap));
        } else {
            state.index(leaf, gap);
        }
        if state.list.len() + state.indexed >= state.sweep_at.max(SWEPT) {
            state.sweep(journal);
        }
    }

    /// Bytes of a leaf that the stream must leave alone, in order.
    pub(crate) fn foreign(&self, leaf: BlockNo, stream: StreamId) -> Vec<Range<usize>> {
        let mut state = self.lock();
        if self.ignored || state.is_alone(stream) {
            return Vec::new();
        }
        state.index_all();
        let gaps = state.leaves.get(&leaf).into_iter().flatten();
        let foreign = gaps.filter(|gap| gap.stream != stream);
        let mut spaces: Vec<_> = foreign
            .map(|gap| usize::from(gap.space.start)..usize::from(gap.space.end))
            .collect();
        spaces.sort_unstable_by_key(|space| space.start);
        spaces
    }

    /// The same after the leaf's durable gaps were let go.
    pub(crate) fn still_foreign(
        &self,
        journal: &Journal,
        leaf: BlockNo,
        stream: StreamId,
    ) -> Vec<Range<usize>> {
        self.lock().settle(journal, leaf);
        self.foreign(leaf, stream)
    }
}

impl State {
    /// Whether no other stream has a gap.
    fn is_alone(&self, stream: StreamId) -> bool {
        let first = self.list.front();
        self.indexed == 0 && first.is_none_or(|(_, gap)| gap.stream == stream)
    }

    fn index_all(&mut self) {
        for (leaf, gap) in std::mem::take(&mut self.list) {
            self.index(leaf, gap);
        }
    }

    fn index(&mut self, leaf: BlockNo, gap: Gap) {
        self.index_all();
        let gaps = self.leaves.entry(leaf).or_default();
        let before = gaps.len();
        let inside = |old: &Gap| {
            old.stream == gap.stream
                && gap.space.start <= old.space.start
                && old.space.end <= gap.space.end
        };
        gaps.retain(|old| !inside(old));
        gaps.push(gap);
        self.indexed = self.indexed + gaps.len() - before;
    }

    /// Forgets the durable gaps of a leaf.
    fn settle(&mut self, journal: &Journal, leaf: BlockNo) {
        let Some(gaps) = self.leaves.get_mut(&leaf) else {
            return;
        };
        let before = gaps.len();
        let tickets: Vec<Ticket> = gaps.iter().map(|gap| gap.ticket).collect();
        let mut durable = journal.are_durable(&tickets).into_iter();
        gaps.retain(|_| !durable.next().unwrap_or(false));
        self.indexed -= before - gaps.len();
        if gaps.is_empty() {
            self.leaves.remove(&leaf);
        }
    }

    /// Forgets durable gaps: of the list those before the first that is not.
    fn sweep(&mut self, journal: &Journal) {
        loop {
            let oldest = self.list.iter().take(ASKED_AT_ONCE);
            let tickets: Vec<Ticket> = oldest.map(|(_, gap)| gap.ticket).collect();
            let durable = journal.are_durable(&tickets);
            let count = durable.iter().take_while(|durable| **durable).count();
            self.list.drain(..count);
            if count < ASKED_AT_ONCE {
                break;
            }
        }
        let leaves: Vec<BlockNo> = self.leaves.keys().copied().collect();
        for leaf in leaves {
            self.settle(journal, leaf);
        }
        self.sweep_at = 2 * (self.list.len() + self.indexed);
    }
}
