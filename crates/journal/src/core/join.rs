//! The core's way from an operation to a running transaction: which transactions it relates to, merging, and
//! the blocks and objects that the transaction owns afterwards.

use super::objects::{Namer, ObjectList};
use super::streams::Share;
use super::{
    Around, BlockMap, Core, Mark, OpBlock, OpChanges, Phase, Run, Txn, TxnBlock, TxnId, keys_within,
};
use crate::cache::Cache;
use crate::lanes::LaneId;
use crate::patch::Patch;
use crate::record::ENTRY_BYTES;
use crate::{Access, Error, Faults, Kind, StreamId, Together};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use steadfast_block::{BLOCK_SIZE, BlockNo};

impl Core {
    fn running_txn(&mut self, stream: StreamId) -> TxnId {
        if let Some(&id) = self.running.get(&stream) {
            return id;
        }
        let id = TxnId(self.next_txn);
        self.next_txn += 1;
        let after = self
            .last_closed
            .get(&stream)
            .filter(|id| self.txns.contains_key(id));
        let txn = Txn {
            commit_mode: self.limits.commit_mode,
            streams: BTreeMap::from([(stream, Share::default())]),
            requesters: SmallVec::new(),
            phase: Phase::Running,
            blocks: BlockMap::default(),
            data: Vec::new(),
            frees: Vec::new(),
            attached: BTreeMap::new(),
            log_bytes: 0,
            held_bytes: 0,
            data_blocks: 0,
            objects: ObjectList::default(),
            names: Vec::new(),
            notes: Vec::new(),
            after: after.copied().into_iter().collect(),
            merged: Vec::new(),
            passed_over: 0,
            was_full: false,
            batch: 0,
        };
        self.reserved_blocks += txn.need_blocks();
        self.txns.insert(id, txn);
        self.running.insert(stream, id);
        id
    }

    /// Puts a finished operation into its stream's running transaction, atomically. Related
    /// running transactions merge; closed ones come before. Its reservation stays.
    pub(crate) fn commit(&mut self, mut changes: OpChanges, cache: &Cache) {
        self.stats.operations += 1;
        let stream = changes.stream;
        let mut id = match changes.closing {
            Some(closing) => self.resolve(closing),
            // It depends on its stream at most.
            None if changes.is_empty() => return,
            None => self.running_txn(stream),
        };
        let alone = self.streams.is_alone(stream);
        if !alone {
            self.index_objects();
        }
        self.expand_frees(&mut changes);
        if !alone || self.objects.are_indexed() {
            id = self.relate_operation(id, &changes);
        }
        for (object, access) in std::mem::take(&mut changes.relations) {
            self.register(id, object, access, stream);
        }
        let share = changes.share();
        for block in std::mem::take(&mut changes.blocks) {
            self.join(id, block, stream, cache);
        }
        if let Some(lane) = changes.lane {
            self.mark(stream, lane, changes.number, id);
        }
        if changes.closing.is_none() {
            self.streams.operation(stream, changes.since);
        }
        let Some(txn) = self.txns.get_mut(&id) else {
            return;
        };
        if changes.closing.is_none() {
            txn.streams.entry(stream).or_default().add(share);
        }
        let before = txn.need_blocks();
        txn.names.push(changes.name);
        txn.notes.extend(changes.note.take());
        txn.frees.append(&mut changes.frees);
        for (at, blocks) in &changes.data {
            let run = Around {
                blocks: blocks.len() as u64,
                txn: id,
                stream,
            };
            self.around.insert(at.0, run);
            if changes.closing.is_none() {
                txn.data_blocks += run.blocks;
                self.uncommitted_blocks += run.blocks;
            }
            txn.log_bytes += crate::record::COVERED_BYTES as u64;
        }
        txn.data.append(&mut changes.data);
        for (key, credits) in changes.attached {
            *txn.attached.entry(key).or_default() += credits.log_bytes;
            txn.held_bytes += credits.log_bytes;
            txn.data_blocks += credits.data_blocks;
            self.uncommitted_blocks += credits.data_blocks;
        }
        self.reserved_blocks += txn.need_blocks();
        self.reserved_blocks -= before;
    }

