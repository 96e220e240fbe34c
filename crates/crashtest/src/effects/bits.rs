//! Sets of effects.

use std::hash::{Hash, Hasher};

/// A set of small numbers. Trailing zero words do not count.
#[derive(Clone, Debug, Default)]
pub struct Bits(Vec<u64>);

impl PartialEq for Bits {
    fn eq(&self, other: &Bits) -> bool {
        self.contains(other) && other.contains(self)
    }
}

impl Eq for Bits {}

impl Hash for Bits {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let used = self.0.iter().rposition(|w| *w != 0).map_or(0, |i| i + 1);
        self.0[..used].hash(state);
    }
}

impl Bits {
    /// The empty set.
    #[must_use]
    pub fn new() -> Bits {
        Bits::default()
    }

    /// The numbers below `n`.
    #[must_use]
    pub fn first(n: usize) -> Bits {
        let mut words = vec![u64::MAX; n / 64];
        if !n.is_multiple_of(64) {
            words.push((1 << (n % 64)) - 1);
        }
        Bits(words)
    }

    /// Whether `i` is in it.
    #[must_use]
    pub fn get(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    /// Adds `i`.
    pub fn insert(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }

    /// Takes `i` out.
    pub fn remove(&mut self, i: usize) {
        if let Some(w) = self.0.get_mut(i / 64) {
            *w &= !(1 << (i % 64));
        }
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Bits) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (w, o) in self.0.iter_mut().zip(&other.0) {
            *w |= o;
        }
    }

    /// Takes all of `other` out.
    pub fn subtract(&mut self, other: &Bits) {
        for (w, o) in self.0.iter_mut().zip(&other.0) {
            *w &= !o;
        }
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub fn contains(&self, other: &Bits) -> bool {
        let mine = self.0.iter().copied().chain(std::iter::repeat(0));
        other.0.iter().zip(mine).all(|(o, w)| o & !w == 0)
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    /// The largest element.
    #[must_use]
    pub fn last(&self) -> Option<usize> {
        let word = self.0.iter().rposition(|w| *w != 0)?;
        Some(word * 64 + 63 - self.0[word].leading_zeros() as usize)
    }

    /// The smallest number that is not in it.
    #[must_use]
    pub fn first_missing(&self) -> usize {
        let full = self.0.iter().take_while(|w| **w == u64::MAX).count();
        let rest = self.0.get(full).map_or(0, |w| w.trailing_ones());
        full * 64 + rest as usize
    }

    /// All elements, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let words = self.0.iter().enumerate();
        words.flat_map(|(i, word)| ones(i, *word))
    }

    /// The numbers below `n` that are not in it, in ascending order.
    pub fn missing(&self, n: usize) -> impl Iterator<Item = usize> + '_ {
        let rest = self.0.iter().copied().chain(std::iter::repeat(0));
        let words = rest.take(n.div_ceil(64)).enumerate();
        words
            .flat_map(|(i, word)| ones(i, !word))
            .take_while(move |i| *i < n)
    }
}

/// The elements of the word at `at`.
fn ones(at: usize, word: u64) -> impl Iterator<Item = usize> {
    let mut rest = word;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            at * 64 + bit
        })
    })
}

impl FromIterator<usize> for Bits {
    fn from_iter<T: IntoIterator<Item = usize>>(all: T) -> Bits {
        let mut bits = Bits::new();
        for i in all {
            bits.insert(i);
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_and_what_is_there_are_all_numbers() {
        for n in [0, 1, 63, 64, 65, 130, 300] {
            let some: Bits = (0..200).filter(|i| i % 3 == 0 || *i < 70).collect();
            let missing: Vec<usize> = some.missing(n).collect();
            let wanted: Vec<usize> = (0..n).filter(|i| !some.get(*i)).collect();
            assert_eq!(missing, wanted);
            assert_eq!(Bits::first(n).missing(n).count(), 0);
        }
    }
}
