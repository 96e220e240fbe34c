//! Allocation at commit: when a transaction closes, the delayed pages of the files that it
//! wrote get blocks, and extents that lead to them.
//!
//! Contiguous pages become contiguous blocks where space allows, next to the file's extent
//! before them. Pages are written in place, covered by the record. When they are few (the small
//! write before an fsync), their bytes go into the record instead: one write to the device, not two, before
//! the flush. The blocks are written at the next checkpoint, or never if the file is gone by then.
//!
//! Pages over written blocks (`out_of_place`) come first: those that are pending are patched, and the blocks of those
//! that move are freed, so that all pages that are left find holes or unwritten extents.
//!
//! Nothing here fails for lack of space or log: both were reserved when the pages were written.

use crate::error::damaged;
use crate::extents::{self, Change, Extent};
use crate::inode::{self, Inode, Locked, Place, State};
use crate::layout::DiskInode;
use crate::mounted::Mounted;
use crate::out_of_place::Decided;
use crate::pages::{COST_PATCHED, Under, small_pages};
use crate::work::{COST_BLOCK, COST_RANGE, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use steadfast_block::{Block, BlockNo};
use steadfast_journal::{Kind, Op, Ticket};
use steadfast_vfs::{Ino, Result};

/// Most files with delayed pages for which a transaction may put the pages into its record.
const SMALL_FILES_MAX: usize = 4;

impl Mounted {
    /// Allocates everything delayed for the inodes `keys` through `op`, and commits it. All
    /// these inodes stay locked until then: a reader finds a page in memory or in its block.
    ///
    /// # Errors
    /// EIO, EUCLEAN; the journal then stops.
    pub(crate) fn close_delayed(&self, mut op: Op<'_>, keys: &[Ino]) -> Result<Ticket> {
        let inodes = self.table.get_sorted(keys);
        let mut locked = Locked::lock(&inodes);
        let mut work = Work::lend(&self.store, &mut op);
        for (inode, state) in locked.iter_mut() {
            self.close_inode(&mut work, inode, state, inodes.len() <= SMALL_FILES_MAX)?;
        }
        work.commit();
        Ok(op.commit())
    }

    fn close_inode(
        &self,
        work: &mut Work<'_>,
        inode: &Inode,
        state: &mut State,
        small_files: bool,
    ) -> Result<()> {
        if state.pages.is_empty() {
            let reserved = state.pages.settle();
            self.store.alloc.unreserve(reserved);
            return Ok(());
        }
        if self.options.faults.size_before_data && !state.pages.held {
            // Planted: the size goes with this transaction, the data with a later one.
            state.pages.held = true;
            return Ok(());
        }
        let volume = work.volume();
        let place = Place::of(volume, inode.ino)?;
        let old = inode::read(volume, work, inode.ino)?;
        let mut new = old;
        let kept = state.pages.log_bytes;
        let mut pages = state.pages.take();
        let Decided { pending, moving } = state.pages.overwrites.take();
        let small = small_files && moving.is_empty();
        let small = small && is_small(&pages, &pending, kept, self.store.small_bytes_max);
        for page in pending {
            if let Some(block) = pages.remove(&page) {
                patch_page(work, &new, page, &block)?;
            }
        }
        for run in &moving {
            free_replaced(work, &mut new, run)?;
        }
        if self.options.faults.moved_early && !moving.is_empty() {
            // Planted: the extents are swapped in this transaction, the data is written in a later one.
            for run in &moving {
                let blocks = run.clone().filter_map(|page| pages.remove(&page));
                let blocks: Vec<_> = blocks.collect();
                swap_alone(work, &mut new, place.block, run)?;
                for (page, block) in run.clone().zip(&blocks) {
                    state.pages.write(page, 0, &block[..], Under::Written);
                }
            }
            state.pages.overwrites.set_unit(1);
        }
        for run in contiguous(&pages) {
            close_run(work, &mut new, place.block, &run, small)?;
        }
        inode::patch(work, place, &old, &new)?;
        state.pages.held = false;
        if state.pages.is_empty() {
            let reserved = state.pages.settle();
            self.store.alloc.unreserve(reserved);
        }
        Ok(())
    }
}

/// Frees the written blocks of a run of pages that get new ones.
fn free_replaced(work: &mut Work<'_>, disk: &mut DiskInode, run: &Range<u64>) -> Result<()> {
    let (change, _) = extents::remove(work, &mut disk.body, run.start, run.end, u64::MAX)?;
    account(disk, 0, change);
    Ok(())
}

/// Gives a run of pages blocks without content, for a planted fault.
fn swap_alone(
    work: &mut Work<'_>,
    disk: &mut DiskInode,
    home: BlockNo,
    run: &Range<u64>,
) -> Result<()> {
    let mut at = run.start;
    while at < run.end {
        let goal = extents::goal(work, work.volume(), &disk.body, at, home)?;
        let (block, len) = work.allocate_run(goal, run.end - at)?;
        let extent = Extent {
            logical: at,
            block,
            len,
            unwritten: false,
        };
        let change = extents::insert(work, &mut disk.body, extent)?;
        account(disk, len, change);
        at += len;
    }
    Ok(())
}

/// Whether the bytes of pages that need a place go into the record: few, and kept for.
fn is_small(
    pages: &BTreeMap<u64, Arc<Block>>,
    patched: &BTreeSet<u64>,
    kept: u64,
    bytes_max: u64,
) -> bool {
    if bytes_max == 0 || pages.len() > small_pages(bytes_max) {
        return false;
    }
    let kept = kept.saturating_sub(patched.len() as u64 * COST_PATCHED);
    let placed = pages.iter().filter(|(page, _)| !patched.contains(page));
    let bytes: u64 = placed.map(|(_, block)| used(block) as u64).sum();
    let overhead = pages.len() as u64 * 2 * (COST_BLOCK + COST_RANGE);
    bytes <= bytes_max && bytes + overhead <= kept
}

/// Bytes of a page up to the last that is not zero.
fn used(block: &Block) -> usize {
    block
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1)
}

