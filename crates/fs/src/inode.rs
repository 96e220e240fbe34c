//! Inodes: where they lie, their codec, and the in-memory objects that carry
//! their locks, open counts and delayed pages.
//!
//! An inode's attributes are never cached in decoded form: they are read from the
//! current image of its block, which is a consistent snapshot in itself. The lock of
//! an [`Inode`] guards what spans blocks (a directory's index, a file's extents and
//! pages). An [`Inode`] object belongs to a *number*; it outlives uses of its slot.
//!
//! Slots are handed out by [`crate::slots`]. Layout: [`crate::layout`].

use crate::error::damaged;
use crate::layout::{DiskInode, DiskTime, GROUP_META, INODE_BYTES, INODE_SLOTS, INODES_PER_BLOCK};
use crate::pages::Pages;
use crate::reader::Reader;
use crate::superblock::Volume;
use crate::work::Work;
use std::collections::HashMap;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{
    Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_journal::Kind;
use steadfast_vfs::policy::{PERM_BITS, Subject};
use steadfast_vfs::{Attr, Errno, FileKind, Ino, InodeFlags, Result, Time};
use zerocopy::{FromBytes, IntoBytes};

/// Place of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Its inode block.
    pub(crate) block: BlockNo,
    /// Its slot in the block.
    pub(crate) slot: u64,
}

impl Place {
    /// The address that the number is. ESTALE if there can be no inode there.
    pub(crate) fn of(volume: &Volume, ino: Ino) -> Result<Place> {
        let place = Place {
            block: BlockNo(ino / INODE_SLOTS),
            slot: ino % INODE_SLOTS,
        };
        if place.slot >= INODES_PER_BLOCK || !volume.is_data(place.block) {
            return Err(Errno::Stale.into());
        }
        Ok(place)
    }

    /// The inode's number.
    pub(crate) fn ino(self) -> Ino {
        self.block.0 * INODE_SLOTS + self.slot
    }

    /// Offset of the inode in its block.
    pub(crate) fn offset(self) -> usize {
        self.slot as usize * INODE_BYTES
    }

    /// Offset in the block of the byte `offset` of the inode (`offset_of!(DiskInode, …)`).
    pub(crate) fn field(self, offset: usize) -> usize {
        self.offset() + offset
    }
}

/// The inode-block bitmap that knows `block`, and the block's bit there.
pub(crate) fn bitmap_bit(volume: &Volume, block: BlockNo) -> Option<(BlockNo, usize)> {
    let start = volume.group_start(volume.group_of(block)?);
    Some((start.offset(1), (block.0 - start.0) as usize))
}

/// Whether `block` is an inode block.
pub(crate) fn is_inode_block(
    volume: &Volume,
    reader: &mut impl Reader,
    block: BlockNo,
) -> Result<bool> {
    let Some((bitmap, bit)) = bitmap_bit(volume, block) else {
        return Ok(false);
    };
    if (bit as u64) < GROUP_META {
        return Ok(false);
    }
    Ok(reader.meta(bitmap)?[bit / 8] >> (bit % 8) & 1 == 1)
}

/// Reads an inode. ESTALE if the number names none, EUCLEAN if it makes no sense.
pub(crate) fn read(volume: &Volume, reader: &mut impl Reader, ino: Ino) -> Result<DiskInode> {
    let place = Place::of(volume, ino)?;
    if !is_inode_block(volume, reader, place.block)? {
        return Err(Errno::Stale.into());
    }
    let found = reader
        .meta(place.block)
        .map(|image| decode(&image[..], place));
    let disk = match found {
        Ok(disk) => disk?,
        // Without a lock on the inode its block may just have been freed and reused.
        Err(_) if !is_inode_block(volume, reader, place.block)? => {
            return Err(Errno::Stale.into());
        }
        Err(error) => return Err(error),
    };
    if disk.mode.get() == 0 {
        return Err(Errno::Stale.into());
    }
    if FileKind::of_mode(disk.mode.get()).is_none() {
        return Err(damaged(format!(
            "inode {ino} has mode {:o}",
            disk.mode.get()
        )));
    }
    if InodeFlags::from_bits(disk.flags.get()).is_none() {
        return Err(damaged(format!(
            "inode {ino} has the flags {:#x}",
            disk.flags.get()
        )));
    }
    Ok(disk)
}

