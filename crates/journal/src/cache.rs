//! The block cache: for every block in memory its *current* image (all operations
//! committed in memory) and its *committed* image (acknowledged records only). The two
//! share memory while they are equal; the first patch copies.
//!
//! Invariants: an entry with holds is never evicted; holds are one for each operation that
//! changes the block, from its first edit until its transaction is acknowledged, and one while
//! the block has patches in the log past the durable tail. So an entry without holds equals its
//! home block and may be dropped, and whose holds are all of one transaction (and the log), no
//! other has a part in its current image. The seal's bytes are void in memory.
//!
//! A block is read from its home once at a time (`Slot::Loading`), and the bytes read count only
//! if nothing happened to the slot meanwhile: no reader can install bytes that a checkpoint or a
//! new life of the block has overtaken (corner 8). No lock is held while
//! the device reads (corner 9).

use crate::core::BlockMap;
use crate::in_memory::may_wait;
use crate::patch::Edit;
use crate::sync::{Condvar, Mutex, wait};
use crate::{Error, Kind, Result};
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};

const SHARDS: usize = 32;

pub(crate) struct Entry {
    pub(crate) current: Arc<Block>,
    pub(crate) committed: Arc<Block>,
    pub(crate) kind: Kind,
    pub(crate) holds: u32,
    referenced: bool,
    /// Whether it is in the queue of candidates for eviction.
    queued: bool,
}

impl Entry {
    pub(crate) fn unhold(&mut self, at: BlockNo, count: u32) {
        debug_assert!(
            self.holds >= count,
            "{at:?}: {} holds, {count} undone",
            self.holds
        );
        self.holds = self.holds.saturating_sub(count);
    }
}

enum Slot {
    /// Being read from its home; the number distinguishes this reader from later ones.
    Loading(u64),
    Ready(Entry),
}

/// Result of [`Cache::look`].
pub(crate) enum Look {
    /// The current image.
    Here(Arc<Block>),
    /// The caller is to read it, and to tell ([`Cache::loaded`]).
    Load(u64),
    /// Another thread reads it.
    Elsewhere,
}

#[derive(Default)]
struct Shard {
    slots: BlockMap<Slot>,
    /// Loads so far.
    loads: u64,
    /// Second-chance queue of candidates for eviction: every entry without holds, and names that
    /// are stale or held meanwhile.
    clock: VecDeque<u64>,
}

impl Shard {
    /// Makes a block without holds a candidate for eviction. Names of blocks that were forgotten
    /// stay in the queue until there are as many of them as blocks.
    fn offer(&mut self, at: BlockNo) {
        let Some(Slot::Ready(entry)) = self.slots.get_mut(&at.0) else {
            return;
        };
        if entry.holds > 0 || entry.queued {
            return;
        }
        entry.queued = true;
        self.clock.push_back(at.0);
        if self.clock.len() > 2 * self.slots.len() + 64 {
            let mut seen = HashSet::with_capacity(self.slots.len());
            let slots = &self.slots;
            self.clock.retain(|at| {
                matches!(slots.get(at), Some(Slot::Ready(entry)) if entry.queued)
                    && seen.insert(*at)
            });
        }
    }
}

pub(crate) struct Cache {
    shards: Vec<(Mutex<Shard>, Condvar)>,
    shard_blocks_max: usize,
}

impl Cache {
    pub(crate) fn new(blocks_max: usize) -> Cache {
        Cache {
            shards: (0..SHARDS)
                .map(|_| (Mutex::new(Shard::default()), Condvar::new()))
                .collect(),
            shard_blocks_max: (blocks_max / SHARDS).max(8),
        }
    }

