//! Tells the device of all free space, so that it need not keep what nobody reads: a disk in flash memory
//! moves less, an image file gets holes.
//!
//! Order, and why it suffices: everything is committed first, so that what was freed has left the quarantine; then
//! each run of *available* blocks is claimed, trimmed, and made available again. An available block is free
//! in every tree that a crash may leave, and while it is claimed nobody else has it. So others
//! may work meanwhile; a crash leaves some runs trimmed, and no file knows.

use crate::error::from_journal;
use crate::mount::Fs;
use steadfast_vfs::Result;

/// What was trimmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trimmed {
    /// Runs of free blocks.
    pub runs: u64,
    /// Blocks in them.
    pub blocks: u64,
}

impl Fs {
    /// See the module's header. `progress` is told how many block groups have been looked at.
    ///
    /// # Errors
    /// EROFS; EIO, EUCLEAN if a bitmap cannot be read; the device's.
    pub(crate) fn trim(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Trimmed> {
        self.writable()?;
        if self.faults.trim_current {
            return self.trim_current();
        }
        let (journal, volume) = (&self.store.journal, &self.store.volume);
        journal.sync_all().map_err(from_journal)?;
        let mut trimmed = Trimmed::default();
        for group in 0..volume.groups {
            let mut index = 0;
            while let Some((start, count)) = self.store.alloc.claim_from(group, index)? {
                let at = volume.group_start(group).offset(start as u64);
                let told = journal.trim(at, count);
                self.store.alloc.unclaim(at, count);
                told.map_err(from_journal)?;
                trimmed.runs += 1;
                trimmed.blocks += count;
                index = start + count as usize;
            }
            progress(group + 1, volume.groups);
        }
        journal.flush_trims().map_err(from_journal)?;
        Ok(trimmed)
    }

    /// Planted fault: what is free in memory may not be in the tree that a crash leaves.
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
