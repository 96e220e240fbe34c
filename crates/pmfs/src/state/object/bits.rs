//! A set of small numbers that finds its least members in logarithmic time: bitmaps over bitmaps.

use std::ops::Range;

/// The set. Level 0 has a bit for each number; each further level has a bit for each word that is not 0.
pub(super) struct Bits {
    levels: Vec<Vec<u64>>,
    count: u64,
}

impl Bits {
    /// The empty set of numbers below `end`.
    pub(super) fn new(end: u64) -> Bits {
        let mut levels = Vec::new();
        let mut words = end.max(1).div_ceil(64);
        levels.push(vec![0; words as usize]);
        while words > 1 {
            words = words.div_ceil(64);
            levels.push(vec![0; words as usize]);
        }
        Bits { levels, count: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Adds a number. Nothing happens if it is in already, or too large.
    pub(super) fn set(&mut self, number: u64) {
        let mut index = number as usize;
        let Some(word) = self.levels[0].get(index / 64) else {
            return;
        };
        if word >> (index % 64) & 1 == 1 {
            return;
        }
        self.count += 1;
        for level in &mut self.levels {
            level[index / 64] |= 1 << (index % 64);
            index /= 64;
        }
    }

    /// Adds a range, word by word.
    pub(super) fn set_range(&mut self, range: Range<u64>) {
        let end = (self.levels[0].len() as u64 * 64).min(range.end);
        let mut at = range.start;
        while at < end {
            let upto = end.min((at / 64 + 1) * 64);
            let mask = u64::MAX >> (64 - (upto - at)) << (at % 64);
            let word = &mut self.levels[0][(at / 64) as usize];
            self.count += u64::from((mask & !*word).count_ones());
            *word |= mask;
            let mut index = at as usize / 64;
            for level in &mut self.levels[1..] {
                level[index / 64] |= 1 << (index % 64);
                index /= 64;
            }
            at = upto;
        }
    }

    /// Takes the least numbers out: bit `i` of the second is set for 32 times the first + `i`.
    pub(super) fn take_half(&mut self) -> Option<(u64, u32)> {
        let mut index = 0usize;
        for level in self.levels[1..].iter().rev() {
            let word = level[index];
            if word == 0 {
                return None;
            }
            index = index * 64 + word.trailing_zeros() as usize;
        }
        let word = &mut self.levels[0][index];
        let upper = u32::from(*word as u32 == 0);
        let bits = (*word >> (32 * upper)) as u32;
        if bits == 0 {
            return None;
        }
        *word &= !(u64::from(bits) << (32 * upper));
        self.count -= u64::from(bits.count_ones());
        let half = index as u64 * 2 + u64::from(upper);
        if *word != 0 {
            return Some((half, bits));
        }
        for level in &mut self.levels[1..] {
            level[index / 64] &= !(1 << (index % 64));
            if level[index / 64] != 0 {
                break;
            }
            index /= 64;
        }
        Some((half, bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_members_come_out_first_whatever_was_put_in() {
        for end in [1, 64, 65, 4096, 4097, 300_000] {
            let mut bits = Bits::new(end);
            let mut model = std::collections::BTreeSet::new();
            let mut x = 12345u64;
            for _ in 0..2000 {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if x >> 60 == 15 {
                    let start = (x >> 20) % end;
                    let range = start..start + (x >> 10) % 300;
                    bits.set_range(range.clone());
                    model.extend(range.start..range.end.min(end.next_multiple_of(64)));
                } else if x >> 60 < 8 {
                    let number = (x >> 20) % end;
                    bits.set(number);
                    model.insert(number);
                } else {
                    let half = model.first().map(|first| first / 32);
                    let taken = bits.take_half();
                    assert_eq!(taken.map(|(half, _)| half), half);
                    if let Some((half, bits)) = taken {
                        for bit in 0..32 {
                            let was_in = model.remove(&(half * 32 + bit));
                            assert_eq!(was_in, bits >> bit & 1 == 1);
                        }
                    }
                }
                assert_eq!(bits.count(), model.len() as u64);
            }
        }
    }

    #[test]
    fn numbers_past_the_end_are_ignored() {
        let mut bits = Bits::new(64);
        bits.set(64);
        bits.set_range(60..1000);
        assert_eq!(bits.count(), 4);
        assert_eq!(bits.take_half(), Some((1, 0xf << 28)));
        assert_eq!(bits.take_half(), None);
    }
}
