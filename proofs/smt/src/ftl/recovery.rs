//! Recovery: the part of the logs that it accepts, from any state and any bytes, and the result of the final check.

use crate::blocks::BlockUse;
use crate::error::FtlError;
use crate::ftl::{HOST, MOVED};
use crate::limits::Widths;
use crate::obligation;
use crate::platform::Queue as _;
use crate::shape::{NONE, TRIMMED};
use crate::state::{Begin, SMALL, State, View, any_sector, chosen};
use crate::sym::{
    Memory, Page, Queue, cell, change, differ, loop_kept, loop_of, loop_shown, n, table_made,
};
use crate::tag::{self, Tag};
use smt::explore::{assume, prove, reached};
use smt::term::{Term, all, any, choice, implies, not, truth};
use smt::word::Word;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A place of a sector that the geometry has.
pub fn is_place(place: Term) -> Term {
    let at = SMALL.page_of(Word(place));
    all([
        SMALL.block_of(Word(place)).0.below(n(SMALL.blocks)),
        SMALL.index_of_page(at).0.below(n(SMALL.data_pages())),
        SMALL.slot_of(Word(place)).0.below(n(SMALL.sectors)),
    ])
}

fn apply() {
    obligation(
        "replay: any pair changes what it says, or is refused",
        &["sector", "refused", "range"],
        || {
            let mut state = State::any(Begin::default());
            let pair = Word::any("pair");
            let counted = chosen("counted");
            let (sector, place) = (pair.0.part(32, 32).widened(), pair.0.part(0, 32).widened());
            let sectors = n(state.ftl.limits.sectors);
            let length = place.minus(n(TRIMMED));
            let (before, found) = (View::now().map, any_sector());
            // Sectors of a range: one step clears one of them, and no other.
            let step = before.clone();
            loop_of(
                "trimmed sectors",
                move |_| {},
                move |i| {
                    let expected = choice(found.equal(sector.plus(i)), n(NONE), step.get(found));
                    prove(
                        "a step of a trim",
                        View::now().map.get(found).equal(expected),
                    );
                },
                |_| reached("range"),
            );
            let trim = n(TRIMMED).at_most(place);
            let fits = choice_truth(trim, length.at_most(sectors.minus(sector)), is_place(place));
            let sound = all([sector.below(sectors), fits]);
            match state.ftl.apply(pair, counted, Word::bits("page", 13)) {
                Ok(()) => {
                    prove("a pair that makes no sense is applied", sound);
                    let expected = choice(found.equal(sector), place, before.get(found));
                    let now = View::now().map.get(found).equal(expected);
                    prove("the map is not as the pair says", any([trim, now]));
                    reached("sector");
                }
                Err(FtlError::Corrupt { what, .. }) => {
                    // A count that does not agree is refused, too.
                    let counts = what == "count of valid sectors";
                    prove(
                        "a pair that makes sense is refused",
                        any([not(sound), truth(counts)]),
                    );
                    reached("refused");
                }
                Err(_) => prove("replay fails otherwise", truth(false)),
            }
        },
    );
}

fn choice_truth(condition: Term, yes: Term, no: Term) -> Term {
    all([implies(condition, yes), implies(not(condition), no)])
}

fn collect() {
    obligation(
        "replay: a data page changes the sectors that it lists, in order",
        &["listed", "trims", "refused"],
        || {
            let state = State::any(Begin::default());
            let at = Word::bits("page", 13);
            let page = Page::medium(at.0);
            let Some(tag) = Tag::read(&SMALL, state.ftl.volume, at, &page) else {
                return reached("not whole");
            };
            let mut changes = Queue::any("changes");
            let (id, start) = (changes.0, changes.length());
            let earlier = Word::bits("earlier", 40);
            assume(earlier.0.below(start.0));
            let kept = cell(id).words.get(earlier.0);
            let ranges = page.clone();
            loop_kept(
                "ranges of a page",
                move || vec![id],
                move |begun, count| {
                    let (mut words, start) = (begun[0].words.clone(), begun[0].length);
                    let ranges = cell(ranges.0).words;
                    words.set_where(move |at| {
                        let index = at.minus(start);
                        let new = all([start.at_most(at), index.below(count)]);
                        (new, ranges.get(index).plus(n(TRIMMED)))
                    });
                    vec![(words, start.plus(count))]
                },
            );
            let result = state.ftl.collect_changes(&tag, &page, at, &mut changes);
            prove(
                "an earlier change is lost",
                cell(id).words.get(earlier.0).equal(kept),
            );
            if result.is_err() {
                let trims = tag.kind.0.equal(n(tag::TRIM));
                prove("a page of data is refused", trims);
                return reached("refused");
            }
            if tag.is(tag::TRIM) {
                return reached("trims");
            }
            // Slot by slot.
            let mut next = start.0;
            for slot in 0..SMALL.sectors {
                let sector = tag::sector(&SMALL, &page, slot).0;
                let listed = all([
                    tag.kind.0.equal(n(tag::DATA)),
                    n(slot).below(tag.count.0),
                    differ(sector, n(NONE)),
                ]);
                let place = SMALL.place(at, slot).0;
                let expected = sector.raised(32).filled(place);
                let found = cell(id).words.get(next).equal(expected);
                prove("a listed sector is not taken", implies(listed, found));
                next = choice(listed, next.plus(n(1)), next);
            }
            prove("more is taken than is listed", cell(id).length.equal(next));
            reached("listed");
        },
    );
}

