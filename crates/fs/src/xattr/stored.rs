//! Places of an inode's attributes: in it, in a block, or in several blocks that an index block
//! names; and the writes of a change.
//!
//! Records stay in the block where they are as long as they fit there, so that a change writes two of
//! the blocks and the index at most, however large the set is.

use super::{RECORD, Xattrs};
use crate::error::damaged;
use crate::layout::{
    DiskInode, INLINE_XATTR_BYTES, META_BYTES, XATTR_BLOCKS_MAX, XATTR_BYTES_MAX,
    XATTR_INDEX_MAGIC, XattrIndex,
};
use crate::reader::Reader;
use crate::superblock::Volume;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Work};
use std::collections::{HashMap, HashSet};
use steadfast_block::BlockNo;
use steadfast_journal::Kind;
use steadfast_vfs::{Errno, Ino, Result};
use zerocopy::{FromBytes, IntoBytes};

/// Log bytes of freeing a block of attributes.
pub(crate) const COST_FREE_BLOCK: u64 = COST_BITS + COST_FREE + COST_BLOCK;
/// Log bytes of writing one.
const COST_WRITE_BLOCK: u64 = META_BYTES as u64 + COST_RANGE + COST_BLOCK;
/// Log bytes of making one, besides.
const COST_MAKE_BLOCK: u64 = COST_BITS + COST_BLOCK;

const NUMBER: usize = size_of::<u64>();
const _: () = assert!(size_of::<XattrIndex>() + XATTR_BLOCKS_MAX * NUMBER <= META_BYTES);

/// The blocks of an inode's attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Names the others, if there are several.
    pub(crate) index: Option<BlockNo>,
    /// Those with records; none if all attributes lie in the inode.
    pub(crate) records: Vec<BlockNo>,
}

impl Blocks {
    /// The attributes of an inode. Reads one block if the inode has any.
    ///
    /// # Errors
    /// EUCLEAN, EIO.
    pub(crate) fn of(
        volume: &Volume,
        reader: &mut impl Reader,
        ino: Ino,
        disk: &DiskInode,
    ) -> Result<Blocks> {
        let at = BlockNo(disk.xattr_block.get());
        if at.0 == 0 {
            return Ok(Blocks::default());
        }
        if !volume.is_data(at) {
            return Err(damaged(format!(
                "inode {ino} has its extended attributes in block {at}"
            )));
        }
        match decode_index(&reader.meta(at)?[..META_BYTES]) {
            None => Ok(Blocks {
                index: None,
                records: vec![at],
            }),
            Some(Ok(records)) if records.iter().all(|at| volume.is_data(*at)) => Ok(Blocks {
                index: Some(at),
                records,
            }),
            Some(wrong) => {
                let why = wrong.err().unwrap_or("a block that can be none");
                Err(damaged(format!(
                    "index of extended attributes in block {at}: {why}"
                )))
            }
        }
    }

    /// Number of blocks.
    pub(crate) fn count(&self) -> u64 {
        self.records.len() as u64 + u64::from(self.index.is_some())
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = BlockNo> {
        self.index.iter().chain(&self.records).copied()
    }
}

/// The blocks that an index names; nothing if the block is none. The error is its fault.
pub(crate) fn decode_index(
    block: &[u8],
) -> Option<std::result::Result<Vec<BlockNo>, &'static str>> {
    let (header, rest) = XattrIndex::read_from_prefix(block).ok()?;
    if header.magic.get() != XATTR_INDEX_MAGIC {
        return None;
    }
    let count = usize::from(header.count.get());
    if !(2..=XATTR_BLOCKS_MAX).contains(&count) || header.zero.get() != 0 {
        return Some(Err("it names no number of blocks that there can be"));
    }
    let (numbers, unused) = rest.split_at(count * NUMBER);
    if unused.iter().any(|byte| *byte != 0) {
        return Some(Err("bytes that are no block numbers"));
    }
    let numbers = numbers.chunks_exact(NUMBER);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    Some(Ok(numbers.map(|bytes| BlockNo(number(bytes))).collect()))
}

