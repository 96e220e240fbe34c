//! Inode slots: which are free, and taking and freeing them inside an operation.
//!
//! Inode blocks are allocated on demand and freed with their last inode. What is free is
//! found lazily: a group's inode-block bitmap when the group is first used, an inode block
//! when a slot is looked for there. Invariants:
//!
//! * a slot in a mask of [`State::masks`] is free in the current image and claimed by nobody;
//! * an operation that is given up returns its claims ([`Work::on_end`], corner 30);
//! * a block that an operation is freeing hands out no slots;
//! * blocks are looked into under no lock: neither the lock of [`State`] nor that of an inode. What
//!   was read is entered if no block began to be freed meanwhile, else it is read again;
//! * a call looks into a bounded number of blocks, and into each block once in a mount: into
//!   [`LOOKS_MAX`] before a new one is made, into [`SEARCH_MAX`] when the volume has no room for a new
//!   one. It then fails with ENOSPC, and the next call looks on from there;
//! * a block without inodes is freed: by the operation that frees its last inode or, where several
//!   free what is left side by side and none of them is the last, by [`reap`] behind them. A crash
//!   between the two leaves an empty block, which the next mount uses or frees.
//!
//! Streams (DESIGN 3.4): taking and freeing slots of one block commutes, making and freeing
//! the block does not. So a stream that makes a block keeps it to itself while there are others.

use crate::inode::{self, Place, bitmap_bit, is_inode_block};
use crate::layout::{DiskInode, INODE_BYTES, INODE_SLOTS, INODES_PER_BLOCK};
use crate::mount::{Fs, OWN_STREAM};
use crate::reader::Current;
use crate::superblock::Volume;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Store, Work};
use siphasher::sip::SipHasher24;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hasher;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use steadfast_block::BlockNo;
use steadfast_journal::{Access, Credits, Kind, Object};
use steadfast_vfs::{Errno, Ino, Result, Stream};
use zerocopy::{FromZeros, IntoBytes};

/// Log bytes that taking or freeing a slot costs at most.
pub(crate) const COST_SLOT: u64 =
    2 * COST_BITS + 3 * COST_BLOCK + 16 * COST_RANGE + COST_FREE + INODE_BYTES as u64;

/// A mask with every slot of a block.
const ALL: u16 = (1 << INODES_PER_BLOCK) - 1;
/// Inode blocks looked into for one allocation before a new one is made.
const LOOKS_MAX: usize = 8;
/// Inode blocks, or bitmaps of them, looked into for one allocation when none can be made.
const SEARCH_MAX: usize = 512;
/// Streams whose blocks are remembered.
const STREAMS_MAX: usize = 1024;

/// The free slots of a volume. See the module's header.
pub(crate) struct Slots {
    state: Mutex<State>,
    /// Some blocks are in [`State::empty`].
    any_empty: AtomicBool,
    /// Generations are a keyed hash of a counter: never predictable, never zero.
    seed: [u8; 16],
    generations: AtomicU64,
    directories: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Free slots of the inode blocks that were looked into.
    masks: HashMap<BlockNo, u16>,
    /// Those of them that have some.
    open: BTreeSet<BlockNo>,
    /// Inode blocks to look into, of the groups whose bitmaps were read. From the back: the newest,
    /// emptiest ones first.
    unknown: HashMap<u64, Vec<BlockNo>>,
    /// Nothing is left to look into in the groups before this one.
    searched: u64,
    /// Blocks that operations are freeing.
    freeing: HashSet<BlockNo>,
    /// How often one began to.
    freeings: u64,
    /// Blocks that were seen without an inode.
    empty: Vec<BlockNo>,
    /// Whose block is whose.
    owners: HashMap<BlockNo, Stream>,
    blocks: HashMap<Stream, BlockNo>,
}

/// Which blocks an allocation may take a slot from.
enum Where {
    /// Those of a group, if no other stream keeps them to itself.
    In(Range<BlockNo>),
    /// All.
    Anywhere,
}

impl Where {
    /// The group of an inode, and its blocks.
    fn near(volume: &Volume, ino: Ino) -> (u64, Where) {
        let group = volume.group_of(BlockNo(ino / INODE_SLOTS)).unwrap_or(0);
        let start = volume.group_start(group);
        let blocks = start..start.offset(volume.group_len(group));
        (group, Where::In(blocks))
    }
}

