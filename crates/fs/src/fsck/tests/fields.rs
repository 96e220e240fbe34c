//! Corner 35, field by field: every field of every structure takes each value that code tends to
//! trip over, under a valid checksum. Nothing is random: case `n` is always the same.
//!
//! `cargo test` takes every [`STRIDE`]th case; `STEADFAST_LONG=1` all of them and as many pairs.
//! `STEADFAST_CASE=n` runs one.

use super::fuzz::{Near, survive};
use super::image::Image;
use crate::layout::{
    DIR_UNIT, DiskInode, DiskTime, INLINE_BYTES, INODE_BYTES, INODE_SLOTS, META_BYTES, NODE_ITEMS,
    Superblock, XattrHeader,
};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};
use steadfast_block::{BLOCK_SIZE, Block};
use steadfast_journal::fuzz::{reseal_header, reseal_record};
use steadfast_vfs::Ino;

/// Each test run takes every `STRIDE`th case; a prime, so that all fields have their turn.
const STRIDE: usize = 67;
/// The same of those of the log.
const LOG_STRIDE: usize = 7;
/// Longest time of one case on a busy machine.
const CASE_MAX: Duration = Duration::from_secs(300);
/// Most address space of the whole run, KiB: the code trusts no number on the medium.
const MEMORY_MAX_KIB: u64 = 6 << 20;

type Change = Rc<dyn Fn(&mut Image)>;

/// One wrong field.
struct Case {
    what: String,
    /// Paths that lead to it.
    near: Vec<String>,
    /// A repair can put it right, or must say that there is no volume.
    repairable: bool,
    change: Change,
}

/// Collects the cases of one base image.
struct Cases<'a> {
    base: &'a Image,
    all: Vec<Case>,
}

/// Checksum to restore in a changed block.
#[derive(Clone, Copy)]
enum Sealed {
    Block,
    Header,
    Record,
}

/// Blocks of every use, from every structure to the end of numbers.
fn places(image: &Image) -> Vec<u64> {
    let volume = &image.volume;
    let start = volume.groups_start;
    let mut places = vec![
        0,
        1,
        2,
        volume.log_start,
        start,
        start + 1,
        volume.root / INODE_SLOTS,
        image.ino("/attrs") / INODE_SLOTS,
        image.inode(image.ino("/attrs")).xattr_block.get(),
        image.free_block(),
        volume.blocks - 2,
        volume.blocks - 1,
        volume.blocks,
        u64::from(u32::MAX),
        u64::MAX / INODE_SLOTS,
        u64::MAX,
    ];
    for path in ["/big", "/many", "/flat", "/a/b"] {
        let (items, nodes) = image.tree(image.ino(path));
        places.extend(nodes.first());
        places.push(items[0].block.get());
        places.extend(items.last().map(|item| item.block.get()));
    }
    places
}

/// Numbers that lead somewhere as an inode.
fn inodes(image: &Image) -> Vec<u64> {
    let mut inos = vec![image.volume.root, image.volume.orphans];
    inos.extend(["/a", "/a/b", "/flat", "/gone", "/short", "/fifo", "/many"].map(|p| image.ino(p)));
    for at in places(image) {
        inos.extend([0, 1, 14, 15].map(|slot| at.wrapping_mul(INODE_SLOTS).wrapping_add(slot)));
    }
    inos
}

/// Numbers that code trips over, near the one that is right.
fn numbers(now: u64, bytes: usize) -> Vec<u64> {
    let max = u64::MAX >> (64 - 8 * bytes);
    vec![
        0,
        1,
        2,
        now.wrapping_sub(1) & max,
        now.wrapping_add(1) & max,
        now.wrapping_mul(2) & max,
        now ^ 1 << (8 * bytes - 1),
        max >> 1,
        (max >> 1) + 1,
        max - 1,
        max,
        0x7fff & max,
        4096 & max,
        (1 << 20) & max,
        (1 << 32) & max,
    ]
}

