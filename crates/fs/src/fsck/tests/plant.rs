//! For every kind of finding: plants that damage, sees it found, put right, and gone.

use super::image::{BLOCKS, Image, mount, walk};
use crate::fsck::dirs::units;
use crate::fsck::{Outcome, Problem, Severity};
use crate::layout::{
    DIR_UNIT, EXTENT_UNWRITTEN, INLINE_BYTES, INODE_BYTES, INODE_SLOTS, INODES_PER_BLOCK,
};
use Problem as P;
use std::collections::BTreeSet;

type Plant = (Problem, &'static str, fn(&mut Image));

fn group_bit(image: &Image, at: u64) -> (u64, u64) {
    (image.volume.groups_start, at - image.volume.groups_start)
}

/// An inode block that holds none of the special directories.
fn other_inode_block(image: &Image) -> u64 {
    let many = image
        .paths
        .iter()
        .filter(|(path, _)| path.starts_with("/many/"));
    let home = image.volume.root / INODE_SLOTS;
    many.map(|(_, ino)| ino / INODE_SLOTS)
        .find(|at| *at != home)
        .unwrap()
}

fn name(i: usize) -> Vec<u8> {
    format!("{i:0>150}").into_bytes()
}

/// One of the blocks that the index of a wide set of attributes names.
fn wide_block(i: &Image, n: usize) -> u64 {
    let index = i.block(i.inode(i.ino("/wide")).xattr_block.get());
    u64::from_le_bytes(index[8 + n * 8..16 + n * 8].try_into().unwrap())
}

fn orphan_name(image: &Image) -> Vec<u8> {
    format!("{:016x}", image.ino("/gone")).into_bytes()
}

const PLANTS: &[Plant] = &[
    (P::SuperblockDamaged, "a flipped bit", |i| {
        i.scratch(0, |b| b[40] ^= 4)
    }),
    (P::SuperblockDamaged, "a sealed contradiction", |i| {
        i.edit(0, |b| b[72] ^= 4)
    }),
    (P::SuperblockCopyDamaged, "zeros", |i| {
        i.scratch(BLOCKS - 1, |b| b.fill(0))
    }),
    (P::SuperblocksDiffer, "another label", |i| {
        i.edit(BLOCKS - 1, |b| b[140] ^= 1)
    }),
    (P::JournalHeader, "one header", |i| {
        i.scratch(1, |b| b[50] ^= 1)
    }),
    (P::JournalHeader, "the other header", |i| {
        i.scratch(2, |b| b[50] ^= 1)
    }),
    (P::JournalDamaged, "both headers", |i| {
        i.scratch(1, |b| b[50] ^= 1);
        i.scratch(2, |b| b[50] ^= 1);
    }),
    (P::BlockBitmapUnreadable, "a flipped bit", |i| {
        i.scratch(i.volume.groups_start, |b| b[50] ^= 1)
    }),
    (P::InodeBitmapUnreadable, "a flipped bit", |i| {
        i.scratch(i.volume.groups_start + 1, |b| b[50] ^= 1);
    }),
    (P::InodeBitmapUnreadable, "both bitmaps", |i| {
        i.scratch(i.volume.groups_start, |b| b.fill(0));
        i.scratch(i.volume.groups_start + 1, |b| b.fill(0));
    }),
    (P::BlockNotMarked, "a data block", |i| {
        let at = i.tree(i.ino("/flat")).0[0].block.get();
        let (bitmap, index) = group_bit(i, at);
        i.set_bit(bitmap, index, false);
    }),
    (P::BlockNotMarked, "the bitmap itself", |i| {
        i.set_bit(i.volume.groups_start, 0, false)
    }),
    (P::BlockLeaked, "a free block", |i| {
        let (bitmap, index) = group_bit(i, i.free_block());
        i.set_bit(bitmap, index, true);
    }),
    (P::BlockTwice, "two files", |i| {
        let at = i.tree(i.ino("/a/b/small")).0[0].block;
        i.edit_inode(i.ino("/flat"), |inode| {
            Image::change_item(&mut inode.body, 1, |item| item.block = at);
        });
    }),
    (P::BlockTwice, "a file and a tree node", |i| {
        let at = i.tree(i.ino("/big")).1[0];
        i.edit_inode(i.ino("/flat"), |inode| {
            Image::change_item(&mut inode.body, 0, |item| item.block = at.into());
        });
    }),
    (P::BlockTwice, "two directories", |i| {
        let leaf = i.tree(i.ino("/many")).0[1].block;
        i.edit_inode(i.ino("/a/b"), |inode| {
            Image::change_item(&mut inode.body, 0, |item| item.block = leaf);
        });
    }),
    (P::BlockTwice, "two trees", |i| {
        let body = i.inode(i.ino("/big")).body;
        i.edit_inode(i.ino("/flat"), |inode| inode.body = body);
    }),
    (P::BlockTwice, "two inodes with one attribute block", |i| {
        let at = i.inode(i.ino("/attrs")).xattr_block;
        i.edit_inode(i.ino("/flat"), |inode| inode.xattr_block = at);
    }),
    (P::InodeBlockBit, "a data block listed", |i| {
        let at = i.tree(i.ino("/flat")).0[0].block.get();
        let (bitmap, index) = group_bit(i, at);
        i.set_bit(bitmap + 1, index, true);
    }),
    (P::InodeBlockBit, "a directory block listed", |i| {
        let at = i.tree(i.ino("/many")).0[2].block.get();
        let (bitmap, index) = group_bit(i, at);
        i.set_bit(bitmap + 1, index, true);
    }),
    (P::InodeBlockBit, "an inode block not listed", |i| {
        let (bitmap, index) = group_bit(i, other_inode_block(i));
        i.set_bit(bitmap + 1, index, false);
    }),
    (P::InodeBlockBit, "the first inode block not listed", |i| {
        let (bitmap, index) = group_bit(i, i.volume.root / INODE_SLOTS);
        i.set_bit(bitmap + 1, index, false);
    }),
    (P::BitmapTail, "behind a short group", |i| {
        i.set_bit(i.volume.groups_start, 32_000, false)
    }),
    (P::BitmapTail, "behind a short group", |i| {
        i.set_bit(i.volume.groups_start + 1, 32_000, true)
    }),
    (P::InodeBlockUnreadable, "a flipped bit", |i| {
        i.scratch(other_inode_block(i), |b| b[5] ^= 1)
    }),
    (P::InodeBlockUnreadable, "the root's", |i| {
        i.scratch(i.volume.root / INODE_SLOTS, |b| b[5] ^= 1);
    }),
    (P::InodeBlockUnreadable, "garbage", |i| {
        i.edit(other_inode_block(i), |b| b.fill(0x55))
    }),
    (P::InodeBlockEmpty, "a free block listed", |i| {
        let at = i.free_block();
        let (bitmap, index) = group_bit(i, at);
        i.edit(at, |b| b.fill(0));
        i.set_bit(bitmap, index, true);
        i.set_bit(bitmap + 1, index, true);
    }),
    (P::InodeBlockTail, "a byte", |i| {
        i.edit(other_inode_block(i), |b| {
            b[INODES_PER_BLOCK as usize * INODE_BYTES] = 1
        });
    }),
    (P::RootMissing, "zeros", |i| {
        i.edit(i.volume.root / INODE_SLOTS, |b| b[..INODE_BYTES].fill(0));
    }),
    (P::RootMissing, "another kind", |i| {
        i.edit_inode(i.volume.root, |inode| inode.mode = 0o100_644.into());
    }),
    (P::OrphanDirectoryMissing, "zeros", |i| {
        i.edit(i.volume.root / INODE_SLOTS, |b| {
            b[INODE_BYTES..2 * INODE_BYTES].fill(0)
        });
    }),
    (P::FreeSlotNotZero, "an owner", |i| {
        let free = |i: &Image, ino: u64| i.inode(ino).mode.get() == 0;
        let blocks: BTreeSet<u64> = i.paths.values().map(|ino| ino / INODE_SLOTS).collect();
        let mut slots = blocks
            .iter()
            .flat_map(|at| (0..15).map(move |s| at * INODE_SLOTS + s));
        let ino = slots.find(|ino| free(i, *ino)).unwrap();
        i.edit_inode(ino, |inode| inode.uid = 7.into());
    }),
    (P::ModeInvalid, "no kind", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.mode = 0o170_644.into())
    }),
    (P::ModeInvalid, "high bits", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.mode = (1 << 20).into())
    }),
    (P::GenerationZero, "zero", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.generation = 0.into())
    }),
    (P::TimeInvalid, "a full second", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.mtime.nanos = 1_000_000_000.into());
    }),
    (P::ReservedNotZero, "flags", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.flags = 1.into())
    }),
    (P::RdevMisplaced, "a file", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.rdev = 5.into())
    }),
    (P::FieldMisplaced, "a parent", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.parent = 5.into())
    }),
    (P::FieldMisplaced, "entries", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.entries = 5.into())
    }),
    (P::FieldMisplaced, "a size", |i| {
        i.edit_inode(i.ino("/fifo"), |n| n.size = 5.into())
    }),
    (P::FieldMisplaced, "a directory's size", |i| {
        i.edit_inode(i.ino("/a"), |n| n.size = 5.into())
    }),
    (P::FieldMisplaced, "a body", |i| {
        i.edit_inode(i.ino("/null"), |n| n.body[9] = 1)
    }),
    (P::SizeInvalid, "beyond the limit", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.size = u64::MAX.into());
    }),
    (P::BlockCount, "a file", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.blocks = 77.into())
    }),
    (P::BlockCount, "a directory", |i| {
        i.edit_inode(i.ino("/many"), |n| n.blocks = 1.into())
    }),
    (P::BlockCount, "a pipe", |i| {
        i.edit_inode(i.ino("/fifo"), |n| n.blocks = 1.into())
    }),
    (P::LinkCount, "a file", |i| {
        i.edit_inode(i.ino("/a/b/small"), |n| n.nlink = 1.into())
    }),
    (P::LinkCount, "none", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.nlink = 0.into())
    }),
    (P::LinkCount, "a directory", |i| {
        i.edit_inode(i.ino("/a"), |n| n.nlink = 9.into())
    }),
    (P::LinkCount, "the orphan directory", |i| {
        i.edit_inode(i.volume.orphans, |n| n.nlink = 9.into());
    }),
    (P::TreeRoot, "a file", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.body[0] ^= 1)
    }),
    (P::TreeRoot, "a directory", |i| {
        i.edit_inode(i.ino("/many"), |n| n.body[0] ^= 1)
    }),
    (P::TreeRoot, "too many items", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.body[4] = 200)
    }),
    (P::TreeRoot, "too deep", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.body[2] = 200)
    }),
    (P::TreeRoot, "bytes behind", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.body[INLINE_BYTES - 1] = 1);
    }),
    (P::TreeNodeUnreadable, "an extent node", |i| {
        let at = i.tree(i.ino("/big")).1[0];
        i.scratch(at, |b| b[100] ^= 1);
    }),
    (P::TreeNodeUnreadable, "an index node", |i| {
        let at = i.tree(i.ino("/many")).1[0];
        i.scratch(at, |b| b[100] ^= 1);
    }),
    (P::TreeNodeUnreadable, "a level pretended", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.body[2] = 1);
    }),
    (P::TreeNode, "no magic", |i| {
        let at = i.tree(i.ino("/big")).1[0];
        i.edit(at, |b| b[0] ^= 1);
    }),
    (P::TreeNode, "the wrong level", |i| {
        let at = i.tree(i.ino("/big")).1[0];
        i.edit(at, |b| b[2] = 1);
    }),
    (P::TreeNode, "no items", |i| {
        let at = i.tree(i.ino("/big")).1[0];
        i.edit(at, |b| b[4..4080].fill(0));
    }),
    (P::TreeItem, "out of order", |i| {
        let at = i.tree(i.ino("/big")).1[0];
        i.edit(at, |b| Image::change_item(b, 3, |item| item.key = 0.into()));
    }),
    (P::TreeItem, "beyond its node", |i| {
        let at = i.tree(i.ino("/big")).1[0];
        i.edit(at, |b| {
            Image::change_item(b, 3, |item| item.key = (1 << 40).into())
        });
    }),
    (P::TreeItem, "an index that starts late", |i| {
        i.edit_inode(i.ino("/a"), |n| {
            Image::change_item(&mut n.body, 0, |item| item.key = 16.into())
        });
    }),
    (P::TreePointer, "into the journal", |i| {
        i.edit_inode(i.ino("/big"), |n| {
            Image::change_item(&mut n.body, 0, |item| item.block = 1.into());
        });
    }),
    (P::TreePointer, "an index to the end of numbers", |i| {
        i.edit_inode(i.ino("/a"), |n| {
            Image::change_item(&mut n.body, 0, |item| item.block = u64::MAX.into());
        });
    }),
    (P::ExtentInvalid, "empty", |i| {
        i.edit_inode(i.ino("/flat"), |n| {
            Image::change_item(&mut n.body, 0, |item| item.len = 0.into())
        });
    }),
    (P::ExtentInvalid, "over the next one", |i| {
        i.edit_inode(i.ino("/flat"), |n| {
            Image::change_item(&mut n.body, 0, |item| item.len = 3.into())
        });
    }),
    (P::ExtentInvalid, "out of its group", |i| {
        i.edit_inode(i.ino("/flat"), |n| {
            Image::change_item(&mut n.body, 1, |item| item.len = u32::MAX.into());
        });
    }),
    (P::ExtentInvalid, "unknown flags", |i| {
        i.edit_inode(i.ino("/flat"), |n| {
            Image::change_item(&mut n.body, 0, |item| item.flags = 2.into())
        });
    }),
    (P::ExtentBeyondEnd, "a cut size", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.size = 100.into())
    }),
    (P::ExtentBeyondEnd, "preallocation marked written", |i| {
        let index = i
            .tree(i.ino("/pre"))
            .0
            .iter()
            .position(|x| x.flags.get() == EXTENT_UNWRITTEN);
        let index = index.unwrap();
        i.edit_inode(i.ino("/pre"), |n| {
            Image::change_item(&mut n.body, index, |item| item.flags = 0.into());
        });
    }),
    (P::LeafUnreadable, "a flipped bit", |i| {
        let at = i.tree(i.ino("/many")).0[1].block.get();
        i.scratch(at, |b| b[100] ^= 1);
    }),
    (P::LeafUnreadable, "the first one", |i| {
        let at = i.tree(i.ino("/many")).0[0].block.get();
        i.scratch(at, |b| b[100] ^= 1);
    }),
    (P::LeafUnreadable, "the root's", |i| {
        let at = i.tree(i.ino("/")).0[0].block.get();
        i.scratch(at, |b| b[100] ^= 1);
    }),
    (P::LeafEmpty, "wiped", |i| {
        let at = i.tree(i.ino("/many")).0[1].block.get();
        i.edit(at, |b| b.fill(0));
    }),
    (P::EntryMalformed, "no length", |i| {
        i.edit_entry(i.ino("/"), b"flat", |b| b[16] = 0)
    }),
    (P::EntryMalformed, "beyond the block", |i| {
        let at = i.tree(i.ino("/")).0[0].block.get();
        i.edit(at, |b| b[4064..4080].fill(1));
    }),
    (P::EntryMalformed, "padding", |i| {
        i.edit_entry(i.ino("/"), b"flat", |b| b[units(4) * DIR_UNIT - 1] = 1);
    }),
    (P::EntryMalformed, "a free unit", |i| {
        let at = i.tree(i.ino("/a/b")).0[0].block.get();
        i.edit(at, |b| b[2000 + 8] = 1);
    }),
    (P::EntryName, "a slash", |i| {
        i.edit_entry(i.ino("/"), b"flat", |b| b[18] = b'/')
    }),
    (P::EntryName, "a zero byte", |i| {
        i.edit_entry(i.ino("/"), b"flat", |b| b[19] = 0)
    }),
    (P::EntryCookie, "another name's", |i| {
        i.edit_entry(i.ino("/"), b"flat", |b| b[12] ^= 1)
    }),
    (P::EntryCookie, "too small", |i| {
        i.edit_entry(i.ino("/"), b"flat", |b| b[8..16].fill(0))
    }),
    (P::EntryCookie, "the wrong block", |i| {
        // The bounds move instead of the entry.
        let node = i.tree(i.ino("/many")).1[0];
        let key = i.tree(i.ino("/many")).0[1].key.get();
        let most = i.tree(i.ino("/many")).0[2].key.get();
        i.edit(node, |b| {
            Image::change_item(b, 1, |item| {
                item.key = ((key + (most - key) / 2) & !15).into()
            });
        });
    }),
    (P::EntryDuplicate, "the same entry twice", |i| {
        let dir = i.ino("/a/b");
        let (at, unit) = i.entry(dir, b"small", |at, raw| (at, raw.unit));
        let len = units(5) * DIR_UNIT;
        i.edit(at, |b| {
            b.copy_within(unit * DIR_UNIT..unit * DIR_UNIT + len, 2000)
        });
    }),
    (P::EntryDangling, "a free slot", |i| {
        let ino = i.volume.root + 14;
        let free = if i.inode(ino).mode.get() == 0 {
            ino
        } else {
            i.free_block() * INODE_SLOTS
        };
        i.edit_entry(i.ino("/"), b"flat", |b| {
            b[..8].copy_from_slice(&free.to_le_bytes())
        });
    }),
    (P::EntryDangling, "the end of numbers", |i| {
        i.edit_entry(i.ino("/"), b"flat", |b| b[..8].fill(255));
    }),
    (P::EntryKind, "a pipe", |i| {
        i.edit_entry(i.ino("/"), b"flat", |b| b[17] = 6)
    }),
    (P::EntryKind, "no kind", |i| {
        i.edit_entry(i.ino("/"), b"flat", |b| b[17] = 99)
    }),
    (P::DirectoryTwice, "a second name", |i| {
        let a = i.ino("/a").to_le_bytes();
        i.edit_entry(i.ino("/"), b"empty", |b| {
            b[..8].copy_from_slice(&a);
            b[17] = 2;
        });
    }),
    (P::DirectoryTwice, "a cycle", |i| {
        let a = i.ino("/a").to_le_bytes();
        i.edit_entry(i.ino("/a/b"), b"small", |b| {
            b[..8].copy_from_slice(&a);
            b[17] = 2;
        });
    }),
    (P::DirectoryTwice, "the root below itself", |i| {
        let root = i.ino("/").to_le_bytes();
        i.edit_entry(i.ino("/a"), b"c", |b| b[..8].copy_from_slice(&root));
    }),
    (P::DirectoryTwice, "a cycle cut off from the root", |i| {
        let a = i.ino("/a").to_le_bytes();
        i.edit_entry(i.ino("/a/b"), b"small", |b| {
            b[..8].copy_from_slice(&a);
            b[17] = 2;
        });
        i.wipe_entry(i.ino("/"), b"a");
    }),
    (P::ParentWrong, "another", |i| {
        let parent = i.ino("/many").into();
        i.edit_inode(i.ino("/a/b"), |n| n.parent = parent);
    }),
    (P::ParentWrong, "the root's", |i| {
        i.edit_inode(i.ino("/"), |n| n.parent = 0.into())
    }),
    (P::EntryCount, "too many", |i| {
        i.edit_inode(i.ino("/many"), |n| n.entries = 999.into())
    }),
    (P::EntryCount, "an entry wiped", |i| {
        i.wipe_entry(i.ino("/many"), &name(3))
    }),
    (P::SymlinkInvalid, "a zero byte", |i| {
        i.edit_inode(i.ino("/short"), |n| n.body[1] = 0)
    }),
    (P::SymlinkInvalid, "empty", |i| {
        i.edit_inode(i.ino("/short"), |n| {
            n.size = 0.into();
            n.body.fill(0);
        });
    }),
    (P::SymlinkInvalid, "too long", |i| {
        i.edit_inode(i.ino("/long"), |n| n.size = 4096.into())
    }),
    (P::SymlinkInvalid, "a zero byte in its block", |i| {
        let at = i.tree(i.ino("/long")).0[0].block.get();
        i.scratch(at, |b| b[7] = 0);
    }),
    (P::XattrUnreadable, "a flipped bit", |i| {
        let at = i.inode(i.ino("/attrs")).xattr_block.get();
        i.scratch(at, |b| b[20] ^= 1);
    }),
    (P::XattrInvalid, "no magic", |i| {
        let at = i.inode(i.ino("/attrs")).xattr_block.get();
        i.edit(at, |b| b[0] ^= 1);
    }),
    (P::XattrInvalid, "a record too long", |i| {
        let at = i.inode(i.ino("/attrs")).xattr_block.get();
        i.edit(at, |b| b[10..12].fill(255));
    }),
    (P::XattrInvalid, "a name of no namespace", |i| {
        let at = i.inode(i.ino("/attrs")).xattr_block.get();
        i.edit(at, |b| b[12] = b'U');
    }),
    (P::XattrInvalid, "a block in the journal", |i| {
        i.edit_inode(i.ino("/attrs"), |n| n.xattr_block = 5.into());
    }),
    (P::XattrInvalid, "an index of one block", |i| {
        let at = i.inode(i.ino("/wide")).xattr_block.get();
        i.edit(at, |b| b[4] = 1);
    }),
    (P::XattrInvalid, "an index with bytes after it", |i| {
        let at = i.inode(i.ino("/wide")).xattr_block.get();
        i.edit(at, |b| b[100] = 1);
    }),
    (P::XattrInvalid, "an index that names the journal", |i| {
        let at = i.inode(i.ino("/wide")).xattr_block.get();
        i.edit(at, |b| b[16..24].copy_from_slice(&5u64.to_le_bytes()));
    }),
    (P::BlockTwice, "an index that names a block twice", |i| {
        let at = i.inode(i.ino("/wide")).xattr_block.get();
        i.edit(at, |b| b.copy_within(8..16, 16));
    }),
    (P::BlockTwice, "an index that names itself", |i| {
        let at = i.inode(i.ino("/wide")).xattr_block.get();
        i.edit(at, |b| b[16..24].copy_from_slice(&at.to_le_bytes()));
    }),
    (P::XattrUnreadable, "a block of several", |i| {
        let at = wide_block(i, 1);
        i.scratch(at, |b| b[20] ^= 1);
    }),
    (P::XattrInvalid, "a name in two blocks", |i| {
        let at = wide_block(i, 1);
        i.edit(at, |b| b[17] = b'1');
    }),
    (P::XattrInline, "no namespace", |i| {
        i.edit_inode(i.ino("/few"), |n| n.xattrs[0] = 6)
    }),
    (P::XattrInline, "a record too long", |i| {
        i.edit_inode(i.ino("/few"), |n| n.xattrs[2] = 255)
    }),
    (P::XattrInline, "no name", |i| {
        i.edit_inode(i.ino("/few"), |n| n.xattrs[1] = 0)
    }),
    (P::XattrInline, "a zero byte in a name", |i| {
        i.edit_inode(i.ino("/few"), |n| n.xattrs[3] = 0)
    }),
    (P::XattrInline, "a name twice", |i| {
        i.edit_inode(i.ino("/few"), |n| n.xattrs.copy_within(0..9, 42))
    }),
    (P::XattrInline, "a byte after the last record", |i| {
        i.edit_inode(i.ino("/few"), |n| n.xattrs[51] = 1)
    }),
    (P::XattrInline, "bytes without a record", |i| {
        i.edit_inode(i.ino("/flat"), |n| n.xattrs[3] = 1)
    }),
    (P::XattrInline, "a directory's", |i| {
        i.edit_inode(i.ino("/"), |n| n.xattrs[0] = 1)
    }),
    (P::XattrInline, "what a pipe cannot have", |i| {
        let xattrs = i.inode(i.ino("/few")).xattrs;
        i.edit_inode(i.ino("/fifo"), |n| n.xattrs = xattrs);
    }),
    (P::XattrInline, "an ACL of another version", |i| {
        i.edit_inode(i.ino("/acl"), |n| n.xattrs[3] = 2)
    }),
    (P::XattrInline, "an ACL without its last entry", |i| {
        i.edit_inode(i.ino("/acl"), |n| {
            n.xattrs[2] -= 4;
            n.xattrs[27..31].fill(0);
        });
    }),
    (P::XattrInline, "a file's default ACL", |i| {
        i.edit_inode(i.ino("/acl"), |n| n.xattrs[0] = 5)
    }),
    (P::XattrInvalid, "an ACL with a wrong tag", |i| {
        let at = i.inode(i.ino("/acls")).xattr_block.get();
        i.edit(at, |b| b[8 + 4 + 23 + 4] = 3);
    }),
    (P::AclMode, "another mode", |i| {
        i.edit_inode(i.ino("/acl"), |n| n.mode = 0o100_600.into())
    }),
    (P::AclMode, "another mode beside a block", |i| {
        i.edit_inode(i.ino("/acls"), |n| n.mode = 0o040_777.into())
    }),
    (P::FeatureMissing, "ACLs", |i| {
        i.edit(0, |b| b[12..16].fill(0))
    }),
    (P::FeatureMissing, "flags", |i| {
        i.edit_inode(i.ino("/few"), |n| n.flags = 0x60.into());
    }),
    (P::FeatureMissing, "ACLs, in both", |i| {
        i.edit(0, |b| b[12..16].fill(0));
        i.edit(BLOCKS - 1, |b| b[12..16].fill(0));
    }),
    (P::XattrInline, "beside a block", |i| {
        let xattrs = i.inode(i.ino("/few")).xattrs;
        i.edit_inode(i.ino("/attrs"), |n| n.xattrs = xattrs);
    }),
    (P::OrphanEntry, "another name", |i| {
        let name = orphan_name(i);
        let gone = (i.ino("/flat")).to_le_bytes();
        i.edit_entry(i.volume.orphans, &name, |b| b[..8].copy_from_slice(&gone));
    }),
    (P::OrphanEntry, "the root", |i| {
        let name = orphan_name(i);
        let root = i.volume.root.to_le_bytes();
        i.edit_entry(i.volume.orphans, &name, |b| b[..8].copy_from_slice(&root));
    }),
    (P::OrphanUnlisted, "not listed", |i| {
        let name = orphan_name(i);
        i.wipe_entry(i.volume.orphans, &name);
        i.edit_inode(i.volume.orphans, |n| n.entries = 0.into());
    }),
    (P::Unreachable, "a file", |i| {
        i.wipe_entry(i.ino("/"), b"flat")
    }),
    (P::Unreachable, "an empty file", |i| {
        i.wipe_entry(i.ino("/"), b"empty")
    }),
    (P::Unreachable, "a symlink", |i| {
        i.wipe_entry(i.ino("/"), b"short")
    }),
    (P::Unreachable, "an empty directory", |i| {
        i.wipe_entry(i.ino("/a"), b"c")
    }),
    (P::Unreachable, "a tree", |i| i.wipe_entry(i.ino("/"), b"a")),
    (P::Unreachable, "an orphan that is none", |i| {
        i.edit_inode(i.ino("/gone"), |n| n.nlink = 1.into());
    }),
];

