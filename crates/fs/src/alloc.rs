//! Free space: blocks that may be allocated now, and blocks that are promised.
//!
//! A block is *available* when its bit on disk is clear, no open operation has claimed it,
//! and it is not in quarantine (freed, but its old content may still be needed: corners 1
//! to 5). Claiming clears the available bit at once; giving up an operation sets it again;
//! freeing does not, until the journal names the run in [`Allocator::released`].
//!
//! Delayed pages *reserve* blocks when they are written, so that allocating them at commit
//! cannot fail (corner 24). A few blocks are kept for operations that free space.
//!
//! Nothing is read before it is needed, so that a mount costs the same for every size of volume. A
//! group is *counted* when the number of its available blocks is known, and *loaded* when its
//! map is in memory, where it stays (4 KiB). Invariant: a group is loaded before any of its bits
//! changes; so the bitmap of one that is not is at rest, and may be read at any time. The sum
//! of the counted groups is less than all free blocks: an operation that finds too few counts more groups.

use crate::error::{damaged, from_journal};
use crate::layout::{GROUP_BLOCKS, GROUP_META};
use crate::superblock::Volume;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use steadfast_block::{Block, BlockNo};
use steadfast_journal::{Journal, Kind};
use steadfast_vfs::{Errno, Error, Result};

/// Words of a map.
const WORDS: usize = (GROUP_BLOCKS / 64) as usize;
/// Groups that are counted at a time.
const COUNTED_AT_ONCE: usize = 256;
/// Instead of a number: the group is not counted.
const UNKNOWN: u32 = u32::MAX;
/// Most blocks kept for operations that free space.
const EMERGENCY_MAX: u64 = 64;

const _: () = assert!(WORDS as u64 * 64 == GROUP_BLOCKS);

/// Purpose of an allocation: it decides which reserves may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Ordinary changes: neither reserved blocks nor the emergency space.
    Normal,
    /// Nodes for the tree of a file whose preallocated blocks are written: half of the emergency space too.
    Splitting,
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
    journal: Journal,
    volume: Volume,
    state: Mutex<State>,
    /// A run is no longer held for a trim.
    trimmed: Condvar,
}

struct State {
    groups: Vec<Group>,
    /// Available blocks of each group, or [`UNKNOWN`].
    available_in: Vec<u32>,
    /// Groups that are not counted.
    uncounted: usize,
    /// All groups before this one are counted.
    count_from: usize,
    /// Sum of the counted groups' available blocks.
    available: u64,
    /// Promised to delayed pages.
    reserved: u64,
    /// Blocks kept for operations that free space.
    emergency: u64,
    /// Freed, not yet released.
    quarantined: u64,
    /// The run that is held for a trim: its bits are clear, but it counts as available, so that no promise is broken.
    /// An allocation that finds nothing else waits for it.
    trimming: Option<(BlockNo, u64)>,
    /// Threads that wait for it.
    waiting: u32,
    /// Runs that were held so and are no more.
    trims: u64,
    /// Groups that could not be read: looked at again when space runs out. And why.
    unread: Vec<usize>,
    unread_why: Option<Error>,
    /// Reason why a group cannot be used, until it is reported.
    unusable: Option<Error>,
}

#[derive(Default)]
struct Group {
    map: Option<Box<[u64; WORDS]>>,
    /// Longest run that can be there is shorter than this (0: unknown).
    run_below: u32,
}

/// Place in a group from which a trim looks for available runs.
pub(crate) struct TrimLook {
    /// First block in the group.
    pub(crate) from: usize,
    /// Block after the last one.
    pub(crate) to: usize,
    /// Shorter runs are passed over.
    pub(crate) min: u64,
    /// Longer runs are taken in pieces.
    pub(crate) max: u64,
    /// `from` goes on with a run of which a piece was taken.
    pub(crate) cut: bool,
}

/// Blocks reserved for delayed pages; given back on drop unless kept.
pub(crate) struct Reservation<'a> {
    alloc: &'a Allocator,
    blocks: u64,
}

