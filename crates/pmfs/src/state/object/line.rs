//! A cache line whose commit word is stored last.
//!
//! Stores to one line persist in program order (x86): if the last of them is durable, all of them are. So a line whose last
//! store is its commit word needs no fence of its own (SquirrelFS §3.4 fences between the two).

use super::medium::Medium;
use crate::layout::LINE_BYTES;
use steadfast_pm::Line;

/// A line that is being written. [`commit`](LineWriter::commit) stores the commit word and consumes the writer: nothing can
/// follow it.
#[must_use = "a line without its commit word counts for nothing"]
pub struct LineWriter<'m> {
    /// First byte of the object.
    at: u64,
    /// The line that all words are in.
    line: Line<'m>,
    #[cfg(debug_assertions)]
    number: u64,
}

impl<'m> LineWriter<'m> {
    /// The first line of the object at `at`.
    #[inline]
    pub(super) fn new(m: &'m Medium, at: u64) -> LineWriter<'m> {
        LineWriter::of(m, at, 0)
    }

    /// The line of the object at `at` that has its byte `offset`.
    #[inline]
    pub(super) fn of(m: &'m Medium, at: u64, offset: u64) -> LineWriter<'m> {
        LineWriter {
            at,
            line: m.region.line(at + offset),
            #[cfg(debug_assertions)]
            number: (at + offset) / LINE_BYTES,
        }
    }

    /// Stores a word that counts only with the commit word.
    #[inline]
    pub fn word(&mut self, offset: u64, word: u64) {
        #[cfg(debug_assertions)]
        assert_eq!((self.at + offset) / LINE_BYTES, self.number);
        self.line.store(self.at + offset, word);
    }

    /// Stores the commit word.
    #[inline]
    pub fn commit(mut self, offset: u64, word: u64) {
        self.word(offset, word);
    }
}

/// Lines that are to be written back before one fence, each of them once.
#[derive(Default)]
pub(super) struct Lines(smallvec::SmallVec<[(u64, u64); 4]>);

impl Lines {
    /// Adds the lines of a range of bytes.
    #[inline]
    pub(super) fn add(&mut self, at: u64, len: u64) {
        let (first, end) = (at / LINE_BYTES, (at + len).div_ceil(LINE_BYTES));
        match self.0.last_mut() {
            // Runs come in order as a rule.
            Some(last) if (last.0..=last.1).contains(&first) => last.1 = last.1.max(end),
            _ => self.0.push((first, end)),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes each line back once.
    #[inline]
    pub(super) fn write_back(mut self, m: &Medium) {
        if self.0.len() > 1 {
            self.0.sort_unstable();
        }
        let mut done = 0;
        for (first, end) in self.0 {
            let first = first.max(done);
            if first < end {
                let len = (end - first) * LINE_BYTES;
                m.region.write_back(first * LINE_BYTES, len);
                done = end;
            }
        }
    }
}
