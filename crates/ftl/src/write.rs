//! Write, read and trim: the host's operations between two flushes. They change memory and
//! program pages; none of them waits, and none changes the state that a crash returns to.

use crate::error::{FtlError, Result};
use crate::ftl::{Ftl, HOST, MOVED, rest};
use crate::platform::{Platform, Queue, Word};
use crate::policy::Policy;
use crate::shape::{NONE, TRIMMED};
use crate::tag::{self, Tag};
use alloc::vec::Vec;

impl<P: Platform, Y: Policy<P>> Ftl<P, Y> {
    /// Writes a sector. A crash before the next flush takes it back.
    ///
    /// # Errors
    /// [`FtlError::EpochFull`] and [`FtlError::OutOfRange`] change nothing. After any other the
    /// disk has stopped.
    pub fn write(&mut self, sector: P::W, data: &P::Sector) -> Result<(), P::Error> {
        self.inside(sector, P::W::of(1))?;
        if let Some(slot) = self.host.sectors.iter().position(|&s| s == sector) {
            self.fill(slot, data);
            self.stats.written += 1;
            return Ok(());
        }
        self.admit(P::W::of(1))?;
        if self.host.sectors.len() as u64 == self.shape.sectors {
            self.stopping(|ftl| {
                P::part(ftl, "seal", |ftl| ftl.seal(HOST, false))?;
                P::part(ftl, "balance", |ftl| ftl.balance(ftl.shape.sectors))
            })?;
        }
        self.host.sectors.push(sector);
        self.fill(self.host.sectors.len() - 1, data);
        self.writes = self.writes + P::W::of(1);
        self.dirty = true;
        self.stats.written += 1;
        Ok(())
    }

    fn fill(&mut self, slot: usize, data: &P::Sector) {
        let mut page = match self.host.page.take() {
            Some(page) => page,
            None => self.platform.blank(),
        };
        self.platform.put(&mut page, slot, data);
        self.host.page = Some(page);
    }

    /// Reads a sector as it was last written. One that never was, or was trimmed, is zeros.
    ///
    /// # Errors
    /// [`FtlError::OutOfRange`], [`FtlError::Damaged`], [`FtlError::Corrupt`] for a damaged map
    /// page, [`FtlError::Flash`].
    pub fn read(&mut self, sector: P::W, data: &mut P::Sector) -> Result<(), P::Error> {
        self.inside(sector, P::W::of(1))?;
        let slot = self.host.sectors.iter().position(|&s| s == sector);
        if let (Some(slot), Some(page)) = (slot, &self.host.page) {
            self.platform.take(page, slot, data);
            return Ok(());
        }
        let place = self.lookup(sector)?;
        if place == P::W::of(NONE) {
            self.platform.clear(data);
            return Ok(());
        }
        let at = self.shape.page_of(place);
        let page = self.platform.read(at).map_err(FtlError::Flash)?;
        let slot = self.shape.slot_of(place).value();
        let whole = page.filter(|page| {
            Tag::read(&self.shape, self.volume, at, page)
                .is_some_and(|tag| self.listed(page, &tag, slot) == sector)
        });
        match whole {
            Some(page) => {
                self.platform.take(&page, slot as usize, data);
                Ok(())
            }
            None => Err(FtlError::Damaged {
                sector: sector.value(),
                block: self.shape.block_of(place).value(),
                page: self.shape.index_of_page(at).value(),
            }),
        }
    }

    /// Whether a sector has a place in flash, or soon will have: one that never was written, or was
    /// trimmed, has none and reads as zeros.
    ///
    /// # Errors
    /// [`FtlError::OutOfRange`]; [`FtlError::Corrupt`] for a damaged map page, [`FtlError::Flash`].
    pub fn is_mapped(&mut self, sector: P::W) -> Result<bool, P::Error> {
        self.inside(sector, P::W::of(1))?;
        if self.host.sectors.contains(&sector) {
            return Ok(true);
        }
        Ok(self.lookup(sector)? != P::W::of(NONE))
    }

