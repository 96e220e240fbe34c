//! Streams: where the next page of each kind goes.
//!
//! A stream is open in as many blocks as its width, on different dies, and takes turns. Each page
//! says which two blocks its stream opens next, so that recovery can follow: a full block, or one
//! that failed, is followed by the first of them, or by the second if the first failed at once.
//! Announced blocks are erased, and durably so.

use crate::blocks::BlockUse;
use crate::error::{FtlError, Result};
pub(crate) use crate::ftl::{Buffer, Cursor, Stream};
use crate::ftl::{DELTA, Ftl, HOST, MAPS, MOVED, gathered};
use crate::limits::Widths;
use crate::platform::{Erase, Page, Platform, Queue, Table, Word};
use crate::policy::{Policy, Purpose, checked, first};
use crate::shape::{NONE, Shape};
use crate::tag::{self, Tag};
use alloc::vec::Vec;

impl<P: Platform> Buffer<P> {
    /// A sector that waits to be moved from an erased block is stale, and must not pass for a newer sector that comes
    /// to lie at the same place.
    fn drop_block(&mut self, shape: &Shape, block: P::W) {
        for (sector, place) in self.sectors.iter_mut().zip(&mut self.places) {
            if shape.block_of(*place) == block {
                (*sector, *place) = (P::W::of(NONE), P::W::of(NONE));
            }
        }
    }
}

const PURPOSES: [Purpose; 4] = [Purpose::Host, Purpose::Moved, Purpose::Delta, Purpose::Map];

impl<P: Platform, Y: Policy<P>> Ftl<P, Y> {
    /// Programs a page at the stream's next place. `sectors` are those of a data page.
    pub(crate) fn append(
        &mut self,
        stream: usize,
        mut page: P::P,
        mut tag: Tag<P::W>,
        sectors: &[P::W],
    ) -> Result<P::W, P::Error> {
        let index = self.turn(stream)?;
        tag.next = self.streams[stream].next;
        tag.write(&self.shape, &mut page);
        self.program_at(stream, index, page, sectors)
    }

    /// Programs a page, whose tag is complete, at an open block's next place.
    pub(crate) fn program_at(
        &mut self,
        stream: usize,
        index: usize,
        mut page: P::P,
        sectors: &[P::W],
    ) -> Result<P::W, P::Error> {
        let cursor = &mut self.streams[stream].open[index];
        let block = cursor.block;
        let at = self.shape.page_at(block, cursor.page);
        page.seal(self.volume, at);
        cursor.page = cursor.page + P::W::of(1);
        for &sector in sectors {
            cursor.sectors.push(sector);
        }
        let age = if stream == DELTA || stream == MAPS {
            self.checkpoint.cycle
        } else {
            self.runs
        };
        self.blocks.ages.set(block, age);
        let fetched = stream == MOVED;
        (self.platform.program(at, page, fetched)).map_err(FtlError::Flash)?;
        Ok(at)
    }

    /// The open block whose turn it is, which has room.
    pub(crate) fn turn(&mut self, stream: usize) -> Result<usize, P::Error> {
        let s = &mut self.streams[stream];
        if s.open.len() < s.width {
            return self.open(stream);
        }
        s.turn = (s.turn + 1) % s.open.len();
        let turn = s.turn;
        if s.open[turn].page < P::W::of(s.pages) {
            return Ok(turn);
        }
        self.close(stream, turn, true)?;
        self.open(stream)
    }

    /// When the reserve is short, data streams are open in no more blocks than they are: blocks that a
    /// crash left half filled are missing.
    pub(crate) fn narrow(&mut self) {
        for stream in [HOST, MOVED] {
            let s = &mut self.streams[stream];
            s.width = s.open.len().max(1);
        }
    }

    /// Behind an epoch that left more than the reserve, they may be open in as many as before.
    pub(crate) fn widen(&mut self) {
        let widths = Widths::of(&self.shape);
        for (stream, width) in [(HOST, widths.host), (MOVED, widths.moved)] {
            while (self.streams[stream].width as u64) < width
                && self.ready() >= self.in_pages(self.limits.reserve + 2)
            {
                self.streams[stream].width += 1;
            }
        }
    }

