//! Free space: which blocks may be allocated now, and how many are promised.
//!
//! A block is *available* when its bit on disk is clear, no open operation has claimed it,
//! and it is not in quarantine (freed, but its old content may still be needed: corners 1
//! to 5). Claiming clears the available bit at once; giving up an operation sets it again;
//! freeing does not, until the journal names the run in [`Allocator::released`].
//!
//! Delayed pages *reserve* blocks when they are written, so that allocating them at commit
//! cannot fail (corner 24). A few blocks are kept for operations that free space.
//!
//! Available maps are built from the current bitmap blocks: at mount for counting, and kept
//! up to a bound; the others are loaded when their group is first used. Invariant: a group
//! is loaded before any of its bits changes.

use crate::error::{damaged, from_journal};
use crate::layout::{GROUP_BLOCKS, GROUP_META};
use crate::superblock::Volume;
use std::sync::{Mutex, MutexGuard, PoisonError};
use steadfast_block::{Block, BlockNo};
use steadfast_journal::{Journal, Kind};
use steadfast_vfs::{Errno, Result};

/// Words of a map.
const WORDS: usize = (GROUP_BLOCKS / 64) as usize;
/// Groups whose maps stay in memory from mount on (4 KiB each).
const LOADED_AT_MOUNT: usize = 2048;
/// Most blocks kept for operations that free space.
const EMERGENCY_MAX: u64 = 64;

const _: () = assert!(WORDS as u64 * 64 == GROUP_BLOCKS);

/// What an allocation is for: how deep it may dig.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Ordinary changes: not what is reserved, not the emergency space.
    Normal,
    /// Changes on the way to freeing space: the emergency space too.
    Freeing,
    /// Delayed pages, reserved before: everything.
    Delayed,
}

/// Numbers for `statfs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Space {
    /// Blocks that an ordinary operation could have, those in quarantine included.
    pub(crate) free: u64,
    /// Blocks reserved for delayed pages.
    pub(crate) reserved: u64,
}

/// Free space of a volume. See the module's header.
pub(crate) struct Allocator {
    state: Mutex<State>,
}

struct State {
    groups: Vec<Group>,
    /// Sum of the groups' available blocks.
    available: u64,
    /// Promised to delayed pages.
    reserved: u64,
    /// Kept for operations that free space.
    emergency: u64,
    /// Freed, not yet released.
    quarantined: u64,
}

struct Group {
    available: u32,
    map: Option<Box<[u64; WORDS]>>,
    /// Longest run that can be there is shorter than this (0: unknown).
    run_below: u32,
}

/// Blocks reserved for delayed pages; given back on drop unless kept.
pub(crate) struct Reservation<'a> {
    alloc: &'a Allocator,
    blocks: u64,
}

impl Reservation<'_> {
    /// The blocks stay reserved; whoever keeps the number gives them back with [`Allocator::unreserve`].
    pub(crate) fn keep(mut self) -> u64 {
        std::mem::take(&mut self.blocks)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.alloc.unreserve(self.blocks);
    }
}

