//! Turns the findings of a pass into writes, and carries them out.
//!
//! The journal is closed and empty meanwhile. Everything is planned before the first write,
//! and written in this order, with a flush after each step, so that a repair that is cut
//! anywhere can simply be started again:
//!
//! 1. new tree nodes, directory blocks and inode blocks, in blocks that nothing uses;
//! 2. block bitmaps with every block marked that was or will be in use;
//! 3. inode blocks: from here on the new trees and directories count;
//! 4. block and inode-block bitmaps as they should be.
//!
//! Only where no free block is left, new nodes are written over those that they replace.

use super::check::{Changes, Check};
use super::dirs::{
    COOKIE_SPARE, LOST_FOUND, cookie_base, entries, kind_of_number, name_fault, units,
};
use super::inodes::inode_at;
use super::table::Slot;
use super::tree::{Mode, build, nodes_needed};
use crate::error::Error;
use crate::layout::{
    DIR_UNIT, DIR_UNITS, DirEntryHeader, DiskInode, GROUP_META, INODE_BYTES, INODE_SLOTS,
    INODES_PER_BLOCK, Item, META_BYTES,
};
use std::collections::BTreeMap;
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};
use steadfast_journal::seal;
use steadfast_vfs::{FileKind, Ino};
use zerocopy::IntoBytes;

/// Most bytes written at once.
const CHUNK_BLOCKS: usize = 64;

/// An entry of a directory that is written anew.
struct Entry {
    ino: Ino,
    cookie: u64,
    kind: FileKind,
    name: Vec<u8>,
}

/// Writes of a repair, step by step.
#[derive(Default)]
pub(super) struct Writes {
    steps: [BTreeMap<u64, Block>; 4],
}

impl Writes {
    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.iter().all(BTreeMap::is_empty)
    }

    /// Writes everything.
    ///
    /// # Errors
    /// The device fails; the repair can be started again.
    pub(super) fn apply(
        mut self,
        device: &dyn BlockDevice,
        volume: &[u8; 16],
    ) -> Result<(), Error> {
        // A flush after each epoch's worth of writes: a repair can be cut anywhere.
        let epoch = device.snapshot().map_or(u64::MAX, |s| s.epoch_blocks());
        let flush = || {
            device
                .flush()
                .map_err(Error::device("flushing the repaired blocks"))
        };
        for step in &mut self.steps {
            let mut written = 0;
            for (at, block) in step.iter_mut() {
                seal(volume, BlockNo(*at), block);
            }
            let blocks: Vec<(u64, &[u8])> =
                step.iter().map(|(at, b)| (*at, b.as_slice())).collect();
            let runs = blocks.chunk_by(|a, b| a.0 + 1 == b.0);
            for chunk in runs.flat_map(|run| run.chunks(CHUNK_BLOCKS)) {
                written += chunk.len() as u64;
                if written > epoch {
                    flush()?;
                    written = chunk.len() as u64;
                }
                let segments: Vec<&[u8]> = chunk.iter().map(|(_, bytes)| *bytes).collect();
                device
                    .write(BlockNo(chunk[0].0), &segments)
                    .map_err(Error::device("writing the repaired blocks"))?;
            }
            flush()?;
        }
        Ok(())
    }
}

