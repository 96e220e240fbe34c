//! The state of one pass over the volume, and the order of its steps.
//!
//! What a step finds wrong it corrects at once in memory: inodes in `edits`, trees in
//! `trees`, directories in `dirs`. The steps after it see the corrected volume, so one
//! piece of damage is reported once and not by everything that rests on it. Whether
//! anything is written is decided by whoever started the pass ([`super::plan`]).
//!
//! Blocks are claimed in the order of how well they prove what they are: inode blocks
//! (sealed, listed), then trees, directory and attribute blocks (sealed, pointed to),
//! then file data. Who comes second loses the block.
//!
//! Memory: a bit per block, eight bytes per inode slot, the items of one tree, and the damage.

use super::bits::Bits;
use super::finding::{Log, Place, Problem};
use super::source::Source;
use super::{Progress, Usage};
use crate::layout::{DiskInode, GROUP_META, INODE_SLOTS, INODES_PER_BLOCK, Item};
use crate::superblock::Volume;
use std::collections::{BTreeMap, BTreeSet};
use steadfast_block::BlockNo;
use steadfast_vfs::{FileKind, Ino, Time};

/// What is known of an inode slot.
#[derive(Clone, Copy, Default)]
pub(super) struct Slot {
    /// Its kind; `None`: the slot is free.
    pub(super) kind: Option<FileKind>,
    /// Of a directory: it has been reached. Of others: it has a name.
    pub(super) named: bool,
    /// It has blocks of metadata that are to be claimed.
    pub(super) meta: bool,
    /// It has an extent tree.
    pub(super) data: bool,
    /// Names found.
    pub(super) links: u32,
}

/// What is to change in a directory.
#[derive(Default)]
pub(super) struct Changes {
    /// Entries to leave out, by leaf block and unit.
    pub(super) drop: BTreeSet<(u64, usize)>,
    /// Kinds to correct.
    pub(super) kinds: BTreeMap<(u64, usize), FileKind>,
}

/// One pass.
pub(super) struct Check<'a> {
    pub(super) vol: Volume,
    pub(super) source: Source,
    pub(super) log: Log,
    pub(super) progress: &'a dyn Fn(Progress),
    /// Blocks that have an owner.
    pub(super) used: Bits,
    /// Inode blocks and their slots.
    pub(super) table: BTreeMap<u64, [Slot; INODES_PER_BLOCK as usize]>,
    /// Blocks that the inode-block bitmap lists and that hold no inodes, with the reason.
    pub(super) suspects: Vec<(u64, String)>,
    /// Groups whose inode-block bitmap is unreadable.
    pub(super) blind: Vec<u64>,
    /// Inode blocks to be written from zeros.
    pub(super) blank: BTreeSet<u64>,
    /// Inode blocks whose padding is to be zeroed.
    pub(super) untidy: BTreeSet<u64>,
    /// Blocks that were cut out and reported: their bits are cleared without another word.
    pub(super) retired: BTreeSet<u64>,
    /// Inodes as they should be.
    pub(super) edits: BTreeMap<Ino, DiskInode>,
    /// Values of trees that are to be built anew.
    pub(super) trees: BTreeMap<Ino, Vec<Item>>,
    /// Node blocks of those trees, to be given up.
    pub(super) old: BTreeMap<Ino, Vec<u64>>,
    /// Directories that are to be written anew.
    pub(super) dirs: BTreeMap<Ino, Changes>,
    /// Inodes that get a name in the lost-and-found directory.
    pub(super) attach: Vec<(Ino, FileKind)>,
    /// What the orphan directory lists.
    pub(super) orphans: BTreeSet<Ino>,
    /// The lost-and-found directory, and whether its name is taken by something else.
    pub(super) lost_found: Option<Ino>,
    pub(super) lost_found_taken: bool,
    pub(super) usage: Usage,
    pub(super) now: Time,
}

