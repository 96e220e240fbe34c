//! Tags: the content of the spare area of every page.
//!
//! | word | content |
//! |---|---|
//! | 0 | magic (16 bits), kind (8), flags (8) in the upper half; incarnation in the lower |
//! | 1 | number of the page in its log |
//! | 2 | newest commit that was durable when the page was programmed |
//! | 3 | the two blocks that its stream opens next |
//! | 4 | how many entries the page holds |
//! | 5 … | the sectors in a data page, two in each word |
//! | last | checksum of the volume's number and all other words of page and spare area, plus the page's own number |

use crate::platform::{Page, Platform, Word};
use crate::shape::Shape;

/// Words before the sectors.
pub(crate) const FIXED_WORDS: u64 = 5;
const MAGIC: u64 = 0x5346;

/// Sectors of hosts, or moved by the collector.
pub(crate) const DATA: u64 = 1;
/// Ranges of trimmed sectors.
pub(crate) const TRIM: u64 = 2;
/// The sectors of a data block, page by page.
pub(crate) const SUMMARY: u64 = 3;
/// Changes of the map.
pub(crate) const DELTA: u64 = 4;
/// A page of the map.
pub(crate) const MAP: u64 = 5;
/// Places of map pages.
pub(crate) const DIRECTORY: u64 = 6;
/// Counts of the blocks.
pub(crate) const TABLE: u64 = 7;
/// The root: start of all other structures.
pub(crate) const ROOT: u64 = 8;

/// The page ends a flush, or a run of delta pages.
pub(crate) const COMMIT: u64 = 1;

/// A whole page and its tag.
pub(crate) type Tagged<P> = (Tag<<P as Platform>::W>, <P as Platform>::P);

/// The fixed part of a tag.
#[derive(Clone, Copy)]
pub(crate) struct Tag<W> {
    pub(crate) kind: W,
    pub(crate) flags: W,
    pub(crate) incarnation: W,
    pub(crate) number: W,
    pub(crate) flushed: W,
    pub(crate) next: [W; 2],
    pub(crate) count: W,
}

impl<W: Word> Tag<W> {
    pub(crate) fn write<P: Page<W>>(&self, shape: &Shape, page: &mut P) {
        let at = |i: u64| W::of(shape.page_words + i);
        let head = (W::of(MAGIC) << 16) + (self.kind << 8) + self.flags;
        page.set_word(at(0), W::pack(head, self.incarnation));
        page.set_word(at(1), self.number);
        page.set_word(at(2), self.flushed);
        page.set_word(at(3), W::pack(self.next[1], self.next[0]));
        page.set_word(at(4), self.count);
    }

    /// The tag of a page that is whole, belongs to the volume and was programmed at `at`.
    pub(crate) fn read<P: Page<W>>(shape: &Shape, volume: W, at: W, page: &P) -> Option<Tag<W>> {
        let word = |i: u64| page.word(W::of(shape.page_words + i));
        let head = word(0).high();
        if head >> 16 != W::of(MAGIC) || !page.is_intact(volume, at) {
            return None;
        }
        Some(Tag::parse(shape, page))
    }

    /// Whether a page looks like one of the layer, whole or not, of any volume.
    pub(crate) fn is_marked<P: Page<W>>(shape: &Shape, page: &P) -> bool {
        page.word(W::of(shape.page_words)).high() >> 16 == W::of(MAGIC)
    }

    /// The words of a tag, whatever they are.
    pub(crate) fn parse<P: Page<W>>(shape: &Shape, page: &P) -> Tag<W> {
        let word = |i: u64| page.word(W::of(shape.page_words + i));
        let head = word(0).high();
        Tag {
            kind: (head >> 8) & W::of(0xFF),
            flags: head & W::of(0xFF),
            incarnation: word(0).low(),
            number: word(1),
            flushed: word(2),
            next: [word(3).low(), word(3).high()],
            count: word(4),
        }
    }

    pub(crate) fn is(&self, kind: u64) -> bool {
        self.kind == W::of(kind)
    }

    /// A page of the data log.
    pub(crate) fn is_data(&self) -> bool {
        self.is(DATA) || self.is(TRIM)
    }

    pub(crate) fn commits(&self) -> bool {
        self.flags == W::of(COMMIT)
    }
}

/// The sector in a slot of a data page.
pub(crate) fn sector<W: Word, P: Page<W>>(shape: &Shape, page: &P, slot: u64) -> W {
    let word = page.word(W::of(shape.page_words + FIXED_WORDS + slot / 2));
    half(word, slot)
}

pub(crate) fn set_sector<W: Word, P: Page<W>>(shape: &Shape, page: &mut P, slot: u64, sector: W) {
    let at = W::of(shape.page_words + FIXED_WORDS + slot / 2);
    let word = page.word(at);
    page.set_word(at, with_half(word, slot, sector));
}

/// The lower half of a word for even numbers, the upper half for odd ones.
pub(crate) fn half<W: Word>(word: W, parity: u64) -> W {
    if parity.is_multiple_of(2) {
        word.low()
    } else {
        word.high()
    }
}

pub(crate) fn with_half<W: Word>(word: W, parity: u64, value: W) -> W {
    if parity.is_multiple_of(2) {
        W::pack(word.high(), value)
    } else {
        W::pack(value, word.low())
    }
}
