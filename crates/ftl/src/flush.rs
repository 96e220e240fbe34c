//! Flush: everything since the last one becomes durable in one step.
//!
//! Order: the epoch's pages are programmed, the one that commits last in number; one sync;
//! programs that failed are repeated elsewhere, and synced. Now the epoch is committed and the
//! current map is the committed one: only now are delta pages and checkpoint pages written, and
//! invalid blocks become erasable. Those writes are waited for by the next flush.

use crate::error::{FtlError, Result};
use crate::ftl::{DELTA, Ftl, HOST, MAPS, MOVED};
use crate::limits::{ANCHORS, Widths, delta_head_words, pair_capacity};
use crate::platform::{Page, Platform, Queue, Table, Word};
use crate::policy::Policy;
use crate::shape::NONE;
use crate::stream::Stream;
use crate::tag::{self, Tag};

/// Commits that a flush or a mount may add to move sectors when the reserve is short.
const EXTRA_COMMITS: u64 = 64;
/// Pages that such a commit may take: one of moved sectors, and its own.
const ROUND_PAGES: u64 = 2;

impl<P: Platform, Y: Policy<P>> Ftl<P, Y> {
    /// Makes all writes and trims since the last flush durable, all or none of them.
    ///
    /// # Errors
    /// After any error it is unknown whether the flush took place; the disk has stopped, and the
    /// next mount decides.
    pub fn flush(&mut self) -> Result<(), P::Error> {
        if self.stopped {
            return Err(FtlError::Stopped);
        }
        if !self.dirty {
            // Nothing can ever be written again: a client must not wait for a flush to help.
            let full = self.budget == P::W::of(0);
            return if full { Err(FtlError::WornOut) } else { Ok(()) };
        }
        self.stopping(Self::flush_all)
    }

    pub(crate) fn flush_all(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        if self.faults.delta_early && self.pairs.length() > n(0) {
            P::part(self, "deltas", Self::write_deltas)?;
        }
        self.end_epoch()?;
        self.make_room()?;
        P::part(self, "balance", |ftl| ftl.balance(ftl.shape.sectors))
    }

    /// Commits the epoch. Until `make_room` nothing is admitted to the next one.
    fn end_epoch(&mut self) -> Result<(), P::Error> {
        // The host's part of the epoch is over.
        self.budget = P::W::of(0);
        P::part(self, "reclaim", Self::reclaim)?;
        P::part(self, "commit", Self::commit)?;
        P::part(self, "after commit", Self::after_commit)?;
        Ok(())
    }

    /// Makes everything durable as a flush does, and then writes a whole checkpoint, so that a mount finds
    /// next to nothing to follow: for a clean shutdown. Does nothing if the newest root
    /// says all there is.
    ///
    /// Order: uncommitted changes are committed; changes that wait go to delta pages, all of which are
    /// durable before the position after them is noted; a checkpoint under way is completed, so
    /// that there never are more than two of the map in flash. A crash on the way returns to this commit, or
    /// the one before.
    ///
    /// # Errors
    /// As for [`flush`](Ftl::flush). Durable data of earlier flushes is not touched.
    pub fn checkpoint(&mut self) -> Result<(), P::Error> {
        if self.stopped {
            return Err(FtlError::Stopped);
        }
        if self.is_at_rest() {
            return Ok(());
        }
        if self.budget == P::W::of(0) && !self.dirty {
            return Err(FtlError::WornOut);
        }
        self.stopping(|ftl| {
            if ftl.dirty {
                P::part(ftl, "end epoch", Self::end_epoch)?;
            }
            if ftl.pairs.length() > P::W::of(0) {
                P::part(ftl, "deltas", Self::write_deltas)?;
            }
            // Also the pages of `end_epoch`: if a delta page has to move, all delta pages after it move along.
            P::part(ftl, "settle all", Self::settle)?;
            P::part(ftl, "finish", Self::finish_checkpoint)?;
            P::part(ftl, "checkpoint", Self::checkpoint_whole)?;
            P::part(ftl, "after commit", Self::after_commit)?;
            P::part(ftl, "make room", Self::make_room)
        })
    }

