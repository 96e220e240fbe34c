//! Without a log: a batch is written home and its epoch is closed, on a device that a crash returns to its last
//! flush ([`steadfast_block::Snapshot`]).
//!
//! Order of a batch: its images (committed ones, with its own patches) are written home, all of
//! them in one epoch; closing the epoch sends them, together with the data that was written
//! before; when the epoch is durable, the batch is acknowledged. A crash before that leaves the device at an
//! earlier epoch's end, and that is the end of an earlier batch, because
//!
//! * no thread closes an epoch between the first write of a batch and its last: the ledger is locked;
//! * a batch fits an epoch: credits are writes of an epoch, and what all transactions have
//!   reserved is never more than one;
//! * data written outside of batches is not visible before a batch makes it so: new blocks, which
//!   no committed image names; or it may be seen at any time: data in place (`place`). So if the
//!   epoch has no room for what comes next, an epoch that ends *between* batches leaves the tree of the last one;
//! * a batch that fails half-way leaves the ledger torn, and no thread closes an epoch any more. The next
//!   mount returns the device to its last epoch.
//!
//! *Several epochs on their way.* The ledger is unlocked when the epoch is closed, and the next batch is laid, written and
//! closed before this one is durable. That is sound because the device makes epochs durable whole and in order:
//!
//! * the images of a closed batch count as committed at once, and the next batch is laid on them. If a crash keeps the
//!   next one, it keeps this one, too. If the images became the committed ones only later, the next batch would write this
//!   one's changes away again;
//! * a transaction may follow one that is in a closed batch: it comes into a later epoch;
//! * a batch is acknowledged after its epoch was waited for, and after all batches before it (`Core::durable_upto`). Only then
//!   do its transactions, marks and names of objects go, and only then are its freed blocks reused;
//! * an epoch that fails is the end: the failure is sticky, in the device and here, so nothing later is acknowledged.
//!
//! Which thread waits: the one that led the batch; the acknowledger, for batches of the flusher. A thread that syncs sends
//! beside others only if enough threads share the request (`policy::sends_beside`).
//!
//! Committed images are never ahead of the device's writes, so blocks need no place in memory afterwards,
//! and blocks that an acknowledged batch freed can be reused at once.
//!
//! *Notes.* The journal hands notes of operations to the device between a batch's first write and the close of its epoch. So a crash keeps an operation and its note, or neither.
//!
//! *Trims.* The journal trims freed blocks, or the device would keep and move them for ever. A batch's freed
//! blocks become *waste* after its images; when enough waste has gathered, it is trimmed in that
//! batch's epoch, after everything else. That order suffices:
//!
//! * a crash that takes back the trim takes back the batch that frees the block, too; after that batch no tree has the block;
//! * a block is reused only after the batch that frees it, and a write to it takes it out of
//!   the waste under the ledger's lock; so no trim follows the new bytes;
//! * trims get the room that the epoch has left. Without room, or if the device refuses one, they wait for a later batch;
//!   those that a crash forgets are only waste (`Journal::trim` finds them).

use crate::core::{Batch, DataRun, HomeImage, PostImage};
use crate::engine::{Inner, WRITE_BLOCKS_MAX};
use crate::epoch::{ClosedEpoch, Epoch, EpochLedger};
use crate::sync::MutexGuard;
use crate::{Error, Journal, Kind, Result, checkpoint::write_home};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo, Snapshot, Ticket};

/// Blocks in one request, if the device is given several requests at once.
const PIECE_BLOCKS: usize = 128;
/// Requests that the device is given at once.
const PIECES_AT_ONCE: usize = 8;

/// Whether two pieces share a block.
fn meet(one: (BlockNo, &[Arc<Block>]), other: (BlockNo, &[Arc<Block>])) -> bool {
    let ends_after = |a: (BlockNo, &[_]), b: (BlockNo, &[_])| a.0.0 + a.1.len() as u64 > b.0.0;
    ends_after(one, other) && ends_after(other, one)
}

impl Journal {
    /// Tells the device that a run of blocks is free, so that it need not keep their bytes. The caller owns
    /// the run: no tree that a crash may leave has the blocks, and no operation takes them meanwhile.
    ///
    /// # Errors
    /// The device's, which changes nothing else.
    pub fn trim(&self, at: BlockNo, count: u64) -> Result<()> {
        let inner = self.inner();
        if inner.config.read_only {
            return Err(Error::ReadOnly);
        }
        inner.check_run(at, count)?;
        inner.core.lock().check()?;
        if let Some(epoch) = &inner.epoch {
            let mut ledger = inner.with_room(epoch, 1)?;
            ledger.discards.remove((at, count));
            ledger.written += 1;
            inner.device.discard(at, count)?;
        } else {
            inner.device.discard(at, count)?;
        }
        let stats = &mut inner.core.lock().stats;
        stats.trims += 1;
        stats.trimmed_blocks += count;
        Ok(())
    }

    /// Makes all trims durable.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn flush_trims(&self) -> Result<()> {
        let inner = self.inner();
        inner.flush_outside().map_err(|error| inner.fail(&error))
    }
}

