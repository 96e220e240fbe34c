//! A set of block numbers as a bitmap.

/// One bit per block.
#[derive(Clone)]
pub(super) struct Bits {
    words: Vec<u64>,
    len: u64,
}

impl Bits {
    /// An empty set of numbers below `len`.
    pub(super) fn new(len: u64) -> Bits {
        let words = usize::try_from(len.div_ceil(64)).unwrap_or(usize::MAX);
        Bits {
            words: vec![0; words],
            len,
        }
    }

    pub(super) fn get(&self, at: u64) -> bool {
        at < self.len && self.words[(at / 64) as usize] >> (at % 64) & 1 == 1
    }

    /// Adds a number; false if it was there, or is out of range.
    pub(super) fn insert(&mut self, at: u64) -> bool {
        if at >= self.len {
            return false;
        }
        let word = &mut self.words[(at / 64) as usize];
        let bit = 1 << (at % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    pub(super) fn remove(&mut self, at: u64) {
        if at < self.len {
            self.words[(at / 64) as usize] &= !(1 << (at % 64));
        }
    }

    /// The first number from `from` on that is in the set (`value`) or not, below `end`.
    pub(super) fn next(&self, from: u64, end: u64, value: bool) -> Option<u64> {
        let end = end.min(self.len);
        let mut at = from;
        while at < end {
            let word = self.words[(at / 64) as usize];
            let word = (if value { word } else { !word }) >> (at % 64);
            if word != 0 {
                let found = at + u64::from(word.trailing_zeros());
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Adds `start .. start + len` where it is not yet; calls `clash` with the runs that were there.
    pub(super) fn insert_run(&mut self, start: u64, len: u64, mut clash: impl FnMut(u64, u64)) {
        let end = start + len;
        let mut at = start;
        while at < end {
            let taken = self.next(at, end, true).unwrap_or(end);
            for free in at..taken {
                self.insert(free);
            }
            if taken == end {
                break;
            }
            let next = self.next(taken, end, false).unwrap_or(end);
            clash(taken, next - taken);
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_added_around_existing_bits() {
        let mut bits = Bits::new(300);
        assert!(bits.insert(70) && !bits.insert(70) && bits.insert(130) && bits.insert(131));
        let mut clashes = Vec::new();
        bits.insert_run(60, 100, |at, len| clashes.push((at, len)));
        assert_eq!(clashes, [(70, 1), (130, 2)]);
        assert_eq!(bits.next(0, 300, true), Some(60));
        assert_eq!(bits.next(60, 300, false), Some(160));
        assert_eq!(bits.next(160, 300, true), None);
        assert!(!bits.insert(300) && !bits.get(300));
        bits.remove(60);
        assert_eq!(bits.next(0, 300, true), Some(61));
    }
}
