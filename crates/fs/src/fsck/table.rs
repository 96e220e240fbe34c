//! State of every inode slot: four bytes each, by group and block.

use crate::layout::{GROUP_BLOCKS, INODE_SLOTS, INODES_PER_BLOCK};
use crate::superblock::Volume;
use steadfast_vfs::{FileKind, Ino};

/// Slots of a block.
const SLOTS: usize = INODES_PER_BLOCK as usize;
/// Bits of a slot below the number of names.
const FLAG_BITS: u32 = 7;
/// Most names that are counted.
const LINKS_MAX: u32 = u32::MAX >> FLAG_BITS;

/// State of an inode slot.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    /// Its kind; `None`: the slot is free.
    pub(super) kind: Option<FileKind>,
    /// Of a directory: it has been reached. Of others: it has a name.
    pub(super) named: bool,
    /// It has blocks of metadata that are to be claimed.
    pub(super) meta: bool,
    /// It has an extent tree.
    pub(super) data: bool,
    /// Its link count is one, as that of most files.
    pub(super) single: bool,
    /// Names found.
    pub(super) links: u32,
}

/// Three bits of kind, four flags, the number of names.
#[derive(Clone, Copy, Default)]
struct Packed(u32);

impl Packed {
    fn new(slot: Slot) -> Packed {
        let flags = [slot.named, slot.meta, slot.data, slot.single];
        let kind = slot.kind.map_or(0, |kind| kind as u32);
        let flags = (3u32..).zip(flags).map(|(bit, set)| u32::from(set) << bit);
        Packed(flags.sum::<u32>() | kind | slot.links.min(LINKS_MAX) << FLAG_BITS)
    }

    fn slot(self) -> Slot {
        let flag = |bit: u32| self.0 >> bit & 1 == 1;
        Slot {
            kind: super::dirs::kind_of_number((self.0 & 7) as u8),
            named: flag(3),
            meta: flag(4),
            data: flag(5),
            single: flag(6),
            links: self.0 >> FLAG_BITS,
        }
    }
}

/// The inode blocks of a group, in order.
#[derive(Default)]
struct Group {
    /// Their places in the group.
    blocks: Vec<u16>,
    slots: Vec<[Packed; SLOTS]>,
}

/// All inode blocks.
pub(super) struct Table {
    start: u64,
    groups: Vec<Group>,
}

impl Table {
    pub(super) fn new(volume: &Volume) -> Table {
        let groups = usize::try_from(volume.groups).unwrap_or(usize::MAX);
        Table {
            start: volume.groups_start,
            groups: std::iter::repeat_with(Group::default)
                .take(groups)
                .collect(),
        }
    }

    /// The group of a block, and its place there.
    fn place(&self, at: u64) -> Option<(usize, u16)> {
        let index = at.checked_sub(self.start)?;
        let group = usize::try_from(index / GROUP_BLOCKS).ok()?;
        (group < self.groups.len()).then_some((group, (index % GROUP_BLOCKS) as u16))
    }

    fn find(&self, at: u64) -> Option<(usize, usize)> {
        let (group, place) = self.place(at)?;
        let index = self.groups[group].blocks.binary_search(&place).ok()?;
        Some((group, index))
    }

    fn packed(&mut self, ino: Ino) -> Option<&mut Packed> {
        let (group, index) = self.find(ino / INODE_SLOTS)?;
        self.groups[group].slots[index].get_mut((ino % INODE_SLOTS) as usize)
    }

    /// Whether a block holds inodes.
    pub(super) fn contains(&self, at: u64) -> bool {
        self.find(at).is_some()
    }

    /// Takes a block in, all its slots free.
    pub(super) fn insert(&mut self, at: u64) {
        let Some((group, place)) = self.place(at) else {
            return;
        };
        let group = &mut self.groups[group];
        if let Err(index) = group.blocks.binary_search(&place) {
            group.blocks.insert(index, place);
            group.slots.insert(index, [Packed::default(); SLOTS]);
        }
    }

    /// Takes a block out.
    pub(super) fn remove(&mut self, at: u64) {
        if let Some((group, index)) = self.find(at) {
            self.groups[group].blocks.remove(index);
            self.groups[group].slots.remove(index);
        }
    }

