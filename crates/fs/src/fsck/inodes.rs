//! Inode blocks and inodes: finds them, checks their fields, and claims their metadata.

use super::check::Check;
use super::finding::{Place, Problem};
use super::source::AHEAD_BLOCKS;
use super::table::Slot;
use super::tree::{Mode, Tree};
use super::xattrs::{inline_acls, inline_fault};
use crate::layout::{
    DiskInode, DiskTime, FEATURE_NOCOW, FEATURE_RO_FLAGS, FILE_BYTES_MAX, GROUP_META, INLINE_BYTES,
    INODE_BYTES, INODE_SLOTS, INODES_PER_BLOCK, META_BYTES, NODE_MAGIC, NodeHeader,
};
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};
use steadfast_vfs::{FileKind, Ino, InodeFlags};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Groups whose bitmaps are read together.
pub(super) const GROUPS_AT_ONCE: u64 = 64;
/// Nanoseconds in a second.
const NANOS: u32 = 1_000_000_000;

/// Kind of inode that a mode names.
pub(super) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    if mode & !(FileKind::TYPE_BITS | 0o7777) != 0 {
        return None;
    }
    FileKind::of_mode(mode)
}

/// An inode of an inode block.
pub(super) fn inode_at(block: &Block, slot: usize) -> DiskInode {
    DiskInode::read_from_prefix(&block[slot * INODE_BYTES..])
        .map_or_else(|_| DiskInode::new_zeroed(), |(inode, _)| inode)
}

/// The body of a tree without items.
pub(super) fn empty_tree() -> [u8; INLINE_BYTES] {
    let mut body = [0; INLINE_BYTES];
    let header = NodeHeader {
        magic: NODE_MAGIC.into(),
        ..NodeHeader::default()
    };
    body[..size_of::<NodeHeader>()].copy_from_slice(header.as_bytes());
    body
}

/// Counts in a block that is said to hold inodes.
struct SlotCounts {
    inodes: usize,
    garbage: usize,
}

fn looks(block: &Block) -> SlotCounts {
    let mut looks = SlotCounts {
        inodes: 0,
        garbage: 0,
    };
    for slot in 0..INODES_PER_BLOCK as usize {
        let inode = inode_at(block, slot);
        if inode.as_bytes().iter().all(|byte| *byte == 0) {
            continue;
        }
        let likely = kind_of_mode(inode.mode.get())
            .is_some_and(|kind| inline_fault(&inode.xattrs, kind).is_none())
            && InodeFlags::from_bits(inode.flags.get()).is_some();
        if likely {
            looks.inodes += 1;
        } else {
            looks.garbage += 1;
        }
    }
    looks
}