impl Reservation<'_> {
    /// The blocks stay reserved; the keeper of the number gives them back with [`Allocator::unreserve`].
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
    /// Knows nothing yet, and reads nothing.
    pub(crate) fn new(journal: Journal, volume: Volume) -> Allocator {
        let groups = usize::try_from(volume.groups).unwrap_or(usize::MAX);
        let emergency = (volume.data_blocks() / 64).min(EMERGENCY_MAX);
        Allocator {
            journal,
            volume,
            state: Mutex::new(State {
                groups: std::iter::repeat_with(Group::default)
                    .take(groups)
                    .collect(),
                available_in: vec![UNKNOWN; groups],
                uncounted: groups,
                count_from: 0,
                available: 0,
                reserved: 0,
                emergency,
                quarantined: 0,
                trimming: None,
                waiting: 0,
                trims: 0,
                unread: Vec::new(),
                unread_why: None,
                unusable: None,
            }),
            trimmed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts groups until `purpose` may have `blocks`, or until all groups are counted, and locks the state.
    fn counted(&self, purpose: Purpose, blocks: u64) -> MutexGuard<'_, State> {
        let mut again = true;
        loop {
            let mut state = self.lock();
            if state.limit(purpose) >= blocks {
                return state;
            }
            let mut groups = state.next_uncounted();
            if groups.is_empty() {
                // A read that failed once may not fail for ever.
                if !std::mem::take(&mut again) || state.unread.is_empty() {
                    return state;
                }
                groups = state.forget_unread();
            }
            drop(state);
            self.count(&groups);
        }
    }

    /// Counts these groups: reads their bitmaps, all at once.
    fn count(&self, groups: &[usize]) {
        let first = |group: &usize| self.volume.group_start(*group as u64);
        let bitmaps: Vec<BlockNo> = groups.iter().map(first).collect();
        let found = self.journal.read_scattered(&bitmaps, Kind::Meta);
        let counts: Vec<Result<u32>> = (groups.iter().zip(found))
            .map(|(group, block)| {
                let len = self.volume.group_len(*group as u64) as usize;
                let map = invert(&*block.map_err(from_journal)?, len);
                Ok(map.iter().map(|word| word.count_ones()).sum())
            })
            .collect();
        let mut state = self.lock();
        for (group, count) in groups.iter().zip(counts) {
            // If it was counted meanwhile, its bits may have changed as well.
            if state.available_in[*group] == UNKNOWN {
                match count {
                    Ok(count) => state.set_available(*group, count),
                    Err(error) => state.give_up(*group, error),
                }
            }
        }
    }

    /// Free and reserved blocks. The first call reads every block bitmap.
    pub(crate) fn space(&self) -> Space {
        let state = self.counted(Purpose::Normal, u64::MAX);
        let free = (state.available + state.quarantined)
            .saturating_sub(state.reserved)
            .saturating_sub(state.emergency);
        Space {
            free,
            reserved: state.reserved,
        }
    }

    /// Whether `blocks` blocks are free, those in quarantine included. Counts no more groups than it must.
    pub(crate) fn has_free(&self, blocks: u64) -> bool {
        let state = self.counted(Purpose::Normal, blocks);
        let free = (state.available + state.quarantined)
            .saturating_sub(state.reserved)
            .saturating_sub(state.emergency);
        free >= blocks
    }

    /// Blocks that an ordinary operation could have at once.
    pub(crate) fn allocatable(&self) -> u64 {
        self.counted(Purpose::Normal, u64::MAX)
            .limit(Purpose::Normal)
    }

    /// Reason why a group cannot be used, if there was one; returned once.
    pub(crate) fn take_unusable(&self) -> Option<Error> {
        self.lock().unusable.take()
    }

    /// Reserves blocks for delayed pages.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn reserve(&self, blocks: u64) -> Result<Reservation<'_>> {
        self.reserve_for(Purpose::Normal, blocks)
    }

    /// The same for a purpose.
    pub(crate) fn reserve_for(&self, purpose: Purpose, blocks: u64) -> Result<Reservation<'_>> {
        let mut state = self.counted(purpose, blocks);
        if blocks > 0 && state.limit(purpose) < blocks {
            return Err(state.no_space());
        }
        state.reserved += blocks;
        Ok(Reservation {
            alloc: self,
            blocks,
        })
    }

    /// The same, if at least `others` blocks remain for other operations.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn reserve_sparing(&self, blocks: u64, others: u64) -> Result<Reservation<'_>> {
        let mut state = self.counted(Purpose::Normal, blocks + others);
        if state.limit(Purpose::Normal) < blocks + others {
            return Err(state.no_space());
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
    pub(crate) fn ensure_loaded(&self, at: BlockNo) -> Result<()> {
        match self.volume.group_of(at) {
            Some(group) => self.load_group(group as usize).map(drop),
            None => Err(damaged(format!("block {at} lies outside of all groups"))),
        }
    }

    /// Locks the state with `group` loaded. The device is read without the lock.
    fn load_group(&self, group: usize) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.groups[group].map.is_some() {
            return Ok(state);
        }
        drop(state);
        let at = self.volume.group_start(group as u64);
        let block = self.journal.read(at, Kind::Meta).map_err(from_journal)?;
        let map = invert(&block, self.volume.group_len(group as u64) as usize);
        let mut state = self.lock();
        // A change of bits loads first: if it is still absent, nothing changed meanwhile.
        if state.groups[group].map.is_none() {
            let count = map.iter().map(|word| word.count_ones()).sum();
            state.set_available(group, count);
            state.groups[group].map = Some(map);
        }
        Ok(state)
    }

    /// Claims between one and `max` consecutive available blocks of one group, near `goal`:
    /// from `goal` itself if it is available, else the first run of `max` blocks, else the
    /// longest of its group, else the same in the following groups. Groups that cannot be read
    /// are passed over. If all there is is held for a trim, waits for the device to answer that.
    ///
    /// # Errors
    /// ENOSPC when `purpose` may not have a single block; or the fault of a group, if that
    /// may be the reason.
    pub(crate) fn claim(
        &self,
        goal: BlockNo,
        max: u64,
        purpose: Purpose,
    ) -> Result<(BlockNo, u64)> {
        loop {
            let trims = self.lock().trims;
            let claimed = self.try_claim(goal, max, purpose);
            if claimed.is_ok() || !self.wait_for_trim(purpose, trims) {
                return claimed;
            }
        }
    }

    /// Waits until no run is held for a trim that a claim might have had. Whether one was since `trims` had ended: the
    /// claim is worth another try.
    fn wait_for_trim(&self, purpose: Purpose, trims: u64) -> bool {
        let mut state = self.lock();
        if state.limit(purpose) == 0 {
            return false;
        }
        state.waiting += 1;
        while state.trims == trims && state.trimming.is_some() {
            state = self
                .trimmed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        state.trims != trims
    }

    fn try_claim(&self, goal: BlockNo, max: u64, purpose: Purpose) -> Result<(BlockNo, u64)> {
        let volume = &self.volume;
        let groups = volume.groups as usize;
        let start = volume.group_of(goal).unwrap_or(0) as usize;
        let mut failure = None;
        drop(self.counted(purpose, max.min(GROUP_BLOCKS)));
        // Groups without a run worth taking are passed over in the first round.
        'rounds: for wanted in [max.clamp(1, 64), 1] {
            let mut step = 0;
            while step < groups {
                let state = self.counted(purpose, 1);
                if state.limit(purpose) == 0 {
                    failure.get_or_insert(state.no_space());
                    break 'rounds;
                }
                let Some(next) = state.next_roomy(start, step, wanted) else {
                    break;
                };
                drop(state);
                step = next + 1;
                let group = (start + next) % groups;
                let mut state = match self.load_group(group) {
                    Ok(state) => state,
                    Err(error) => {
                        if error != Errno::Io {
                            self.lock().give_up(group, error.clone());
                        }
                        failure = Some(error);
                        continue;
                    }
                };
                let max = max.min(state.limit(purpose));
                if max == 0 {
                    break 'rounds;
                }
                let first = volume.group_start(group as u64);
                let hint = if next == 0 {
                    goal.0.saturating_sub(first.0) as usize
                } else {
                    0
                };
                if let Some((index, count)) = state.claim_in(group, hint, max, wanted.min(max)) {
                    return Ok((first.offset(index as u64), count as u64));
                }
            }
        }
        Err(failure.unwrap_or_else(|| Errno::NoSpc.into()))
    }

    /// Holds the first available run of a group that the look finds, or the beginning of a long one, for a trim.
    /// [`Allocator::end_trim`] must follow. One trim at a time.
    pub(crate) fn begin_trim(&self, group: u64, look: &TrimLook) -> Result<Option<(BlockNo, u64)>> {
        let first = self.volume.group_start(group);
        let mut state = self.load_group(group as usize)?;
        let Some(map) = state.groups[group as usize].map.as_deref_mut() else {
            return Ok(None);
        };
        let mut from = look.from;
        let count = loop {
            from = next(map, from, true);
            let end = next(map, from, false).min(look.to);
            let count = end.saturating_sub(from) as u64;
            if count == 0 {
                return Ok(None);
            }
            if count >= look.min || (look.cut && from == look.from) {
                break count.min(look.max);
            }
            from = end;
        };
        set(map, from, count as usize, false);
        let run = (first.offset(from as u64), count);
        state.trimming = Some(run);
        Ok(Some(run))
    }

    /// The device has answered the trim of the run.
    pub(crate) fn end_trim(&self) {
        let mut state = self.lock();
        let Some((at, count)) = state.trimming.take() else {
            return;
        };
        state.trims += 1;
        if let Some(group) = self.volume.group_of(at) {
            let index = (at.0 - self.volume.group_start(group).0) as usize;
            let slot = &mut state.groups[group as usize];
            slot.run_below = 0;
            if let Some(map) = slot.map.as_deref_mut() {
                set(map, index, count as usize, true);
            }
        }
        drop(state);
        self.trimmed.notify_all();
    }

    /// Threads that wait for a trim to end.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> u32 {
        self.lock().waiting
    }

    /// Free runs in the current bitmap of a group, for a planted fault.
    pub(crate) fn clear_runs(&self, group: u64) -> Result<Vec<(BlockNo, u64)>> {
        let first = self.volume.group_start(group);
        let block = self.journal.read(first, Kind::Meta).map_err(from_journal)?;
        let map = invert(&block, self.volume.group_len(group) as usize);
        let mut runs = Vec::new();
        let mut start = next(&map, 0, true);
        loop {
            let end = next(&map, start, false);
            if start == end {
                return Ok(runs);
            }
            runs.push((first.offset(start as u64), (end - start) as u64));
            start = next(&map, end, true);
        }
    }

    /// Makes claimed blocks available again: the operation was given up.
    pub(crate) fn unclaim(&self, at: BlockNo, count: u64) {
        self.lock().make_available(&self.volume, at, count);
    }

    /// An operation that frees `count` blocks is about to commit: they enter quarantine.
    pub(crate) fn freed(&self, count: u64) {
        self.lock().quarantined += count;
    }

    /// Makes runs available that left the quarantine.
    pub(crate) fn released(&self, runs: &[(BlockNo, u64)]) {
        let mut state = self.lock();
        for &(at, count) in runs {
            let made = state.make_available(&self.volume, at, count);
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
            Purpose::Splitting => self
                .available
                .saturating_sub(self.reserved + self.emergency / 2),
            Purpose::Freeing => self.available.saturating_sub(self.reserved),
            Purpose::Delayed => self.available,
        }
    }

    /// Groups that are to be counted next.
    fn next_uncounted(&mut self) -> Vec<usize> {
        if self.uncounted == 0 {
            return Vec::new();
        }
        let known = self.available_in[self.count_from..]
            .iter()
            .take_while(|count| **count != UNKNOWN)
            .count();
        self.count_from += known;
        (self.count_from..self.groups.len())
            .filter(|group| self.available_in[*group] == UNKNOWN)
            .take(COUNTED_AT_ONCE)
            .collect()
    }

    fn set_available(&mut self, group: usize, count: u32) {
        let known = &mut self.available_in[group];
        if *known == UNKNOWN {
            self.uncounted -= 1;
        } else {
            self.available -= u64::from(*known);
        }
        *known = count;
        self.available += u64::from(count);
    }

    /// A group that cannot be read has nothing to give, a damaged one for good.
    fn give_up(&mut self, group: usize, error: Error) {
        if self.groups[group].map.is_some() {
            return;
        }
        self.set_available(group, 0);
        if error == Errno::Io {
            self.unread.push(group);
            self.unread_why = Some(error);
        } else {
            self.unusable.get_or_insert(error);
        }
    }

    /// Groups that could not be read are uncounted again.
    fn forget_unread(&mut self) -> Vec<usize> {
        let mut groups = std::mem::take(&mut self.unread);
        groups.retain(|group| self.groups[*group].map.is_none());
        for group in &groups {
            self.available_in[*group] = UNKNOWN;
            self.uncounted += 1;
            self.count_from = self.count_from.min(*group);
        }
        self.unread_why = None;
        groups
    }

    /// Reason why there is no space, as far as it can be known.
    fn no_space(&self) -> Error {
        let why = self.unread_why.clone();
        why.unwrap_or_else(|| Errno::NoSpc.into())
    }

    /// The first group from `start + step` on (in steps from `start`) that may have a run of `wanted`.
    fn next_roomy(&self, start: usize, step: usize, wanted: u64) -> Option<usize> {
        let groups = self.groups.len();
        (step..groups).find(|step| {
            let group = match start + step {
                group if group < groups => group,
                beyond => beyond - groups,
            };
            u64::from(self.available_in[group]) >= wanted
                && match u64::from(self.groups[group].run_below) {
                    0 => true,
                    below => below > wanted,
                }
        })
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
        self.available_in[group] -= count as u32;
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
        let group = group as usize;
        let slot = &mut self.groups[group];
        slot.run_below = 0;
        // Never so: claimed and freed groups were loaded before. A later load will find the bits clear on disk.
        let Some(map) = slot.map.as_deref_mut() else {
            return 0;
        };
        let made = set(map, index, count as usize, true);
        self.available_in[group] += made as u32;
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

/// Turns a bitmap of used blocks into one of available blocks. The group's own bitmaps and
/// everything past its end are never available, also on a damaged disk.
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
mod tests;