    /// State of an inode; `None` where no inode block is.
    pub(super) fn get(&self, ino: Ino) -> Option<Slot> {
        let (group, index) = self.find(ino / INODE_SLOTS)?;
        let packed = self.groups[group].slots[index].get((ino % INODE_SLOTS) as usize)?;
        Some(packed.slot())
    }

    /// Changes the state of an inode.
    pub(super) fn update(&mut self, ino: Ino, change: impl FnOnce(&mut Slot)) {
        if let Some(packed) = self.packed(ino) {
            let mut slot = packed.slot();
            change(&mut slot);
            *packed = Packed::new(slot);
        }
    }

    /// The inode blocks of a group as places in it, in order.
    pub(super) fn places(&self, group: u64) -> &[u16] {
        let group = usize::try_from(group).ok();
        let group = group.and_then(|group| self.groups.get(group));
        group.map_or(&[], |group| &group.blocks)
    }

    /// All slots from inode `from` on, in order, free ones too.
    pub(super) fn slots_from(&self, from: Ino) -> impl Iterator<Item = (Ino, Slot)> {
        let at = from / INODE_SLOTS;
        let first = (at.saturating_sub(self.start) / GROUP_BLOCKS) as usize;
        (first..self.groups.len())
            .flat_map(move |group| {
                let start = self.start + group as u64 * GROUP_BLOCKS;
                let group = &self.groups[group];
                let skipped = group
                    .blocks
                    .partition_point(|place| start + u64::from(*place) < at);
                (group.blocks[skipped..].iter())
                    .zip(&group.slots[skipped..])
                    .flat_map(move |(place, slots)| {
                        let ino = (start + u64::from(*place)) * INODE_SLOTS;
                        (ino..).zip(slots.iter().map(|packed| packed.slot()))
                    })
            })
            .skip_while(move |(ino, _)| *ino < from)
    }

    /// Up to `max` inodes from `from` on whose slots are `wanted`, in order.
    pub(super) fn window(&self, from: Ino, max: usize, wanted: impl Fn(&Slot) -> bool) -> Vec<Ino> {
        self.slots_from(from)
            .filter(|(_, slot)| slot.kind.is_some() && wanted(slot))
            .map(|(ino, _)| ino)
            .take(max)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::bare;
    use std::collections::BTreeMap;

    #[test]
    fn the_table_is_a_map_of_slots_in_order() {
        let volume = bare(512).store.volume.clone();
        let mut table = Table::new(&volume);
        let mut model: BTreeMap<Ino, Slot> = BTreeMap::new();
        let base = volume.groups_start;
        for (turn, place) in [40u64, 3, 7, 100, 41, 2].into_iter().enumerate() {
            let at = base + place;
            table.insert(at);
            for index in 0..INODES_PER_BLOCK {
                model.insert(at * INODE_SLOTS + index, Slot::default());
            }
            let ino = at * INODE_SLOTS + turn as u64;
            let slot = Slot {
                kind: kind(turn),
                named: turn % 2 == 0,
                meta: turn % 3 == 0,
                data: turn % 3 == 1,
                single: turn % 2 == 1,
                links: turn as u32 * 77,
            };
            table.update(ino, |known| *known = slot);
            model.insert(ino, slot);
        }
        table.remove(base + 7);
        model.retain(|ino, _| ino / INODE_SLOTS != base + 7);
        assert_eq!(table.places(0), [2, 3, 40, 41, 100]);
        for from in [
            0,
            base * INODE_SLOTS,
            (base + 3) * INODE_SLOTS + 5,
            u64::MAX,
        ] {
            let expected: Vec<_> = model.range(from..).map(|(i, s)| (*i, *s)).collect();
            assert_eq!(table.slots_from(from).collect::<Vec<_>>(), expected);
        }
        for (ino, slot) in &model {
            assert_eq!(table.get(*ino), Some(*slot));
        }
        assert_eq!(table.window(0, 2, |slot| slot.named).len(), 2);
        for outside in [0, 15, 16 * base + 15, (base + 7) * INODE_SLOTS, u64::MAX] {
            assert_eq!(table.get(outside), None);
        }
        // Further names than can be counted stay many.
        let ino = (base + 2) * INODE_SLOTS;
        table.update(ino, |slot| slot.links = u32::MAX);
        assert_eq!(table.get(ino).unwrap().links, LINKS_MAX);
    }

    fn kind(number: usize) -> Option<FileKind> {
        super::super::dirs::kind_of_number(number as u8 + 1)
    }
}
