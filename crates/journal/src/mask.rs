//! Sets of bytes or bits of one block: which part of it a transaction owns.

/// A set over `WORDS * 64` positions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mask<const WORDS: usize>([u64; WORDS]);

/// The bytes of a block.
pub(crate) type ByteMask = Mask<64>;
/// The bits of a block.
pub(crate) type BitMask = Mask<512>;

impl<const WORDS: usize> Default for Mask<WORDS> {
    fn default() -> Self {
        Mask([0; WORDS])
    }
}

impl<const WORDS: usize> Mask<WORDS> {
    /// Adds `start .. start + len`.
    pub(crate) fn insert(&mut self, start: usize, len: usize) {
        let end = start + len;
        let mut at = start;
        while at < end {
            let (word, bit) = (at / 64, at % 64);
            let n = (64 - bit).min(end - at);
            self.0[word] |= (u64::MAX >> (64 - n)) << bit;
            at += n;
        }
    }

    pub(crate) fn intersects(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// Whether one of `start .. start + len` is in the set.
    pub(crate) fn meets(&self, start: usize, len: usize) -> bool {
        (start..start + len).any(|at| self.0[at / 64] >> (at % 64) & 1 == 1)
    }

    /// Whether `other` holds everything that this does.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a & !b == 0)
    }

    pub(crate) fn union(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    /// The maximal runs `(start, len)`, ascending.
    pub(crate) fn runs(&self) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (i, word) in self.0.iter().enumerate() {
            let (mut w, mut base) = (*word, i * 64);
            while w != 0 {
                let skip = w.trailing_zeros() as usize;
                base += skip;
                w >>= skip;
                let len = (!w).trailing_zeros().min(64) as usize;
                match runs.last_mut() {
                    Some(last) if last.0 + last.1 == base => last.1 += len,
                    _ => runs.push((base, len)),
                }
                base += len;
                w = if len == 64 { 0 } else { w >> len };
            }
        }
        runs
    }
}

/// Byte runs with gaps of up to `gap` bytes closed: a range header costs more than a few bytes.
pub(crate) fn close_gaps(runs: Vec<(usize, usize)>, gap: usize) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = Vec::with_capacity(runs.len());
    for (start, len) in runs {
        match out.last_mut() {
            Some(last) if start - (last.0 + last.1) <= gap => last.1 = start + len - last.0,
            _ => out.push((start, len)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_are_what_was_inserted(ranges in prop::collection::vec((0usize..4096, 1usize..600), 0..12)) {
            let mut mask = ByteMask::default();
            let mut plain = vec![false; 4096];
            for (start, len) in ranges {
                let len = len.min(4096 - start);
                mask.insert(start, len);
                plain[start..start + len].fill(true);
            }
            let mut seen = vec![false; 4096];
            let runs = mask.runs();
            for pair in runs.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 < pair[1].0, "runs are maximal and ascending");
            }
            for (start, len) in runs {
                seen[start..start + len].fill(true);
            }
            prop_assert_eq!(&seen, &plain);
        }
    }

    #[test]
    fn gaps_up_to_the_bound_are_closed() {
        assert_eq!(
            close_gaps(vec![(0, 4), (8, 2), (20, 1)], 4),
            vec![(0, 10), (20, 1)]
        );
    }
}