impl Slots {
    /// Generations derive from `seed`.
    pub(crate) fn new(seed: [u8; 16]) -> Slots {
        Slots {
            state: Mutex::default(),
            any_empty: AtomicBool::new(false),
            seed,
            generations: AtomicU64::new(0),
            directories: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A generation for a new inode.
    pub(crate) fn generation(&self) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.seed);
        hasher.write_u64(self.generations.fetch_add(1, Ordering::Relaxed));
        hasher.finish().max(1)
    }

    /// Where a directory that is made in the root goes: they take turns among the groups.
    pub(crate) fn spread(&self, store: &Store) -> Ino {
        let turn = self.directories.fetch_add(1, Ordering::Relaxed);
        store.volume.group_start(turn % store.volume.groups).0 * INODE_SLOTS
    }

    /// Claims a slot of a block that was looked into.
    fn claim(&self, from: &Where, stream: Stream) -> Option<Place> {
        let mut state = self.lock();
        let block = state.pick(from, stream)?;
        let mask = state.masks.get(&block).copied()?;
        let slot = u64::from(mask.trailing_zeros());
        state.set(block, mask & !(1 << slot));
        if !state.owners.contains_key(&block) {
            state.own(block, stream);
        }
        Some(Place { block, slot })
    }

    /// Looks for a block near `near` that has room, before a new one is made. Hold no lock.
    pub(crate) fn look_ahead(&self, store: &Store, near: Ino, stream: Stream) -> Result<()> {
        let (group, blocks) = Where::near(&store.volume, near);
        for _ in 0..LOOKS_MAX {
            if self.lock().pick(&blocks, stream).is_some() || !self.look(store, group)? {
                break;
            }
        }
        Ok(())
    }

    /// Looks for a block that has room anywhere, when no new one can be made. Whether there is one, as
    /// far as this call looks. Hold no lock.
    pub(crate) fn search(&self, store: &Store) -> Result<bool> {
        for _ in 0..SEARCH_MAX {
            let group = {
                let state = self.lock();
                if !state.open.is_empty() {
                    return Ok(true);
                }
                state.searched
            };
            if group >= store.volume.groups {
                return Ok(false);
            }
            if !self.look(store, group)? {
                let mut state = self.lock();
                state.searched = state.searched.max(group + 1);
            }
        }
        Ok(!self.lock().open.is_empty())
    }

    /// Looks into one more block of a group; false if none is left.
    fn look(&self, store: &Store, group: u64) -> Result<bool> {
        if !self.lock().unknown.contains_key(&group) {
            let blocks = inode_blocks(store, group)?;
            self.lock().unknown.entry(group).or_insert(blocks);
        }
        let next = self.lock().unknown.get_mut(&group).and_then(Vec::pop);
        if let Some(block) = next {
            self.look_into(store, block)?;
        }
        Ok(next.is_some())
    }

    /// Finds out which slots of a block are free, if that is not known.
    fn look_into(&self, store: &Store, block: BlockNo) -> Result<()> {
        loop {
            let freeings = {
                let state = self.lock();
                if state.masks.contains_key(&block) || state.freeing.contains(&block) {
                    return Ok(());
                }
                state.freeings
            };
            let free = free_slots(store, block);
            let mut state = self.lock();
            if state.freeings != freeings {
                continue;
            }
            if let Some(mask) = free?
                && !state.masks.contains_key(&block)
            {
                self.note(&mut state, block, mask);
            }
            return Ok(());
        }
    }

    /// Enters the free slots of a block.
    fn note(&self, state: &mut State, block: BlockNo, mask: u16) {
        state.set(block, mask);
        if mask == ALL {
            state.empty.push(block);
            self.any_empty.store(true, Ordering::Relaxed);
        }
    }

    fn unclaim(&self, place: Place) {
        let mut state = self.lock();
        if let Some(mask) = state.masks.get(&place.block).copied() {
            self.note(&mut state, place.block, mask | 1 << place.slot);
        }
    }

    /// An empty block to free, which hands out no slots from here on.
    fn next_empty(&self) -> Option<BlockNo> {
        let mut state = self.lock();
        while let Some(block) = state.empty.pop() {
            if state.masks.get(&block) == Some(&ALL) {
                state.begin_freeing(block);
                return Some(block);
            }
        }
        self.any_empty.store(false, Ordering::Relaxed);
        None
    }

