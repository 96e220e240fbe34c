//! The index of a directory: the place of each name, and the directory's pages in order.
//!
//! Promise: finding, adding and removing a name cost O(1) and touch the medium once for each candidate; a name costs at most
//! 32 bytes here, because its bytes and its inode are read from its slot. Cookies are positions: that of the slot with
//! number `s` in the page at offset `o` is `64 o + s + 3`, and `.` and `..` have 1 and 2. So a cookie stays valid while other
//! names come and go, also across mounts, and a listing goes on from any cookie without memory of its own.
//!
//! A read-only mount changes nothing on the medium. Recovery's repairs of slots are kept here as *corrections*.

use super::name::{self, Name};
use crate::layout::{InodeRef, Page, Place, SLOTS_PER_PAGE, slot};
use crate::words::Words;
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use steadfast_vfs::Cookie;

/// Cookie after `.`.
pub const COOKIE_DOT: Cookie = 1;
/// Cookie after `..`: the listing of slots begins here.
pub const COOKIE_DOT_DOT: Cookie = 2;
/// Offsets of directory pages are smaller than this: a region has no more pages.
pub const DIR_OFFSET_MAX: u64 = crate::layout::REGION_BYTES_MAX / crate::layout::PAGE_BYTES;

/// A name's place and 56 bits of its hash, in 12 bytes.
#[derive(Clone, Copy)]
struct Entry([u32; 3]);

/// Bits of a hash that an [`Entry`] has no room for.
const HASH_GAP: u64 = 0xff << 32;

impl Entry {
    fn new(hash: u64, place: Place) -> Entry {
        Entry([
            hash as u32,
            place.0 as u32,
            (place.0 >> 32) as u32 & 0xff | (hash >> 40 << 8) as u32,
        ])
    }

    fn hash(&self) -> u64 {
        u64::from(self.0[2] >> 8) << 40 | u64::from(self.0[0])
    }

    fn place(&self) -> Place {
        Place(u64::from(self.0[2] & 0xff) << 32 | u64::from(self.0[1]))
    }
}

/// A name that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its slot.
    pub place: Place,
    /// The inode that it names.
    pub inode: InodeRef,
}

/// One entry of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its slot.
    pub place: Place,
    /// The inode that it names.
    pub inode: InodeRef,
    /// Position at which a listing goes on after it.
    pub next: Cookie,
}

impl Listed {
    /// The name. `None` if the slot has been damaged since the mount.
    #[must_use]
    pub fn name(&self, m: &impl Words) -> Option<Name> {
        name::read(m, self.place).ok()
    }
}

/// The names of a directory.
pub struct DirIndex {
    names: HashTable<Entry>,
    /// Pages by offset.
    pages: Vec<(u64, Page)>,
    /// The meaning of slots whose words are not right: nothing, or another inode.
    corrections: BTreeMap<Place, Option<InodeRef>>,
    seed: RandomState,
}

impl Default for DirIndex {
    fn default() -> DirIndex {
        DirIndex::with_capacity(0)
    }
}

impl DirIndex {
    /// An index of an empty directory, with room for `names` names.
    #[must_use]
    pub fn with_capacity(names: usize) -> DirIndex {
        DirIndex {
            names: HashTable::with_capacity(names),
            pages: Vec::new(),
            corrections: BTreeMap::new(),
            seed: RandomState::default(),
        }
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Bytes that the index has allocated.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.names.allocation_size() + self.pages.capacity() * size_of::<(u64, Page)>()
    }

    /// The hash of a name in this index, for the calls that take one: a call on a name takes it once.
    #[must_use]
    pub fn hash(&self, name: &[u8]) -> u64 {
        self.seed.hash_one(name) & !HASH_GAP
    }

    /// Finds a name.
    #[must_use]
    pub fn find(&self, m: &impl Words, name: &[u8]) -> Option<Found> {
        self.find_hashed(m, name, self.hash(name))
    }

    /// Finds a name of this [`hash`](DirIndex::hash).
    #[must_use]
    pub fn find_hashed(&self, m: &impl Words, name: &[u8], hash: u64) -> Option<Found> {
        let entry = self.names.find(hash, |entry| {
            entry.hash() == hash && name::matches(m, entry.place(), name)
        })?;
        let place = entry.place();
        let inode = self.meaning(m, place)?;
        Some(Found { place, inode })
    }

    /// Adds a name that is not there yet.
    pub fn insert(&mut self, name: &[u8], place: Place) {
        self.insert_hashed(self.hash(name), place);
    }

    /// Adds the name of this [`hash`](DirIndex::hash) that is at `place`.
    pub fn insert_hashed(&mut self, hash: u64, place: Place) {
        let entry = Entry::new(hash, place);
        self.names.insert_unique(hash, entry, Entry::hash);
    }