fn frontier() {
    obligation(
        "replay: any frontier is read in range, or refused",
        &["read", "refused"],
        || {
            let state = State::any(Begin::default());
            let page = Page::any("delta page");
            match state.ftl.read_frontier(&page, Word::bits("at", 13)) {
                Ok(found) => {
                    let widths = Widths::of(&SMALL);
                    let count =
                        |stream: usize| found.heads.iter().filter(|h| h.stream == stream).count();
                    let few =
                        count(HOST) as u64 <= widths.host && count(MOVED) as u64 <= widths.moved;
                    prove("more open blocks than there can be", truth(few));
                    prove(
                        "a number has no room to grow",
                        found.number.0.below(n(1 << 62)),
                    );
                    prove(
                        "an incarnation has none",
                        found.incarnation.0.below(n(NONE)),
                    );
                    reached("read");
                }
                Err(_) => reached("refused"),
            }
        },
    );
}

/// A place where the next data page may be.
fn place(name: &str) -> crate::follow::Place<Word> {
    crate::follow::Place {
        stream: HOST,
        block: Word::bits(&format!("{name} block"), 32),
        page: Word::bits(&format!("{name} index"), 32),
        announced: false,
    }
}

fn heads() {
    obligation(
        "scan: a head is a whole data page of this mount, or nothing",
        &["found", "nothing"],
        || {
            let mut state = State::any(Begin::default());
            let place = place("head");
            let Ok(head) = state.ftl.head(place) else {
                return prove("the scan fails", truth(false));
            };
            match head.found {
                Some((tag, page)) => {
                    let (data, trim) = (
                        tag.kind.0.equal(n(tag::DATA)),
                        tag.kind.0.equal(n(tag::TRIM)),
                    );
                    prove("a page of another kind", any([data, trim]));
                    let same = tag.incarnation.0.equal(state.ftl.incarnation.0);
                    prove("a page of another mount", same);
                    let inside = [
                        place.block.0.below(n(SMALL.blocks)),
                        place.page.0.below(n(SMALL.data_pages())),
                    ];
                    prove("a page outside", all(inside));
                    let at = SMALL.page_at(place.block, place.page);
                    let whole = Tag::read(&SMALL, state.ftl.volume, at, &page).is_some();
                    prove(
                        "a damaged page, or another volume's, or place's",
                        truth(whole),
                    );
                    reached("found");
                }
                None => reached("nothing"),
            }
        },
    );
}

fn deltas() {
    obligation(
        "scan: a delta page of exactly the next number, at one of three places",
        &["found", "end"],
        || {
            let mut state = State::any(Begin::default());
            let places = [0, 1, 2].map(|_| (Word::bits("block", 32), Word::bits("index", 32)));
            let Ok(found) = state.ftl.find_delta(places) else {
                return prove("the scan fails", truth(false));
            };
            let (volume, delta) = (state.ftl.volume, state.ftl.delta.0);
            // Content of the pages at the places, read once more.
            let fits = |(block, index): (Word, Word)| {
                let inside = all([
                    block.0.below(n(SMALL.blocks)),
                    index.0.below(n(SMALL.pages)),
                ]);
                if !smt::explore::branch(inside) {
                    return truth(false);
                }
                let at = SMALL.page_at(block, index).0;
                if !smt::explore::branch(smt::term::apply("readable", 0, &[at])) {
                    return truth(false);
                }
                let tag = Tag::read(&SMALL, volume, Word(at), &Page::medium(at));
                tag.map_or(truth(false), |tag| {
                    all([tag.kind.0.equal(n(tag::DELTA)), tag.number.0.equal(delta)])
                })
            };
            match found {
                Some(((tag, _), block, index)) => {
                    prove("another number is taken", tag.number.0.equal(delta));
                    prove("a page that does not fit is taken", fits((block, index)));
                    let there = places
                        .iter()
                        .map(|(b, i)| all([b.0.equal(block.0), i.0.equal(index.0)]));
                    prove("a page is taken from elsewhere", any(there));
                    reached("found");
                }
                None => {
                    let one = any(places.map(fits));
                    prove("the next page is passed over", not(one));
                    reached("end");
                }
            }
        },
    );
}

