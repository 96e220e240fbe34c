//! Collection: valid sectors of nearly empty blocks are moved together, so that blocks become
//! empty. Moving is all that happens here; a block without valid sectors becomes erasable after
//! the flush that commits the moves (two-phase collection, SCFTL §3.4).
//!
//! A moved sector changes the map only when its page is programmed, and only if it still is where
//! it was moved from.

use crate::blocks::BlockUse;
use crate::error::{FtlError, Result};
use crate::ftl::{Ftl, MOVED, Victim, rest};
use crate::platform::{Page, Platform, Queue, Word};
use crate::policy::Policy;
use crate::shape::NONE;
use crate::tag::{self, Tag};

impl<P: Platform, Y: Policy<P>> Ftl<P, Y> {
    /// After the streams consumed room for `consumed` sectors: moves as many as keep the balance.
    pub(crate) fn balance(&mut self, consumed: u64) -> Result<(), P::Error> {
        let available = self.available();
        if available >= self.in_pages(self.limits.reserve + self.limits.margin) {
            return self.level(consumed);
        }
        if !self.has_victim()? {
            return Ok(());
        }
        let valid = self.victim.as_ref().map_or(0, |victim| victim.valid);
        let blocks = available.value() / self.shape.data_pages();
        let room = blocks as i64 - self.limits.reserve as i64;
        let count = self.policy.pace(&self.limits, consumed, valid, room);
        self.relocate(count)
    }

    /// While there is room: a block of cold data may be moved for its wear alone, as fast as the
    /// host writes.
    fn level(&mut self, count: u64) -> Result<(), P::Error> {
        if self.victim.is_none() {
            let Some(block) = self.policy.level(&self.blocks) else {
                return Ok(());
            };
            if self.waits(block) {
                // All but these were moved before: a page that is not full ends it.
                return if self.has_plenty() {
                    P::part(self, "seal moved", |ftl| ftl.seal(MOVED, false))
                } else {
                    Ok(())
                };
            }
            if !self.fits(block) {
                self.stats.refused_proposals += 1;
                return Ok(());
            }
            if !self.bearable(block) {
                return Ok(());
            }
            P::part(self, "victim", |ftl| ftl.begin_victim(block))?;
        }
        let goal = self.stats.moved.saturating_add(count);
        while self.stats.moved < goal && self.victim.is_some() {
            P::part(self, "move", Self::relocate_next)?;
        }
        Ok(())
    }

    /// Before a commit: moves sectors until the reserve will be free after it. At most `K` victims are needed (1),
    /// there are victims with at most `N` valid sectors (2), and there are pages to move these to (`FtlSpace`).
    pub(crate) fn reclaim(&mut self) -> Result<(), P::Error> {
        let enough = self.in_pages(self.limits.reserve) + self.own_pages();
        if self.ready() >= enough || self.faults.skip_reclaim {
            return Ok(());
        }
        // One may be half done.
        for _ in 0..=self.limits.victims {
            if self.settling() >= enough || !self.has_victim()? {
                break;
            }
            while self.victim.is_some() {
                P::part(self, "move", Self::relocate_next)?;
            }
        }
        P::part(self, "seal moved", |ftl| ftl.seal(MOVED, false))
    }

    /// Pages that are free for data when this epoch is committed, should it take no more.
    fn settling(&self) -> P::W {
        let mut waiting = P::W::of(0);
        let _ = P::each("unsettled blocks", self.blocks.invalid.length(), |i| {
            if !self.blocks.will_settle(self.blocks.invalid.get(i)) {
                waiting = waiting + P::W::of(1);
            }
            Ok::<_, core::convert::Infallible>(())
        });
        self.pages_in(rest(self.blocks.spare, waiting))
    }

    /// Moves up to `count` sectors.
    pub(crate) fn relocate(&mut self, count: u64) -> Result<(), P::Error> {
        let goal = self.stats.moved.saturating_add(count);
        while self.stats.moved < goal && self.has_victim()? {
            P::part(self, "move", Self::relocate_next)?;
        }
        Ok(())
    }