impl Allocator {
    /// Reads every block bitmap. O(groups) reads.
    ///
    /// # Errors
    /// A bitmap cannot be read.
    pub(crate) fn load(journal: &Journal, volume: &Volume) -> Result<Allocator> {
        let mut groups = Vec::with_capacity(volume.groups as usize);
        let mut available = 0;
        for group in 0..volume.groups {
            let map = available_map(journal, volume, group)?;
            let count = map.iter().map(|word| word.count_ones()).sum::<u32>();
            available += u64::from(count);
            let keep = groups.len() < LOADED_AT_MOUNT;
            groups.push(Group {
                available: count,
                map: keep.then_some(map),
                run_below: 0,
            });
        }
        let emergency = (volume.data_blocks() / 64).min(EMERGENCY_MAX);
        Ok(Allocator {
            state: Mutex::new(State {
                groups,
                available,
                reserved: 0,
                emergency,
                quarantined: 0,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Free and reserved blocks.
    pub(crate) fn space(&self) -> Space {
        let state = self.lock();
        let free = (state.available + state.quarantined)
            .saturating_sub(state.reserved)
            .saturating_sub(state.emergency);
        Space {
            free,
            reserved: state.reserved,
        }
    }

    /// Blocks that an ordinary operation could have at once.
    pub(crate) fn allocatable(&self) -> u64 {
        self.lock().limit(Purpose::Normal)
    }

    /// Reserves blocks for delayed pages.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn reserve(&self, blocks: u64) -> Result<Reservation<'_>> {
        let mut state = self.lock();
        if blocks > 0 && state.limit(Purpose::Normal) < blocks {
            return Err(Errno::NoSpc.into());
        }
        state.reserved += blocks;
        Ok(Reservation {
            alloc: self,
            blocks,
        })
    }

    /// Gives reserved blocks back.
    pub(crate) fn unreserve(&self, blocks: u64) {
        let mut state = self.lock();
        debug_assert!(state.reserved >= blocks, "more given back than reserved");
        state.reserved = state.reserved.saturating_sub(blocks);
    }

    /// Loads the map of the group that `at` lies in.
    pub(crate) fn ensure_loaded(
        &self,
        journal: &Journal,
        volume: &Volume,
        at: BlockNo,
    ) -> Result<()> {
        match volume.group_of(at) {
            Some(group) => self.load_group(journal, volume, group as usize).map(drop),
            None => Err(damaged(format!("block {at} lies outside of all groups"))),
        }
    }

    /// Locks the state with `group` loaded. The device is read without the lock.
    fn load_group(
        &self,
        journal: &Journal,
        volume: &Volume,
        group: usize,
    ) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.groups[group].map.is_some() {
            return Ok(state);
        }
        drop(state);
        let map = available_map(journal, volume, group as u64)?;
        let mut state = self.lock();
        let slot = &mut state.groups[group];
        // Whoever changes bits loads first: if it is still absent, nothing changed meanwhile.
        if slot.map.is_none() {
            slot.available = map.iter().map(|word| word.count_ones()).sum();
            slot.map = Some(map);
        }
        Ok(state)
    }

    /// Claims between one and `max` consecutive available blocks of one group, near `goal`:
    /// from `goal` itself if it is available, else the first run of `max` blocks, else the
    /// longest of its group, else the same in the following groups.
    ///
    /// # Errors
    /// ENOSPC when `purpose` may not have a single block.
    pub(crate) fn claim(
        &self,
        journal: &Journal,
        volume: &Volume,
        goal: BlockNo,
        max: u64,
        purpose: Purpose,
    ) -> Result<(BlockNo, u64)> {
        let start = volume.group_of(goal).unwrap_or(0);
        // Groups without a run worth taking are passed over in the first round.
        for wanted in [max.clamp(1, 64), 1] {
            for step in 0..volume.groups {
                let group = ((start + step) % volume.groups) as usize;
                {
                    let state = self.lock();
                    if state.limit(purpose) == 0 {
                        return Err(Errno::NoSpc.into());
                    }
                    let have = &state.groups[group];
                    if u64::from(have.available) < wanted
                        || (have.run_below > 0 && u64::from(have.run_below) <= wanted)
                    {
                        continue;
                    }
                }
                let mut state = self.load_group(journal, volume, group)?;
                let max = max.min(state.limit(purpose));
                if max == 0 {
                    return Err(Errno::NoSpc.into());
                }
                let first = volume.group_start(group as u64);
                let hint = if step == 0 {
                    goal.0.saturating_sub(first.0) as usize
                } else {
                    0
                };
                if let Some((index, count)) = state.claim_in(group, hint, max, wanted.min(max)) {
                    return Ok((first.offset(index as u64), count as u64));
                }
            }
        }
        Err(Errno::NoSpc.into())
    }

    /// Makes claimed blocks available again: the operation was given up.
    pub(crate) fn unclaim(&self, volume: &Volume, at: BlockNo, count: u64) {
        self.lock().make_available(volume, at, count);
    }

    /// An operation that frees `count` blocks is about to commit: they enter quarantine.
    pub(crate) fn freed(&self, count: u64) {
        self.lock().quarantined += count;
    }

    /// These runs left the quarantine.
    pub(crate) fn released(&self, volume: &Volume, runs: &[(BlockNo, u64)]) {
        let mut state = self.lock();
        for &(at, count) in runs {
            let made = state.make_available(volume, at, count);
            state.quarantined = state.quarantined.saturating_sub(made);
        }
    }
}

impl State {
    /// Blocks that `purpose` may still have.
    fn limit(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Normal => self
                .available
                .saturating_sub(self.reserved + self.emergency),
            Purpose::Freeing => self.available.saturating_sub(self.reserved),
            Purpose::Delayed => self.available,
        }
    }

    /// Takes up to `max` blocks of a loaded group, if it has a run of at least `wanted`
    /// (or, at `hint`, any).
    fn claim_in(
        &mut self,
        group: usize,
        hint: usize,
        max: u64,
        wanted: u64,
    ) -> Option<(usize, usize)> {
        let max = max.min(GROUP_BLOCKS) as usize;
        let slot = &mut self.groups[group];
        let map = slot.map.as_deref_mut()?;
        let at_hint = run_at(map, hint, max);
        let (index, count) = if at_hint > 0 && hint > 0 {
            (hint, at_hint)
        } else {
            let found = longest(map, hint, max).filter(|&(_, count)| count as u64 >= wanted);
            let Some(found) = found else {
                slot.run_below = wanted as u32;
                return None;
            };
            found
        };
        set(map, index, count, false);
        slot.available -= count as u32;
        self.available -= count as u64;
        Some((index, count))
    }

    /// Sets available bits; returns how many were not set before.
    fn make_available(&mut self, volume: &Volume, at: BlockNo, count: u64) -> u64 {
        if !volume.run_is_data(at, count) {
            return 0;
        }
        let Some(group) = volume.group_of(at) else {
            return 0;
        };
        let index = (at.0 - volume.group_start(group).0) as usize;
        let slot = &mut self.groups[group as usize];
        slot.run_below = 0;
        // Never so: what was claimed or freed was loaded before. It will find the bits clear on disk.
        let Some(map) = slot.map.as_deref_mut() else {
            return 0;
        };
        let made = set(map, index, count as usize, true);
        slot.available += made as u32;
        self.available += made as u64;
        made as u64
    }
}

/// The bitmap block and the bit in it that say whether a block is in use.
pub(crate) fn bit_of(volume: &Volume, at: BlockNo) -> Result<(BlockNo, usize)> {
    let Some(group) = volume.group_of(at) else {
        return Err(damaged(format!("block {at} lies outside of all groups")));
    };
    let start = volume.group_start(group);
    Ok((start, (at.0 - start.0) as usize))
}

/// Whether a bit of a bitmap block is set.
pub(crate) fn is_used(bitmap: &Block, bit: usize) -> bool {
    bitmap[bit / 8] >> (bit % 8) & 1 == 1
}

/// The available blocks of a group, from its current bitmap: bit set = available.
fn available_map(journal: &Journal, volume: &Volume, group: u64) -> Result<Box<[u64; WORDS]>> {
    let at = volume.group_start(group);
    let block = journal.read(at, Kind::Meta).map_err(from_journal)?;
    Ok(invert(&block, volume.group_len(group) as usize))
}

/// Turns a bitmap of used blocks into one of available blocks. The group's own bitmaps and
/// everything behind its end are never available, whatever the disk says.
fn invert(block: &Block, len: usize) -> Box<[u64; WORDS]> {
    let mut map = Box::new([0u64; WORDS]);
    for (index, word) in map.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&block[index * 8..index * 8 + 8]);
        *word = !u64::from_le_bytes(bytes);
    }
    set(&mut map, 0, GROUP_META as usize, false);
    set(&mut map, len, WORDS * 64 - len, false);
    map
}

