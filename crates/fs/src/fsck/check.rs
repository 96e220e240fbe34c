//! The state of one pass over the volume, and the order of its steps.
//!
//! A step corrects each error at once in memory: inodes in `edits`, trees in
//! `trees`, directories in `dirs`. The steps after it see the corrected volume, so one
//! piece of damage is reported once and not by everything that rests on it. Whether
//! anything is written is decided by the caller of the pass ([`super::plan`]).
//!
//! Blocks are claimed in the order of the evidence for their use: inode blocks
//! (sealed, listed), then trees, directory and attribute blocks (sealed, pointed to),
//! then file data. The second owner loses the block.
//!
//! Memory: a bit per block of the groups in use, four bytes per inode slot, the items of one tree,
//! the blocks read ahead, and the damage.

use super::bits::Bits;
use super::finding::{Log, Place, Problem};
use super::source::Source;
use super::table::{Slot, Table};
use super::tree::children;
use super::{Progress, Usage};
use crate::layout::{DiskInode, INODE_SLOTS, Item};
use crate::superblock::Volume;
use std::collections::{BTreeMap, BTreeSet};
use steadfast_block::BlockNo;
use steadfast_vfs::{FileKind, Ino, Time};

/// Inodes that are looked at together, so that their blocks can be read ahead.
const WINDOW: usize = 1024;

/// Changes to make in a directory.
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
    /// Blocks that have an owner; the bitmaps themselves are left out.
    pub(super) used: Bits,
    /// Inode blocks and their slots.
    pub(super) table: Table,
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
    /// Blocks of attributes that an inode's index of them names.
    pub(super) xattr_blocks: BTreeMap<Ino, Vec<u64>>,
    /// Values of trees that are to be built anew.
    pub(super) trees: BTreeMap<Ino, Vec<Item>>,
    /// Node blocks of those trees, to be given up.
    pub(super) old: BTreeMap<Ino, Vec<u64>>,
    /// Directories that are to be written anew.
    pub(super) dirs: BTreeMap<Ino, Changes>,
    /// Inodes that get a name in the lost-and-found directory.
    pub(super) attach: Vec<(Ino, FileKind)>,
    /// Entries of the orphan directory, with the block and the unit of each.
    pub(super) orphans: BTreeMap<Ino, (u64, usize)>,
    /// The lost-and-found directory, and whether its name is taken by something else.
    pub(super) lost_found: Option<Ino>,
    pub(super) lost_found_taken: bool,
    /// Directories that were walked, of how many.
    pub(super) walked: u64,
    pub(super) directories: u64,
    pub(super) usage: Usage,
    /// Incompatible features that are in use.
    pub(super) features: u32,
    /// Features in use that a writer must know.
    pub(super) features_ro: u32,
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
        let table = Table::new(&vol);
        Check {
            vol,
            source,
            log,
            progress,
            used,
            table,
            suspects: Vec::new(),
            blind: Vec::new(),
            blank: BTreeSet::new(),
            untidy: BTreeSet::new(),
            retired: BTreeSet::new(),
            edits: BTreeMap::new(),
            xattr_blocks: BTreeMap::new(),
            trees: BTreeMap::new(),
            old: BTreeMap::new(),
            dirs: BTreeMap::new(),
            attach: Vec::new(),
            orphans: BTreeMap::new(),
            lost_found: None,
            lost_found_taken: false,
            walked: 0,
            directories: 0,
            usage: Usage::default(),
            features: 0,
            features_ro: 0,
            now,
        }
    }

    /// Whether the superblock names the features in use.
    fn compare_features(&mut self) {
        let incompat = self.features & !self.vol.features_incompat;
        let read_only = self.features_ro & !self.vol.features_ro;
        if incompat | read_only != 0 {
            self.log.add(
                Problem::FeatureMissing,
                Place::block(0),
                format!(
                    "the superblock does not name features that are in use: {incompat:#x}, for writing {read_only:#x}"
                ),
            );
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
        self.compare_features();
        self.resolve_names();
    }

    /// Reports how far a step is.
    pub(super) fn step(&self, step: &'static str, done: u64, total: u64) {
        (self.progress)(Progress { step, done, total });
    }

    /// State of an inode; `None` where no inode block is.
    pub(super) fn slot(&self, ino: Ino) -> Option<Slot> {
        self.table.get(ino)
    }

    /// Kind of an inode; `None` if there is none.
    pub(super) fn kind(&self, ino: Ino) -> Option<FileKind> {
        self.slot(ino).and_then(|slot| slot.kind)
    }

    /// The inodes whose slots are `wanted`, in order.
    pub(super) fn inodes_where(&self, wanted: impl Fn(&Slot) -> bool) -> Vec<Ino> {
        self.table.window(0, usize::MAX, wanted)
    }

    /// Looks at all inodes whose slots are `wanted`, in order; their blocks are read ahead.
    /// `look` makes no inode `wanted` that was not before.
    pub(super) fn for_inodes(
        &mut self,
        step: &'static str,
        wanted: impl Fn(&Slot) -> bool,
        mut look: impl FnMut(&mut Self, Ino),
    ) {
        let all = self.table.slots_from(0);
        let total = all.filter(|(_, slot)| slot.kind.is_some() && wanted(slot));
        let total = total.count() as u64;
        let (mut from, mut done) = (0, 0);
        loop {
            let inos = self.table.window(from, WINDOW, &wanted);
            let Some(last) = inos.last() else { return };
            from = last + 1;
            self.step(step, done, total);
            done += inos.len() as u64;
            self.read_ahead_for(&inos);
            for ino in inos {
                look(self, ino);
            }
        }
    }

    /// Reads ahead the blocks that a look at these inodes begins with: their blocks, their
    /// attributes, the upper end of their trees.
    pub(super) fn read_ahead_for(&mut self, inos: &[Ino]) {
        self.source
            .read_ahead(inos.iter().map(|ino| ino / INODE_SLOTS));
        let mut blocks = Vec::new();
        for ino in inos {
            let Some(slot) = self.slot(*ino).filter(|slot| slot.meta) else {
                continue;
            };
            let inode = self.inode(*ino);
            if inode.xattr_block.get() != 0 {
                blocks.push(inode.xattr_block.get());
            }
            if slot.data || slot.kind == Some(FileKind::Directory) {
                blocks.extend(children(&inode.body, slot.data));
            }
        }
        self.read_ahead(blocks);
    }

    /// Reads ahead blocks that something names.
    pub(super) fn read_ahead(&mut self, mut blocks: Vec<u64>) {
        blocks.retain(|at| self.vol.is_data(BlockNo(*at)));
        self.source.read_ahead(blocks);
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

    /// Bit of a block in the block bitmap; `None` if it cannot be read.
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
        for (_, slot) in self.table.slots_from(0) {
            match slot.kind {
                Some(FileKind::Directory) => self.usage.directories += 1,
                Some(FileKind::Regular) => self.usage.files += 1,
                Some(_) => self.usage.others += 1,
                None => {}
            }
        }
    }
}
