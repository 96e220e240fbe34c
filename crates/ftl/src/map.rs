//! The map: where each sector is. Its pages are read from flash when they are first needed, so
//! that a mount takes no longer on a larger disk; after the first checkpoint all are in memory.

use crate::error::{FtlError, Result};
use crate::ftl::Ftl;
use crate::platform::{Page, Platform, Table, Word};
use crate::shape::NONE;
use crate::tag::{self, Tag};

impl<P: Platform, Y> Ftl<P, Y> {
    /// Place of a sector of the disk, or none.
    #[inline]
    pub(crate) fn lookup(&mut self, sector: P::W) -> Result<P::W, P::Error> {
        let index = sector >> self.shape.entry_bits();
        if self.loaded.get(index) == P::W::of(0) {
            self.load(index)?;
        }
        Ok(self.map.get(sector))
    }

    /// Changes the place of a sector, and the counts of valid sectors. Returns the old place.
    pub(crate) fn point(
        &mut self,
        sector: P::W,
        place: P::W,
        counted: bool,
    ) -> Result<P::W, P::Error> {
        let none = P::W::of(NONE);
        let old = self.lookup(sector)?;
        self.map.set(sector, place);
        if counted {
            if place != none {
                self.blocks.gain(self.shape.block_of(place));
            }
            if old != none {
                let block = self.shape.block_of(old);
                if self.blocks.valid(block) == P::W::of(0) {
                    return Err(self.corrupt("count of valid sectors", self.shape.page_of(old)));
                }
                self.blocks.lose(block);
            }
        }
        Ok(old)
    }

    /// Reads a map page into memory.
    pub(crate) fn load(&mut self, index: P::W) -> Result<(), P::Error> {
        let n = P::W::of;
        let at = self.directory.get(index);
        if at != n(NONE) {
            let page = self.metadata(at, tag::MAP, index, "map page")?;
            let first = index << self.shape.entry_bits();
            let words = 1u64 << (self.shape.entry_bits() - 1);
            let shape = self.shape;
            let sound = |place: P::W| {
                place == n(NONE)
                    || (shape.block_of(place) < n(shape.blocks)
                        && shape.index_of_page(shape.page_of(place)) < n(shape.data_pages())
                        && shape.slot_of(place) < n(shape.sectors))
            };
            P::each("entries of a map page", n(words), |word| {
                let pair = page.word(word);
                let entry = first + (word << 1);
                if !sound(pair.low()) || !sound(pair.high()) {
                    return Err(corrupt_at(&shape, "map entry", at));
                }
                self.map.set(entry, pair.low());
                self.map.set(entry + n(1), pair.high());
                Ok(())
            })?;
        }
        self.loaded.set(index, n(1));
        Ok(())
    }

    /// A page of metadata that must be whole.
    pub(crate) fn metadata(
        &mut self,
        at: P::W,
        kind: u64,
        number: P::W,
        what: &'static str,
    ) -> Result<P::P, P::Error> {
        if self.shape.block_of_page(at) >= P::W::of(self.shape.blocks)
            || self.shape.index_of_page(at) >= P::W::of(self.shape.pages)
        {
            return Err(self.corrupt(what, at));
        }
        let page = if self.recovering {
            self.platform.fetch(at)
        } else {
            self.platform.read(at)
        };
        let page = page.map_err(FtlError::Flash)?;
        page.filter(|page| {
            Tag::read(&self.shape, self.volume, at, page)
                .is_some_and(|tag| tag.is(kind) && tag.number == number)
        })
        .ok_or_else(|| self.corrupt(what, at))
    }

    /// The sector that a slot of a data page holds, or none.
    pub(crate) fn listed(&self, page: &P::P, tag: &Tag<P::W>, slot: u64) -> P::W {
        if tag.is(tag::DATA) && P::W::of(slot) < tag.count {
            tag::sector(&self.shape, page, slot)
        } else {
            P::W::of(NONE)
        }
    }

    pub(crate) fn corrupt(&self, what: &'static str, at: P::W) -> FtlError<P::Error> {
        corrupt_at(&self.shape, what, at)
    }
}

pub(crate) fn corrupt_at<W: Word, E>(
    shape: &crate::shape::Shape,
    what: &'static str,
    at: W,
) -> FtlError<E> {
    FtlError::Corrupt {
        what,
        block: shape.block_of_page(at).value(),
        page: shape.index_of_page(at).value(),
    }
}