    /// If the inode in `place` is the last one of its block, the block hands out no slots from here on:
    /// it is to be freed. Its other slots are returned.
    fn take_last(&self, place: Place) -> Option<u16> {
        let mut state = self.lock();
        let mask = state.masks.get(&place.block).copied()?;
        if mask | 1 << place.slot != ALL {
            return None;
        }
        state.begin_freeing(place.block);
        Some(mask)
    }

    /// The block is free, or not to be freed now: then these are its free slots.
    fn end_freeing(&self, block: BlockNo, kept: Option<u16>) {
        let mut state = self.lock();
        state.freeing.remove(&block);
        if let Some(mask) = kept {
            state.set(block, mask);
        }
    }

    /// A new inode block is visible; its first slot is taken.
    fn made(&self, block: BlockNo, stream: Stream) {
        let mut state = self.lock();
        if !state.masks.contains_key(&block) {
            state.set(block, ALL & !1);
            state.own(block, stream);
        }
    }
}

/// The inode blocks of a group.
fn inode_blocks(store: &Store, group: u64) -> Result<Vec<BlockNo>> {
    let volume = &store.volume;
    let start = volume.group_start(group);
    let bitmap = store.read_meta(start.offset(1))?;
    let is_set = |bit: &u64| bitmap[*bit as usize / 8] >> (bit % 8) & 1 == 1;
    let blocks = (0..volume.group_len(group)).filter(is_set);
    let blocks = blocks.map(|bit| start.offset(bit));
    Ok(blocks.filter(|block| volume.is_data(*block)).collect())
}

/// The free slots of a block; none if it holds no inodes.
fn free_slots(store: &Store, block: BlockNo) -> Result<Option<u16>> {
    if !is_inode_block(&store.volume, &mut Current(&store.journal), block)? {
        return Ok(None);
    }
    let image = store.read_meta(block)?;
    let is_free = |slot: &u64| {
        let at = *slot as usize * INODE_BYTES;
        image[at..at + 4] == [0; 4]
    };
    let free = (0..INODES_PER_BLOCK).filter(is_free);
    Ok(Some(free.fold(0, |mask, slot| mask | 1 << slot)))
}

impl State {
    fn set(&mut self, block: BlockNo, mask: u16) {
        self.masks.insert(block, mask);
        if mask == 0 {
            self.open.remove(&block);
        } else {
            self.open.insert(block);
        }
    }

    fn begin_freeing(&mut self, block: BlockNo) {
        self.masks.remove(&block);
        self.open.remove(&block);
        self.freeing.insert(block);
        self.freeings += 1;
    }

    /// A block that has room.
    fn pick(&self, from: &Where, stream: Stream) -> Option<BlockNo> {
        let Where::In(range) = from else {
            return self.open.first().copied();
        };
        let own = self.blocks.get(&stream).copied();
        if let Some(own) = own.filter(|own| range.contains(own) && self.open.contains(own)) {
            return Some(own);
        }
        let foreign =
            |block: &BlockNo| self.owners.get(block).is_some_and(|owner| *owner != stream);
        let mut blocks = self.open.range(range.clone());
        blocks.find(|block| !foreign(block)).copied()
    }

    fn own(&mut self, block: BlockNo, stream: Stream) {
        if self.blocks.len() >= STREAMS_MAX {
            self.blocks.clear();
            self.owners.clear();
        }
        if let Some(before) = self.blocks.insert(stream, block) {
            self.owners.remove(&before);
        }
        self.owners.insert(block, stream);
    }
}

/// Takes a slot for a new inode near `near`, in a new inode block if need be. Returns where
/// it is; its bytes on disk are zero, or rest of something that is no inode. Knows of the blocks only
/// that were looked into ([`Slots::look_ahead`]).
///
/// # Errors
/// ENOSPC when there is neither a free slot nor a free block ([`Slots::search`] may help).
pub(crate) fn allocate<'a>(
    fs: &'a Fs,
    work: &mut Work<'a>,
    near: Ino,
    stream: Stream,
) -> Result<Place> {
    let store = &fs.store;
    let (_, blocks) = Where::near(&store.volume, near);
    if let Some(place) = fs.slots.claim(&blocks, stream) {
        return Ok(claimed(fs, work, place));
    }
    let block = match work.allocate_block(BlockNo(near / INODE_SLOTS)) {
        Ok(block) => block,
        Err(full) if full == Errno::NoSpc => {
            return match fs.slots.claim(&Where::Anywhere, stream) {
                Some(place) => Ok(claimed(fs, work, place)),
                None => Err(full),
            };
        }
        Err(error) => return Err(error),
    };
    let Some((bitmap, bit)) = bitmap_bit(&store.volume, block) else {
        return Err(Errno::Io.into());
    };
    work.relate(Object::Block(block.0), Access::Exclusive);
    work.zero(block, Kind::Meta)?;
    work.set_bits(bitmap, bit, 1, true)?;
    work.on_end(move |committed| {
        if committed {
            fs.slots.made(block, stream);
        }
    });
    Ok(Place { block, slot: 0 })
}

