//! Numbers of the translation layer: `u64`, or a solver's terms. See `platform`.

use core::ops::{Add, BitAnd, Shl, Shr, Sub};

/// A number: `u64`, or a solver's term.
pub trait Word:
    Copy
    + PartialEq
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + BitAnd<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
{
    /// This number.
    fn of(value: u64) -> Self;
    /// The value, where the number indexes the platform's memory, paces, or goes into a message.
    /// No decision that correctness rests on is made on it.
    fn value(self) -> u64;
    /// This number, `factor` times.
    fn times(self, factor: u64) -> Self;
    /// Two numbers below 2^32 in one.
    fn pack(high: Self, low: Self) -> Self {
        (high << 32) + low
    }
    /// The upper half.
    fn high(self) -> Self {
        self >> 32
    }
    /// The lower half.
    fn low(self) -> Self {
        self & Self::of(0xFFFF_FFFF)
    }
}

impl Word for u64 {
    #[inline(always)]
    fn of(value: u64) -> u64 {
        value
    }

    #[inline(always)]
    fn value(self) -> u64 {
        self
    }

    #[inline(always)]
    fn times(self, factor: u64) -> u64 {
        self * factor
    }
}
