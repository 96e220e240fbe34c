//! Inode slots: which are free, and taking and freeing them inside an operation.
//!
//! Inode blocks are allocated on demand and freed with their last inode. What is free is
//! found lazily: a group's inode-block bitmap when the group is first used, an inode block
//! when a slot is looked for there. Invariants:
//!
//! * a slot in a mask of [`Group::masks`] is free in the current image and claimed by nobody;
//! * an operation that is given up returns its claims ([`Work::on_end`], corner 30);
//! * a block that an operation is freeing hands out no slots;
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
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Store, Work};
use siphasher::sip::SipHasher24;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hasher;
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
    groups: HashMap<u64, Group>,
    /// Blocks that operations are freeing.
    freeing: HashSet<BlockNo>,
    /// Blocks that were seen without an inode, with their groups.
    empty: Vec<(u64, BlockNo)>,
    /// Whose block is whose.
    owners: HashMap<BlockNo, Stream>,
    blocks: HashMap<Stream, BlockNo>,
}

#[derive(Default)]
struct Group {
    /// Inode blocks not looked into yet.
    unknown: Vec<BlockNo>,
    /// Free slots of the others.
    masks: BTreeMap<BlockNo, u16>,
    /// Those of them that have some.
    open: BTreeSet<BlockNo>,
}

impl Group {
    fn set(&mut self, block: BlockNo, mask: u16) {
        self.masks.insert(block, mask);
        if mask == 0 {
            self.open.remove(&block);
        } else {
            self.open.insert(block);
        }
    }

    fn forget(&mut self, block: BlockNo) {
        self.masks.remove(&block);
        self.open.remove(&block);
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

    /// Claims a slot in `group`. Without `greedy` it leaves other streams' blocks alone and
    /// looks into a few blocks only.
    fn claim(
        &self,
        store: &Store,
        group: u64,
        stream: Stream,
        greedy: bool,
    ) -> Result<Option<Place>> {
        let mut state = self.lock();
        state.load(store, group)?;
        let looks = if greedy { usize::MAX } else { LOOKS_MAX };
        for _ in 0..looks {
            if let Some(block) = state.pick(group, stream, greedy) {
                return Ok(state.take(group, block, stream));
            }
            let any = state.look(store, group)?;
            if !state.empty.is_empty() {
                self.any_empty.store(true, Ordering::Relaxed);
            }
            if !any {
                break;
            }
        }
        Ok(state
            .pick(group, stream, greedy)
            .and_then(|block| state.take(group, block, stream)))
    }

    fn unclaim(&self, group: u64, place: Place) {
        let mut state = self.lock();
        let Some(known) = state.groups.get_mut(&group) else {
            return;
        };
        if let Some(mask) = known.masks.get(&place.block).copied() {
            let mask = mask | 1 << place.slot;
            known.set(place.block, mask);
            if mask == ALL {
                state.empty.push((group, place.block));
                self.any_empty.store(true, Ordering::Relaxed);
            }
        }
    }

    /// An empty block to free, which hands out no slots from here on.
    fn next_empty(&self) -> Option<(u64, BlockNo)> {
        let mut state = self.lock();
        while let Some((index, block)) = state.empty.pop() {
            if let Some(group) = state.groups.get_mut(&index)
                && group.masks.get(&block) == Some(&ALL)
            {
                group.forget(block);
                state.freeing.insert(block);
                return Some((index, block));
            }
        }
        self.any_empty.store(false, Ordering::Relaxed);
        None
    }

    /// The block is free, or not to be freed now.
    fn freed(&self, group: u64, block: BlockNo, committed: bool) {
        let mut state = self.lock();
        state.freeing.remove(&block);
        if !committed && let Some(group) = state.groups.get_mut(&group) {
            group.set(block, ALL);
        }
    }

    /// A new inode block is visible; its first slot is taken.
    fn made(&self, group: u64, block: BlockNo, stream: Stream) {
        let mut state = self.lock();
        if let Some(group) = state.groups.get_mut(&group)
            && !group.masks.contains_key(&block)
        {
            group.set(block, ALL & !1);
            state.own(block, stream);
        }
    }
}

impl State {
    fn load(&mut self, store: &Store, index: u64) -> Result<()> {
        if self.groups.contains_key(&index) {
            return Ok(());
        }
        let start = store.volume.group_start(index);
        let bitmap = store.read_meta(start.offset(1))?;
        let mut group = Group::default();
        for bit in 0..store.volume.group_len(index) {
            let (byte, shift) = (bit as usize / 8, bit % 8);
            if bitmap[byte] >> shift & 1 == 1 && store.volume.is_data(start.offset(bit)) {
                group.unknown.push(start.offset(bit));
            }
        }
        // Looked into from the back: the newest, emptiest blocks first.
        self.groups.insert(index, group);
        Ok(())
    }

    /// Looks into one block that was not looked into; false if there is none.
    fn look(&mut self, store: &Store, group: u64) -> Result<bool> {
        let Some(block) = self
            .groups
            .get_mut(&group)
            .and_then(|group| group.unknown.pop())
        else {
            return Ok(false);
        };
        self.inspect(store, group, block)?;
        Ok(true)
    }