fn get(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut word = [0; 8];
    word[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(word)
}

impl Cases<'_> {
    fn add(&mut self, what: String, near: &[&str], change: impl Fn(&mut Image) + 'static) {
        self.all.push(Case {
            what,
            near: near.iter().map(|path| (*path).to_owned()).collect(),
            repairable: true,
            change: Rc::new(change),
        });
    }

    /// Each of `values` in the `len` bytes at `offset` of block `at`.
    fn values(
        &mut self,
        what: &str,
        near: &[&str],
        (at, offset, len): (u64, usize, usize),
        mut values: Vec<u64>,
        sealed: Sealed,
    ) {
        values.sort_unstable();
        values.dedup();
        let now = get(self.base.block(at), offset, len);
        for value in values {
            if value == now || (len < 8 && value >= 1 << (8 * len)) {
                continue;
            }
            let change = move |block: &mut Block| {
                block[offset..offset + len].copy_from_slice(&value.to_le_bytes()[..len]);
            };
            let what = format!("{what}: {now:#x} becomes {value:#x} (block {at}, byte {offset})");
            self.add(what, near, move |image| reseal(image, at, sealed, &change));
        }
    }

    /// A number that is no address.
    fn number(&mut self, what: &str, near: &[&str], place: (u64, usize, usize)) {
        let now = get(self.base.block(place.0), place.1, place.2);
        self.values(what, near, place, numbers(now, place.2), Sealed::Block);
    }

    /// A block's address.
    fn pointer(&mut self, what: &str, near: &[&str], at: u64, offset: usize) {
        let mut values = places(self.base);
        values.push(at);
        values.extend(numbers(get(self.base.block(at), offset, 8), 8));
        self.values(what, near, (at, offset, 8), values, Sealed::Block);
    }

    /// An inode's number.
    fn inode_number(&mut self, what: &str, near: &[&str], at: u64, offset: usize) {
        let mut values = inodes(self.base);
        values.extend(numbers(get(self.base.block(at), offset, 8), 8));
        self.values(what, near, (at, offset, 8), values, Sealed::Block);
    }

    fn superblocks(&mut self) {
        let last = self.base.volume.blocks - 1;
        let mut fields: Vec<(&str, usize, usize)> = vec![
            ("version", offset_of!(Superblock, version), 4),
            ("incompatible", offset_of!(Superblock, features_incompat), 4),
            ("read-only", offset_of!(Superblock, features_ro), 4),
            ("compatible", offset_of!(Superblock, features_compat), 4),
            ("identity", offset_of!(Superblock, uuid), 8),
            ("blocks", offset_of!(Superblock, blocks), 8),
            ("log start", offset_of!(Superblock, log_start), 8),
            ("log blocks", offset_of!(Superblock, log_blocks), 8),
            ("groups start", offset_of!(Superblock, groups_start), 8),
            ("groups", offset_of!(Superblock, groups), 8),
            ("root", offset_of!(Superblock, root_ino), 8),
            ("orphans", offset_of!(Superblock, orphan_ino), 8),
            ("hash key", offset_of!(Superblock, hash_key), 8),
            ("contract", offset_of!(Superblock, contract), 4),
            ("reserved", offset_of!(Superblock, reserved), 4),
            ("made", offset_of!(Superblock, made), 8),
            ("label", offset_of!(Superblock, label), 8),
        ];
        fields.push(("magic", 0, 8));
        for (name, offset, len) in fields {
            let now = get(self.base.block(0), offset, len);
            let mut values = numbers(now, len);
            if len == 8 {
                values.extend(places(self.base));
                values.extend(inodes(self.base));
            }
            values.sort_unstable();
            values.dedup();
            for value in values {
                for which in [&[0][..], &[last][..], &[0, last][..]] {
                    let (places, bytes) = (which.to_vec(), value.to_le_bytes());
                    let what = format!("superblock {which:?}, {name}: {value:#x}");
                    self.add(what, &["/"], move |image| {
                        for at in &places {
                            // Sealed under the identity that it names.
                            image.scratch(*at, |block| {
                                block[offset..offset + len].copy_from_slice(&bytes[..len]);
                                let mut uuid = [0; 16];
                                uuid.copy_from_slice(&block[24..40]);
                                steadfast_journal::seal(
                                    &uuid,
                                    steadfast_block::BlockNo(*at),
                                    block,
                                );
                            });
                        }
                    });
                    if let Some(case) = self.all.last_mut() {
                        case.repairable = false;
                    }
                }
            }
        }
    }

    /// The journal's two headers and, of a volume with a log, the header of its first record.
    fn journal(&mut self) {
        let volume = self.base.volume.clone();
        let places = [
            0,
            2,
            volume.log_start,
            volume.groups_start,
            volume.groups_start + 1,
            volume.root / INODE_SLOTS,
            volume.blocks - 2,
            volume.blocks - 1,
            volume.blocks,
        ];
        for at in [1, 2] {
            let what = format!("tail header {at}");
            for (offset, len) in [(8, 4), (12, 4), (16, 8)] {
                let values = numbers(get(self.base.block(at), offset, len), len);
                self.values(&what, &["/"], (at, offset, len), values, Sealed::Header);
            }
            for offset in (32..96).step_by(8) {
                let mut values = numbers(get(self.base.block(at), offset, 8), 8);
                values.extend([3, volume.log_blocks, volume.log_blocks + 1, u64::MAX / 4]);
                self.values(&what, &["/"], (at, offset, 8), values, Sealed::Header);
            }
        }
        let at = volume.log_start;
        if !self.base.block(at).starts_with(b"STDFRECD") {
            return;
        }
        for (offset, len) in [(8, 4), (12, 4), (64, 4), (68, 4), (72, 4), (76, 4)] {
            let values = numbers(get(self.base.block(at), offset, len), len);
            self.values("record", &["/"], (at, offset, len), values, Sealed::Record);
        }
        for offset in [32, 40, 48, 56] {
            let values = numbers(get(self.base.block(at), offset, 8), 8);
            self.values("record", &["/"], (at, offset, 8), values, Sealed::Record);
        }
        // The first entry: its block, its flags and counts, its checksum and first range.
        let mut values = numbers(get(self.base.block(at), 112, 8), 8);
        values.extend(places);
        self.values(
            "entry's block",
            &["/"],
            (at, 112, 8),
            values,
            Sealed::Record,
        );
        for (offset, len) in [(120, 1), (121, 1), (122, 2), (124, 2), (126, 2), (128, 8)] {
            let values = numbers(get(self.base.block(at), offset, len), len);
            self.values("entry", &["/"], (at, offset, len), values, Sealed::Record);
        }
        for offset in [136, 138, 140] {
            let values = numbers(get(self.base.block(at), offset, 2), 2);
            self.values(
                "entry's range",
                &["/"],
                (at, offset, 2),
                values,
                Sealed::Record,
            );
        }
    }

    fn bitmaps(&mut self) {
        let volume = self.base.volume.clone();
        let start = volume.groups_start;
        let len = volume.group_len(0);
        let mut bits: Vec<u64> = places(self.base)
            .iter()
            .filter_map(|at| at.checked_sub(start))
            .filter(|index| *index < len)
            .collect();
        bits.extend([len - 1, len, len + 1, META_BYTES as u64 * 8 - 1]);
        bits.sort_unstable();
        bits.dedup();
        for bitmap in [start, start + 1] {
            for value in [0, 0x55, 0xff] {
                self.add(format!("bitmap {bitmap} all {value:#x}"), &["/"], {
                    move |image| image.edit(bitmap, |block| block[..META_BYTES].fill(value))
                });
            }
            for index in bits.clone() {
                let value = !self.base.bit(bitmap, index);
                self.add(
                    format!("bitmap {bitmap}, bit {index}: {value}"),
                    &["/flat", "/a"],
                    move |image| image.set_bit(bitmap, index, value),
                );
            }
        }
    }

    /// Every field of an inode, and of the tree root in its body if there is one.
    fn inode(&mut self, path: &str, ino: Ino) {
        let (at, base) = (
            ino / INODE_SLOTS,
            (ino % INODE_SLOTS) as usize * INODE_BYTES,
        );
        let near = &[path][..];
        let field = |name: &str| format!("inode of {path}, {name}");
        // Every kind, with and without permissions.
        let modes = (0..16)
            .map(|kind| kind << 12 | 0o644)
            .chain([0, 0o777, 1 << 16, 0xffff_ffff]);
        let place = |offset: usize, len: usize| (at, base + offset, len);
        self.values(
            &field("mode"),
            near,
            place(0, 4),
            modes.collect(),
            Sealed::Block,
        );
        for (name, offset, len) in [
            ("flags", offset_of!(DiskInode, flags), 4),
            ("uid", offset_of!(DiskInode, uid), 4),
            ("gid", offset_of!(DiskInode, gid), 4),
            ("nlink", offset_of!(DiskInode, nlink), 8),
            ("size", offset_of!(DiskInode, size), 8),
            ("blocks", offset_of!(DiskInode, blocks), 8),
            ("generation", offset_of!(DiskInode, generation), 8),
            ("rdev", offset_of!(DiskInode, rdev), 4),
            ("entries", offset_of!(DiskInode, entries), 8),
            ("attributes", offset_of!(DiskInode, xattrs), 8),
            ("last attribute", offset_of!(DiskInode, xattrs) + 44, 8),
        ] {
            self.number(&field(name), near, place(offset, len));
        }
        for (name, offset) in [
            ("mtime", offset_of!(DiskInode, mtime)),
            ("ctime", offset_of!(DiskInode, ctime)),
            ("atime", offset_of!(DiskInode, atime)),
            ("btime", offset_of!(DiskInode, btime)),
        ] {
            self.number(&field(name), near, place(offset, 8));
            let nanos = offset + offset_of!(DiskTime, nanos);
            let values = vec![999_999_999, 1_000_000_000, u64::from(u32::MAX)];
            self.values(&field(name), near, place(nanos, 4), values, Sealed::Block);
        }
        let size = place(offset_of!(DiskInode, size), 8);
        let sizes = vec![
            INLINE_BYTES as u64 - 1,
            INLINE_BYTES as u64,
            INLINE_BYTES as u64 + 1,
            4079,
            4080,
            4095,
            4096,
            4097,
            1 << 44,
            (1 << 44) + 1,
        ];
        self.values(&field("size"), near, size, sizes, Sealed::Block);
        let xattrs = base + offset_of!(DiskInode, xattr_block);
        self.pointer(&field("attribute block"), near, at, xattrs);
        let parent = base + offset_of!(DiskInode, parent);
        self.inode_number(&field("parent"), near, at, parent);
        let body = base + offset_of!(DiskInode, body);
        self.node(&field("tree root"), near, (at, body), INLINE_BYTES);
        // The whole inode in another's slot: two of everything.
        let whole: [u8; INODE_BYTES] = self.base.block(at)[base..][..INODE_BYTES]
            .try_into()
            .unwrap();
        for other in ["/flat", "/a", "/", "/empty", "/gone"] {
            let (to, slot) = (
                self.base.ino(other) / INODE_SLOTS,
                (self.base.ino(other) % INODE_SLOTS) as usize * INODE_BYTES,
            );
            self.add(field(&format!("copied over {other}")), &[path, other], {
                move |image| {
                    image.edit(to, |block| {
                        block[slot..][..INODE_BYTES].copy_from_slice(&whole)
                    });
                }
            });
        }
    }

    /// A tree node of `bytes` bytes: its header, and its first, middle and last items.
    fn node(&mut self, what: &str, near: &[&str], (at, start): (u64, usize), bytes: usize) {
        let count = get(self.base.block(at), start + 4, 2) as usize;
        for (name, offset) in [("magic", 0), ("level", 2), ("count", 4), ("reserved", 6)] {
            let mut values = numbers(get(self.base.block(at), start + offset, 2), 2);
            values.extend([3, 4, 5, 7, 8, 168, NODE_ITEMS as u64, 170, 255, 0x5f7e]);
            let what = format!("{what}, {name}");
            self.values(&what, near, (at, start + offset, 2), values, Sealed::Block);
        }
        let room = (bytes - 8) / 24;
        let mut items = vec![0, 1, count / 2, count.saturating_sub(1), count, room - 1];
        items.retain(|index| *index < room);
        items.sort_unstable();
        items.dedup();
        for index in items {
            let item = start + 8 + index * 24;
            let name = |field: &str| format!("{what}, item {index} of {count}, {field}");
            let mut keys = numbers(get(self.base.block(at), item, 8), 8);
            for other in [index.wrapping_sub(1), index + 1]
                .into_iter()
                .filter(|i| *i < room)
            {
                let key = get(self.base.block(at), start + 8 + other * 24, 8);
                keys.extend([key, key.wrapping_add(1), key.wrapping_sub(1)]);
            }
            self.values(&name("key"), near, (at, item, 8), keys, Sealed::Block);
            self.pointer(&name("block"), near, at, item + 8);
            // Over its neighbours on the device, by one and more.
            for other in [index.wrapping_sub(1), index + 1]
                .into_iter()
                .filter(|i| *i < room)
            {
                let block = get(self.base.block(at), start + 8 + other * 24 + 8, 8);
                let values = vec![block, block.wrapping_add(1), block.wrapping_sub(1)];
                self.values(
                    &name("block"),
                    near,
                    (at, item + 8, 8),
                    values,
                    Sealed::Block,
                );
            }
            self.number(&name("length"), near, (at, item + 16, 4));
            self.number(&name("flags"), near, (at, item + 20, 4));
        }
        if at != 0 && start == 0 {
            let (this, whole) = (at, *self.base.block(at));
            // A node of itself, at every level; and the wrong node.
            for level in 1..=8u8 {
                self.add(format!("{what}, its own child at level {level}"), near, {
                    move |image| {
                        image.edit(this, |block| {
                            block[2] = level;
                            Image::change_item(block, 0, |item| item.block = this.into());
                        });
                    }
                });
            }
            for other in self.base.metadata() {
                if other == this {
                    continue;
                }
                self.add(format!("{what}, copied to block {other}"), near, {
                    move |image| {
                        image.edit(other, |block| {
                            block[..META_BYTES].copy_from_slice(&whole[..META_BYTES]);
                        });
                    }
                });
            }
        }
    }

    /// Every field of an entry.
    fn entry(&mut self, dir: &str, ino: Ino, name: &[u8]) {
        let (at, unit) = self.base.entry(ino, name, |at, raw| (at, raw.unit));
        let start = unit * DIR_UNIT;
        let child = format!(
            "{}/{}",
            dir.trim_end_matches('/'),
            String::from_utf8_lossy(name)
        );
        let near = &[dir, &child][..];
        let field = |field: &str| format!("entry {child}, {field}");
        self.inode_number(&field("inode"), near, at, start);
        let now = get(self.base.block(at), start + 8, 8);
        let mut cookies = numbers(now, 8);
        cookies.extend([15, 16, 17, now.wrapping_add(16), now.wrapping_sub(16)]);
        let others = self.base.tree(ino).0;
        cookies.extend(others.iter().take(3).map(|item| item.key.get()));
        self.values(
            &field("cookie"),
            near,
            (at, start + 8, 8),
            cookies,
            Sealed::Block,
        );
        self.values(
            &field("length"),
            near,
            (at, start + 16, 1),
            vec![
                0,
                1,
                2,
                3,
                13,
                14,
                15,
                30,
                31,
                150,
                254,
                255,
                name.len() as u64 + 1,
            ],
            Sealed::Block,
        );
        self.values(
            &field("kind"),
            near,
            (at, start + 17, 1),
            (0..10).chain([127, 128, 255]).collect(),
            Sealed::Block,
        );
        let bytes = [0, b'/', b'.', 0xff].map(u64::from).to_vec();
        for offset in [18, 17 + name.len(), 18 + name.len()] {
            if (offset + start) < META_BYTES {
                let place = (at, start + offset, 1);
                self.values(&field("name"), near, place, bytes.clone(), Sealed::Block);
            }
        }
        for dots in [&b"."[..], b".."] {
            self.add(field(&format!("called {}", dots.escape_ascii())), near, {
                move |image| {
                    image.edit(at, |block| {
                        block[start + 16] = dots.len() as u8;
                        block[start + 18..start + 18 + dots.len()].copy_from_slice(dots);
                    });
                }
            });
        }
    }

    fn attributes(&mut self, path: &str) {
        let at = self.base.inode(self.base.ino(path)).xattr_block.get();
        let near = &[path][..];
        for (name, offset, len) in [
            ("magic", offset_of!(XattrHeader, magic), 4),
            ("count", offset_of!(XattrHeader, count), 2),
            ("bytes", offset_of!(XattrHeader, bytes), 2),
            ("name length", 8, 1),
            ("zero", 9, 1),
            ("value length", 10, 2),
            ("name", 12, 1),
            ("name", 17, 1),
        ] {
            self.number(
                &format!("attributes of {path}, {name}"),
                near,
                (at, offset, len),
            );
        }
        let lengths = vec![4060, 4064, 4068, 4071, 4072, 4073, 4080, 4096];
        for offset in [6, 10] {
            let what = format!("attributes of {path}, bytes");
            self.values(&what, near, (at, offset, 2), lengths.clone(), Sealed::Block);
        }
        let second =
            8 + 4 + usize::from(self.base.block(at)[8]) + usize::from(self.base.block(at)[10]);
        for (offset, len) in [(0, 1), (1, 1), (2, 2)] {
            let what = format!("attributes of {path}, second record");
            self.number(&what, near, (at, second + offset, len));
        }
    }

    /// Every byte that means something in the area of an inode, in it and in a neighbour's.
    fn inline_attributes(&mut self, path: &str, others: &[&str]) {
        let ino = self.base.ino(path);
        let (at, near) = (ino / INODE_SLOTS, &[path][..]);
        let place =
            |ino: Ino| (ino % INODE_SLOTS) as usize * INODE_BYTES + offset_of!(DiskInode, xattrs);
        let start = place(ino);
        let area = self.base.inode(ino).xattrs;
        let mut record = 0;
        let field = |field: &str, at: usize| format!("attributes in {path}, {field} at {at}");
        while record + 3 < area.len() && area[record] != 0 {
            let (name, value) = (area[record + 1] as usize, area[record + 2] as usize);
            let left = (area.len() - record - 3) as u64;
            let mut lengths = vec![0, 1, left - 1, left, left + 1, 127, 128, 255];
            lengths.extend([name, value, name + value].map(|length| length as u64 - 1));
            lengths.extend([name, value, name + value].map(|length| length as u64 + 1));
            for offset in 1..3 {
                let place = (at, start + record + offset, 1);
                let what = field("length", record + offset);
                self.values(&what, near, place, lengths.clone(), Sealed::Block);
            }
            let bytes = [0, 1, 2, 3, 4, 127, 128, 255].to_vec();
            for offset in [0, 3, 2 + name, 3 + name, 3 + name + value] {
                let place = (at, start + record + offset, 1);
                let what = field("byte", record + offset);
                self.values(&what, near, place, bytes.clone(), Sealed::Block);
            }
            record += 3 + name + value;
        }
        let last = (at, start + area.len() - 1, 1);
        self.values(&field("byte", 51), near, last, vec![1, 255], Sealed::Block);
        for other in others {
            let ino = self.base.ino(other);
            let (at, start) = (ino / INODE_SLOTS, place(ino));
            self.add(format!("attributes of {path} in {other}"), &[other], {
                move |image| {
                    image.edit(at, |block| {
                        block[start..start + area.len()].copy_from_slice(&area)
                    });
                }
            });
        }
    }

    fn targets(&mut self) {
        let ino = self.base.ino("/short");
        let at = ino / INODE_SLOTS;
        let body = (ino % INODE_SLOTS) as usize * INODE_BYTES + offset_of!(DiskInode, body);
        for offset in [0, 1, 3, INLINE_BYTES - 1] {
            let bytes = vec![0, u64::from(b'/'), 255];
            let place = (at, body + offset, 1);
            self.values("target of /short", &["/short"], place, bytes, Sealed::Block);
        }
        let at = self.base.tree(self.base.ino("/long")).0[0].block.get();
        for offset in [0, 299, 300] {
            self.add(
                format!("target of /long, byte {offset}"),
                &["/long"],
                move |image| {
                    image.scratch(at, |block| block[offset] = 0);
                },
            );
        }
    }
}