fn decode(block: &[u8], place: Place) -> Result<DiskInode> {
    DiskInode::read_from_bytes(&block[place.offset()..place.offset() + INODE_BYTES])
        .map_err(|_| damaged(format!("inode {}", place.ino())))
}

/// Writes the differences between `old` and `new`, in whole 8-byte words.
///
/// The caller has related the inode's object. Of a directory only `body`, `parent` and
/// explicit attributes go this way: link, entry and block counts and times that follow
/// from changes inside have calls of their own, which do not relate.
pub(crate) fn patch(
    work: &mut Work<'_>,
    place: Place,
    old: &DiskInode,
    new: &DiskInode,
) -> Result<()> {
    const WORD: usize = 8;
    let (old, new) = (old.as_bytes(), new.as_bytes());
    let mut at = 0;
    while at < INODE_BYTES {
        let differs = |at: usize| old[at..at + WORD] != new[at..at + WORD];
        if !differs(at) {
            at += WORD;
            continue;
        }
        let start = at;
        while at < INODE_BYTES && differs(at) {
            at += WORD;
        }
        work.write(place.block, Kind::Meta, place.field(start), &new[start..at])?;
    }
    Ok(())
}

/// Sets a directory's mtime and ctime as a change inside it does: streams do not relate by it.
pub(crate) fn touch_directory(work: &mut Work<'_>, place: Place, now: DiskTime) -> Result<()> {
    let times = [now, now];
    work.write_latest(
        place.block,
        place.field(offset_of!(DiskInode, mtime)),
        times.as_bytes(),
    )
}

/// Sets a directory's ctime, likewise.
pub(crate) fn touch_ctime(work: &mut Work<'_>, place: Place, now: DiskTime) -> Result<()> {
    work.write_latest(
        place.block,
        place.field(offset_of!(DiskInode, ctime)),
        now.as_bytes(),
    )
}

/// Changes a counter of a directory, likewise.
pub(crate) fn add(work: &mut Work<'_>, place: Place, field: usize, delta: i64) -> Result<()> {
    if delta == 0 {
        return Ok(());
    }
    work.add(place.block, place.field(field), delta)
}

/// The kind whose number a directory entry holds.
pub(crate) fn kind_from_number(number: u8) -> Option<FileKind> {
    [
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::CharDevice,
        FileKind::BlockDevice,
        FileKind::Fifo,
        FileKind::Socket,
    ]
    .into_iter()
    .find(|kind| *kind as u8 == number)
}

impl DiskInode {
    /// Kind of the inode; [`read`] has checked that the mode names one.
    pub(crate) fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode.get()).unwrap_or(FileKind::Regular)
    }

    /// Its flags; [`read`] has checked that they are known.
    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits(self.flags.get()).unwrap_or_default()
    }

    /// The bits that chmod sets.
    pub(crate) fn perm(&self) -> u16 {
        self.mode.get() as u16 & PERM_BITS
    }

    /// Sets them.
    pub(crate) fn set_perm(&mut self, perm: u16) {
        self.mode = (self.mode.get() & FileKind::TYPE_BITS | u32::from(perm & PERM_BITS)).into();
    }

    /// Subject of permission checks.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            kind: self.kind(),
            perm: self.perm(),
            uid: self.uid.get(),
            gid: self.gid.get(),
            flags: self.flags(),
            size: self.size.get(),
        }
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Its attributes; `delayed` blocks are promised to it but not allocated yet.
    pub(crate) fn attr(&self, ino: Ino, delayed: u64) -> Attr {
        let blocks = self.blocks.get().saturating_add(delayed);
        Attr {
            ino,
            generation: self.generation.get(),
            kind: self.kind(),
            perm: self.perm(),
            nlink: u32::try_from(self.nlink.get()).unwrap_or(u32::MAX),
            uid: self.uid.get(),
            gid: self.gid.get(),
            rdev: self.rdev.get(),
            size: if self.is_dir() {
                blocks.max(1).saturating_mul(BLOCK_SIZE as u64)
            } else {
                self.size.get()
            },
            blocks: blocks.saturating_mul(BLOCK_SIZE as u64 / 512),
            atime: self.atime.into(),
            mtime: self.mtime.into(),
            ctime: self.ctime.into(),
            btime: self.btime.into(),
        }
    }
}

