//! One operation: a private collection of patches that becomes visible atomically.

use crate::core::{DataRun, OpBlock, OpChanges, Run, TxnId};
use crate::engine::Inner;
use crate::layout::set_bits;
use crate::patch::{Patch, add_at};
use crate::{Access, Credits, Kind, META_BYTES, Object, Result, StreamId, Ticket};
use std::collections::HashMap;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};

struct Touched {
    kind: Kind,
    view: Arc<Block>,
    /// `None` while the block was only read. With a patch, the cache entry is held (unless
    /// the block begins a new life here).
    patch: Option<Box<Patch>>,
}

/// An open operation. Its changes are seen by itself alone until [`commit`](Op::commit);
/// dropping it undoes everything. While it is open no transaction closes, so it must not
/// wait for anything but device reads, and its thread must not begin another.
#[must_use = "an operation that is dropped is undone"]
pub struct Op<'a> {
    inner: &'a Inner,
    stream: StreamId,
    closing: Option<TxnId>,
    credits: Credits,
    done: bool,
    blocks: HashMap<u64, Touched>,
    relations: Vec<(Object, Access)>,
    frees: Vec<Run>,
    data: Vec<DataRun>,
    attached: Vec<(u64, Credits)>,
}

impl<'a> Op<'a> {
    pub(crate) fn new(
        inner: &'a Inner,
        stream: StreamId,
        closing: Option<TxnId>,
        credits: Credits,
    ) -> Op<'a> {
        Op {
            inner,
            stream,
            closing,
            credits,
            done: false,
            blocks: HashMap::new(),
            relations: Vec::new(),
            frees: Vec::new(),
            data: Vec::new(),
            attached: Vec::new(),
        }
    }

    /// The stream that the operation belongs to.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The operation depends on, or is depended on by, uncommitted ones of other streams
    /// that name the same object, unless both share it (design section 3.4). Merges at commit.
    pub fn relate(&mut self, object: Object, access: Access) {
        match self.relations.iter_mut().find(|(o, _)| *o == object) {
            Some((_, a)) => *a = (*a).max(access),
            None => self.relations.push((object, access)),
        }
    }

    /// The block as this operation sees it: everything committed in memory and its own writes.
    ///
    /// # Errors
    /// A read error, or [`Error::BadSeal`](crate::Error::BadSeal).
    pub fn read(&mut self, at: BlockNo, kind: Kind) -> Result<&Block> {
        if !self.blocks.contains_key(&at.0) {
            let view = self.inner.image(at, kind, false)?;
            self.blocks.insert(
                at.0,
                Touched {
                    kind,
                    view,
                    patch: None,
                },
            );
        }
        Ok(&self.blocks[&at.0].view)
    }

    fn touch(&mut self, at: BlockNo, kind: Kind) -> Result<(&mut Patch, &mut Block)> {
        let inner = self.inner;
        let touched = match self.blocks.entry(at.0) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => {
                let view = inner.image(at, kind, true)?;
                e.insert(Touched {
                    kind,
                    view,
                    patch: Some(Box::default()),
                })
            }
        };
        debug_assert!(touched.kind == kind, "{at:?} is used as two kinds");
        if touched.patch.is_none() {
            // The view may be older than the cache; only bytes of objects that the caller
            // has locked count, and they are the same.
            inner.image(at, kind, true)?;
            touched.patch = Some(Box::default());
        }
        let patch = touched.patch.get_or_insert_default();
        Ok((patch, Arc::make_mut(&mut touched.view)))
    }

    fn check_bounds(kind: Kind, offset: usize, len: usize) {
        let limit = if kind == Kind::Meta {
            META_BYTES
        } else {
            BLOCK_SIZE
        };
        assert!(
            offset + len <= limit,
            "a patch of {len} bytes at {offset} leaves its block"
        );
    }

    /// Patches bytes of a block.
    ///
    /// # Errors
    /// The block's present contents could not be read.
    ///
    /// # Panics
    /// If the range leaves the block's caller bytes: a bug of the caller.
    pub fn write(&mut self, at: BlockNo, kind: Kind, offset: usize, bytes: &[u8]) -> Result<()> {
        Self::check_bounds(kind, offset, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let (patch, view) = self.touch(at, kind)?;
        patch.touch_bytes(offset, bytes.len());
        view[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Patches bytes that several streams write without relating (a directory's times): the
    /// value that reaches the log is the newest one when the record is laid.
    ///
    /// # Errors
    /// The block's present contents could not be read.
    ///
    /// # Panics
    /// If the range leaves the block's caller bytes: a bug of the caller.
    pub fn write_latest(&mut self, at: BlockNo, offset: usize, bytes: &[u8]) -> Result<()> {
        Self::check_bounds(Kind::Meta, offset, bytes.len());
        let (patch, view) = self.touch(at, Kind::Meta)?;
        patch.touch_latest(offset, bytes.len());
        view[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Adds to a 64-bit counter. Additions of different streams commute and do not relate.
    ///
    /// # Errors
    /// The block's present contents could not be read.
    ///
    /// # Panics
    /// If the counter leaves the block's caller bytes: a bug of the caller.
    pub fn add(&mut self, at: BlockNo, offset: usize, delta: i64) -> Result<()> {
        Self::check_bounds(Kind::Meta, offset, 8);
        let (patch, view) = self.touch(at, Kind::Meta)?;
        patch.add(offset, delta);
        add_at(view, offset, delta);
        Ok(())
    }

    /// Sets or clears bits of a bitmap block; bit `i` is bit `i % 8` of byte `i / 8`.
    ///
    /// # Errors
    /// The block's present contents could not be read.
    ///
    /// # Panics
    /// If the bits leave the block's caller bytes: a bug of the caller.
    pub fn set_bits(&mut self, at: BlockNo, first: usize, count: usize, value: bool) -> Result<()> {
        Self::check_bounds(
            Kind::Meta,
            first / 8,
            (first + count).div_ceil(8) - first / 8,
        );
        if count == 0 {
            return Ok(());
        }
        let (patch, view) = self.touch(at, Kind::Meta)?;
        patch.touch_bits(first, count);
        set_bits(view, first, count, value);
        Ok(())
    }

    /// Begins a new life of a newly allocated block: zeros, whatever its home holds. Mandatory
    /// before any patch of such a block.
    ///
    /// # Errors
    /// None today; the signature leaves room for devices that must prepare a block.
    pub fn zero(&mut self, at: BlockNo, kind: Kind) -> Result<()> {
        let patch = Some(Box::new(Patch::fresh()));
        let fresh = Touched {
            kind,
            view: Arc::new([0; BLOCK_SIZE]),
            patch,
        };
        if let Some(old) = self.blocks.insert(at.0, fresh)
            && old.patch.is_some_and(|p| !p.zero)
        {
            self.inner.cache.unhold(at, 1);
        }
        Ok(())
    }

    /// Frees blocks: their patches in the log are void once this operation is durable. The
    /// caller must not use them again before [`Client::released`](crate::Client::released)
    /// names them. O(blocks of the run that have patches in the log).
    ///
    /// # Errors
    /// None today.
    pub fn free(&mut self, at: BlockNo, count: u64) -> Result<()> {
        self.frees.push((at, count));
        Ok(())
    }

    /// Writes newly allocated data blocks in place, outside the log. They are durable and
    /// visible together with the operation: the record covers them by hash, or they are
    /// flushed before it.
    ///
    /// # Errors
    /// None today.
    pub fn write_around(&mut self, at: BlockNo, data: Vec<Arc<Block>>) -> Result<()> {
        if !data.is_empty() {
            self.data.push((at, data));
        }
        Ok(())
    }

    /// The transaction must call [`Client::close`](crate::Client::close) for `key` before it
    /// commits; `credits` stay reserved for that beyond this operation.
    pub fn attach(&mut self, key: u64, credits: Credits) {
        self.attached.push((key, credits));
    }

    /// Makes all changes visible at once, in memory. Not durable yet: see
    /// [`Journal::wait`](crate::Journal::wait).
    pub fn commit(mut self) -> Ticket {
        self.done = true;
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (at, touched) in self.blocks.drain() {
            if let Some(patch) = touched.patch {
                blocks.push(OpBlock {
                    at: BlockNo(at),
                    kind: touched.kind,
                    patch: *patch,
                    image: touched.view,
                });
            }
        }
        blocks.sort_unstable_by_key(|b| b.at);
        debug_assert!(
            self.closing.is_some()
                || blocks.iter().map(|b| b.patch.log_bytes()).sum::<u64>()
                    + self.attached.iter().map(|a| a.1.log_bytes).sum::<u64>()
                    <= self.credits.log_bytes,
            "an operation logs {} bytes and keeps {} with {} credits",
            blocks.iter().map(|b| b.patch.log_bytes()).sum::<u64>(),
            self.attached.iter().map(|a| a.1.log_bytes).sum::<u64>(),
            self.credits.log_bytes,
        );
        let changes = OpChanges {
            stream: self.stream,
            closing: self.closing,
            credits: self.credits,
            relations: std::mem::take(&mut self.relations),
            blocks,
            frees: std::mem::take(&mut self.frees),
            data: std::mem::take(&mut self.data),
            attached: std::mem::take(&mut self.attached),
        };
        Ticket(self.inner.commit_op(changes))
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        for (at, touched) in self.blocks.drain() {
            if touched.patch.is_some_and(|p| !p.zero) {
                self.inner.cache.unhold(BlockNo(at), 1);
            }
        }
        if self.closing.is_none() {
            self.inner.abort_op(self.credits);
        }
    }
}
