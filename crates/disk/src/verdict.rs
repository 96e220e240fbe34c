//! Decides whether an image keeps the promises in the record of a trial.
//!
//! Promised is the state at the last flush that was answered. Besides, a flush that was under way may
//! have taken place; and a disk that flushes on its own when an epoch is full (not *exact*) may have
//! done so after any later request, or in the middle of one.

use std::collections::HashMap;
use std::path::Path;

use steadfast_block::{BlockDevice, DeviceError};
use steadfast_ftl::{Disk, DiskError};

use crate::trial::{
    DISCARD, FLUSH_BEGINS, FLUSHED, MAGIC, ROLLED_BACK, TAKEN_BACK, WRITE, hash_of_zeros, hashes,
};

/// State that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The state at the last flush.
    LastFlush,
    /// A flush was under way, and took place.
    FlushUnderWay,
    /// A later state, this number of requests after the last flush: an epoch was full.
    Later(u64),
    /// A state that must not be there: this number of blocks differ from the last flush.
    Wrong(u64),
}

/// Reason why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum VerdictError {
    /// The record cannot be read, or is none.
    #[error("the record: {0}")]
    Record(std::io::Error),
    /// The image cannot be opened.
    #[error(transparent)]
    Image(#[from] DiskError),
    /// The disk cannot be read.
    #[error(transparent)]
    Read(#[from] DeviceError),
}

/// The disk as the record has it, beside the disk that was found.
struct Compared<'a> {
    now: Vec<u64>,
    found: &'a [u64],
    differing: u64,
    /// Content of changed blocks at the last flush.
    undo: HashMap<u64, u64>,
}

impl Compared<'_> {
    fn set(&mut self, block: u64, hash: u64) -> Option<()> {
        let old = std::mem::replace(self.now.get_mut(block as usize)?, hash);
        let found = self.found[block as usize];
        self.differing -= u64::from(old != found);
        self.differing += u64::from(hash != found);
        self.undo.entry(block).or_insert(old);
        Some(())
    }

    fn apply(&mut self, [kind, first, second]: [u64; 3]) -> Option<()> {
        match kind {
            WRITE => self.set(first, second),
            DISCARD => (first..first.checked_add(second)?)
                .try_for_each(|block| self.set(block, hash_of_zeros())),
            ROLLED_BACK => {
                for (block, hash) in std::mem::take(&mut self.undo) {
                    self.set(block, hash)?;
                }
                self.undo.clear();
                Some(())
            }
            FLUSHED => {
                self.undo.clear();
                Some(())
            }
            _ => Some(()),
        }
    }
}

fn judge(record: &[u64], found: &[u64]) -> Option<Verdict> {
    let (&[magic, exact, blocks], rest) = record.split_first_chunk()?;
    let blocks = usize::try_from(blocks).ok()?;
    if magic != MAGIC || blocks != found.len() || rest.len() < blocks {
        return None;
    }
    let (start, rest) = rest.split_at(blocks);
    // A last entry that is not whole was never acted on.
    let mut entries: Vec<[u64; 3]> = Vec::new();
    for entry in rest.as_chunks::<3>().0 {
        match *entry {
            [TAKEN_BACK, count, _] => {
                let kept = entries.len().checked_sub(usize::try_from(count).ok()?)?;
                entries.truncate(kept);
            }
            entry => entries.push(entry),
        }
    }
    let begin_again = |e: &[u64; 3]| e[0] == FLUSHED || (e[0] == ROLLED_BACK && exact == 1);
    let durable = entries.iter().rposition(begin_again).map_or(0, |at| at + 1);
    let differing = start.iter().zip(found).filter(|(a, b)| a != b).count() as u64;
    let mut compared = Compared {
        now: start.to_vec(),
        found,
        differing,
        undo: HashMap::new(),
    };
    for entry in &entries[..durable] {
        compared.apply(*entry)?;
    }
    let differing = compared.differing;
    if differing == 0 {
        return Some(Verdict::LastFlush);
    }
    for (entry, behind) in entries[durable..].iter().zip(1..) {
        compared.apply(*entry)?;
        if compared.differing == 0 {
            match entry[0] {
                FLUSH_BEGINS => return Some(Verdict::FlushUnderWay),
                _ if exact == 0 => return Some(Verdict::Later(behind)),
                _ => {}
            }
        }
    }
    Some(Verdict::Wrong(differing))
}