fn reseal(image: &mut Image, at: u64, sealed: Sealed, change: &dyn Fn(&mut Block)) {
    let volume = image.volume.clone();
    match sealed {
        Sealed::Block => image.edit(at, change),
        Sealed::Header => image.scratch(at, |block| {
            change(block);
            reseal_header(volume.uuid, block);
        }),
        Sealed::Record => {
            image.scratch(at, change);
            let log = at as usize * BLOCK_SIZE..volume.groups_start as usize * BLOCK_SIZE;
            reseal_record(volume.uuid, &mut image.bytes[log]);
        }
    }
}

/// All cases of an image.
fn cases(base: &Image) -> Vec<Case> {
    let mut cases = Cases {
        base,
        all: Vec::new(),
    };
    cases.superblocks();
    cases.journal();
    cases.bitmaps();
    for path in [
        "/", "/a", "/a/b", "/many", "/flat", "/big", "/pre", "/short", "/long", "/fifo", "/null",
        "/empty", "/attrs", "/few", "/gone",
    ] {
        cases.inode(path, base.ino(path));
    }
    cases.inode("/", base.volume.orphans);
    for path in ["/big", "/many"] {
        for at in base.tree(base.ino(path)).1 {
            let what = format!("node {at} of {path}");
            cases.node(&what, &[path], (at, 0), META_BYTES);
        }
    }
    let name = |i: usize| format!("{i:0>150}").into_bytes();
    cases.entry("/", base.ino("/"), b"a");
    cases.entry("/", base.ino("/"), b"flat");
    cases.entry("/a", base.ino("/a"), b"hard");
    cases.entry("/many", base.ino("/many"), &name(3));
    cases.entry("/many", base.ino("/many"), &name(77));
    let orphan = format!("{:016x}", base.ino("/gone")).into_bytes();
    cases.entry("/", base.volume.orphans, &orphan);
    cases.attributes("/attrs");
    cases.inline_attributes("/few", &["/attrs", "/short", "/fifo", "/a", "/gone"]);
    cases.targets();
    cases.all
}