    /// With everything committed: makes sure that the reserve is free when the next epoch begins. After a
    /// flush it is (`reclaim`), unless programs failed; after a mount the blocks that were open
    /// are not full, and may be missing.
    pub(crate) fn make_room(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        self.budget = n(0);
        if self.ready() < self.in_pages(self.limits.reserve) {
            self.narrow();
        }
        let tries = if self.faults.skip_room {
            0
        } else {
            EXTRA_COMMITS
        };
        for _ in 0..tries {
            if self.ready() >= self.in_pages(self.limits.reserve) {
                break;
            }
            let before = self.stats.moved;
            P::part(self, "relocate", |ftl| {
                ftl.relocate(ftl.limits.block_sectors)
            })?;
            let idle = self.blocks.invalid.length() == n(0) && self.stats.moved == before;
            if idle || self.ready() < n(ROUND_PAGES) {
                break;
            }
            P::part(self, "seal moved", |ftl| ftl.seal(MOVED, false))?;
            self.stats.extra_commits += 1;
            if !self.faults.extra_unsynced {
                P::part(self, "commit", Self::commit)?;
            }
            P::part(self, "after commit", Self::after_commit)?;
            // Changes that wait for a page full keep blocks from being erased. These pages are
            // durable after the next commit, and only then count.
            P::part(self, "deltas", Self::write_deltas)?;
            if self.faults.runs_early {
                self.after_commit()?;
            }
        }
        // Half moved, with many valid sectors left: only while there is room for it.
        if (self.victim.as_ref()).is_some_and(|victim| !self.bearable(victim.block)) {
            self.victim = None;
        }
        self.widen();
        self.renew_budget();
        Ok(())
    }

    /// Programs all waiting pages, of which the last one commits, and syncs.
    pub(crate) fn commit(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        let trims = self.trims.length() != n(0);
        if !trims || !self.host.sectors.is_empty() {
            self.seal(HOST, !trims)?;
        }
        if trims {
            self.seal_trims(true)?;
        }
        self.settle()?;
        self.flushed = self.number;
        self.writes = n(0);
        self.dirty = false;
        self.stats.flushes += 1;
        Ok(())
    }

    /// The next epoch holds as many writes as there is room for, also after losses.
    pub(crate) fn renew_budget(&mut self) {
        let n = P::W::of;
        let have = self.ready();
        if have >= self.in_pages(self.limits.reserve) {
            self.budget = n(self.limits.epoch);
            return;
        }
        // Room that moving may need is not available to the epoch.
        let blocks = have.value() / self.shape.data_pages();
        let usable = blocks.saturating_sub(3) * self.limits.block_sectors / 4;
        self.budget = n(usable.min(self.limits.epoch));
    }

    /// Waits until everything programmed is durable and can be found. A page that had to go to
    /// another block may lie where none before it announced: streams that open several blocks
    /// between two syncs have moved on. So a failure is followed by a whole checkpoint, after
    /// which no mount follows the old pages. Until its root is durable a crash returns to the state
    /// before, as in any flush that has not returned.
    pub(crate) fn settle(&mut self) -> Result<(), P::Error> {
        if self.sync()? && !self.faults.skip_mend {
            P::part(self, "checkpoint", Self::checkpoint_whole)?;
        }
        Ok(())
    }

    /// Waits until everything programmed is durable, wherever it has to go. Says whether anything
    /// had to go elsewhere.
    pub(crate) fn sync(&mut self) -> Result<bool, P::Error> {
        let mut any = false;
        if self.faults.skip_sync {
            return Ok(any);
        }
        loop {
            let mut failed = self.platform.sync().map_err(FtlError::Flash)?;
            if failed.is_empty() || self.faults.ignore_failed {
                return Ok(any);
            }
            any = true;
            for (at, _) in &failed {
                P::part(self, "abandon", |ftl| ftl.abandon(*at))?;
            }
            // In the order of their logs: see `refuge`.
            failed.sort_by_key(|(at, page)| {
                let tag = Tag::read(&self.shape, self.volume, *at, page);
                tag.map_or(0, |tag| tag.number.value())
            });
            let mut fresh = [None; 4];
            for (at, page) in failed {
                P::part(self, "again", |ftl| ftl.again(at, page, &mut fresh))?;
            }
        }
    }

    /// A program failed in the block: it is closed, and never erased again.
    pub(crate) fn abandon(&mut self, at: P::W) -> Result<(), P::Error> {
        let block = self.shape.block_of_page(at);
        if !self.blocks.is_failing(block) {
            self.blocks.failing.set(block, P::W::of(1));
            self.bad = self.bad + P::W::of(1);
            self.stats.failed_blocks += 1;
        }
        for stream in [HOST, MOVED, DELTA, MAPS] {
            let open = &self.streams[stream].open;
            if let Some(index) = open.iter().position(|cursor| cursor.block == block) {
                self.close(stream, index, false)?;
                self.streams[stream].turn = 0;
            }
        }
        Ok(())
    }

