//! The free space of a volume: pages and inodes, in memory alone.
//!
//! Its only sources are [`Recovered<Clean>`] and [`Freed<Clean>`]: objects that it hands out are free on the medium, too.
//! Both are in shards by address, and each thread begins in another one, so that threads rarely meet; a run that was freed
//! merges with its neighbours. Costs are logarithmic in the number of runs, and constant where a run goes on that was taken
//! from last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::bits::Bits;
use super::medium::Medium;
use super::persist::Clean;
use super::token::{FreeInode, FreePages, Freed, Mounted, Recovered};
use crate::layout::{InodeRef, Page, inode, last_generation};
use crate::threads::{Padded, thread_number};

/// Largest number of shards.
const SHARDS_MAX: u64 = 16;
/// Fewest pages of a shard: below this, sharding would only break runs.
const SHARD_PAGES_MIN: u64 = 4096;
/// Fewest inodes of a shard.
const SHARD_INODES_MIN: u64 = 512;

/// Runs of free pages, by start and by length.
#[derive(Default)]
struct Runs {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    /// The rest of the run that was used last. It is not in the trees.
    last: Option<(u64, u64)>,
    /// A run that was freed last, and has not met its neighbours yet. It is not in the trees.
    freed: Option<(u64, u64)>,
    /// Pages in all of them.
    pages: u64,
}

impl Runs {
    fn remove(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    fn insert(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    /// Adds a run.
    fn put(&mut self, start: u64, len: u64) {
        self.pages += len;
        match &mut self.freed {
            Some((first, l)) if *first + *l == start => *l += len,
            Some((first, l)) if start + len == *first => (*first, *l) = (start, *l + len),
            freed => {
                if let Some((start, len)) = freed.replace((start, len)) {
                    self.merge(start, len);
                }
            }
        }
    }

    /// Moves the freed run to the trees, where it is found from now on.
    fn gather(&mut self) {
        if let Some((start, len)) = self.freed.take() {
            self.merge(start, len);
        }
    }

    /// Merges a run with its neighbours.
    fn merge(&mut self, mut start: u64, mut len: u64) {
        if let Some((last, l)) = self.last
            && (last + l == start || start + len == last)
        {
            self.last = None;
            self.insert(last, l);
        }
        if let Some((&before, &l)) = self.by_start.range(..start).next_back()
            && before + l == start
        {
            self.remove(before, l);
            (start, len) = (before, l + len);
        }
        if let Some(&l) = self.by_start.get(&(start + len)) {
            self.remove(start + len, l);
            len += l;
        }
        self.insert(start, len);
    }

    /// Keeps the rest of a run that was taken from.
    fn leave(&mut self, start: u64, len: u64) {
        if len > 0
            && let Some((start, len)) = self.last.replace((start, len))
        {
            self.insert(start, len);
        }
    }

    /// Takes up to `len` pages from `start` on, if they are free.
    fn take_at(&mut self, start: u64, len: u64) -> Option<(u64, u64)> {
        let last = self
            .last
            .filter(|(first, l)| (*first..first + l).contains(&start));
        let (first, l) = match last {
            Some(last) => last,
            None => {
                self.gather();
                let (&first, &l) = self.by_start.range(..=start).next_back()?;
                (first, l)
            }
        };
        let room = (first + l).checked_sub(start).filter(|room| *room > 0)?;
        let taken = room.min(len);
        match last {
            Some(_) => self.last = None,
            None => self.remove(first, l),
        }
        self.insert(first, start - first);
        self.leave(start + taken, room - taken);
        self.pages -= taken;
        Some((start, taken))
    }

    /// Takes `len` pages from the shortest run that has as many.
    fn take_whole(&mut self, len: u64) -> Option<(u64, u64)> {
        self.gather();
        let last = self.last.filter(|(_, l)| *l >= len);
        let last = last.map(|(start, l)| (l, start));
        let listed = self.by_len.range((len, 0)..).next().copied();
        let (l, start) = last.into_iter().chain(listed).min()?;
        Some(self.take_from(start, l, len))
    }

    /// Takes up to `len` pages from the longest run.
    fn take_longest(&mut self, len: u64) -> Option<(u64, u64)> {
        self.gather();
        let last = self.last.map(|(start, l)| (l, start));
        let (l, start) = last.max(self.by_len.last().copied())?;
        Some(self.take_from(start, l, len))
    }

    /// Takes up to `len` pages from the start of a run.
    fn take_from(&mut self, start: u64, l: u64, len: u64) -> (u64, u64) {
        match self.last == Some((start, l)) {
            true => self.last = None,
            false => self.remove(start, l),
        }
        let taken = l.min(len);
        self.leave(start + taken, l - taken);
        self.pages -= taken;
        (start, taken)
    }
}

/// Free inodes with numbers in a row, from `base` on.
struct Numbers {
    base: u64,
    /// Those that are taken next, without a lock: bit `i` of the low half says that number `base` + 32 `high half` + `i` is
    /// free. The holder of the lock of `rest` fills it when the low half is 0.
    ready: AtomicU64,
    rest: Mutex<Bits>,
    /// There was nothing in `rest` when it was looked at last: an empty shard costs no lock.
    exhausted: AtomicBool,
}

impl Numbers {
    fn new(base: u64, len: u64) -> Numbers {
        Numbers {
            base,
            ready: AtomicU64::new(0),
            rest: Mutex::new(Bits::new(len)),
            exhausted: AtomicBool::new(false),
        }
    }

    fn rest(&self) -> MutexGuard<'_, Bits> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn take(&self) -> Option<u32> {
        let mut ready = self.ready.load(Ordering::Acquire);
        loop {
            if ready as u32 == 0 {
                if self.exhausted.load(Ordering::Acquire) {
                    return None;
                }
                ready = self.refill()?;
            }
            let rest = ready & (ready - 1);
            let (good, bad) = (Ordering::AcqRel, Ordering::Acquire);
            match self.ready.compare_exchange_weak(ready, rest, good, bad) {
                Ok(_) => break,
                Err(now) => ready = now,
            }
        }
        let index = (ready >> 32) * 32 + u64::from(ready.trailing_zeros());
        Some((self.base + index) as u32)
    }

    /// Ready numbers, at least one.
    #[cold]
    fn refill(&self) -> Option<u64> {
        let mut rest = self.rest();
        let ready = self.ready.load(Ordering::Acquire);
        if ready as u32 != 0 {
            return Some(ready);
        }
        let Some((half, bits)) = rest.take_half() else {
            self.exhausted.store(true, Ordering::Release);
            return None;
        };
        let ready = half << 32 | u64::from(bits);
        // No other thread changes it while the low half is 0: freed pages go to the rest.
        self.ready.store(ready, Ordering::Release);
        Some(ready)
    }

    fn put(&self, number: u32) {
        let index = u64::from(number) - self.base;
        let mut ready = self.ready.load(Ordering::Acquire);
        while ready as u32 != 0 && ready >> 32 == index / 32 {
            let more = ready | 1 << (index % 32);
            let (good, bad) = (Ordering::AcqRel, Ordering::Acquire);
            match self.ready.compare_exchange_weak(ready, more, good, bad) {
                Ok(_) => return,
                Err(now) => ready = now,
            }
        }
        let mut rest = self.rest();
        rest.set(index);
        self.exhausted.store(false, Ordering::Release);
    }

    fn count(&self) -> u64 {
        let rest = self.rest();
        let ready = self.ready.load(Ordering::Acquire) as u32;
        rest.count() + u64::from(ready.count_ones())
    }
}

/// Runs of pages that were taken.
pub type Taken<'f> = SmallVec<[FreePages<'f>; 2]>;