impl From<Time> for DiskTime {
    fn from(time: Time) -> DiskTime {
        DiskTime {
            secs: time.secs.into(),
            nanos: time.nanos.into(),
        }
    }
}

impl From<DiskTime> for Time {
    fn from(time: DiskTime) -> Time {
        Time {
            secs: time.secs.get(),
            nanos: time.nanos.get(),
        }
    }
}

/// State in memory that the lock of an inode guards.
#[derive(Default)]
pub(crate) struct State {
    /// Pages written but not allocated yet.
    pub(crate) pages: Delayed,
}

/// The pages of an inode. Most inodes that are known have none: they take memory when they are changed.
#[derive(Default)]
pub(crate) struct Delayed(Option<Box<Pages>>);

static NO_PAGES: LazyLock<Pages> = LazyLock::new(Pages::default);

impl Deref for Delayed {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        self.0.as_deref().unwrap_or(&NO_PAGES)
    }
}

impl DerefMut for Delayed {
    fn deref_mut(&mut self) -> &mut Pages {
        self.0.get_or_insert_default()
    }
}

/// The in-memory object of an inode number: its lock, and how often it is open.
pub(crate) struct Inode {
    /// The number.
    pub(crate) ino: Ino,
    /// Changed under the lock (shared suffices to open, exclusive decides that it is not open).
    opens: AtomicUsize,
    /// It was seen without names while open: its last release has to look whether it must be freed.
    nameless: AtomicBool,
    /// Held by an append from its first part to its last: before every other lock, also while
    /// waiting for commits, which never need it.
    appends: Mutex<()>,
    state: RwLock<State>,
}

impl Inode {
    fn new(ino: Ino) -> Inode {
        Inode {
            ino,
            opens: AtomicUsize::new(0),
            nameless: AtomicBool::new(false),
            appends: Mutex::default(),
            state: RwLock::default(),
        }
    }

