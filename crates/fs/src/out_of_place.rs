//! Large overwrites out of place, under `ordered` and `sync` on volumes with a log.
//!
//! A patch is written twice: into the log, and at the next checkpoint to its place. So a whole *unit* of a file that is
//! overwritten is treated like newly written data instead: its pages wait in memory, get new blocks when their transaction
//! closes, and are written once, around the log and covered by the record. The extent is swapped and the old
//! blocks are freed in the same transaction.
//!
//! A unit is an aligned part of a file: [`OVERWRITE_BYTES_DEFAULT`], doubled until the file has at most [`UNITS_MAX`] of
//! them, [`UNIT_BYTES_MAX`] at most, less where the log is small; so overwriting cuts a file into that many extents at worst. The last unit may be shorter
//! if the one before it moves.
//!
//! A page over a written block is delayed if a write replaces all of it, and either the call has the smallest unit's bytes at least, or it
//! goes on where the last one ended or begins at a unit. It is *pending* until all pages of its unit are delayed; then the unit's pages are *moving*. For a
//! pending page log space for a patch is kept, for a moving one a block. At the close, pages that are still
//! pending are patched. Rules:
//!
//! * if the blocks for a unit cannot be reserved with some to spare, the write is a patch: it never fails for lack of space;
//! * the old blocks are looked at before a unit moves: closing finds them allocated, and their bitmap was readable;
//! * an operation that frees blocks drops their pages, moving ones too; one that may cut a run of moving pages in two keeps more for it (`allocate`);
//! * a file with [`InodeFlags::NOCOW`] (`chattr +C`) is always patched;
//! * after [`WASTED_MAX`] closes in a row that found pending pages and none that moved, small writes in order are delayed only
//!   after a stretch of two units: databases and logs that are written over in small pieces stay where they are.
//!
//! Neighbours: `data` (plans), `pages` (reservations), `writeback` (the close).

use crate::alloc::{bit_of, is_used};
use crate::error::{damaged, from_journal};
use crate::extents;
use crate::layout::DiskInode;
use crate::pages::{PAGE, Pages, Target, Under, runs_with};
use crate::reader::Reader;
use crate::work::Store;
use std::collections::BTreeSet;
use std::ops::Range;
use steadfast_journal::Kind;
use steadfast_vfs::{InodeFlags, Result};

/// The smallest unit, in bytes.
pub(crate) const OVERWRITE_BYTES_DEFAULT: u64 = 64 << 10;
/// The largest.
const UNIT_BYTES_MAX: u64 = 1 << 20;
/// A unit takes this part of the log at most (its reciprocal), while its pages are pending: a transaction may grow to four of them.
const UNIT_LOG_SHARE: u64 = 16;
/// Units of a file, until they have the largest size.
const UNITS_MAX: u64 = 4096;
/// Blocks that must stay free for others when a unit moves: a part of the volume (its reciprocal) …
const SPARE_SHARE: u64 = 32;
/// … but at most this number (64 MiB).
const SPARE_BLOCKS_MAX: u64 = 16_384;
/// Closes in a row that delayed overwrites for nothing.
const WASTED_MAX: u32 = 4;

/// The delayed pages of an inode that lie over written blocks. See the module's header.
#[derive(Default)]
pub(crate) struct Overwrites {
    /// Pages of a unit, as long as any page is here.
    unit: u64,
    pending: BTreeSet<u64>,
    moving: BTreeSet<u64>,
    /// Contiguous runs in `moving`.
    runs: u64,
    pace: Pace,
}

/// Moving pages, and in how many contiguous runs they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moving {
    pub(crate) pages: u64,
    pub(crate) runs: u64,
}

/// Decision of a close about the pages.
pub(crate) struct Decided {
    /// Pages to be patched.
    pub(crate) pending: BTreeSet<u64>,
    /// Runs of pages whose blocks are replaced, in order.
    pub(crate) moving: Vec<Range<u64>>,
}

/// Order of a file's writes: sequential or not.
#[derive(Default)]
struct Pace {
    /// Start of the current sequence of writes in order, or its end at the last close.
    start: u64,
    /// End of the sequence.
    end: u64,
    /// Closes in a row that found pending pages and none that moved.
    wasted: u32,
}

impl Pace {
    /// Whether a write at `at` goes on with the file in order, or may begin to.
    fn goes_on(&self, at: u64, unit_bytes: u64) -> bool {
        let stretch = self.end.saturating_sub(self.start);
        match self.wasted < WASTED_MAX {
            true => at == self.end || at.is_multiple_of(unit_bytes),
            false => at == self.end && stretch >= 2 * unit_bytes,
        }
    }
}

impl Overwrites {
    /// Number of pages.
    pub(crate) fn len(&self) -> u64 {
        (self.pending.len() + self.moving.len()) as u64
    }