/// The places where the next page may be, when a page announces other blocks.
fn announced() {
    obligation(
        "scan: newly announced blocks are looked at, and open ones still",
        &["replaced", "stays"],
        || {
            let mut state = State::any(Begin::default());
            let at = |name: &str, stream: usize, announced: bool| {
                let mut place = place(name);
                (place.stream, place.announced) = (stream, announced);
                if announced {
                    place.page = Word::of(0);
                }
                place
            };
            let open = at("open", HOST, false);
            let other = at("other stream's", MOVED, true);
            let old = at("announced before", HOST, true);
            let mut heads: Vec<_> = [open, other, old]
                .map(|place| crate::follow::Head {
                    place,
                    found: None,
                    erased: false,
                    damaged: None,
                })
                .into();
            let next = ["first", "second"].map(|name| Word::bits(name, 32));
            if state.ftl.announce(&mut heads, HOST, next).is_err() {
                return prove("the scan fails", truth(false));
            }
            let same = |a: &crate::follow::Place<Word>, b: &crate::follow::Place<Word>| {
                all([
                    truth(a.stream == b.stream && a.announced == b.announced),
                    a.block.0.equal(b.block.0),
                    a.page.0.equal(b.page.0),
                ])
            };
            for kept in [open, other] {
                let there = any(heads.iter().map(|head| same(&head.place, &kept)));
                prove("a place is looked at no more", there);
            }
            for block in next {
                let there = any(heads.iter().map(|head| {
                    all([
                        truth(head.place.stream == HOST),
                        head.place.block.0.equal(block.0),
                        head.place.page.0.equal(n(0)),
                    ])
                }));
                prove("an announced block is not looked at", there);
            }
            for head in &heads {
                let new = any(next.map(|block| head.place.block.0.equal(block.0)));
                let of_stream = head.place.announced && head.place.stream == HOST;
                prove(
                    "a block is looked at that is announced no more",
                    any([new, truth(!of_stream)]),
                );
            }
            let stays = heads
                .iter()
                .any(|head| same(&head.place, &old).as_truth() == Some(true));
            reached(if stays { "stays" } else { "replaced" });
        },
    );
}

fn follow() {
    let labels = ["taken", "committed", "end", "kept"];
    obligation(
        "scan: the page of the next number, and the map changes with a commit alone",
        &labels,
        || {
            let mut state = State::any(Begin::default());
            let (first, other) = (place("head"), place("other"));
            let (Ok(one), Ok(two)) = (
                state.ftl.head(first),
                state.ftl.head(crate::follow::Place {
                    block: Word::of(NONE),
                    ..other
                }),
            ) else {
                return prove("the scan fails", truth(false));
            };
            let tag = one.found.as_ref().map(|(tag, _)| *tag);
            // It announces no blocks: heads are shown by themselves.
            if let Some(tag) = &tag {
                assume(all(tag.next.map(|block| block.0.equal(n(NONE)))));
            }
            let expected = Word::bits("expected", 62);
            let (number, map) = (state.ftl.number.0, View::now().map);
            let applied = Rc::new(Cell::new(false));
            let loops = applied.clone();
            loop_shown("changes of a flush", move |_| loops.set(true));
            loop_shown("ranges of a page", |_| {});
            let mut changes = Queue::any("changes");
            let id = changes.0;
            let mut heads = vec![two, one];
            let was = View::now().uses;
            let result = state.ftl.follow_one(&mut heads, &mut changes, expected);
            let next = tag.map(|tag| tag.number.0.equal(expected.0));
            let next = next.unwrap_or(truth(false));
            match result {
                Ok(true) => {
                    prove("a page of another number is taken", next);
                    let commits = tag.map_or(truth(false), |tag| tag.flags.0.equal(n(tag::COMMIT)));
                    let now = state.ftl.number.0;
                    prove(
                        "the commit is not where the page says",
                        choice_truth(commits, now.equal(expected.0), now.equal(number)),
                    );
                    prove(
                        "changes are applied without a commit, or not with one",
                        commits.equal(truth(applied.get())),
                    );
                    if applied.get() {
                        prove("changes are applied twice", cell(id).length.equal(n(0)));
                    }
                    // A block of the log is not erased before a delta run has its changes.
                    let use_ = View::now().uses.get(first.block.0);
                    let erasable = |term: Term| term.equal(n(BlockUse::Erasable as u64));
                    prove("the end of the log may be erased", not(erasable(use_)));
                    if erasable(was.get(first.block.0)).as_truth() != Some(true) {
                        reached("kept");
                    }
                    let goes_on = heads.iter().any(|head| {
                        let index = head.place.page.0.equal(first.page.0.plus(n(1)));
                        all([head.place.block.0.equal(first.block.0), index]).as_truth()
                            == Some(true)
                    });
                    prove(
                        "the next page of the block is not looked for",
                        truth(goes_on),
                    );
                    reached(if applied.get() { "committed" } else { "taken" });
                }
                Ok(false) => {
                    prove("the next page is passed over", not(next));
                    prove(
                        "nothing was taken, and yet",
                        state.ftl.number.0.equal(number),
                    );
                    reached("end");
                }
                Err(_) => {}
            }
            if !applied.get() {
                let sector = any_sector();
                prove(
                    "the map changes without a commit",
                    View::now().map.get(sector).equal(map.get(sector)),
                );
            }
        },
    );
}

