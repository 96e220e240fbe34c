//! The core's knowledge of which uncommitted transactions name which objects.
//!
//! While one stream alone has uncommitted operations, objects need no lookup: each transaction only lists those that its
//! operations named. When a second stream comes, or a sync asks about an object, the lists are indexed (a long one is sorted,
//! which takes a tenth of the time), and from then on each operation is, until one stream is alone again. An operation that
//! stays in its own stream's order relates to nothing, so nothing is lost by that.
//!
//! Invariants: while `indexing`, index and runs have all objects of all lists; else all transactions are of
//! one stream, and the index has the first `indexed` objects of each list. An object is in
//! a list's indexed part once, and in the rest any number of times, but at most `COMPACTED` times as many as
//! there are different ones, or a few.

use super::{Core, TxnId};
use crate::{Access, Object, StreamId};
use foldhash::fast::FixedState;
use smallvec::SmallVec;
use std::collections::HashMap;

/// Objects in a list at which it is first looked through for repetitions.
const LIST_COMPACTED_MIN: usize = 1 << 16;
/// It is looked through again when it has grown by this factor.
const COMPACTED: usize = 4;
/// A list that is longer when a second stream comes is sorted, not indexed. Tests take both ways.
const LIST_INDEXED_MAX: usize = if cfg!(any(feature = "shuttle", feature = "fuzz")) {
    2
} else {
    4096
};
/// Newest objects of a list among which a repetition is noticed at once.
const RECENT: usize = 8;

/// A transaction that names an object.
#[derive(Clone, Copy)]
pub(crate) struct Namer {
    pub(crate) txn: TxnId,
    pub(crate) access: Access,
    /// The stream of its newest operation that does so, and how many operations there were before that one.
    pub(crate) stream: StreamId,
    age: u64,
}

/// Objects that a transaction's operations named.
#[derive(Default)]
pub(crate) struct ObjectList {
    list: Vec<(Object, Access)>,
    /// Number of them in the index.
    indexed: usize,
    /// Number of the transaction's objects that are in sorted runs instead.
    sorted: usize,
    /// Length at which the rest is looked through for repetitions.
    compact_at: usize,
}

impl ObjectList {
    /// Number of objects; some are counted repeatedly.
    pub(crate) fn len(&self) -> usize {
        self.list.len() + self.sorted
    }

    /// Number of objects that a merge moves.
    pub(crate) fn moved(&self) -> usize {
        self.list.len()
    }

    /// Another transaction's sorted runs are this one's now.
    pub(super) fn take_runs(&mut self, from: &ObjectList) {
        self.sorted += from.sorted;
    }

    fn add(&mut self, object: Object, access: Access) {
        let rest = &mut self.list[self.indexed..];
        let known = rest.iter_mut().rev().take(RECENT);
        if let Some((_, a)) = known.into_iter().find(|(known, _)| *known == object) {
            *a = (*a).max(access);
            return;
        }
        self.list.push((object, access));
        if self.list.len() >= self.compact_at.max(LIST_COMPACTED_MIN) {
            self.compact();
        }
    }

    fn compact(&mut self) {
        let mut rest = self.list.split_off(self.indexed);
        sort(&mut rest);
        self.list.append(&mut rest);
        self.compact_at = COMPACTED * self.list.len();
    }
}

/// Sorts objects and drops repetitions, which is quick where much is sorted already.
fn sort(objects: &mut Vec<(Object, Access)>) {
    // Of equal objects the one that is named exclusively comes first.
    objects.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    objects.dedup_by_key(|(object, _)| *object);
}

/// Objects that a transaction named while its stream was alone, sorted.
struct SortedRun {
    txn: TxnId,
    stream: StreamId,
    objects: Vec<(Object, Access)>,
}

/// The index.
#[derive(Default)]
pub(crate) struct Objects {
    index: HashMap<Object, SmallVec<[Namer; 1]>, FixedState>,
    runs: Vec<SortedRun>,
    indexing: bool,
}

impl Core {
    /// The transactions that name an object, once everything is indexed.
    pub(super) fn namers(&self, object: Object) -> SmallVec<[Namer; 4]> {
        let Objects { index, runs, .. } = &self.objects;
        let indexed = index.get(&object).map_or(&[][..], |namers| &namers[..]);
        let sorted = runs.iter().filter_map(|run| {
            let found = run
                .objects
                .binary_search_by_key(&object, |(o, _)| *o)
                .ok()?;
            Some(Namer {
                txn: run.txn,
                access: run.objects[found].1,
                stream: run.stream,
                age: 0,
            })
        });
        indexed.iter().copied().chain(sorted).collect()
    }