impl Inner {
    /// Writes a batch home and closes its epoch; see the module's header. The next batch can begin then. The caller waits
    /// for the epoch, which acknowledges the batch.
    pub(crate) fn send_home(&self, epoch: &Epoch, batch: Batch) -> Result<ClosedEpoch> {
        let (post, images) = self.images_after(&batch);
        let blocks = images.len() as u64;
        if blocks > epoch.blocks() && !self.config.faults.ignore_epoch {
            // Reservations make this a formality. Nothing was written.
            let size = BLOCK_SIZE as u64;
            return Err(Error::TooLarge {
                needed: blocks * size,
                limit: epoch.blocks() * size,
            });
        }
        self.core.lock().laid(&batch, blocks);
        if self.config.faults.trim_before {
            self.trim_before(&batch)?;
        }
        let mut ledger = self.with_room(epoch, blocks)?;
        ledger.torn = true;
        let half = match self.config.faults.flush_between {
            true => images.len() / 2,
            false => 0,
        };
        let (first, rest) = images.split_at(half);
        if !first.is_empty() {
            write_home(&*self.device, first)?;
            self.close_epoch()?;
        }
        write_home(&*self.device, rest)?;
        for run in batch.frees() {
            ledger.discards.add(run);
        }
        for image in &images {
            // Never there: it would live again in the batch that frees it.
            ledger.discards.remove((image.at, 1));
        }
        if ledger.discards.blocks() >= self.config.trim_blocks {
            let room = epoch.blocks().saturating_sub(ledger.written + blocks);
            self.trim_some(&mut ledger, room);
        }
        self.leave_notes(&batch)?;
        let closed = self.close_epoch()?;
        ledger.written = 0;
        ledger.torn = false;
        drop(ledger);
        if self.config.faults.data_late {
            self.wait_for_device(closed)?;
            for (_, txn) in &batch.txns {
                self.write_runs(&txn.data)?;
            }
        }
        let seq = batch.seq;
        let mut core = self.core.lock();
        core.stats.home_blocks += blocks;
        core.taken(batch, post, closed, &self.cache);
        self.batch_taken(core, seq);
        if self.config.faults.acknowledge_closed {
            self.acknowledge_upto(closed);
        }
        Ok(closed)
    }

    /// Gives the device the notes of a batch, for the epoch that has its images. The caller holds the ledger, so no other
    /// epoch gets them.
    fn leave_notes(&self, batch: &Batch) -> Result<()> {
        let mut notes = batch.txns.iter().flat_map(|(_, txn)| &txn.notes).peekable();
        if notes.peek().is_none() {
            return Ok(());
        }
        let epochs = self.epochs()?;
        notes
            .filter_map(|note| note())
            .for_each(|note| epochs.note(&note));
        Ok(())
    }

    fn epochs(&self) -> Result<&dyn Snapshot> {
        let none = || Error::NoEpochs {
            what: "the device has no epochs any more".into(),
        };
        self.device.snapshot().ok_or_else(none)
    }

    /// Closes the epoch under way. The caller holds the ledger.
    fn close_epoch(&self) -> Result<ClosedEpoch> {
        let flush = {
            let mut core = self.core.lock();
            core.stats.flushes += 1;
            core.epoch_closes()
        };
        let ticket = match self.config.faults.skip_flush {
            true => Ticket::default(),
            false => self.epochs()?.close_epoch()?,
        };
        Ok(ClosedEpoch { flush, ticket })
    }

    fn wait_for_device(&self, closed: ClosedEpoch) -> Result<()> {
        if !self.config.faults.skip_flush {
            self.epochs()?.wait(closed.ticket)?;
        }
        self.core.lock().flushed(closed.flush);
        Ok(())
    }

    /// Waits until an epoch is durable, and acknowledges the batches up to it.
    pub(crate) fn wait_epoch(&self, closed: ClosedEpoch) -> Result<()> {
        self.wait_for_device(closed)
            .map_err(|error| self.fail(&error))?;
        self.acknowledge_upto(closed);
        Ok(())
    }

    fn acknowledge_upto(&self, closed: ClosedEpoch) {
        loop {
            let mut core = self.core.lock();
            // After a failure nothing is acknowledged.
            if core.failure().is_some() {
                return;
            }
            let Some((seq, runs)) = core.durable_upto(closed, &self.cache) else {
                return;
            };
            self.batch_ended(core, seq);
            self.released(&runs);
        }
    }

    /// The images that a batch leads to, by address: for the core, and as they go home.
    fn images_after(&self, batch: &Batch) -> (Vec<PostImage>, Vec<HomeImage>) {
        let parts = batch.parts();
        let mut post = Vec::with_capacity(parts.len());
        let mut images = Vec::with_capacity(parts.len());
        for parts in parts.chunk_by(|a, b| a.0 == b.0) {
            let (after, kind) = self.post_image(BlockNo(parts[0].0), parts);
            if let Some(image) = &after.image {
                images.push(HomeImage {
                    at: after.at,
                    checksum: (kind == Kind::Meta).then_some(after.checksum),
                    image: image.clone(),
                });
            }
            post.push(after);
        }
        (post, images)
    }