/// The check of the whole map is a validator: when it says yes, no two sectors share a place, and the
/// counts are right.
fn validator() {
    obligation(
        "check: no two sectors share a place when it says yes",
        &["sectors of the disk", "refused", "yes"],
        || {
            let mut state = State::any(Begin::default());
            // Any map: none of the invariants that a state has.
            let map =
                Memory::of(|sector| crate::sym::value("unsound map", 32, &[sector.part(0, 13)]));
            let wild = map.clone();
            let limit = move |sector: Term| {
                let place = wild.get(sector);
                // A map page is read with this checked (`load`).
                smt::explore::suppose(any([place.equal(n(NONE)), is_place(place)]));
                place
            };
            change(state.ftl.map.0, |cell| cell.words = Memory::of(limit));
            let other = any_sector();
            let place = move || cell(state.ftl.map.0).words.get(other);
            let seen: Rc<RefCell<Option<(Memory, Memory)>>> = Rc::default();
            let begun = seen.clone();
            let of_other = place;
            let ending = place;
            loop_of(
                "sectors of the disk",
                move |i| {
                    let (taken, counts) = (Memory::any("taken", 32), Memory::any("counts", 32));
                    // The places that earlier steps led to are taken.
                    let mark = taken.get(of_other());
                    let earlier = all([other.below(i), differ(of_other(), n(NONE))]);
                    assume(implies(earlier, differ(mark, n(0))));
                    smt::explore::suppose(
                        counts
                            .get(crate::shape::Shape::block_of(&SMALL, Word(of_other())).0)
                            .below(n(1 << 31)),
                    );
                    change(table_made(0), |cell| cell.words = taken.clone());
                    let bounded = counts.clone();
                    change(table_made(1), |cell| {
                        cell.words = Memory::of(move |block| {
                            let count = bounded.get(block);
                            smt::explore::suppose(count.below(n(SECTORS_MAX)));
                            count
                        });
                    });
                    *begun.borrow_mut() = Some((taken, counts));
                },
                move |i| {
                    let Some((_, counts)) = seen.borrow().clone() else {
                        return prove("no step was begun", truth(false));
                    };
                    let here = cell(state.ftl.map.0).words.get(i);
                    let both = all([
                        differ(ending(), n(NONE)),
                        differ(here, n(NONE)),
                        other.below(i),
                    ]);
                    prove(
                        "two sectors share a place",
                        implies(both, differ(ending(), here)),
                    );
                    let mark = cell(table_made(0)).words.get(ending());
                    let earlier = all([other.at_most(i), differ(ending(), n(NONE))]);
                    prove(
                        "a place is not marked",
                        implies(earlier, differ(mark, n(0))),
                    );
                    let block = crate::state::any_block();
                    let in_it = all([
                        differ(here, n(NONE)),
                        SMALL.block_of(Word(here)).0.equal(block),
                    ]);
                    let expected = counts.get(block).plus(choice(in_it, n(1), n(0)));
                    let found = cell(table_made(1)).words.get(block);
                    prove(
                        "a sector is not counted in its block",
                        found.equal(expected),
                    );
                },
                |_| {
                    change(table_made(1), |cell| {
                        cell.words = Memory::any("counted", 32)
                    });
                },
            );
            let block = crate::state::any_block();
            let valid = cell(state.ftl.blocks.valid.0).words;
            loop_of(
                "blocks",
                |_| {},
                move |block| {
                    let counted = cell(table_made(1)).words.get(block);
                    prove(
                        "a count that is wrong passes",
                        counted.equal(valid.get(block)),
                    );
                    let view = View::now();
                    let data =
                        view.used_as(block, &[BlockUse::Used, BlockUse::Open, BlockUse::Bad]);
                    prove(
                        "sectors in a block without data pass",
                        any([counted.equal(n(0)), data]),
                    );
                },
                |_| {},
            );
            let _ = block;
            match state.ftl.check() {
                Ok(()) => reached("yes"),
                Err(_) => reached("refused"),
            }
        },
    );
}

/// No block counts more sectors than the disk has.
const SECTORS_MAX: u64 = 1 << 31;

pub fn obligations() {
    apply();
    collect();
    frontier();
    heads();
    deltas();
    announced();
    follow();
    validator();
}
