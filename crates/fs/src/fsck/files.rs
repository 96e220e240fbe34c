//! The contents of files and symbolic links: claims their blocks, and gives up faulty
//! parts.

use super::check::Check;
use super::finding::{Place, Problem};
use super::table::Slot;
use crate::layout::{DiskInode, EXTENT_UNWRITTEN, FILE_BYTES_MAX, INLINE_BYTES, Item};
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_vfs::{FileKind, Ino, SYMLINK_MAX};

impl Check<'_> {
    /// Step 4: claims the data of files.
    pub(super) fn claim_data(&mut self) {
        self.for_inodes("files", |slot| slot.data, Check::claim_data_of);
        let inline = |slot: &Slot| slot.kind == Some(FileKind::Symlink) && !slot.data;
        self.for_inodes("symbolic links", inline, |check, ino| {
            let inode = check.inode(ino);
            let size = inode.size.get() as usize; // at most INLINE_BYTES: else it has data
            let (target, rest) = inode.body.split_at(size.min(INLINE_BYTES));
            if target.is_empty() || target.contains(&0) || rest.iter().any(|byte| *byte != 0) {
                check.bad_symlink(ino, "its target is malformed");
            }
        });
    }

    fn bad_symlink(&mut self, ino: Ino, why: &str) {
        self.log.add(Problem::SymlinkInvalid, Place::ino(ino), why);
        self.free_inode(ino);
    }

    pub(super) fn claim_data_of(&mut self, ino: Ino) {
        let inode = self.inode(ino);
        let tree = self.tree_of(ino, &inode);
        let end = inode.size.get().div_ceil(BLOCK_SIZE as u64);
        let truncating = self.orphans.contains_key(&ino);
        let mut kept: Vec<Item> = Vec::with_capacity(tree.items.len());
        let mut changed = false;
        for item in &tree.items {
            let before = kept
                .last()
                .map_or(0, |i| i.key.get() + u64::from(i.len.get()));
            if let Some(why) = self.extent_fault(item, before) {
                self.log.add(
                    Problem::ExtentInvalid,
                    Place::both(ino, item.block.get()),
                    format!("an extent is wrong: {why}"),
                );
                changed = true;
                continue;
            }
            let mut item = *item;
            let (key, len) = (item.key.get(), u64::from(item.len.get()));
            if key + len > end && item.flags.get() & EXTENT_UNWRITTEN == 0 && !truncating {
                self.log.add(
                    Problem::ExtentBeyondEnd,
                    Place::both(ino, item.block.get()),
                    format!(
                        "it has written blocks up to block {} of the file, whose {} bytes end before",
                        key + len - 1,
                        inode.size.get()
                    ),
                );
                changed = true;
                if key >= end {
                    continue;
                }
                item.len = ((end - key) as u32).into();
            }
            changed |= self.claim_extent(ino, item, &mut kept);
        }
        let data: u64 = kept.iter().map(|item| u64::from(item.len.get())).sum();
        let nodes = tree.nodes.len() as u64;
        if changed {
            self.trees.insert(ino, kept);
            self.old.entry(ino).or_default().extend(tree.nodes);
        }
        let xattrs = self.xattr_blocks_of(ino, &inode);
        self.compare_blocks(ino, data + nodes + xattrs);
        if self.kind(ino) == Some(FileKind::Symlink) {
            self.check_long_symlink(ino, &inode);
        }
    }

    /// Claims the free blocks of an extent; true if those are not all of its blocks.
    fn claim_extent(&mut self, ino: Ino, item: Item, kept: &mut Vec<Item>) -> bool {
        let (key, start) = (item.key.get(), item.block.get());
        let end = start + u64::from(item.len.get());
        let mut clashes = Vec::new();
        self.used
            .insert_run(start, end - start, |at, count| clashes.push((at, count)));
        let mut at = start;
        for (taken, count) in clashes.iter().copied().chain([(end, 0)]) {
            if taken > at {
                kept.push(Item {
                    key: (key + at - start).into(),
                    block: at.into(),
                    len: ((taken - at) as u32).into(),
                    flags: item.flags,
                });
            }
            if count > 0 {
                self.twice(ino, taken, count, "its data");
            }
            at = taken + count;
        }
        !clashes.is_empty()
    }

    fn extent_fault(&self, item: &Item, before: u64) -> Option<String> {
        let (key, at, len) = (item.key.get(), item.block.get(), u64::from(item.len.get()));
        let most = FILE_BYTES_MAX / BLOCK_SIZE as u64;
        if len == 0 {
            return Some("it is empty".into());
        }
        if key >= most || len > most - key {
            return Some(format!(
                "it covers block {key} of the file and {len} in all"
            ));
        }
        if key < before {
            return Some(format!(
                "it starts at block {key} of the file, inside the one before it"
            ));
        }
        if item.flags.get() & !EXTENT_UNWRITTEN != 0 {
            return Some(format!("its flags are {:#x}", item.flags.get()));
        }
        if !self.vol.run_is_data(BlockNo(at), len) {
            return Some(format!(
                "{len} blocks from block {at} on are not inside one group"
            ));
        }
        None
    }

    fn check_long_symlink(&mut self, ino: Ino, inode: &DiskInode) {
        let size = inode.size.get() as usize;
        let items = self.tree_of(ino, inode).items;
        let [item] = items.as_slice() else {
            return self.bad_symlink(ino, "its target has no block, or several");
        };
        let whole = item.key.get() == 0 && item.len.get() == 1 && item.flags.get() == 0;
        if size > SYMLINK_MAX || !whole {
            return self.bad_symlink(ino, "its target is malformed");
        }
        match self.source.data(item.block.get()) {
            Ok(block) if !block[..size].contains(&0) => {}
            Ok(_) => self.bad_symlink(ino, "its target contains a zero byte"),
            Err(bad) => self.bad_symlink(ino, &format!("the block of its target {bad}")),
        }
    }
}
