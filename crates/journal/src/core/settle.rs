//! The core's way from acknowledged to home: committed images, the quarantine, the proof,
//! checkpoint rounds.

use super::{Batch, Core, Freed, HomeImage, Logged, PostImage, Round, Run, SentBatch, TxnId};
use crate::cache::Cache;
use crate::epoch::ClosedEpoch;
use crate::probe::Decision;
use crate::{CommitMode, Error, Faults, Kind, StreamId};
use std::collections::BTreeSet;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockNo};

impl Core {
    /// The batch is durable. Returns the runs that leave the quarantine.
    pub(crate) fn acked(
        &mut self,
        mut batch: Batch,
        post: Vec<PostImage>,
        cache: &Cache,
    ) -> Vec<Run> {
        self.settled(&mut batch, post, cache);
        self.durable(batch)
    }

    /// Without a log: the device has taken the batch as an epoch. The next one can be laid on its images.
    pub(crate) fn taken(
        &mut self,
        mut batch: Batch,
        post: Vec<PostImage>,
        epoch: ClosedEpoch,
        cache: &Cache,
    ) {
        if self.limits.faults.settle_late {
            self.committing = false;
            batch.late = Some(post);
        } else {
            self.settled(&mut batch, post, cache);
        }
        // The epoch that is open now has its whole room.
        (self.acked_pos, self.durable_tail_pos) = (self.head_pos, self.head_pos);
        self.sent.push_back(SentBatch { batch, epoch });
    }

    /// Whether there are batches that are not durable, though the device has them.
    pub(crate) fn any_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// The epoch of the oldest batch that is not durable, if it may be that no thread waits for it.
    pub(crate) fn unattended(&self) -> Option<ClosedEpoch> {
        let oldest = self.sent.front();
        let oldest = oldest.filter(|sent| sent.batch.seq <= self.unattended_seq);
        oldest.map(|sent| sent.epoch)
    }

    /// The thread that sent the newest batch does not wait for it.
    pub(crate) fn leave_unattended(&mut self) {
        self.unattended_seq = self.in_flight;
    }

    /// Acknowledges the oldest batch that is not durable, if its epoch is `upto` or an earlier one. Returns its sequence
    /// number and the runs that leave the quarantine.
    pub(crate) fn durable_upto(
        &mut self,
        upto: ClosedEpoch,
        cache: &Cache,
    ) -> Option<(u64, Vec<Run>)> {
        let oldest = self.sent.front()?;
        if oldest.epoch.flush > upto.flush {
            return None;
        }
        let mut batch = self.sent.pop_front()?.batch;
        let seq = batch.seq;
        if let Some(post) = batch.late.take() {
            let committing = self.committing;
            self.settled(&mut batch, post, cache);
            self.committing = committing;
        }
        Some((seq, self.durable(batch)))
    }

    /// The device has the batch: its images are the committed ones, and its blocks need no place in memory.
    fn settled(&mut self, batch: &mut Batch, post: Vec<PostImage>, cache: &Cache) {
        self.committing = false;
        batch.blocks = self.laid_blocks;
        let done: BTreeSet<TxnId> = batch.txns.iter().map(|(id, _)| *id).collect();
        self.closed.retain(|id| !done.contains(id));
        for (id, txn) in &mut batch.txns {
            if let Some(kept) = self.txns.get_mut(id) {
                self.uncommitted_blocks -= std::mem::take(&mut kept.data_blocks);
            }
            for at in std::mem::take(&mut txn.blocks).keys() {
                if let Some(ids) = self.dirty.get_mut(at) {
                    ids.retain(|t| t != id);
                    if ids.is_empty() {
                        self.dirty.remove(at);
                    }
                }
            }
            txn.data_blocks = 0;
            for (at, blocks) in std::mem::take(&mut txn.data) {
                self.around.remove(&at.0);
                txn.data_blocks += blocks.len() as u64;
                for i in 0..blocks.len() as u64 {
                    cache.unhold(at.offset(i), 1);
                }
            }
        }
        for block in post {
            self.settle(block, batch.seq, cache);
        }
    }