/// Compares an image that is not open with a record. The image is not changed.
///
/// # Errors
/// [`VerdictError`].
pub fn verify(record: &Path, image: &Path) -> Result<Verdict, VerdictError> {
    verify_disk(record, &Disk::open_read_only(image)?)
}

/// Compares a disk, as it was found after a crash, with a record.
///
/// # Errors
/// [`VerdictError::Record`], [`VerdictError::Read`].
pub fn verify_disk(record: &Path, disk: &dyn BlockDevice) -> Result<Verdict, VerdictError> {
    let found = hashes(disk)?;
    let bytes = std::fs::read(record).map_err(VerdictError::Record)?;
    let words: Vec<u64> = (bytes.as_chunks::<8>().0.iter())
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    let none = "it is none, or another disk's";
    judge(&words, &found).ok_or_else(|| VerdictError::Record(std::io::Error::other(none)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Judges the content found on a disk of three blocks that held 1, 2 and 3.
    fn verdict(exact: u64, entries: &[[u64; 3]], found: [u64; 3]) -> Option<Verdict> {
        let mut record = vec![MAGIC, exact, 3, 1, 2, 3];
        record.extend(entries.iter().flatten());
        judge(&record, &found)
    }

    #[test]
    fn the_last_flush_and_a_flush_under_way_are_distinguished_from_everything_else() {
        let begins = [FLUSH_BEGINS, 0, 0];
        let flushed = [FLUSHED, 0, 0];
        let history = [
            [WRITE, 0, 10],
            begins,
            flushed,
            [WRITE, 1, 20],
            [WRITE, 2, 30],
            begins,
        ];
        let is = |exact, entries: &[[u64; 3]], found, wanted| {
            assert_eq!(verdict(exact, entries, found), Some(wanted), "{found:?}");
        };
        for exact in [0, 1] {
            is(exact, &history, [10, 2, 3], Verdict::LastFlush);
            is(exact, &history, [1, 2, 3], Verdict::Wrong(1));
            is(exact, &history, [10, 2, 30], Verdict::Wrong(1));
            is(exact, &history, [10, 20, 31], Verdict::Wrong(2));
            is(exact, &[], [1, 2, 3], Verdict::LastFlush);
        }
        is(1, &history, [10, 20, 30], Verdict::FlushUnderWay);
        is(0, &history[..5], [10, 20, 30], Verdict::Later(2));
        is(1, &history[..5], [10, 20, 30], Verdict::Wrong(2));
        is(0, &history, [10, 20, 3], Verdict::Later(1));
        is(1, &history, [10, 20, 3], Verdict::Wrong(1));
        // A refused write was never there.
        let refused = [[WRITE, 0, 10], [WRITE, 1, 11], [TAKEN_BACK, 2, 0], begins];
        is(1, &refused, [1, 2, 3], Verdict::LastFlush);
        is(1, &refused, [10, 11, 3], Verdict::Wrong(2));
        // Nor was a write that was rolled back.
        let back = [[WRITE, 0, 10], [ROLLED_BACK, 0, 0], [WRITE, 1, 11], begins];
        is(1, &back, [1, 11, 3], Verdict::FlushUnderWay);
        is(1, &back, [10, 11, 3], Verdict::Wrong(2));
        let zero = hash_of_zeros();
        is(
            0,
            &[[DISCARD, 1, 2], begins, flushed],
            [1, zero, zero],
            Verdict::LastFlush,
        );
    }

    #[test]
    fn a_foreign_record_has_no_verdict() {
        assert_eq!(judge(&[], &[1]), None);
        assert_eq!(judge(&[MAGIC, 1, 2, 5, 5], &[1]), None);
        assert_eq!(judge(&[MAGIC, 1, u64::MAX, 5], &[1]), None);
        assert_eq!(
            verdict(1, &[[WRITE, 3, 0], [FLUSHED, 0, 0]], [1, 2, 3]),
            None
        );
        assert_eq!(verdict(1, &[[TAKEN_BACK, 1, 0]], [1, 2, 3]), None);
    }
}
