//! Directories: entries in leaves, found through an index from cookie to leaf.
//!
//! An entry's *cookie* is a keyed hash of its name whose low bits distinguish equal hashes.
//! It sorts the index, finds the entry in one leaf, and is the stable position of `readdir`
//! (corner 31). Cookies 0, 1 and 2 are the start, after `.` and after `..`.
//!
//! Invariants:
//!
//! * an index item's key is the lower bound of its leaf's cookies, a multiple of 16, so that
//!   names with equal hashes share a leaf; the leftmost key is 0 and that leaf stays until the
//!   directory goes; every other leaf has an entry;
//! * no entry points to another, so streams may add and remove entries of one leaf on their
//!   own; an operation that *moves* entries or changes a leaf's bounds relates its block exclusively
//!   (ccfs §3.3, corner 57).
//!
//! The caller holds the directory's lock: exclusively to change it, shared to look.

use crate::btree;
use crate::error::damaged;
use crate::inode::{self, Place, kind_from_number};
use crate::layout::{
    COOKIE_SPARE_BITS, DIR_UNIT, DIR_UNITS, DirEntryHeader, DiskInode, Item, META_BYTES,
};
use crate::reader::Reader;
use crate::superblock::Volume;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Work};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::mem::offset_of;
use std::ops::Range;
use steadfast_block::BlockNo;
use steadfast_journal::{Access, Kind, Object};
use steadfast_vfs::{Cookie, Errno, Error, FileKind, Ino, NAME_MAX, Result, policy};
use zerocopy::{FromBytes, IntoBytes};

/// Position after `.`.
pub(crate) const COOKIE_DOT: Cookie = 1;
/// Position after `..`.
pub(crate) const COOKIE_DOTDOT: Cookie = 2;

const HEADER: usize = size_of::<DirEntryHeader>();
/// Cookies of one hash value.
const SPARE: u64 = 1 << COOKIE_SPARE_BITS;

/// EINVAL, ENOENT or ENAMETOOLONG for bytes that cannot be the name of an entry; `.` and `..` too are refused.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match policy::is_dots(name) {
        true => Err(Errno::Inval.into()),
        false => policy::check_name(name),
    }
}

/// The smallest cookie that an entry of this name can have.
pub(crate) fn cookie_base(volume: &Volume, name: &[u8]) -> Cookie {
    let mut hasher = SipHasher24::new_with_key(&volume.hash_key);
    hasher.write(name);
    ((hasher.finish() >> 1) & !(SPARE - 1)).max(SPARE)
}

/// Declares that the operation depends on, or changes, the meaning of `name` in `dir`.
pub(crate) fn relate_name(work: &mut Work<'_>, dir: Ino, name: &[u8]) {
    let hash = cookie_base(work.volume(), name);
    work.relate(Object::Name(dir, hash), Access::Exclusive);
    work.relate(Object::Directory(dir), Access::Shared);
}

/// An entry that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// The inode it names.
    pub(crate) ino: Ino,
    /// Kind of the inode.
    pub(crate) kind: FileKind,
    /// The leaf it lies in, and where.
    leaf: BlockNo,
    at: usize,
    bytes: usize,
    /// Lower bound of the leaf's cookies.
    bound: u64,
}

/// An entry as it lies in a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawEntry {
    /// The inode it names.
    pub(crate) ino: Ino,
    /// Its position.
    pub(crate) cookie: Cookie,
    /// Kind of the inode.
    pub(crate) kind: FileKind,
    /// Range of the name in the leaf.
    pub(crate) name: Range<usize>,
    /// Range of the entry in the leaf.
    pub(crate) space: Range<usize>,
}

/// Units that an entry with a name of this length takes.
fn units(len: usize) -> usize {
    (HEADER + len).div_ceil(DIR_UNIT)
}

/// Decodes a leaf, checking all that an entry alone can tell.
pub(crate) fn entries(volume: &Volume, leaf: BlockNo, block: &[u8]) -> Result<Vec<RawEntry>> {
    let found = shapes(leaf, block)?;
    for entry in &found {
        let name = &block[entry.name.clone()];
        let why = if check_name(name).is_err() {
            "has no valid name"
        } else if entry.cookie & !(SPARE - 1) != cookie_base(volume, name) {
            "has a position that is not its name's"
        } else {
            continue;
        };
        return Err(wrong(leaf, entry.space.start, why));
    }
    Ok(found)
}

