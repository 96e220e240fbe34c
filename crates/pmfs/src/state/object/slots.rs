//! The free slots of one directory, in memory.
//!
//! A bitmap for each page, and the pages by their longest row of free slots, so that `k` slots in a row (a name takes at most
//! 5) are found in logarithmic time. The page that slots were taken from last is kept apart: as a rule it has more.

use std::collections::{BTreeSet, HashMap};

use super::persist::Clean;
use super::token::{FreeSlots, FreedSlots, Mounted};
use crate::layout::{Page, Place, SLOTS_PER_PAGE};

/// Most slots of a name.
const ROW_MAX: usize = 5;

/// Free slots of a directory.
#[derive(Default, Debug)]
pub struct SlotMap {
    /// Bit `i` is set if slot `i` is free.
    pages: HashMap<Page, u64, foldhash::fast::FixedState>,
    /// Pages whose longest row, capped at 5, is `index + 1`.
    rows: [BTreeSet<Page>; ROW_MAX],
    /// The page that slots were taken from last, and its bits. It is not in the maps.
    last: Option<(Page, u64)>,
    free: u64,
}

/// Length of the longest row of set bits, at most 5.
fn longest_row(mut bits: u64) -> usize {
    let mut len = 0;
    while bits != 0 && len < ROW_MAX {
        bits &= bits << 1;
        len += 1;
    }
    len
}

/// First position of `count` set bits in a row.
fn find_row(bits: u64, count: u64) -> Option<u64> {
    let rows = (1..count).fold(bits, |rows, shift| rows & bits >> shift);
    (rows != 0).then(|| u64::from(rows.trailing_zeros()))
}

fn mask(first: u64, count: u64) -> u64 {
    let ones = if count >= 64 {
        u64::MAX
    } else {
        (1 << count) - 1
    };
    ones << first
}

impl SlotMap {
    /// The map of a directory without free slots.
    #[must_use]
    pub fn new() -> SlotMap {
        SlotMap::default()
    }

    /// Adds a page that a mount found: bit `i` of `free` says that slot `i` is free.
    pub fn add_scanned(&mut self, _recovered: Mounted, page: Page, free: u64) {
        self.set(page, free);
    }

    /// Adds slots that a call has freed.
    pub fn add(&mut self, freed: FreedSlots<Clean>) {
        self.put(freed.first, freed.count);
    }

    /// Takes back slots that were not used.
    pub fn give_back(&mut self, slots: FreeSlots) {
        self.put(slots.first, slots.count);
    }

    /// Number of free slots.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Takes `count` slots in a row, from the page that slots were taken from last, or else from the page with the shortest
    /// row that does; or `None`.
    #[inline]
    pub fn take(&mut self, count: u64) -> Option<FreeSlots> {
        if !(1..=ROW_MAX as u64).contains(&count) {
            return None;
        }
        let there = self.last.and_then(|(_, bits)| find_row(bits, count));
        let first = match there {
            Some(first) => first,
            None => self.turn_to(count)?,
        };
        let (page, bits) = self.last.as_mut()?;
        let page = *page;
        *bits &= !mask(first, count);
        self.free -= count;
        if *bits == 0 {
            self.last = None;
        }
        Some(FreeSlots {
            first: Place::new(page, first),
            count,
        })
    }

    /// Makes the page with the shortest row of `count` slots the last one. Returns where the row begins.
    fn turn_to(&mut self, count: u64) -> Option<u64> {
        let shortest = (count as usize).checked_sub(1)?;
        let rows = self.rows.get(shortest..)?;
        let page = *rows.iter().find_map(BTreeSet::first)?;
        let bits = *self.pages.get(&page)?;
        let first = find_row(bits, count)?;
        self.replace(page, bits, 0);
        if let Some((page, bits)) = self.last.replace((page, bits)) {
            self.replace(page, 0, bits);
        }
        Some(first)
    }

