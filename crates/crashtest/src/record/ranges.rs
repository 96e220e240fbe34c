//! Sets of bytes of a file, as ranges that neither overlap nor touch.

use std::collections::BTreeMap;

/// Ends by beginnings. A range that ends at `u64::MAX` has no end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds the bytes from `from` to before `to`.
    pub(super) fn add(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        if let Some((&first, &end)) = self.0.range(..=from).next_back()
            && end >= from
        {
            from = first;
            to = to.max(end);
        }
        while let Some((&next, &end)) = self.0.range(from..=to).next() {
            to = to.max(end);
            self.0.remove(&next);
        }
        self.0.insert(from, to);
    }

    /// The parts of a range that are not in the set.
    pub(super) fn missing(&self, mut from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        if let Some((_, &end)) = self.0.range(..=from).next_back() {
            from = from.max(end);
        }
        for (&next, &end) in self.0.range(from..) {
            if next >= to {
                break;
            }
            if from < next {
                missing.push((from, next));
            }
            from = end;
        }
        if from < to {
            missing.push((from, to));
        }
        missing
    }

    /// Whether everything from some byte on is in the set.
    pub(super) fn is_endless(&self) -> bool {
        self.0
            .last_key_value()
            .is_some_and(|(_, end)| *end == u64::MAX)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(from, to)| (*from, *to))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::Ranges;

    /// Each byte by itself.
    #[test]
    fn ranges_are_the_bytes_that_were_added() {
        let mut seed = 7_u64;
        let mut next = move |max: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) % max
        };
        for _ in 0..300 {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 40]);
            for _ in 0..next(9) {
                let (from, to) = (next(40), next(41));
                ranges.add(from, to);
                (from..to).for_each(|b| bytes[b as usize] = true);
            }
            let held: Vec<u64> = ranges.iter().flat_map(|(a, b)| a..b).collect();
            let wanted: Vec<u64> = (0..40).filter(|b| bytes[*b as usize]).collect();
            assert_eq!(held, wanted);
            let touching = ranges.iter().zip(ranges.iter().skip(1));
            assert!(touching.into_iter().all(|(a, b)| a.1 < b.0), "{ranges:?}");
            let (from, to) = (next(40), next(41));
            let missing = ranges.missing(from, to);
            let missing: Vec<u64> = missing.into_iter().flat_map(|(a, b)| a..b).collect();
            let wanted: Vec<u64> = (from..to).filter(|b| !bytes[*b as usize]).collect();
            assert_eq!(missing, wanted, "{ranges:?} {from} {to}");
        }
    }

    #[test]
    fn a_set_without_an_end_says_so() {
        let mut ranges = Ranges::default();
        ranges.add(0, 9);
        assert!(!ranges.is_endless());
        ranges.add(5, u64::MAX);
        assert!(ranges.is_endless());
        assert_eq!(ranges.missing(0, u64::MAX), []);
    }
}
