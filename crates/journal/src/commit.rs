//! The committer: lays a batch as one record, writes it, flushes once, acknowledges.
//!
//! Order: covered data is written and complete before the batch is chosen; the record is
//! written and complete; one flush makes all of it durable; then the batch is acknowledged.
//! If the record survives a cut and a covered block does not, the record fails its check.
//! No step reads the device or waits for other streams' data.

use crate::cache::Entry;
use crate::checkpoint::{Requester, log_runs};
use crate::core::{Batch, PostImage, Run, TxnBlock};
use crate::engine::Inner;
use crate::patch::{Edit, Patch};
use crate::record::{RecordId, RecordWriter};
use crate::seal::checksum;
use crate::{Error, Kind, META_BYTES, Result};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockNo};

impl Batch {
    /// The changes of its transactions, by block; those of one block in their order.
    pub(crate) fn parts(&self) -> Vec<(u64, &TxnBlock)> {
        let mut parts: Vec<(u64, &TxnBlock)> = (self.txns.iter())
            .flat_map(|(_, txn)| txn.blocks.iter().map(|(at, block)| (*at, &**block)))
            .collect();
        parts.sort_by_key(|part| part.0);
        parts
    }

    /// The runs that it frees.
    pub(crate) fn frees(&self) -> impl Iterator<Item = Run> {
        self.txns
            .iter()
            .flat_map(|(_, txn)| txn.frees.iter().copied())
    }
}

/// One block of a batch: the changes of its transactions, first to last.
struct Parts<'a> {
    at: BlockNo,
    parts: &'a [(u64, &'a TxnBlock)],
}

impl Inner {
    /// Carries a batch through. Called by the thread that took it, with no lock held.
    pub(crate) fn commit_batch(&self, batch: Batch) -> Result<()> {
        match &self.epoch {
            Some(epoch) => {
                let sent = self.send_home(epoch, batch);
                let sent = sent.map_err(|error| self.fail(&error))?;
                self.wait_epoch(sent)
            }
            None => self.commit_log(batch).map_err(|error| self.fail(&error)),
        }
    }

    /// The same, but without a log does not wait until it is durable: the acknowledger does.
    pub(crate) fn send_batch_unattended(&self, batch: Batch) -> Result<()> {
        let Some(epoch) = &self.epoch else {
            return self.commit_batch(batch);
        };
        let sent = self.send_home(epoch, batch);
        sent.map_err(|error| self.fail(&error))?;
        self.core.lock().leave_unattended();
        self.work.notify_all();
        Ok(())
    }

    fn commit_log(&self, batch: Batch) -> Result<()> {
        let epoch = self.core.lock().epoch;
        let id = RecordId {
            epoch,
            seq: batch.seq,
            pos: batch.pos,
            flushed_seq: batch.flushed_seq,
        };
        let (record, post) = self.lay(&batch, id);
        let blocks = record.blocks() as u64;
        self.make_room(blocks)?;
        self.core.lock().laid(&batch, blocks);
        if self.config.faults.acknowledge_early {
            // The flush before the record leaves this record to the next one's.
            self.flush()?;
            self.write_record(id.pos, &record)?;
            self.acknowledge(batch, post);
            return Ok(());
        }
        self.write_record(id.pos, &record)?;
        self.flush()?;
        if self.config.faults.data_late {
            for (_, txn) in &batch.txns {
                self.write_runs(&txn.data)?;
            }
        }
        self.acknowledge(batch, post);
        Ok(())
    }

    pub(crate) fn acknowledge(&self, batch: Batch, post: Vec<PostImage>) {
        let seq = batch.seq;
        let mut core = self.core.lock();
        let runs = core.acked(batch, post, &self.cache);
        let wants_checkpoint = core.wants_checkpoint();
        self.batch_ended(core, seq);
        if wants_checkpoint {
            self.wake_workers();
        }
        self.released(&runs);
    }

    /// Reservations make this a formality: a record always fits. Should an estimate have been
    /// wrong, a checkpoint frees the log up to the last acknowledged record.
    fn make_room(&self, blocks: u64) -> Result<()> {
        for _ in 0..2 {
            let (tail, head) = self.core.lock().positions();
            if head - tail + blocks <= self.config.region.log_blocks {
                return Ok(());
            }
            let past = self.core.lock().acked_pos();
            self.checkpoint_past(past, Requester::Committer)?;
        }
        let limit = self.config.region.log_blocks * BLOCK_SIZE as u64;
        Err(Error::TooLarge {
            needed: blocks * BLOCK_SIZE as u64,
            limit,
        })
    }

    fn write_record(&self, pos: u64, record: &BlockBuf) -> Result<()> {
        let bytes = record.as_bytes();
        for (at, range) in log_runs(&self.config.region, pos, record.blocks() as u64) {
            let range = range.start as usize * BLOCK_SIZE..range.end as usize * BLOCK_SIZE;
            self.device.write(at, &[&bytes[range]])?;
        }
        self.core.lock().stats.log_blocks += record.blocks() as u64;
        Ok(())
    }