    /// Relates an operation of `id` to everything uncommitted that it builds on, or that builds on it.
    fn relate_operation(&mut self, mut id: TxnId, changes: &OpChanges) -> TxnId {
        let stream = changes.stream;
        for (object, access) in &changes.relations {
            let exclusive =
                |namer: &&Namer| namer.access == Access::Exclusive || *access == Access::Exclusive;
            for other in self.namers(*object).iter().filter(exclusive) {
                let streams = [stream, other.stream];
                id = self.relate(id, other.txn, streams, Together::Object(*object));
            }
        }
        for run in changes.frees.iter().copied() {
            id = self.relate_to_writers_around(id, stream, run);
        }
        for block in &changes.blocks {
            id = self.relate_to_writers_around(id, stream, (block.at, 1));
            if self.limits.faults.bytes_unrelated {
                continue;
            }
            let touching = match self.dirty.get(&block.at.0) {
                Some(ids) if ids[..] != [id] => ids.clone(),
                _ => continue,
            };
            for other in touching {
                let other = self.resolve(other);
                // A transaction whose blocks are with the committer is in flight: the next
                // record comes after it anyway.
                let theirs = self.txns.get(&other).and_then(|t| {
                    let theirs = t.blocks.get(&block.at.0)?;
                    block
                        .meets(&theirs.patch)
                        .map(|meets| (meets, theirs.stream))
                });
                if other != id
                    && let Some((cause, theirs)) = theirs
                {
                    id = self.relate(id, other, [stream, theirs], cause);
                }
            }
        }
        id
    }

    /// Notes that the stream's operation `number` of the lane is in a transaction.
    fn mark(&mut self, stream: StreamId, lane: LaneId, number: u64, id: TxnId) {
        let merged = &self.merged_into;
        let marks = self.marks.entry(stream).or_default();
        let known = |mark: &&mut Mark| {
            mark.lane == lane && merged.get(&mark.id).copied().unwrap_or(mark.id) == id
        };
        match marks.iter_mut().rev().find(known) {
            Some(mark) => mark.last = number,
            None => marks.push(Mark {
                lane,
                first: number,
                last: number,
                id,
            }),
        }
    }

    /// A block of the run that has patches, in the log or on their way there: replay would put
    /// them over data written around the log.
    pub(crate) fn kept_from_around(&self, (first, count): Run) -> Option<BlockNo> {
        let logged = self.logged.range(first.0..first.0 + count);
        let found = logged.map(|(at, _)| *at).next();
        let dirty = || keys_within(&self.dirty, (first, count)).into_iter().next();
        found.or_else(dirty).map(BlockNo)
    }

    /// Blocks of the run that the log or a transaction knows: freeing them takes a revoke each.
    pub(crate) fn count_known(&self, (first, count): Run) -> u64 {
        let mut known: BTreeSet<u64> = keys_within(&self.dirty, (first, count))
            .into_iter()
            .collect();
        known.extend(
            self.logged
                .range(first.0..first.0 + count)
                .map(|(at, _)| *at),
        );
        known.len() as u64
    }

    /// Adds the blocks of the run that must not be written in place (module `place`).
    pub(crate) fn kept_from_place(&self, run: Run, faults: &Faults, kept: &mut BTreeSet<BlockNo>) {
        let end = run.0.0 + run.1;
        if !faults.in_place_over_logged {
            let logged = self.logged.range(run.0.0..end);
            kept.extend(logged.map(|(at, _)| BlockNo(*at)));
        }
        kept.extend(keys_within(&self.dirty, run).into_iter().map(BlockNo));
        let around = self.around.range(..end).rev();
        let mut runs: Vec<Run> = around
            .take_while(|(at, other)| *at + other.blocks > run.0.0)
            .map(|(at, other)| (BlockNo(*at), other.blocks))
            .collect();
        if !faults.in_place_unproved {
            runs.extend(self.unproved.iter().copied());
        }
        for (at, count) in runs {
            let both = at.0.max(run.0.0)..(at.0 + count).min(end);
            kept.extend(both.map(BlockNo));
        }
    }