    /// Number of pending pages.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Whether the page lies over a written block.
    pub(crate) fn has(&self, page: u64) -> bool {
        self.is_pending(page) || self.moving.contains(&page)
    }

    /// Whether it is pending.
    pub(crate) fn is_pending(&self, page: u64) -> bool {
        self.pending.contains(&page)
    }

    /// The moving pages as they would be with these.
    pub(crate) fn tally_with(&self, more: &[u64]) -> Moving {
        Moving {
            pages: (self.moving.len() + more.len()) as u64,
            runs: runs_with(self.runs, more, |page| self.moving.contains(&page)),
        }
    }

    /// A page over a written block is delayed.
    pub(crate) fn delay(&mut self, page: u64) {
        self.pending.insert(page);
    }

    /// These pending pages (sorted) will move.
    pub(crate) fn will_move(&mut self, pages: &[u64]) {
        self.runs = self.tally_with(pages).runs;
        for page in pages {
            debug_assert!(
                self.pending.contains(page),
                "a page moves that is not pending"
            );
            self.pending.remove(page);
            self.moving.insert(*page);
        }
    }

    /// Pages of a unit from now on, until the next close.
    pub(crate) fn set_unit(&mut self, unit: u64) {
        self.unit = unit;
    }

    /// The pages in `from .. to` are dropped.
    pub(crate) fn drop_range(&mut self, from: u64, to: u64) {
        let pending: Vec<u64> = self.pending.range(from..to).copied().collect();
        for page in pending {
            self.pending.remove(&page);
        }
        let moving: Vec<u64> = self.moving.range(from..to).copied().collect();
        for page in moving {
            self.moving.remove(&page);
            let there = |page: u64| self.moving.contains(&page);
            let last = page.checked_sub(1).is_some_and(there);
            self.runs = self.runs + u64::from(last) + u64::from(there(page + 1)) - 1;
        }
    }

    /// Bytes were written.
    pub(crate) fn wrote(&mut self, at: u64, len: u64) {
        if at != self.pace.end {
            self.pace.start = at;
        }
        self.pace.end = at + len;
    }

    /// Takes all out: their transaction closes.
    pub(crate) fn take(&mut self) -> Decided {
        let mut moving: Vec<Range<u64>> = Vec::new();
        for page in std::mem::take(&mut self.moving) {
            match moving.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => moving.push(page..page + 1),
            }
        }
        let pending = std::mem::take(&mut self.pending);
        (self.runs, self.unit) = (0, 0);
        self.pace.start = self.pace.end;
        if !moving.is_empty() {
            self.pace.wasted = 0;
        } else if !pending.is_empty() {
            self.pace.wasted = self.pace.wasted.saturating_add(1);
        }
        Decided { pending, moving }
    }
}

/// A write that may go out of place.
#[derive(Clone, Copy)]
pub(crate) struct Overwrite {
    pub(crate) at: u64,
    /// Bytes of this operation.
    pub(crate) count: u64,
    /// Bytes of the call from here on.
    pub(crate) asked: u64,
}

/// Result of [`choose`].
#[derive(Default)]
pub(crate) struct Chosen {
    /// Pages that will move, sorted.
    pub(crate) moving: Vec<u64>,
    /// Pages of a unit.
    pub(crate) unit: u64,
}

impl Store {
    /// Pages of a unit of the file; 0: its overwrites are patches.
    fn unit_of(&self, disk: &DiskInode) -> u64 {
        if self.overwrite_blocks == 0 || disk.flags().has(InodeFlags::NOCOW) {
            return 0;
        }
        let largest = (UNIT_BYTES_MAX / PAGE).min(self.volume.log_blocks / UNIT_LOG_SHARE);
        unit_for(self.overwrite_blocks, largest, disk.size.get())
    }

    /// Blocks that must stay free when a unit moves.
    pub(crate) fn overwrite_spare(&self) -> u64 {
        (self.volume.data_blocks() / SPARE_SHARE).min(SPARE_BLOCKS_MAX)
    }
}

/// Pages of a unit of a file of `size` bytes.
fn unit_for(smallest: u64, largest: u64, size: u64) -> u64 {
    let largest = largest.max(smallest);
    let mut unit = smallest;
    while unit < largest && size.div_ceil(unit * PAGE) > UNITS_MAX {
        unit *= 2;
    }
    unit.min(largest)
}