fn encode_index(records: &[BlockNo]) -> Vec<u8> {
    let header = XattrIndex {
        magic: XATTR_INDEX_MAGIC.into(),
        count: (records.len() as u16).into(),
        zero: 0.into(),
    };
    let mut block = Vec::with_capacity(META_BYTES);
    block.extend_from_slice(header.as_bytes());
    for at in records {
        block.extend_from_slice(&at.0.to_le_bytes());
    }
    block.resize(META_BYTES, 0);
    block
}

/// The attributes of an inode, and where each of them lies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    blocks: Blocks,
    /// One for each block with records, or one that lies in the inode.
    parts: Vec<Xattrs>,
}

/// Layout of a set of attributes. Made by [`Stored::change`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Bytes in the inode; all zero if there are blocks.
    pub(crate) area: [u8; INLINE_XATTR_BYTES],
    /// The blocks with records, and the bytes to write there.
    blocks: Vec<(Option<BlockNo>, Option<Vec<u8>>)>,
    index: Option<BlockNo>,
    /// Blocks that hold nothing any more.
    freed: Vec<BlockNo>,
}

impl Stored {
    /// Reads them.
    ///
    /// # Errors
    /// EUCLEAN, EIO.
    pub(crate) fn of(
        volume: &Volume,
        reader: &mut impl Reader,
        ino: Ino,
        disk: &DiskInode,
    ) -> Result<Stored> {
        let blocks = Blocks::of(volume, reader, ino, disk)?;
        if blocks.records.is_empty() {
            let inline = Xattrs::decode_inline(&disk.xattrs)
                .map_err(|why| damaged(format!("extended attributes in inode {ino}: {why}")))?;
            return Ok(Stored {
                blocks,
                parts: vec![inline],
            });
        }
        if disk.xattrs.iter().any(|byte| *byte != 0) {
            return Err(damaged(format!(
                "inode {ino} has extended attributes both in itself and in block {}",
                disk.xattr_block
            )));
        }
        let mut parts: Vec<Xattrs> = Vec::with_capacity(blocks.records.len());
        let mut names = HashSet::new();
        for at in &blocks.records {
            let wrong = |why| damaged(format!("extended attributes in block {at}: {why}"));
            let part = Xattrs::decode(&reader.meta(*at)?[..META_BYTES]).map_err(wrong)?;
            if !part.names().all(|name| names.insert(name.to_vec())) {
                return Err(wrong("a name is in another block, too"));
            }
            parts.push(part);
        }
        Ok(Stored { blocks, parts })
    }

    /// All of them.
    pub(crate) fn into_all(self) -> Xattrs {
        Xattrs(self.parts.into_iter().flat_map(|part| part.0).collect())
    }

    /// The changes that store `new` instead, in at most `blocks_max` blocks with records; nothing if
    /// that is too much.
    pub(crate) fn change(&self, new: &Xattrs, blocks_max: usize) -> Option<Change> {
        if let Some(area) = new.encode_inline() {
            return Some(Change {
                area,
                blocks: Vec::new(),
                index: None,
                freed: self.blocks.all().collect(),
            });
        }
        // Unchanged attributes stay in place; changed ones stay if they fit, or go where there is room.
        let old = self.blocks.records.iter().copied().map(Some);
        let mut parts: Vec<(Option<BlockNo>, Xattrs)> =
            old.map(|at| (at, Xattrs::default())).collect();
        let mut moving = Vec::new();
        let mut places = HashMap::new();
        for (at, part) in self.parts.iter().enumerate() {
            let known = part.0.iter().map(|(name, value)| (name, (at, value)));
            places.extend(known);
        }
        for (name, value) in &new.0 {
            let old = places.get(name).copied();
            let unchanged = old.filter(|(_, before)| *before == value);
            match unchanged.and_then(|(at, _)| parts.get_mut(at)) {
                Some((_, part)) => part.0.push((name.clone(), value.clone())),
                None => moving.push((old.map(|(at, _)| at), (name, value))),
            }
        }
        for (old, (name, value)) in moving {
            let bytes = RECORD + name.len() + value.len();
            let room = |part: &(_, Xattrs)| part.1.bytes() + bytes <= XATTR_BYTES_MAX;
            let at = old
                .filter(|old| parts.get(*old).is_some_and(room))
                .or_else(|| parts.iter().position(room));
            let record = (name.clone(), value.clone());
            match at {
                Some(at) => parts[at].1.0.push(record),
                None if parts.len() < blocks_max && bytes <= XATTR_BYTES_MAX => {
                    parts.push((None, Xattrs(vec![record])));
                }
                None => return None,
            }
        }
        let empty = |part: &&(_, Xattrs)| part.1.is_empty();
        let freed = parts.iter().filter(empty).filter_map(|(at, _)| *at);
        let mut freed: Vec<BlockNo> = freed.collect();
        parts.retain(|part| !empty(&part));
        if parts.len() == 1 {
            freed.extend(self.blocks.index);
        }
        let blocks = parts.iter().map(|(at, part)| {
            let records = self.blocks.records.iter();
            let before = records.zip(&self.parts).find(|(old, _)| Some(**old) == *at);
            let same = before.is_some_and(|(_, old)| old == part);
            (*at, (!same).then(|| part.encode()))
        });
        Some(Change {
            area: [0; INLINE_XATTR_BYTES],
            blocks: blocks.collect(),
            index: self.blocks.index.filter(|_| parts.len() > 1),
            freed,
        })
    }
}

