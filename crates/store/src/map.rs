//! The map of a volume: extents of blocks by region, and the table of the objects that hold them.
//!
//! Regions of 1 GiB are loaded on demand, and a checkpoint writes those that changed. A checkpoint takes references to the
//! regions; a change meanwhile copies the region, so the checkpoint holds the lock only while it takes references.

use crate::object::CellKind;
use crate::protocol::{ObjectName, Stamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Blocks of a region: 1 GiB.
pub(crate) const REGION_BLOCKS: u64 = 1 << 18;
/// Entries of the table of objects in one cell.
const TABLE_PART: u32 = 4096;

/// The place of a block: a cell of an object, and the block's index in the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Spot {
    /// Number of the object in the table.
    pub(crate) object: u32,
    /// Offset of the cell.
    pub(crate) at: u32,
    /// Length of the cell with header.
    pub(crate) len: u32,
    /// Blocks of the cell before this one.
    pub(crate) skip: u16,
}

/// The value of a run's first block, from which the values of the others follow.
pub(crate) trait Run: Copy {
    /// The value of the block that is `blocks` further on.
    fn ahead(self, blocks: u64) -> Self;
}

impl Run for Spot {
    fn ahead(self, blocks: u64) -> Spot {
        Spot {
            skip: self.skip.wrapping_add(blocks as u16),
            ..self
        }
    }
}

/// Runs of blocks that do not overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extents<T>(pub(crate) BTreeMap<u64, (u32, T)>);

impl<T> Default for Extents<T> {
    fn default() -> Extents<T> {
        Extents(BTreeMap::new())
    }
}

impl<T: Run> Extents<T> {
    /// Removes a run of blocks. `each` gets the removed parts.
    pub(crate) fn remove(&mut self, block: u64, count: u64, mut each: impl FnMut(u64, u32, T)) {
        let end = block.saturating_add(count);
        let first = self.0.range(..block).next_back();
        let mut from = block;
        if let Some((&start, &(length, _))) = first
            && start + u64::from(length) > block
        {
            from = start;
        }
        let hit: Vec<(u64, (u32, T))> = self.0.range(from..end).map(|(k, v)| (*k, *v)).collect();
        for (start, (length, value)) in hit {
            let stop = start + u64::from(length);
            self.0.remove(&start);
            if start < block {
                self.0.insert(start, ((block - start) as u32, value));
            }
            if stop > end {
                self.0
                    .insert(end, ((stop - end) as u32, value.ahead(end - start)));
            }
            let (low, high) = (start.max(block), stop.min(end));
            each(low, (high - low) as u32, value.ahead(low - start));
        }
    }

    /// Inserts a run of blocks and replaces the present ones. `each` gets the removed parts.
    pub(crate) fn insert(
        &mut self,
        block: u64,
        count: u32,
        value: T,
        each: impl FnMut(u64, u32, T),
    ) {
        self.remove(block, u64::from(count), each);
        if count > 0 {
            self.0.insert(block, (count, value));
        }
    }

    /// The runs within `count` blocks from `block` on, cut to this range, in order.
    pub(crate) fn over(&self, block: u64, count: u64) -> impl Iterator<Item = (u64, u32, T)> + '_ {
        let end = block.saturating_add(count);
        let first = self.0.range(..block).next_back().map(|(start, _)| *start);
        let from = first.unwrap_or(block);
        self.0
            .range(from..end)
            .filter_map(move |(&start, &(length, value))| {
                let stop = start + u64::from(length);
                let (low, high) = (start.max(block), stop.min(end));
                (low < high).then(|| (low, (high - low) as u32, value.ahead(low - start)))
            })
    }
}

/// An object that holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectEntry {
    /// Index of its volume: 0 is this one, others are its parents.
    pub(crate) source: u16,
    pub(crate) name: ObjectName,
    pub(crate) stamp: Stamp,
    /// Its length.
    pub(crate) bytes: u64,
    /// Blocks that the object had when it was written.
    pub(crate) blocks: u32,
    /// Blocks of the object that are in the map.
    pub(crate) live: u32,
}

type Region = Arc<Extents<Spot>>;
type Part = Arc<BTreeMap<u32, ObjectEntry>>;

/// The map. The regions of an operation must be loaded first, unless the store has none for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    regions: HashMap<u64, Region>,
    parts: BTreeMap<u64, Part>,
    pub(crate) next_object: u32,
    /// Cells that changed since the last checkpoint.
    changed: BTreeSet<(CellKind, u64)>,
    /// Objects without a live block.
    dead: BTreeSet<u32>,
    /// Blocks in the map, and blocks that the objects had when they were written.
    pub(crate) live_blocks: u64,
    pub(crate) held_blocks: u64,
}

/// The contents of a changed cell.
#[derive(Clone, Debug)]
pub(crate) enum Changed {
    Region(Region),
    Objects(Part),
    /// Encoded notes.
    Notes(Vec<u8>),
}