impl Check<'_> {
    /// The inode as it should be; zeros where there is none.
    pub(super) fn inode(&mut self, ino: Ino) -> DiskInode {
        if let Some(edited) = self.edits.get(&ino) {
            return *edited;
        }
        let at = ino / INODE_SLOTS;
        if self.blank.contains(&at) || ino % INODE_SLOTS >= INODES_PER_BLOCK {
            return DiskInode::new_zeroed();
        }
        match self.source.meta(at) {
            Ok(block) => inode_at(&block, (ino % INODE_SLOTS) as usize),
            Err(_) => DiskInode::new_zeroed(),
        }
    }

    /// Changes an inode.
    pub(super) fn edit(&mut self, ino: Ino, change: impl FnOnce(&mut DiskInode)) {
        let mut inode = self.inode(ino);
        change(&mut inode);
        self.edits.insert(ino, inode);
    }

    /// A directory without entries that is its own parent until someone says otherwise.
    pub(super) fn fresh_directory(&self, ino: Ino) -> DiskInode {
        let time = DiskTime {
            secs: self.now.secs.into(),
            nanos: self.now.nanos.into(),
        };
        DiskInode {
            mode: 0o040_755.into(),
            nlink: 2.into(),
            generation: self.new_generation(ino).into(),
            mtime: time,
            ctime: time,
            atime: time,
            btime: time,
            parent: ino.into(),
            body: empty_tree(),
            ..DiskInode::new_zeroed()
        }
    }

    fn new_generation(&self, ino: Ino) -> u64 {
        let mut seed = [0; 40];
        seed[..16].copy_from_slice(&self.vol.uuid);
        seed[16..24].copy_from_slice(&ino.to_le_bytes());
        seed[24..32].copy_from_slice(&self.now.secs.to_le_bytes());
        seed[32..36].copy_from_slice(&self.now.nanos.to_le_bytes());
        xxhash_rust::xxh3::xxh3_64(&seed) | 1
    }

    /// Frees an inode and everything that it claimed.
    pub(super) fn free_inode(&mut self, ino: Ino) {
        let Some(slot) = self.slot(ino) else { return };
        let inode = self.inode(ino);
        if inode.xattr_block.get() != 0 {
            self.used.remove(inode.xattr_block.get());
            for at in self.xattr_blocks.remove(&ino).unwrap_or_default() {
                self.used.remove(at);
            }
        }
        if slot.data || slot.kind == Some(FileKind::Directory) {
            let tree = self.tree_of(ino, &inode);
            for item in &tree.items {
                for at in item.block.get()..item.block.get().saturating_add(item.len.get().into()) {
                    self.used.remove(at);
                }
            }
            for at in tree
                .nodes
                .into_iter()
                .chain(self.old.remove(&ino).unwrap_or_default())
            {
                self.used.remove(at);
            }
        }
        self.trees.remove(&ino);
        self.dirs.remove(&ino);
        self.edits.insert(ino, DiskInode::new_zeroed());
        self.table.update(ino, |slot| *slot = Slot::default());
    }

    /// The tree of an inode that was checked before.
    pub(super) fn tree_of(&mut self, ino: Ino, inode: &DiskInode) -> Tree {
        match self.trees.get(&ino) {
            Some(items) => Tree {
                items: items.clone(),
                nodes: Vec::new(),
                damaged: true,
            },
            None => self.walk_tree(ino, &inode.body, Mode::Collect),
        }
    }

    /// Step 1: finds the inode blocks and checks the fields of every inode.
    pub(super) fn scan_inode_blocks(&mut self) {
        let groups = self.vol.groups;
        for first in (0..groups).step_by(GROUPS_AT_ONCE as usize) {
            let together = first..(first + GROUPS_AT_ONCE).min(groups);
            self.read_bitmaps_ahead(together.clone());
            let mut listed = Vec::new();
            for group in together.clone() {
                self.list_inode_blocks(group, &mut listed);
            }
            let mut done = 0;
            for blocks in listed.chunks(AHEAD_BLOCKS) {
                // The share of these groups' blocks, counted as groups.
                let share = (together.end - first) * done / listed.len() as u64;
                self.step("inodes", first + share, groups);
                done += blocks.len() as u64;
                self.source.read_ahead(blocks.iter().copied());
                for at in blocks {
                    self.inode_block(*at);
                }
            }
        }
        for ino in [self.vol.root, self.vol.orphans] {
            if !self.table.contains(ino / INODE_SLOTS) {
                self.inode_block(ino / INODE_SLOTS);
            }
        }
    }

    /// Reads the bitmaps of several groups.
    pub(super) fn read_bitmaps_ahead(&mut self, groups: std::ops::Range<u64>) {
        let vol = &self.vol;
        let bitmaps = groups.flat_map(|group| {
            let start = vol.group_start(group).0;
            start..start + GROUP_META
        });
        self.source.read_ahead(bitmaps);
    }

    /// Adds the blocks that a group's bitmap lists as inode blocks.
    fn list_inode_blocks(&mut self, group: u64, listed: &mut Vec<u64>) {
        let start = self.vol.group_start(group).0;
        if let Err(bad) = self.source.meta(start) {
            self.log.add(
                Problem::BlockBitmapUnreadable,
                Place::block(start),
                format!("the block bitmap of group {group} {bad}"),
            );
        }
        match self.source.meta(start + 1) {
            Ok(bitmap) => {
                for index in GROUP_META..self.vol.group_len(group) {
                    if bitmap[(index / 8) as usize] >> (index % 8) & 1 == 1 {
                        listed.push(start + index);
                    }
                }
            }
            Err(bad) => {
                self.log.add(
                    Problem::InodeBitmapUnreadable,
                    Place::block(start + 1),
                    format!("the inode-block bitmap of group {group} {bad}"),
                );
                self.blind.push(group);
            }
        }
    }

    /// Takes `at` into the table if it holds inodes.
    fn inode_block(&mut self, at: u64) {
        let home = [self.vol.root / INODE_SLOTS, self.vol.orphans / INODE_SLOTS].contains(&at);
        let block = match self.source.meta(at) {
            Ok(block) => {
                let looks = looks(&block);
                if looks.garbage > looks.inodes && !home {
                    self.suspects.push((at, "does not hold inodes".into()));
                    return;
                }
                if looks.inodes + looks.garbage == 0 && !home {
                    self.log.add(
                        Problem::InodeBlockEmpty,
                        Place::block(at),
                        "an inode block holds no inode",
                    );
                    self.retired.insert(at);
                    return;
                }
                *block
            }
            Err(bad) if home => {
                self.log.add(
                    Problem::InodeBlockUnreadable,
                    Place::block(at),
                    format!("the inode block of the root directory {bad}"),
                );
                self.blank.insert(at);
                [0; BLOCK_SIZE]
            }
            Err(bad) => {
                self.suspects.push((at, bad.to_string()));
                return;
            }
        };
        self.used.insert(at);
        self.table.insert(at);
        if block[INODES_PER_BLOCK as usize * INODE_BYTES..META_BYTES]
            .iter()
            .any(|b| *b != 0)
        {
            self.log.add(
                Problem::InodeBlockTail,
                Place::block(at),
                "the bytes after the last inode of an inode block are not zero",
            );
            self.untidy.insert(at);
        }
        for slot in 0..INODES_PER_BLOCK {
            let ino = at * INODE_SLOTS + slot;
            let inode = inode_at(&block, slot as usize);
            self.check_fields(ino, inode);
        }
    }

    /// Checks an inode by itself, and enters it into the table.
    fn check_fields(&mut self, ino: Ino, found: DiskInode) {
        let mut inode = found;
        let blank = |inode: &DiskInode| inode.as_bytes().iter().all(|byte| *byte == 0);
        if self.is_special(ino) && kind_of_mode(inode.mode.get()) != Some(FileKind::Directory) {
            let (problem, name) = if ino == self.vol.root {
                (Problem::RootMissing, "root")
            } else {
                (Problem::OrphanDirectoryMissing, "orphan")
            };
            self.log.add(
                problem,
                Place::ino(ino),
                format!("the {name} directory is no directory"),
            );
            if blank(&inode) || inode.mode.get() == 0 {
                inode = self.fresh_directory(ino);
            } else {
                (inode.mode, inode.flags) = (0o040_755.into(), 0.into());
            }
        }
        if inode.mode.get() == 0 {
            if !blank(&inode) {
                self.log.add(
                    Problem::FreeSlotNotZero,
                    Place::ino(ino),
                    "a free inode slot is not all zero",
                );
                self.edits.insert(ino, DiskInode::new_zeroed());
            }
            return;
        }
        let Some(kind) = kind_of_mode(inode.mode.get()) else {
            self.log.add(
                Problem::ModeInvalid,
                Place::ino(ino),
                format!(
                    "its mode is {:#o}, which is no kind of inode",
                    inode.mode.get()
                ),
            );
            self.edits.insert(ino, DiskInode::new_zeroed());
            return;
        };
        self.check_common(ino, kind, &mut inode);
        self.check_kind(ino, kind, &mut inode);
        if inode.as_bytes() != found.as_bytes() {
            self.edits.insert(ino, inode);
        }
        let long = kind == FileKind::Symlink && inode.size.get() > INLINE_BYTES as u64;
        let data = kind == FileKind::Regular || long;
        let directory = kind == FileKind::Directory;
        let deep = data && !is_flat(&inode.body);
        if data && !deep {
            // A root that has all items in itself: no block is read.
            let tree = self.walk_tree(ino, &inode.body, Mode::Check);
            if tree.damaged {
                self.trees.insert(ino, tree.items);
            }
        }
        let meta = directory || deep || inode.xattr_block.get() != 0;
        if !meta && !data {
            self.compare_blocks(ino, 0);
        }
        let known = Slot {
            kind: Some(kind),
            meta,
            data,
            single: inode.nlink.get() == 1,
            ..Slot::default()
        };
        self.table.update(ino, |slot| *slot = known);
    }

    fn check_common(&mut self, ino: Ino, kind: FileKind, inode: &mut DiskInode) {
        if inode.generation.get() == 0 {
            self.log.add(
                Problem::GenerationZero,
                Place::ino(ino),
                "its generation is zero",
            );
            inode.generation = self.new_generation(ino).into();
        }
        let times = [
            ("modification", &mut inode.mtime),
            ("change", &mut inode.ctime),
            ("access", &mut inode.atime),
            ("creation", &mut inode.btime),
        ];
        for (name, time) in times {
            if time.nanos.get() >= NANOS {
                self.log.add(
                    Problem::TimeInvalid,
                    Place::ino(ino),
                    format!("its {name} time has {} nanoseconds", time.nanos.get()),
                );
                time.nanos = 0.into();
            }
        }
        match InodeFlags::from_bits(inode.flags.get()) {
            Some(InodeFlags::NONE) => {}
            Some(flags) => {
                self.features_ro |= FEATURE_RO_FLAGS;
                if flags.has(InodeFlags::NOCOW) {
                    self.features |= FEATURE_NOCOW;
                }
            }
            None => {
                self.log.add(
                    Problem::ReservedNotZero,
                    Place::ino(ino),
                    format!("its flags field is {:#x}", inode.flags.get()),
                );
                inode.flags = 0.into();
            }
        }
        match inline_acls(&inode.xattrs, kind) {
            Ok(acls) => self.check_acls(ino, acls, inode),
            Err(why) => {
                self.log.add(
                    Problem::XattrInline,
                    Place::ino(ino),
                    format!("its extended attributes are malformed: {why}"),
                );
                inode.xattrs.fill(0);
            }
        }
    }

    fn check_kind(&mut self, ino: Ino, kind: FileKind, inode: &mut DiskInode) {
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        if !device && inode.rdev.get() != 0 {
            self.log.add(
                Problem::RdevMisplaced,
                Place::ino(ino),
                format!(
                    "it is no device, but has the device number {:#x}",
                    inode.rdev.get()
                ),
            );
            inode.rdev = 0.into();
        }
        let mut misplaced = Vec::new();
        if kind != FileKind::Directory {
            if inode.parent.get() != 0 {
                misplaced.push("a parent");
                inode.parent = 0.into();
            }
            if inode.entries.get() != 0 {
                misplaced.push("a count of entries");
                inode.entries = 0.into();
            }
        }
        let body = matches!(
            kind,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        if !body && inode.body.iter().any(|byte| *byte != 0) {
            misplaced.push("a tree");
            inode.body.fill(0);
        }
        if (!body || kind == FileKind::Directory) && inode.size.get() != 0 {
            misplaced.push("a size");
            inode.size = 0.into();
        }
        for what in misplaced {
            self.log.add(
                Problem::FieldMisplaced,
                Place::ino(ino),
                format!("it has {what}, which its kind has not"),
            );
        }
        if kind == FileKind::Regular && inode.size.get() > FILE_BYTES_MAX {
            self.log.add(
                Problem::SizeInvalid,
                Place::ino(ino),
                format!(
                    "its size of {} bytes is more than a file can have",
                    inode.size.get()
                ),
            );
            let end = self
                .walk_tree(ino, &inode.body, Mode::Collect)
                .items
                .last()
                .map_or(0, |i| {
                    i.key
                        .get()
                        .saturating_add(i.len.get().into())
                        .saturating_mul(BLOCK_SIZE as u64)
                });
            inode.size = end.min(FILE_BYTES_MAX).into();
        }
    }

    /// Step 2: claims attribute blocks, tree nodes and directory leaves.
    pub(super) fn claim_metadata(&mut self) {
        self.for_inodes("metadata", |slot| slot.meta, Check::claim_metadata_of);
    }

    fn claim_metadata_of(&mut self, ino: Ino) {
        let Some(slot) = self.slot(ino) else { return };
        self.check_xattr(ino);
        let inode = self.inode(ino);
        let mut blocks = self.xattr_blocks_of(ino, &inode);
        if slot.kind == Some(FileKind::Directory) {
            let mut tree = self.walk_tree(ino, &inode.body, Mode::Check);
            self.check_leaves(ino, &mut tree);
            blocks += (tree.nodes.len() + tree.items.len()) as u64;
            if tree.damaged {
                self.old.insert(ino, tree.nodes);
                self.trees.insert(ino, tree.items);
                self.dirs.entry(ino).or_default();
            }
        } else if slot.data && !is_flat(&inode.body) {
            let tree = self.walk_tree(ino, &inode.body, Mode::Check);
            if tree.damaged {
                self.old.insert(ino, tree.nodes);
                self.trees.insert(ino, tree.items);
            }
        }
        if !slot.data {
            self.compare_blocks(ino, blocks);
        }
    }

    /// Corrects an inode's count of blocks, unless its tree is to be built anew anyway.
    pub(super) fn compare_blocks(&mut self, ino: Ino, blocks: u64) {
        let inode = self.inode(ino);
        if inode.blocks.get() != blocks && !self.trees.contains_key(&ino) {
            self.log.add(
                Problem::BlockCount,
                Place::ino(ino),
                format!("it claims {} blocks and has {blocks}", inode.blocks.get()),
            );
        }
        if inode.blocks.get() != blocks {
            self.edit(ino, |inode| inode.blocks = blocks.into());
        }
    }

    /// Step 5: where the inode-block bitmap is unreadable, looks at every block in use
    /// that no owner claimed; then gives up the listed blocks that hold no inodes.
    pub(super) fn search_blind_groups(&mut self) {
        for group in std::mem::take(&mut self.blind) {
            let start = self.vol.group_start(group).0;
            let len = self.vol.group_len(group);
            for at in start + GROUP_META..start + len {
                self.step("lost inode blocks", at - start, len);
                if self.marked(at) == Some(true) {
                    self.adopt(at);
                }
            }
        }
        for (at, why) in std::mem::take(&mut self.suspects) {
            if !self.used.get(at) {
                self.log.add(
                    Problem::InodeBlockUnreadable,
                    Place::block(at),
                    format!("an inode block {why}"),
                );
                self.retired.insert(at);
            }
        }
    }

    /// Takes an inode block that the bitmap does not list, if it is one, with all
    /// that its inodes have.
    pub(super) fn adopt(&mut self, at: u64) {
        if self.adopt_inodes(at) {
            for ino in at * INODE_SLOTS..at * INODE_SLOTS + INODES_PER_BLOCK {
                if self.slot(ino).is_some_and(|slot| slot.data) {
                    self.claim_data_of(ino);
                }
            }
        }
    }

    /// The same without file data, for the steps before that is claimed; false if it is none.
    pub(super) fn adopt_inodes(&mut self, at: u64) -> bool {
        if !self.vol.is_data(BlockNo(at)) || self.used.get(at) || self.table.contains(at) {
            return false;
        }
        let Ok(block) = self.source.meta(at) else {
            return false;
        };
        let looks = looks(&block);
        if looks.inodes == 0 || looks.garbage > 0 {
            return false;
        }
        self.inode_block(at);
        for ino in at * INODE_SLOTS..at * INODE_SLOTS + INODES_PER_BLOCK {
            if self.slot(ino).is_some_and(|slot| slot.meta) {
                self.claim_metadata_of(ino);
            }
        }
        true
    }
}

/// Whether a tree's root has its items in itself, or is unusable.
fn is_flat(body: &[u8; INLINE_BYTES]) -> bool {
    NodeHeader::ref_from_prefix(body)
        .is_ok_and(|(header, _)| header.magic.get() != NODE_MAGIC || header.level.get() == 0)
}
