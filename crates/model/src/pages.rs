//! The pages of a file as a persistent radix tree: a clone costs one pointer, a change copies only the way down to it, and the digest of
//! a subtree is computed once for all versions that share it.
//!
//! Invariants: a branch `h` levels above the pages splits by bits `4(h-1)..4h` of the page's number, so that keys are in order; no branch or
//! page is changed while another version shares it; no branch is empty; a subtree stands for the same pages in every version that shares it.

use crate::hash::Hasher128;
use crate::kept::{Kept, KeptPage};
use std::sync::{Arc, OnceLock};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

const FAN: usize = 16;
const BITS: u32 = 4;
/// Levels that hold every page number of 64 bits.
const HEIGHT_MAX: u32 = 16;

/// The bytes of one page.
pub(crate) struct Page {
    bytes: [u8; PAGE],
    digest: OnceLock<Option<u128>>,
}

impl Clone for Page {
    fn clone(&self) -> Page {
        Page::new(self.bytes)
    }
}

impl Page {
    fn new(bytes: [u8; PAGE]) -> Page {
        Page {
            bytes,
            digest: OnceLock::new(),
        }
    }

    /// `None` if all bytes are zero.
    fn digest(&self) -> Option<u128> {
        *self.digest.get_or_init(|| hash(&self.bytes))
    }
}

/// `None` if all bytes are zero.
fn hash(bytes: &[u8; PAGE]) -> Option<u128> {
    let zero = bytes.iter().all(|b| *b == 0);
    (!zero).then(|| Hasher128::new(11).bytes(bytes).finish())
}

#[derive(Clone, Default)]
enum Slot {
    #[default]
    Empty,
    Page(Arc<Page>),
    Kept(Arc<KeptPage>),
    Branch(Arc<Branch>),
}

struct Branch {
    slots: [Slot; FAN],
    sum: OnceLock<u128>,
}

impl Clone for Branch {
    fn clone(&self) -> Branch {
        Branch {
            slots: self.slots.clone(),
            sum: OnceLock::new(),
        }
    }
}

impl Branch {
    fn new() -> Branch {
        Branch {
            slots: [const { Slot::Empty }; FAN],
            sum: OnceLock::new(),
        }
    }
}

fn digit(index: u64, level: u32) -> usize {
    ((index >> (BITS * (level - 1))) & 15) as usize
}

/// Pages below one slot `level` levels above the pages.
fn span(level: u32) -> u128 {
    1 << (BITS * level)
}

/// The pages of a file, by number. Absent ones read as zeros.
#[derive(Clone, Default)]
pub(crate) struct Pages {
    root: Slot,
    height: u32,
    len: u64,
}

