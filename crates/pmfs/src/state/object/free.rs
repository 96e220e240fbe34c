//! The free space of a volume: pages and inodes, in memory alone.
//!
//! It is fed by [`Recovered<Clean>`] and [`Freed<Clean>`] and by nothing else: what it hands out is free on the medium, too.
//! Pages are in shards by address, so that threads rarely meet; a run that was freed merges with its neighbours. Costs are
//! logarithmic in the number of runs.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::bits::Bits;
use super::medium::Medium;
use super::persist::Clean;
use super::token::{FreeInode, FreePages, Freed, Mounted, Recovered};
use crate::layout::{InodeRef, Page, inode};

/// Largest number of shards.
const SHARDS_MAX: u64 = 16;
/// Fewest pages of a shard: below this, sharding would only break runs.
const SHARD_PAGES_MIN: u64 = 4096;

/// Runs of free pages, by start and by length.
#[derive(Default)]
struct Runs {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
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

    /// Adds a run and merges it with its neighbours.
    fn put(&mut self, mut start: u64, mut len: u64) {
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

    /// Takes up to `len` pages from `start` on, if they are free.
    fn take_at(&mut self, start: u64, len: u64) -> Option<(u64, u64)> {
        let (&first, &l) = self.by_start.range(..=start).next_back()?;
        let room = (first + l).checked_sub(start).filter(|room| *room > 0)?;
        let taken = room.min(len);
        self.remove(first, l);
        self.insert(first, start - first);
        self.insert(start + taken, room - taken);
        Some((start, taken))
    }

    /// Takes `len` pages from the shortest run that has as many.
    fn take_whole(&mut self, len: u64) -> Option<(u64, u64)> {
        let &(l, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, l);
        self.insert(start + len, l - len);
        Some((start, len))
    }

    /// Takes up to `len` pages from the longest run.
    fn take_longest(&mut self, len: u64) -> Option<(u64, u64)> {
        let &(l, start) = self.by_len.last()?;
        let taken = l.min(len);
        self.remove(start, l);
        self.insert(start + taken, l - taken);
        Some((start, taken))
    }
}

/// Free pages and inodes.
pub struct FreeSpace {
    shards: Vec<Mutex<Runs>>,
    shard_pages: u64,
    /// Pages that are free and promised to nobody.
    pages: AtomicU64,
    inodes: Mutex<Bits>,
    mounted: Mounted,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number for each thread, so that threads begin in different shards.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed)));
    MINE.with(Cell::get)
}

impl FreeSpace {
    /// The free space of a volume that has been recovered.
    #[must_use]
    pub fn new(m: &Medium, recovered: Recovered<Clean>) -> FreeSpace {
        let pages = m.geometry().pages;
        let shards = (pages / SHARD_PAGES_MIN).clamp(1, SHARDS_MAX);
        let mounted = recovered.mounted();
        let space = FreeSpace {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shard_pages: pages.div_ceil(shards).max(1),
            pages: AtomicU64::new(0),
            inodes: Mutex::new(Bits::new(u64::from(m.geometry().inodes()) + 1)),
            mounted,
        };
        for run in recovered.survey.pages {
            space.put_pages(Page(run.start), run.end.saturating_sub(run.start));
        }
        let mut inodes = lock(&space.inodes);
        for run in recovered.survey.inodes {
            inodes.set_range(u64::from(run.start)..u64::from(run.end));
        }
        drop(inodes);
        space
    }

    /// Evidence for slot maps.
    #[must_use]
    pub fn mounted(&self) -> Mounted {
        self.mounted
    }

    /// Adds what a call has freed.
    pub fn add(&self, freed: Freed<Clean>) {
        for run in &freed.pages {
            self.put_pages(run.start, run.len);
        }
        if let Some(number) = freed.inode {
            self.put_inode(number);
        }
    }

    /// Free pages that nobody has taken.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Free inodes.
    #[must_use]
    pub fn free_inodes(&self) -> u64 {
        lock(&self.inodes).count()
    }

    /// Takes the free inode with the smallest number, or `None` if there is none. An inode in its last generation stays
    /// unused for good, because a reference to it could not be told from one to its successor.
    pub fn inode(&self, m: &Medium) -> Option<FreeInode<'_>> {
        loop {
            let number = lock(&self.inodes).take_first()? as u32;
            let born = m.load(m.geometry().inode_at(number) + inode::BIRTH);
            if let Some(generation) = ((born >> 32) as u32).checked_add(1) {
                return Some(FreeInode::new(self, InodeRef { number, generation }));
            }
        }
    }

    /// Takes `count` pages in as few runs as it can, beginning at `near` if that page is free. `None` if there are not as
    /// many; nothing is taken then.
    pub fn pages(&self, count: u64, near: Option<Page>) -> Option<Vec<FreePages<'_>>> {
        // Counted first: whoever gets past this line finds its pages, because runs are added before they are counted.
        self.pages
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |free| {
                free.checked_sub(count)
            })
            .ok()?;
        let mut runs = Vec::new();
        let mut missing = count;
        if let Some(near) = near
            && missing > 0
            && let Some(taken) = lock(self.shard(near.0)).take_at(near.0, missing)
        {
            missing -= taken.1;
            runs.push(taken);
        }
        let home = near.map_or_else(thread_number, |page| (page.0 / self.shard_pages) as usize);
        let order = || (0..self.shards.len()).map(|i| &self.shards[(home + i) % self.shards.len()]);
        if missing > 0
            && let Some(taken) = order().find_map(|shard| lock(shard).take_whole(missing))
        {
            missing -= taken.1;
            runs.push(taken);
        }
        while missing > 0 {
            for shard in order() {
                while missing > 0
                    && let Some(taken) = lock(shard).take_longest(missing)
                {
                    missing -= taken.1;
                    runs.push(taken);
                }
            }
        }
        let token = |(start, len)| FreePages::new(self, Page(start), len);
        Some(runs.into_iter().map(token).collect())
    }

    fn shard(&self, page: u64) -> &Mutex<Runs> {
        let shard = (page / self.shard_pages) as usize;
        &self.shards[shard.min(self.shards.len() - 1)]
    }

    pub(super) fn put_pages(&self, start: Page, len: u64) {
        let (mut start, end) = (start.0, start.0 + len);
        while start < end {
            // Runs do not cross shards: each page has one home.
            let home = (start / self.shard_pages + 1) * self.shard_pages;
            let part = end.min(home.max(start + 1)) - start;
            lock(self.shard(start)).put(start, part);
            start += part;
        }
        self.pages.fetch_add(len, Ordering::Release);
    }

    pub(super) fn put_inode(&self, number: u32) {
        lock(&self.inodes).set(u64::from(number));
    }
}