fn claimed<'a>(fs: &'a Fs, work: &mut Work<'a>, place: Place) -> Place {
    work.on_end(move |committed| {
        if !committed {
            fs.slots.unclaim(place);
        }
    });
    work.relate(Object::Block(place.block.0), Access::Shared);
    place
}

/// Frees an inode's slot, and its block if it was the last inode there. What the inode owns
/// has been freed; the caller holds its lock and has related it exclusively.
pub(crate) fn free<'a>(
    fs: &'a Fs,
    work: &mut Work<'a>,
    place: Place,
    old: &DiskInode,
) -> Result<()> {
    fs.slots.look_into(&fs.store, place.block)?;
    let Some(others) = fs.slots.take_last(place) else {
        work.on_end(move |committed| {
            if committed {
                fs.slots.unclaim(place);
            }
        });
        work.relate(Object::Block(place.block.0), Access::Shared);
        return inode::patch(work, place, old, &DiskInode::new_zeroed());
    };
    work.on_end(move |committed| {
        let kept = (!committed).then_some(others);
        fs.slots.end_freeing(place.block, kept);
    });
    free_block(work, place.block)
}

/// Frees an inode block. Whatever was done in it comes first.
fn free_block(work: &mut Work<'_>, block: BlockNo) -> Result<()> {
    work.relate(Object::Block(block.0), Access::Exclusive);
    if let Some((bitmap, bit)) = bitmap_bit(work.volume(), block) {
        work.set_bits(bitmap, bit, 1, false)?;
    }
    work.free_run(block, 1)
}

/// Frees the blocks whose last inodes were freed side by side. Hold no lock.
pub(crate) fn reap(fs: &Fs) {
    while fs.slots.any_empty.load(Ordering::Relaxed) {
        let Some(block) = fs.slots.next_empty() else {
            return;
        };
        let credits = Credits {
            log_bytes: COST_SLOT,
            data_blocks: 0,
        };
        let freed = fs.store.begin(OWN_STREAM, credits).and_then(|mut work| {
            work.use_emergency_space();
            free_block(&mut work, block)?;
            work.commit();
            Ok(())
        });
        fs.slots.end_freeing(block, freed.is_err().then_some(ALL));
        // Whoever came this way was not about this block, and its slots can still be used.
        if let Err(error) = freed {
            fs.warn(format!(
                "inode block {} holds no inode and could not be freed ({error})",
                block.0
            ));
        }
    }
}