    /// The batch is durable: its transactions are acknowledged. Returns the runs that leave the quarantine.
    fn durable(&mut self, batch: Batch) -> Vec<Run> {
        debug_assert_eq!(batch.seq, self.acked_seq + 1);
        self.probe.tell(|| Decision::Acknowledged);
        self.acked_seq = batch.seq;
        if self.limits.commit_mode == CommitMode::Log {
            self.acked_pos = self.head_pos;
        }
        self.stats.commits += 1;
        self.stats.batched_transactions += batch.txns.len() as u64;
        self.stats.largest_batch = self.stats.largest_batch.max(batch.txns.len() as u64);
        let covered: Vec<Run> = batch
            .covered
            .iter()
            .map(|c| (c.at, u64::from(c.count)))
            .collect();
        // Forgets threads that left after a while.
        self.crowd = self.committers().max(self.crowd - self.crowd.div_ceil(8));
        let weights: u64 = batch.txns.iter().map(|(_, txn)| txn.log_bytes).sum();
        let mut laid = (batch.blocks * BLOCK_SIZE as u64, weights);
        for (id, txn) in batch.txns {
            // Its part of the record, by its bound; and its data.
            let part = match laid.1 {
                0 => laid.0,
                weights => laid.0 * txn.log_bytes / weights,
            };
            laid = (laid.0 - part, laid.1 - txn.log_bytes);
            if let Some(kept) = self.txns.remove(&id) {
                self.reserved_blocks -= kept.need_blocks();
                self.account(&kept, part + txn.data_blocks * BLOCK_SIZE as u64);
                self.forget_objects(id, &kept.objects);
                for stream in kept.streams.keys() {
                    self.forget_marks(*stream);
                    if self.last_closed.get(stream) == Some(&id) {
                        self.last_closed.remove(stream);
                    }
                }
                for merged in &kept.merged {
                    self.merged_into.remove(merged);
                }
            }
            for run in txn.frees {
                let wants_proof = covered.iter().any(|c| overlap(*c, run));
                self.freed.push(Freed {
                    seq: batch.seq,
                    run,
                    wants_proof,
                });
            }
        }
        self.stop_indexing();
        self.unproved = covered;
        self.release()
    }

    /// Drops durable transactions from the marks of a stream.
    fn forget_marks(&mut self, stream: StreamId) {
        let Some(mut marks) = self.marks.remove(&stream) else {
            return;
        };
        marks.retain(|mark| self.txns.contains_key(&self.resolve(mark.id)));
        if !marks.is_empty() {
            self.marks.insert(stream, marks);
        }
    }

    /// The committed image of a block becomes that of the batch.
    fn settle(&mut self, block: PostImage, seq: u64, cache: &Cache) {
        let at = block.at;
        let Some(image) = block.image else {
            let logged = u32::from(self.logged.remove(&at.0).is_some());
            cache.unhold(at, block.holds + logged);
            cache.forget(at);
            return;
        };
        let was_logged = u32::from(self.logged.contains_key(&at.0));
        let logged = u32::from(self.limits.commit_mode == CommitMode::Log);
        let mut agree = true;
        let kind = cache.with(at, |entry| {
            // No other transaction has a part in the current image: it is this one. Share the memory.
            if entry.holds == block.holds + was_logged {
                agree = !cfg!(debug_assertions)
                    || entry.current[..crate::META_BYTES] == image[..crate::META_BYTES];
                entry.current = Arc::clone(&image);
            }
            entry.committed = image;
            // The log's own hold comes, or stays.
            entry.unhold(at, block.holds + was_logged - logged);
            entry.kind
        });
        if !agree {
            // A bug, or two structures of a damaged volume that overlap. The durable content
            // counts; the code that reads it reports the damage.
            self.fail(&Error::Corrupt {
                what: format!("block {at}: the record and the current image disagree"),
            });
        }
        if let (Some(kind), CommitMode::Log) = (kind, self.limits.commit_mode) {
            let checksum = (kind == Kind::Meta).then_some(block.checksum);
            self.logged.insert(at.0, Logged { seq, checksum });
        }
    }