fn get(map: &[u64; WORDS], index: usize) -> bool {
    map[index / 64] >> (index % 64) & 1 == 1
}

/// Sets `count` bits from `index` on; returns how many changed.
fn set(map: &mut [u64; WORDS], index: usize, count: usize, value: bool) -> usize {
    let mut changed = 0;
    let (mut at, end) = (index, index + count);
    while at < end {
        let bits = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - bits)) << (at % 64);
        let word = &mut map[at / 64];
        let old = *word;
        *word = if value { old | mask } else { old & !mask };
        changed += (old ^ *word).count_ones() as usize;
        at += bits;
    }
    changed
}

/// First index from `from` on whose bit is `value`; the number of bits if there is none.
fn next(map: &[u64; WORDS], from: usize, value: bool) -> usize {
    let mut at = from;
    while at < WORDS * 64 {
        let word = if value { map[at / 64] } else { !map[at / 64] } >> (at % 64);
        if word != 0 {
            return at + word.trailing_zeros() as usize;
        }
        at = (at / 64 + 1) * 64;
    }
    WORDS * 64
}

/// Length of the available run that starts at `index`, at most `max`.
fn run_at(map: &[u64; WORDS], index: usize, max: usize) -> usize {
    if index >= WORDS * 64 || !get(map, index) {
        return 0;
    }
    (next(map, index, false) - index).min(max)
}