impl Check<'_> {
    /// The writes that put the volume into the state of this pass. Consumes the pass's findings.
    pub(super) fn plan(&mut self) -> Writes {
        let mut writes = Writes::default();
        let before = (0..self.vol.groups).map(|group| self.expected_bitmaps(group).blocks);
        let before: Vec<Block> = before.collect();
        let mut added = self.plan_lost_found();
        let mut dirs = std::mem::take(&mut self.dirs);
        for dir in added.keys() {
            dirs.entry(*dir).or_default();
        }
        for (dir, changes) in dirs {
            let more = added.remove(&dir).unwrap_or_default();
            self.plan_directory(dir, &changes, more, &mut writes);
        }
        for (ino, items) in std::mem::take(&mut self.trees) {
            self.plan_tree(ino, &items, &mut writes);
        }
        for at in std::mem::take(&mut self.old).into_values().flatten() {
            self.used.remove(at);
        }
        self.plan_inodes(&mut writes);
        self.plan_bitmaps(&before, &mut writes);
        writes
    }

    fn allocate(&mut self) -> Option<u64> {
        let mut at = self.vol.groups_start;
        loop {
            at = self.used.next(at, self.vol.groups_end(), false)?;
            if self.vol.is_data(BlockNo(at)) {
                self.used.insert(at);
                return Some(at);
            }
            at += 1;
        }
    }

    /// `count` blocks, if need be from those that `owner` gives up.
    fn allocate_for(&mut self, owner: Ino, count: usize) -> Option<Vec<u64>> {
        let mut blocks = Vec::with_capacity(count);
        while blocks.len() < count {
            let next = self
                .allocate()
                .or_else(|| self.old.get_mut(&owner).and_then(Vec::pop));
            match next {
                Some(at) => blocks.push(at),
                None => {
                    blocks.iter().for_each(|at| self.used.remove(*at));
                    return None;
                }
            }
        }
        Some(blocks)
    }

    /// Entries to add: names in the lost-and-found directory, and that directory's own.
    fn plan_lost_found(&mut self) -> BTreeMap<Ino, Vec<Entry>> {
        let attach = std::mem::take(&mut self.attach);
        let mut added: BTreeMap<Ino, Vec<Entry>> = BTreeMap::new();
        if attach.is_empty() {
            return added;
        }
        let dir = match self.lost_found {
            Some(dir) => dir,
            None => {
                let Some(dir) = self.new_slot() else {
                    return added;
                };
                let mut inode = self.fresh_directory(dir);
                inode.parent = self.vol.root.into();
                inode.mode = 0o040_700.into();
                self.edits.insert(dir, inode);
                self.table.update(dir, |slot| {
                    *slot = Slot {
                        kind: Some(FileKind::Directory),
                        named: true,
                        ..Slot::default()
                    };
                });
                let mut name = LOST_FOUND.to_vec();
                if self.lost_found_taken {
                    name.extend_from_slice(format!("-{dir}").as_bytes());
                }
                let entry = Entry {
                    ino: dir,
                    cookie: 0,
                    kind: FileKind::Directory,
                    name,
                };
                added.entry(self.vol.root).or_default().push(entry);
                dir
            }
        };
        for (ino, kind) in attach {
            if kind == FileKind::Directory {
                self.edit(ino, |inode| inode.parent = dir.into());
            }
            let name = format!("#{ino}").into_bytes();
            added.entry(dir).or_default().push(Entry {
                ino,
                cookie: 0,
                kind,
                name,
            });
        }
        added
    }

    /// A free inode slot, in a new block if need be. One that holds no inode on disk either,
    /// while there is one: a repair that is cut must not leave a name on another file's inode.
    fn new_slot(&mut self) -> Option<Ino> {
        let mut any = None;
        for (ino, slot) in self.table.slots_from(0) {
            if slot.kind.is_some() {
                continue;
            }
            any.get_or_insert(ino);
            let block = self.source.meta(ino / INODE_SLOTS);
            let slot = (ino % INODE_SLOTS) as usize;
            let blank = |block: &Block| inode_at(block, slot).as_bytes().iter().all(|b| *b == 0);
            if block.is_ok_and(|block| blank(&block)) {
                return Some(ino);
            }
        }
        let Some(at) = self.allocate() else {
            return any;
        };
        self.table.insert(at);
        self.blank.insert(at);
        Some(at * INODE_SLOTS)
    }

    /// The entries that a directory keeps and gets.
    fn gather(&mut self, dir: Ino, changes: &Changes, more: Vec<Entry>) -> Vec<Entry> {
        let mut kept: Vec<Entry> = Vec::new();
        for (at, low, high) in self.leaves(dir) {
            let Ok(leaf) = self.source.meta(at) else {
                continue;
            };
            for raw in entries(&leaf, |_, _| {}) {
                let place = (at, raw.unit);
                let kind = changes
                    .kinds
                    .get(&place)
                    .copied()
                    .or(kind_of_number(raw.kind));
                let Some(kind) = kind.filter(|_| name_fault(raw.name).is_none()) else {
                    continue;
                };
                if changes.drop.contains(&place) || self.kind(raw.ino).is_none() {
                    continue;
                }
                let base = cookie_base(&self.vol.hash_key, raw.name);
                let good = raw.cookie & !(COOKIE_SPARE - 1) == base
                    && raw.cookie >= low
                    && raw.cookie < high;
                let cookie = if good { raw.cookie } else { 0 };
                kept.push(Entry {
                    ino: raw.ino,
                    cookie,
                    kind,
                    name: raw.name.to_vec(),
                });
            }
        }
        kept.extend(more);
        // Cookies: those that are right stay, the others get a free one of their hash.
        let key = self.vol.hash_key;
        let mut by_hash: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
        for mut entry in kept {
            let base = cookie_base(&key, &entry.name);
            let same = by_hash.entry(base).or_default();
            let mut suffix = 0;
            let name = entry.name.clone();
            while same.iter().any(|other| other.name == entry.name) && dir != self.vol.orphans {
                // Only names made up by a repair or damaged ones can meet here.
                suffix += 1;
                entry.name = [
                    &name[..name.len().min(200)],
                    format!("~{suffix}").as_bytes(),
                ]
                .concat();
                if cookie_base(&key, &entry.name) != base {
                    break;
                }
            }
            let base = cookie_base(&key, &entry.name);
            let same = by_hash.entry(base).or_default();
            let taken = |cookie| same.iter().any(|other| other.cookie == cookie);
            if entry.cookie & !(COOKIE_SPARE - 1) != base || taken(entry.cookie) {
                let Some(free) = (base..base + COOKIE_SPARE).find(|c| !taken(*c)) else {
                    continue;
                };
                entry.cookie = free;
            }
            same.push(entry);
        }
        let mut all: Vec<Entry> = by_hash.into_values().flatten().collect();
        all.sort_unstable_by_key(|entry| entry.cookie);
        all
    }

    /// Writes a directory anew.
    fn plan_directory(
        &mut self,
        dir: Ino,
        changes: &Changes,
        more: Vec<Entry>,
        writes: &mut Writes,
    ) {
        let inode = self.inode(dir);
        let all = self.gather(dir, changes, more);
        // Everything it has now is given up; its nodes only if a walk did not do so before.
        let leaves: Vec<u64> = self.leaves(dir).into_iter().map(|(at, ..)| at).collect();
        if !self.trees.contains_key(&dir) {
            let nodes = self.walk_tree(dir, &inode.body, Mode::Collect).nodes;
            self.old.entry(dir).or_default().extend(nodes);
        }
        self.old.entry(dir).or_default().extend(leaves);
        let packed = pack(&all);
        let Some(blocks) = self.allocate_for(dir, packed.len()) else {
            self.old.remove(&dir); // stays as it is, and is reported again
            self.trees.remove(&dir);
            return;
        };
        let mut items = Vec::with_capacity(packed.len());
        for ((first, block), at) in packed.into_iter().zip(blocks) {
            let key = if items.is_empty() { 0 } else { first };
            let (block_no, len) = (at.into(), 1.into());
            items.push(Item {
                key: u64::into(key),
                block: block_no,
                len,
                flags: 0.into(),
            });
            writes.steps[0].insert(at, block);
        }
        self.trees.insert(dir, items);
        let directories = all
            .iter()
            .filter(|entry| entry.kind == FileKind::Directory)
            .count();
        let named = self.slot(dir).is_some_and(|slot| slot.named);
        let links = if dir == self.vol.orphans {
            2
        } else if inode.nlink.get() == 0 && !named && self.orphans.contains_key(&dir) {
            0 // it stays an orphan
        } else {
            directories as u64 + 2
        };
        self.edit(dir, |inode| {
            inode.entries = (all.len() as u64).into();
            inode.nlink = links.into();
        });
    }

    /// Builds a tree anew.
    fn plan_tree(&mut self, ino: Ino, items: &[Item], writes: &mut Writes) {
        let Some(nodes) = self.allocate_for(ino, nodes_needed(items.len())) else {
            self.old.remove(&ino);
            return;
        };
        let body = build(items, &nodes, |at, block| {
            writes.steps[0].insert(at, block);
        });
        let data: u64 = items.iter().map(|item| u64::from(item.len.get())).sum();
        let inode = self.inode(ino);
        let xattrs = self.xattr_blocks_of(ino, &inode);
        self.edit(ino, |inode| {
            inode.body = body;
            inode.blocks = (data + nodes.len() as u64 + xattrs).into();
        });
    }

    /// Inode blocks with their corrected inodes; those without inodes are freed.
    fn plan_inodes(&mut self, writes: &mut Writes) {
        let home = [self.vol.root / INODE_SLOTS, self.vol.orphans / INODE_SLOTS];
        let mut empty: Vec<u64> = Vec::new();
        let mut last = (0, false);
        for (ino, slot) in self.table.slots_from(0) {
            let (at, used) = (ino / INODE_SLOTS, slot.kind.is_some());
            last = (at, used || last == (at, true));
            let end = ino % INODE_SLOTS + 1 == INODES_PER_BLOCK;
            if end && !last.1 && !home.contains(&at) {
                empty.push(at);
            }
        }
        for at in empty {
            self.table.remove(at);
            self.used.remove(at);
        }
        let edits = std::mem::take(&mut self.edits);
        let touched = edits.keys().map(|ino| ino / INODE_SLOTS);
        let touched = touched
            .chain(self.untidy.iter().copied())
            .chain(self.blank.iter().copied());
        let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
        for at in touched {
            if !self.table.contains(at) || blocks.contains_key(&at) {
                continue;
            }
            let known = if self.blank.contains(&at) {
                None
            } else {
                self.source.meta(at).ok()
            };
            let mut block = known.map_or([0; BLOCK_SIZE], |block| *block);
            block[INODES_PER_BLOCK as usize * INODE_BYTES..META_BYTES].fill(0);
            blocks.insert(at, block);
        }
        for (ino, inode) in edits {
            if let Some(block) = blocks.get_mut(&(ino / INODE_SLOTS)) {
                put(block, (ino % INODE_SLOTS) as usize, &inode);
            }
        }
        for (at, block) in blocks {
            writes.steps[2].insert(at, block);
        }
    }

    fn plan_bitmaps(&mut self, before: &[Block], writes: &mut Writes) {
        for (group, before) in (0..self.vol.groups).zip(before) {
            let start = self.vol.group_start(group).0;
            let expected = self.expected_bitmaps(group);
            let on_disk = self.source.meta(start).ok();
            let same = |found: &Block, wanted: &Block| found[..META_BYTES] == wanted[..META_BYTES];
            if on_disk
                .as_ref()
                .is_none_or(|found| !same(found, &expected.blocks))
            {
                let mut union = expected.blocks;
                let disk = on_disk.as_ref().map_or(before, |found| found);
                for (byte, (a, b)) in union.iter_mut().zip(before.iter().zip(disk.iter())) {
                    *byte |= a | b;
                }
                writes.steps[1].insert(start, union);
                writes.steps[3].insert(start, expected.blocks);
            }
            let on_disk = self.source.meta(start + 1).ok();
            if on_disk.is_none_or(|found| !same(&found, &expected.inodes)) {
                writes.steps[3].insert(start + GROUP_META - 1, expected.inodes);
            }
        }
    }
}