    fn inspect(&mut self, store: &Store, index: u64, block: BlockNo) -> Result<()> {
        let Some(group) = self.groups.get_mut(&index) else {
            return Ok(());
        };
        if group.masks.contains_key(&block)
            || self.freeing.contains(&block)
            || !is_inode_block(&store.volume, &mut Current(&store.journal), block)?
        {
            return Ok(());
        }
        let image = store.read_meta(block)?;
        let mut mask = 0;
        for slot in 0..INODES_PER_BLOCK {
            let at = slot as usize * INODE_BYTES;
            if image[at..at + 4] == [0; 4] {
                mask |= 1 << slot;
            }
        }
        group.set(block, mask);
        if mask == ALL {
            self.empty.push((index, block));
        }
        Ok(())
    }

    fn pick(&self, group: u64, stream: Stream, greedy: bool) -> Option<BlockNo> {
        let open = &self.groups.get(&group)?.open;
        if let Some(own) = self.blocks.get(&stream)
            && open.contains(own)
        {
            return Some(*own);
        }
        let foreign =
            |block: &BlockNo| self.owners.get(block).is_some_and(|owner| *owner != stream);
        open.iter().find(|block| greedy || !foreign(block)).copied()
    }

    fn take(&mut self, group: u64, block: BlockNo, stream: Stream) -> Option<Place> {
        let group = self.groups.get_mut(&group)?;
        let mask = group.masks.get(&block).copied().filter(|mask| *mask != 0)?;
        let slot = u64::from(mask.trailing_zeros());
        group.set(block, mask & !(1 << slot));
        if !self.owners.contains_key(&block) {
            self.own(block, stream);
        }
        Some(Place { block, slot })
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
/// it is; its bytes on disk are zero, or rest of something that is no inode.
///
/// # Errors
/// ENOSPC when there is neither a free slot nor a free block.
pub(crate) fn allocate<'a>(
    fs: &'a Fs,
    work: &mut Work<'a>,
    near: Ino,
    stream: Stream,
) -> Result<Place> {
    let store = &fs.store;
    let goal = BlockNo(near / INODE_SLOTS);
    let group = store.volume.group_of(goal).unwrap_or(0);
    if let Some(place) = fs.slots.claim(store, group, stream, false)? {
        return Ok(claimed(fs, work, group, place));
    }
    let block = match work.allocate_block(goal) {
        Ok(block) => block,
        Err(full) if full == Errno::NoSpc => {
            for step in 0..store.volume.groups {
                let group = (group + step) % store.volume.groups;
                if let Some(place) = fs.slots.claim(store, group, stream, true)? {
                    return Ok(claimed(fs, work, group, place));
                }
            }
            return Err(full);
        }
        Err(error) => return Err(error),
    };
    let Some((bitmap, bit)) = bitmap_bit(&store.volume, block) else {
        return Err(Errno::Io.into());
    };
    work.relate(Object::Block(block.0), Access::Exclusive);
    work.zero(block, Kind::Meta)?;
    work.set_bits(bitmap, bit, 1, true)?;
    let group = store.volume.group_of(block).unwrap_or(0);
    work.on_end(move |committed| {
        if committed {
            fs.slots.made(group, block, stream);
        }
    });
    Ok(Place { block, slot: 0 })
}

fn claimed<'a>(fs: &'a Fs, work: &mut Work<'a>, group: u64, place: Place) -> Place {
    work.on_end(move |committed| {
        if !committed {
            fs.slots.unclaim(group, place);
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
    let store = &fs.store;
    let Some(group) = store.volume.group_of(place.block) else {
        return Err(Errno::Stale.into());
    };
    let last = {
        let mut state = fs.slots.lock();
        state.load(store, group)?;
        state.inspect(store, group, place.block)?;
        let mask = state
            .groups
            .get(&group)
            .and_then(|group| group.masks.get(&place.block))
            .copied();
        let last = mask.filter(|mask| mask | 1 << place.slot == ALL);
        if last.is_some() {
            state.freeing.insert(place.block);
            if let Some(group) = state.groups.get_mut(&group) {
                group.forget(place.block);
            }
        }
        last
    };
    let Some(mask) = last else {
        work.on_end(move |committed| {
            if committed {
                fs.slots.unclaim(group, place);
            }
        });
        work.relate(Object::Block(place.block.0), Access::Shared);
        return inode::patch(work, place, old, &DiskInode::new_zeroed());
    };
    work.on_end(move |committed| {
        let mut state = fs.slots.lock();
        state.freeing.remove(&place.block);
        if !committed && let Some(group) = state.groups.get_mut(&group) {
            group.set(place.block, mask);
        }
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
        let Some((group, block)) = fs.slots.next_empty() else {
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
        fs.slots.freed(group, block, freed.is_ok());
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
            let mut work = again.begin();
            let place =
                allocate(&again.fs, &mut work, again.fs.store.volume.root, OWN_STREAM).unwrap();
            fill(&mut work, place, &inode()).unwrap();
            work.commit();
            place
        };
        again.free(place);
        reap(&again.fs);
        again.must_be_as_before();
    }
}