/// Patches a whole page of a written block.
fn patch_page(work: &mut Work<'_>, disk: &DiskInode, page: u64, block: &Block) -> Result<()> {
    let volume = work.volume();
    match extents::runs(work, volume, &disk.body, page, page + 1)?.first() {
        Some(run) if !run.unwritten => work.write(run.block, Kind::Data, 0, block),
        _ => Err(damaged(format!(
            "file block {page} is overwritten, but has no written block"
        ))),
    }
}

/// A contiguous run of pages.
struct Run<'a> {
    first: u64,
    blocks: Vec<&'a Arc<Block>>,
}

impl Run<'_> {
    /// The contents of the pages `from .. from + count` of the file.
    fn slice(&self, from: u64, count: u64) -> Vec<Arc<Block>> {
        let start = (from - self.first) as usize;
        self.blocks[start..start + count as usize]
            .iter()
            .map(|block| Arc::clone(block))
            .collect()
    }
}

fn contiguous(pages: &BTreeMap<u64, Arc<Block>>) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for (page, block) in pages {
        match runs.last_mut() {
            Some(run) if run.first + run.blocks.len() as u64 == *page => run.blocks.push(block),
            _ => runs.push(Run {
                first: *page,
                blocks: vec![block],
            }),
        }
    }
    runs
}

/// Gives a run of pages its blocks and writes them.
fn close_run(
    work: &mut Work<'_>,
    disk: &mut DiskInode,
    home: BlockNo,
    run: &Run<'_>,
    small: bool,
) -> Result<()> {
    let volume = work.volume();
    let end = run.first + run.blocks.len() as u64;
    let there = extents::runs(work, volume, &disk.body, run.first, end)?;
    let mut at = run.first;
    for extent in there {
        fill_hole(work, disk, home, run, at, extent.logical, small)?;
        if !extent.unwritten {
            // A page that was written before is patched, or its block is free by now.
            return Err(damaged(format!(
                "file block {} is delayed, but has been written to block {}",
                extent.logical, extent.block
            )));
        }
        let change = extents::mark_written(work, &mut disk.body, extent)?;
        account(disk, 0, change);
        write(
            work,
            extent.block,
            run.slice(extent.logical, extent.len),
            small,
        )?;
        at = extent.end();
    }
    fill_hole(work, disk, home, run, at, end, small)
}

/// Allocates blocks for the pages `from .. to`, where the file has none, and writes them.
fn fill_hole(
    work: &mut Work<'_>,
    disk: &mut DiskInode,
    home: BlockNo,
    run: &Run<'_>,
    from: u64,
    to: u64,
    small: bool,
) -> Result<()> {
    let volume = work.volume();
    let mut at = from;
    while at < to {
        let goal = extents::goal(work, volume, &disk.body, at, home)?;
        let (block, len) = work.allocate_run(goal, to - at)?;
        let extent = Extent {
            logical: at,
            block,
            len,
            unwritten: false,
        };
        let change = extents::insert(work, &mut disk.body, extent)?;
        account(disk, len, change);
        write(work, block, run.slice(at, len), small)?;
        at += len;
    }
    Ok(())
}

fn account(disk: &mut DiskInode, data: u64, change: Change) {
    disk.blocks = change.apply(disk.blocks.get().saturating_add(data)).into();
}

/// Writes pages to their new blocks: around the log, or inside the record.
fn write(work: &mut Work<'_>, at: BlockNo, blocks: Vec<Arc<Block>>, small: bool) -> Result<()> {
    if !small {
        return work.write_around(at, blocks);
    }
    for (block, at) in blocks.iter().zip(at.0..) {
        let at = BlockNo(at);
        work.zero(at, Kind::Data)?;
        let used = used(block);
        if used > 0 {
            work.write(at, Kind::Data, 0, &block[..used])?;
        }
    }
    Ok(())
}
