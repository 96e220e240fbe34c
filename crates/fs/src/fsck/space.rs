//! The bitmaps: their right content, and the differences to the stored one.

use super::check::Check;
use super::finding::{Place, Problem};
use super::inodes::GROUPS_AT_ONCE;
use crate::layout::{GROUP_BLOCKS, GROUP_META, META_BYTES};
use steadfast_block::{BLOCK_SIZE, Block};

/// The two bitmaps of a group.
pub(super) struct Bitmaps {
    pub(super) blocks: Block,
    pub(super) inodes: Block,
}

fn bit(block: &Block, index: u64) -> bool {
    block[(index / 8) as usize] >> (index % 8) & 1 == 1
}

fn runs(start: u64, at: u64, len: u64) -> String {
    if len == 1 {
        format!("block {}", start + at)
    } else {
        format!("blocks {} to {}", start + at, start + at + len - 1)
    }
}

impl Check<'_> {
    /// The bitmaps of a group as they should be.
    pub(super) fn expected_bitmaps(&self, group: u64) -> Bitmaps {
        let start = self.vol.group_start(group).0;
        let len = self.vol.group_len(group);
        let mut bitmaps = Bitmaps {
            blocks: [0; BLOCK_SIZE],
            inodes: [0; BLOCK_SIZE],
        };
        for bitmap in 0..GROUP_META {
            bitmaps.blocks[(bitmap / 8) as usize] |= 1 << (bitmap % 8);
        }
        let mut at = start + GROUP_META;
        while let Some(used) = self.used.next(at, start + len, true) {
            bitmaps.blocks[((used - start) / 8) as usize] |= 1 << ((used - start) % 8);
            at = used + 1;
        }
        for behind in len..GROUP_BLOCKS {
            bitmaps.blocks[(behind / 8) as usize] |= 1 << (behind % 8);
        }
        for place in self.table.places(group) {
            bitmaps.inodes[usize::from(place / 8)] |= 1 << (place % 8);
        }
        bitmaps
    }

    /// Step 9: compares the bitmaps with the blocks and slots in use.
    pub(super) fn compare_bitmaps(&mut self) {
        let groups = self.vol.groups;
        for group in 0..groups {
            if group % GROUPS_AT_ONCE == 0 {
                self.step("bitmaps", group, groups);
                self.read_bitmaps_ahead(group..(group + GROUPS_AT_ONCE).min(groups));
            }
            let start = self.vol.group_start(group).0;
            let expected = self.expected_bitmaps(group);
            if let Ok(found) = self.source.meta(start) {
                self.compare(group, &expected.blocks, &found, |expected| {
                    if expected {
                        (Problem::BlockNotMarked, "in use, but marked free")
                    } else {
                        (Problem::BlockLeaked, "marked used, but nothing uses them")
                    }
                });
            }
            if let Ok(found) = self.source.meta(start + 1) {
                self.compare(group, &expected.inodes, &found, |expected| {
                    if expected {
                        (
                            Problem::InodeBlockBit,
                            "inode blocks, but not listed as such",
                        )
                    } else {
                        (
                            Problem::InodeBlockBit,
                            "listed as inode blocks, and are none",
                        )
                    }
                });
            }
        }
    }

    /// Reports runs of bits that differ.
    fn compare(
        &mut self,
        group: u64,
        expected: &Block,
        found: &Block,
        say: impl Fn(bool) -> (Problem, &'static str),
    ) {
        if expected[..META_BYTES] == found[..META_BYTES] {
            return;
        }
        let start = self.vol.group_start(group).0;
        let len = self.vol.group_len(group);
        let mut at = 0;
        while at < GROUP_BLOCKS {
            let wanted = bit(expected, at);
            if wanted == bit(found, at) || self.retired.contains(&(start + at)) {
                at += 1;
                continue;
            }
            let section = if at < len { len } else { GROUP_BLOCKS };
            let end = (at..section)
                .find(|i| {
                    bit(expected, *i) != wanted
                        || bit(found, *i) == wanted
                        || self.retired.contains(&(start + i))
                })
                .unwrap_or(section);
            let (problem, what) = if at < len {
                say(wanted)
            } else {
                (
                    Problem::BitmapTail,
                    "past the end of the group, but marked otherwise",
                )
            };
            let detail = format!("{} are {what}", runs(start, at, end - at));
            self.log.add(problem, Place::block(start + at), detail);
            at = end;
        }
    }
}