impl Pages {
    /// Number of present pages.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether both are one version: then they are equal.
    pub(crate) fn is_same(&self, other: &Pages) -> bool {
        match (&self.root, &other.root) {
            (Slot::Empty, Slot::Empty) => true,
            (Slot::Page(a), Slot::Page(b)) => Arc::ptr_eq(a, b),
            (Slot::Kept(a), Slot::Kept(b)) => Arc::ptr_eq(a, b),
            (Slot::Branch(a), Slot::Branch(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    fn holds(&self, index: u64) -> bool {
        u128::from(index) < span(self.height)
    }

    /// The slot of a page, or an empty one above it.
    fn get(&self, index: u64) -> &Slot {
        if !self.holds(index) {
            return &Slot::Empty;
        }
        let (mut slot, mut level) = (&self.root, self.height);
        while let Slot::Branch(branch) = slot {
            slot = &branch.slots[digit(index, level)];
            level -= 1;
        }
        slot
    }

    /// Whether a page is present.
    pub(crate) fn is_present(&self, index: u64) -> bool {
        !matches!(self.get(index), Slot::Empty)
    }

    /// Fills `buf` with bytes of a page.
    pub(crate) fn read(&self, index: u64, from: usize, buf: &mut [u8]) {
        match self.get(index) {
            Slot::Page(page) => buf.copy_from_slice(&page.bytes[from..from + buf.len()]),
            Slot::Kept(page) => page.read(from, buf),
            // A branch is never where a page is.
            Slot::Empty | Slot::Branch(_) => buf.fill(0),
        }
    }

    /// The place of a page, with branches down to it.
    fn slot(&mut self, index: u64) -> &mut Slot {
        while !self.holds(index) && self.height < HEIGHT_MAX {
            if !matches!(self.root, Slot::Empty) {
                let mut branch = Branch::new();
                branch.slots[0] = std::mem::take(&mut self.root);
                self.root = Slot::Branch(Arc::new(branch));
            }
            self.height += 1;
        }
        let mut slot = &mut self.root;
        for level in (1..=self.height).rev() {
            if matches!(slot, Slot::Empty) {
                *slot = Slot::Branch(Arc::new(Branch::new()));
            }
            if let Slot::Branch(branch) = slot {
                let branch = Arc::make_mut(branch);
                branch.sum = OnceLock::new();
                slot = &mut branch.slots[digit(index, level)];
            } else {
                // A page lies at level 0 alone.
                return slot;
            }
        }
        slot
    }

    /// Writes into a page, which is made if it is absent.
    pub(crate) fn write(&mut self, index: u64, from: usize, data: &[u8]) {
        let slot = self.slot(index);
        let whole = <[u8; PAGE]>::try_from(data).ok();
        let added = matches!(slot, Slot::Empty);
        match (slot, whole) {
            // The old content is overwritten whole: it is not copied.
            (slot, Some(bytes)) => *slot = Slot::Page(Arc::new(Page::new(bytes))),
            (slot, None) => {
                fetch(slot);
                if added {
                    *slot = Slot::Page(Arc::new(Page::new([0; PAGE])));
                }
                if let Slot::Page(page) = slot {
                    let page = Arc::make_mut(page);
                    page.digest = OnceLock::new();
                    page.bytes[from..from + data.len()].copy_from_slice(data);
                }
            }
        }
        self.len += u64::from(added);
    }

    /// The same with bytes that are kept elsewhere, too: they are left there as far as that can be done.
    pub(crate) fn write_kept(&mut self, index: u64, from: usize, data: &[u8], kept: &Kept) {
        let slot = self.slot(index);
        let page = match slot {
            Slot::Kept(page) if data.len() < PAGE => page.with(from, data.len(), kept),
            Slot::Page(_) if data.len() < PAGE => None,
            _ => Some(KeptPage::new(from, data.len(), kept)),
        };
        match page {
            Some(page) => {
                let added = matches!(slot, Slot::Empty);
                *slot = Slot::Kept(Arc::new(page));
                self.len += u64::from(added);
            }
            None => self.write(index, from, data),
        }
    }

    /// Makes a part of a page zero, if it is present.
    pub(crate) fn zero(&mut self, index: u64, from: usize, to: usize) {
        if !self.is_present(index) {
            return;
        }
        let slot = self.slot(index);
        fetch(slot);
        if let Slot::Page(page) = slot {
            let page = Arc::make_mut(page);
            page.digest = OnceLock::new();
            page.bytes[from..to].fill(0);
        }
    }

    /// Takes out the pages of a range.
    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        if self.next(from).is_none_or(|first| first >= to) {
            return;
        }
        let gone = remove(&mut self.root, self.height, 0, (from.into(), to.into()));
        self.len -= gone;
        if matches!(self.root, Slot::Empty) {
            self.height = 0;
        }
    }

    /// The first present page from this one on.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        next(&self.root, self.height, 0, from)
    }

    /// The present pages, growing.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let mut at = self.next(0);
        std::iter::from_fn(move || {
            let this = at?;
            at = this.checked_add(1).and_then(|from| self.next(from));
            Some(this)
        })
    }

    /// Sum of the hashes of all pages that are not zero, with their numbers.
    pub(crate) fn sum(&self) -> u128 {
        sum(&self.root, self.height, 0)
    }
}

/// Fetches the bytes of a page that are kept elsewhere.
fn fetch(slot: &mut Slot) {
    if let Slot::Kept(page) = slot {
        *slot = Slot::Page(Arc::new(Page::new(page.bytes())));
    }
}

/// Returns how many pages went. `base` is the first page below the slot.
fn remove(slot: &mut Slot, level: u32, base: u128, range: (u128, u128)) -> u64 {
    let end = base + span(level);
    if range.1 <= base || end <= range.0 {
        return 0;
    }
    if range.0 <= base && end <= range.1 {
        let gone = count(slot);
        *slot = Slot::Empty;
        return gone;
    }
    let Slot::Branch(branch) = slot else {
        return 0;
    };
    let branch = Arc::make_mut(branch);
    branch.sum = OnceLock::new();
    let mut gone = 0;
    for (i, slot) in branch.slots.iter_mut().enumerate() {
        let base = base + i as u128 * span(level - 1);
        gone += remove(slot, level - 1, base, range);
    }
    if branch.slots.iter().all(|s| matches!(s, Slot::Empty)) {
        *slot = Slot::Empty;
    }
    gone
}

fn count(slot: &Slot) -> u64 {
    match slot {
        Slot::Empty => 0,
        Slot::Page(_) | Slot::Kept(_) => 1,
        Slot::Branch(branch) => branch.slots.iter().map(count).sum(),
    }
}

fn next(slot: &Slot, level: u32, base: u64, from: u64) -> Option<u64> {
    match slot {
        Slot::Empty => None,
        Slot::Page(_) | Slot::Kept(_) => (base >= from).then_some(base),
        Slot::Branch(branch) => {
            let first = match from > base {
                true if u128::from(from - base) >= span(level) => return None,
                true => digit(from, level),
                false => 0,
            };
            (first..FAN).find_map(|i| {
                let base = base + ((i as u64) << (BITS * (level - 1)));
                next(&branch.slots[i], level - 1, base, from)
            })
        }
    }
}

fn sum(slot: &Slot, level: u32, base: u64) -> u128 {
    let placed = |digest| Hasher128::new(12).u64(base).u128(digest).finish();
    match slot {
        Slot::Empty => 0,
        Slot::Page(page) => page.digest().map_or(0, placed),
        Slot::Kept(page) => page.digest(hash).map_or(0, placed),
        Slot::Branch(branch) => *branch.sum.get_or_init(|| {
            let below = branch.slots.iter().enumerate().map(|(i, slot)| {
                let base = base + ((i as u64) << (BITS * (level - 1)));
                sum(slot, level - 1, base)
            });
            below.fold(0, u128::wrapping_add)
        }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn they_behave_like_a_map_and_old_versions_never_change() {
        let mut seed = 5u64;
        let mut chance = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(9);
            (seed >> 33) % n
        };
        let (mut pages, mut plain) = (Pages::default(), BTreeMap::<u64, u8>::new());
        let mut kept: Vec<(Pages, BTreeMap<u64, u8>)> = Vec::new();
        for round in 0..4000 {
            // Near and far: branches of several heights.
            let index = chance(40) << [0, 0, 3, 9, 30, 48, 58][chance(7) as usize];
            match chance(5) {
                0 => {
                    let to = index.saturating_add(chance(100));
                    pages.remove(index, to);
                    plain.retain(|k, _| *k < index || *k >= to);
                }
                1 => {
                    pages.zero(index, 0, PAGE);
                    plain.entry(index).and_modify(|b| *b = 0);
                }
                2 => {
                    pages.write(index, 0, &[round as u8]);
                    plain.insert(index, round as u8);
                }
                _ => {
                    pages.write(index, 0, &[round as u8; PAGE]);
                    plain.insert(index, round as u8);
                }
            }
            if chance(40) == 0 {
                kept.push((pages.clone(), plain.clone()));
            }
            if round % 50 == 0 {
                kept.push((pages.clone(), plain.clone()));
                for (pages, plain) in &kept {
                    assert!(pages.numbers().eq(plain.keys().copied()));
                    assert_eq!(pages.len(), plain.len() as u64);
                    for (index, byte) in plain {
                        let mut first = [0];
                        pages.read(*index, 0, &mut first);
                        assert_eq!(first[0], *byte);
                    }
                    let from = chance(1 << 40);
                    let want = plain.range(from..).next().map(|(k, _)| *k);
                    assert_eq!(pages.next(from), want);
                }
                kept.truncate(4);
            }
        }
    }

    #[test]
    fn the_sum_is_that_of_the_same_pages_made_anew() {
        let mut pages = Pages::default();
        for index in (0..3000).step_by(7) {
            pages.write(index, 3, &[index as u8, 1]);
            let _ = pages.sum();
        }
        pages.remove(100, 2000);
        pages.zero(7, 0, PAGE);
        let mut fresh = Pages::default();
        for index in pages.numbers() {
            let mut bytes = [0; PAGE];
            pages.read(index, 0, &mut bytes);
            fresh.write(index, 0, &bytes);
        }
        assert_eq!(pages.sum(), fresh.sum());
        fresh.write(2996, 9, &[1]);
        assert_ne!(pages.sum(), fresh.sum());
    }

    #[test]
    fn a_write_to_a_shared_version_copies_one_way_down() {
        let mut pages = Pages::default();
        for index in 0..5000 {
            pages.write(index, 0, &[1; PAGE]);
        }
        let before = pages.clone();
        assert!(before.is_same(&pages));
        pages.write(2500, 0, &[2]);
        assert!(!before.is_same(&pages));
        let shared = |a: &Slot, b: &Slot| match (a, b) {
            (Slot::Branch(a), Slot::Branch(b)) => Arc::ptr_eq(a, b),
            (Slot::Page(a), Slot::Page(b)) => Arc::ptr_eq(a, b),
            _ => matches!((a, b), (Slot::Empty, Slot::Empty)),
        };
        let (mut a, mut b) = (&before.root, &pages.root);
        while let (Slot::Branch(x), Slot::Branch(y)) = (a, b) {
            let differ: Vec<usize> = (0..FAN)
                .filter(|i| !shared(&x.slots[*i], &y.slots[*i]))
                .collect();
            assert_eq!(differ.len(), 1, "one way alone is copied");
            (a, b) = (&x.slots[differ[0]], &y.slots[differ[0]]);
        }
    }
}
