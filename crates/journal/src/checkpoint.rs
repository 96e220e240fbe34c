//! The checkpointer: writes committed images home and moves the tail.
//!
//! Order of a round: choose the images of everything acknowledged; write them home in
//! address order; flush; write the older tail header; flush; only then the log space is
//! free and blocks whose images the round held may leave the quarantine. A cut before the
//! header is durable replays the same records onto the same blocks: replay is idempotent.
//! One round at a time, and covered writes go to released blocks only, so no two writes to
//! one home block are in flight.

use crate::core::Round;
use crate::engine::{Inner, WRITE_BLOCKS_MAX};
use crate::layout::TailHeader;
use crate::sync::wait;
use crate::{Region, Result};
use std::sync::Arc;
use steadfast_block::{Block, BlockDevice, BlockNo};

/// Where `blocks` log blocks from position `pos` lie: one or two runs on the device, each with
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

/// Writes images that are sorted by address to their homes, neighbours together.
pub(crate) fn write_home(device: &dyn BlockDevice, images: &[(BlockNo, Arc<Block>)]) -> Result<()> {
    let mut rest = images;
    while let Some((first, _)) = rest.first() {
        let run = rest
            .iter()
            .enumerate()
            .take(WRITE_BLOCKS_MAX)
            .take_while(|(i, (at, _))| *at == first.offset(*i as u64))
            .count();
        let segments: Vec<&[u8]> = rest[..run].iter().map(|(_, b)| &b[..]).collect();
        device.write(*first, &segments)?;
        rest = &rest[run..];
    }
    Ok(())
}

impl Inner {
    /// Runs a round, or waits for the one under way.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let mut core = self.core.lock();
        loop {
            core.check()?;
            if !core.can_checkpoint() {
                return Ok(());
            }
            if core.checkpointing {
                core = wait(&self.changed, core);
                if !core.checkpointing {
                    return core.check();
                }
                continue;
            }
            if let Some(round) = core.begin_round(&self.cache) {
                drop(core);
                return self.run_round(round).map_err(|error| self.fail(&error));
            }
            // Something to be written home is covered by a record that is not proved yet.
            if let Some(batch) = self.lead(&mut core, true) {
                drop(core);
                self.commit_batch(batch)?;
                core = self.core.lock();
            } else {
                core = wait(&self.changed, core);
            }
        }
    }

    fn run_round(&self, round: Round) -> Result<()> {
        let images: Vec<(BlockNo, Arc<Block>)> = round
            .images
            .iter()
            .map(|(at, _, image)| (*at, Arc::clone(image)))
            .collect();
        write_home(&*self.device, &images)?;
        if !self.config.faults.skip_home_flush {
            self.flush()?;
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
            self.flush()?;
        }
        let runs = self.core.lock().end_round(&round, &self.cache);
        self.changed.notify_all();
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

    /// The log is empty and everything is home: say so.
    pub(crate) fn mark_clean(&self) -> Result<()> {
        let (header, empty) = {
            let core = self.core.lock();
            let (tail, head) = core.positions();
            let header = TailHeader {
                generation: core.generation + 1,
                epoch: core.epoch,
                record_epoch: core.epoch,
                tail_pos: tail,
                tail_seq: core.acked_seq() + 1,
                verdict: None,
                flushed_seq: core.acked_seq(),
                clean: true,
            };
            (header, tail == head)
        };
        debug_assert!(empty, "the log is empty after the last checkpoint");
        let written = self.write_header(&header).and_then(|()| self.flush());
        written.map_err(|error| self.fail(&error))
    }
}