    fn shard(&self, at: BlockNo) -> &(Mutex<Shard>, Condvar) {
        &self.shards[(at.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as usize % SHARDS]
    }

    /// The current image; `load` reads it from its home if it is not in memory.
    pub(crate) fn get(
        &self,
        at: BlockNo,
        kind: Kind,
        hold: bool,
        load: impl Fn(&mut Block) -> Result<()>,
    ) -> Result<Arc<Block>> {
        let (lock, loaded) = self.shard(at);
        let mut shard = lock.lock();
        loop {
            match shard.slots.get_mut(&at.0) {
                Some(Slot::Ready(entry)) => {
                    if entry.kind != kind {
                        return Err(Error::WrongKind { at, kind });
                    }
                    entry.referenced = true;
                    entry.holds += u32::from(hold);
                    return Ok(Arc::clone(&entry.current));
                }
                Some(Slot::Loading(_)) => {
                    may_wait()?;
                    shard = wait(loaded, shard);
                    continue;
                }
                None => may_wait()?,
            }
            shard.loads += 1;
            let load_no = shard.loads;
            shard.slots.insert(at.0, Slot::Loading(load_no));
            drop(shard);
            let mut image = Arc::new([0u8; BLOCK_SIZE]);
            let result = load(Arc::make_mut(&mut image));
            shard = lock.lock();
            loaded.notify_all();
            if !matches!(shard.slots.get(&at.0), Some(Slot::Loading(no)) if *no == load_no) {
                // A new life of the block began meanwhile, and may have left memory again:
                // the bytes read are of no life any more.
                continue;
            }
            if let Err(error) = result {
                shard.slots.remove(&at.0);
                return Err(error);
            }
            let entry = Entry {
                current: Arc::clone(&image),
                committed: Arc::clone(&image),
                kind,
                holds: u32::from(hold),
                referenced: true,
                queued: false,
            };
            shard.slots.insert(at.0, Slot::Ready(entry));
            shard.offer(at);
            self.evict(&mut shard);
            return Ok(image);
        }
    }

    /// Looks for a block that the caller is going to read from its home otherwise, together with its neighbours.
    pub(crate) fn look(&self, at: BlockNo) -> Look {
        let mut shard = self.shard(at).0.lock();
        match shard.slots.get_mut(&at.0) {
            Some(Slot::Ready(entry)) => {
                entry.referenced = true;
                return Look::Here(Arc::clone(&entry.current));
            }
            Some(Slot::Loading(_)) => return Look::Elsewhere,
            None => {}
        }
        shard.loads += 1;
        let load_no = shard.loads;
        shard.slots.insert(at.0, Slot::Loading(load_no));
        Look::Load(load_no)
    }

    /// Ends the load of [`Look::Load`]: with the bytes read, unless the block has begun a new life meanwhile. It is the
    /// first to go again, before blocks that were used twice.
    pub(crate) fn loaded(&self, at: BlockNo, load_no: u64, kind: Kind, image: Option<&Block>) {
        let (lock, loaded) = self.shard(at);
        let mut shard = lock.lock();
        loaded.notify_all();
        if !matches!(shard.slots.get(&at.0), Some(Slot::Loading(no)) if *no == load_no) {
            return;
        }
        let Some(image) = image else {
            shard.slots.remove(&at.0);
            return;
        };
        let image = Arc::new(*image);
        let entry = Entry {
            current: Arc::clone(&image),
            committed: image,
            kind,
            holds: 0,
            referenced: false,
            queued: false,
        };
        shard.slots.insert(at.0, Slot::Ready(entry));
        shard.offer(at);
        self.evict(&mut shard);
    }

    /// The current image, if it is in memory.
    pub(crate) fn peek(&self, at: BlockNo) -> Option<Arc<Block>> {
        match self.shard(at).0.lock().slots.get(&at.0) {
            Some(Slot::Ready(entry)) => Some(Arc::clone(&entry.current)),
            _ => None,
        }
    }

    /// Begins a new life of a block: its old bytes are void. Holds it once more; keeps holds
    /// that are still to be undone.
    pub(crate) fn begin_life(&self, at: BlockNo, kind: Kind, image: Arc<Block>) {
        let (lock, loaded) = self.shard(at);
        let mut shard = lock.lock();
        let mut entry = Entry {
            current: Arc::clone(&image),
            committed: image,
            kind,
            holds: 1,
            referenced: true,
            queued: false,
        };
        match shard.slots.entry(at.0) {
            Occupied(mut slot) => {
                match slot.get() {
                    Slot::Ready(old) => {
                        entry.holds += old.holds;
                        entry.queued = old.queued;
                    }
                    // Its readers wait, and look again.
                    Slot::Loading(_) => loaded.notify_all(),
                }
                slot.insert(Slot::Ready(entry));
            }
            Vacant(slot) => drop(slot.insert(Slot::Ready(entry))),
        }
        self.evict(&mut shard);
    }

    /// Changes an entry in place; `None` if the block is not in memory.
    pub(crate) fn with<T>(&self, at: BlockNo, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut shard = self.shard(at).0.lock();
        let Some(Slot::Ready(entry)) = shard.slots.get_mut(&at.0) else {
            return None;
        };
        let result = change(entry);
        if entry.holds == 0 && !entry.queued {
            shard.offer(at);
        }
        Some(result)
    }

    /// Carries an operation's edits out on the current image, which the operation holds.
    pub(crate) fn edit(&self, at: BlockNo, edits: &[Edit], bytes: &[u8]) {
        let edited = self.with(at, |entry| {
            let image = Arc::make_mut(&mut entry.current);
            edits.iter().for_each(|edit| edit.apply(bytes, image));
        });
        debug_assert!(edited.is_some(), "{at:?} left the cache under an operation");
    }

    pub(crate) fn hold(&self, at: BlockNo) {
        let held = self.with(at, |entry| entry.holds += 1);
        debug_assert!(held.is_some(), "{at:?} is held and not in memory");
    }

    pub(crate) fn unhold(&self, at: BlockNo, count: u32) {
        self.with(at, |entry| entry.unhold(at, count));
    }

    /// Forgets a block that was freed, unless it is still held.
    pub(crate) fn forget(&self, at: BlockNo) {
        let mut shard = self.shard(at).0.lock();
        if matches!(shard.slots.get(&at.0), Some(Slot::Ready(entry)) if entry.holds == 0) {
            shard.slots.remove(&at.0);
        }
    }

    /// Drops entries until no more than the budget are there without holds. A held entry leaves the
    /// queue and comes back when it is held no more: no search looks at it meanwhile, and the entries
    /// that the log holds, which the log's size bounds, leave the others their room.
    fn evict(&self, shard: &mut Shard) {
        // Twice around at most: once to find that all were used, once to drop.
        let mut tries = (2 * shard.clock.len()).min(64);
        while shard.clock.len() > self.shard_blocks_max && tries > 0 {
            tries -= 1;
            let Some(at) = shard.clock.pop_front() else {
                return;
            };
            match shard.slots.get_mut(&at) {
                Some(Slot::Ready(entry)) if entry.holds > 0 => entry.queued = false,
                Some(Slot::Ready(entry)) if entry.referenced => {
                    entry.referenced = false;
                    shard.clock.push_back(at);
                }
                Some(Slot::Ready(_)) => {
                    shard.slots.remove(&at);
                }
                Some(Slot::Loading(_)) | None => {}
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const BLOCKS: u64 = 400;

    #[derive(Clone, Debug)]
    enum Step {
        Get(u64),
        Hold(u64),
        Unhold(u64),
        Begin(u64),
        Forget(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let at = 0..BLOCKS;
        prop::collection::vec(
            prop_oneof![
                at.clone().prop_map(Step::Get),
                at.clone().prop_map(Step::Hold),
                at.clone().prop_map(Step::Unhold),
                at.clone().prop_map(Step::Begin),
                at.prop_map(Step::Forget),
            ],
            1..600,
        )
    }

    proptest! {
        /// Held blocks stay beyond the budget; one that is held no more can be dropped again.
        #[test]
        fn held_blocks_stay_and_the_rest_fits(steps in steps()) {
            let cache = Cache::new(0);
            let mut held = vec![0u32; BLOCKS as usize];
            for step in steps {
                match step {
                    Step::Get(at) => {
                        cache.get(BlockNo(at), Kind::Data, false, |_| Ok(())).unwrap();
                    }
                    Step::Hold(at) => {
                        cache.get(BlockNo(at), Kind::Data, true, |_| Ok(())).unwrap();
                        held[at as usize] += 1;
                    }
                    Step::Unhold(at) if held[at as usize] > 0 => {
                        cache.unhold(BlockNo(at), 1);
                        held[at as usize] -= 1;
                    }
                    Step::Unhold(_) => {}
                    Step::Begin(at) => {
                        cache.begin_life(BlockNo(at), Kind::Data, Arc::new([0; BLOCK_SIZE]));
                        held[at as usize] += 1;
                    }
                    Step::Forget(at) => cache.forget(BlockNo(at)),
                }
                for (at, holds) in held.iter().enumerate() {
                    prop_assert!(*holds == 0 || cache.peek(BlockNo(at as u64)).is_some());
                }
            }
            for (at, holds) in held.iter().enumerate() {
                cache.unhold(BlockNo(at as u64), *holds);
            }
            // A few more blocks come, and those over the budget go.
            for at in BLOCKS..20 * BLOCKS {
                cache.get(BlockNo(at), Kind::Data, false, |_| Ok(())).unwrap();
            }
            for (shard, _) in &cache.shards {
                let shard = shard.lock();
                prop_assert!(shard.slots.len() <= cache.shard_blocks_max);
                prop_assert!(shard.clock.len() <= 2 * shard.slots.len() + 64);
            }
        }
    }
}