/// Writes a new inode into the slot that [`allocate`] found.
pub(crate) fn fill(work: &mut Work<'_>, place: Place, new: &DiskInode) -> Result<()> {
    work.write(place.block, Kind::Meta, place.offset(), new.as_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fsck::{FsckOptions, fsck};
    use crate::mkfs::mkfs;
    use crate::mount::MountOptions;
    use std::sync::Arc;
    use steadfast_block::{BlockDevice, MemDevice};

    struct World {
        device: Arc<MemDevice>,
        fs: Arc<Fs>,
        free: u64,
    }

    impl World {
        /// A volume, and how much of it is free.
        fn new() -> World {
            let device = Arc::new(MemDevice::new(4096));
            mkfs(&*device, &crate::testing::options(), &mut |_, _| {}).unwrap();
            let options = MountOptions {
                background: false,
                ..MountOptions::default()
            };
            let (fs, _) = Fs::mount(Arc::clone(&device) as _, &options).unwrap();
            let free = fs.op_statfs().unwrap().blocks_free;
            World { device, fs, free }
        }

        fn begin(&self) -> Work<'_> {
            let credits = Credits {
                log_bytes: 1 << 16,
                data_blocks: 0,
            };
            self.fs.store.begin(OWN_STREAM, credits).unwrap()
        }

        /// Inodes without names until a block of their own holds so many of them; those in there.
        fn fill(&self, count: usize) -> (Vec<Place>, Vec<Place>) {
            let root = self.fs.store.volume.root;
            let (mut others, mut inside) = (Vec::new(), Vec::new());
            while inside.len() < count {
                let mut work = self.begin();
                let place = allocate(&self.fs, &mut work, root, OWN_STREAM).unwrap();
                fill(&mut work, place, &inode()).unwrap();
                work.commit();
                if place.block == BlockNo(root / INODE_SLOTS) {
                    others.push(place);
                } else {
                    inside.push(place);
                }
            }
            (others, inside)
        }

        fn free(&self, place: Place) {
            let mut work = self.begin();
            free(&self.fs, &mut work, place, &inode()).unwrap();
            work.commit();
        }

        /// Two operations at once: neither frees the last inode of the block.
        fn free_side_by_side(&self, inside: &[Place]) {
            let (mut one, mut other) = (self.begin(), self.begin());
            free(&self.fs, &mut one, inside[0], &inode()).unwrap();
            free(&self.fs, &mut other, inside[1], &inode()).unwrap();
            one.commit();
            other.commit();
        }

        fn must_be_as_before(self) {
            self.fs.store.journal.sync_all().unwrap();
            assert_eq!(self.fs.op_statfs().unwrap().blocks_free, self.free);
            self.fs.unmount().unwrap();
            let device: Arc<dyn BlockDevice> = self.device;
            let report = fsck(device, &FsckOptions::default()).unwrap();
            assert!(report.findings.is_empty(), "{:#?}", report.findings);
        }
    }

    fn inode() -> DiskInode {
        DiskInode {
            mode: 0o100_644.into(),
            generation: 1.into(),
            ..DiskInode::new_zeroed()
        }
    }

    /// Ten clients of a server removed their files at once: two operations freed the last two
    /// inodes of a block, neither was the last as long as the other had not ended, and the
    /// block stayed, without an inode.
    #[test]
    fn a_block_goes_with_inodes_that_are_freed_side_by_side() {
        let world = World::new();
        let (others, inside) = world.fill(2);
        world.free_side_by_side(&inside);
        reap(&world.fs);
        others.into_iter().for_each(|place| world.free(place));
        world.must_be_as_before();
    }

    /// The same, when what came between is a claim that is given up.
    #[test]
    fn a_block_goes_when_the_last_claim_in_it_is_given_up() {
        let world = World::new();
        let (others, inside) = world.fill(1);
        let mut given_up = world.begin();
        let place = allocate(
            &world.fs,
            &mut given_up,
            world.fs.store.volume.root,
            OWN_STREAM,
        )
        .unwrap();
        assert_eq!(place.block, inside[0].block);
        world.free(inside[0]);
        drop(given_up);
        reap(&world.fs);
        others.into_iter().for_each(|place| world.free(place));
        world.must_be_as_before();
    }

    /// A crash came between the removal of the inodes and that of their block.
    #[test]
    fn an_empty_block_is_used_or_freed_by_the_next_mount() {
        let world = World::new();
        let (others, inside) = world.fill(2);
        world.free_side_by_side(&inside);
        for place in others {
            world.free(place);
        }
        world.fs.store.journal.checkpoint().unwrap();
        world.fs.store.journal.abandon();
        let device: Arc<dyn BlockDevice> = world.device.clone();
        let report = fsck(Arc::clone(&device), &FsckOptions::default()).unwrap();
        assert_eq!(report.outcome(), crate::fsck::Outcome::Clean);
        let (fs, _) = Fs::mount(device, &MountOptions::default()).unwrap();
        let again = World { fs, ..world };
        let place = {
            let root = again.fs.store.volume.root;
            let slots = &again.fs.slots;
            slots.look_ahead(&again.fs.store, root, OWN_STREAM).unwrap();
            let mut work = again.begin();
            let place = allocate(&again.fs, &mut work, root, OWN_STREAM).unwrap();
            fill(&mut work, place, &inode()).unwrap();
            work.commit();
            place
        };
        again.free(place);
        reap(&again.fs);
        again.must_be_as_before();
    }
}
