//! Extents: the device blocks of a file's blocks, kept in the [`btree`] of its inode.
//!
//! Extents never overlap, never cross a group, and merge with their neighbours when both
//! addresses continue. An *unwritten* extent is allocated but reads as zeros; its blocks
//! have not been written since they were allocated, so that writing them in place needs
//! no more care than writing newly allocated ones.
//!
//! Functions that change the tree work on a copy of the body (see `btree`) and report in
//! [`Change`] the difference of the inode's block count.

use crate::btree::{self, Body};
use crate::error::damaged;
use crate::layout::{EXTENT_UNWRITTEN, FILE_BYTES_MAX, Item};
use crate::reader::Reader;
use crate::superblock::Volume;
use crate::work::{COST_BITS, COST_FREE, COST_REVOKE, Work};
use std::ops::ControlFlow;
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_vfs::Result;

/// Blocks that the largest file has.
pub(crate) const BLOCKS_MAX: u64 = FILE_BYTES_MAX / BLOCK_SIZE as u64;

/// A run of a file's blocks on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// First block of the file.
    pub(crate) logical: u64,
    /// First block of the device.
    pub(crate) block: BlockNo,
    /// Number of blocks.
    pub(crate) len: u64,
    /// Allocated, but reads as zeros.
    pub(crate) unwritten: bool,
}

impl Extent {
    fn of(item: &Item) -> Result<Extent> {
        let (logical, len) = (item.key.get(), u64::from(item.len.get()));
        let flags = item.flags.get();
        if flags & !EXTENT_UNWRITTEN != 0 || logical + len > BLOCKS_MAX {
            return Err(damaged(format!(
                "extent of {len} blocks at file block {logical}, flags {flags:#x}"
            )));
        }
        Ok(Extent {
            logical,
            block: BlockNo(item.block.get()),
            len,
            unwritten: flags & EXTENT_UNWRITTEN != 0,
        })
    }

    fn item(&self) -> Item {
        Item {
            key: self.logical.into(),
            block: self.block.0.into(),
            len: (self.len as u32).into(),
            flags: (if self.unwritten { EXTENT_UNWRITTEN } else { 0 }).into(),
        }
    }

    /// First block of the file after this extent.
    pub(crate) fn end(&self) -> u64 {
        self.logical + self.len
    }

    /// The part inside `from .. to`, which overlaps it.
    fn clip(&self, from: u64, to: u64) -> Extent {
        let (start, end) = (self.logical.max(from), self.end().min(to));
        Extent {
            logical: start,
            block: self.block.offset(start - self.logical),
            len: end - start,
            unwritten: self.unwritten,
        }
    }

    /// The part before `end`, which is in this extent or after it.
    pub(crate) fn up_to(&self, end: u64) -> Extent {
        self.clip(self.logical, self.end().min(end))
    }

    /// Whether `next` continues this extent in both addresses.
    fn continues_with(&self, next: &Extent, volume: &Volume) -> bool {
        self.end() == next.logical
            && self.block.0 + self.len == next.block.0
            && self.unwritten == next.unwritten
            && volume.run_is_data(self.block, self.len + next.len)
    }
}

/// Change of an inode's blocks by a change to its tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Change {
    /// Node blocks added.
    pub(crate) added: u64,
    /// Data and node blocks freed.
    pub(crate) freed: u64,
}

impl Change {
    /// An inode's block count after the change.
    pub(crate) fn apply(self, blocks: u64) -> u64 {
        blocks.saturating_add(self.added).saturating_sub(self.freed)
    }
}

/// The extents that overlap `from .. to`, clipped to it, in order.
///
/// # Errors
/// EUCLEAN, EIO.
pub(crate) fn runs(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    from: u64,
    to: u64,
) -> Result<Vec<Extent>> {
    let mut runs = Vec::new();
    let mut next = from;
    let mut failure = Ok(());
    if let Some(item) = btree::find_le(reader, volume, body, from)? {
        let extent = Extent::of(&item)?;
        if extent.end() > from && to > from {
            runs.push(extent.clip(from, to));
            next = extent.end();
        }
    }
    if next >= to {
        return Ok(runs);
    }
    btree::for_each(reader, volume, body, from.saturating_add(1), |item| {
        if item.key.get() >= to {
            return ControlFlow::Break(());
        }
        match Extent::of(item) {
            Ok(extent) if extent.logical >= next => {
                next = extent.end();
                runs.push(extent.clip(from, to));
                ControlFlow::Continue(())
            }
            Ok(extent) => {
                failure = Err(damaged(format!(
                    "extents overlap at file block {}",
                    extent.logical
                )));
                ControlFlow::Break(())
            }
            Err(error) => {
                failure = Err(error);
                ControlFlow::Break(())
            }
        }
    })?;
    failure.map(|()| runs)
}