fn put(block: &mut Block, slot: usize, inode: &DiskInode) {
    debug_assert!(slot < INODES_PER_BLOCK as usize);
    block[slot * INODE_BYTES..(slot + 1) * INODE_BYTES].copy_from_slice(inode.as_bytes());
    debug_assert_eq!(inode_at(block, slot).as_bytes(), inode.as_bytes());
}

/// Sorted entries as leaves: the bound of each leaf's cookies, and its block.
fn pack(all: &[Entry]) -> Vec<(u64, Block)> {
    let mut leaves: Vec<(u64, Block)> = Vec::new();
    let mut free = 0;
    for same in all.chunk_by(|a, b| a.cookie / COOKIE_SPARE == b.cookie / COOKIE_SPARE) {
        let needed: usize = same.iter().map(|entry| units(entry.name.len())).sum();
        if leaves.is_empty() || needed > free {
            let bound = same
                .first()
                .map_or(0, |entry| entry.cookie & !(COOKIE_SPARE - 1));
            leaves.push((bound, [0; BLOCK_SIZE]));
            free = DIR_UNITS;
        }
        for entry in same {
            let taken = units(entry.name.len());
            let Some((_, leaf)) = leaves.last_mut().filter(|_| taken <= free) else {
                continue; // more equal hashes than a block holds: not by chance, and not by name
            };
            let header = DirEntryHeader {
                ino: entry.ino.into(),
                cookie: entry.cookie.into(),
                len: entry.name.len() as u8,
                kind: entry.kind as u8,
            };
            let at = (DIR_UNITS - free) * DIR_UNIT;
            let end = at + size_of::<DirEntryHeader>();
            leaf[at..end].copy_from_slice(header.as_bytes());
            leaf[end..end + entry.name.len()].copy_from_slice(&entry.name);
            free -= taken;
        }
    }
    leaves
}
