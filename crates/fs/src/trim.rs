//! Tells the device of all free space, so that it need not keep blocks that are never read: a disk in flash memory
//! moves less, an image file gets holes.
//!
//! Order, and why it suffices: everything is committed first, so that freed blocks have left the quarantine; then
//! each run of *available* blocks is held, trimmed, and let go, in pieces of at most [`PIECE_BLOCKS`]. An available block is
//! free in every tree that a crash may leave, and while it is held no other operation takes it. So others
//! may work meanwhile; a crash leaves some runs trimmed, and no file knows.
//!
//! Held blocks still count as available: space reserved for delayed pages stays reserved. An allocation that finds
//! no other block waits for the piece (`Allocator::claim`) and keeps its locks; so a trim takes no lock while it
//! holds a piece.

use crate::alloc::TrimLook;
use crate::error::from_journal;
use crate::layout::GROUP_BLOCKS;
use crate::mounted::Mounted;
use std::ops::Range;
use std::sync::PoisonError;
use steadfast_block::BLOCK_SIZE;
use steadfast_vfs::{Errno, Result};

/// Most blocks that are held at a time (32 MiB).
const PIECE_BLOCKS: u64 = 8192;

/// Range to trim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrimRange {
    /// Bytes of the device. Only whole blocks inside are trimmed.
    pub bytes: Range<u64>,
    /// Shorter runs of free bytes are passed over.
    pub min_bytes: u64,
}

impl Default for TrimRange {
    fn default() -> TrimRange {
        TrimRange {
            bytes: 0..u64::MAX,
            min_bytes: 0,
        }
    }
}

/// Result of a trim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trimmed {
    /// Pieces of runs of free blocks.
    pub runs: u64,
    /// Blocks in them.
    pub blocks: u64,
}

impl Mounted {
    /// See the module's header. `progress` gets the number of block groups looked at so far.
    ///
    /// # Errors
    /// EROFS; EINVAL for a range that begins past the volume; EIO, EUCLEAN if a bitmap cannot be read; the device's.
    pub(crate) fn trim(
        &self,
        range: &TrimRange,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Trimmed> {
        self.writable()?;
        if self.options.faults.trim_current {
            return self.trim_current();
        }
        let (journal, volume) = (&self.store.journal, &self.store.volume);
        let block = BLOCK_SIZE as u64;
        let (first, end) = (range.bytes.start.div_ceil(block), range.bytes.end / block);
        if first >= volume.blocks {
            return Err(Errno::Inval.into());
        }
        let _alone = self.trims.lock().unwrap_or_else(PoisonError::into_inner);
        journal.sync_all().map_err(from_journal)?;
        let mut trimmed = Trimmed::default();
        for group in 0..volume.groups {
            let start = volume.group_start(group).0;
            let within = |at: u64| at.saturating_sub(start).min(GROUP_BLOCKS) as usize;
            let mut look = TrimLook {
                from: within(first),
                to: within(end),
                min: range.min_bytes.div_ceil(block).max(1),
                max: PIECE_BLOCKS,
                cut: false,
            };
            while look.from < look.to
                && let Some((at, count)) = self.store.alloc.begin_trim(group, &look)?
            {
                if self.options.faults.trim_unheld {
                    self.store.alloc.end_trim();
                }
                let told = journal.trim(at, count);
                self.store.alloc.end_trim();
                told.map_err(from_journal)?;
                trimmed.runs += 1;
                trimmed.blocks += count;
                look.from = within(at.0 + count);
                look.cut = count == look.max;
            }
            progress(group + 1, volume.groups);
        }
        journal.flush_trims().map_err(from_journal)?;
        Ok(trimmed)
    }

    /// Planted fault: blocks that are free in memory may be in use in the tree that a crash leaves.
    fn trim_current(&self) -> Result<Trimmed> {
        let journal = &self.store.journal;
        for group in 0..self.store.volume.groups {
            for (at, count) in self.store.alloc.clear_runs(group)? {
                journal.trim(at, count).map_err(from_journal)?;
            }
        }
        journal.flush_trims().map_err(from_journal)?;
        Ok(Trimmed::default())
    }
}
