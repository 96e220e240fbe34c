//! The production kinds of pages and tables: bytes and vectors.

use crate::platform::{Page, Queue, Table};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A page with its spare area, little endian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytes(pub Box<[u8]>);

impl Bytes {
    /// A page of zeros, of this length with its spare area.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Bytes {
        Bytes(vec![0; bytes].into())
    }

    /// Expected and actual last word. The page's number is added, so that of two places at most one
    /// has it right.
    fn checksum(&self, volume: u64, at: u64) -> (u64, u64) {
        let (body, last) = self.0.split_at(self.0.len() - 8);
        let mut word = [0; 8];
        word.copy_from_slice(last);
        let computed = xxh3_64_with_seed(body, volume).wrapping_add(at);
        (computed, u64::from_le_bytes(word))
    }
}

impl Page<u64> for Bytes {
    #[inline(always)]
    fn word(&self, at: u64) -> u64 {
        let at = at as usize * 8;
        let mut word = [0; 8];
        word.copy_from_slice(&self.0[at..at + 8]);
        u64::from_le_bytes(word)
    }

    #[inline(always)]
    fn set_word(&mut self, at: u64, value: u64) {
        let at = at as usize * 8;
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn seal(&mut self, volume: u64, at: u64) {
        let (checksum, _) = self.checksum(volume, at);
        let last = self.0.len() - 8;
        self.0[last..].copy_from_slice(&checksum.to_le_bytes());
    }

    fn is_intact(&self, volume: u64, at: u64) -> bool {
        let (computed, stored) = self.checksum(volume, at);
        computed == stored
    }

    fn is_blank(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0xFF)
    }
}

/// Entries of 32 bits.
#[derive(Clone, Debug)]
pub struct Entries(Vec<u32>);

impl Table<u64> for Entries {
    fn filled(length: u64, value: u64) -> Entries {
        Entries(vec![value as u32; length as usize])
    }

    #[inline(always)]
    fn get(&self, at: u64) -> u64 {
        u64::from(self.0[at as usize])
    }

    #[inline(always)]
    fn set(&mut self, at: u64, value: u64) {
        self.0[at as usize] = value as u32;
    }
}

impl Entries {
    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<u32>()
    }
}

/// Numbers of 64 bits.
#[derive(Clone, Debug, Default)]
pub struct Numbers(Vec<u64>);

impl Queue<u64> for Numbers {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    #[inline(always)]
    fn get(&self, at: u64) -> u64 {
        self.0[at as usize]
    }

    #[inline(always)]
    fn set(&mut self, at: u64, value: u64) {
        self.0[at as usize] = value;
    }

    #[inline(always)]
    fn push(&mut self, value: u64) {
        self.0.push(value);
    }

    fn truncate(&mut self, length: u64) {
        self.0.truncate(length as usize);
    }

    fn sort(&mut self) {
        self.0.sort_unstable();
    }
}
