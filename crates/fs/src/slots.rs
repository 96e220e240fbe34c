//! Inode slots: which are free, and taking and freeing them inside an operation.
//!
//! Inode blocks are allocated on demand and freed with their last inode. Free slots are found lazily: a group's
//! inode-block bitmap when the group is first used, inode blocks in batches when a slot is looked for. Invariants:
//!
//! * a slot in a mask of [`Known`] is free in the current image and not claimed. Every stream may take an *open* one:
//!   it is free in every tree that a crash may leave. A *held* one was freed, or its block made, by an operation that
//!   is not durable yet. Only that operation's stream takes it, whose own operations keep their order. When the
//!   operation is durable, the slot is open (ccfs §3.3.4);
//! * an operation that is given up returns its claims ([`Work::on_end`], corner 30);
//! * a block that an operation is freeing is not known, and hands out no slots;
//! * blocks are looked into under no lock of [`State`]. The slots found are entered if no block began to be freed
//!   meanwhile, else it is read again;
//! * a call looks into a bounded number of blocks, and into each block once in a mount: into [`LOOKS_AHEAD`] before a
//!   new one is made, into [`SEARCH_MAX`] when the volume has no room for a new one. It then fails with ENOSPC, and
//!   the next call looks on from there;
//! * the inodes of a group without room for a new block go into *one* other group, whose blocks they fill;
//! * a block without inodes is freed when one stream may have all of its slots: by the operation that frees its last
//!   inode or, where several free what is left side by side and none of them is the last, by [`reap`] after them. A
//!   crash between the two leaves an empty block, which the next mount uses or frees.
//!
//! Streams: taking and freeing slots of one block commutes, making and freeing the block does not. By the rules above
//! no other stream has an uncommitted change in a block that a stream makes or frees.

use crate::error::from_journal;
use crate::inode::{self, Place, bitmap_bit, is_inode_block};
use crate::layout::{DiskInode, INODE_BYTES, INODE_SLOTS, INODES_PER_BLOCK};
use crate::reader::Current;
use crate::superblock::Volume;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, OWN_STREAM, Store, Work};
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hasher;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use steadfast_block::BlockNo;
use steadfast_journal::{Access, Credits, Kind, Object, StreamId, Ticket};
use steadfast_vfs::{Errno, Ino, Result, Stream};
use zerocopy::{FromZeros, IntoBytes};

/// Log bytes that taking or freeing a slot costs at most.
pub(crate) const COST_SLOT: u64 =
    2 * COST_BITS + 3 * COST_BLOCK + 16 * COST_RANGE + COST_FREE + INODE_BYTES as u64;

/// A mask with every slot of a block.
const ALL: u16 = (1 << INODES_PER_BLOCK) - 1;
/// Inode blocks of a group looked into for one allocation before a new one is made.
const LOOKS_AHEAD: usize = 8;
/// Inode blocks, or bitmaps of them, looked into for one allocation when none can be made.
const SEARCH_MAX: usize = 64;
/// Operations of a stream that the journal is asked about at a time.
const ASKED_AT_ONCE: usize = 64;
/// Operations of a stream with held slots at which the slots of its durable operations are released; again at each
/// power of two above.
const HOLDS_SWEPT: usize = 4096;
/// All blocks.
const ANYWHERE: Range<BlockNo> = BlockNo(0)..BlockNo(u64::MAX);

/// The free slots of a volume. See the module's header.
pub(crate) struct Slots {
    state: Mutex<State>,
    /// Some blocks are in [`State::empty`].
    any_empty: AtomicBool,
    /// Generations are a keyed hash of a counter: never predictable, never zero.
    seed: [u8; 16],
    generations: AtomicU64,
    directories: AtomicU64,
    /// Planted fault: slots that an operation freed are open to all streams at once.
    early: bool,
}

