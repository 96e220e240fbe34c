//! Memory of cells, which is used again when a cell leaves the cache.
//!
//! A read of a volume that is larger than the cache allocates and frees a cell's memory all the time. The allocator returns such
//! memory to the kernel, which clears each page again: about a tenth of the time of such a read.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// Pieces of memory that are kept, at most.
const PIECES_MOST: usize = 64;
/// The part of a piece (its reciprocal) that may be left unused: caches count the bytes of a cell, not of its memory.
const SPARE_SHARE: usize = 8;
/// Longer pieces are not kept.
const PIECE_MOST: usize = 320 << 10;

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<Vec<Vec<u8>>>>);

impl Memory {
    /// Empty memory for this many bytes.
    pub(crate) fn take(&self, length: usize) -> Vec<u8> {
        let free = |pieces: &mut Vec<Vec<u8>>| {
            // The last one that came back is the most likely to be in the processor's cache.
            let most = length + length / SPARE_SHARE;
            let fits = |piece: &Vec<u8>| (length..=most).contains(&piece.capacity());
            let at = pieces.iter().rposition(fits)?;
            Some(pieces.swap_remove(at))
        };
        let found = free(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        found.unwrap_or_else(|| Vec::with_capacity(length))
    }

    /// These bytes. Their memory comes back when the last reference is dropped.
    pub(crate) fn lend(&self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent {
            bytes,
            owner: self.clone(),
        })
    }

    fn give_back(&self, mut bytes: Vec<u8>) {
        if bytes.capacity() > PIECE_MOST {
            return;
        }
        bytes.clear();
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pieces.len() < PIECES_MOST {
            pieces.push(bytes);
        }
    }
}

struct Lent {
    bytes: Vec<u8>,
    owner: Memory,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.owner.give_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_after_the_last_reference_and_only_so_much_is_kept() {
        let memory = Memory::default();
        let filled = |length: usize, byte: u8| {
            let mut bytes = memory.take(length);
            bytes.resize(length, byte);
            memory.lend(bytes)
        };
        let first = filled(1000, 1);
        let (at, part) = (first.as_ptr(), first.slice(10..20));
        drop(first);
        let second = filled(1000, 2);
        assert_ne!(second.as_ptr(), at, "a part of it is in use");
        assert_eq!(part, [1; 10][..]);
        drop(part);
        let third = filled(900, 3);
        assert_eq!((third.as_ptr(), third.len()), (at, 900));
        drop((second, third));
        assert_eq!(memory.0.lock().map(|pieces| pieces.len()).ok(), Some(2));
        assert_eq!(memory.take(800).capacity(), 800, "none fits");
        drop(filled(PIECE_MOST + 1, 4));
        let many: Vec<Bytes> = (0..100).map(|_| filled(1000, 5)).collect();
        drop(many);
        let kept = memory.0.lock().map(|pieces| pieces.len()).ok();
        assert_eq!(kept, Some(PIECES_MOST));
    }
}