    /// Opens the block announced first; one that could not be erased is passed over.
    pub(crate) fn open(&mut self, stream: usize) -> Result<usize, P::Error> {
        for _ in 0..2 {
            let block = self.streams[stream].next[0];
            let fresh = self.choose_next(stream)?;
            let s = &mut self.streams[stream];
            s.next = [s.next[1], fresh];
            if !self.blocks.is(block, BlockUse::Next) {
                continue;
            }
            if stream == DELTA || stream == MAPS {
                self.meta_used = self.meta_used + P::W::of(1);
            }
            self.blocks.set(block, BlockUse::Open);
            let s = &mut self.streams[stream];
            let cursor = Cursor {
                block,
                page: P::W::of(0),
                sectors: P::Q::default(),
            };
            // Its turn is now; the others follow in the order in which they were opened.
            let at = s.turn.min(s.open.len());
            s.open.insert(at, cursor);
            s.turn = at;
            return Ok(at);
        }
        Err(FtlError::WornOut)
    }

    /// Closes an open block. A data block's last pages list its sectors, unless it failed.
    pub(crate) fn close(
        &mut self,
        stream: usize,
        index: usize,
        summary: bool,
    ) -> Result<(), P::Error> {
        let cursor = self.streams[stream].open.remove(index);
        let block = cursor.block;
        if stream == DELTA || stream == MAPS {
            let what = if stream == DELTA {
                BlockUse::Delta
            } else {
                BlockUse::Map
            };
            self.blocks.set(block, what);
            return Ok(());
        }
        if summary {
            self.summarise(&cursor)?;
        }
        self.blocks.set(block, BlockUse::Used);
        self.vacate(block)
    }

    fn summarise(&mut self, cursor: &Cursor<P>) -> Result<(), P::Error> {
        let n = P::W::of;
        let count = cursor.sectors.length();
        for index in 0..self.shape.summary_pages() {
            let mut page = self.platform.blank();
            let from = n(index * self.shape.page_words * 2);
            let words = self.shape.page_words;
            for word in 0..words {
                let half = |parity: u64| {
                    let at = from + n(2 * word + parity);
                    if at < count {
                        cursor.sectors.get(at)
                    } else {
                        n(NONE)
                    }
                };
                page.set_word(n(word), P::W::pack(half(1), half(0)));
            }
            let tag = self.tag(tag::SUMMARY, n(index), count);
            tag.write(&self.shape, &mut page);
            let at = (self.shape).page_at(cursor.block, n(self.shape.data_pages() + index));
            page.seal(self.volume, at);
            (self.platform.program(at, page, false)).map_err(FtlError::Flash)?;
            self.stats.summary_pages += 1;
        }
        Ok(())
    }

    pub(crate) fn tag(&self, kind: u64, number: P::W, count: P::W) -> Tag<P::W> {
        Tag {
            kind: P::W::of(kind),
            flags: P::W::of(0),
            incarnation: self.incarnation,
            number,
            flushed: if self.faults.flushed_early {
                self.number
            } else {
                self.flushed
            },
            next: [P::W::of(NONE); 2],
            count,
        }
    }

    /// A block for pages that came back from a sync: a fresh one of their stream, and another when that is
    /// full; in a block, a page always comes after pages with smaller numbers.
    pub(crate) fn refuge(
        &mut self,
        stream: usize,
        fresh: Option<usize>,
    ) -> Result<usize, P::Error> {
        let s = &self.streams[stream];
        match fresh {
            Some(index) if s.open[index].page < P::W::of(s.pages) => return Ok(index),
            Some(full) => self.close(stream, full, true)?,
            None if s.open.len() >= s.width => self.close(stream, 0, false)?,
            None => {}
        }
        self.open(stream)
    }

    /// Programs a page that came back from a sync, with this tag, in an open block; says where.
    pub(crate) fn repeat(
        &mut self,
        stream: usize,
        index: usize,
        mut page: P::P,
        mut tag: Tag<P::W>,
    ) -> Result<P::W, P::Error> {
        tag.next = self.streams[stream].next;
        tag.write(&self.shape, &mut page);
        let mut sectors = Vec::new();
        if stream == HOST {
            for slot in 0..self.shape.sectors {
                sectors.push(self.listed(&page, &tag, slot));
            }
        }
        self.program_at(stream, index, page, &sectors)
    }