impl Change {
    /// Whether several blocks are in use then.
    pub(crate) fn is_wide(&self) -> bool {
        self.blocks.len() > 1
    }

    /// Log bytes of carrying it out, without the inode.
    pub(crate) fn log_bytes(&self) -> u64 {
        let made = self.blocks.iter().filter(|(at, _)| at.is_none()).count() as u64;
        let written = self.blocks.iter().filter(|(_, new)| new.is_some()).count() as u64;
        let index = if self.blocks.len() > 1 {
            COST_WRITE_BLOCK + COST_MAKE_BLOCK
        } else {
            0
        };
        written * COST_WRITE_BLOCK
            + made * COST_MAKE_BLOCK
            + self.freed.len() as u64 * COST_FREE_BLOCK
            + index
    }

    /// Writes the blocks. Returns the block that the inode then names, and the growth in blocks.
    ///
    /// # Errors
    /// ENOSPC, EIO, EUCLEAN.
    pub(crate) fn carry_out(self, work: &mut Work<'_>, near: BlockNo) -> Result<(u64, i64)> {
        let mut grown = -(self.freed.len() as i64);
        for at in self.freed {
            work.free_run(at, 1)?;
        }
        let mut make = |work: &mut Work<'_>| -> Result<BlockNo> {
            let at = work.allocate_block(near)?;
            work.zero(at, Kind::Meta)?;
            grown += 1;
            Ok(at)
        };
        let mut records = Vec::with_capacity(self.blocks.len());
        let mut moved = false;
        for (at, new) in self.blocks {
            let at = match at {
                Some(at) => at,
                None => {
                    moved = true;
                    make(work)?
                }
            };
            if let Some(new) = new {
                work.write(at, Kind::Meta, 0, &new)?;
            }
            records.push(at);
        }
        let named = match (records.as_slice(), self.index) {
            ([], _) => 0,
            ([at], _) => at.0,
            (_, index) => {
                let at = match index {
                    Some(at) => at,
                    None => make(work)?,
                };
                let new = encode_index(&records);
                let differs = work.read(at, Kind::Meta)?[..META_BYTES] != new[..];
                if moved || differs {
                    work.write(at, Kind::Meta, 0, &new)?;
                }
                at.0
            }
        };
        Ok((named, grown))
    }
}

/// Frees the blocks of an inode that goes away. Of a damaged index only that block is known.
///
/// # Errors
/// EIO, EUCLEAN.
pub(crate) fn free_blocks(work: &mut Work<'_>, ino: Ino, disk: &DiskInode) -> Result<()> {
    let volume = work.volume();
    let blocks = known_blocks(volume, work, ino, disk)?;
    blocks.all().try_for_each(|at| work.free_run(at, 1))
}

