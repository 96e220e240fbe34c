//! The committer: lays a batch as one record, writes it, flushes once, acknowledges.
//!
//! Order: covered data is written and complete before the batch is chosen; the record is
//! written and complete; one flush makes all of it durable; then the batch is acknowledged.
//! If the record survives a cut and a covered block does not, the record fails its check.
//! No step reads the device or waits for other streams' data.

use crate::checkpoint::log_runs;
use crate::core::{Batch, PostImage};
use crate::engine::Inner;
use crate::layout::{RecordId, RecordWriter};
use crate::patch::Patch;
use crate::seal::{checksum, seal};
use crate::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockNo};

struct Laid {
    kind: Kind,
    patch: Patch,
    image: Block,
    holds: u32,
}

impl Inner {
    /// Carries a batch through. Called by the thread that took it, with no lock held.
    pub(crate) fn commit_batch(&self, batch: Batch) -> Result<()> {
        self.try_commit(batch).map_err(|error| self.fail(&error))
    }

    fn try_commit(&self, batch: Batch) -> Result<()> {
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
        self.acknowledge(batch, post);
        Ok(())
    }

    fn acknowledge(&self, batch: Batch, post: Vec<PostImage>) {
        let mut core = self.core.lock();
        let runs = core.acked(batch, post, &self.cache);
        let wants_checkpoint = core.wants_checkpoint();
        self.unlock(core);
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
            self.checkpoint_past(past, true)?;
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

    /// Resolves the batch against the committed images: counters and newest values are fixed
    /// here, in log order; checksums are those of the images that the record leads to.
    fn lay(&self, batch: &Batch, id: RecordId) -> (BlockBuf, Vec<PostImage>) {
        let mut laid: BTreeMap<u64, Laid> = BTreeMap::new();
        for (_, txn) in &batch.txns {
            for (&at, block) in &txn.blocks {
                let entry = laid.entry(at).or_insert_with(|| Laid {
                    kind: block.kind,
                    patch: Patch::default(),
                    image: self.committed(BlockNo(at)),
                    holds: 0,
                });
                entry.holds += 1;
                if let Some(values) = &block.values {
                    let newest = self
                        .cache
                        .peek(BlockNo(at))
                        .unwrap_or_else(|| Arc::clone(values));
                    let values = if self.config.faults.lay_current {
                        &newest
                    } else {
                        values
                    };
                    block.patch.apply(values, &newest, &mut entry.image);
                    if self.config.faults.lay_current {
                        entry.image = **values;
                        entry.patch.touch_bytes(0, crate::META_BYTES);
                    }
                    entry.kind = block.kind;
                }
                entry.patch.absorb(&block.patch);
            }
        }
        let mut writer = RecordWriter::new();
        let mut post = Vec::with_capacity(laid.len());
        for (
            at,
            Laid {
                kind,
                patch,
                mut image,
                holds,
            },
        ) in laid
        {
            let at = BlockNo(at);
            if patch.revoke {
                if !self.config.faults.drop_revoke {
                    writer.revoke(at);
                }
                post.push(PostImage {
                    at,
                    holds,
                    image: None,
                });
                continue;
            }
            let sum = (kind == Kind::Meta).then(|| checksum(&self.config.volume, at, &image));
            let bits = patch.bits.as_ref().map(|b| b.runs()).unwrap_or_default();
            writer.patches(at, patch.zero, sum, &patch.ranges(), &bits, &image);
            if kind == Kind::Meta {
                seal(&self.config.volume, at, &mut image);
            }
            post.push(PostImage {
                at,
                holds,
                image: Some(Arc::new(image)),
            });
        }
        for run in &batch.covered {
            writer.covered(run);
        }
        (writer.finish(&self.identity, id), post)
    }

    fn committed(&self, at: BlockNo) -> Block {
        self.cache
            .with(at, |entry| *entry.committed)
            .unwrap_or([0; BLOCK_SIZE])
    }
}