    fn put(&mut self, first: Place, count: u64) {
        debug_assert!(first.index() + count <= SLOTS_PER_PAGE);
        self.set(first.page(), mask(first.index(), count));
    }

    /// Slots of a page are free.
    fn set(&mut self, page: Page, free: u64) {
        let before = match &mut self.last {
            Some((last, bits)) if *last == page => {
                let before = *bits;
                *bits |= free;
                before
            }
            _ => {
                let before = self.pages.get(&page).copied().unwrap_or(0);
                self.replace(page, before, before | free);
                before
            }
        };
        self.free += u64::from((free & !before).count_ones());
    }

    /// Notes that a page has these free slots instead of the old ones.
    fn replace(&mut self, page: Page, old: u64, new: u64) {
        let (before, after) = (longest_row(old), longest_row(new));
        if before != after {
            if before > 0 {
                self.rows[before - 1].remove(&page);
            }
            if after > 0 {
                self.rows[after - 1].insert(page);
            }
        }
        if new == 0 {
            self.pages.remove(&page);
        } else {
            self.pages.insert(page, new);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_are_found_if_and_only_if_they_are_there() {
        let mut x = 1u64;
        for _ in 0..3000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1442);
            let bits = x & x.rotate_left(17) | x >> 60;
            let longest = (1..=ROW_MAX)
                .filter(|row| {
                    (0..=64 - row)
                        .any(|at| bits >> at & mask(0, *row as u64) == mask(0, *row as u64))
                })
                .max()
                .unwrap_or(0);
            assert_eq!(longest_row(bits), longest);
            for count in 1..=5 {
                let found = find_row(bits, count);
                assert_eq!(found.is_some(), count as usize <= longest);
                if let Some(at) = found {
                    assert_eq!(bits & mask(at, count), mask(at, count));
                }
            }
        }
    }

    #[test]
    fn taken_slots_are_not_free_until_they_are_given_back() {
        let mut map = SlotMap::new();
        map.put(Place::new(Page(7), 60), 4);
        map.put(Place::new(Page(3), 0), 2);
        map.put(Place::new(Page(3), 10), 1);
        assert_eq!(map.free(), 7);
        assert!(map.take(5).is_none());
        // The shortest row that does.
        let two = map.take(2).unwrap();
        assert_eq!(two.first(), Place::new(Page(3), 0));
        let four = map.take(4).unwrap();
        assert_eq!(four.first(), Place::new(Page(7), 60));
        assert!(map.take(2).is_none());
        map.give_back(two);
        assert_eq!(map.take(2).unwrap().first(), Place::new(Page(3), 0));
        assert_eq!(map.take(1).unwrap().first(), Place::new(Page(3), 10));
        assert_eq!(map.free(), 0);
        assert!(map.take(1).is_none() && map.pages.is_empty());
    }

    #[test]
    fn the_page_that_slots_were_taken_from_last_is_asked_first() {
        let mut map = SlotMap::new();
        map.put(Place::new(Page(7), 0), 64);
        assert_eq!(map.take(1).unwrap().first(), Place::new(Page(7), 0));
        // A shorter row, but in another page.
        map.put(Place::new(Page(3), 0), 1);
        assert_eq!(map.take(1).unwrap().first(), Place::new(Page(7), 1));
        map.put(Place::new(Page(7), 0), 1);
        assert_eq!(map.take(5).unwrap().first(), Place::new(Page(7), 2));
        assert_eq!(map.take(1).unwrap().first(), Place::new(Page(7), 0));
        assert_eq!(map.free(), 64 - 7 + 1);
    }

    #[test]
    fn a_whole_page_can_be_free() {
        let mut map = SlotMap::new();
        map.put(Place::new(Page(1), 0), 64);
        for at in 0..64 {
            assert_eq!(map.take(1).unwrap().first(), Place::new(Page(1), at));
        }
        assert!(map.take(1).is_none());
    }
}