    /// Takes the lock shared. A thread that panicked left no half-done change: changes are
    /// made to the state only after everything that can fail.
    pub(crate) fn shared(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same if that needs no waiting.
    pub(crate) fn try_shared(&self) -> Option<RwLockReadGuard<'_, State>> {
        match self.state.try_read() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(left)) => Some(left.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes the lock exclusively.
    pub(crate) fn exclusive(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the guard is dropped, no other append goes to the file.
    pub(crate) fn append_alone(&self) -> MutexGuard<'_, ()> {
        self.appends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is open. Decisive only under the exclusive lock.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }

    /// One more has it open; the caller holds the lock and has seen that the inode exists.
    pub(crate) fn opened(&self) {
        self.opens.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the inode has no names; the caller holds the lock.
    pub(crate) fn note_nameless(&self) {
        self.nameless.store(true, Ordering::Release);
    }

    /// Whether it may be without names. Inodes that have names cost no look at the disk.
    pub(crate) fn may_be_nameless(&self) -> bool {
        self.nameless.load(Ordering::Acquire)
    }

    /// The number is free; the caller holds the lock exclusively.
    pub(crate) fn freed(&self) {
        self.nameless.store(false, Ordering::Release);
    }

    /// Counts one open less; returns whether the inode is not open any more.
    pub(crate) fn closed(&self) -> bool {
        // A release without an open is the front end's mistake and must not wrap around.
        let before = self
            .opens
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |opens| {
                opens.checked_sub(1)
            });
        before == Ok(1)
    }

    fn is_idle(&self) -> bool {
        !self.is_open() && self.try_shared().is_some_and(|state| state.pages.is_idle())
    }
}

const SHARDS: usize = 16;
/// A shard is searched for idle objects when it has grown to this many.
const SWEEP_MIN: usize = 1024;

/// All inode objects in use.
pub(crate) struct Table {
    shards: [Mutex<Shard>; SHARDS],
}

struct Shard {
    inodes: HashMap<Ino, Arc<Inode>>,
    sweep_at: usize,
}

impl Table {
    pub(crate) fn new() -> Table {
        let shard = || {
            Mutex::new(Shard {
                inodes: HashMap::new(),
                sweep_at: SWEEP_MIN,
            })
        };
        Table {
            shards: std::array::from_fn(|_| shard()),
        }
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        // Numbers in one block differ in the low four bits, blocks above them.
        let index = (ino ^ (ino / INODE_SLOTS)) as usize % SHARDS;
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The object of a number, whether or not there is such an inode.
    pub(crate) fn get(&self, ino: Ino) -> Arc<Inode> {
        let mut shard = self.shard(ino);
        if let Some(inode) = shard.inodes.get(&ino) {
            return Arc::clone(inode);
        }
        if shard.inodes.len() >= shard.sweep_at {
            shard
                .inodes
                .retain(|_, inode| Arc::strong_count(inode) > 1 || !inode.is_idle());
            shard.sweep_at = (shard.inodes.len() * 2).max(SWEEP_MIN);
        }
        let inode = Arc::new(Inode::new(ino));
        shard.inodes.insert(ino, Arc::clone(&inode));
        inode
    }

    /// The objects of several numbers, in the order in which they are locked, each once.
    pub(crate) fn get_sorted(&self, inos: &[Ino]) -> Vec<Arc<Inode>> {
        let mut inos = inos.to_vec();
        inos.sort_unstable();
        inos.dedup();
        inos.into_iter().map(|ino| self.get(ino)).collect()
    }
}

/// Exclusive locks on several inodes.
pub(crate) struct Locked<'a> {
    inodes: &'a [Arc<Inode>],
    guards: Vec<RwLockWriteGuard<'a, State>>,
}

impl<'a> Locked<'a> {
    /// Locks the inodes that [`Table::get_sorted`] returned.
    pub(crate) fn lock(inodes: &'a [Arc<Inode>]) -> Locked<'a> {
        debug_assert!(inodes.is_sorted_by(|a, b| a.ino < b.ino));
        Locked {
            inodes,
            guards: inodes.iter().map(|inode| inode.exclusive()).collect(),
        }
    }

    /// All of them, in order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&'a Inode, &mut State)> {
        self.inodes
            .iter()
            .map(Arc::as_ref)
            .zip(self.guards.iter_mut().map(|guard| &mut **guard))
    }

    /// The object and the state of one of them.
    pub(crate) fn get(&mut self, ino: Ino) -> Option<(&'a Inode, &mut State)> {
        let index = self.inodes.iter().position(|inode| inode.ino == ino)?;
        Some((&self.inodes[index], &mut self.guards[index]))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_kind_survives_its_mode_and_its_number() {
        for number in 1..=7 {
            let kind = kind_from_number(number).unwrap();
            assert_eq!(FileKind::of_mode(kind.mode_bits() | 0o777), Some(kind));
        }
        assert_eq!(kind_from_number(0), None);
        assert_eq!(kind_from_number(8), None);
        assert_eq!(FileKind::of_mode(0o777), None);
    }

    #[test]
    fn the_table_forgets_idle_inodes_and_keeps_open_ones() {
        let table = Table::new();
        let open = table.get(16);
        open.opened();
        drop(open);
        for ino in 0..100_000 {
            table.get(ino);
        }
        assert!(table.get(16).is_open());
        let kept: usize = table
            .shards
            .iter()
            .map(|shard| shard.lock().unwrap().inodes.len())
            .sum();
        assert!(kept <= 2 * SHARDS * SWEEP_MIN, "{kept} objects kept");
        assert!(table.get(16).closed());
        assert!(!table.get(16).closed());
    }
}