/// Lets pages over written blocks be delayed, and says which will move. `targets` are those of the pages from `first` on.
pub(crate) fn choose(
    store: &Store,
    pages: &Pages,
    disk: &DiskInode,
    write: Overwrite,
    first: u64,
    targets: &mut [Target],
) -> Chosen {
    let overwrites = &pages.overwrites;
    let unit = match overwrites.len() {
        0 => store.unit_of(disk),
        _ => overwrites.unit,
    };
    let mut chosen = Chosen {
        moving: Vec::new(),
        unit,
    };
    if unit == 0 {
        return chosen;
    }
    let (at, to) = (write.at, write.at + write.count);
    let large = write.asked >= store.overwrite_blocks * PAGE;
    if large || overwrites.pace.goes_on(at, unit * PAGE) {
        for (target, page) in targets.iter_mut().zip(first..) {
            // Behind the end of the file a page is zeros in any case.
            let whole = at <= page * PAGE && (to >= (page + 1) * PAGE || to >= disk.size.get());
            if whole && matches!(target, Target::Written(_)) {
                *target = Target::New(Under::Written);
            }
        }
    }
    let over = |target: &Target| matches!(target, Target::New(Under::Written));
    if overwrites.pending.is_empty() && !targets.iter().any(over) {
        return chosen;
    }
    let end = first + targets.len() as u64;
    let file_end = disk.size.get().max(to).div_ceil(PAGE);
    for number in first / unit..=(end - 1) / unit {
        let (from, to) = (number * unit, ((number + 1) * unit).min(file_end));
        let (head, tail) = (first.clamp(from, to), end.clamp(from, to));
        let here = &targets[(head - first) as usize..(tail - first) as usize];
        let is_delayed = |target: &Target| matches!(target, Target::New(_) | Target::Delayed);
        let before = from.checked_sub(1);
        let goes_on = before.is_some_and(|page| {
            overwrites.moving.contains(&page) || chosen.moving.last() == Some(&page)
        });
        let others = |from: u64, to: u64| pages.range(from, to).count() as u64 == to - from;
        let whole = (to - from >= store.overwrite_blocks || goes_on)
            && here.iter().all(is_delayed)
            && others(from, head)
            && others(tail, to);
        if !whole {
            continue;
        }
        let pending = |from: u64, to: u64| overwrites.pending.range(from..to).copied();
        chosen.moving.extend(pending(from, head));
        for (target, page) in here.iter().zip(head..) {
            if over(target) || overwrites.is_pending(page) {
                chosen.moving.push(page);
            }
        }
        chosen.moving.extend(pending(tail, to));
    }
    chosen
}

/// Looks at the blocks that pages will leave: an error must come now, not while the transaction closes.
///
/// # Errors
/// EUCLEAN, EIO.
pub(crate) fn look_at_old_blocks(
    store: &Store,
    reader: &mut impl Reader,
    disk: &DiskInode,
    moving: &[u64],
) -> Result<()> {
    let (Some(first), Some(last)) = (moving.first(), moving.last()) else {
        return Ok(());
    };
    let volume = &store.volume;
    for run in extents::runs(reader, volume, &disk.body, *first, last + 1)? {
        if !volume.run_is_data(run.block, run.len) {
            return Err(damaged(format!("an extent at block {}", run.block)));
        }
        store.alloc.ensure_loaded(run.block)?;
        let (bitmap, bit) = bit_of(volume, run.block)?;
        let bits = store
            .journal
            .read(bitmap, Kind::Meta)
            .map_err(from_journal)?;
        if !(bit..bit + run.len as usize).all(|bit| is_used(&bits, bit)) {
            return Err(damaged(format!("blocks in use at {} are free", run.block)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_grow_with_the_file() {
        const MIB: u64 = 1 << 20;
        for (size, unit) in [
            (0, 16),
            (256 * MIB, 16),
            (256 * MIB + 1, 32),
            (1024 * MIB, 64),
            (4096 * MIB, 256),
            (u64::MAX / 2, 256),
        ] {
            assert_eq!(unit_for(16, 256, size), unit, "{size} bytes");
        }
        assert_eq!(unit_for(1, 256, 5000 * MIB), 256);
        assert_eq!(unit_for(16, 40, 5000 * MIB), 40);
        assert_eq!(unit_for(512, 256, 5000 * MIB), 512);
    }

    #[test]
    fn small_writes_in_order_are_delayed_until_that_was_for_nothing() {
        let mut overwrites = Overwrites::default();
        let mut at = 0;
        for turn in 0..8 {
            assert_eq!(overwrites.pace.goes_on(at, 65_536), turn < WASTED_MAX);
            overwrites.delay(at / PAGE);
            overwrites.wrote(at, PAGE);
            at += PAGE;
            let decided = overwrites.take();
            assert!(decided.moving.is_empty() && decided.pending.len() == 1);
        }
        for _ in 0..32 {
            assert!(!overwrites.pace.goes_on(at, 65_536));
            overwrites.wrote(at, PAGE);
            at += PAGE;
        }
        assert!(overwrites.pace.goes_on(at, 65_536));
        assert!(!overwrites.pace.goes_on(at + PAGE, 65_536));
        overwrites.delay(7);
        overwrites.delay(8);
        overwrites.will_move(&[7, 8]);
        assert_eq!(overwrites.take().moving.first(), Some(&(7..9)));
        assert!(overwrites.pace.goes_on(0, 65_536), "it was for something");
    }
}