    /// Indexes all objects that transactions have listed so far, and from now on those of each operation.
    pub(super) fn index_objects(&mut self) {
        if self.objects.indexing {
            return;
        }
        self.objects.indexing = true;
        let mut ids: Vec<TxnId> = self.txns.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(txn) = self.txns.get_mut(&id) else {
                continue;
            };
            let stream = txn.streams.keys().next().copied().unwrap_or_default();
            let ObjectList { list, indexed, .. } = &mut txn.objects;
            let mut rest = list.split_off(*indexed);
            if self.limits.faults.relations_unindexed {
                *list = rest;
                continue;
            }
            if rest.len() > LIST_INDEXED_MAX {
                sort(&mut rest);
                txn.objects.sorted += rest.len();
                self.objects.runs.push(SortedRun {
                    txn: id,
                    stream,
                    objects: rest,
                });
                continue;
            }
            for (object, access) in rest {
                self.register(id, object, access, stream);
            }
        }
    }

    /// One stream is alone again: objects are only listed from now on.
    pub(super) fn stop_indexing(&mut self) {
        if self.streams.live() <= 1 {
            self.objects.indexing = false;
        }
        if self.objects.index.is_empty() && self.objects.index.capacity() > LIST_COMPACTED_MIN {
            self.objects.index = HashMap::default();
        }
    }

    /// Notes that the transaction names the object.
    pub(super) fn register(&mut self, id: TxnId, object: Object, access: Access, stream: StreamId) {
        let Some(txn) = self.txns.get_mut(&id) else {
            return;
        };
        if !self.objects.indexing {
            txn.objects.add(object, access);
            return;
        }
        let namer = Namer {
            txn: id,
            access,
            stream,
            age: self.stats.operations,
        };
        if self.objects.enter(object, namer) {
            txn.objects.list.push((object, access));
            txn.objects.indexed += 1;
        }
    }

    /// The objects of a transaction that became part of `keep`.
    pub(super) fn move_objects(&mut self, from: &ObjectList, gone: TxnId, keep: TxnId) {
        let runs = self.objects.runs.iter_mut();
        runs.filter(|run| run.txn == gone)
            .for_each(|run| run.txn = keep);
        for (object, _) in &from.list[..from.indexed] {
            let Some(namers) = self.objects.index.get_mut(object) else {
                continue;
            };
            let Some(i) = namers.iter().position(|namer| namer.txn == gone) else {
                continue;
            };
            let mut namer = namers.swap_remove(i);
            namer.txn = keep;
            if self.objects.enter(*object, namer)
                && let Some(txn) = self.txns.get_mut(&keep)
            {
                txn.objects.list.push((*object, namer.access));
                txn.objects.indexed += 1;
            }
        }
    }

    /// The transaction is durable: no operation relates to it any more.
    pub(super) fn forget_objects(&mut self, id: TxnId, objects: &ObjectList) {
        self.objects.runs.retain(|run| run.txn != id);
        for (object, _) in &objects.list[..objects.indexed] {
            if let Some(namers) = self.objects.index.get_mut(object) {
                namers.retain(|namer| namer.txn != id);
                if namers.is_empty() {
                    self.objects.index.remove(object);
                }
            }
        }
    }

    /// See [`Journal::stream_of`](crate::Journal::stream_of).
    pub(crate) fn stream_of(&mut self, object: Object) -> Option<StreamId> {
        self.index_objects();
        let namers = self.namers(object).into_iter();
        let newest = namers.max_by_key(|namer| (namer.access, namer.age));
        newest.map(|namer| namer.stream)
    }
}

impl Objects {
    /// Whether each operation is indexed.
    pub(super) fn are_indexed(&self) -> bool {
        self.indexing
    }

    /// Enters a namer; returns whether its transaction is new to the object.
    fn enter(&mut self, object: Object, namer: Namer) -> bool {
        let namers = self.index.entry(object).or_default();
        match namers.iter_mut().find(|known| known.txn == namer.txn) {
            Some(known) => {
                // The newest exclusive one counts.
                if (namer.access, namer.age) >= (known.access, known.age) {
                    (known.stream, known.age) = (namer.stream, namer.age);
                }
                known.access = known.access.max(namer.access);
                false
            }
            None => {
                namers.push(namer);
                true
            }
        }
    }
}