/// The last extent that starts before `logical`.
pub(crate) fn before(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    logical: u64,
) -> Result<Option<Extent>> {
    let Some(key) = logical.checked_sub(1) else {
        return Ok(None);
    };
    btree::find_le(reader, volume, body, key)?
        .as_ref()
        .map(Extent::of)
        .transpose()
}

fn at_or_after(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    logical: u64,
) -> Result<Option<Extent>> {
    btree::find_ge(reader, volume, body, logical)?
        .as_ref()
        .map(Extent::of)
        .transpose()
}

/// Goal of the search for blocks for `logical`: after the file's previous extent, else at `home`.
pub(crate) fn goal(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    logical: u64,
    home: BlockNo,
) -> Result<BlockNo> {
    Ok(match before(reader, volume, body, logical)? {
        Some(extent) if extent.end() <= logical => extent.block.offset(extent.len),
        Some(extent) => extent.block,
        None => home,
    })
}

/// Enters an extent where there is none, merged with its neighbours if it continues them.
///
/// # Errors
/// ENOSPC, EUCLEAN, EIO.
pub(crate) fn insert(work: &mut Work<'_>, body: &mut Body, extent: Extent) -> Result<Change> {
    let volume = work.volume();
    let mut change = Change::default();
    let last = before(work, volume, body, extent.logical)?;
    let next = at_or_after(work, volume, body, extent.end())?;
    let next = next.filter(|next| extent.continues_with(next, volume));
    let mut merged = extent;
    if let Some(next) = next {
        change.freed += btree::remove(work, body, next.logical)?;
        merged.len += next.len;
    }
    match last.filter(|last| last.continues_with(&merged, volume)) {
        Some(last) => {
            let merged = Extent {
                len: last.len + merged.len,
                ..last
            };
            btree::replace(work, body, last.logical, merged.item())?;
        }
        None => change.added += btree::insert(work, body, extent.block, merged.item())?,
    }
    Ok(change)
}