/// The blocks that an inode's removal frees.
///
/// # Errors
/// EIO.
pub(crate) fn known_blocks(
    volume: &Volume,
    reader: &mut impl Reader,
    ino: Ino,
    disk: &DiskInode,
) -> Result<Blocks> {
    match Blocks::of(volume, reader, ino, disk) {
        // Damage must not keep the inode from being removed.
        Err(error) if error == Errno::Uclean => Ok(Blocks {
            index: None,
            records: vec![BlockNo(disk.xattr_block.get())],
        }),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use steadfast_vfs::XattrMode;

    const MAX: usize = XATTR_BLOCKS_MAX;

    /// The set as it lies after a change; new blocks get numbers.
    fn after(stored: &Stored, new: &Xattrs, next: &mut u64) -> Option<(Stored, usize)> {
        let change = stored.change(new, MAX)?;
        let mut written = 0;
        let mut blocks = Blocks::default();
        let mut parts = Vec::new();
        for (at, new) in &change.blocks {
            let at = at.unwrap_or_else(|| {
                *next += 1;
                BlockNo(*next)
            });
            let part = match new {
                Some(new) => {
                    written += 1;
                    Xattrs::decode(new).unwrap()
                }
                None => {
                    let old = stored.blocks.records.iter().position(|old| *old == at);
                    stored.parts[old.unwrap()].clone()
                }
            };
            blocks.records.push(at);
            parts.push(part);
        }
        if blocks.records.len() > 1 {
            blocks.index = change.index.or_else(|| {
                *next += 1;
                Some(BlockNo(*next))
            });
            let index = encode_index(&blocks.records);
            assert_eq!(decode_index(&index).unwrap().unwrap(), blocks.records);
        }
        if parts.is_empty() {
            parts.push(Xattrs::decode_inline(&change.area).unwrap());
        }
        // Every block before is there, or is freed, once.
        let mut before: Vec<BlockNo> = stored.blocks.all().collect();
        let mut kept: Vec<BlockNo> = blocks.all().filter(|at| before.contains(at)).collect();
        kept.extend(&change.freed);
        before.sort_unstable();
        kept.sort_unstable();
        assert_eq!(before, kept);
        Some((Stored { blocks, parts }, written))
    }

    fn sorted(xattrs: Xattrs) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = xattrs.0;
        all.sort();
        all
    }

    #[test]
    fn a_set_of_many_blocks_comes_and_goes_and_a_change_writes_two_of_them() {
        let mut stored = Stored {
            blocks: Blocks::default(),
            parts: vec![Xattrs::default()],
        };
        let mut all = Xattrs::default();
        let (mut next, mut largest) = (100, 0);
        let mut set = |all: &mut Xattrs, stored: &mut Stored, new: Xattrs| {
            let Some((after, written)) = after(stored, &new, &mut next) else {
                return false;
            };
            assert!(written <= 2, "{written} blocks written");
            largest = largest.max(after.blocks.records.len());
            *stored = after;
            *all = new;
            assert_eq!(sorted(stored.clone().into_all()), sorted(all.clone()));
            true
        };
        let name = |n: u64| format!("user.attribute_{n}").into_bytes();
        let mut full = 0;
        for n in 0..2500 {
            let mut new = all.clone();
            new.set(&name(n), format!("value_{n}").as_bytes(), XattrMode::Create)
                .unwrap();
            full += u64::from(!set(&mut all, &mut stored, new));
        }
        assert!(full > 0 && all.0.len() > 1900, "{} fit", all.0.len());
        for n in (0..100).map(|n| n * 7) {
            let mut new = all.clone();
            let value = vec![n as u8; (n % 40) as usize];
            new.set(&name(n), &value, XattrMode::Replace).unwrap();
            set(&mut all, &mut stored, new);
        }
        while let Some((name, _)) = all.0.get(all.0.len() / 2).cloned() {
            let mut new = all.clone();
            new.remove(&name).unwrap();
            assert!(set(&mut all, &mut stored, new));
        }
        assert_eq!(largest, MAX);
        assert_eq!(stored.blocks, Blocks::default());
    }

    #[test]
    fn corner_35_a_wrong_index_is_refused() {
        let good = encode_index(&[BlockNo(7), BlockNo(9)]);
        assert!(decode_index(&good).unwrap().is_ok());
        assert!(decode_index(&Xattrs::default().encode()).is_none());
        for (at, value) in [
            (4, 0),
            (4, 1),
            (4, 255),
            (5, 255),
            (6, 1),
            (META_BYTES - 1, 1),
        ] {
            let mut block = good.clone();
            block[at] = value;
            assert!(decode_index(&block).unwrap().is_err(), "byte {at}");
        }
    }
}