    /// Removes a name. Returns whether it was there.
    pub fn remove(&mut self, name: &[u8], place: Place) -> bool {
        self.remove_hashed(self.hash(name), place)
    }

    /// Removes the name of this [`hash`](DirIndex::hash) that is at `place`. Returns whether it was there.
    pub fn remove_hashed(&mut self, hash: u64, place: Place) -> bool {
        let found = self
            .names
            .find_entry(hash, |entry| entry.place() == place && entry.hash() == hash);
        found.is_ok_and(|entry| {
            entry.remove();
            true
        })
    }

    /// The inode that a slot names.
    #[must_use]
    pub fn meaning(&self, m: &impl Words, place: Place) -> Option<InodeRef> {
        match self.corrections.get(&place) {
            Some(meaning) => *meaning,
            None => InodeRef::from_word(m.load(place.at() + slot::COMMIT)),
        }
    }

    /// Notes that a slot means something else than it says, because a read-only mount stores nothing.
    pub(crate) fn correct(&mut self, place: Place, meaning: Option<InodeRef>) {
        self.corrections.insert(place, meaning);
    }

    /// The words of slots are right: recovery has stored the corrections.
    pub(crate) fn forget_corrections(&mut self) {
        self.corrections = BTreeMap::new();
    }

    /// Adds a page of the directory.
    pub fn add_page(&mut self, offset: u64, page: Page) {
        let at = self.pages.partition_point(|(other, _)| *other < offset);
        debug_assert!(self.pages.get(at).is_none_or(|(other, _)| *other != offset));
        self.pages.insert(at, (offset, page));
    }

    /// The directory's pages, by offset.
    #[must_use]
    pub fn pages(&self) -> &[(u64, Page)] {
        &self.pages
    }

    /// The offset for a further page. `None` if the directory cannot grow.
    #[must_use]
    pub fn next_offset(&self) -> Option<u64> {
        let next = self.pages.last().map_or(0, |(offset, _)| offset + 1);
        if next < DIR_OFFSET_MAX {
            return Some(next);
        }
        // Only a repaired directory has gaps.
        let mut offsets = self.pages.iter().map(|(offset, _)| *offset);
        (0..DIR_OFFSET_MAX).find(|free| offsets.next() != Some(*free))
    }

    /// The names after `cookie`, in the order of their places, as they are now. `.` and `..` are the caller's.
    pub fn entries<'a>(
        &'a self,
        m: &'a impl Words,
        cookie: Cookie,
    ) -> impl Iterator<Item = Listed> + 'a {
        let start = cookie.saturating_sub(COOKIE_DOT_DOT);
        let (from, skip) = (start / SLOTS_PER_PAGE, start % SLOTS_PER_PAGE);
        let first = self.pages.partition_point(|(offset, _)| *offset < from);
        self.pages[first..].iter().flat_map(move |(offset, page)| {
            let (offset, page) = (*offset, *page);
            let begin = if offset == from { skip } else { 0 };
            (begin..SLOTS_PER_PAGE).filter_map(move |index| {
                let place = Place::new(page, index);
                Some(Listed {
                    place,
                    inode: self.meaning(m, place)?,
                    next: cookie_after(offset, index),
                })
            })
        })
    }
}

/// The cookie after the slot `index` of the page at `offset`.
#[must_use]
pub fn cookie_after(offset: u64, index: u64) -> Cookie {
    offset * SLOTS_PER_PAGE + index + COOKIE_DOT_DOT + 1
}