fn wrong(leaf: BlockNo, start: usize, why: &str) -> Error {
    damaged(format!(
        "directory block {leaf}: the entry at byte {start} {why}"
    ))
}

/// The same without a look at the names: enough to find room.
fn shapes(leaf: BlockNo, block: &[u8]) -> Result<Vec<RawEntry>> {
    let mut found = Vec::new();
    let mut unit = 0;
    while unit < DIR_UNITS {
        let start = unit * DIR_UNIT;
        if block[start..start + 8] == [0; 8] {
            unit += 1;
            continue;
        }
        let wrong = |why: &str| wrong(leaf, start, why);
        let Ok((header, _)) = DirEntryHeader::read_from_prefix(&block[start..META_BYTES]) else {
            return Err(wrong("reaches beyond the block"));
        };
        let taken = units(header.len as usize);
        if header.len == 0 || unit + taken > DIR_UNITS {
            return Err(wrong("has a wrong length"));
        }
        let Some(kind) = kind_from_number(header.kind) else {
            return Err(wrong("has no valid kind"));
        };
        let name = start + HEADER..start + HEADER + header.len as usize;
        let space = start..start + taken * DIR_UNIT;
        found.push(RawEntry {
            ino: header.ino.get(),
            cookie: header.cookie.get(),
            kind,
            name,
            space,
        });
        unit += taken;
    }
    Ok(found)
}

/// Finds `name` in a directory. Reads the index and one leaf.
pub(crate) fn lookup(
    reader: &mut impl Reader,
    volume: &Volume,
    dir: &DiskInode,
    name: &[u8],
) -> Result<Option<Found>> {
    let cookie = cookie_base(volume, name);
    let Some(item) = btree::find_le(reader, volume, &dir.body, cookie)? else {
        return Ok(None);
    };
    let leaf = BlockNo(item.block.get());
    let block = reader.meta(leaf)?;
    // Without decoding the other entries: a scan that trusts lengths only as far as the block goes.
    let mut unit = 0;
    while unit < DIR_UNITS {
        let start = unit * DIR_UNIT;
        if block[start..start + 8] == [0; 8] {
            unit += 1;
            continue;
        }
        let Ok((header, rest)) = DirEntryHeader::ref_from_prefix(&block[start..META_BYTES]) else {
            break;
        };
        let len = header.len as usize;
        if rest.get(..len) == Some(name) {
            let Some(kind) = kind_from_number(header.kind) else {
                return Err(damaged(format!(
                    "directory block {leaf}: an entry without a kind"
                )));
            };
            return Ok(Some(Found {
                ino: header.ino.get(),
                kind,
                leaf,
                at: start,
                bytes: units(len) * DIR_UNIT,
                bound: item.key.get(),
            }));
        }
        if len == 0 {
            return Err(damaged(format!(
                "directory block {leaf}: an entry without a name"
            )));
        }
        unit += units(len);
    }
    Ok(None)
}

/// Log bytes that [`insert`] costs at most, if the index is as deep as `level`
/// (which may grow by one meanwhile).
pub(crate) fn insert_credits(level: u16) -> u64 {
    let leaf = (COST_BLOCK + COST_RANGE + META_BYTES as u64) + COST_BITS + COST_BLOCK;
    let half = META_BYTES as u64 * 2 / 3 + COST_RANGE;
    let entry = (HEADER + NAME_MAX) as u64 + COST_RANGE;
    leaf + half + entry + btree::change_credits(level + 1) + inode_credits()
}

/// Log bytes that [`remove`] costs at most.
pub(crate) fn remove_credits(level: u16) -> u64 {
    COST_BLOCK
        + COST_RANGE
        + (HEADER + NAME_MAX + DIR_UNIT) as u64
        + 2 * COST_BLOCK
        + COST_BITS
        + COST_FREE
        + btree::change_credits(level + 1)
        + inode_credits()
}

/// Log bytes of [`Dir::replace`].
pub(crate) fn replace_credits() -> u64 {
    COST_BLOCK + 2 * (COST_RANGE + 8) + inode_credits()
}

/// Body, counters and times of a directory.
fn inode_credits() -> u64 {
    COST_BLOCK + 16 * COST_RANGE + 3 * 16 + size_of::<DiskInode>() as u64
}

/// A directory that an operation changes.
pub(crate) struct Dir {
    /// Its number.
    pub(crate) ino: Ino,
    /// Place of its inode.
    pub(crate) place: Place,
    /// Its inode; the body is kept up to date.
    pub(crate) disk: DiskInode,
}

