//! The core's way from running to a batch: the transactions of a sync, freezing, data written
//! around the log, and the choice of the next record's transactions.

use super::objects::ObjectList;
use super::{
    Batch, Core, DataRun, DataState, Phase, Request, Run, SENT_MAX, Txn, TxnId, batch_place,
    keys_within,
};
use crate::cache::Cache;
use crate::policy::{Along, sends_beside};
use crate::probe::Decision;
use crate::record::{Covered, RECORD_BLOCKS_MAX};
use crate::{COVERED_BLOCKS_MAX, Faults, Object, StreamId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use steadfast_block::BlockNo;

/// Keys that a running transaction gave up, to be closed.
pub(crate) struct Attached {
    pub(crate) id: TxnId,
    /// A stream of the transaction.
    pub(crate) stream: StreamId,
    pub(crate) keys: Vec<u64>,
    /// Log bytes reserved for them.
    log_bytes: u64,
}

impl Core {
    // ---- closing ---------------------------------------------------------------------

    /// Running transactions that a sync of the streams and the objects concerns, and closed ones.
    pub(crate) fn concerned(&mut self, streams: &[StreamId], objects: &[Object]) -> Vec<TxnId> {
        let others = !objects.is_empty() && !streams.iter().any(|s| self.streams.is_alone(*s));
        if others {
            self.index_objects();
        }
        let mut ids = BTreeSet::new();
        for stream in streams {
            ids.extend(self.running.get(stream));
            let closed = self.last_closed.get(stream);
            ids.extend(closed.filter(|id| self.txns.contains_key(id)));
        }
        for object in objects.iter().filter(|_| others) {
            ids.extend(self.namers(*object).iter().map(|namer| namer.txn));
        }
        ids.into_iter().collect()
    }

    /// All transactions that are not durable.
    pub(crate) fn everything(&mut self) -> Vec<TxnId> {
        self.txns.keys().copied().collect()
    }

    /// Whether the transaction's data takes the device a while.
    pub(crate) fn has_much_data(&self, id: TxnId) -> bool {
        let txn = self.txns.get(&self.resolve(id));
        let blocks = |txn: &Txn| -> u64 { txn.data.iter().map(|run| run.1.len() as u64).sum() };
        txn.is_some_and(|txn| blocks(txn) > COVERED_BLOCKS_MAX)
    }

    pub(crate) fn any_running(&self, ids: &[TxnId]) -> bool {
        ids.iter().any(|id| self.is_running(self.resolve(*id)))
    }

    /// Number of keys that the running ones of `ids` have attached.
    pub(crate) fn attached(&self, ids: &[TxnId]) -> usize {
        let ids: BTreeSet<TxnId> = ids.iter().map(|id| self.resolve(*id)).collect();
        let running = ids.iter().filter_map(|id| self.txns.get(id));
        let running = running.filter(|txn| txn.phase == Phase::Running);
        running.map(|txn| txn.attached.len()).sum()
    }

    /// Takes at most `most` attached keys from the first running transaction of `ids` that has any.
    pub(crate) fn take_attached(&mut self, ids: &[TxnId], most: usize) -> Option<Attached> {
        for id in ids {
            let id = self.resolve(*id);
            if let Some(txn) = self.txns.get_mut(&id)
                && txn.phase == Phase::Running
                && !txn.attached.is_empty()
            {
                let rest = txn.attached.keys().nth(most).copied();
                let rest = rest.map(|key| txn.attached.split_off(&key));
                let taken = std::mem::replace(&mut txn.attached, rest.unwrap_or_default());
                return Some(Attached {
                    id,
                    stream: txn.streams.keys().next().copied().unwrap_or_default(),
                    log_bytes: taken.values().sum(),
                    keys: taken.into_keys().collect(),
                });
            }
        }
        None
    }

    /// The delayed work of the keys is in the transaction: nothing is held for it any more.
    pub(crate) fn was_attached(&mut self, attached: &Attached) {
        let id = self.resolve(attached.id);
        if let Some(txn) = self.txns.get_mut(&id) {
            self.reserved_blocks -= txn.need_blocks();
            txn.held_bytes = txn.held_bytes.saturating_sub(attached.log_bytes);
            self.reserved_blocks += txn.need_blocks();
        }
        self.stats.largest_hold = self.stats.largest_hold.max(attached.keys.len() as u64);
    }

    /// Closes the running ones of `ids`: from now on they own their bytes. Operations may be
    /// open; their changes in the cache are no part of a transaction before they commit.
    pub(crate) fn freeze(&mut self, ids: &[TxnId], cache: &Cache) {
        let mut resolved: Vec<TxnId> = ids.iter().map(|id| self.resolve(*id)).collect();
        resolved.sort_unstable();
        resolved.dedup();
        for id in resolved {
            let Some(txn) = self.txns.get_mut(&id) else {
                continue;
            };
            if txn.phase != Phase::Running {
                continue;
            }
            self.reserved_blocks -= txn.need_blocks();
            txn.held_bytes = 0;
            self.reserved_blocks += txn.need_blocks();
            // A block that is written around the log and patched too: the patch is in the data.
            for (first, blocks) in &mut txn.data {
                for at in keys_within(&txn.blocks, (*first, blocks.len() as u64)) {
                    let Some(patched) = txn.blocks.remove(&at) else {
                        continue;
                    };
                    let image = &mut blocks[(at - first.0) as usize];
                    cache.with(BlockNo(at), |entry| {
                        let values = &entry.current;
                        patched.patch.apply(values, Arc::make_mut(image));
                        entry.committed = Arc::clone(image);
                        entry.unhold(BlockNo(at), patched.holds);
                    });
                    if let Some(ids) = self.dirty.get_mut(&at) {
                        ids.retain(|t| *t != id);
                        if ids.is_empty() {
                            self.dirty.remove(&at);
                        }
                    }
                }
            }
            for (at, block) in &mut txn.blocks {
                if block.patch.revoke {
                    continue;
                }
                let logged = u32::from(self.logged.contains_key(at));
                cache.with(BlockNo(*at), |entry| {
                    block.values = Some(Arc::clone(&entry.current));
                    // Every operation and every transaction with a part in the image holds it.
                    let alone = entry.holds == block.holds + logged;
                    block.alone_on = alone.then(|| Arc::clone(&entry.committed));
                });
                debug_assert!(block.values.is_some());
            }
            let data = if txn.data.is_empty() {
                DataState::Ready(Vec::new())
            } else {
                DataState::Pending
            };
            txn.phase = Phase::Closed(data);
            self.probe.tell(|| Decision::Frozen(txn.names.clone()));
            for stream in txn.streams.keys() {
                self.running.remove(stream);
                self.last_closed.insert(*stream, id);
                self.streams.closed(*stream);
            }
            self.closed.push_back(id);
            self.stats.transactions += 1;
        }
    }

    // ---- data written around the log ---------------------------------------------------

    /// Everything that must be laid before or with `ids`, themselves included.
    pub(super) fn closure(&self, ids: &[TxnId]) -> BTreeSet<TxnId> {
        let mut all = BTreeSet::new();
        let mut stack: Vec<TxnId> = ids.iter().map(|id| self.resolve(*id)).collect();
        while let Some(id) = stack.pop() {
            if let Some(txn) = self.txns.get(&id)
                && all.insert(id)
            {
                stack.extend(txn.after.iter().map(|id| self.resolve(*id)));
            }
        }
        all
    }

    /// Takes on the data of one closed transaction that `ids` need written.
    pub(crate) fn claim_data(&mut self, ids: &[TxnId]) -> Option<(TxnId, Vec<DataRun>)> {
        for id in self.closure(ids) {
            if let Some(txn) = self.txns.get_mut(&id)
                && txn.phase == Phase::Closed(DataState::Pending)
            {
                txn.phase = Phase::Closed(DataState::Writing);
                return Some((id, txn.data.clone()));
            }
        }
        None
    }

    /// The transaction's data is written (`covered`) or durable (nothing covered).
    pub(crate) fn data_written(&mut self, id: TxnId, covered: Vec<Covered>) {
        if let Some(txn) = self.txns.get_mut(&id) {
            txn.phase = Phase::Closed(DataState::Ready(covered));
        }
    }

    // ---- committing --------------------------------------------------------------------

    /// Whether all of `ids` are acknowledged.
    pub(crate) fn acknowledged(&self, ids: &[TxnId]) -> bool {
        ids.iter()
            .all(|id| !self.txns.contains_key(&self.resolve(*id)))
    }

    /// Whether all of `ids` are acknowledged, or in batches that the device has taken.
    pub(crate) fn sent(&self, ids: &[TxnId]) -> bool {
        let newest = self.in_flight - u64::from(self.committing);
        let sent = |txn: &Txn| txn.phase == Phase::Committing && txn.batch <= newest;
        ids.iter()
            .all(|id| self.txns.get(&self.resolve(*id)).is_none_or(sent))
    }

    /// Whether all of `ids` that are left are in batches.
    pub(crate) fn all_in_batches(&self, ids: &[TxnId]) -> bool {
        let in_batch = |txn: &Txn| txn.phase == Phase::Committing;
        ids.iter()
            .all(|id| self.txns.get(&self.resolve(*id)).is_none_or(in_batch))
    }

    /// Sequence of the batch that comes after those that were begun.
    pub(crate) fn batch_to_come(&self) -> u64 {
        match self.committing {
            true => self.in_flight + 1,
            false => self.next_seq,
        }
    }

    /// Sequence of the batch that is to hold `ids`: the newest one that has some of them, if all that are left of them
    /// are in batches, else the next.
    pub(crate) fn batch_of(&self, ids: &[TxnId]) -> u64 {
        let to_come = self.batch_to_come();
        let batch = |id: &TxnId| {
            let txn = self.txns.get(&self.resolve(*id))?;
            Some(match txn.phase {
                Phase::Committing => txn.batch,
                _ => to_come,
            })
        };
        ids.iter().filter_map(batch).max().unwrap_or(to_come)
    }

    /// Whether a batch may be begun.
    pub(crate) fn may_lead(&self) -> bool {
        !self.committing && self.sent.len() < SENT_MAX
    }

    /// Whether a batch for this request is better put off until one of those on their way is durable: few threads wait
    /// for it yet. See [`sends_beside`].
    pub(crate) fn waits_for_company(&self, request: Request<'_>) -> bool {
        let here = self.batch_waiters[batch_place(self.batch_to_come())] + 1;
        matches!(request, Request::Sync(_))
            && !self.sent.is_empty()
            && !sends_beside(here, self.crowd)
    }

    pub(crate) fn closed_waiting(&self) -> Option<TxnId> {
        self.closed.front().copied()
    }

    /// Chooses the next batch: the ready transactions that `ids` need, and others up to a bound, so that small
    /// commits share a flush and none carries another stream's masses. If nothing of `ids` is ready, the oldest that is goes.
    /// `None` if nothing is ready, or `empty` was not asked for.
    pub(crate) fn next_batch(
        &mut self,
        ids: &[TxnId],
        empty: bool,
        faults: &Faults,
    ) -> Option<Batch> {
        debug_assert!(self.may_lead());
        let mut chosen: Vec<TxnId> = Vec::new();
        let mut covered: Vec<Covered> = Vec::new();
        let mut need = 0u64;
        let room = self.log_free().min(RECORD_BLOCKS_MAX);
        let needed = self.closure(ids);
        let mut passed_over: Vec<TxnId> = Vec::new();
        let mut along = Along::new(faults.carry_all);
        // Transactions that are not chosen, in order; for each chosen one, how many of them closed before it.
        let mut waiting: Vec<TxnId> = Vec::new();
        let mut overtaken: Vec<usize> = Vec::new();
        let mut own = needed.iter().any(|id| {
            let txn = &self.txns[id];
            self.runs_if_ready(txn, &[], &[], u64::MAX).is_some()
        });
        for id in &self.closed {
            let txn = &self.txns[id];
            let room = if chosen.is_empty() {
                u64::MAX
            } else {
                room - need
            };
            let ready = self.runs_if_ready(txn, &chosen, &covered, room);
            let due = Along::is_due(txn.passed_over);
            let must = needed.contains(id) || due || !own && !empty;
            match ready.filter(|_| must || along.takes(txn.log_bytes)) {
                Some(runs) => {
                    own = true;
                    need += txn.need_blocks();
                    covered.extend(runs.iter().cloned());
                    chosen.push(*id);
                    overtaken.push(waiting.len());
                }
                None => {
                    if ready.is_some() {
                        passed_over.push(*id);
                    }
                    waiting.push(*id);
                }
            }
        }
        for id in passed_over {
            if let Some(txn) = self.txns.get_mut(&id) {
                txn.passed_over += 1;
            }
        }
        // An empty record must not take space that admitted operations have reserved.
        if chosen.is_empty() && (!empty || self.log_free() <= self.reserved_blocks) {
            return None;
        }
        let seq = self.next_seq;
        let txns: Vec<(TxnId, Txn)> = chosen
            .iter()
            .filter_map(|id| Some((*id, self.txns.get_mut(id).map(|txn| take_body(txn, seq))?)))
            .collect();
        for ((_, overtaker), first) in txns.iter().zip(overtaken) {
            for id in waiting[..first].iter().filter(|_| !faults.keep_overtaken) {
                self.give_up_newest(*id, overtaker);
            }
        }
        self.committing = true;
        self.in_flight = seq;
        Some(Batch {
            seq,
            pos: self.head_pos,
            flushed_seq: self.acked_seq,
            txns,
            covered,
            blocks: 0,
            late: None,
        })
    }

    /// The covered runs of a closed transaction that can be laid after the chosen ones, in `room`
    /// blocks: its data is written, and the transactions that it follows are laid or chosen.
    fn runs_if_ready<'a>(
        &self,
        txn: &'a Txn,
        chosen: &[TxnId],
        covered: &[Covered],
        room: u64,
    ) -> Option<&'a [Covered]> {
        let Phase::Closed(DataState::Ready(runs)) = &txn.phase else {
            return None;
        };
        // The transactions of a batch are laid: no two batches are written at a time.
        let follows = |id: &TxnId| {
            let id = self.resolve(*id);
            let waits = |txn: &Txn| txn.phase != Phase::Committing;
            self.txns.get(&id).is_some_and(waits) && !chosen.contains(&id)
        };
        // A record never both covers and patches a block.
        let patches_covered =
            |c: &Covered| !keys_within(&txn.blocks, (c.at, u64::from(c.count))).is_empty();
        let waits = txn.after.iter().any(follows)
            || covered.iter().any(patches_covered)
            || txn.need_blocks() > room;
        (!waits).then_some(runs)
    }

    /// A transaction that is laid overtakes `id`, which closed before it: newest values that both
    /// touched without relating are newer in the overtaker.
    fn give_up_newest(&mut self, id: TxnId, overtaker: &Txn) {
        let Some(waiting) = self.txns.get_mut(&id) else {
            return;
        };
        for (at, theirs) in &overtaker.blocks {
            if theirs.patch.latest.is_some()
                && let Some(mine) = waiting.blocks.get_mut(at)
            {
                mine.patch.give_up_to(&theirs.patch);
            }
        }
    }

    /// The record of the batch takes this many blocks.
    pub(crate) fn laid(&mut self, batch: &Batch, blocks: u64) {
        debug_assert!(
            blocks <= self.log_free(),
            "a record overtakes the durable tail"
        );
        self.next_seq += 1;
        self.head_pos += blocks;
        self.laid_blocks = blocks;
        self.probe.tell(|| {
            let txns = || batch.txns.iter().map(|(_, txn)| txn);
            let around = |txn: &Txn| -> Vec<Run> {
                let runs = txn.data.iter();
                runs.map(|(at, blocks)| (*at, blocks.len() as u64))
                    .collect()
            };
            Decision::Laid {
                names: txns().flat_map(|txn| txn.names.iter().copied()).collect(),
                frees: txns().flat_map(|txn| txn.frees.iter().copied()).collect(),
                around: txns().flat_map(around).collect(),
            }
        });
        for (id, txn) in &batch.txns {
            self.reserved_blocks -= txn.need_blocks();
            if let Some(kept) = self.txns.get_mut(id) {
                // The reservation is spent.
                kept.log_bytes = 0;
                self.reserved_blocks += kept.need_blocks();
            }
        }
    }
}

/// Moves a closed transaction's contents out for the committer; the core keeps its accounts.
fn take_body(txn: &mut Txn, batch: u64) -> Txn {
    txn.phase = Phase::Committing;
    txn.batch = batch;
    Txn {
        commit_mode: txn.commit_mode,
        streams: BTreeMap::new(),
        requesters: SmallVec::new(),
        phase: Phase::Committing,
        blocks: std::mem::take(&mut txn.blocks),
        data: std::mem::take(&mut txn.data),
        frees: std::mem::take(&mut txn.frees),
        attached: BTreeMap::new(),
        log_bytes: txn.log_bytes,
        held_bytes: txn.held_bytes,
        data_blocks: txn.data_blocks,
        objects: ObjectList::default(),
        names: std::mem::take(&mut txn.names),
        notes: std::mem::take(&mut txn.notes),
        after: BTreeSet::new(),
        merged: Vec::new(),
        passed_over: 0,
        was_full: false,
        batch,
    }
}