/// Peak of this process's address space in KiB, where the system says it.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmPeak:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn run(base: &Image, picked: &[&Case], seed: u64) -> Result<(), String> {
    let what: Vec<&str> = picked.iter().map(|case| case.what.as_str()).collect();
    let start = Instant::now();
    let attempt = catch_unwind(AssertUnwindSafe(|| {
        let mut image = base.clone();
        for case in picked {
            (case.change)(&mut image);
        }
        let near = Near {
            paths: picked.iter().flat_map(|case| case.near.clone()).collect(),
            repairable: picked.iter().all(|case| case.repairable),
            forged: !picked.iter().all(|case| case.repairable),
        };
        survive(&image, &near, seed);
    }));
    if attempt.is_err() {
        return Err(what.join(" and "));
    }
    let took = start.elapsed();
    if took > CASE_MAX {
        return Err(format!("{} takes {took:?}", what.join(" and ")));
    }
    Ok(())
}

fn all(base: &Image, cases: &[Case], stride: usize) {
    let before = peak_kib();
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let (first, stride) = match number("STEADFAST_CASE") {
        Some(case) => (case, usize::MAX),
        None if long => (number("STEADFAST_CASE_FROM").unwrap_or(0), 1),
        None => (0, stride),
    };
    let mut failed = Vec::new();
    let mut ran = 0;
    for (index, case) in cases.iter().enumerate().skip(first).step_by(stride) {
        ran += 1;
        failed.extend(
            run(base, &[case], index as u64)
                .err()
                .map(|e| format!("{index}: {e}")),
        );
    }
    if long {
        // Pairs: every case with one far away.
        for (index, case) in cases.iter().enumerate().skip(first) {
            ran += 1;
            let other = &cases[(index * 7919 + 1013) % cases.len()];
            let result = run(base, &[case, other], index as u64);
            failed.extend(result.err().map(|e| format!("pair {index}: {e}")));
        }
    }
    eprintln!("{ran} runs of {} cases", cases.len());
    let of = (failed.len(), ran);
    assert!(failed.is_empty(), "{of:?}: {failed:#?}");
    if let (Some(before), Some(after)) = (before, peak_kib()) {
        assert!(
            after - before < MEMORY_MAX_KIB,
            "{before} KiB became {after}"
        );
    }
}

#[test]
fn corner_35_every_field_of_every_structure_may_be_wrong() {
    let base = Image::populated();
    all(&base, &cases(&base), STRIDE);
}

#[test]
fn corner_35_every_field_of_a_log_to_replay_may_be_wrong() {
    let base = Image::crashed();
    let mut cases = Cases {
        base: &base,
        all: Vec::new(),
    };
    cases.journal();
    all(&base, &cases.all, LOG_STRIDE);
}