impl Dir {
    /// Adds an entry for a name that is not there.
    ///
    /// # Errors
    /// ENOSPC, also in the practically impossible case of too many names with one hash.
    pub(crate) fn insert(
        &mut self,
        work: &mut Work<'_>,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        let volume = work.volume();
        relate_name(work, self.ino, name);
        let base = cookie_base(volume, name);
        // A split makes room unless hashes collide; two in a row mean that they do.
        for _ in 0..3 {
            let Some(item) = btree::find_le(work, volume, &self.disk.body, base)? else {
                self.add_first_leaf(work)?;
                continue;
            };
            let leaf = BlockNo(item.block.get());
            let block = work.read(leaf, Kind::Meta)?;
            let present = shapes(leaf, &block[..])?;
            let Some(cookie) = (base..base + SPARE)
                .find(|cookie| present.iter().all(|entry| entry.cookie != *cookie))
            else {
                break;
            };
            let Some(at) = room(work, leaf, &present, units(name.len())) else {
                self.split(work, leaf, &present)?;
                continue;
            };
            let header = DirEntryHeader {
                ino: ino.into(),
                cookie: cookie.into(),
                len: name.len() as u8,
                kind: kind as u8,
            };
            let mut bytes = Vec::with_capacity(HEADER + name.len());
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(name);
            work.relate(Object::Block(leaf.0), Access::Shared);
            work.write(leaf, Kind::Meta, at, &bytes)?;
            return inode::add(work, self.place, offset_of!(DiskInode, entries), 1);
        }
        Err(Error::new(
            Errno::NoSpc,
            "the directory has too many names with one hash",
        ))
    }

    /// Removes an entry that [`lookup`] found through the same work.
    pub(crate) fn remove(&mut self, work: &mut Work<'_>, found: &Found) -> Result<()> {
        let volume = work.volume();
        let block = work.read(found.leaf, Kind::Meta)?;
        let last = shapes(found.leaf, &block[..])?.len() == 1;
        inode::add(work, self.place, offset_of!(DiskInode, entries), -1)?;
        if !last || found.bound == 0 {
            work.relate(Object::Block(found.leaf.0), Access::Shared);
            work.leave_gap(found.leaf, found.at as u16..(found.at + found.bytes) as u16);
            return work.write(found.leaf, Kind::Meta, found.at, &vec![0; found.bytes]);
        }
        // The leaf goes, and its left neighbour covers its cookies too.
        let Some(left) = btree::find_le(work, volume, &self.disk.body, found.bound - 1)? else {
            return Err(damaged(format!(
                "directory {}: its index has no start",
                self.ino
            )));
        };
        work.relate(Object::Block(left.block.get()), Access::Exclusive);
        work.relate(Object::Block(found.leaf.0), Access::Exclusive);
        let old = self.disk;
        let nodes = btree::remove(work, &mut self.disk.body, found.bound)?;
        inode::patch(work, self.place, &old, &self.disk)?;
        work.free_run(found.leaf, 1)?;
        inode::add(
            work,
            self.place,
            offset_of!(DiskInode, blocks),
            -1 - nodes as i64,
        )
    }

    /// Makes an entry name another inode; its position stays.
    pub(crate) fn replace(
        &mut self,
        work: &mut Work<'_>,
        found: &Found,
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        work.relate(Object::Block(found.leaf.0), Access::Shared);
        let at = found.at + offset_of!(DirEntryHeader, ino);
        work.write(found.leaf, Kind::Meta, at, &ino.to_le_bytes())?;
        let at = found.at + offset_of!(DirEntryHeader, kind);
        work.write(found.leaf, Kind::Meta, at, &[kind as u8])
    }

    /// Sets mtime and ctime after a change inside.
    pub(crate) fn touch(&self, work: &mut Work<'_>, now: crate::layout::DiskTime) -> Result<()> {
        inode::touch_directory(work, self.place, now)
    }

    /// Changes the link count: `..` of children.
    pub(crate) fn add_links(&self, work: &mut Work<'_>, delta: i64) -> Result<()> {
        inode::add(work, self.place, offset_of!(DiskInode, nlink), delta)
    }

    /// Gives a directory without a leaf its first one.
    pub(crate) fn add_first_leaf(&mut self, work: &mut Work<'_>) -> Result<()> {
        self.add_leaf(work, 0).map(drop)
    }