/// The first run of `max` blocks from `hint` on (wrapping around), else the longest there is.
fn longest(map: &[u64; WORDS], hint: usize, max: usize) -> Option<(usize, usize)> {
    let hint = hint.min(WORDS * 64);
    let mut best: Option<(usize, usize)> = None;
    for (from, end) in [(hint, WORDS * 64), (0, hint)] {
        let mut at = from;
        loop {
            let start = next(map, at, true);
            if start >= end {
                break;
            }
            let stop = next(map, start, false);
            let count = (stop - start).min(max);
            if count == max {
                return Some((start, count));
            }
            if best.is_none_or(|(_, length)| count > length) {
                best = Some((start, count));
            }
            at = stop;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::bare;
    use crate::work::Work;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn corner_30_no_block_is_allocated_twice_and_aborts_give_back(
            steps in prop::collection::vec((0u64..400, 1u64..40, 0u8..8), 1..80)
        ) {
            let bare = bare(512);
            let (alloc, volume) = (&bare.store.alloc, &bare.store.volume);
            let before = alloc.space().free;
            let mut owned: BTreeSet<u64> = BTreeSet::new();
            for (at, count, kind) in steps {
                let mut work = bare.begin(4096);
                match kind {
                    0..=3 => {
                        let goal = volume.group_start(0).offset(at);
                        match work.allocate_run(goal, count) {
                            Ok((first, got)) => {
                                prop_assert!(got >= 1 && got <= count);
                                prop_assert!(volume.run_is_data(first, got));
                                prop_assert!((first.0..first.0 + got).all(|b| !owned.contains(&b)));
                                if kind == 0 {
                                    drop(work);
                                } else {
                                    owned.extend(first.0..first.0 + got);
                                    work.commit();
                                }
                            }
                            Err(error) => {
                                prop_assert!(error == Errno::NoSpc);
                                drop(work);
                            }
                        }
                    }
                    4..=6 => {
                        let mut run = owned.range(at..).copied();
                        let Some(first) = run.next() else { continue };
                        let got = 1 + run
                            .enumerate()
                            .take_while(|(i, b)| *b == first + 1 + *i as u64)
                            .count() as u64;
                        let got = got.min(count);
                        work.free_run(BlockNo(first), got).unwrap();
                        if kind == 4 {
                            drop(work);
                        } else {
                            work.commit();
                            (first..first + got).for_each(|b| {
                                owned.remove(&b);
                            });
                        }
                    }
                    _ => {
                        drop(work);
                        bare.store.journal.sync_all().unwrap();
                    }
                }
                prop_assert_eq!(alloc.space().free + owned.len() as u64, before);
            }
            // What the bitmaps on disk say is what was counted.
            bare.store.journal.reclaim().unwrap();
            let again = Allocator::load(&bare.store.journal, volume).unwrap();
            prop_assert_eq!(again.space().free, alloc.space().free);
        }
    }

    #[test]
    fn corner_01_a_freed_block_is_not_allocated_before_the_free_is_durable() {
        let bare = bare(512);
        let take = |work: &mut Work<'_>| {
            let mut taken = Vec::new();
            while let Ok((at, count)) = work.allocate_run(BlockNo(0), 1000) {
                taken.push((at, count));
            }
            taken
        };
        let mut work = bare.begin(20_000);
        let taken = take(&mut work);
        work.commit();
        let mut work = bare.begin(20_000);
        let (at, count) = taken[0];
        work.free_run(at, count).unwrap();
        work.commit();
        assert!(take(&mut bare.begin(4096)).is_empty());
        assert!(bare.store.journal.reclaim().unwrap());
        assert_eq!(
            take(&mut bare.begin(4096))
                .iter()
                .map(|run| run.1)
                .sum::<u64>(),
            count
        );
    }

    #[test]
    fn corner_24_what_is_reserved_is_left_to_delayed_pages() {
        let bare = bare(512);
        let alloc = &bare.store.alloc;
        let free = alloc.space().free;
        let reservation = alloc.reserve(free).unwrap();
        assert!(bare.begin(4096).allocate_block(BlockNo(0)).unwrap_err() == Errno::NoSpc);
        assert!(alloc.reserve(1).is_err_and(|error| error == Errno::NoSpc));
        let mut freeing = bare.begin(4096);
        freeing.use_emergency_space();
        assert!(freeing.allocate_block(BlockNo(0)).is_ok());
        drop(freeing);
        drop(reservation);
        assert_eq!(alloc.space().free, free);
        assert!(bare.begin(4096).allocate_block(BlockNo(0)).is_ok());
    }

    #[test]
    fn runs_are_found_across_words_and_from_the_goal_on() {
        let mut map = [0u64; WORDS];
        set(&mut map, 60, 10, true);
        set(&mut map, 200, 300, true);
        assert_eq!(longest(&map, 0, 8), Some((60, 8)));
        assert_eq!(longest(&map, 0, 64), Some((200, 64)));
        assert_eq!(longest(&map, 65, 5), Some((65, 5)));
        assert_eq!(longest(&map, 490, 1000), Some((200, 300)));
        assert_eq!(run_at(&map, 450, 100), 50);
        assert_eq!(run_at(&map, 500, 100), 0);
        set(&mut map, 0, WORDS * 64, false);
        assert_eq!(longest(&map, 7, 1), None);
    }
}