    /// Programs a failed page in another block, and changes the references to its place.
    pub(crate) fn again(
        &mut self,
        at: P::W,
        page: P::P,
        fresh: &mut [Option<usize>; 4],
    ) -> Result<(), P::Error> {
        let n = P::W::of;
        if self.shape.block_of_page(at) < n(ANCHORS) {
            return self.root_failed();
        }
        let Some(tag) = Tag::read(&self.shape, self.volume, at, &page) else {
            return Err(FtlError::Stopped);
        };
        let stream = if tag.is(tag::DATA) || tag.is(tag::TRIM) {
            // Both data streams are one log: either will do.
            HOST
        } else if tag.is(tag::DELTA) {
            DELTA
        } else if tag.is(tag::MAP) || tag.is(tag::DIRECTORY) || tag.is(tag::TABLE) {
            MAPS
        } else {
            // Without its list, a block is read page by page.
            return Ok(());
        };
        let copy = page.clone();
        let index = self.refuge(stream, fresh[stream])?;
        fresh[stream] = Some(index);
        let new = self.repeat(stream, index, page, tag)?;
        if tag.is(tag::DATA) {
            for slot in 0..self.shape.sectors {
                let sector = self.listed(&copy, &tag, slot);
                if sector != n(NONE) {
                    let places = [at, new].map(|page| self.shape.place(page, slot));
                    self.sector_moved(sector, places[0], places[1])?;
                }
            }
        } else if stream == MAPS {
            self.checkpoint_moved(&tag, at, new);
        }
        Ok(())
    }

    /// The page of a sector went to another place: if that is still its place, map and pair follow.
    pub(crate) fn sector_moved(
        &mut self,
        sector: P::W,
        old: P::W,
        new: P::W,
    ) -> Result<(), P::Error> {
        if self.lookup(sector)? == old {
            self.point(sector, new, true)?;
            self.vacate(self.shape.block_of(old))?;
            self.amend(P::W::pack(sector, old), P::W::pack(sector, new));
        }
        Ok(())
    }

    /// Changes a pair that waits for its delta page.
    pub(crate) fn amend(&mut self, old: P::W, new: P::W) {
        let length = self.pairs.length();
        let found = P::find("a pair", length, |i| self.pairs.get(i) == old);
        if found < length {
            self.pairs.set(found, new);
        }
    }

    /// Carries out the steps that a commit allows.
    pub(crate) fn after_commit(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        // Runs programmed before the sync are durable now.
        self.blocks.durable_runs = self.runs;
        P::part(self, "settle", |ftl| {
            ftl.blocks.settle_invalid();
            Ok(())
        })?;
        if self.pairs.length() >= n(self.limits.pairs) {
            P::part(self, "deltas", Self::write_deltas)?;
        }
        P::part(self, "step", Self::advance_checkpoint)?;
        P::part(self, "restock", Self::restock)
    }

    /// Writes all pairs to delta pages. The last page of the run commits it: it says up to which
    /// data page the run goes, and where the data streams stand. One page even without pairs.
    pub(crate) fn write_deltas(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        let head = n(delta_head_words(&self.shape));
        let capacity = n(pair_capacity(&self.shape));
        let mut from = n(0);
        loop {
            let left = self.pairs.length() - from;
            let last = left <= capacity;
            let count = if last { left } else { capacity };
            let mut page = self.platform.blank();
            let mut tag = self.tag(tag::DELTA, self.delta, count);
            P::each("pairs of a page", count, |i| {
                page.set_word(head + i, self.pairs.get(from + i));
                Ok::<_, FtlError<P::Error>>(())
            })?;
            if last {
                self.write_frontier(&mut page);
                if !self.faults.skip_delta_commit {
                    tag.flags = n(tag::COMMIT);
                }
            }
            self.append(DELTA, page, tag, &[])?;
            self.stats.delta_pages += 1;
            self.delta = self.delta + n(1);
            from = from + count;
            if last {
                break;
            }
        }
        self.pairs.truncate(n(0));
        self.runs = self.runs + n(1);
        Ok(())
    }

    /// Words of a delta page before its pairs: the data page that the run goes up to, the
    /// incarnation, and for each data stream its next blocks, how many are open, and those.
    fn write_frontier(&self, page: &mut P::P) {
        let n = P::W::of;
        let widths = Widths::of(&self.shape);
        page.set_word(n(0), self.number);
        page.set_word(n(1), self.incarnation);
        let mut at = 3;
        for (stream, width) in [(HOST, widths.host), (MOVED, widths.moved)] {
            let s: &Stream<P> = &self.streams[stream];
            page.set_word(n(at), P::W::pack(s.next[1], s.next[0]));
            page.set_word(n(at + 1), n(s.open.len() as u64));
            for (i, cursor) in s.open.iter().enumerate() {
                let word = P::W::pack(cursor.block, cursor.page);
                page.set_word(n(at + 2 + i as u64), word);
            }
            at += 2 + width;
        }
    }
}