    /// Adds an empty leaf for the cookies from `bound` on.
    fn add_leaf(&mut self, work: &mut Work<'_>, bound: u64) -> Result<BlockNo> {
        let goal = self.place.block.offset(1);
        let leaf = new_leaf(work, goal)?;
        let item = leaf_item(leaf, bound);
        let old = self.disk;
        let nodes = btree::insert(work, &mut self.disk.body, goal, item)?;
        inode::patch(work, self.place, &old, &self.disk)?;
        inode::add(
            work,
            self.place,
            offset_of!(DiskInode, blocks),
            1 + nodes as i64,
        )?;
        Ok(leaf)
    }

    /// Moves the upper half of a leaf's entries to a new leaf, and packs both.
    fn split(&mut self, work: &mut Work<'_>, leaf: BlockNo, present: &[RawEntry]) -> Result<()> {
        let mut sorted: Vec<&RawEntry> = present.iter().collect();
        sorted.sort_unstable_by_key(|entry| entry.cookie);
        let total: usize = sorted.iter().map(|entry| entry.space.len()).sum();
        // The boundary nearest to the middle that keeps equal hashes together.
        let mut best: Option<(usize, usize)> = None;
        let mut below = 0;
        for (index, pair) in sorted.windows(2).enumerate() {
            below += pair[0].space.len();
            let distance = below.abs_diff(total / 2);
            if pair[0].cookie / SPARE != pair[1].cookie / SPARE
                && best.is_none_or(|(least, _)| distance < least)
            {
                best = Some((distance, index + 1));
            }
        }
        let Some((_, middle)) = best else {
            return Err(Error::new(
                Errno::NoSpc,
                "the directory has too many names with one hash",
            ));
        };
        let bound = sorted[middle].cookie & !(SPARE - 1);
        let block = work.read(leaf, Kind::Meta)?;
        let pack = |entries: &[&RawEntry]| {
            let mut packed = Vec::with_capacity(META_BYTES);
            for entry in entries {
                packed.extend_from_slice(&block[entry.space.clone()]);
            }
            packed
        };
        let mut lower = pack(&sorted[..middle]);
        let upper = pack(&sorted[middle..]);
        lower.resize(META_BYTES, 0);
        work.relate(Object::Block(leaf.0), Access::Exclusive);
        work.write(leaf, Kind::Meta, 0, &lower)?;
        let new = self.add_leaf(work, bound)?;
        work.write(new, Kind::Meta, 0, &upper)
    }
}

/// The index item of the leaf that covers the cookies from `bound` on.
fn leaf_item(leaf: BlockNo, bound: u64) -> Item {
    Item {
        key: bound.into(),
        block: leaf.0.into(),
        len: 1.into(),
        flags: 0.into(),
    }
}

/// The index item of a directory's first leaf.
pub(crate) fn first_leaf(leaf: BlockNo) -> Item {
    leaf_item(leaf, 0)
}

/// An empty leaf near `goal`.
fn new_leaf(work: &mut Work<'_>, goal: BlockNo) -> Result<BlockNo> {
    let leaf = work.allocate_block(goal)?;
    work.relate(Object::Block(leaf.0), Access::Exclusive);
    work.zero(leaf, Kind::Meta)?;
    Ok(leaf)
}

/// Log bytes of [`begin`].
pub(crate) const BEGIN_CREDITS: u64 = COST_BITS + COST_BLOCK;

/// Gives a new directory its first leaf. An operation that adds the first entries then has no block to make, so two streams can.
pub(crate) fn begin(work: &mut Work<'_>, place: Place, new: &mut DiskInode) -> Result<()> {
    let leaf = new_leaf(work, place.block.offset(1))?;
    new.body = btree::of(&first_leaf(leaf));
    new.blocks = 1.into();
    Ok(())
}

/// First free place for `needed` units that no other stream's uncommitted operation left.
fn room(work: &Work<'_>, leaf: BlockNo, present: &[RawEntry], needed: usize) -> Option<usize> {
    let (store, stream) = (work.store(), work.stream());
    let foreign = store.gaps.foreign(leaf, stream);
    let found = gap(present, &foreign, needed);
    if found.is_some() || foreign.is_empty() {
        return found;
    }
    gap(
        present,
        &store.gaps.still_foreign(&store.journal, leaf, stream),
        needed,
    )
}

