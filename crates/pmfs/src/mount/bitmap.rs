//! A bit for each page of a region, set by several threads.

use crate::layout::Page;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of a region that are in use.
pub(crate) struct Bitmap(Vec<AtomicU64>);

impl Bitmap {
    /// An empty bitmap of `pages` pages.
    pub(crate) fn new(pages: u64) -> Bitmap {
        let words = pages.div_ceil(64);
        Bitmap((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn set(&self, page: Page) {
        self.set_range(page.0..page.0 + 1);
    }

    /// Sets the bits of a range. Bits past the last page are ignored.
    pub(crate) fn set_range(&self, pages: Range<u64>) {
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min((at / 64 + 1) * 64);
            let mask = u64::MAX >> (64 - (end - at)) << (at % 64);
            if let Some(word) = self.0.get((at / 64) as usize) {
                word.fetch_or(mask, Ordering::Relaxed);
            }
            at = end;
        }
    }

    pub(crate) fn contains(&self, page: Page) -> bool {
        let word = self.0.get((page.0 / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (page.0 % 64) & 1 == 1)
    }

    /// The ranges of pages in `pages` whose bits are clear.
    pub(crate) fn clear_ranges(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut at = pages.start;
        while at < pages.end {
            let word = self.0.get((at / 64) as usize);
            let word = word.map_or(u64::MAX, |word| word.load(Ordering::Relaxed)) >> (at % 64);
            let left = (64 - at % 64).min(pages.end - at);
            let used = u64::from(word.trailing_ones()).min(left);
            at += used;
            let free = u64::from((word.checked_shr(used as u32).unwrap_or(0)).trailing_zeros());
            let free = free.min(left - used);
            if free > 0 {
                match ranges.last_mut() {
                    Some(last) if last.end == at => last.end += free,
                    _ => ranges.push(at..at + free),
                }
            }
            at += free;
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn clear_ranges_are_the_unset_bits(
            set in prop::collection::vec((0..300u64, 0..70u64), 0..8), from in 0..200u64, len in 0..200u64
        ) {
            let bitmap = Bitmap::new(400);
            let mut model = [false; 400];
            for (start, len) in set {
                bitmap.set_range(start..start + len);
                model[start as usize..(start + len) as usize].fill(true);
            }
            let ranges = bitmap.clear_ranges(from..from + len);
            let clear: Vec<u64> = ranges.iter().cloned().flatten().collect();
            let expected: Vec<u64> = (from..from + len).filter(|at| !model[*at as usize]).collect();
            prop_assert_eq!(clear, expected);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert!((0..400).all(|at| bitmap.contains(Page(at)) == model[at as usize]));
        }
    }
}