/// Takes `from .. to` out of the tree from its end on, without freeing the data blocks;
/// passes each piece to `each`, which returns whether to go on. Returns whether all is done.
fn cut(
    work: &mut Work<'_>,
    body: &mut Body,
    from: u64,
    to: u64,
    change: &mut Change,
    mut each: impl FnMut(&mut Work<'_>, &Extent) -> Result<ControlFlow<()>>,
) -> Result<bool> {
    let volume = work.volume();
    let mut to = to;
    while let Some(extent) = before(work, volume, body, to)?.filter(|extent| extent.end() > from) {
        let piece = extent.clip(from, to);
        let front = Extent {
            len: piece.logical - extent.logical,
            ..extent
        };
        let back = (extent.end() > piece.end()).then(|| extent.clip(piece.end(), extent.end()));
        match (front.len > 0, back) {
            (false, None) => change.freed += btree::remove(work, body, extent.logical)?,
            (false, Some(back)) => btree::replace(work, body, extent.logical, back.item())?,
            (true, None) => btree::replace(work, body, extent.logical, front.item())?,
            (true, Some(back)) => {
                btree::replace(work, body, extent.logical, front.item())?;
                change.added += btree::insert(work, body, extent.block, back.item())?;
            }
        }
        to = piece.logical;
        if each(work, &piece)?.is_break() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Log bytes of freeing one extent of `len` blocks at the end of the tree.
pub(crate) fn free_credits(len: u64) -> u64 {
    // Each block may have patches in the log, which its revoke names.
    COST_FREE + COST_BITS + len * COST_REVOKE + btree::REMOVE_LAST_CREDITS
}

/// Log bytes for the tree that freeing a range takes besides [`free_credits`]: the nodes at
/// the range's ends. Behind a range that does not reach the end of the tree they are
/// shifted, or split.
pub(crate) fn remove_credits(level: u16, to_the_end: bool) -> u64 {
    if to_the_end {
        (u64::from(level) + 1) * btree::REMOVE_LAST_CREDITS
    } else {
        btree::change_credits(level)
    }
}

/// Log bytes of freeing everything in `from .. to`, or `None` if they are more than `limit`.
///
/// # Errors
/// EUCLEAN, EIO.
pub(crate) fn removal_bytes(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    from: u64,
    to: u64,
    limit: u64,
) -> Result<Option<u64>> {
    let mut bytes = remove_credits(btree::level(volume, body)?, to == BLOCKS_MAX);
    let mut at = from;
    while at < to
        && let Some(extent) = at_or_over(reader, volume, body, at)?
        && extent.logical < to
    {
        bytes += free_credits(extent.clip(from, to).len);
        if bytes > limit {
            return Ok(None);
        }
        at = extent.end();
    }
    Ok(Some(bytes))
}

/// The first extent that ends after `logical`.
///
/// # Errors
/// EUCLEAN, EIO.
pub(crate) fn at_or_over(
    reader: &mut impl Reader,
    volume: &Volume,
    body: &Body,
    logical: u64,
) -> Result<Option<Extent>> {
    let last = before(reader, volume, body, logical.saturating_add(1))?;
    match last.filter(|extent| extent.end() > logical) {
        Some(extent) => Ok(Some(extent)),
        None => at_or_after(reader, volume, body, logical),
    }
}

/// Frees the blocks `from .. to` from the end on, as long as the log bytes that it takes stay
/// within `log_bytes` (which [`remove_credits`] comes on top of). Extents that are too
/// long are freed in part. Returns the change and whether all is done.
///
/// # Errors
/// ENOSPC only when the range cuts an extent in two and its node is full; EUCLEAN, EIO.
pub(crate) fn remove(
    work: &mut Work<'_>,
    body: &mut Body,
    from: u64,
    to: u64,
    log_bytes: u64,
) -> Result<(Change, bool)> {
    let volume = work.volume();
    let mut change = Change::default();
    let mut left = log_bytes;
    let mut to = to;
    while from < to
        && let Some(extent) = before(work, volume, body, to)?.filter(|extent| extent.end() > from)
    {
        let piece = extent.clip(from, to);
        let fits = left.saturating_sub(free_credits(0)) / COST_REVOKE;
        if fits == 0 {
            return Ok((change, false));
        }
        let start = piece.end() - piece.len.min(fits);
        left -= free_credits(piece.end() - start);
        let mut freed = 0;
        cut(
            work,
            body,
            start,
            piece.end(),
            &mut change,
            |work, piece| {
                work.free_run(piece.block, piece.len)?;
                freed += piece.len;
                Ok(ControlFlow::Continue(()))
            },
        )?;
        change.freed += freed;
        to = start;
    }
    Ok((change, true))
}

/// Marks the unwritten blocks of `extent` (as [`runs`] reported it) as written.
///
/// # Errors
/// ENOSPC, EUCLEAN, EIO.
pub(crate) fn mark_written(work: &mut Work<'_>, body: &mut Body, extent: Extent) -> Result<Change> {
    let volume = work.volume();
    let mut change = Change::default();
    let written = Extent {
        unwritten: false,
        ..extent
    };
    let last = before(work, volume, body, extent.logical)?;
    let whole = before(work, volume, body, extent.logical + 1)? == Some(extent);
    if whole && !last.is_some_and(|last| last.continues_with(&written, volume)) {
        // It keeps its place in the tree: no node is added.
        let next = at_or_after(work, volume, body, extent.end())?;
        let mut merged = written;
        if let Some(next) = next.filter(|next| written.continues_with(next, volume)) {
            change.freed += btree::remove(work, body, next.logical)?;
            merged.len += next.len;
        }
        btree::replace(work, body, extent.logical, merged.item())?;
        return Ok(change);
    }
    cut(
        work,
        body,
        extent.logical,
        extent.end(),
        &mut change,
        |_, _| Ok(ControlFlow::Continue(())),
    )?;
    let inserted = insert(work, body, written)?;
    Ok(Change {
        added: change.added + inserted.added,
        freed: change.freed + inserted.freed,
    })
}