impl std::fmt::Debug for DirIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirIndex")
            .field("names", &self.names.len())
            .field("pages", &self.pages.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::layout::{NAME_CONT, NAME_HEAD, SLOT_BYTES, Tag, name_hash, slots_of};
    use std::collections::BTreeMap as Model;
    use steadfast_pm::Region;

    /// Writes a name into slots, as a create would.
    fn put(region: &Region, place: Place, name: &[u8], inode: InodeRef) {
        let tag = Tag {
            tag: 1,
            len: name.len() as u8,
            hash: name_hash(name),
        };
        region.store(place.at() + slot::TAG, tag.word());
        let (head, rest) = name.split_at(name.len().min(NAME_HEAD));
        region.write_data(place.at() + slot::NAME, head);
        for (k, piece) in rest.chunks(NAME_CONT).enumerate() {
            region.write_data(place.at() + (k as u64 + 1) * SLOT_BYTES + slot::CONT, piece);
        }
        region.store(place.at(), inode.word());
    }

    fn inode(number: u32) -> InodeRef {
        InodeRef {
            number,
            generation: 1,
        }
    }

    /// A directory of three pages, whose names have lengths at the borders of slots.
    fn filled() -> (Region, DirIndex, Model<Vec<u8>, Place>) {
        let region = Region::anonymous(16 * 4096);
        let (mut index, mut model) = (DirIndex::default(), Model::new());
        let mut number = 2;
        for (offset, page) in [(0, 9), (1, 4), (2, 12)] {
            index.add_page(offset, Page(page));
            let mut slot = 0;
            for len in [1, 7, 8, 9, 31, 32, 33, 87, 88, 89, 254, 255]
                .iter()
                .cycle()
            {
                if slot + slots_of(*len) > 64 {
                    break;
                }
                let mut name = format!("{number}").into_bytes();
                name.resize((*len).max(4), b'x');
                let place = Place::new(Page(page), slot as u64);
                put(&region, place, &name, inode(number));
                index.insert(&name, place);
                model.insert(name, place);
                slot += slots_of(*len);
                number += 1;
            }
        }
        (region, index, model)
    }

    #[test]
    fn every_name_is_found_and_no_other() {
        let (region, mut index, mut model) = filled();
        let names: Vec<_> = model.keys().cloned().collect();
        for (at, name) in names.iter().enumerate() {
            assert_eq!(index.find(&region, name).unwrap().place, model[name]);
            for other in [&name[..name.len() - 1], &[&name[..], b"y"].concat()] {
                assert_eq!(
                    index.find(&region, other).is_some(),
                    model.contains_key(other)
                );
            }
            if at % 2 == 0 {
                let place = model.remove(name).unwrap();
                assert!(index.remove(name, place) && !index.remove(name, place));
                assert_eq!(index.find(&region, name), None);
            }
            assert_eq!(index.len(), model.len());
        }
        for (name, place) in model {
            index.remove(&name, place);
        }
        assert!(index.is_empty());
    }

    #[test]
    fn a_listing_goes_on_from_any_cookie_while_names_come_and_go() {
        let (region, index, model) = filled();
        let all: Vec<_> = index.entries(&region, 0).collect();
        assert_eq!(all.len(), model.len());
        let mut cookies: Vec<_> = all.iter().map(|listed| listed.next).collect();
        assert!(cookies.is_sorted() && cookies[0] >= 3);
        for (at, cookie) in cookies.iter().enumerate() {
            // The entry that the cookie belongs to may have been removed meanwhile.
            region.store(all[at].place.at(), 0);
            let rest: Vec<_> = index.entries(&region, *cookie).collect();
            assert_eq!(rest, all[at + 1..]);
            region.store(all[at].place.at(), all[at].inode.word());
        }
        let names = index.entries(&region, 0);
        let names =
            names.map(|listed| (listed.name(&region).unwrap().bytes().to_vec(), listed.place));
        assert_eq!(names.collect::<Model<_, _>>(), model);
        cookies.push(u64::MAX);
        assert_eq!(index.entries(&region, u64::MAX).count(), 0);
    }

    #[test]
    fn a_correction_replaces_the_slots_word() {
        let (region, mut index, model) = filled();
        let mut names = model.into_iter();
        let ((gone, place), (other, second)) = (names.next().unwrap(), names.next().unwrap());
        index.correct(place, None);
        index.correct(second, Some(inode(77)));
        assert_eq!(index.find(&region, &gone), None);
        assert_eq!(index.find(&region, &other).unwrap().inode, inode(77));
        assert!(
            index
                .entries(&region, 0)
                .all(|listed| listed.place != place)
        );
    }

    #[test]
    fn a_further_page_gets_an_offset_that_is_free() {
        let mut index = DirIndex::default();
        assert_eq!(index.next_offset(), Some(0));
        index.add_page(0, Page(5));
        index.add_page(DIR_OFFSET_MAX - 1, Page(6));
        assert_eq!(index.next_offset(), Some(1));
    }

    #[test]
    fn a_name_costs_at_most_32_bytes() {
        let mut index = DirIndex::default();
        for count in 1..200_000u64 {
            if count % 64 == 1 {
                index.add_page(count / 64, Page(count / 64));
            }
            index.insert(&count.to_le_bytes(), Place(count));
            assert!(
                count < 64 || index.heap_bytes() as u64 <= 32 * count,
                "{count}: {}",
                index.heap_bytes()
            );
        }
    }

    #[test]
    fn an_entry_keeps_place_and_hash() {
        let hash = 0xfedc_ba98_7654_3210 & !HASH_GAP;
        let entry = Entry::new(hash, Place((1 << 40) - 2));
        assert_eq!((entry.hash(), entry.place()), (hash, Place((1 << 40) - 2)));
        assert_eq!(size_of::<Entry>(), 12);
    }
}
