//! Promotion: a clone copies the blocks of its parents into objects of its own, and then needs no parent.
//!
//! Order: live blocks of the parents' objects are moved as collection moves blocks. A cell of the map in a parent's map object
//! has only blocks in parents' objects; so the moves change it, and a checkpoint writes it anew. After a crash in between, the
//! clone needs fewer objects of its parents, and the next call moves the rest. The parent's pin is removed only after a
//! checkpoint without a reference to a parent was published ([`Found::leave_parent`](crate::Found::leave_parent)).

use super::checkpoint::CheckpointError;
use super::collect::{MOVED_BLOCKS, batch_of};
use super::{Core, Shared};
use crate::driver::Failed;
use crate::fault::DeviceFault;
use crate::map::ObjectEntry;
use crate::object::CellKind;

impl Shared {
    /// Moves all blocks in parents' objects into objects of this volume, and publishes a checkpoint. Returns the number of
    /// moved blocks; `progress` gets that number as it grows, and the total.
    pub(super) fn promote(
        &self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64, CheckpointError> {
        let all = self.lock().parents_blocks();
        let mut moved = 0;
        loop {
            let mut objects = self.lock().parents_objects();
            if self.has(DeviceFault::PromotedInPart) {
                objects.pop();
            }
            if objects.is_empty() {
                break;
            }
            let mut moves = Vec::new();
            let mut rest = &objects[..];
            while !rest.is_empty() {
                let (batch, others) = rest.split_at(batch_of(rest));
                rest = others;
                self.live_blocks(batch, &mut moves)?;
            }
            if moves.is_empty() {
                let why = "the map counts blocks of a parent's object that are not in it";
                return Err(Failed::Inconsistent(why).into());
            }
            for batch in moves.chunks(MOVED_BLOCKS as usize) {
                self.relocate(batch)?;
            }
            moved += moves.len() as u64;
            progress(moved, all.max(moved));
            self.checkpoint(false)?;
        }
        Ok(moved)
    }
}

impl Core {
    /// Blocks that are read from parents.
    pub(crate) fn parents_blocks(&self) -> u64 {
        let objects = self.map.objects();
        let theirs = objects.filter(|(_, entry)| entry.source != 0);
        theirs.map(|(_, entry)| u64::from(entry.live)).sum()
    }

    /// The next objects of parents with live blocks: at least one if there is any; together at most [`MOVED_BLOCKS`] live
    /// blocks.
    fn parents_objects(&self) -> Vec<(u32, ObjectEntry)> {
        let mut blocks = 0;
        let objects = self.map.objects();
        let theirs = objects.filter(|(_, entry)| entry.source != 0 && entry.live > 0);
        let fits = |(_, entry): &(u32, &ObjectEntry)| {
            let first = blocks == 0;
            blocks += u64::from(entry.live);
            first || blocks <= MOVED_BLOCKS
        };
        let some = theirs.take_while(fits);
        some.map(|(id, entry)| (id, *entry)).collect()
    }

    /// Whether cells of the map lie in map objects of parents.
    fn has_parents_cells(&self) -> bool {
        let is_theirs = |map: u32| {
            let map = self.maps.get(map as usize);
            map.is_some_and(|map| map.source != 0)
        };
        // A clone does not inherit its parent's notes.
        let mut cells = self.directory.iter();
        cells.any(|(key, place)| key.0 != CellKind::Notes && is_theirs(place.map))
    }

    /// Whether blocks or cells of the map are read from parents.
    pub(crate) fn needs_parents(&self) -> bool {
        self.parents_blocks() > 0 || self.has_parents_cells()
    }
}
