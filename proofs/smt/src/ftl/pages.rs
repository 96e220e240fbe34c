//! Content and numbers of pages: tags, sectors' places.

use crate::obligation;
use crate::platform::{Page as _, Word as _};
use crate::shape::{NONE, Shape, TRIMMED};
use crate::state::SMALL;
use crate::sym::{Page, differ, n, page_length};
use crate::tag::{self, Tag};
use smt::explore::{assume, branch, prove, reached, unknown};
use smt::term::{Term, all, any, implies};
use smt::word::Word;

/// Geometries of page and slot numbers, all that there are: `Limits::derive` refuses places of more
/// than 31 bits and pages of more than 16 sectors.
fn numberings() -> impl Iterator<Item = (Shape, u32)> {
    let bits = (0..=31).flat_map(|pages| (0..=4).map(move |sectors| (pages, sectors)));
    bits.filter(|(pages, sectors)| pages + sectors <= 31)
        .map(|(pages, sectors)| {
            let shape = Shape {
                pages: 1 << pages,
                sectors: 1 << sectors,
                ..SMALL
            };
            (shape, 31 - pages - sectors)
        })
}

/// A tag as writers make them.
fn written() -> Tag<Word> {
    Tag {
        kind: Word::bits("kind", 8),
        flags: Word::bits("flags", 8),
        incarnation: Word::bits("incarnation", 32),
        number: Word::any("number"),
        flushed: Word::any("flushed"),
        next: [Word::bits("next", 32), Word::bits("next", 32)],
        count: Word::any("count"),
    }
}

fn same(a: &Tag<Word>, b: &Tag<Word>) -> Term {
    let fields = |t: &Tag<Word>| {
        let [first, second] = t.next;
        [
            t.kind,
            t.flags,
            t.incarnation,
            t.number,
            t.flushed,
            first,
            second,
            t.count,
        ]
    };
    all(fields(a)
        .iter()
        .zip(&fields(b))
        .map(|(a, b)| a.0.equal(b.0)))
}

fn round_trip() {
    obligation(
        "tag: what is written is read, for its volume and its place alone",
        &["read", "other volume or place"],
        || {
            page_length(SMALL.page_words + SMALL.spare_words, false);
            let (volume, reader) = (Word::any("volume"), Word::any("reader's volume"));
            let (at, looked) = (Word::any("place"), Word::any("place looked at"));
            let mut page = Page::any("page");
            let tag = written();
            tag.write(&SMALL, &mut page);
            page.seal(volume, at);
            match Tag::read(&SMALL, reader, looked, &page) {
                Some(found) => {
                    prove("another volume's page is read", volume.0.equal(reader.0));
                    prove("another place's page is read", at.0.equal(looked.0));
                    prove("a field is not what was written", same(&tag, &found));
                    reached("read");
                }
                None => {
                    let other = [differ(volume.0, reader.0), differ(at.0, looked.0)];
                    prove("its own page is refused", any(other));
                    reached("other volume or place");
                }
            }
        },
    );
}

fn any_bytes() {
    obligation(
        "tag: any page is read in range, whole pages alone",
        &["read", "refused"],
        || {
            page_length(SMALL.page_words + SMALL.spare_words, false);
            let page = Page::any("page");
            let (volume, at) = (Word::any("volume"), Word::any("place"));
            match Tag::read(&SMALL, volume, at, &page) {
                Some(tag) => {
                    prove(
                        "a damaged page is read",
                        smt::term::truth(page.is_intact(volume, at)),
                    );
                    let head = page.at(n(SMALL.page_words));
                    let magic = head.shifted(48).equal(n(0x5346));
                    prove("a page without the magic is read", magic);
                    let fits = [tag.kind, tag.flags].map(|w| w.0.below(n(256)));
                    let halves = [tag.incarnation, tag.next[0], tag.next[1]];
                    let halves = halves.map(|w| w.0.at_most(n(NONE)));
                    prove(
                        "a field is larger than it is",
                        all(fits.into_iter().chain(halves)),
                    );
                    reached("read");
                }
                None => reached("refused"),
            }
        },
    );
    obligation(
        "tag: a page that was changed after sealing is refused",
        &["refused"],
        || {
            page_length(SMALL.page_words + SMALL.spare_words, false);
            let mut page = Page::any("page");
            let (volume, lies) = (Word::any("volume"), Word::any("place"));
            written().write(&SMALL, &mut page);
            page.seal(volume, lies);
            let at = Word::any("changed word");
            assume(at.0.below(n(SMALL.page_words + SMALL.spare_words - 1)));
            page.set_word(at, Word::any("another word"));
            prove(
                "a changed page is read",
                smt::term::truth(Tag::read(&SMALL, volume, lies, &page).is_none()),
            );
            reached("refused");
        },
    );
}