    /// Takes the blocks that may be allocated again out of the quarantine.
    fn release(&mut self) -> Vec<Run> {
        if self.checkpointing {
            return Vec::new();
        }
        let (acked, proved) = (self.acked_seq, self.proved_seq);
        let mut out = Vec::new();
        self.freed.retain(|f| {
            let ready = f.seq < acked || (f.seq == acked && (!f.wants_proof || proved >= acked));
            if ready {
                out.push(f.run);
            }
            !ready
        });
        self.stats.released_blocks += out.iter().map(|r| r.1).sum::<u64>();
        self.releasing += u32::from(!out.is_empty());
        if !out.is_empty() {
            self.probe.tell(|| Decision::Released(out.clone()));
        }
        out
    }

    /// The transaction that frees and delays most blocks, if any does.
    pub(crate) fn holding_most(&self) -> Option<TxnId> {
        let held = self.txns.iter().map(|(id, txn)| {
            let freed: u64 = txn.frees.iter().map(|run| run.1).sum();
            (freed + txn.data_blocks, *id)
        });
        let most = held.max_by_key(|(blocks, _)| *blocks)?;
        (most.0 > 0).then_some(most.1)
    }

    pub(crate) fn quarantined(&self) -> bool {
        !self.freed.is_empty()
    }

    // ---- checkpointing -------------------------------------------------------------------

    /// Whether a home write could hit a block that an unproved record covers. An image in the
    /// checkpoint set comes from a record after the covering one, which proves it; this
    /// guards that argument.
    fn round_is_proved(&self) -> bool {
        self.unproved
            .iter()
            .all(|(at, count)| self.logged.range(at.0..at.0 + count).next().is_none())
    }

    /// Begins a round: everything acknowledged so far goes home. `None`: nothing to do.
    pub(crate) fn begin_round(&mut self, cache: &Cache, faults: &Faults) -> Option<Round> {
        if self.checkpointing || !self.can_checkpoint() || !self.round_is_proved() {
            return None;
        }
        self.checkpointing = true;
        let mut images: Vec<HomeImage> = self
            .logged
            .iter()
            .filter_map(|(at, logged)| {
                let at = BlockNo(*at);
                Some(HomeImage {
                    at,
                    checksum: logged.checksum,
                    image: cache.with(at, |entry| Arc::clone(&entry.committed))?,
                })
            })
            .collect();
        if faults.install_unproved {
            // Planted fault: patches of covered blocks go home before their own record is there.
            for at in self.unproved.iter().flat_map(|r| r.0.0..r.0.0 + r.1) {
                images.extend(cache.peek(BlockNo(at)).map(|image| HomeImage {
                    at: BlockNo(at),
                    checksum: None,
                    image,
                }));
            }
            images.sort_unstable_by_key(|i| i.at);
        }
        let chosen = || images.iter().map(|image| image.at).collect();
        self.probe.tell(|| Decision::Round(chosen()));
        Some(Round {
            upto_seq: self.acked_seq,
            upto_pos: self.acked_pos,
            flushed_seq: self.acked_seq,
            images,
        })
    }

    /// The round's tail header is durable. Returns the runs that leave the quarantine.
    pub(crate) fn end_round(&mut self, round: &Round, cache: &Cache) -> Vec<Run> {
        self.durable_tail_pos = self.durable_tail_pos.max(round.upto_pos);
        self.checkpointing = false;
        self.probe.tell(|| Decision::Trimmed);
        self.proved_seq = self.proved_seq.max(round.flushed_seq);
        if self.proved_seq >= self.acked_seq {
            self.unproved.clear();
        }
        self.stats.checkpoints += 1;
        self.stats.home_blocks += round.images.len() as u64;
        for home in &round.images {
            let at = home.at;
            let newest = self.logged.get(&at.0).map(|logged| logged.seq);
            if newest.is_some_and(|seq| seq <= round.upto_seq) {
                self.logged.remove(&at.0);
                cache.unhold(at, 1);
            }
        }
        self.release()
    }

    /// Planted fault: the space is reused although the tail header is not durable.
    pub(crate) fn trim_early(&mut self, round: &Round) {
        self.probe.tell(|| Decision::Trimmed);
        self.durable_tail_pos = self.durable_tail_pos.max(round.upto_pos);
    }
}

fn overlap(a: Run, b: Run) -> bool {
    a.0.0 < b.0.0 + b.1 && b.0.0 < a.0.0 + a.1
}