/// Mounts, reads everything, unmounts; the volume is clean before and after.
pub(super) fn is_sound(image: &Image, context: &str) {
    let report = image.check();
    assert_eq!(
        report.outcome(),
        Outcome::Clean,
        "{context}: {:#?}",
        report.findings
    );
    let device = image.device();
    let fs = mount(device.clone());
    let (_, errors) = walk(&fs);
    assert!(
        errors.is_empty(),
        "{context}: reading after the repair: {errors:#?}"
    );
    fs.unmount().unwrap();
    drop(fs);
    let after = Image::of(&device, Default::default()).check();
    assert!(
        after.findings.is_empty(),
        "{context}, mounted once: {:#?}",
        after.findings
    );
}

#[test]
fn each_kind_of_damage_is_found_put_right_and_gone() {
    let base = Image::populated();
    let mut failed = Vec::new();
    for (problem, what, plant) in PLANTS {
        let context = format!("{problem} ({what})");
        let run = std::panic::catch_unwind(|| {
            let mut image = base.clone();
            plant(&mut image);
            let before = image.check();
            assert!(
                before.has(*problem),
                "{context}: not found among {:#?}",
                before.findings
            );
            for finding in &before.findings {
                assert!(!finding.to_string().is_empty());
            }
            let (repaired, report) = image.repair();
            assert!(report.has(*problem), "{context}");
            let outcome = match problem.severity() {
                Severity::Note => Outcome::Clean,
                _ => Outcome::Repaired,
            };
            assert_eq!(report.outcome(), outcome, "{context}: {report:#?}");
            assert!(
                report.passes <= 3,
                "{context}: {} passes, {:#?}",
                report.passes,
                report.further
            );
            is_sound(&repaired, &context);
        });
        if run.is_err() {
            failed.push(context);
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {}: {failed:#?}",
        failed.len(),
        PLANTS.len()
    );
}

#[test]
fn every_kind_of_finding_is_planted() {
    let planted: BTreeSet<Problem> = PLANTS.iter().map(|(problem, ..)| *problem).collect();
    for problem in Problem::ALL {
        let tested = planted.contains(problem) || problem.severity() == Severity::Note;
        assert!(tested, "{problem} is never planted");
    }
}

#[test]
fn a_single_piece_of_damage_is_reported_once() {
    let base = Image::populated();
    let quiet: BTreeSet<Problem> = [
        P::SuperblockDamaged,
        P::BlockBitmapUnreadable,
        P::InodeBitmapUnreadable,
        P::BlockLeaked,
        P::FreeSlotNotZero,
        P::GenerationZero,
        P::TimeInvalid,
        P::RdevMisplaced,
        P::BlockCount,
        P::TreeNodeUnreadable,
        P::EntryKind,
        P::ParentWrong,
        P::XattrUnreadable,
        P::XattrInvalid,
        P::XattrInline,
        P::ExtentBeyondEnd,
        P::Unreachable,
    ]
    .into();
    for (problem, what, plant) in PLANTS
        .iter()
        .filter(|(problem, ..)| quiet.contains(problem))
    {
        if matches!(*what, "both bitmaps" | "an index node" | "two trees")
            || *problem == P::Unreachable
        {
            continue;
        }
        let mut image = base.clone();
        plant(&mut image);
        let worse: Vec<_> = image.check().findings;
        let others = worse.iter().filter(|f| {
            f.problem != *problem && f.severity() > Severity::Note && f.problem != P::BlockLeaked
        });
        assert_eq!(others.count(), 0, "{problem} ({what}): {worse:#?}");
    }
}
