//! The core's records on streams: the work of each, its waits, the streams that it took along, when it is due,
//! and which streams merged why.
//!
//! Invariants: the counts of a stream survive every merge; the records hold one entry for each stream that did
//! something since it was last forgotten, each of bounded size, and at most [`RECORDS_MAX`] for streams that have
//! nothing uncommitted and no interval of their own, or twice as many as for the others; `live` is the number of streams with
//! uncommitted operations; `due` has an entry for each stream with operations in a running transaction.

use super::{Core, Txn, TxnId};
use crate::{
    MERGES_KEPT, Merge, MergeCounts, Object, StreamCounts, StreamId, StreamTotals, Together,
};
use foldhash::fast::FixedState;
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Most streams of which one remembers that it waited for them; of more, those with the fewest times
/// are forgotten.
const WAITED_FOR_MAX: usize = 64;

/// Books at which those of streams that did nothing for the longest time are closed: a front end may have a stream for each
/// file, and never say that it is done with one.
const RECORDS_MAX: usize = 4096;

/// Share of a stream in a transaction.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Share {
    /// Its operations.
    pub(crate) operations: u64,
    /// Their weight when the transaction's bytes are divided among its streams.
    pub(crate) weight: u64,
}

impl Share {
    pub(crate) fn add(&mut self, other: Share) {
        self.operations += other.operations;
        self.weight += other.weight;
    }
}

