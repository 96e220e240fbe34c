//! Writing file data: each call is atomic, for any number of pages for which there is room.
//!
//! A page of the range goes one of four ways:
//!
//! * it is written and shows bytes that would be overwritten: a new page takes its place, with its other bytes copied;
//! * it is written and shows nothing there, because the file ends before: the bytes go past the end;
//! * it is unwritten: all of its bytes that the file will show are stored, then it turns into a written one;
//! * there is none: a new page.
//!
//! All of it counts with the commit of the inode: two fences. A volume mounted with `in_place` overwrites written pages where
//! they are, with one fence, if nothing else changes.

use super::edit::{Edit, Supply};
use super::inode::Disk;
use super::name::{full, refused};
use super::{FILE_BYTES_MAX, exists};
use crate::fs::PmFs;
use crate::index::file::{Extent, FileIndex};
use crate::layout::{PAGE_BYTES, Page, PageState};
use crate::state::{self, Bytes, DataStore, Taken, Times};
use crate::table::{Node, State};
use smallvec::SmallVec;
use std::ops::Range;
use steadfast_vfs::policy::{self, attrs::perm_after_write};
use steadfast_vfs::{Caller, Errno, Ino, Result};

/// Bytes of a file to be written.
struct Span<'a> {
    at: u64,
    data: &'a [u8],
}

impl<'a> Span<'a> {
    fn end(&self) -> u64 {
        self.at + self.data.len() as u64
    }

    /// The offsets of its pages.
    fn pages(&self) -> Range<u64> {
        self.at / PAGE_BYTES..self.end().div_ceil(PAGE_BYTES)
    }

    /// The part of it in the pages of an extent: its beginning, and the bytes.
    fn cut(&self, extent: &Extent) -> (u64, &'a [u8]) {
        let from = self.at.max(extent.offset * PAGE_BYTES);
        let to = self.end().min(extent.end() * PAGE_BYTES);
        (
            from,
            &self.data[(from - self.at) as usize..(to - self.at) as usize],
        )
    }

    /// End of the write if it gets only `pages` new pages.
    fn fits(&self, parts: &[Part], mut pages: u64) -> u64 {
        for part in parts {
            match *part {
                Part::New(from, to, _) if to - from > pages => return (from + pages) * PAGE_BYTES,
                _ => pages -= new_pages(part),
            }
        }
        self.end()
    }
}

/// Bytes to keep, at the edges of a write, of the pages that it replaces.
#[derive(Default)]
struct Edges {
    /// Bytes before the write.
    head: Vec<u8>,
    /// Bytes after the write.
    tail: Vec<u8>,
}

/// A part of a file whose pages all go the same way.
#[derive(Clone, Copy)]
enum Part {
    /// New pages, in the place of these if there are some.
    New(u64, u64, Option<Extent>),
    /// Pages that are there.
    Own(Extent),
}

/// EFBIG if bytes would lie past the largest file's end.
pub(super) fn check_end(offset: u64, len: u64) -> Result<u64> {
    let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
    end.ok_or_else(|| Errno::FBig.into())
}

/// Whether a write from `at` on to a file of this size overwrites bytes that a written extent shows.
fn shows(extent: &Extent, at: u64, size: u64) -> bool {
    extent.state == PageState::Written && at.max(extent.offset * PAGE_BYTES) < size
}

/// Parts of a file, in order.
type Parts = SmallVec<[Part; 2]>;

/// The parts of a span of a file of this size.
fn parts(pages: &FileIndex, span: &Span<'_>, size: u64) -> Parts {
    let range = span.pages();
    let mut parts = Parts::new();
    if range.start >= pages.end() {
        parts.push(Part::New(range.start, range.end, None));
        return parts;
    }
    let mut next = range.start;
    for extent in pages.range(range.start, range.end) {
        if next < extent.offset {
            parts.push(Part::New(next, extent.offset, None));
        }
        next = extent.end();
        parts.push(match shows(&extent, span.at, size) {
            true => Part::New(extent.offset, next, Some(extent)),
            false => Part::Own(extent),
        });
    }
    if next < range.end {
        parts.push(Part::New(next, range.end, None));
    }
    parts
}

/// New pages that a part takes.
fn new_pages(part: &Part) -> u64 {
    match part {
        Part::New(from, to, _) => to - from,
        Part::Own(_) => 0,
    }
}

