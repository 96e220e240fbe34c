//! Pages whose bytes are kept elsewhere: a recorder has them in its file already.
//!
//! Invariants: the pieces of a page do not overlap and lie in order; bytes that no piece covers are zero; a store never changes
//! bytes that a piece refers to.

use crate::pages::PAGE;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// Most pieces of a page; with more, its bytes are fetched.
const PIECES_MAX: usize = 12;

/// Bytes by their position, which never change.
pub trait Store: Debug + Send + Sync {
    /// Fills `buf` with the bytes from `offset` on. Unavailable bytes are left as zeros; the store knows of it, and that
    /// nothing read since can be trusted.
    fn read(&self, offset: u64, buf: &mut [u8]);
}

/// Place of a write's bytes.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The store that has them.
    pub store: Arc<dyn Store>,
    /// The position of the first byte.
    pub offset: u64,
}

impl Kept {
    pub(crate) fn after(&self, bytes: usize) -> Kept {
        Kept {
            store: Arc::clone(&self.store),
            offset: self.offset + bytes as u64,
        }
    }
}

/// Bytes `from..to` of a page.
#[derive(Clone, Copy, Debug)]
struct Piece {
    from: u16,
    to: u16,
    offset: u64,
}

/// The bytes of one page, in pieces.
#[derive(Clone, Debug)]
pub(crate) struct KeptPage {
    store: Arc<dyn Store>,
    pieces: Box<[Piece]>,
    digest: OnceLock<Option<u128>>,
}

impl KeptPage {
    /// A page with zeros around one piece.
    pub(crate) fn new(from: usize, len: usize, kept: &Kept) -> KeptPage {
        KeptPage {
            store: Arc::clone(&kept.store),
            pieces: Box::from([piece(from, len, kept.offset)]),
            digest: OnceLock::new(),
        }
    }

    /// The same page with other bytes in a part of it. None if they are elsewhere, or the pieces become too many.
    pub(crate) fn with(&self, from: usize, len: usize, kept: &Kept) -> Option<KeptPage> {
        if !Arc::ptr_eq(&self.store, &kept.store) {
            return None;
        }
        let new = piece(from, len, kept.offset);
        let mut pieces = Vec::with_capacity(self.pieces.len() + 2);
        for old in &self.pieces {
            if old.from < new.from {
                let to = old.to.min(new.from);
                pieces.push(Piece { to, ..*old });
            }
            if old.to > new.to {
                let from = old.from.max(new.to);
                let offset = old.offset + u64::from(from - old.from);
                let to = old.to;
                pieces.push(Piece { from, to, offset });
            }
        }
        pieces.push(new);
        pieces.sort_unstable_by_key(|p| p.from);
        // Writes that follow one another may lie side by side in the store, too.
        pieces.dedup_by(|next, last| {
            let goes_on =
                last.to == next.from && last.offset + u64::from(last.to - last.from) == next.offset;
            if goes_on {
                last.to = next.to;
            }
            goes_on
        });
        (pieces.len() <= PIECES_MAX).then(|| KeptPage {
            store: Arc::clone(&self.store),
            pieces: pieces.into(),
            digest: OnceLock::new(),
        })
    }

    /// Fills `buf` with the bytes from `from` on, inside of the page.
    pub(crate) fn read(&self, from: usize, buf: &mut [u8]) {
        buf.fill(0);
        let to = from + buf.len();
        for piece in &self.pieces {
            let (a, b) = (usize::from(piece.from), usize::from(piece.to));
            let (start, end) = (a.max(from), b.min(to));
            if start < end {
                let offset = piece.offset + (start - a) as u64;
                self.store.read(offset, &mut buf[start - from..end - from]);
            }
        }
    }

    /// The hash of its bytes, computed once; `None` if all are zero.
    pub(crate) fn digest(&self, of: impl FnOnce(&[u8; PAGE]) -> Option<u128>) -> Option<u128> {
        *self.digest.get_or_init(|| of(&self.bytes()))
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        self.read(0, &mut bytes);
        bytes
    }
}

fn piece(from: usize, len: usize, offset: u64) -> Piece {
    // A page is smaller than the content of these.
    Piece {
        from: from as u16,
        to: (from + len) as u16,
        offset,
    }
}