/// First place for `needed` units between the entries and the spaces that must be left alone; both are in order.
fn gap(present: &[RawEntry], foreign: &[Range<usize>], needed: usize) -> Option<usize> {
    let mut foreign = foreign.iter().peekable();
    let mut present = present.iter().map(|entry| &entry.space).peekable();
    let mut free_from = 0;
    loop {
        let next = match (present.peek(), foreign.peek()) {
            (Some(entry), Some(left)) if left.start < entry.start => foreign.next(),
            (Some(_), _) => present.next(),
            (None, _) => foreign.next(),
        };
        let Some(taken) = next else {
            return (META_BYTES - free_from >= needed * DIR_UNIT).then_some(free_from);
        };
        if taken.start.saturating_sub(free_from) >= needed * DIR_UNIT {
            return Some(free_from);
        }
        free_from = free_from.max(taken.end);
    }
}

/// Whether there is no entry in the directory. The count in the inode decides; that the
/// leaves agree is checked where it costs nothing.
pub(crate) fn is_empty(
    reader: &mut impl Reader,
    volume: &Volume,
    ino: Ino,
    dir: &DiskInode,
) -> Result<bool> {
    if dir.entries.get() != 0 {
        return Ok(false);
    }
    if let Some(item) = btree::find_le(reader, volume, &dir.body, 0)? {
        let leaf = BlockNo(item.block.get());
        let block = reader.meta(leaf)?;
        if !entries(volume, leaf, &block[..])?.is_empty() {
            return Err(damaged(format!(
                "directory {ino} counts no entries, but has some"
            )));
        }
    }
    if btree::find_ge(reader, volume, &dir.body, 1)?.is_some() {
        return Err(damaged(format!(
            "directory {ino} counts no entries, but has many blocks"
        )));
    }
    Ok(true)
}

/// Log bytes that [`free_all`] costs at most.
pub(crate) fn free_credits(level: u16) -> u64 {
    (u64::from(level) + 1) * (COST_BITS + COST_FREE + COST_BLOCK)
}

/// Frees the blocks of a directory that [`is_empty`]: its only leaf and the nodes above.
pub(crate) fn free_all(work: &mut Work<'_>, ino: Ino, dir: &DiskInode) -> Result<()> {
    let volume = work.volume();
    let mut blocks = Vec::new();
    if let Some(item) = btree::find_le(work, volume, &dir.body, 0)? {
        blocks.push(BlockNo(item.block.get()));
    }
    let level = btree::level(volume, &dir.body)?;
    btree::for_each_node(work, volume, &dir.body, |node| {
        blocks.push(node);
        if blocks.len() > usize::from(level) + 1 {
            return Err(damaged(format!(
                "directory {ino} is empty, but has many index blocks"
            )));
        }
        Ok(())
    })?;
    for block in blocks {
        work.relate(Object::Block(block.0), Access::Exclusive);
        work.free_run(block, 1)?;
    }
    Ok(())
}

/// Some consecutive entries, copied out of a directory.
pub(crate) struct Listing {
    /// Sorted by cookie.
    pub(crate) entries: Vec<RawEntry>,
    /// The leaf's bytes, which the names' ranges refer to.
    pub(crate) block: Vec<u8>,
    /// Position to go on from: the smallest cookie that may follow; `None` at the end.
    pub(crate) next: Option<Cookie>,
}

/// The entries of one leaf whose cookies are at least `from`.
pub(crate) fn list(
    reader: &mut impl Reader,
    volume: &Volume,
    dir: &DiskInode,
    from: Cookie,
) -> Result<Listing> {
    let nothing = Listing {
        entries: Vec::new(),
        block: Vec::new(),
        next: None,
    };
    let Some(item) = btree::find_le(reader, volume, &dir.body, from)? else {
        return Ok(nothing);
    };
    let leaf = BlockNo(item.block.get());
    let block = reader.meta(leaf)?[..META_BYTES].to_vec();
    let mut entries = entries(volume, leaf, &block)?;
    entries.retain(|entry| entry.cookie >= from);
    entries.sort_unstable_by_key(|entry| entry.cookie);
    let after = item.key.get().checked_add(1);
    let next = match after {
        Some(after) => btree::find_ge(reader, volume, &dir.body, after)?.map(|item| item.key.get()),
        None => None,
    };
    // A key past the requested one makes progress, also in a damaged index.
    Ok(Listing {
        entries,
        block,
        next: next.filter(|next| *next > from),
    })
}