impl PmFs {
    /// Writes `data` at `offset`, or at the end. Returns where it went and how much of it was written.
    pub(crate) fn op_write(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<(u64, usize)> {
        let node = self.node(ino)?;
        let mut state = node.write();
        exists(&node, &state)?;
        policy::require_file(node.kind)?;
        let disk = self.disk(&node);
        let at = offset.unwrap_or(disk.size);
        if data.is_empty() {
            return Ok((at, 0));
        }
        check_end(at, data.len() as u64)?;
        policy::may_write_at(&self.subject(&node, &state, &disk)?, at)?;
        let perm = perm_after_write(caller, disk.commit.perm, disk.gid);
        let now = self.now();
        let times = Times {
            mtime: Some(now),
            ctime: Some(now),
            ..Times::default()
        };
        let span = Span { at, data };
        if self.options().in_place
            && perm == disk.commit.perm
            && self.overwrite(&node, &state, &disk, &span, times)?
        {
            return Ok((at, data.len()));
        }
        let pages = state.pages().ok_or(Errno::Inval)?;
        let (span, parts, supply) = self.pages_for(pages, disk.size, span)?;
        let edges = self.edges(pages, disk.size, &span);
        let mut edit = Edit::new(&disk, times);
        edit.change.attributes.perm = perm;
        edit.clear_tail(pages, disk.size, span.at);
        plan(&parts, disk.size, &span, &edges, supply, &mut edit)?;
        edit.commit(self, &mut state)?;
        Ok((at, span.data.len()))
    }

    /// Overwrites in place, if all pages of the span are written and the file does not grow.
    fn overwrite(
        &self,
        node: &Node<'_>,
        state: &State,
        disk: &Disk,
        span: &Span<'_>,
        times: Times,
    ) -> Result<bool> {
        let Some(pages) = state.pages().filter(|_| span.end() <= disk.size) else {
            return Ok(false);
        };
        let range = span.pages();
        let mut stores: SmallVec<[DataStore<'_>; 4]> = SmallVec::new();
        let mut next = range.start;
        for extent in pages.range(range.start, range.end) {
            if extent.state != PageState::Written || extent.offset != next {
                return Ok(false);
            }
            next = extent.end();
            let (from, bytes) = span.cut(&extent);
            stores.push(DataStore {
                at: extent.page.at() + (from - extent.offset * PAGE_BYTES),
                bytes: Bytes::Data(bytes),
            });
        }
        if next < range.end {
            return Ok(false);
        }
        state::overwrite(self.medium(), node.inode, &stores, times).map_err(refused)?;
        Ok(true)
    }

    /// The new pages that a write takes. If there are not as many, the span becomes as long as there are pages for it.
    /// ENOSPC if that is nothing.
    fn pages_for<'a>(
        &self,
        pages: &FileIndex,
        size: u64,
        mut span: Span<'a>,
    ) -> Result<(Span<'a>, Parts, Supply<'_>)> {
        let count = |parts: &Parts| -> u64 { parts.iter().map(new_pages).sum() };
        let mut all = parts(pages, &span, size);
        let mut needed = count(&all);
        if needed == 0 {
            return Ok((span, all, Supply::new(Taken::new())));
        }
        let before = (span.at / PAGE_BYTES).checked_sub(1);
        let before = before.and_then(|before| pages.find(before));
        let near = before.map(|before| Page(before.page.0 + 1));
        while needed > 0 {
            if let Some(runs) = self.free()?.pages(needed, near) {
                return Ok((span, all, Supply::new(runs)));
            }
            // Others take pages at the same time; so at least one less than before.
            let there = self.free()?.free_pages().min(needed - 1);
            let end = span.fits(&all, there);
            let len = end.saturating_sub(span.at).min(span.data.len() as u64);
            if len == 0 {
                return Err(full());
            }
            span.data = &span.data[..len as usize];
            all = parts(pages, &span, size);
            needed = count(&all);
        }
        Ok((span, all, Supply::new(Taken::new())))
    }

    /// Bytes to keep of the pages at the edges of a write.
    fn edges(&self, pages: &FileIndex, size: u64, span: &Span<'_>) -> Edges {
        if span.at >= size {
            return Edges::default();
        }
        let kept = |offset: u64, from: u64, to: u64| {
            let old = pages.find(offset);
            let old = old.filter(|old| to > from && shows(old, span.at, size));
            old.map_or_else(Vec::new, |old| {
                let mut bytes = vec![0; (to - from) as usize];
                let at = old.page.at() + (from - offset * PAGE_BYTES);
                self.medium().read(at, &mut bytes);
                bytes
            })
        };
        let Range { start, end } = span.pages();
        Edges {
            head: kept(start, start * PAGE_BYTES, span.at),
            tail: kept(end - 1, span.end(), size.min(end * PAGE_BYTES)),
        }
    }
}

/// Adds a write, for which there are pages, to a change.
fn plan<'a, 'f>(
    parts: &[Part],
    old_size: u64,
    span: &Span<'a>,
    edges: &'a Edges,
    mut supply: Supply<'f>,
    edit: &mut Edit<'a, 'f>,
) -> Result<()> {
    let size = old_size.max(span.end());
    edit.change.attributes.size = size;
    for part in parts {
        match *part {
            Part::New(from, to, old) => {
                if let Some(old) = &old {
                    edit.lose(old);
                }
                let edges = old.map(|_| edges);
                let fill = |edit: &mut Edit<'a, 'f>, new: &Extent| {
                    fill(new, span, edges, size, edit);
                };
                edit.gain(&mut supply, (from, to), PageState::Written, fill)?;
            }
            Part::Own(own) if own.state == PageState::Unwritten => {
                edit.turn(&own);
                fill(&own, span, None, size, edit);
            }
            Part::Own(own) => {
                let (from, bytes) = span.cut(&own);
                let at = own.page.at() + (from - own.offset * PAGE_BYTES);
                edit.store(at, Bytes::Data(bytes));
            }
        }
    }
    Ok(())
}

/// Stores all bytes of pages that a file of this size will show: those of the span, and around them the pages' earlier bytes
/// or, if there were none, zeros.
fn fill<'a>(
    to: &Extent,
    span: &Span<'a>,
    edges: Option<&'a Edges>,
    size: u64,
    edit: &mut Edit<'a, '_>,
) {
    let (start, base) = (to.offset * PAGE_BYTES, to.page.at());
    let end = size.min(to.end() * PAGE_BYTES);
    let (from, bytes) = span.cut(to);
    let done = from + bytes.len() as u64;
    edit.store(
        base,
        match edges {
            Some(edges) if from > start => Bytes::Data(&edges.head),
            _ => Bytes::Zeros(from - start),
        },
    );
    edit.store(base + (from - start), Bytes::Data(bytes));
    edit.store(
        base + (done - start),
        match edges {
            Some(edges) if end > done => Bytes::Data(&edges.tail),
            _ => Bytes::Zeros(end.saturating_sub(done)),
        },
    );
}
