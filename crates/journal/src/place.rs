//! Data written in place, outside of any transaction (DFSCQ §5.4, §6.2: log bypass).
//!
//! A crash leaves each sector of such a block with its old or its new bytes, until
//! [`Journal::flush_in_place`] returned. The rules, each needed:
//!
//! * a block with patches in a transaction or in the log past the durable tail is not written
//!   in place: replay would put old bytes over newer ones. Nor, therefore, is a block whose home write may be in flight;
//! * a block that an uncommitted or unproved record covers is not written in place: the record
//!   would fail its check, and the acknowledged transaction would be lost (ARCHITECTURE.md,
//!   section 4);
//! * the caller owns the block, and no operation patches, frees or writes it meanwhile: the
//!   caller's lock. So a freed block has no write in flight.

use crate::core::Run;
use crate::engine::{Inner, WRITE_BLOCKS_MAX};
use crate::handle::Journal;
use crate::{Error, Result, Ticket};
use std::collections::BTreeSet;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};

impl Journal {
    /// Those blocks of the runs that must not be written in place now. A block that is not among
    /// them stays so until an operation patches, frees or writes it.
    #[must_use]
    pub fn kept_from_place(&self, runs: &[(BlockNo, u64)]) -> BTreeSet<BlockNo> {
        let inner: &Inner = self.inner();
        let faults = &inner.config.faults;
        let (_lanes, core) = inner.told();
        let mut kept = BTreeSet::new();
        for run in runs {
            core.kept_from_place(*run, faults, &mut kept);
        }
        kept
    }

    /// Writes data blocks to their homes. See the module's header; not durable before
    /// [`Journal::flush_in_place`], or anything else that flushes.
    ///
    /// # Errors
    /// [`Error::Logged`] if a block is among [`Journal::kept_from_place`]; then nothing was
    /// written. The device's error, which is sticky.
    pub fn write_in_place(&self, data: &[(BlockNo, Vec<Arc<Block>>)]) -> Result<()> {
        let inner: &Inner = self.inner();
        if inner.config.read_only {
            return Err(Error::ReadOnly);
        }
        let runs: Vec<Run> = (data.iter())
            .map(|(at, blocks)| (*at, blocks.len() as u64))
            .collect();
        runs.iter()
            .try_for_each(|(at, count)| inner.check_run(*at, *count))?;
        if let Some(at) = self.kept_from_place(&runs).first() {
            return Err(Error::Logged { at: *at });
        }
        inner.core.lock().check()?;
        let written = inner.write_runs_outside(data);
        written.map_err(|error| inner.fail(&error))?;
        for (at, blocks) in data {
            for (i, block) in (0..).zip(blocks) {
                // A block in memory has the new bytes, current and committed.
                inner.cache.with(at.offset(i), |entry| {
                    entry.current = Arc::clone(block);
                    entry.committed = Arc::clone(block);
                });
            }
        }
        inner.core.lock().written_in_place(&runs);
        Ok(())
    }

    /// Writes zeros to data blocks that belong to the caller and that are not read yet: in every tree that a crash may
    /// leave they are free, or reads do not reach them. Durable when this returns, so that an operation
    /// may let them be read then. Content of an earlier life of the blocks in memory is void.
    ///
    /// # Errors
    /// [`Error::Logged`] if a block is among [`Journal::kept_from_place`]; then nothing was
    /// written. The device's error, which is sticky.
    pub fn write_zeros(&self, at: BlockNo, count: u64) -> Result<()> {
        static ZEROS: Block = [0; BLOCK_SIZE];
        let inner: &Inner = self.inner();
        if inner.config.read_only {
            return Err(Error::ReadOnly);
        }
        inner.check_run(at, count)?;
        if let Some(at) = self.kept_from_place(&[(at, count)]).first() {
            return Err(Error::Logged { at: *at });
        }
        let segments = [&ZEROS[..]; WRITE_BLOCKS_MAX];
        let end = at.0 + count;
        let mut next = at.0;
        while next < end {
            let len = (end - next).min(WRITE_BLOCKS_MAX as u64);
            (next..next + len).for_each(|at| inner.cache.forget(BlockNo(at)));
            let written = inner.write_outside(BlockNo(next), &segments[..len as usize]);
            written.map_err(|error| inner.fail(&error))?;
            next += len;
        }
        if inner.config.faults.zeros_unflushed {
            return Ok(());
        }
        inner.flush_outside().map_err(|error| inner.fail(&error))
    }

    /// Makes everything durable that was written in place; does nothing if a flush that
    /// began since did so.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn flush_in_place(&self) -> Result<()> {
        self.inner().flush_in_place()
    }

    /// Whether each of these operations is durable.
    #[must_use]
    pub fn are_durable(&self, tickets: &[Ticket]) -> Vec<bool> {
        let (_lanes, core) = self.inner().told();
        let durable = |ticket: &Ticket| core.transaction_of(*ticket).is_none();
        tickets.iter().map(durable).collect()
    }
}

impl Inner {
    pub(crate) fn flush_in_place(&self) -> Result<()> {
        let core = self.core.lock();
        core.check()?;
        let needed = core.wants_place_flush();
        drop(core);
        if needed {
            self.flush_outside().map_err(|error| self.fail(&error))
        } else {
            Ok(())
        }
    }
}