    /// Forgets `count` sectors from `first` on; they read as zeros. A crash before the next flush
    /// brings them back. Counts as one write.
    ///
    /// # Errors
    /// As for [`write`](Ftl::write).
    pub fn trim(&mut self, first: P::W, count: P::W) -> Result<(), P::Error> {
        let n = P::W::of;
        self.inside(first, count)?;
        if count == n(0) {
            return Ok(());
        }
        self.admit(n(1))?;
        let end = first + count;
        let kept: Vec<usize> = (0..self.host.sectors.len())
            .filter(|&i| self.host.sectors[i] < first || self.host.sectors[i] >= end)
            .collect();
        self.keep(&kept);
        self.stopping(|ftl| {
            P::each("trimmed sectors", count, |i| {
                if ftl.lookup(first + i)? == n(NONE) {
                    return Ok(());
                }
                let old = ftl.point(first + i, n(NONE), true)?;
                ftl.vacate(ftl.shape.block_of(old))
            })
        })?;
        self.trims.push(P::W::pack(first, count));
        self.writes = self.writes + n(1);
        self.dirty = true;
        Ok(())
    }

    /// Keeps some of the slots of the host's buffer.
    fn keep(&mut self, slots: &[usize]) {
        if slots.len() == self.host.sectors.len() {
            return;
        }
        if let Some(page) = self.host.page.take() {
            let mut closer = self.platform.blank();
            for (to, &from) in slots.iter().enumerate() {
                self.platform.copy(&page, from, &mut closer, to);
            }
            self.host.page = (!slots.is_empty()).then_some(closer);
        }
        self.host.sectors = slots.iter().map(|&slot| self.host.sectors[slot]).collect();
    }

    fn inside(&self, first: P::W, count: P::W) -> Result<(), P::Error> {
        let sectors = P::W::of(self.limits.sectors);
        if first < sectors && count < sectors + P::W::of(1) && first + count <= sectors {
            return Ok(());
        }
        Err(FtlError::OutOfRange {
            first: first.value(),
            count: count.value(),
            sectors: self.limits.sectors,
        })
    }

    pub(crate) fn admit(&self, writes: P::W) -> Result<(), P::Error> {
        if self.stopped {
            return Err(FtlError::Stopped);
        }
        if self.budget == P::W::of(0) {
            return Err(FtlError::WornOut);
        }
        if self.room() < writes {
            return Err(FtlError::EpochFull {
                bound: self.budget.value(),
            });
        }
        Ok(())
    }