    /// A free block to announce.
    pub(crate) fn choose_next(&mut self, stream: usize) -> Result<P::W, P::Error> {
        loop {
            let others = gathered(&self.streams[stream]);
            let proposal = self.policy.next(PURPOSES[stream], &self.blocks, &others);
            let good = checked(proposal, &self.blocks, BlockUse::Free);
            if proposal.is_some() && good.is_none() {
                self.stats.refused_proposals += 1;
            }
            if let Some(block) = good.or_else(|| first(&self.blocks, BlockUse::Free)) {
                self.blocks.set(block, BlockUse::Next);
                return Ok(block);
            }
            self.wait_for_free()?;
        }
    }

    /// Waits until a block is free, erasing one if none is on the way.
    fn wait_for_free(&mut self) -> Result<(), P::Error> {
        if self.blocks.erasing.length() == P::W::of(0) && !self.begin_erase()? {
            return Err(FtlError::WornOut);
        }
        self.poll_erasing(true)
    }

    /// Erases an erasable block; says whether there was one.
    pub(crate) fn begin_erase(&mut self) -> Result<bool, P::Error> {
        let proposal = self.policy.erase(&self.blocks);
        let good = checked(proposal, &self.blocks, BlockUse::Erasable);
        if proposal.is_some() && good.is_none() {
            self.stats.refused_proposals += 1;
        }
        let Some(block) = good.or_else(|| first(&self.blocks, BlockUse::Erasable)) else {
            return Ok(false);
        };
        self.moved.drop_block(&self.shape, block);
        self.platform.erase(block).map_err(FtlError::Flash)?;
        self.blocks.set(block, BlockUse::Erasing);
        self.blocks.erasing.push(block);
        Ok(true)
    }

    /// Looks which erases are done; `wait`: waits for the oldest.
    pub(crate) fn poll_erasing(&mut self, mut wait: bool) -> Result<(), P::Error> {
        let (length, mut kept) = (self.blocks.erasing.length(), P::W::of(0));
        P::each("erasing blocks", length, |i| {
            kept = self.poll_one(i, kept, wait)?;
            wait = false;
            Ok(())
        })?;
        self.blocks.erasing.truncate(kept);
        Ok(())
    }

    /// Looks at one block that is being erased, `kept` of those before it being still in the list;
    /// how many are then.
    pub(crate) fn poll_one(&mut self, i: P::W, kept: P::W, wait: bool) -> Result<P::W, P::Error> {
        let block = self.blocks.erasing.get(i);
        match (self.platform.erased(block, wait)).map_err(FtlError::Flash)? {
            Erase::Pending => {
                self.blocks.erasing.set(kept, block);
                return Ok(kept + P::W::of(1));
            }
            Erase::Done => {
                let erases = self.blocks.erases.get(block);
                self.blocks.erases.set(block, erases + P::W::of(1));
                self.blocks.set(block, BlockUse::Free);
            }
            Erase::Failed => self.retire(block),
        }
        Ok(kept)
    }

    pub(crate) fn retire(&mut self, block: P::W) {
        self.blocks.set(block, BlockUse::Bad);
        self.blocks.failing.set(block, P::W::of(1));
        self.bad = self.bad + P::W::of(1);
        self.stats.failed_blocks += 1;
    }

    /// Keeps some erased blocks in stock.
    pub(crate) fn restock(&mut self) -> Result<(), P::Error> {
        self.poll_erasing(false)?;
        let mut ready = self.blocks.erasing.length().value();
        let stock = self.policy.stock();
        let _ = P::each("free blocks", self.blocks.count, |block| {
            if self.blocks.is(block, BlockUse::Free) {
                ready += 1;
            }
            if ready >= stock { Err(()) } else { Ok(()) }
        });
        while ready < stock && self.begin_erase()? {
            ready += 1;
        }
        Ok(())
    }

    /// A full block without valid sectors is invalid.
    pub(crate) fn vacate(&mut self, block: P::W) -> Result<(), P::Error> {
        self.blocks.vacate(block);
        if !self.blocks.is(block, BlockUse::Invalid) {
            return Ok(());
        }
        if self.victim.as_ref().is_some_and(|v| v.block == block) {
            self.victim = None;
        }
        if self.faults.free_stable {
            self.blocks.set(block, BlockUse::Erasable);
            self.begin_erase()?;
        }
        if self.faults.erase_before_flush {
            self.platform.erase(block).map_err(FtlError::Flash)?;
            self.blocks.set(block, BlockUse::Erasing);
            self.blocks.erasing.push(block);
        }
        Ok(())
    }
}