    /// Looks at the victim's next sector, and moves it if it can be.
    pub(crate) fn relocate_next(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        let Some(mut victim) = self.victim.take() else {
            return Ok(());
        };
        if victim.at >= victim.sectors.length() {
            self.leave_victim(victim.block);
            return Ok(());
        }
        let sector = victim.sectors.get(victim.at);
        let index = victim.at;
        victim.at = victim.at + n(1);
        self.relocate_one(&mut victim, sector, index)?;
        // An empty block may be erased and filled again: its list says nothing any more.
        if self.blocks.is(victim.block, BlockUse::Used) {
            self.victim = Some(victim);
        }
        Ok(())
    }

    pub(crate) fn relocate_one(
        &mut self,
        victim: &mut Victim<P>,
        sector: P::W,
        index: P::W,
    ) -> Result<bool, P::Error> {
        let n = P::W::of;
        if sector >= n(self.limits.sectors) {
            return Ok(false);
        }
        let place = self.lookup(sector)?;
        let (page, slot) = self.split(index);
        let at = self.shape.page_at(victim.block, page);
        if place != self.shape.place(at, slot) {
            return Ok(false);
        }
        let cached = victim.page.as_ref().is_some_and(|(have, _)| *have == at);
        if !cached {
            let fetched = self.platform.fetch(at).map_err(FtlError::Flash)?;
            let whole = fetched.filter(|page| {
                Tag::read(&self.shape, self.volume, at, page)
                    .is_some_and(|tag| self.listed(page, &tag, slot) == sector)
            });
            // A page that cannot be read stays where it is, and keeps its block.
            let Some(page) = whole else {
                return Ok(false);
            };
            victim.page = Some((at, page));
        }
        let mut target = match self.moved.page.take() {
            Some(page) => page,
            None => self.platform.blank(),
        };
        if let Some((_, page)) = &victim.page {
            let to = self.moved.sectors.len();
            self.platform.copy(page, slot as usize, &mut target, to);
        }
        self.moved.page = Some(target);
        self.moved.sectors.push(sector);
        self.moved.places.push(place);
        self.stats.moved += 1;
        self.dirty = true;
        if self.moved.sectors.len() as u64 == self.shape.sectors {
            self.seal(MOVED, false)?;
        }
        Ok(true)
    }

    /// Page and slot of a sector's index in its block.
    fn split(&self, index: P::W) -> (P::W, u64) {
        let (index, sectors) = (index.value(), self.shape.sectors);
        (P::W::of(index / sectors), index % sectors)
    }

    /// All sectors of the victim were looked at. Those still valid wait in the buffer, or cannot
    /// be read: then the block keeps them, and is never erased.
    pub(crate) fn leave_victim(&mut self, block: P::W) {
        let waiting = (self.moved.places.iter())
            .filter(|&&place| self.shape.block_of(place) == block)
            .count() as u64;
        if self.blocks.is(block, BlockUse::Used) && self.blocks.valid(block) > P::W::of(waiting) {
            self.retire(block);
        }
    }

    /// Pages of the host's that a commit may take besides those of the epoch's writes.
    fn own_pages(&self) -> P::W {
        P::W::of(self.limits.rounding / self.shape.sectors)
    }

    /// Whether `valid` sectors can be moved, and enough pages remain for the writes that the epoch still admits.
    pub(crate) fn can_move(&self, valid: P::W) -> bool {
        let waiting = (self.host.sectors.len() + self.moved.sectors.len()) as u64;
        let own = P::W::of(self.limits.rounding + waiting);
        self.ready().times(self.shape.sectors) >= self.room() + own + valid
    }

    /// Whether the block may be moved unless it must be: with more than `N` valid sectors only while there is more
    /// than the reserve.
    pub(crate) fn bearable(&self, block: P::W) -> bool {
        let valid = self.blocks.valid(block);
        self.can_move(valid) && (valid <= P::W::of(self.limits.victim) || self.has_plenty())
    }