    /// Resolves the batch against the committed images: counters are fixed here, in log order; checksums are those of the images that the record leads to.
    fn lay(&self, batch: &Batch, id: RecordId) -> (BlockBuf, Vec<PostImage>) {
        let parts = batch.parts();
        let blocks: u64 = batch.txns.iter().map(|(_, txn)| txn.need_blocks()).sum();
        let mut writer = RecordWriter::new(blocks as usize * BLOCK_SIZE);
        let mut post = Vec::with_capacity(parts.len());
        for parts in parts.chunk_by(|a, b| a.0 == b.0) {
            let at = BlockNo(parts[0].0);
            post.push(self.lay_block(&Parts { at, parts }, &mut writer));
        }
        for run in &batch.covered {
            writer.covered(run);
        }
        self.core.lock().stats.record_bytes += writer.bytes();
        (writer.finish(&self.identity, id), post)
    }

    fn lay_block(&self, block: &Parts<'_>, writer: &mut RecordWriter) -> PostImage {
        let at = block.at;
        let absorbed;
        let patch = match block.parts {
            [(_, only)] if !self.config.faults.lay_current => &only.patch,
            _ => {
                absorbed = self.absorb(block);
                &absorbed
            }
        };
        let (post, kind) = self.post(block, patch);
        let Some(image) = &post.image else {
            if !self.config.faults.drop_revoke {
                writer.revoke(at);
            }
            return post;
        };
        let checksum = (kind == Kind::Meta).then_some(post.checksum);
        let bits = patch.bits.as_ref().map(|b| b.runs()).unwrap_or_default();
        writer.patches(at, patch.zero, checksum, &patch.ranges(), &bits, image);
        post
    }

    /// A block as a batch leaves it.
    pub(crate) fn post_image(&self, at: BlockNo, parts: &[(u64, &TxnBlock)]) -> (PostImage, Kind) {
        let block = Parts { at, parts };
        match parts {
            [(_, only)] if !self.config.faults.lay_current => self.post(&block, &only.patch),
            _ => self.post(&block, &self.absorb(&block)),
        }
    }

    /// A block as its parts leave it, which together are `patch`.
    fn post(&self, block: &Parts<'_>, patch: &Patch) -> (PostImage, Kind) {
        let kind = block.parts.last().map_or(Kind::Data, |(_, part)| part.kind);
        let image = (!patch.revoke).then(|| self.image_after(block));
        let checksum = match (&image, kind) {
            (Some(image), Kind::Meta) => checksum(&self.config.volume, block.at, image),
            _ => 0,
        };
        let post = PostImage {
            at: block.at,
            holds: block.parts.iter().map(|(_, part)| part.holds).sum(),
            image,
            checksum,
        };
        (post, kind)
    }

    /// Changes of a batch's transactions to one block, as one patch.
    fn absorb(&self, block: &Parts<'_>) -> Patch {
        let mut patch = Patch::default();
        for (_, part) in block.parts {
            patch.absorb(&part.patch);
        }
        if self.config.faults.lay_current && !patch.revoke {
            patch.take(&Edit::Bytes {
                offset: 0,
                len: META_BYTES as u16,
                from: 0,
            });
        }
        patch
    }

    /// The committed image of a block after the batch.
    fn image_after(&self, block: &Parts<'_>) -> Arc<Block> {
        let committed = |entry: &mut Entry| Arc::clone(&entry.committed);
        let mut image =
            (self.cache.with(block.at, committed)).unwrap_or_else(|| Arc::new([0; BLOCK_SIZE]));
        // The common case: one transaction, no other transaction in the image that it froze, and no
        // commit of the block since.
        if let [(_, only)] = block.parts
            && (only.alone_on.as_ref()).is_some_and(|base| Arc::ptr_eq(base, &image))
            && !self.wants_newest()
            && let Some(values) = &only.values
        {
            return Arc::clone(values);
        }
        let result = Arc::make_mut(&mut image);
        for (_, part) in block.parts {
            let Some(values) = &part.values else {
                continue;
            };
            if self.wants_newest()
                && let Some(newest) = self.cache.peek(block.at)
            {
                self.apply_newest(&part.patch, values, &newest, result);
            } else {
                part.patch.apply(values, result);
            }
        }
        image
    }

    /// Whether a planted fault puts the current image where the frozen one counts.
    fn wants_newest(&self) -> bool {
        let faults = &self.config.faults;
        faults.lay_current || faults.absorb_frozen || faults.newest_when_laid
    }

    fn apply_newest(&self, patch: &Patch, values: &Block, newest: &Block, result: &mut Block) {
        let faults = &self.config.faults;
        if faults.lay_current {
            *result = *newest;
        } else if faults.absorb_frozen {
            patch.apply(newest, result);
        } else {
            patch.apply(values, result);
            patch.apply_latest(newest, result);
        }
    }
}