    /// Does something after whose failure nothing is known of this epoch.
    pub(crate) fn stopping<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, P::Error>,
    ) -> Result<T, P::Error> {
        let result = work(self);
        self.stopped |= result.is_err();
        result
    }

    /// Programs a buffer's page and points its sectors to it. A moved sector that the host wrote
    /// or trimmed meanwhile is left out: the page's number is newer than the host's.
    pub(crate) fn seal(&mut self, stream: usize, commits: bool) -> Result<(), P::Error> {
        let n = P::W::of;
        let none = n(NONE);
        let buffer = if stream == HOST {
            &mut self.host
        } else {
            &mut self.moved
        };
        let page = buffer.page.take();
        let mut sectors = core::mem::take(&mut buffer.sectors);
        let places = core::mem::take(&mut buffer.places);
        if stream == MOVED && !self.faults.move_stale {
            for (sector, &place) in sectors.iter_mut().zip(&places) {
                if place != none && self.lookup(*sector)? != place {
                    *sector = none;
                }
            }
        }
        if !commits && sectors.iter().all(|&sector| sector == none) {
            return Ok(());
        }
        let mut page = match page {
            Some(page) => page,
            None => self.platform.blank(),
        };
        self.number = self.number + n(1);
        let mut tag = self.tag(tag::DATA, self.number, n(sectors.len() as u64));
        if commits && !self.faults.skip_commit_tag {
            tag.flags = n(tag::COMMIT);
        }
        sectors.resize(self.shape.sectors as usize, none);
        for (slot, &sector) in sectors.iter().enumerate() {
            tag::set_sector(&self.shape, &mut page, slot as u64, sector);
        }
        let at = self.append(stream, page, tag, &sectors)?;
        self.stats.data_pages += 1;
        for (slot, &sector) in sectors.iter().enumerate() {
            if sector != none {
                let place = self.shape.place(at, slot as u64);
                let old = self.point(sector, place, true)?;
                self.pairs.push(P::W::pack(sector, place));
                if old != none {
                    self.vacate(self.shape.block_of(old))?;
                }
            }
        }
        Ok(())
    }

    /// Programs the sectors that were trimmed in this epoch and are still unmapped, as ranges. It comes after
    /// all writes of the epoch, so that replaying in order is right.
    ///
    /// Room: trims may overlap, and each sector is looked at once all the same. So a range ends where a
    /// trim does, or at a sector that has a place: the host wrote it in this epoch, after its trim, because
    /// no other call gives a place to one that has none. That makes as many ranges as trims and writes
    /// at most, and no more than the epoch's pages that `Limits::rounding` keeps for them. Commits that
    /// a flush adds find nothing trimmed.
    pub(crate) fn seal_trims(&mut self, commits: bool) -> Result<(), P::Error> {
        let n = P::W::of;
        let mut trims = core::mem::take(&mut self.trims);
        trims.sort();
        let mut ranges = P::Q::default();
        let (mut at, mut length) = (n(0), n(0));
        P::each("trims of the epoch", trims.length(), |i| {
            (at, length) = self.trimmed_range(trims.get(i), at, length, &mut ranges)?;
            Ok(())
        })?;
        end_range::<P>(&mut ranges, at, length);
        if self.faults.forget_trim {
            ranges.truncate(n(0));
        }
        let mut from = n(0);
        loop {
            from = from + self.seal_ranges(&ranges, from, commits)?;
            if from == ranges.length() {
                return Ok(());
            }
        }
    }

    /// Looks at the sectors that one trim adds to those before it in order, which end at `at`; of the sectors just before that,
    /// `length` are unmapped and in no range yet. Both, then.
    pub(crate) fn trimmed_range(
        &mut self,
        trim: P::W,
        mut at: P::W,
        mut length: P::W,
        ranges: &mut P::Q,
    ) -> Result<(P::W, P::W), P::Error> {
        let (first, count) = (trim.high(), trim.low());
        if at < first {
            end_range::<P>(ranges, at, length);
            (at, length) = (first, P::W::of(0));
        }
        let left = rest(first + count, at);
        P::each("trimmed sectors", left, |i| {
            length = self.trimmed_one(at + i, length, ranges)?;
            Ok(())
        })?;
        Ok((at + left, length))
    }

    /// Looks at one trimmed sector; `length` of those just before it are unmapped and in no range yet. Returns
    /// their number afterwards.
    pub(crate) fn trimmed_one(
        &mut self,
        sector: P::W,
        length: P::W,
        ranges: &mut P::Q,
    ) -> Result<P::W, P::Error> {
        if self.lookup(sector)? == P::W::of(NONE) {
            return Ok(length + P::W::of(1));
        }
        end_range::<P>(ranges, sector, length);
        Ok(P::W::of(0))
    }

    /// Programs one page of ranges, those from `from` on; says how many. The last page commits, if any does.
    pub(crate) fn seal_ranges(
        &mut self,
        ranges: &P::Q,
        from: P::W,
        commits: bool,
    ) -> Result<P::W, P::Error> {
        let n = P::W::of;
        let words = n(self.shape.page_words);
        let left = ranges.length() - from;
        let last = left <= words;
        let count = if last { left } else { words };
        let mut page = self.platform.blank();
        P::each("ranges of a page", count, |i| {
            let range = ranges.get(from + i);
            crate::platform::Page::set_word(&mut page, i, range);
            self.pairs
                .push(P::W::pack(range.high(), n(TRIMMED) + range.low()));
            Ok(())
        })?;
        self.number = self.number + n(1);
        let mut tag = self.tag(tag::TRIM, self.number, count);
        if last && commits && !self.faults.skip_commit_tag {
            tag.flags = n(tag::COMMIT);
        }
        let sectors: Vec<P::W> = (0..self.shape.sectors).map(|_| n(NONE)).collect();
        self.append(HOST, page, tag, &sectors)?;
        self.stats.data_pages += 1;
        self.stats.trim_pages += 1;
        Ok(count)
    }
}

/// The range of unmapped sectors that ends before `end`, if there is one.
pub(crate) fn end_range<P: Platform>(ranges: &mut P::Q, end: P::W, length: P::W) {
    if length != P::W::of(0) {
        ranges.push(P::W::pack(end - length, length));
    }
}