    /// Whether there is a block more than the reserve.
    fn has_plenty(&self) -> bool {
        self.ready() >= self.in_pages(self.limits.reserve + 1) + self.own_pages()
    }

    /// Says whether there is a victim; if there was none, one is chosen.
    fn has_victim(&mut self) -> Result<bool, P::Error> {
        if self.victim.is_none() {
            P::part(self, "victim", Self::next_victim)?;
        }
        Ok(self.victim.is_some())
    }

    /// Chooses a victim, if there is one, and reads the list of its sectors.
    pub(crate) fn next_victim(&mut self) -> Result<(), P::Error> {
        match self.choose_victim() {
            Some(block) if self.can_move(self.blocks.valid(block)) => self.begin_victim(block),
            _ => Ok(()),
        }
    }

    fn begin_victim(&mut self, block: P::W) -> Result<(), P::Error> {
        let sectors = self.sectors_of(block)?;
        self.victim = Some(Victim {
            block,
            sectors,
            at: P::W::of(0),
            valid: self.blocks.valid(block).value(),
            page: None,
        });
        Ok(())
    }

    /// Whether a proposed block can be emptied. One whose sectors wait in the buffer cannot.
    fn fits(&self, block: P::W) -> bool {
        block < self.blocks.count() && self.blocks.is_victim(block) && !self.waits(block)
    }

    /// Whether sectors of the block wait in the buffer.
    fn waits(&self, block: P::W) -> bool {
        (self.moved.places.iter()).any(|&place| self.shape.block_of(place) == block)
    }

    /// The policy's victim if it is one, else the first with the fewest valid sectors.
    fn choose_victim(&mut self) -> Option<P::W> {
        let proposal = self.policy.victim(&self.blocks, &self.limits);
        if let Some(block) = proposal {
            if self.fits(block) && self.bearable(block) {
                return Some(block);
            }
            self.stats.refused_proposals += 1;
        }
        let mut best = None;
        let _ = P::each("victims", self.blocks.count(), |block| {
            if self.fits(block)
                && best.is_none_or(|b| self.blocks.valid(block) < self.blocks.valid(b))
            {
                best = Some(block);
            }
            Ok::<_, core::convert::Infallible>(())
        });
        best
    }

    /// The sectors of a data block by place: from its list, or, if it has none, page by page.
    fn sectors_of(&mut self, block: P::W) -> Result<P::Q, P::Error> {
        let n = P::W::of;
        let mut sectors = P::Q::default();
        let total = n(self.shape.block_sectors());
        for index in 0..self.shape.summary_pages() {
            let at = (self.shape).page_at(block, n(self.shape.data_pages() + index));
            let page = self.platform.fetch(at).map_err(FtlError::Flash)?;
            let list = page.filter(|page| {
                Tag::read(&self.shape, self.volume, at, page)
                    .is_some_and(|tag| tag.is(tag::SUMMARY) && tag.number == n(index))
            });
            let Some(page) = list else {
                return self.sectors_by_page(block);
            };
            P::each("words of a list", n(self.shape.page_words), |word| {
                let pair = page.word(word);
                for sector in [pair.low(), pair.high()] {
                    if sectors.length() < total {
                        sectors.push(sector);
                    }
                }
                Ok::<_, FtlError<P::Error>>(())
            })?;
        }
        Ok(sectors)
    }

    fn sectors_by_page(&mut self, block: P::W) -> Result<P::Q, P::Error> {
        let mut sectors = P::Q::default();
        P::each("pages of a block", P::W::of(self.shape.data_pages()), |i| {
            let at = self.shape.page_at(block, i);
            let page = self.platform.fetch(at).map_err(FtlError::Flash)?;
            let tag =
                (page.as_ref()).and_then(|page| Tag::read(&self.shape, self.volume, at, page));
            for slot in 0..self.shape.sectors {
                let sector = match (&page, &tag) {
                    (Some(page), Some(tag)) => self.listed(page, tag, slot),
                    _ => P::W::of(NONE),
                };
                sectors.push(sector);
            }
            Ok(())
        })?;
        Ok(sectors)
    }
}
