//! The checkpointer: writes committed images home and moves the tail.
//!
//! Order of a round: choose the images of everything acknowledged; write them home in
//! address order; flush; write the older tail header; flush; only then the log space is
//! free and blocks whose images the round held may leave the quarantine. A cut before the
//! header is durable replays the same records onto the same blocks: replay is idempotent.
//! One round at a time, and covered writes go to released blocks only, so no two writes to
//! one home block are in flight.

use crate::core::{HomeImage, Round};
use crate::engine::{Inner, WRITE_BLOCKS_MAX};
use crate::layout::TailHeader;
use crate::seal::place;
use crate::{Region, Result};
use steadfast_block::{BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo};

/// Places of `blocks` log blocks from position `pos`: one or two runs on the device, each with
/// the part of the record that belongs there (in blocks).
pub(crate) fn log_runs(
    region: &Region,
    pos: u64,
    blocks: u64,
) -> Vec<(BlockNo, std::ops::Range<u64>)> {
    let start = pos % region.log_blocks;
    let first = blocks.min(region.log_blocks - start);
    let mut runs = vec![(region.log.offset(start), 0..first)];
    if first < blocks {
        runs.push((region.log, first..blocks));
    }
    runs
}

/// Writes images that are sorted by address to their homes, metadata blocks with their seals:
/// runs of neighbours, all at once as far as the device can.
pub(crate) fn write_home(device: &dyn BlockDevice, images: &[HomeImage]) -> Result<()> {
    let mut buffer = BlockBuf::zeroed(images.len().min(WRITE_BLOCKS_MAX));
    for images in images.chunks(WRITE_BLOCKS_MAX) {
        let (blocks, _) = buffer.as_bytes_mut().as_chunks_mut::<BLOCK_SIZE>();
        for (block, home) in blocks.iter_mut().zip(images) {
            block.copy_from_slice(&home.image[..]);
            if let Some(checksum) = home.checksum {
                place(home.at, block, checksum);
            }
        }
        let mut rest = buffer.as_bytes();
        let runs: Vec<(BlockNo, [&[u8]; 1])> = images
            .chunk_by(|a, b| b.at == a.at.offset(1))
            .map(|run| {
                let (bytes, behind) = rest.split_at(run.len() * BLOCK_SIZE);
                rest = behind;
                (run[0].at, [bytes])
            })
            .collect();
        let writes: Vec<(BlockNo, &[&[u8]])> = runs.iter().map(|r| (r.0, &r.1[..])).collect();
        device.write_scattered(&writes)?;
    }
    Ok(())
}

/// Thread that requests a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Requester {
    /// No thread waits: it may use the flushes of commits.
    Background,
    /// A caller waits.
    Caller,
    /// The committer, which must not lay the record that another one's proof may need.
    Committer,
}

impl Inner {
    /// Everything that is acknowledged now goes home.
    pub(crate) fn checkpoint(&self, requester: Requester) -> Result<()> {
        let core = self.core.lock();
        core.check()?;
        let upto = core.acked_pos();
        drop(core);
        self.checkpoint_past(upto, requester)
    }

    /// Runs rounds, or waits for the one under way, until the durable tail is at `upto` or
    /// nothing is left to do.
    pub(crate) fn checkpoint_past(&self, upto: u64, requester: Requester) -> Result<()> {
        let mut core = self.core.lock();
        loop {
            // Done is done, also when the journal is closed right after.
            if core.positions().0 >= upto {
                return Ok(());
            }
            core.check()?;
            if !core.can_checkpoint() {
                return Ok(());
            }
            if core.checkpointing {
                // The thread that runs it need not wait for others' flushes any more.
                core.hurry += 1;
                self.changed.notify_all();
                core = self.wait(core);
                core.hurry -= 1;
                continue;
            }
            if let Some(round) = core.begin_round(&self.cache, &self.config.faults) {
                drop(core);
                self.run_round(round, requester)
                    .map_err(|error| self.fail(&error))?;
                core = self.core.lock();
                continue;
            }
            // Something to be written home is covered by a record that is not proved yet.
            if requester == Requester::Committer {
                return Ok(());
            }
            if let Some(batch) = self.lead(&mut core, &[], true) {
                drop(core);
                self.commit_batch(batch)?;
                core = self.core.lock();
            } else if core.committing {
                core = self.wait(core);
            } else {
                return Ok(());
            }
        }
    }

    fn run_round(&self, round: Round, requester: Requester) -> Result<()> {
        let flush = || match requester {
            Requester::Background => self.flush_with_others(),
            Requester::Caller | Requester::Committer => self.flush(),
        };
        write_home(&*self.device, &round.images)?;
        if !self.config.faults.skip_home_flush {
            flush()?;
        }
        if self.config.faults.trim_early {
            self.core.lock().trim_early(&round);
        }
        let header = {
            let core = self.core.lock();
            TailHeader {
                generation: core.generation + 1,
                epoch: core.epoch,
                record_epoch: core.epoch,
                tail_pos: round.upto_pos,
                tail_seq: round.upto_seq + 1,
                verdict: None,
                flushed_seq: round.flushed_seq,
                clean: false,
            }
        };
        self.write_header(&header)?;
        if !self.config.faults.trim_early {
            flush()?;
        }
        let mut core = self.core.lock();
        let runs = core.end_round(&round, &self.cache);
        self.unlock(core);
        self.released(&runs);
        Ok(())
    }

    /// Writes a header over the older one. The caller flushes.
    fn write_header(&self, header: &TailHeader) -> Result<()> {
        let slot = 1 - self.core.lock().newer_header;
        let block = header.encode(&self.identity);
        self.device
            .write(self.config.region.headers[slot], &[&block[..]])?;
        let mut core = self.core.lock();
        core.generation = header.generation;
        core.newer_header = slot;
        Ok(())
    }

    /// Empties the log, and says so in a header.
    pub(crate) fn mark_clean(&self) -> Result<()> {
        let mut core = self.core.lock();
        loop {
            core.check()?;
            if core.checkpointing || core.committing {
                core = self.wait(core);
            } else if core.can_checkpoint() {
                drop(core);
                self.checkpoint(Requester::Caller)?;
                core = self.core.lock();
            } else {
                break;
            }
        }
        // No other thread writes a header now.
        core.checkpointing = true;
        let (tail, head) = core.positions();
        let header = TailHeader {
            generation: core.generation + 1,
            epoch: core.epoch,
            record_epoch: core.epoch,
            tail_pos: tail,
            tail_seq: core.acked_seq() + 1,
            verdict: None,
            flushed_seq: core.acked_seq(),
            clean: tail == head,
        };
        drop(core);
        let written = self.write_header(&header).and_then(|()| self.flush());
        let mut core = self.core.lock();
        core.checkpointing = false;
        let written = written.map_err(|error| core.fail(&error));
        self.unlock(core);
        written
    }
}
