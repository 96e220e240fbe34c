//! Inode slots: which are free, and taking and freeing them inside an operation.
//!
//! Inode blocks are allocated on demand and freed with their last inode. What is free is
//! found lazily: a group's inode-block bitmap when the group is first used, an inode block
//! when a slot is looked for there. Invariants:
//!
//! * a slot in a mask of [`State::masks`] is free in the current image and in every tree that a crash may leave, and
//!   claimed by nobody;
//! * a slot that a stream *holds* ([`Held`]) is free in the current image and claimed by nobody, but the operation that
//!   freed it, or made its block, is not durable yet. Only that stream takes it: its own operations keep their
//!   order. When the operation is durable, the slot is everybody's (ccfs §3.3.4);
//! * an operation that is given up returns its claims ([`Work::on_end`], corner 30);
//! * a block that an operation is freeing hands out no slots;
//! * blocks are looked into under no lock: neither the lock of [`State`] nor that of an inode. What
//!   was read is entered if no block began to be freed meanwhile, else it is read again;
//! * a call looks into a bounded number of blocks, and into each block once in a mount: into
//!   [`LOOKS_MAX`] before a new one is made, into [`SEARCH_MAX`] when the volume has no room for a new
//!   one. It then fails with ENOSPC, and the next call looks on from there;
//! * a block without inodes is freed when one stream may have all of its slots: by the operation that frees its last
//!   inode or, where several free what is left side by side and none of them is the last, by [`reap`] after them. A
//!   crash between the two leaves an empty block, which the next mount uses or frees.
//!
//! Streams: taking and freeing slots of one block commutes, making and freeing the block does not. By the rules above
//! nobody else has an uncommitted change in a block that a stream makes or frees.

use crate::inode::{self, Place, bitmap_bit, is_inode_block};
use crate::layout::{DiskInode, INODE_BYTES, INODE_SLOTS, INODES_PER_BLOCK};
use crate::mount::{Fs, OWN_STREAM};
use crate::reader::Current;
use crate::superblock::Volume;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Store, Work};
use siphasher::sip::SipHasher24;
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
/// Inode blocks looked into for one allocation before a new one is made.
const LOOKS_MAX: usize = 8;
/// Inode blocks, or bitmaps of them, looked into for one allocation when none can be made.
const SEARCH_MAX: usize = 512;
/// Operations of a stream that the journal is asked about at a time.
const ASKED_AT_ONCE: usize = 64;
/// A stream that holds slots of so many operations has the durable ones let go.
const HOLDS_SWEPT: usize = 4096;

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
    /// Slots of the inode blocks that were looked into which everybody may take.
    masks: HashMap<BlockNo, u16>,
    /// Those of these blocks that have some.
    open: BTreeSet<BlockNo>,
    /// What only one stream may take.
    held: BTreeMap<StreamId, Held>,
    holds: u64,
    /// The journal's commits when it was last asked what is durable.
    asked_at: u64,
    /// Inode blocks to look into, of the groups whose bitmaps were read. From the back: the newest,
    /// emptiest ones first.
    unknown: HashMap<u64, Vec<BlockNo>>,
    /// Nothing is left to look into in the groups before this one.
    searched: u64,
    /// Blocks that operations are freeing.
    freeing: HashSet<BlockNo>,
    /// How often one began to.
    freeings: u64,
    /// Blocks that were seen without an inode, and the stream that holds slots of it, if one does.
    empty: Vec<(BlockNo, Option<StreamId>)>,
}

/// Slots that one stream freed or made, and that are not durable so. A stream holds the slots of a block until the newest
/// of its operations that gave it some is durable.
#[derive(Default)]
struct Held {
    blocks: HashMap<BlockNo, HeldSlots>,
    /// Those of them that have some.
    open: BTreeSet<BlockNo>,
    /// What made them so, oldest first; only the newest entry of a block counts.
    queue: VecDeque<(u64, BlockNo, Ticket)>,
    /// The queue is swept when it has grown to this many.
    sweep_at: usize,
}