/// Reason of a commit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'a> {
    /// Callers of these streams wait.
    Sync(&'a [StreamId]),
    /// The commit intervals of these streams have passed.
    Interval(&'a [StreamId]),
    /// An operation of the stream waits for room.
    Room(StreamId),
    /// No caller in particular.
    Housekeeping,
}

#[derive(Default)]
struct StreamRecord {
    counts: StreamCounts,
    interval: Option<Duration>,
    /// Time of its first operation in its running transaction, and its entry of `due`.
    since: Option<(Duration, Duration)>,
    /// Time of its last use, in uses of all records.
    used: u64,
}

impl StreamRecord {
    fn waits_for(&mut self, other: StreamId) {
        let waited = &mut self.counts.waited_for;
        if let Some((_, times)) = waited.iter_mut().find(|(stream, _)| *stream == other) {
            *times += 1;
            return;
        }
        if waited.len() >= WAITED_FOR_MAX {
            let fewest = (0..waited.len()).min_by_key(|i| waited[*i].1);
            fewest.map(|fewest| waited.swap_remove(fewest));
        }
        waited.push((other, 1));
    }
}

/// The records.
pub(crate) struct Streams {
    records: HashMap<StreamId, StreamRecord, FixedState>,
    uses: u64,
    /// Number of records at which some are closed.
    records_max: usize,
    /// Streams with uncommitted operations.
    live: usize,
    due: BTreeSet<(Duration, StreamId)>,
    /// The interval of streams that have none of their own.
    interval: Duration,
    merges: VecDeque<Merge>,
    totals: StreamTotals,
}

impl Streams {
    pub(crate) fn new(interval: Duration) -> Streams {
        Streams {
            records: HashMap::default(),
            uses: 0,
            records_max: RECORDS_MAX,
            live: 0,
            due: BTreeSet::new(),
            interval,
            merges: VecDeque::new(),
            totals: StreamTotals::default(),
        }
    }

    /// The record of a stream, a new one if need be.
    fn record(&mut self, stream: StreamId) -> &mut StreamRecord {
        if self.records.len() >= self.records_max && !self.records.contains_key(&stream) {
            self.close_books();
        }
        self.uses += 1;
        let record = self.records.entry(stream).or_default();
        record.used = self.uses;
        record
    }

    /// Closes records of streams that did nothing for the longest time.
    fn close_books(&mut self) {
        let idle =
            |record: &StreamRecord| record.counts.uncommitted == 0 && record.interval.is_none();
        let mut used: Vec<u64> = (self.records.values())
            .filter(|record| idle(record))
            .map(|record| record.used)
            .collect();
        let kept = used.len().min(RECORDS_MAX / 2);
        let first = used.len() - kept;
        if kept > 0 {
            let (_, oldest_kept, _) = used.select_nth_unstable(first);
            let oldest_kept = *oldest_kept;
            self.records
                .retain(|_, record| !idle(record) || record.used >= oldest_kept);
        }
        self.records_max = (2 * self.records.len()).max(RECORDS_MAX);
    }

    /// Whether no stream but this one has uncommitted operations.
    pub(crate) fn is_alone(&self, stream: StreamId) -> bool {
        match self.live {
            0 => true,
            1 => (self.records.get(&stream)).is_some_and(|record| record.counts.uncommitted > 0),
            _ => false,
        }
    }

    /// Number of streams with uncommitted operations.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// An operation of the stream that was committed in memory at `now`.
    pub(crate) fn operation(&mut self, stream: StreamId, now: Duration) {
        let interval = self.interval;
        let record = self.record(stream);
        record.counts.operations += 1;
        record.counts.uncommitted += 1;
        let first = record.counts.uncommitted == 1;
        if record.since.is_none() {
            let due = now.saturating_add(record.interval.unwrap_or(interval));
            record.since = Some((now, due));
            self.due.insert((due, stream));
        }
        self.live += usize::from(first);
    }

    /// The stream's running transaction closed.
    pub(crate) fn closed(&mut self, stream: StreamId) {
        let since = (self.records.get_mut(&stream)).and_then(|record| record.since.take());
        if let Some((_, due)) = since {
            self.due.remove(&(due, stream));
        }
    }

    /// Counts these operations of the stream as durable, with these bytes.
    fn durable(&mut self, stream: StreamId, operations: u64, bytes: u64) {
        if let Some(record) = self.records.get_mut(&stream) {
            let before = record.counts.uncommitted;
            record.counts.uncommitted = before.saturating_sub(operations);
            record.counts.own_bytes += bytes;
            self.totals.own_bytes += bytes;
            self.live -= usize::from(before > 0 && record.counts.uncommitted == 0);
        }
    }

    /// The streams whose commit interval has passed at `now`.
    pub(crate) fn due(&self, now: Duration) -> Vec<StreamId> {
        let passed = self.due.iter().take_while(|(due, _)| *due <= now);
        passed.map(|(_, stream)| *stream).collect()
    }

    /// End of the next commit interval.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The shortest commit interval of all.
    pub(crate) fn shortest_interval(&self) -> Duration {
        let own = self.records.values().filter_map(|record| record.interval);
        own.fold(self.interval, Duration::min)
    }

    pub(crate) fn set_interval(&mut self, stream: StreamId, interval: Option<Duration>) {
        let usual = self.interval;
        let record = self.record(stream);
        record.interval = interval;
        if let Some((since, due)) = &mut record.since {
            let before = *due;
            *due = since.saturating_add(interval.unwrap_or(usual));
            let due = *due;
            self.due.remove(&(before, stream));
            self.due.insert((due, stream));
        }
    }

    pub(crate) fn merged(&mut self, streams: [StreamId; 2], cause: Together) {
        let counts: &mut MergeCounts = &mut self.totals.merges;
        let count = match cause {
            Together::Object(Object::File(_)) => &mut counts.file,
            Together::Object(Object::Name(..)) => &mut counts.name,
            Together::Object(Object::Directory(_)) => &mut counts.directory,
            Together::Object(Object::Block(_)) => &mut counts.block,
            Together::Object(Object::Topology) => &mut counts.topology,
            Together::Object(Object::Key(..)) => &mut counts.key,
            Together::Bytes(_) => &mut counts.bytes,
            Together::Life(_) => &mut counts.life,
        };
        *count += 1;
        if self.merges.len() >= MERGES_KEPT {
            self.merges.pop_front();
        }
        self.merges.push_back(Merge { streams, cause });
    }

    pub(crate) fn counts(&self) -> Vec<(StreamId, StreamCounts)> {
        let did =
            |record: &&StreamRecord| record.counts.operations > 0 || record.counts.commits > 0;
        let mut counts: Vec<_> = (self.records.iter())
            .filter(|(_, record)| did(record))
            .map(|(stream, record)| (*stream, record.counts.clone()))
            .collect();
        counts.sort_unstable_by_key(|(stream, _)| *stream);
        counts
    }

    pub(crate) fn merges(&self) -> Vec<Merge> {
        self.merges.iter().copied().collect()
    }

    pub(crate) fn totals(&self) -> StreamTotals {
        StreamTotals {
            known: self.records.len() as u64,
            live: self.live as u64,
            ..self.totals
        }
    }

    pub(crate) fn forget(&mut self, stream: StreamId) -> bool {
        let busy = |record: &StreamRecord| record.counts.uncommitted > 0;
        if self.records.get(&stream).is_some_and(busy) {
            return false;
        }
        self.records.remove(&stream);
        true
    }
}

impl Core {
    /// Notes which streams asked that `ids` be committed, and which they wait for.
    pub(crate) fn requested(&mut self, request: Request<'_>, ids: &[TxnId]) {
        let (requesters, waits) = match request {
            Request::Sync(streams) => (streams, true),
            Request::Interval(streams) => (streams, false),
            Request::Room(stream) => {
                let needed = self.streams_of(ids);
                self.wait_for(stream, &needed);
                return;
            }
            Request::Housekeeping => return,
        };
        let needed: SmallVec<[TxnId; 4]> = self.closure(ids).into_iter().collect();
        if needed.is_empty() {
            return;
        }
        for id in needed {
            if let Some(txn) = self.txns.get_mut(&id) {
                for requester in requesters {
                    if !txn.requesters.contains(requester) {
                        txn.requesters.push(*requester);
                    }
                }
            }
        }
        let others = if waits {
            self.streams_of(ids)
        } else {
            Vec::new()
        };
        for requester in requesters {
            self.streams.record(*requester).counts.commits += 1;
            self.streams.totals.commits += 1;
            self.wait_for(*requester, &others);
        }
    }

    fn wait_for(&mut self, stream: StreamId, others: &[StreamId]) {
        let others = others.iter().filter(|other| **other != stream);
        for other in others {
            self.streams.record(stream).waits_for(*other);
            self.streams.totals.waits += 1;
        }
    }

    /// Streams of the transactions that must be laid for `ids`; not more than are remembered.
    fn streams_of(&self, ids: &[TxnId]) -> Vec<StreamId> {
        let needed = self.closure(ids);
        let mut streams: Vec<StreamId> = (needed.iter())
            .filter_map(|id| self.txns.get(id))
            .flat_map(|txn| txn.streams.keys().copied().take(WAITED_FOR_MAX))
            .take(WAITED_FOR_MAX)
            .collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// The transaction is durable: `bytes` reached the device for it.
    pub(super) fn account(&mut self, txn: &Txn, bytes: u64) {
        let weights: u64 = txn.streams.values().map(|share| share.weight).sum();
        let mut left = (bytes, weights);
        let mut parts: Vec<(StreamId, u64)> = Vec::with_capacity(txn.streams.len());
        for (stream, share) in &txn.streams {
            // Of the rest, so that the parts add up.
            let part = match left.1 {
                0 => left.0,
                weights => {
                    let part = u128::from(left.0) * u128::from(share.weight) / u128::from(weights);
                    u64::try_from(part).unwrap_or(u64::MAX)
                }
            };
            left = (left.0 - part, left.1 - share.weight);
            self.streams.durable(*stream, share.operations, part);
            parts.push((*stream, part));
        }
        for requester in &txn.requesters {
            let own = parts.binary_search_by_key(requester, |(stream, _)| *stream);
            let own = own.map_or(0, |i| parts[i].1);
            if let Some(record) = self.streams.records.get_mut(requester) {
                record.counts.carried_bytes += bytes - own;
                self.streams.totals.carried_bytes += bytes - own;
            }
        }
    }
}
