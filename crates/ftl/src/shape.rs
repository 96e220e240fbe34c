//! The flash memory's geometry as the layer needs it, and how places are numbered.
//!
//! A sector's place is `block << .. | page << .. | slot`, below 2^31, so that a table entry of 32
//! bits holds it, the value of no place, and the mark of a trimmed range.

use crate::word::Word;

/// Kinds of table values.
pub(crate) const NONE: u64 = 0xFFFF_FFFF;
/// Set in a delta pair whose lower half counts trimmed sectors.
pub(crate) const TRIMMED: u64 = 1 << 31;

/// Geometry in the units of the layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Blocks.
    pub blocks: u64,
    /// Pages of a block.
    pub pages: u64,
    /// Sectors of a page, 16 at most.
    pub sectors: u64,
    /// Words of 8 bytes of a page.
    pub page_words: u64,
    /// Words of 8 bytes of a page's spare area.
    pub spare_words: u64,
    /// Dies, over which block numbers go round.
    pub dies: u64,
}

fn bits(count: u64) -> u32 {
    (count.checked_next_power_of_two()).map_or(u64::BITS, u64::trailing_zeros)
}

impl Shape {
    pub(crate) fn page_bits(&self) -> u32 {
        bits(self.pages)
    }

    pub(crate) fn slot_bits(&self) -> u32 {
        bits(self.sectors)
    }

    /// Bits of a place.
    #[must_use]
    pub fn place_bits(&self) -> u32 {
        bits(self.blocks) + self.page_bits() + self.slot_bits()
    }

    /// Map entries of a map page, as a power of two.
    pub(crate) fn entry_bits(&self) -> u32 {
        (self.page_words * 2).ilog2()
    }

    /// Pages at the end of a data block that list its sectors.
    pub(crate) fn summary_pages(&self) -> u64 {
        (self.pages * self.sectors)
            .div_ceil(2)
            .div_ceil(self.page_words)
    }

    /// Pages of a data block that hold data.
    pub(crate) fn data_pages(&self) -> u64 {
        self.pages.saturating_sub(self.summary_pages())
    }

    /// Sectors of a data block.
    pub(crate) fn block_sectors(&self) -> u64 {
        self.data_pages() * self.sectors
    }

    /// Spare words that tags need.
    pub(crate) fn tag_words(&self) -> u64 {
        crate::tag::FIXED_WORDS + self.sectors.div_ceil(2) + 1
    }

    pub(crate) fn page_at<W: Word>(&self, block: W, page: W) -> W {
        (block << self.page_bits()) + page
    }

    pub(crate) fn place<W: Word>(&self, at: W, slot: u64) -> W {
        (at << self.slot_bits()) + W::of(slot)
    }

    pub(crate) fn page_of<W: Word>(&self, place: W) -> W {
        place >> self.slot_bits()
    }

    pub(crate) fn slot_of<W: Word>(&self, place: W) -> W {
        place & W::of((1 << self.slot_bits()) - 1)
    }

    pub(crate) fn block_of_page<W: Word>(&self, at: W) -> W {
        at >> self.page_bits()
    }

    pub(crate) fn index_of_page<W: Word>(&self, at: W) -> W {
        at & W::of((1 << self.page_bits()) - 1)
    }

    pub(crate) fn block_of<W: Word>(&self, place: W) -> W {
        place >> (self.page_bits() + self.slot_bits())
    }
}
