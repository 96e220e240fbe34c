//! Numbers of 64 bits for code under test. Arithmetic must not overflow: each operation proves
//! that it does not. Comparing is branching.

use crate::explore::{branch, prove, unknown};
use crate::term::{Term, is_proper, number};
use std::cmp::Ordering;
use std::ops::{Add, BitAnd, Shl, Shr, Sub};

#[derive(Clone, Copy, Debug)]
pub struct Word(pub Term);

impl Word {
    pub fn of(value: u64) -> Word {
        Word(number(64, value))
    }

    /// Any number.
    pub fn any(name: &str) -> Word {
        Word(unknown(name, 64))
    }

    /// Any number below 2^bits.
    pub fn bits(name: &str, bits: u32) -> Word {
        Word(unknown(name, bits).widened())
    }
}

impl Add for Word {
    type Output = Word;

    #[track_caller]
    fn add(self, other: Word) -> Word {
        let sum = self.0.filled(other.0);
        prove("an addition overflows", self.0.at_most(sum));
        Word(sum)
    }
}

impl Sub for Word {
    type Output = Word;

    #[track_caller]
    fn sub(self, other: Word) -> Word {
        prove("a subtraction goes below zero", other.0.at_most(self.0));
        let difference = self.0.minus(other.0);
        is_proper(difference);
        Word(difference)
    }
}

impl BitAnd for Word {
    type Output = Word;

    fn bitand(self, other: Word) -> Word {
        match (self.0.as_number(), other.0.as_number()) {
            (_, Some(bits)) => Word(self.0.masked(bits)),
            (Some(bits), _) => Word(other.0.masked(bits)),
            _ => unreachable!("masks are numbers"),
        }
    }
}

/// The largest number that can be shifted by so much.
fn largest_shifted(by: u32) -> Term {
    number(64, u64::MAX.checked_shr(by).unwrap_or(0))
}

impl Shl<u32> for Word {
    type Output = Word;

    #[track_caller]
    fn shl(self, by: u32) -> Word {
        prove("a shift drops bits", self.0.at_most(largest_shifted(by)));
        Word(self.0.raised(by))
    }
}

impl Shr<u32> for Word {
    type Output = Word;

    fn shr(self, by: u32) -> Word {
        Word(self.0.shifted(by))
    }
}

impl PartialEq for Word {
    fn eq(&self, other: &Word) -> bool {
        branch(self.0.equal(other.0))
    }
}

impl PartialOrd for Word {
    fn partial_cmp(&self, other: &Word) -> Option<Ordering> {
        Some(if self == other {
            Ordering::Equal
        } else if self < other {
            Ordering::Less
        } else {
            Ordering::Greater
        })
    }

    fn lt(&self, other: &Word) -> bool {
        branch(self.0.below(other.0))
    }

    fn le(&self, other: &Word) -> bool {
        branch(self.0.at_most(other.0))
    }

    fn gt(&self, other: &Word) -> bool {
        branch(other.0.below(self.0))
    }

    fn ge(&self, other: &Word) -> bool {
        branch(other.0.at_most(self.0))
    }
}