    /// The ledger, with room for `blocks` writes in the epoch.
    fn with_room<'a>(&self, epoch: &'a Epoch, blocks: u64) -> Result<MutexGuard<'a, EpochLedger>> {
        let mut ledger = epoch.ledger.lock();
        ledger.check()?;
        if ledger.written + blocks > epoch.blocks() && !self.config.faults.ignore_epoch {
            // Later writes are durable only after it.
            self.close_epoch()?;
            ledger.written = 0;
        }
        Ok(ledger)
    }

    /// Writes data that belongs to no batch under way to its place: a block for each segment.
    pub(crate) fn write_outside(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        let Some(epoch) = &self.epoch else {
            return Ok(self.device.write(at, segments)?);
        };
        debug_assert!(segments.len() <= WRITE_BLOCKS_MAX);
        let mut ledger = self.with_room(epoch, segments.len() as u64)?;
        if !self.config.faults.trim_again {
            ledger.discards.remove((at, segments.len() as u64));
        }
        self.device.write(at, segments)?;
        ledger.written += segments.len() as u64;
        Ok(())
    }

    /// Writes runs that belong to no batch under way to their places, several requests at once where the device can.
    /// Requests that overlap are written in order, so the newest bytes of a block win. All of them have ended when this
    /// returns: a flush that comes later covers them. Returns the number of blocks.
    pub(crate) fn write_runs_outside(&self, runs: &[DataRun]) -> Result<u64> {
        let pieces = runs.iter().flat_map(|(at, blocks)| {
            let firsts = (at.0..).step_by(PIECE_BLOCKS).map(BlockNo);
            firsts.zip(blocks.chunks(PIECE_BLOCKS))
        });
        let mut blocks = 0;
        let mut together: Vec<(BlockNo, &[Arc<Block>])> = Vec::with_capacity(PIECES_AT_ONCE);
        for (at, piece) in pieces {
            blocks += piece.len() as u64;
            if together.len() == PIECES_AT_ONCE
                || together.iter().any(|other| meet(*other, (at, piece)))
            {
                self.write_together(&together)?;
                together.clear();
            }
            together.push((at, piece));
        }
        self.write_together(&together)?;
        Ok(blocks)
    }

    fn write_together(&self, pieces: &[(BlockNo, &[Arc<Block>])]) -> Result<()> {
        let segments: Vec<Vec<&[u8]>> = (pieces.iter())
            .map(|(_, piece)| piece.iter().map(|block| &block[..]).collect())
            .collect();
        let mut writes = pieces.iter().zip(&segments);
        if self.epoch.is_some() || pieces.len() < 2 {
            return writes.try_for_each(|((at, _), segments)| self.write_outside(*at, segments));
        }
        let writes: Vec<(BlockNo, &[&[u8]])> = writes
            .map(|((at, _), segments)| (*at, &segments[..]))
            .collect();
        Ok(self.device.write_scattered(&writes)?)
    }

    /// Tells the device of waste, a write of the epoch for each run; of as much as there is room for.
    fn trim_some(&self, ledger: &mut EpochLedger, room: u64) {
        let (mut runs, mut blocks) = (0, 0);
        let room = match self.device.snapshot() {
            Some(snapshot) => room.min(snapshot.room()),
            None => room,
        };
        while runs < room
            && let Some((at, count)) = ledger.discards.take()
        {
            if self.device.discard(at, count).is_err() {
                // The flush will report the failure that has stopped the device.
                ledger.discards.add((at, count));
                break;
            }
            (runs, blocks) = (runs + 1, blocks + count);
        }
        ledger.written += runs;
        let stats = &mut self.core.lock().stats;
        stats.trims += runs;
        stats.trimmed_blocks += blocks;
    }

    /// When everything is durable: trims the rest.
    pub(crate) fn trim_rest(&self) -> Result<()> {
        let Some(epoch) = &self.epoch else {
            return Ok(());
        };
        let mut ledger = epoch.ledger.lock();
        ledger.check()?;
        while ledger.discards.blocks() > 0 {
            let (before, room) = (ledger.discards.blocks(), epoch.blocks() - ledger.written);
            self.trim_some(&mut ledger, room);
            let stuck = ledger.discards.blocks() == before && ledger.written == 0;
            if ledger.written > 0 {
                let closed = self.close_epoch()?;
                ledger.written = 0;
                self.wait_for_device(closed)?;
            }
            if stuck {
                break;
            }
        }
        Ok(())
    }

    /// Planted fault: blocks are trimmed in the epoch before the one that frees them.
    fn trim_before(&self, batch: &Batch) -> Result<()> {
        for (at, count) in batch.frees() {
            self.device.discard(at, count)?;
        }
        let closed = self.close_epoch()?;
        self.wait_for_device(closed)
    }

    /// Makes writes outside of batches durable.
    pub(crate) fn flush_outside(&self) -> Result<()> {
        let Some(epoch) = &self.epoch else {
            return self.flush();
        };
        let mut ledger = epoch.ledger.lock();
        ledger.check()?;
        let closed = self.close_epoch()?;
        ledger.written = 0;
        drop(ledger);
        self.wait_for_device(closed)
    }
}