    /// An operation that changes or frees blocks that an uncommitted transaction writes around the log depends on it.
    fn relate_to_writers_around(
        &mut self,
        mut id: TxnId,
        stream: StreamId,
        (first, count): Run,
    ) -> TxnId {
        if self.around.is_empty() {
            return id;
        }
        let end = first.0 + count;
        // Runs are disjoint: of those that begin before the end, the last ones reach in.
        let owners: SmallVec<[(u64, TxnId, StreamId); 2]> = self
            .around
            .range(..end)
            .rev()
            .take_while(|(at, run)| *at + run.blocks > first.0)
            .map(|(at, run)| (*at, run.txn, run.stream))
            .collect();
        for (at, owner, theirs) in owners {
            let at = BlockNo(at.max(first.0));
            id = self.relate(id, owner, [stream, theirs], Together::Life(at));
        }
        id
    }

    /// Freed blocks that the log or a transaction knows get a revoke of their own.
    fn expand_frees(&self, changes: &mut OpChanges) {
        let mut revoked: BTreeSet<u64> = BTreeSet::new();
        for &(at, count) in &changes.frees {
            revoked.extend(keys_within(&self.dirty, (at, count)));
            let logged = self.logged.range(at.0..at.0 + count);
            revoked.extend(logged.map(|(block, _)| *block));
        }
        for block in revoked {
            changes.blocks.push(OpBlock {
                at: BlockNo(block),
                kind: Kind::Data,
                zero: false,
                revoke: true,
                edits: SmallVec::new(),
            });
        }
    }

    /// `id` (running) depends on `other`: one transaction if it runs too, else one after the other.
    fn relate(
        &mut self,
        id: TxnId,
        other: TxnId,
        streams: [StreamId; 2],
        cause: Together,
    ) -> TxnId {
        let other = self.resolve(other);
        if other == id || !self.txns.contains_key(&other) {
            return id;
        }
        if !self.is_running(other) {
            if let Some(txn) = self.txns.get_mut(&id) {
                txn.after.insert(other);
            }
            return id;
        }
        self.streams.merged(streams, cause);
        self.merge(id, other)
    }

    /// Number of parts that a merge moves, if the transaction becomes part of another.
    fn parts_of(&self, id: TxnId) -> u64 {
        let parts = |txn: &Txn| {
            txn.blocks.len()
                + txn.objects.moved()
                + txn.streams.len()
                + txn.data.len()
                + txn.frees.len()
                + txn.attached.len()
                + txn.after.len()
                + txn.merged.len()
        };
        self.txns.get(&id).map_or(0, |txn| parts(txn) as u64)
    }

    fn merge(&mut self, a: TxnId, b: TxnId) -> TxnId {
        // The smaller one moves: each item of n transactions moves at most log n times.
        let (keep, gone) = match self.parts_of(a) >= self.parts_of(b) {
            true => (a, b),
            false => (b, a),
        };
        self.stats.merged_parts += self.parts_of(gone);
        let Some(from) = self.txns.remove(&gone) else {
            return keep;
        };
        self.stats.merges += 1;
        self.merged_into.insert(gone, keep);
        for id in &from.merged {
            self.merged_into.insert(*id, keep);
        }
        for stream in from.streams.keys() {
            self.running.insert(*stream, keep);
        }
        self.move_objects(&from.objects, gone, keep);
        self.reserved_blocks -= from.need_blocks();
        let Some(into) = self.txns.get_mut(&keep) else {
            return keep;
        };
        self.reserved_blocks -= into.need_blocks();
        for (stream, share) in from.streams {
            into.streams.entry(stream).or_default().add(share);
        }
        into.requesters.extend(from.requesters);
        into.objects.take_runs(&from.objects);
        into.merged.extend(from.merged);
        into.merged.push(gone);
        into.after.extend(from.after);
        into.after.remove(&keep);
        into.after.remove(&gone);
        for (at, block) in from.blocks {
            let ids = self.dirty.entry(at).or_default();
            ids.retain(|t| *t != gone);
            match into.blocks.get_mut(&at) {
                Some(mine) => {
                    // Running transactions own disjoint parts, or one of them ends the block's life.
                    if !mine.patch.revoke {
                        into.log_bytes -= mine.log_bytes;
                        let zero = mine.patch.zero | block.patch.zero;
                        mine.patch.absorb(&block.patch);
                        mine.patch.zero = zero && !mine.patch.revoke;
                        mine.recount(into.commit_mode);
                        into.log_bytes += mine.log_bytes;
                    }
                    mine.holds += block.holds;
                    mine.stream = block.stream;
                }
                None => {
                    into.log_bytes += block.log_bytes;
                    into.blocks.insert(at, block);
                    ids.push(keep);
                }
            }
        }
        into.log_bytes += from.data.len() as u64 * crate::record::COVERED_BYTES as u64;
        into.data.extend(from.data);
        into.frees.extend(from.frees);
        into.names.extend(from.names);
        into.notes.extend(from.notes);
        for (key, log_bytes) in from.attached {
            *into.attached.entry(key).or_default() += log_bytes;
        }
        into.held_bytes += from.held_bytes;
        into.data_blocks += from.data_blocks;
        self.reserved_blocks += into.need_blocks();
        keep
    }