#[derive(Default)]
struct State {
    /// The blocks that were looked into or made.
    known: HashMap<BlockNo, Known>,
    /// Those of them that have open slots (`None`) or slots that a stream holds.
    room: BTreeSet<(Option<StreamId>, BlockNo)>,
    /// The operations of each stream that made it hold slots, oldest first.
    holds: BTreeMap<StreamId, VecDeque<(BlockNo, Ticket)>>,
    /// The journal's commits when it was last asked for durable operations.
    asked_at: u64,
    /// Inode blocks to look into, of the groups whose bitmaps were read. From the back: the newest, emptiest first.
    unknown: HashMap<u64, Vec<BlockNo>>,
    /// Overflow group of each full group.
    overflow: HashMap<u64, u64>,
    /// Nothing is left to look into in the groups before this one.
    searched: u64,
    /// Blocks that operations are freeing.
    freeing: HashSet<BlockNo>,
    /// Number of freeings begun.
    freeings: u64,
    /// Blocks that were seen without an inode, and the stream that holds slots of it, if one does.
    empty: Vec<(BlockNo, Option<StreamId>)>,
}

/// The free slots of a block, each in one of the masks.
#[derive(Default)]
struct Known {
    open: u16,
    held: SmallVec<[Hold; 1]>,
}

/// Slots that a stream holds, until the newest of its operations that freed some here is durable.
struct Hold {
    stream: StreamId,
    mask: u16,
    newest: Ticket,
}

/// A slot that an operation has claimed, and the stream that held it.
#[derive(Clone, Copy)]
struct Claim {
    place: Place,
    held_by: Option<StreamId>,
}

impl Known {
    fn mask(&mut self, stream: Option<StreamId>) -> Option<&mut u16> {
        let Some(stream) = stream else {
            return Some(&mut self.open);
        };
        let mut held = self.held.iter_mut();
        held.find(|hold| hold.stream == stream)
            .map(|hold| &mut hold.mask)
    }

    /// The slots that are open or this stream's.
    fn free_to(&self, stream: Option<StreamId>) -> u16 {
        let own = self.held.iter().filter(|hold| Some(hold.stream) == stream);
        own.fold(self.open, |mask, hold| mask | hold.mask)
    }

    fn free_to_all(&self) -> u16 {
        let held = self.held.iter();
        held.fold(self.open, |mask, hold| mask | hold.mask)
    }
}