/// Free pages and inodes.
pub struct FreeSpace {
    pages: Vec<Padded<Mutex<Runs>>>,
    /// Pages of a shard.
    shard_pages: u64,
    inodes: Vec<Padded<Numbers>>,
    /// Inodes of a shard.
    shard_inodes: u64,
    mounted: Mounted,
}

fn lock<T>(mutex: &Padded<Mutex<T>>) -> MutexGuard<'_, T> {
    mutex.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of shards of at least `least` things, of `all`, and their size.
fn sharded(all: u64, least: u64) -> (u64, u64) {
    let shards = (all / least).clamp(1, SHARDS_MAX);
    let size = all.div_ceil(shards).max(1);
    (all.div_ceil(size).max(1), size)
}

/// The shard in which this thread begins. Threads with numbers in a row begin far from each other, so that one that has
/// used its shard up does not come to the next one's at once.
fn home(shards: usize) -> usize {
    // The fraction of the golden ratio's multiple.
    let spread = (thread_number() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (((spread >> 32) * shards as u64) >> 32) as usize
}

impl FreeSpace {
    /// The free space of a volume that has been recovered.
    #[must_use]
    pub fn new(m: &Medium, recovered: Recovered<Clean>) -> FreeSpace {
        let (page_shards, shard_pages) = sharded(m.geometry().pages, SHARD_PAGES_MIN);
        let numbers = u64::from(m.geometry().inodes()) + 1;
        let (inode_shards, shard_inodes) = sharded(numbers, SHARD_INODES_MIN);
        let mounted = recovered.mounted();
        let numbers = |shard| Numbers::new(shard * shard_inodes, shard_inodes);
        let space = FreeSpace {
            pages: (0..page_shards).map(|_| Padded::default()).collect(),
            shard_pages,
            inodes: (0..inode_shards)
                .map(|shard| Padded(numbers(shard)))
                .collect(),
            shard_inodes,
            mounted,
        };
        for run in recovered.survey.pages {
            space.put_pages(Page(run.start), run.end.saturating_sub(run.start));
        }
        for run in recovered.survey.inodes {
            let (start, end) = (u64::from(run.start), u64::from(run.end));
            for Padded(numbers) in &space.inodes {
                let base = numbers.base;
                let (from, to) = (start.max(base), end.min(base + shard_inodes));
                if from < to {
                    numbers.rest().set_range(from - base..to - base);
                }
            }
        }
        space
    }

    /// Evidence for slot maps.
    #[must_use]
    pub fn mounted(&self) -> Mounted {
        self.mounted
    }

    /// Adds the objects that a call has freed.
    pub fn add(&self, freed: Freed<Clean>) {
        for run in &freed.pages {
            self.put_pages(run.start, run.len);
        }
        if let Some(number) = freed.inode {
            self.put_inode(number);
        }
    }

    /// Free pages that are not taken.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.pages.iter().map(|shard| lock(shard).pages).sum()
    }

    /// Free inodes.
    #[must_use]
    pub fn free_inodes(&self) -> u64 {
        self.inodes.iter().map(|shard| shard.0.count()).sum()
    }

    /// Takes a free inode, or `None` if there is none: of those where this thread begins one with a small number. An inode in
    /// its last generation stays unused for good, because a reference to it would look like one to its successor.
    pub fn inode(&self, m: &Medium) -> Option<FreeInode<'_>> {
        let shards = self.inodes.len();
        let home = home(shards);
        for turn in 0..shards {
            let Padded(shard) = &self.inodes[(home + turn) % shards];
            while let Some(number) = shard.take() {
                // A line of a birth that a crash cut must not pass for one of this birth.
                let at = m.geometry().inode_at(number);
                let (birth, header) = (m.load(at + inode::BIRTH), m.load(at + inode::EXTRA));
                if let Some(generation) = last_generation(birth, header).checked_add(1) {
                    return Some(FreeInode::new(self, InodeRef { number, generation }));
                }
            }
        }
        None
    }

    /// Takes `count` pages in as few runs as it can, beginning at `near` if that page is free. `None` if there are not as
    /// many; nothing is taken then.
    pub fn pages(&self, count: u64, near: Option<Page>) -> Option<Taken<'_>> {
        if count == 0 {
            return Some(Taken::new());
        }
        let shards = self.pages.len();
        let home = match near {
            Some(page) => ((page.0 / self.shard_pages) as usize).min(shards - 1),
            None => home(shards),
        };
        let token = |(start, len)| FreePages::new(self, Page(start), len);
        let mut shard = lock(&self.pages[home]);
        let first = near.and_then(|near| shard.take_at(near.0, count));
        let missing = count - first.map_or(0, |(_, len)| len);
        let rest = match missing {
            0 => None,
            missing => shard.take_whole(missing),
        };
        if missing == 0 || rest.is_some() {
            drop(shard);
            let mut taken = Taken::new();
            if let Some(first) = first {
                taken.push(token(first));
            }
            if let Some(rest) = rest {
                taken.push(token(rest));
            }
            return Some(taken);
        }
        if let Some((start, len)) = first {
            shard.put(start, len);
        }
        drop(shard);
        if first.is_none() {
            let others = (1..shards).map(|turn| &self.pages[(home + turn) % shards]);
            if let Some(whole) = others
                .into_iter()
                .find_map(|shard| lock(shard).take_whole(count))
            {
                return Some(Taken::from_iter([token(whole)]));
            }
        }
        self.pages_of_all(count, near, home)
            .map(|runs| runs.into_iter().map(token).collect())
    }

    /// The same, from all shards, whose locks it takes in order: no thread takes the counted pages meanwhile.
    fn pages_of_all(
        &self,
        count: u64,
        near: Option<Page>,
        home: usize,
    ) -> Option<SmallVec<[(u64, u64); 2]>> {
        let mut shards: Vec<_> = self.pages.iter().map(lock).collect();
        let all: u64 = shards.iter().map(|shard| shard.pages).sum();
        if all < count {
            return None;
        }
        let mut runs = SmallVec::new();
        let mut missing = count;
        let mut got = |taken: (u64, u64), missing: &mut u64| {
            *missing -= taken.1;
            runs.push(taken);
        };
        if let Some(near) = near
            && let Some(taken) = shards[home].take_at(near.0, missing)
        {
            got(taken, &mut missing);
        }
        shards.rotate_left(home);
        if missing > 0
            && let Some(taken) = shards
                .iter_mut()
                .find_map(|shard| shard.take_whole(missing))
        {
            got(taken, &mut missing);
        }
        for shard in &mut shards {
            while missing > 0
                && let Some(taken) = shard.take_longest(missing)
            {
                got(taken, &mut missing);
            }
        }
        Some(runs)
    }

    pub(super) fn put_pages(&self, start: Page, len: u64) {
        let (mut start, end) = (start.0, start.0 + len);
        while start < end {
            // Runs do not cross shards: each page has one home.
            let home = (start / self.shard_pages) as usize;
            let (home, border) = match home + 1 < self.pages.len() {
                true => (home, (home as u64 + 1) * self.shard_pages),
                false => (self.pages.len() - 1, u64::MAX),
            };
            let part = end.min(border) - start;
            lock(&self.pages[home]).put(start, part);
            start += part;
        }
    }

    pub(super) fn put_inode(&self, number: u32) {
        let shard = (u64::from(number) / self.shard_inodes) as usize;
        if let Some(Padded(shard)) = self.inodes.get(shard) {
            shard.put(number);
        }
    }
}
