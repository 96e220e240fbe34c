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

/// The words that `start .. start + len` touches, each with the positions concerned.
fn words(start: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = start + len;
    let mut at = start;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (word, bit) = (at / 64, at % 64);
            let n = (64 - bit).min(end - at);
            at += n;
            (word, (u64::MAX >> (64 - n)) << bit)
        })
    })
}

impl<const WORDS: usize> Mask<WORDS> {
    /// Positions that a mask has.
    const LEN: usize = WORDS * 64;

    /// Adds `start .. start + len`; returns how many of them are new.
    pub(crate) fn insert(&mut self, start: usize, len: usize) -> usize {
        let mut new = 0;
        for (word, positions) in words(start, len) {
            new += (positions & !self.0[word]).count_ones();
            self.0[word] |= positions;
        }
        new as usize
    }

    /// Whether one of `start .. start + len` is in the set.
    pub(crate) fn meets(&self, start: usize, len: usize) -> bool {
        words(start, len).any(|(word, positions)| self.0[word] & positions != 0)
    }

    /// Whether the position before `start` or the one at `start + len` is in the set.
    pub(crate) fn adjoins(&self, start: usize, len: usize) -> bool {
        let end = start + len;
        (start > 0 && self.meets(start - 1, 1)) || (end < Self::LEN && self.meets(end, 1))
    }

    pub(crate) fn union(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    /// Takes the positions of `other` out.
    pub(crate) fn subtract(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a &= !b;
        }
    }

    /// Whether no position is in the set.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
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
        fn runs_are_the_inserted_ranges(ranges in prop::collection::vec((0usize..4096, 1usize..600), 0..12)) {
            let mut mask = ByteMask::default();
            let mut plain = vec![false; 4096];
            for (start, len) in ranges {
                let len = len.min(4096 - start);
                let new = plain[start..start + len].iter().filter(|in_set| !**in_set).count();
                let some = plain[start..start + len].iter().any(|in_set| *in_set);
                let beside = (start > 0 && plain[start - 1]) || plain.get(start + len) == Some(&true);
                prop_assert_eq!(mask.meets(start, len), some);
                prop_assert_eq!(mask.adjoins(start, len), beside);
                prop_assert_eq!(mask.insert(start, len), new);
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
            let (mut rest, mut half) = (mask.clone(), ByteMask::default());
            half.insert(0, 2048);
            rest.subtract(&half);
            prop_assert!(!rest.meets(0, 2048));
            prop_assert_eq!(rest.is_empty(), !plain[2048..].contains(&true));
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