pub(crate) fn regions(block: u64, count: u64) -> impl Iterator<Item = u64> {
    let last = block.saturating_add(count.max(1) - 1);
    block / REGION_BLOCKS..=last / REGION_BLOCKS
}

/// Cuts a run at the borders of regions.
pub(crate) fn by_region(block: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = block.saturating_add(count);
    regions(block, count).filter_map(move |region| {
        let low = block.max(region * REGION_BLOCKS);
        let high = end.min((region + 1).saturating_mul(REGION_BLOCKS));
        (low < high).then(|| (low, high - low))
    })
}

impl Map {
    /// Adds an unchanged region that was loaded.
    pub(crate) fn load_region(&mut self, region: u64, extents: Extents<Spot>) {
        self.regions
            .entry(region)
            .or_insert_with(|| Arc::new(extents));
    }

    /// Frees loaded regions that are not changed, until `keep` regions are left.
    pub(crate) fn shrink(&mut self, keep: usize) {
        if self.regions.len() <= keep {
            return;
        }
        let changed = &self.changed;
        let mut surplus = self.regions.len() - keep;
        self.regions.retain(|region, _| {
            let stays = surplus == 0 || changed.contains(&(CellKind::Region, *region));
            surplus -= usize::from(!stays);
            stays
        });
    }

    /// Adds entries of the table of objects that were loaded.
    pub(crate) fn load_objects(&mut self, entries: impl IntoIterator<Item = (u32, ObjectEntry)>) {
        for (id, entry) in entries {
            self.live_blocks += u64::from(entry.live);
            self.held_blocks += u64::from(entry.blocks);
            if entry.live == 0 {
                self.dead.insert(id);
            }
            let part = self.parts.entry(u64::from(id / TABLE_PART)).or_default();
            Arc::make_mut(part).insert(id, entry);
        }
    }

