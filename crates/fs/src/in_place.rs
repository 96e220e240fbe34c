//! Overwrites in place, under `metadata-prefix` (DFSCQ §5.4, §6.1, §6.2).
//!
//! An overwrite waits in memory as a whole block with its home ([`Pages::places`]) until it is
//! *written out*: at a sync of the file or of everything, at the commit interval, when too
//! many wait, at unmount, and before the file's size or allocation changes. It is flushed by
//! `fdatasync` and everything stronger, outside of all transactions. Rules:
//!
//! * the journal must not keep the block from it (`steadfast_journal`, module `place`): no patch of it in
//!   a transaction or in the log, no record that is not proved covers it. Then the block has
//!   belonged to the file, at this place, in every tree that a crash may leave (*bypass safety*);
//! * its bytes lie before the end of the file in each of those trees: a file whose size is not
//!   durable is patched instead, or bytes past its old end would not be zero;
//! * while it waits, no operation patches or frees the block: an operation that is about to do so first
//!   writes the block out, and looks again under the inode's lock;
//! * it is written out under that lock, exclusive: no block has two writes in flight.
//!
//! Else the write is a patch, of whole sectors: a replay would put a patch of only the written bytes over the
//! sector's content from before an overwrite in place that is not durable. `fdatasync` commits metadata when the file's size or
//! allocation changed or a patch of it is not durable ([`InPlaceLedger`](crate::ledger::InPlaceLedger)): only then are its blocks the
//! same in every tree, and all its data outside of transactions (*block stability*).

use crate::contract::Contract;
use crate::error::from_journal;
use crate::mounted::Mounted;
use crate::pages::Pages;
use std::sync::Arc;
use steadfast_block::{Block, BlockNo, SECTOR_SIZE};
use steadfast_journal::Ticket;
use steadfast_vfs::{Ino, Result};

/// The ledger is searched for durable changes when it has grown to this many.
const SWEEP_MIN: usize = 1024;

/// Part of a file that a change concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Concerns {
    /// Its size, and possibly more.
    Size,
    /// Its allocation, or patches of its data.
    Data,
}

impl Mounted {
    /// Whether overwrites go in place at all.
    fn writes_in_place(&self) -> bool {
        self.store.volume.contract == Contract::MetadataPrefix
    }

    /// A file was changed by the operation of this ticket; under its lock.
    pub(crate) fn note_change(&self, ino: Ino, concerns: Concerns, ticket: Option<Ticket>) {
        if !self.writes_in_place() || ticket.is_none() {
            return;
        }
        let mut entries = self.store.in_place.lock();
        let changes = entries.changes.entry(ino).or_default();
        changes.any = ticket;
        if concerns == Concerns::Size {
            changes.size = ticket;
        }
        if entries.changes.len() < entries.sweep_at.max(SWEEP_MIN) {
            return;
        }
        let (inos, tickets): (Vec<Ino>, Vec<Ticket>) = entries
            .changes
            .iter()
            .filter_map(|(ino, changes)| Some((*ino, changes.any?)))
            .unzip();
        let durable = self.store.journal.are_durable(&tickets);
        for (ino, durable) in inos.iter().zip(durable) {
            if durable {
                entries.changes.remove(ino);
            }
        }
        entries.sweep_at = entries.changes.len() * 2;
    }

    /// Whether the newest change of this kind is durable.
    fn is_durable(&self, ino: Ino, concerns: Concerns) -> bool {
        let Some(changes) = self.store.in_place.lock().changes.get(&ino).copied() else {
            return true;
        };
        let ticket = match concerns {
            Concerns::Size => changes.size,
            Concerns::Data => changes.any,
        };
        ticket.is_none_or(|ticket| self.store.journal.are_durable(&[ticket]) == [true])
    }

    /// Whether `fdatasync` of the file must commit metadata.
    pub(crate) fn wants_commit(&self, ino: Ino) -> bool {
        !self.is_durable(ino, Concerns::Data)
    }

    /// Whether overwrites of the file that do not reach past its end may go in place; under
    /// its lock.
    pub(crate) fn may_write_in_place(&self, ino: Ino) -> bool {
        self.writes_in_place()
            && (self.options.faults.in_place_past_end || self.is_durable(ino, Concerns::Size))
    }

    /// Bytes of a unit: data is patched in whole units.
    pub(crate) fn patch_unit(&self) -> usize {
        if self.writes_in_place() && !self.options.faults.narrow_patches {
            SECTOR_SIZE
        } else {
            1
        }
    }

    /// The file's overwrites go to their homes. Hold no lock and no operation.
    ///
    /// # Errors
    /// EIO; the journal then stops.
    pub(crate) fn write_out(&self, ino: Ino) -> Result<()> {
        if !self.store.in_place.waits(ino) {
            return Ok(());
        }
        let inode = self.table.get(ino);
        let mut state = inode.exclusive();
        let runs = state.pages.place_runs();
        self.store
            .journal
            .write_in_place(&runs)
            .map_err(from_journal)?;
        self.forget_places(ino, &mut state.pages);
        Ok(())
    }

    /// All files' overwrites do.
    ///
    /// # Errors
    /// As for [`Mounted::write_out`].
    pub(crate) fn write_out_all(&self) -> Result<()> {
        let inos: Vec<Ino> = self.store.in_place.lock().waiting.keys().copied().collect();
        inos.into_iter().try_for_each(|ino| self.write_out(ino))
    }

    /// The same if too many wait.
    ///
    /// # Errors
    /// As for [`Mounted::write_out`].
    pub(crate) fn write_out_surplus(&self) -> Result<()> {
        if self.store.in_place.blocks() > self.in_place_blocks_max {
            self.write_out_all()?;
        }
        Ok(())
    }

    /// Forgets overwrites that need not wait any more: written, or the file goes away.
    pub(crate) fn forget_places(&self, ino: Ino, pages: &mut Pages) {
        if !pages.places.is_empty() {
            pages.places.clear();
            self.store.in_place.set_waiting(ino, 0);
        }
    }

    /// `fsync` under `metadata-prefix`: all metadata, and this file's data.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn sync_file(&self, ino: Ino, metadata: bool) -> Result<()> {
        let journal = &self.store.journal;
        self.write_out(ino)?;
        let stable = self.options.faults.fdatasync_without_metadata || !self.wants_commit(ino);
        if metadata || !stable {
            let stream = self.store.stream(steadfast_vfs::Stream::default());
            journal.sync(stream, &[]).map_err(from_journal)?;
        }
        journal.flush_in_place().map_err(from_journal)
    }
}

impl Pages {
    /// The overwrites that wait, in runs of neighbours.
    fn place_runs(&self) -> Vec<(BlockNo, Vec<Arc<Block>>)> {
        let mut runs: Vec<(BlockNo, Vec<Arc<Block>>)> = Vec::new();
        for (home, block) in self.places.values() {
            match runs.last_mut() {
                Some((at, blocks)) if at.offset(blocks.len() as u64) == *home => {
                    blocks.push(Arc::clone(block));
                }
                _ => runs.push((*home, vec![Arc::clone(block)])),
            }
        }
        runs
    }
}
