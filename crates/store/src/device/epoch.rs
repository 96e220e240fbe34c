//! The open epoch, and the changes of the map when an epoch is closed or replayed.

use super::Core;
use super::load::Sources;
use super::notes::Notes;
use crate::driver::Failed;
use crate::io::StoreError;
use crate::map::{Extents, ObjectEntry, REGION_BLOCKS, Run, Spot, by_region};
use crate::object::{
    CellKind, Coding, DataName, Draft, Entry, Epoch, SlotBody, cell_offset, decode_slot, push_cell,
};
use crate::protocol::{ObjectName, Slot, SlotName, Stamp};
use crate::volume::OpenError;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The place of a block of the open epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The block was discarded.
    Hole,
    /// The block is in a data object; [`Spot::object`] is its index in [`OpenEpoch::data`].
    Data(Spot),
}

impl Run for Target {
    fn ahead(self, blocks: u64) -> Target {
        match self {
            Target::Hole => Target::Hole,
            Target::Data(spot) => Target::Data(spot.ahead(blocks)),
        }
    }
}

/// The writes since the last flush.
#[derive(Default)]
pub(super) struct OpenEpoch {
    /// Blocks in memory. They override `placed`.
    pub(super) buffer: BTreeMap<u64, Bytes>,
    /// Blocks in data objects, and holes.
    pub(super) placed: Extents<Target>,
    pub(super) data: Vec<(ObjectName, DataName)>,
    /// Writes and discards so far.
    pub(super) written: u64,
    pub(super) notes: Notes,
}

impl OpenEpoch {
    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.placed.0.is_empty() && self.notes.is_empty()
    }

    /// All runs of blocks that the epoch changes.
    pub(super) fn touches(&self) -> Vec<(u64, u64)> {
        let placed = self.placed.0.iter();
        let mut runs: Vec<(u64, u64)> = placed
            .map(|(block, (count, _))| (*block, u64::from(*count)))
            .collect();
        runs.extend(self.buffer.keys().map(|block| (*block, 1)));
        runs
    }

    /// Takes the first `most` blocks out of the buffer, in runs that fit a cell and a region.
    pub(super) fn take_runs(&mut self, most: usize, unit: usize) -> Vec<(u64, Vec<Bytes>)> {
        let mut runs: Vec<(u64, Vec<Bytes>)> = Vec::new();
        for _ in 0..most {
            let Some((block, bytes)) = self.buffer.pop_first() else {
                break;
            };
            match runs.last_mut() {
                Some((first, run))
                    if *first + run.len() as u64 == block
                        && run.len() < unit
                        && !block.is_multiple_of(REGION_BLOCKS) =>
                {
                    run.push(bytes);
                }
                _ => runs.push((block, vec![bytes])),
            }
        }
        runs
    }

    /// The tables of the epoch, without the blocks in memory.
    pub(super) fn tables(&self) -> Epoch {
        let mut epoch = Epoch {
            data: self.data.iter().map(|(_, data)| *data).collect(),
            ..Epoch::default()
        };
        for (block, (count, target)) in &self.placed.0 {
            match target {
                Target::Hole => epoch.holes.push((*block, u64::from(*count))),
                Target::Data(spot) => epoch.entries.push(Entry {
                    block: *block,
                    count: *count as u16,
                    skip: spot.skip,
                    object: spot.object + 1,
                    at: spot.at,
                    len: spot.len,
                }),
            }
        }
        epoch
    }
}

/// Appends runs as cells. `each` gets first block, count, offset and length of each cell.
pub(super) fn push_runs(
    draft: &mut Draft,
    coding: &Coding,
    name: ObjectName,
    runs: &[(u64, Vec<Bytes>)],
    mut each: impl FnMut(u64, u32, u32, u32),
) {
    for (block, run) in runs {
        debug_assert!(cell_offset(draft).is_some());
        let parts: Vec<&[u8]> = run.iter().map(|bytes| &bytes[..]).collect();
        let (at, len) = push_cell(draft, coding, name, CellKind::Blocks, *block, &parts);
        each(*block, run.len() as u32, at, len);
    }
}

impl Core {
    /// Applies a slot to the map. The regions that it changes are loaded.
    pub(super) fn apply(
        &mut self,
        at: SlotName,
        stamp: Stamp,
        bytes: u64,
        epoch: &Epoch,
    ) -> Result<(), Failed> {
        let name = ObjectName::Log(at);
        let mut ids = Vec::with_capacity(1 + epoch.data.len());
        if epoch.own_blocks > 0 {
            ids.push(self.map.add_object(ObjectEntry {
                source: 0,
                name,
                stamp,
                bytes,
                blocks: epoch.own_blocks,
                live: 0,
            }));
        } else {
            self.plain.push((at.slot, name));
            ids.push(u32::MAX);
        }
        for data in &epoch.data {
            ids.push(self.map.add_object(ObjectEntry {
                source: 0,
                name: ObjectName::Data {
                    term: at.term,
                    number: data.number,
                },
                stamp: data.stamp,
                bytes: data.bytes,
                blocks: data.blocks,
                live: 0,
            }));
        }
        for (block, count) in &epoch.holes {
            for (block, count) in by_region(*block, *count) {
                if self.has_region(block) {
                    self.map.set(block, count as u32, None);
                }
            }
        }
        for entry in &epoch.entries {
            let object = ids.get(entry.object as usize).copied();
            let object = object.filter(|id| *id != u32::MAX);
            let spot = Spot {
                object: object.ok_or(Failed::Inconsistent("an entry names no object"))?,
                at: entry.at,
                len: entry.len,
                skip: entry.skip,
            };
            self.map
                .set(entry.block, u32::from(entry.count), Some(spot));
        }
        for note in &epoch.notes {
            self.notes.push(note.clone());
        }
        self.closed = at.slot;
        self.bytes_since += bytes;
        Ok(())
    }

    /// Whether the region of a block has any extent, in memory or in the store.
    fn has_region(&self, block: u64) -> bool {
        let key = (CellKind::Region, block / REGION_BLOCKS);
        self.map.is_loaded(key) || self.directory.contains_key(&key)
    }

    /// Slots after the last checkpoint.
    pub(super) fn slots_since(&self) -> u64 {
        self.closed.0.saturating_sub(self.base.through.0)
    }

    /// Recovery: applies a slot that was read.
    pub(super) fn replay(
        &mut self,
        sources: &Sources,
        at: SlotName,
        stamp: Stamp,
        bytes: &Bytes,
    ) -> Result<(), OpenError> {
        let io = sources.own();
        let bad = |why| -> StoreError { io.damaged(ObjectName::Log(at), why) };
        let (body, found) = decode_slot(&io.coding, at, bytes).map_err(bad)?;
        let (SlotBody::Epoch(epoch), true) = (body, found == stamp) else {
            return Err(Failed::Inconsistent("a slot changed while it was read").into());
        };
        for entry in &epoch.entries {
            self.load_regions(sources, entry.block, u64::from(entry.count))?;
        }
        for (block, count) in &epoch.holes {
            self.load_regions(sources, *block, *count)?;
        }
        self.apply(at, stamp, bytes.len() as u64, &epoch)?;
        Ok(())
    }

    /// The next slot.
    pub(super) fn next_slot(&self) -> Slot {
        self.closed.next()
    }
}