/// The slots of a block that a stream holds.
#[derive(Clone, Copy)]
struct HeldSlots {
    mask: u16,
    /// Number and ticket of the newest hold.
    number: u64,
    ticket: Ticket,
}

/// A slot that an operation has claimed.
#[derive(Clone, Copy)]
struct Claim {
    place: Place,
    /// Only this stream may take it.
    held_by: Option<StreamId>,
}

/// The free slots of a block that is being freed, and who held some of them.
struct Last {
    mask: u16,
    held: Option<(StreamId, HeldSlots)>,
}

/// Which blocks an allocation may take a slot from.
enum Where {
    /// Those of a group.
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

    fn first(&self, of: &BTreeSet<BlockNo>) -> Option<BlockNo> {
        match self {
            Where::In(range) => of.range(range.clone()).next().copied(),
            Where::Anywhere => of.first().copied(),
        }
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
    fn claim(&self, store: &Store, from: &Where, stream: StreamId) -> Option<Claim> {
        if let Some(claim) = self.lock().claim(from, stream) {
            return Some(claim);
        }
        self.settle(store);
        self.lock().claim(from, stream)
    }

    /// Whether there is a slot that the stream may claim.
    fn has(&self, store: &Store, from: &Where, stream: StreamId) -> bool {
        if self.lock().pick(from, stream).is_some() {
            return true;
        }
        self.settle(store);
        self.lock().pick(from, stream).is_some()
    }

    /// Looks for a block near `near` that has room, before a new one is made. Hold no lock.
    pub(crate) fn look_ahead(&self, store: &Store, near: Ino, stream: StreamId) -> Result<()> {
        let (group, blocks) = Where::near(&store.volume, near);
        for _ in 0..LOOKS_MAX {
            if self.has(store, &blocks, stream) || !self.look(store, group)? {
                break;
            }
        }
        Ok(())
    }

    /// Looks for a block that has room anywhere, when no new one can be made. Whether there is one, as
    /// far as this call looks. Hold no lock.
    pub(crate) fn search(&self, store: &Store, stream: StreamId) -> Result<bool> {
        for _ in 0..SEARCH_MAX {
            if self.has(store, &Where::Anywhere, stream) {
                return Ok(true);
            }
            let group = self.lock().searched;
            if group >= store.volume.groups {
                return Ok(false);
            }
            if !self.look(store, group)? {
                let mut state = self.lock();
                state.searched = state.searched.max(group + 1);
            }
        }
        Ok(self.has(store, &Where::Anywhere, stream))
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
                state.set(block, mask);
                self.note_empty(&mut state, block, None);
            }
            return Ok(());
        }
    }

    /// Notes a block if it has no inode and one stream may have all of its slots.
    fn note_empty(&self, state: &mut State, block: BlockNo, stream: Option<StreamId>) {
        if state.free_to(block, stream) == Some(ALL) {
            state.empty.push((block, stream));
            self.any_empty.store(true, Ordering::Relaxed);
        }
    }

    /// The operation that claimed the slot was given up.
    fn unclaim(&self, Claim { place, held_by }: Claim) {
        let bit = 1 << place.slot;
        let mut state = self.lock();
        let held = held_by.and_then(|stream| state.held.get_mut(&stream));
        match held {
            Some(held) if held.blocks.contains_key(&place.block) => {
                held.add(place.block, bit);
            }
            // What it was held for is durable by now.
            _ => match state.masks.get(&place.block).copied() {
                Some(mask) => state.set(place.block, mask | bit),
                None => return,
            },
        }
        self.note_empty(&mut state, place.block, held_by);
    }

    /// The stream freed these slots of a block, or made it, with the operation of this ticket.
    fn hold(&self, store: &Store, stream: StreamId, block: BlockNo, mask: u16, ticket: Ticket) {
        let full = {
            let mut state = self.lock();
            let Some(open) = state.masks.get(&block).copied() else {
                return;
            };
            let (held, full) = state.hold(stream, block, mask, ticket);
            if open | held == ALL {
                state.empty.push((block, Some(stream)));
                self.any_empty.store(true, Ordering::Relaxed);
            }
            full
        };
        if full {
            self.settle(store);
        }
    }

    /// What streams hold for operations that are durable is everybody's. Hold no lock of this module.
    pub(crate) fn settle(&self, store: &Store) {
        let mut streams: Vec<StreamId> = {
            let mut state = self.lock();
            if state.held.is_empty() {
                return;
            }
            // Nothing has become durable since the last time.
            let commits = store.journal.stats().commits;
            if std::mem::replace(&mut state.asked_at, commits) == commits {
                return;
            }
            state.held.keys().copied().collect()
        };
        while let Some(stream) = streams.pop() {
            let oldest: Vec<(u64, Ticket)> = {
                let state = self.lock();
                let queue = state.held.get(&stream).map(|held| &held.queue);
                let oldest = queue.into_iter().flatten().take(ASKED_AT_ONCE);
                oldest
                    .map(|(number, _, ticket)| (*number, *ticket))
                    .collect()
            };
            let tickets: Vec<Ticket> = oldest.iter().map(|(_, ticket)| *ticket).collect();
            let durable = store.journal.are_durable(&tickets);
            let count = durable.iter().take_while(|durable| **durable).count();
            let Some((newest, _)) = count.checked_sub(1).map(|last| oldest[last]) else {
                continue;
            };
            let mut state = self.lock();
            for block in state.let_go(stream, newest) {
                self.note_empty(&mut state, block, None);
            }
            if count == ASKED_AT_ONCE {
                streams.push(stream);
            }
        }
    }

    /// Whether a block has no inode, but more than one stream holds slots of it: it can be freed when their operations
    /// are durable.
    pub(crate) fn some_are_emptied_by_several(&self) -> bool {
        let state = self.lock();
        if state.held.len() < 2 {
            return false;
        }
        let mut free: HashMap<BlockNo, u16> = HashMap::new();
        for (block, slots) in state.held.values().flat_map(|held| &held.blocks) {
            let known = || state.masks.get(block).copied().unwrap_or(0);
            *free.entry(*block).or_insert_with(known) |= slots.mask;
        }
        free.values().any(|mask| *mask == ALL)
    }

    /// An empty block to free, which hands out no slots from here on; and its slots.
    fn next_empty(&self) -> Option<(BlockNo, Last)> {
        let mut state = self.lock();
        while let Some((block, stream)) = state.empty.pop() {
            if state.free_to(block, stream) == Some(ALL) {
                return Some((block, state.begin_freeing(block, stream)));
            }
        }
        self.any_empty.store(false, Ordering::Relaxed);
        None
    }

    /// If the inode in `place` is the last one of its block, as far as the stream is concerned, the block hands out no
    /// slots from here on: it is to be freed. Its other slots are returned.
    fn take_last(&self, place: Place, stream: StreamId) -> Option<Last> {
        let mut state = self.lock();
        let mask = state.free_to(place.block, Some(stream))?;
        if mask | 1 << place.slot != ALL {
            return None;
        }
        Some(state.begin_freeing(place.block, Some(stream)))
    }

    /// The block is free, or not to be freed now: then these are its free slots.
    fn end_freeing(&self, block: BlockNo, kept: Option<Last>) {
        let mut state = self.lock();
        state.freeing.remove(&block);
        if let Some(Last { mask, held }) = kept {
            state.set(block, mask);
            if let Some((stream, held)) = held {
                state.hold(stream, block, held.mask, held.ticket);
            }
        }
    }

    /// A new inode block is visible; its first slot is taken.
    fn made(&self, store: &Store, block: BlockNo, stream: StreamId, ticket: Ticket) {
        let new = {
            let mut state = self.lock();
            let new = !state.masks.contains_key(&block);
            if new {
                state.set(block, 0);
            }
            new
        };
        if new {
            self.hold(store, stream, block, ALL & !1, ticket);
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

    /// A block that has room for the stream, and whether only this stream has it. What it holds goes first.
    fn pick(&self, from: &Where, stream: StreamId) -> Option<(BlockNo, bool)> {
        let held = self.held.get(&stream);
        let held = held.and_then(|held| from.first(&held.open));
        let open = || from.first(&self.open).map(|block| (block, false));
        held.map(|block| (block, true)).or_else(open)
    }

    fn claim(&mut self, from: &Where, stream: StreamId) -> Option<Claim> {
        let (block, is_held) = self.pick(from, stream)?;
        let slot = if is_held {
            let held = self.held.get_mut(&stream)?;
            let slots = held.blocks.get_mut(&block)?;
            let slot = slots.mask.trailing_zeros();
            slots.mask &= !(1 << slot);
            if slots.mask == 0 {
                held.open.remove(&block);
            }
            slot
        } else {
            let mask = self.masks.get(&block).copied()?;
            self.set(block, mask & (mask - 1));
            mask.trailing_zeros()
        };
        let slot = u64::from(slot);
        Some(Claim {
            place: Place { block, slot },
            held_by: is_held.then_some(stream),
        })
    }

    /// The slots of a block that are everybody's or this stream's. `None`: they are not known.
    fn free_to(&self, block: BlockNo, stream: Option<StreamId>) -> Option<u16> {
        let held = stream.and_then(|stream| self.held.get(&stream)?.blocks.get(&block));
        Some(self.masks.get(&block)? | held.map_or(0, |held| held.mask))
    }

    /// See [`Slots::hold`]. What the stream holds of the block then, and whether it holds so much that what is durable
    /// should go.
    fn hold(&mut self, stream: StreamId, block: BlockNo, mask: u16, ticket: Ticket) -> (u16, bool) {
        self.holds += 1;
        let number = self.holds;
        let held = self.held.entry(stream).or_default();
        match held.queue.back_mut() {
            Some(newest) if newest.1 == block => *newest = (number, block, ticket),
            _ => held.queue.push_back((number, block, ticket)),
        }
        let slots = held.blocks.entry(block).or_insert(HeldSlots {
            mask: 0,
            number,
            ticket,
        });
        (slots.number, slots.ticket) = (number, ticket);
        if slots.mask == 0 && mask != 0 {
            held.open.insert(block);
        }
        slots.mask |= mask;
        let holds = slots.mask;
        let full = held.queue.len() >= held.sweep_at.max(HOLDS_SWEPT);
        if full {
            held.sweep_at = 2 * held.queue.len();
        }
        (holds, full)
    }

    /// The stream's operations up to this hold are durable. Returns the blocks that have got slots.
    fn let_go(&mut self, stream: StreamId, newest: u64) -> Vec<BlockNo> {
        let mut open = Vec::new();
        let Some(held) = self.held.get_mut(&stream) else {
            return Vec::new();
        };
        while let Some((number, block, _)) = held.queue.front().copied()
            && number <= newest
        {
            held.queue.pop_front();
            if held
                .blocks
                .get(&block)
                .is_some_and(|slots| slots.number == number)
                && let Some(slots) = held.take(block)
            {
                open.push((block, slots.mask));
            }
        }
        held.sweep_at = 2 * held.queue.len();
        if held.queue.is_empty() {
            self.held.remove(&stream);
        }
        for (block, mask) in &open {
            if let Some(known) = self.masks.get(block).copied() {
                self.set(*block, known | mask);
            }
        }
        open.into_iter().map(|(block, _)| block).collect()
    }

    fn begin_freeing(&mut self, block: BlockNo, stream: Option<StreamId>) -> Last {
        self.open.remove(&block);
        self.freeing.insert(block);
        self.freeings += 1;
        let held = stream.and_then(|stream| {
            let slots = self.held.get_mut(&stream)?.take(block)?;
            Some((stream, slots))
        });
        Last {
            mask: self.masks.remove(&block).unwrap_or(0),
            held,
        }
    }
}

impl Held {
    fn add(&mut self, block: BlockNo, mask: u16) {
        if let Some(slots) = self.blocks.get_mut(&block) {
            slots.mask |= mask;
            if slots.mask != 0 {
                self.open.insert(block);
            }
        }
    }

    fn take(&mut self, block: BlockNo) -> Option<HeldSlots> {
        self.open.remove(&block);
        self.blocks.remove(&block)
    }
}

/// Takes a slot for a new inode near `near`, in a new inode block if need be. Returns where
/// it is; its bytes on disk are zero, or rest of something that is no inode. Knows of the blocks only
/// that were looked into ([`Slots::look_ahead`]).
///
/// # Errors
/// ENOSPC when there is neither a free slot nor a free block ([`Slots::search`] may help).
pub(crate) fn allocate<'a>(fs: &'a Fs, work: &mut Work<'a>, near: Ino) -> Result<Place> {
    let (store, stream) = (&fs.store, work.stream());
    let (_, blocks) = Where::near(&store.volume, near);
    if let Some(claim) = fs.slots.claim(store, &blocks, stream) {
        return Ok(claimed(fs, work, claim));
    }
    let block = match work.allocate_block(BlockNo(near / INODE_SLOTS)) {
        Ok(block) => block,
        Err(full) if full == Errno::NoSpc => {
            return match fs.slots.claim(store, &Where::Anywhere, stream) {
                Some(claim) => Ok(claimed(fs, work, claim)),
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
    work.on_end(move |ticket| {
        if let Some(ticket) = ticket {
            fs.slots.made(store, block, stream, ticket);
        }
    });
    Ok(Place { block, slot: 0 })
}

fn claimed<'a>(fs: &'a Fs, work: &mut Work<'a>, claim: Claim) -> Place {
    work.on_end(move |ticket| {
        if ticket.is_none() {
            fs.slots.unclaim(claim);
        }
    });
    let place = claim.place;
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
    let (store, stream) = (&fs.store, work.stream());
    fs.slots.look_into(store, place.block)?;
    let Some(others) = fs.slots.take_last(place, stream) else {
        work.on_end(move |ticket| {
            let slots = &fs.slots;
            match ticket {
                Some(_) if fs.faults.slots_early => slots.unclaim(Claim {
                    place,
                    held_by: None,
                }),
                Some(ticket) => slots.hold(store, stream, place.block, 1 << place.slot, ticket),
                None => {}
            }
        });
        work.relate(Object::Block(place.block.0), Access::Shared);
        return inode::patch(work, place, old, &DiskInode::new_zeroed());
    };
    work.on_end(move |ticket| {
        let kept = ticket.is_none().then_some(others);
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

/// Frees the blocks whose last inodes were freed side by side, each in the stream that freed them if that is not durable.
/// Hold no lock.
pub(crate) fn reap(fs: &Fs) {
    while fs.slots.any_empty.load(Ordering::Relaxed) {
        let Some((block, last)) = fs.slots.next_empty() else {
            return;
        };
        let stream = (last.held.as_ref()).map_or(OWN_STREAM, |(stream, _)| Stream(stream.0));
        let credits = Credits {
            log_bytes: COST_SLOT,
            data_blocks: 0,
        };
        let freed = fs.store.begin(stream, credits).and_then(|mut work| {
            work.use_emergency_space();
            free_block(&mut work, block)?;
            work.commit();
            Ok(())
        });
        fs.slots.end_freeing(block, freed.is_err().then_some(last));
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
mod tests;