    pub(crate) fn object(&self, id: u32) -> Option<&ObjectEntry> {
        self.parts.get(&u64::from(id / TABLE_PART))?.get(&id)
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = (u32, &ObjectEntry)> {
        (self.parts.values()).flat_map(|part| part.iter().map(|(id, entry)| (*id, entry)))
    }

    /// Adds an object. None of its blocks is in the map yet.
    pub(crate) fn add_object(&mut self, entry: ObjectEntry) -> u32 {
        let id = self.next_object;
        self.next_object = self.next_object.saturating_add(1);
        self.held_blocks += u64::from(entry.blocks);
        self.dead.insert(id);
        self.change_object(id, |part| {
            part.insert(id, ObjectEntry { live: 0, ..entry });
        });
        id
    }

    /// Removes an object without live blocks from the table.
    pub(crate) fn forget_object(&mut self, id: u32) {
        if let Some(entry) = self.object(id).copied() {
            self.held_blocks -= u64::from(entry.blocks);
            self.dead.remove(&id);
            self.change_object(id, |part| {
                part.remove(&id);
            });
        }
    }

    /// Objects without a live block.
    pub(crate) fn dead(&self) -> Vec<u32> {
        self.dead.iter().copied().collect()
    }

    fn change_object(&mut self, id: u32, change: impl FnOnce(&mut BTreeMap<u32, ObjectEntry>)) {
        let index = u64::from(id / TABLE_PART);
        self.changed.insert((CellKind::Objects, index));
        change(Arc::make_mut(self.parts.entry(index).or_default()));
    }

    fn count_live(&mut self, id: u32, more: u32, fewer: u32) {
        let mut live = None;
        self.change_object(id, |part| {
            if let Some(entry) = part.get_mut(&id) {
                entry.live = entry.live.saturating_add(more).saturating_sub(fewer);
                live = Some(entry.live);
            }
        });
        self.live_blocks = (self.live_blocks + u64::from(more)).saturating_sub(u64::from(fewer));
        match live {
            Some(0) => {
                self.dead.insert(id);
            }
            _ => {
                self.dead.remove(&id);
            }
        }
    }

    /// Sets the place of blocks; none if they are discarded. They lie in one region, which is loaded.
    pub(crate) fn set(&mut self, block: u64, count: u32, spot: Option<Spot>) {
        let region = block / REGION_BLOCKS;
        let mut before: Vec<(u32, u32)> = Vec::new();
        {
            let extents = Arc::make_mut(self.regions.entry(region).or_default());
            let each = |_, count, spot: Spot| before.push((spot.object, count));
            match spot {
                Some(spot) => extents.insert(block, count, spot, each),
                None => extents.remove(block, u64::from(count), each),
            }
        }
        if spot.is_some() || !before.is_empty() {
            self.changed.insert((CellKind::Region, region));
        }
        if let Some(spot) = spot {
            self.count_live(spot.object, count, 0);
        }
        for (object, count) in before {
            self.count_live(object, 0, count);
        }
    }

    /// The places of blocks. Their regions are loaded.
    pub(crate) fn over(&self, block: u64, count: u64) -> Vec<(u64, u32, Spot)> {
        let mut runs = Vec::new();
        for (block, count) in by_region(block, count) {
            if let Some(region) = self.regions.get(&(block / REGION_BLOCKS)) {
                runs.extend(region.over(block, count));
            }
        }
        runs
    }

    /// The places of the runs that are nearest to a block in its region: up to `most` before it, and as many after it. The
    /// region is loaded.
    pub(crate) fn around(&self, block: u64, most: usize) -> Vec<Spot> {
        let Some(region) = self.regions.get(&(block / REGION_BLOCKS)) else {
            return Vec::new();
        };
        let before = region.0.range(..block).rev().take(most);
        let after = region.0.range(block..).take(most);
        before.chain(after).map(|(_, (_, spot))| *spot).collect()
    }

    /// Takes the cells that changed since the last checkpoint. They count as unchanged from now on.
    pub(crate) fn take_changed(&mut self) -> Vec<((CellKind, u64), Changed)> {
        let changed = std::mem::take(&mut self.changed);
        let mut cells = Vec::with_capacity(changed.len());
        for key in changed {
            let contents = match key.0 {
                CellKind::Objects => {
                    Changed::Objects(self.parts.get(&key.1).cloned().unwrap_or_default())
                }
                _ => Changed::Region(self.regions.get(&key.1).cloned().unwrap_or_default()),
            };
            cells.push((key, contents));
        }
        cells
    }

    /// Marks a cell as changed: the checkpoint that was to write it failed, or its object is to be given up.
    pub(crate) fn mark_changed(&mut self, key: (CellKind, u64)) {
        self.changed.insert(key);
    }

    /// Whether a cell is in memory, and so can be written again.
    pub(crate) fn is_loaded(&self, key: (CellKind, u64)) -> bool {
        match key.0 {
            CellKind::Region => self.regions.contains_key(&key.1),
            _ => self.parts.contains_key(&key.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spot(object: u32) -> Spot {
        Spot {
            object,
            at: 128,
            len: 64,
            skip: 0,
        }
    }

    proptest! {
        /// Extents behave like an array of blocks.
        #[test]
        fn extents_are_an_array_of_blocks(
            steps in prop::collection::vec((0_u64..60, 1_u32..20, any::<bool>()), 1..40)
        ) {
            let mut extents = Extents::<Spot>::default();
            let mut array: Vec<Option<(u32, u16)>> = vec![None; 80];
            for (step, (block, count, write)) in steps.into_iter().enumerate() {
                let mut removed = 0;
                let each = |_: u64, count: u32, _: Spot| removed += count as usize;
                let range = block as usize..block as usize + count as usize;
                let there = array[range.clone()].iter().flatten().count();
                if write {
                    extents.insert(block, count, spot(step as u32), each);
                } else {
                    extents.remove(block, u64::from(count), each);
                }
                prop_assert_eq!(removed, there);
                for (skip, place) in array[range].iter_mut().enumerate() {
                    *place = write.then_some((step as u32, skip as u16));
                }
                let mut seen = vec![None; 80];
                for (block, count, spot) in extents.over(0, 80) {
                    for i in 0..count as usize {
                        seen[block as usize + i] = Some((spot.object, spot.skip + i as u16));
                    }
                }
                prop_assert_eq!(&seen, &array);
            }
        }
    }

    #[test]
    fn the_nearest_runs_are_those_of_the_region() {
        let mut map = Map::default();
        for (i, block) in [3, 10, 20, 30, 40, REGION_BLOCKS].into_iter().enumerate() {
            map.set(block, 2, Some(spot(i as u32)));
        }
        let around = |block, most| -> Vec<u32> {
            let found = map.around(block, most);
            found.iter().map(|spot| spot.object).collect()
        };
        assert_eq!(around(20, 1), [1, 2]);
        assert_eq!(around(21, 2), [2, 1, 3, 4]);
        assert_eq!(around(40, 9), [3, 2, 1, 0, 4]);
        assert!(around(2 * REGION_BLOCKS, 9).is_empty());
    }

    #[test]
    fn an_object_is_dead_when_its_last_block_is_overwritten() {
        let mut map = Map::default();
        let entry = ObjectEntry {
            source: 0,
            name: ObjectName::Volume,
            stamp: Stamp(0),
            bytes: 0,
            blocks: 4,
            live: 0,
        };
        let (one, two) = (map.add_object(entry), map.add_object(entry));
        map.set(10, 4, Some(spot(one)));
        assert_eq!(map.dead(), [two]);
        map.set(8, 3, Some(spot(two)));
        assert_eq!(map.object(one).map(|entry| entry.live), Some(3));
        map.set(11, 3, None);
        assert_eq!(map.dead(), [one]);
        assert_eq!(map.over(0, 100), [(8, 3, spot(two))]);
        map.forget_object(one);
        assert_eq!((map.live_blocks, map.held_blocks), (3, 4));
    }
}