impl Slots {
    /// Generations derive from `seed`.
    pub(crate) fn new(seed: [u8; 16], early: bool) -> Slots {
        Slots {
            state: Mutex::default(),
            any_empty: AtomicBool::new(false),
            seed,
            generations: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            early,
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

    /// Place of a new directory in the root: they take turns among the groups.
    pub(crate) fn spread(&self, store: &Store) -> Ino {
        let turn = self.directories.fetch_add(1, Ordering::Relaxed);
        store.volume.group_start(turn % store.volume.groups).0 * INODE_SLOTS
    }

    /// The groups for an inode near `near`: its own, and the one that takes the overflow.
    fn groups_near(&self, volume: &Volume, near: Ino) -> SmallVec<[u64; 2]> {
        let group = volume.group_of(BlockNo(near / INODE_SLOTS)).unwrap_or(0);
        let overflow = self.lock().overflow.get(&group).copied();
        std::iter::once(group).chain(overflow).collect()
    }

    /// Runs `get` on the state, and again after the slots of durable operations are opened, if that may change its answer.
    fn with_settled<T>(
        &self,
        store: &Store,
        mut get: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let found = get(&mut self.lock());
        found.or_else(|| {
            self.settle(store);
            get(&mut self.lock())
        })
    }

    /// Looks for a block near `near` that has room, before a new one is made. Hold no lock.
    pub(crate) fn look_ahead(&self, store: &Store, near: Ino, stream: StreamId) -> Result<()> {
        let groups = self.groups_near(&store.volume, near);
        let has_room = |state: &mut State| {
            let mut areas = groups.iter().map(|group| area(&store.volume, *group));
            areas.find_map(|blocks| state.pick(&blocks, stream))
        };
        if self.with_settled(store, has_room).is_some() {
            return Ok(());
        }
        for group in &groups {
            self.look(store, *group, LOOKS_AHEAD)?;
            if has_room(&mut self.lock()).is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Looks for a block that has room anywhere, when no new one can be made. Whether there is one, as
    /// far as this call looks. Hold no lock.
    pub(crate) fn search(&self, store: &Store, stream: StreamId) -> Result<bool> {
        let mut left = SEARCH_MAX;
        loop {
            let found = self.with_settled(store, |state| state.pick(&ANYWHERE, stream));
            let group = self.lock().searched;
            if found.is_some() || left == 0 || group >= store.volume.groups {
                return Ok(found.is_some());
            }
            let looked = self.look(store, group, left)?;
            if looked == 0 {
                let mut state = self.lock();
                state.searched = state.searched.max(group + 1);
            }
            left -= looked.max(1);
        }
    }

    /// Looks into up to `most` further blocks of a group at once; returns into how many.
    fn look(&self, store: &Store, group: u64, most: usize) -> Result<usize> {
        if !self.lock().unknown.contains_key(&group) {
            let blocks = inode_blocks(store, group)?;
            self.lock().unknown.entry(group).or_insert(blocks);
        }
        let next = match self.lock().unknown.get_mut(&group) {
            Some(blocks) => blocks.split_off(blocks.len().saturating_sub(most)),
            None => Vec::new(),
        };
        self.look_into(store, &next)?;
        Ok(next.len())
    }

    /// Finds out which slots of these blocks are free, where that is not known.
    fn look_into(&self, store: &Store, blocks: &[BlockNo]) -> Result<()> {
        loop {
            let (wanted, freeings) = {
                let state = self.lock();
                let new =
                    |at: &&BlockNo| !state.known.contains_key(*at) && !state.freeing.contains(*at);
                let wanted: SmallVec<[BlockNo; 1]> = blocks.iter().filter(new).copied().collect();
                (wanted, state.freeings)
            };
            if wanted.is_empty() {
                return Ok(());
            }
            let found = free_slots(store, &wanted);
            let mut state = self.lock();
            if state.freeings != freeings {
                continue;
            }
            for (block, open) in found? {
                if let Entry::Vacant(new) = state.known.entry(block) {
                    new.insert(Known::default());
                    self.give(&mut state, block, None, open);
                }
            }
            return Ok(());
        }
    }

    /// These slots are free to a stream that holds some of the block, else to all streams.
    fn give(&self, state: &mut State, block: BlockNo, stream: Option<StreamId>, slots: u16) {
        let Some(known) = state.known.get_mut(&block) else {
            return;
        };
        let stream = stream.filter(|stream| known.mask(Some(*stream)).is_some());
        if let Some(mask) = known.mask(stream) {
            *mask |= slots;
            if *mask != 0 {
                state.room.insert((stream, block));
            }
        }
        if known.free_to(stream) == ALL {
            state.empty.push((block, stream));
            self.any_empty.store(true, Ordering::Relaxed);
        }
    }

    /// The operation that claimed the slot was given up.
    fn unclaim(&self, Claim { place, held_by }: Claim) {
        self.give(&mut self.lock(), place.block, held_by, 1 << place.slot);
    }

    /// The stream freed these slots of a block, or made it, with the operation of this ticket.
    fn hold(&self, store: &Store, stream: StreamId, block: BlockNo, slots: u16, newest: Ticket) {
        let many = {
            let mut state = self.lock();
            let Some(known) = state.known.get_mut(&block) else {
                return;
            };
            match known.held.iter_mut().find(|hold| hold.stream == stream) {
                Some(hold) => hold.newest = newest,
                None => known.held.push(Hold {
                    stream,
                    mask: 0,
                    newest,
                }),
            }
            self.give(&mut state, block, Some(stream), slots);
            state.queue(stream, block, newest)
        };
        if many >= HOLDS_SWEPT && many.is_power_of_two() {
            self.settle(store);
        }
    }

    /// A new inode block is visible; its first slot is taken.
    fn made(&self, store: &Store, block: BlockNo, stream: StreamId, ticket: Ticket) {
        let is_new = match self.lock().known.entry(block) {
            Entry::Vacant(new) => {
                new.insert(Known::default());
                true
            }
            // Another thread looked into it since it is visible: its slots are open.
            Entry::Occupied(_) => false,
        };
        if is_new {
            self.hold(store, stream, block, ALL & !1, ticket);
        }
    }

    /// Opens the slots that streams hold for operations which are durable now. Hold no lock of this module.
    pub(crate) fn settle(&self, store: &Store) {
        let mut streams: Vec<StreamId> = {
            let mut state = self.lock();
            if state.holds.is_empty() {
                return;
            }
            // Nothing has become durable since the last time.
            let commits = store.journal.stats().commits;
            if std::mem::replace(&mut state.asked_at, commits) == commits {
                return;
            }
            state.holds.keys().copied().collect()
        };
        while let Some(stream) = streams.pop() {
            let oldest: Vec<(BlockNo, Ticket)> = {
                let state = self.lock();
                let queue = state.holds.get(&stream).into_iter().flatten();
                queue.take(ASKED_AT_ONCE).copied().collect()
            };
            let tickets: Vec<Ticket> = oldest.iter().map(|(_, ticket)| *ticket).collect();
            let durable = store.journal.are_durable(&tickets);
            let durable = oldest.iter().zip(durable).take_while(|(_, is)| *is);
            let mut gone = 0;
            for (hold, _) in durable {
                let mut state = self.lock();
                let queue = state.holds.get_mut(&stream);
                // Else another thread was here, or the stream holds more of the block.
                if queue.is_some_and(|queue| queue.pop_front_if(|front| front == hold).is_none()) {
                    break;
                }
                gone += 1;
                self.let_go(&mut state, stream, *hold);
            }
            let mut state = self.lock();
            if state.holds.get(&stream).is_some_and(VecDeque::is_empty) {
                state.holds.remove(&stream);
            }
            if gone == ASKED_AT_ONCE {
                streams.push(stream);
            }
        }
    }

    /// The operation is durable: the block's slots that the stream holds are open, unless a later operation freed some, too.
    fn let_go(&self, state: &mut State, stream: StreamId, (block, ticket): (BlockNo, Ticket)) {
        let Some(known) = state.known.get_mut(&block) else {
            return;
        };
        let is_last = |hold: &Hold| hold.stream == stream && hold.newest == ticket;
        if let Some(index) = known.held.iter().position(is_last) {
            let hold = known.held.swap_remove(index);
            state.room.remove(&(Some(stream), block));
            self.give(state, block, None, hold.mask);
        }
    }

    /// Whether a block has no inode, but more than one stream holds slots of it: it can be freed when their operations
    /// are durable.
    pub(crate) fn some_are_emptied_by_several(&self) -> bool {
        let state = self.lock();
        let held = state.room.iter().filter(|(stream, _)| stream.is_some());
        let mut held = held.filter_map(|(_, block)| state.known.get(block));
        held.any(|known| known.held.len() > 1 && known.free_to_all() == ALL)
    }

    /// An empty block to free, which hands out no slots from here on; the stream that holds some of it; and its slots.
    fn next_empty(&self) -> Option<(BlockNo, Option<StreamId>, Known)> {
        let mut state = self.lock();
        while let Some((block, stream)) = state.empty.pop() {
            if let Some(slots) = state.begin_freeing(block, stream, 0) {
                return Some((block, stream, slots));
            }
        }
        self.any_empty.store(false, Ordering::Relaxed);
        None
    }

    /// The block is free, or not to be freed now: then these are its free slots.
    fn end_freeing(&self, block: BlockNo, kept: Option<Known>) {
        let mut state = self.lock();
        state.freeing.remove(&block);
        if let Some(slots) = kept {
            for hold in &slots.held {
                state.queue(hold.stream, block, hold.newest);
                state.room.insert((Some(hold.stream), block));
            }
            if slots.open != 0 {
                state.room.insert((None, block));
            }
            state.known.insert(block, slots);
        }
    }
}

/// The blocks of a group.
fn area(volume: &Volume, group: u64) -> Range<BlockNo> {
    let start = volume.group_start(group);
    start..start.offset(volume.group_len(group))
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

/// The free slots of those of the blocks that hold inodes.
fn free_slots(store: &Store, blocks: &[BlockNo]) -> Result<Vec<(BlockNo, u16)>> {
    let mut current = Current(&store.journal);
    let mut inodes = Vec::with_capacity(blocks.len());
    for block in blocks {
        if is_inode_block(&store.volume, &mut current, *block)? {
            inodes.push(*block);
        }
    }
    let images = store.journal.read_scattered(&inodes, Kind::Meta);
    let free = |(block, image): (BlockNo, steadfast_journal::Result<_>)| {
        let image: std::sync::Arc<steadfast_block::Block> = image.map_err(from_journal)?;
        let is_free = |slot: &u64| {
            let at = *slot as usize * INODE_BYTES;
            image[at..at + 4] == [0; 4]
        };
        let free = (0..INODES_PER_BLOCK).filter(is_free);
        Ok((block, free.fold(0, |mask, slot| mask | 1 << slot)))
    };
    inodes.into_iter().zip(images).map(free).collect()
}

impl State {
    /// A block that has room for the stream, and its holder. Blocks that the stream holds come first.
    fn pick(
        &self,
        blocks: &Range<BlockNo>,
        stream: StreamId,
    ) -> Option<(Option<StreamId>, BlockNo)> {
        let first = |whose| self.room.range((whose, blocks.start)..(whose, blocks.end));
        let held = first(Some(stream)).next();
        held.or_else(|| first(None).next()).copied()
    }

    fn claim(&mut self, blocks: &Range<BlockNo>, stream: StreamId) -> Option<Claim> {
        let (held_by, block) = self.pick(blocks, stream)?;
        let mask = self.known.get_mut(&block)?.mask(held_by)?;
        let slot = u64::from(mask.trailing_zeros());
        *mask &= *mask - 1;
        if *mask == 0 {
            self.room.remove(&(held_by, block));
        }
        let place = Place { block, slot };
        Some(Claim { place, held_by })
    }

    /// The stream holds slots of a block until this operation is durable. Returns the number of operations that wait for that.
    fn queue(&mut self, stream: StreamId, block: BlockNo, ticket: Ticket) -> usize {
        let queue = self.holds.entry(stream).or_default();
        match queue.back_mut() {
            Some(newest) if newest.0 == block => newest.1 = ticket,
            _ => queue.push_back((block, ticket)),
        }
        queue.len()
    }

    /// If all slots of a block but those of `last` are free to the stream, the block hands out none from here on: it is to
    /// be freed. Its free slots are returned.
    fn begin_freeing(
        &mut self,
        block: BlockNo,
        stream: Option<StreamId>,
        last: u16,
    ) -> Option<Known> {
        let free = self.known.get(&block)?.free_to(stream);
        if free | last != ALL {
            return None;
        }
        for whose in [None, stream] {
            self.room.remove(&(whose, block));
        }
        self.freeing.insert(block);
        self.freeings += 1;
        self.known.remove(&block)
    }
}

/// Takes a slot for a new inode near `near`, in a new inode block if need be. Returns where
/// it is; its bytes on disk are zero, or rest of something that is no inode. Knows of the blocks only
/// that were looked into ([`Slots::look_ahead`]).
///
/// # Errors
/// ENOSPC when there is neither a free slot nor a free block ([`Slots::search`] may help).
pub(crate) fn allocate<'a>(
    store: &'a Store,
    slots: &'a Slots,
    work: &mut Work<'a>,
    near: Ino,
) -> Result<Place> {
    let stream = work.stream();
    let volume = &store.volume;
    let groups = slots.groups_near(volume, near);
    let claim_near = |state: &mut State| {
        let mut areas = groups.iter().map(|group| area(volume, *group));
        areas.find_map(|blocks| state.claim(&blocks, stream))
    };
    if let Some(claim) = slots.with_settled(store, claim_near) {
        return Ok(claimed(slots, work, claim));
    }
    let block = match work.allocate_block(BlockNo(near / INODE_SLOTS)) {
        Ok(block) => block,
        Err(full) if full == Errno::NoSpc => {
            let claim = |state: &mut State| state.claim(&ANYWHERE, stream);
            let claim = slots.with_settled(store, claim).ok_or(full)?;
            return Ok(claimed(slots, work, claim));
        }
        Err(error) => return Err(error),
    };
    let (Some((bitmap, bit)), Some(group)) = (bitmap_bit(volume, block), volume.group_of(block))
    else {
        return Err(Errno::Io.into());
    };
    if group != groups[0] {
        slots.lock().overflow.insert(groups[0], group);
    }
    work.relate(Object::Block(block.0), Access::Exclusive);
    work.zero(block, Kind::Meta)?;
    work.set_bits(bitmap, bit, 1, true)?;
    work.on_end(move |ticket| {
        if let Some(ticket) = ticket {
            slots.made(store, block, stream, ticket);
        }
    });
    Ok(Place { block, slot: 0 })
}

fn claimed<'a>(slots: &'a Slots, work: &mut Work<'a>, claim: Claim) -> Place {
    work.on_end(move |ticket| {
        if ticket.is_none() {
            slots.unclaim(claim);
        }
    });
    let place = claim.place;
    work.relate(Object::Block(place.block.0), Access::Shared);
    place
}

/// Frees an inode's slot, and its block if it was the last inode there. The caller has
/// freed the inode's blocks, holds its lock and has related it exclusively.
pub(crate) fn free<'a>(
    store: &'a Store,
    slots: &'a Slots,
    work: &mut Work<'a>,
    place: Place,
    old: &DiskInode,
) -> Result<()> {
    let stream = work.stream();
    let (block, bit) = (place.block, 1 << place.slot);
    slots.look_into(store, &[block])?;
    let others = (slots.lock()).begin_freeing(block, Some(stream), bit);
    let Some(others) = others else {
        work.on_end(move |ticket| {
            let held_by = None;
            match ticket {
                Some(_) if slots.early => slots.unclaim(Claim { place, held_by }),
                Some(ticket) => slots.hold(store, stream, block, bit, ticket),
                None => {}
            }
        });
        work.relate(Object::Block(block.0), Access::Shared);
        return inode::patch(work, place, old, &DiskInode::new_zeroed());
    };
    work.on_end(move |ticket| {
        let kept = ticket.is_none().then_some(others);
        slots.end_freeing(block, kept);
    });
    free_block(work, block)
}

/// Frees an inode block. All changes in it come first.
fn free_block(work: &mut Work<'_>, block: BlockNo) -> Result<()> {
    work.relate(Object::Block(block.0), Access::Exclusive);
    if let Some((bitmap, bit)) = bitmap_bit(work.volume(), block) {
        work.set_bits(bitmap, bit, 1, false)?;
    }
    work.free_run(block, 1)
}

/// Frees the blocks whose last inodes were freed side by side, each in the stream that freed them if that is not durable.
/// Hold no lock. Returns the error.
pub(crate) fn reap(store: &Store, slots: &Slots) -> Vec<String> {
    let mut warnings = Vec::new();
    while slots.any_empty.load(Ordering::Relaxed) {
        let Some((block, held_by, free)) = slots.next_empty() else {
            break;
        };
        let stream = held_by.map_or(OWN_STREAM, |stream| Stream(stream.0));
        let credits = Credits::log(COST_SLOT);
        let freed = store.begin(stream, credits).and_then(|mut work| {
            work.use_emergency_space();
            free_block(&mut work, block)?;
            work.commit();
            Ok(())
        });
        slots.end_freeing(block, freed.is_err().then_some(free));
        // The caller's operation is not about this block, whose slots can still be used.
        if let Err(error) = freed {
            warnings.push(format!(
                "inode block {} holds no inode and could not be freed ({error})",
                block.0
            ));
        }
    }
    warnings
}

/// Writes a new inode into the slot that [`allocate`] found.
pub(crate) fn fill(work: &mut Work<'_>, place: Place, new: &DiskInode) -> Result<()> {
    work.write(place.block, Kind::Meta, place.offset(), new.as_bytes())
}

#[cfg(test)]
mod tests;