/// Sixteen slots, the most there are, in a spare area as large as it must be.
fn slots() {
    let shape = Shape {
        sectors: 16,
        spare_words: 14,
        ..SMALL
    };
    obligation(
        "tag: sectors are read from the slots they were put in",
        &["read"],
        || {
            page_length(shape.page_words + shape.spare_words, false);
            let mut page = Page::any("page");
            let tag = written();
            tag.write(&shape, &mut page);
            let before: Vec<Word> = (0..16)
                .map(|slot| tag::sector(&shape, &page, slot))
                .collect();
            for slot in 0..16 {
                let mut page = page.clone();
                let sector = Word::bits("sector", 32);
                tag::set_sector(&shape, &mut page, slot, sector);
                for other in 0..16 {
                    let expected = if other == slot {
                        sector
                    } else {
                        before[other as usize]
                    };
                    let found = tag::sector(&shape, &page, other);
                    prove(
                        "a slot is not what was put there",
                        found.0.equal(expected.0),
                    );
                }
                page.seal(Word::of(1), Word::of(2));
                let read = Tag::read(&shape, Word::of(1), Word::of(2), &page);
                let kept = read.map_or(smt::term::truth(false), |found| same(&tag, &found));
                prove("the tag was changed", kept);
            }
            reached("read");
        },
    );
}

fn places() {
    obligation(
        "places: block, page and slot are found again, every numbering",
        &["all"],
        || {
            for (shape, block_bits) in numberings() {
                let block = Word(n(0).plus(bits("block", block_bits)));
                let page = Word(bits("page", shape.page_bits()));
                let at = shape.page_at(block, page);
                prove(
                    "the block of a page",
                    shape.block_of_page(at).0.equal(block.0),
                );
                prove(
                    "the index of a page",
                    shape.index_of_page(at).0.equal(page.0),
                );
                for slot in 0..shape.sectors {
                    let place = shape.place(at, slot);
                    prove("a place is none, or a trim", place.0.below(n(TRIMMED)));
                    prove("the page of a place", shape.page_of(place).0.equal(at.0));
                    prove("the slot of a place", shape.slot_of(place).0.equal(n(slot)));
                    prove(
                        "the block of a place",
                        shape.block_of(place).0.equal(block.0),
                    );
                }
                let place = Word(bits("place", 31));
                for slot in 0..shape.sectors {
                    let back = shape.place(shape.page_of(place), slot);
                    let here = shape.slot_of(place).0.equal(n(slot));
                    prove(
                        "a place is not made again",
                        implies(here, back.0.equal(place.0)),
                    );
                }
            }
            reached("all");
        },
    );
}

/// An unknown of `bits` bits, as a number.
fn bits(name: &str, bits: u32) -> Term {
    match bits {
        0 => n(0),
        bits => unknown(name, bits).widened(),
    }
}

fn halves() {
    obligation(
        "words: two halves in one are found again",
        &["even", "odd"],
        || {
            let (high, low) = (Word::bits("high", 32), Word::bits("low", 32));
            let word = <Word as crate::platform::Word>::pack(high, low);
            prove("the upper half", word.high().0.equal(high.0));
            prove("the lower half", word.low().0.equal(low.0));
            let (any_word, new) = (Word::any("word"), Word::bits("new half", 32));
            let odd = branch(unknown("odd", 0));
            let parity = u64::from(odd) + 2;
            let changed = tag::with_half(any_word, parity, new);
            prove(
                "the half that was put",
                tag::half(changed, parity).0.equal(new.0),
            );
            let other = tag::half(changed, parity + 1)
                .0
                .equal(tag::half(any_word, parity + 1).0);
            prove("the other half", other);
            reached(if odd { "odd" } else { "even" });
        },
    );
}

pub fn obligations() {
    round_trip();
    any_bytes();
    slots();
    halves();
    places();
}