    /// Adds one block's part of an operation to the transaction.
    fn join(&mut self, id: TxnId, block: OpBlock, stream: StreamId, cache: &Cache) {
        let at = block.at.0;
        if block.revoke {
            // Other blocks bring the operation's hold.
            cache.hold(block.at);
        }
        let Some(txn) = self.txns.get_mut(&id) else {
            return;
        };
        let (before, commit_mode) = (txn.need_blocks(), txn.commit_mode);
        let mut others = SmallVec::<[TxnId; 2]>::new();
        let mine = txn.blocks.entry(at).or_insert_with(|| {
            let ids = self.dirty.entry(at).or_default();
            others.clone_from(ids);
            ids.push(id);
            Box::new(TxnBlock::new(block.kind, commit_mode))
        });
        let known = if mine.holds == 0 { 0 } else { mine.log_bytes };
        let mut freed = false;
        mine.stream = stream;
        mine.holds += 1;
        if block.revoke {
            mine.patch = Patch::revoked();
            mine.recount(txn.commit_mode);
        } else {
            freed = mine.patch.revoke && !block.zero;
            mine.kind = block.kind;
            mine.patch.zero |= block.zero;
            for edit in &block.edits {
                self.stats.changed_bytes += edit.changed_bytes();
                mine.log_bytes += mine.patch.take(edit);
            }
            if mine.log_bytes > mine.recount_at {
                mine.recount(txn.commit_mode);
            }
        }
        txn.log_bytes = txn.log_bytes + mine.log_bytes - known;
        let after = txn.need_blocks();
        self.reserved_blocks = self.reserved_blocks + after - before;
        freed |=
            !block.revoke && !block.zero && others.iter().any(|other| self.revokes(*other, at));
        if freed {
            // Two structures of a damaged volume name the block. Nothing of this may last.
            self.fail(&Error::Corrupt {
                what: format!("block {} is changed after it was freed", block.at),
            });
        }
    }

    /// Whether a transaction freed the block.
    fn revokes(&self, id: TxnId, at: u64) -> bool {
        let block = self.txns.get(&id).and_then(|txn| txn.blocks.get(&at));
        block.is_some_and(|block| block.patch.revoke)
    }
}

impl OpChanges {
    /// Share of the operation in its transaction.
    fn share(&self) -> Share {
        let blocks = self.blocks.iter().map(|block| {
            let edits = block.edits.iter();
            ENTRY_BYTES as u64 + edits.map(|edit| edit.changed_bytes()).sum::<u64>()
        });
        let data = self.data.iter().map(|(_, blocks)| blocks.len() as u64);
        let attached = self.attached.iter().map(|(_, credits)| credits.data_blocks);
        let data_blocks: u64 = data.chain(attached).sum();
        Share {
            operations: 1,
            weight: blocks.sum::<u64>() + data_blocks * BLOCK_SIZE as u64,
        }
    }
}
