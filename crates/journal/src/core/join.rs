//! The core's way from an operation to a running transaction: whom it relates to, merging, and
//! what the transaction owns afterwards.

use super::{
    BlockMap, Core, Mark, OpBlock, OpChanges, Phase, Run, Txn, TxnBlock, TxnId, keys_within,
};
use crate::cache::Cache;
use crate::lanes::LaneId;
use crate::patch::Patch;
use crate::{Access, Error, Faults, Kind, Object, StreamId};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use steadfast_block::BlockNo;

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
            lay: self.limits.lay,
            streams: BTreeSet::from([stream]),
            phase: Phase::Running,
            blocks: BlockMap::default(),
            data: Vec::new(),
            frees: Vec::new(),
            attached: BTreeSet::new(),
            log_bytes: 0,
            held_bytes: 0,
            data_blocks: 0,
            objects: Vec::new(),
            names: Vec::new(),
            after: after.copied().into_iter().collect(),
            merged: Vec::new(),
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
        let mut id = match changes.closing {
            Some(closing) => self.resolve(closing),
            // It depends on its stream at most.
            None if changes.is_empty() => return,
            None => self.running_txn(changes.stream),
        };
        for (object, access) in &changes.relations {
            let others: Vec<TxnId> = match self.objects.get(object) {
                Some(writers) => writers
                    .iter()
                    .filter(|(_, a)| *a == Access::Exclusive || *access == Access::Exclusive)
                    .map(|(t, _)| *t)
                    .collect(),
                None => continue,
            };
            for other in others {
                id = self.relate(id, other);
            }
        }
        for run in changes.frees.iter().copied() {
            id = self.relate_to_writers_around(id, run);
        }
        self.expand_frees(&mut changes);
        for block in &changes.blocks {
            id = self.relate_to_writers_around(id, (block.at, 1));
            let touching = match self.dirty.get(&block.at.0) {
                Some(ids) if ids[..] != [id] => ids.clone(),
                _ => continue,
            };
            for other in touching {
                let other = self.resolve(other);
                // A transaction whose blocks are with the committer is in flight: the next
                // record comes after it anyway.
                let overlaps = self.txns.get(&other).is_some_and(|t| {
                    t.blocks
                        .get(&block.at.0)
                        .is_some_and(|b| block.overlaps(&b.patch))
                });
                if other != id && overlaps {
                    id = self.relate(id, other);
                }
            }
        }
        for (object, access) in std::mem::take(&mut changes.relations) {
            self.register(id, object, access);
        }
        for block in std::mem::take(&mut changes.blocks) {
            self.join(id, block, cache);
        }
        if let Some(lane) = changes.lane {
            self.mark(changes.stream, lane, changes.number, id);
        }
        let Some(txn) = self.txns.get_mut(&id) else {
            return;
        };
        let before = txn.need_blocks();
        txn.names.push(changes.name);
        txn.frees.append(&mut changes.frees);
        for (at, blocks) in &changes.data {
            self.around.insert(at.0, (blocks.len() as u64, id));
            if changes.closing.is_none() {
                txn.data_blocks += blocks.len() as u64;
                self.uncommitted_blocks += blocks.len() as u64;
            }
            txn.log_bytes += crate::record::COVERED_BYTES as u64;
        }
        txn.data.append(&mut changes.data);
        for (key, credits) in changes.attached {
            txn.attached.insert(key);
            txn.held_bytes += credits.log_bytes;
            txn.data_blocks += credits.data_blocks;
            self.uncommitted_blocks += credits.data_blocks;
        }
        self.reserved_blocks += txn.need_blocks();
        self.reserved_blocks -= before;
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
            .take_while(|(at, (blocks, _))| *at + blocks > run.0.0)
            .map(|(at, (blocks, _))| (BlockNo(*at), *blocks))
            .collect();
        if !faults.in_place_unproved {
            runs.extend(self.unproved.iter().copied());
        }
        for (at, count) in runs {
            let both = at.0.max(run.0.0)..(at.0 + count).min(end);
            kept.extend(both.map(BlockNo));
        }
    }

    /// Who changes or frees blocks that an uncommitted transaction writes around the log depends on it.
    fn relate_to_writers_around(&mut self, mut id: TxnId, (first, count): Run) -> TxnId {
        if self.around.is_empty() {
            return id;
        }
        let end = first.0 + count;
        // Runs are disjoint: of those that begin before the end, the last ones reach in.
        let owners: SmallVec<[TxnId; 2]> = self
            .around
            .range(..end)
            .rev()
            .take_while(|(at, (blocks, _))| *at + blocks > first.0)
            .map(|(_, (_, owner))| *owner)
            .collect();
        for owner in owners {
            id = self.relate(id, owner);
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

    fn register(&mut self, id: TxnId, object: Object, access: Access) {
        let writers = self.objects.entry(object).or_default();
        match writers.iter_mut().find(|(t, _)| *t == id) {
            Some((_, a)) => *a = (*a).max(access),
            None => {
                writers.push((id, access));
                if let Some(txn) = self.txns.get_mut(&id) {
                    txn.objects.push(object);
                }
            }
        }
    }

    /// `id` (running) depends on `other`: one transaction if it runs too, else one after the other.
    fn relate(&mut self, id: TxnId, other: TxnId) -> TxnId {
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
        self.merge(id, other)
    }

    fn merge(&mut self, a: TxnId, b: TxnId) -> TxnId {
        let (keep, gone) = if self.txns[&a].blocks.len() >= self.txns[&b].blocks.len() {
            (a, b)
        } else {
            (b, a)
        };
        let Some(from) = self.txns.remove(&gone) else {
            return keep;
        };
        self.stats.merges += 1;
        self.merged_into.insert(gone, keep);
        for id in &from.merged {
            self.merged_into.insert(*id, keep);
        }
        for stream in &from.streams {
            self.running.insert(*stream, keep);
        }
        for object in &from.objects {
            let access = self.objects.get_mut(object).and_then(|w| {
                let i = w.iter().position(|(t, _)| *t == gone)?;
                Some(w.swap_remove(i).1)
            });
            if let Some(access) = access {
                self.register(keep, *object, access);
            }
        }
        self.reserved_blocks -= from.need_blocks();
        let Some(into) = self.txns.get_mut(&keep) else {
            return keep;
        };
        self.reserved_blocks -= into.need_blocks();
        into.streams.extend(from.streams);
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
                        mine.recount(into.lay);
                        into.log_bytes += mine.log_bytes;
                    }
                    mine.holds += block.holds;
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
        into.attached.extend(from.attached);
        into.held_bytes += from.held_bytes;
        into.data_blocks += from.data_blocks;
        self.reserved_blocks += into.need_blocks();
        keep
    }

    /// Adds one block's part of an operation to the transaction.
    fn join(&mut self, id: TxnId, block: OpBlock, cache: &Cache) {
        let at = block.at.0;
        if block.revoke {
            // Other blocks bring the operation's hold.
            cache.hold(block.at);
        }
        let Some(txn) = self.txns.get_mut(&id) else {
            return;
        };
        let (before, lay) = (txn.need_blocks(), txn.lay);
        let mut others = SmallVec::<[TxnId; 2]>::new();
        let mine = txn.blocks.entry(at).or_insert_with(|| {
            let ids = self.dirty.entry(at).or_default();
            others.clone_from(ids);
            ids.push(id);
            Box::new(TxnBlock::new(block.kind, lay))
        });
        let known = if mine.holds == 0 { 0 } else { mine.log_bytes };
        let mut freed = false;
        mine.holds += 1;
        if block.revoke {
            mine.patch = Patch::revoked();
            mine.recount(txn.lay);
        } else {
            freed = mine.patch.revoke && !block.zero;
            mine.kind = block.kind;
            mine.patch.zero |= block.zero;
            for edit in &block.edits {
                self.stats.changed_bytes += edit.changed_bytes();
                mine.log_bytes += mine.patch.take(edit);
            }
            if mine.log_bytes > mine.recount_at {
                mine.recount(txn.lay);
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
