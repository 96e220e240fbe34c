//! fallocate: space without content, holes, ranges that read as zeros. Each call is atomic.
//!
//! Whole pages change their state; bytes of a range in pages that keep others are zeroed in a new page that takes the old one's
//! place. So punching a hole that is not aligned needs up to two free pages for a moment.

use super::edit::{Edit, Supply};
use super::exists;
use super::name::full;
use super::write::check_end;
use crate::fs::PmFs;
use crate::index::file::{Extent, FileIndex};
use crate::layout::{PAGE_BYTES, PageState};
use crate::state::{Bytes, Taken, Times};
use smallvec::SmallVec;
use std::ops::Range;
use steadfast_vfs::policy::{self, attrs::perm_after_write};
use steadfast_vfs::{AllocateMode, Caller, Errno, Ino, Result};

/// A page of which a range of bytes is zeroed, and others stay.
struct Edge {
    /// The page as it is.
    old: Extent,
    /// Bytes to keep before the range.
    head: Vec<u8>,
    /// Bytes to keep after the range.
    tail: Vec<u8>,
    /// Bytes of zeros between them.
    zeros: u64,
}

/// Bytes `from` to `to` of a file of `size` bytes, which is going to have `size_after`.
#[derive(Clone, Copy)]
struct Cut {
    from: u64,
    to: u64,
    size: u64,
    size_after: u64,
}

impl Cut {
    /// The pages that the range covers, as far as the file shows them.
    fn whole(&self) -> Range<u64> {
        let first = self.from.div_ceil(PAGE_BYTES);
        let last = match self.to >= self.size {
            true => self.to.div_ceil(PAGE_BYTES),
            false => self.to / PAGE_BYTES,
        };
        first..last.max(first)
    }

    /// The pages that it covers in part, each once.
    fn partial(&self) -> impl Iterator<Item = u64> {
        let (first, last) = (self.from / PAGE_BYTES, self.to / PAGE_BYTES);
        let whole = self.whole();
        let last = (last != first).then_some(last);
        let pages = [Some(first), last].into_iter().flatten();
        pages.filter(move |page| !whole.contains(page))
    }
}

impl PmFs {
    /// Changes the allocation of a range of a file.
    pub(crate) fn op_fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.write();
        exists(&node, &state)?;
        if len == 0 {
            return Err(Errno::Inval.into());
        }
        policy::require_file(node.kind)?;
        let end = check_end(offset, len)?;
        let disk = self.disk(&node);
        let subject = self.subject(&node, &state, &disk)?;
        let allocates = matches!(mode, AllocateMode::Allocate | AllocateMode::KeepSize);
        match allocates {
            true => policy::may_grow(&subject)?,
            false => policy::not_fixed(&subject)?,
        }
        let grows = matches!(mode, AllocateMode::Allocate | AllocateMode::ZeroRange);
        let size_after = if grows { disk.size.max(end) } else { disk.size };
        let now = self.now();
        let times = Times {
            mtime: Some(now),
            ctime: Some(now),
            ..Times::default()
        };
        let pages = state.pages().ok_or(Errno::Inval)?;
        let cut = Cut {
            from: offset,
            to: end,
            size: disk.size,
            size_after,
        };
        let edges = match allocates {
            true => SmallVec::new(),
            false => self.edges_of(pages, &cut),
        };
        let range = match allocates {
            true => offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES),
            false => cut.whole(),
        };
        let punches = mode == AllocateMode::PunchHole;
        let holes: SmallVec<[Range<u64>; 4]> = match punches {
            true => SmallVec::new(),
            // Also at the edges of a range of zeros there is to be space.
            false => holes(pages, offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).collect(),
        };
        let mut edit = Edit::new(&disk, times);
        edit.change.attributes.perm = perm_after_write(caller, disk.commit.perm, disk.gid);
        edit.change.attributes.size = size_after;
        let missing: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
        let mut supply = self.supply(missing + edges.len() as u64)?;
        if !allocates {
            for extent in pages.range(range.start, range.end) {
                match extent.state {
                    _ if punches => edit.lose(&extent),
                    PageState::Written => edit.clear(&extent),
                    _ => {}
                }
            }
        }
        for edge in &edges {
            edit.lose(&edge.old);
            let at = (edge.old.offset, edge.old.end());
            edit.gain(&mut supply, at, PageState::Written, |edit, new| {
                let at = new.page.at();
                let tail = edge.head.len() as u64 + edge.zeros;
                edit.store(at, Bytes::Data(&edge.head));
                edit.store(at + edge.head.len() as u64, Bytes::Zeros(edge.zeros));
                edit.store(at + tail, Bytes::Data(&edge.tail));
            })?;
        }
        for hole in &holes {
            let at = (hole.start, hole.end);
            edit.gain(&mut supply, at, PageState::Unwritten, |_, _| {})?;
        }
        let last = disk.size / PAGE_BYTES;
        let replaced = edges.iter().any(|edge| edge.old.offset == last);
        let cleared = !allocates && range.contains(&last);
        if !replaced && !cleared {
            edit.clear_tail(pages, disk.size, size_after);
        }
        edit.commit(self, &mut state)
    }

    /// Takes `pages` free pages. ENOSPC.
    fn supply(&self, pages: u64) -> Result<Supply<'_>> {
        let runs = match pages {
            0 => Taken::new(),
            pages => self.free()?.pages(pages, None).ok_or_else(full)?,
        };
        Ok(Supply::new(runs))
    }

    /// The pages that show something of a range, and keep something else.
    fn edges_of(&self, pages: &FileIndex, cut: &Cut) -> SmallVec<[Edge; 2]> {
        let edge = |offset: u64| {
            let old = pages.find(offset)?;
            let old = Extent { len: 1, ..old };
            let start = offset * PAGE_BYTES;
            let (from, to) = (cut.from.max(start), cut.to.min(start + PAGE_BYTES));
            let shown = from < cut.size.min(to);
            if old.state != PageState::Written || !shown {
                return None;
            }
            let kept = |from: u64, to: u64| {
                let mut bytes = vec![0; to.saturating_sub(from) as usize];
                self.medium()
                    .read(old.page.at() + (from - start), &mut bytes);
                bytes
            };
            let tail = kept(to, cut.size.min(start + PAGE_BYTES));
            let end = cut.size_after.min(start + PAGE_BYTES);
            Some(Edge {
                old,
                head: kept(start, from),
                zeros: end - from - tail.len() as u64,
                tail,
            })
        };
        cut.partial().filter_map(edge).collect()
    }
}

/// The holes in a range of a file's pages.
fn holes(pages: &FileIndex, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
    let mut next = range.start;
    let extents = pages.range(range.start, range.end);
    let ends = extents.map(|extent| (extent.offset, extent.end()));
    ends.chain([(range.end, range.end)])
        .filter_map(move |(start, end)| {
            let hole = next..start;
            next = end;
            (!hole.is_empty()).then_some(hole)
        })
}
