//! Writing into preallocated blocks when there is no block left for the tree.
//!
//! A page over an unwritten extent has its block, but writing it may split the extent, and the tree may need
//! a node for that. On a full volume the whole extent, as far as the file reaches, is written with zeros instead and
//! becomes a written one in its place: that needs no node, and the write after it is an overwrite (corner 71).
//! Behind the end of the file nothing is written: there a split may take some of the space that is kept for
//! operations that free some, and so may the split at the end itself (`Purpose::Splitting`).
//!
//! Order, and why it suffices:
//!
//! 1. the file's delayed pages get their blocks: they count on an unwritten extent;
//! 2. under the inode's lock the blocks are written with zeros and flushed. Every tree that a crash may
//!    leave has them in an unwritten extent, which reads as zeros;
//! 3. one operation marks them as written. Readers find zeros, as before.
//!
//! The operation is open during the writes, so that no operation takes the blocks away between 2 and 3; closes wait for it.
//! An extent has at most the blocks of a group, and each is written so once.

use crate::btree;
use crate::data::{ATTEMPTS_MAX, require_file};
use crate::error::from_journal;
use crate::extents::{self, Extent};
use crate::in_place::Concerns;
use crate::inode::{self, Place};
use crate::layout::DiskInode;
use crate::mounted::Mounted;
use crate::pages::{COST_INODE, PAGE};
use crate::reader::{Current, Reader};
use steadfast_journal::{Access, Credits, Object};
use steadfast_vfs::{Caller, Errno, Ino, Result};

impl Mounted {
    /// Turns the unwritten extent under the byte at `offset` into zeros, up to the end of the file. Whether the page
    /// has a written block now. Hold no lock and no operation.
    ///
    /// # Errors
    /// ESTALE, EISDIR, EINVAL, EIO, EUCLEAN, EROFS.
    pub(crate) fn write_zeros_under(&self, caller: &Caller, ino: Ino, offset: u64) -> Result<bool> {
        let store = &self.store;
        let volume = &store.volume;
        let inode = self.table.get(ino);
        let stream = store.stream(caller.stream);
        let page = offset / PAGE;
        for _ in 0..ATTEMPTS_MAX {
            let level = {
                let _state = inode.shared();
                let mut reader = Current(&store.journal);
                let disk = inode::read(volume, &mut reader, ino)?;
                if self.preallocated(&mut reader, &disk, page)?.is_none() {
                    return Ok(false);
                }
                btree::level(volume, &disk.body)?
            };
            self.settle(caller.stream, ino)?;
            self.write_out(ino)?;
            store
                .journal
                .sync(stream, &[Object::File(ino)])
                .map_err(from_journal)?;
            let log_bytes = COST_INODE + btree::change_credits(level);
            let mut work = store.begin(caller.stream, Credits::log(log_bytes))?;
            work.use_splitting_space();
            work.relate(Object::File(ino), Access::Exclusive);
            let state = inode.exclusive();
            let pages = &state.pages;
            if pages.cut.is_some() || !pages.is_empty() || !pages.places.is_empty() {
                continue;
            }
            let old = inode::read(volume, &mut work, ino)?;
            if btree::level(volume, &old.body)? > level {
                continue;
            }
            let extent = match self.preallocated(&mut work, &old, page)? {
                Some(extent) if extent.unwritten => extent,
                found => return Ok(found.is_some()),
            };
            let mut new = old;
            let change = match extents::mark_written(&mut work, &mut new.body, extent) {
                Err(error) if error == Errno::NoSpc => return Ok(false),
                change => change?,
            };
            new.blocks = change.apply(new.blocks.get()).into();
            store
                .journal
                .write_zeros(extent.block, extent.len)
                .map_err(from_journal)?;
            inode::patch(&mut work, Place::of(volume, ino)?, &old, &new)?;
            let ticket = work.commit();
            self.note_change(ino, Concerns::Data, ticket);
            drop(state);
            if let Some(ticket) = ticket {
                // An overwrite in place asks for an allocation that is durable.
                store.journal.wait(ticket).map_err(from_journal)?;
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// The extent at a page before the end of the file, as far as the file reaches.
    fn preallocated(
        &self,
        reader: &mut impl Reader,
        disk: &DiskInode,
        page: u64,
    ) -> Result<Option<Extent>> {
        require_file(disk)?;
        let end = disk.size.get().div_ceil(PAGE);
        let extent = extents::at_or_over(reader, &self.store.volume, &disk.body, page)?;
        Ok(extent
            .filter(|extent| extent.logical <= page && page < end)
            .map(|extent| extent.up_to(end)))
    }
}