impl<'a> Check<'a> {
    pub(super) fn new(
        vol: Volume,
        source: Source,
        log: Log,
        progress: &'a dyn Fn(Progress),
        now: Time,
    ) -> Check<'a> {
        let used = Bits::new(vol.blocks);
        Check {
            vol,
            source,
            log,
            progress,
            used,
            table: BTreeMap::new(),
            suspects: Vec::new(),
            blind: Vec::new(),
            blank: BTreeSet::new(),
            untidy: BTreeSet::new(),
            retired: BTreeSet::new(),
            edits: BTreeMap::new(),
            trees: BTreeMap::new(),
            old: BTreeMap::new(),
            dirs: BTreeMap::new(),
            attach: Vec::new(),
            orphans: BTreeSet::new(),
            lost_found: None,
            lost_found_taken: false,
            usage: Usage::default(),
            now,
        }
    }

    /// The whole pass.
    pub(super) fn run(&mut self) {
        self.scan_inode_blocks();
        self.claim_metadata();
        self.read_orphans();
        self.claim_data();
        self.search_blind_groups();
        self.walk_directories();
        self.find_unreachable();
        self.compare_links();
        self.compare_bitmaps();
        self.count();
        self.resolve_names();
    }

    /// Reports how far a step is.
    pub(super) fn step(&self, step: &'static str, done: u64, total: u64) {
        (self.progress)(Progress { step, done, total });
    }

    /// What is known of an inode; `None` where no inode block is.
    pub(super) fn slot(&self, ino: Ino) -> Option<Slot> {
        let slots = self.table.get(&(ino / INODE_SLOTS))?;
        slots.get((ino % INODE_SLOTS) as usize).copied()
    }

    pub(super) fn slot_mut(&mut self, ino: Ino) -> Option<&mut Slot> {
        let slots = self.table.get_mut(&(ino / INODE_SLOTS))?;
        slots.get_mut((ino % INODE_SLOTS) as usize)
    }

    /// What kind of inode it is; `None` if there is none.
    pub(super) fn kind(&self, ino: Ino) -> Option<FileKind> {
        self.slot(ino).and_then(|slot| slot.kind)
    }

    /// The inodes whose slots are `wanted`, in order.
    pub(super) fn inodes_where(&self, wanted: impl Fn(&Slot) -> bool) -> Vec<Ino> {
        self.table
            .iter()
            .flat_map(|(at, slots)| {
                (0u64..)
                    .zip(slots)
                    .map(move |(i, s)| (at * INODE_SLOTS + i, s))
            })
            .filter(|(_, slot)| slot.kind.is_some() && wanted(slot))
            .map(|(ino, _)| ino)
            .collect()
    }

    /// The two directories that are never reached by a name.
    pub(super) fn is_special(&self, ino: Ino) -> bool {
        ino == self.vol.root || ino == self.vol.orphans
    }

    /// A block is claimed by a second owner.
    pub(super) fn twice(&mut self, ino: Ino, at: u64, count: u64, what: &str) {
        let blocks = if count == 1 {
            format!("block {at}")
        } else {
            format!("blocks {at} to {}", at + count - 1)
        };
        self.log.add(
            Problem::BlockTwice,
            Place::both(ino, at),
            format!("{what} is in {blocks}, which belongs to something else"),
        );
    }

    /// What the block bitmap says of a block; `None` if it cannot be read.
    pub(super) fn marked(&mut self, at: u64) -> Option<bool> {
        let group = self.vol.group_of(BlockNo(at))?;
        let start = self.vol.group_start(group).0;
        let bitmap = self.source.meta(start).ok()?;
        let index = (at - start) as usize;
        Some(bitmap[index / 8] >> (index % 8) & 1 == 1)
    }

    fn count(&mut self) {
        self.usage.blocks = self.vol.data_blocks();
        let mut at = self.vol.groups_start;
        while let Some(start) = self.used.next(at, self.vol.groups_end(), true) {
            at = self
                .used
                .next(start, self.vol.groups_end(), false)
                .unwrap_or(self.vol.groups_end());
            self.usage.used += at - start;
        }
        self.usage.used -= self.vol.groups * GROUP_META;
        for slot in self.table.values().flatten() {
            match slot.kind {
                Some(FileKind::Directory) => self.usage.directories += 1,
                Some(FileKind::Regular) => self.usage.files += 1,
                Some(_) => self.usage.others += 1,
                None => {}
            }
        }
    }
}
