//! Start of a mount: the newest root, directory and block table, and the delta log page by page; any bytes.

use crate::anchors::{Anchored, find_roots, look_for_root};
use crate::blocks::BlockUse;
use crate::checkpoint::{NUMBERS, ROOT_SEAL, ROOT_WORDS};
use crate::error::FtlError;
use crate::follow::DeltaLog;
use crate::ftl::Faults;
use crate::limits::{ANCHORS, delta_head_words};
use crate::obligation;
use crate::shape::{NONE, Shape, TRIMMED};
use crate::state::{Begin, SMALL, State, View, any_block, any_sector, chosen, ghost};
use crate::sym::{
    Flash, Memory, Page, Queue, Table, cell, change, differ, loop_kept, loop_of, loop_shown, n,
    page_length,
};
use crate::tag::{self, Tag};
use smt::explore::{assume, prove, reached, suppose, unknown};
use smt::term::{Term, all, any, apply, choice, implies, not, truth};
use smt::word::Word;
use std::cell::Cell;
use std::rc::Rc;

/// The content of a page: whether it is whole for a reader with this volume number, and of this kind; and its number.
fn lies(at: Term, volume: Term, kind: u64) -> (Term, Term) {
    let page = Page::medium(at);
    let word = |i: u64| page.at(n(SMALL.page_words + i));
    let whole = all([
        apply("readable", 0, &[at]),
        apply("intact", 0, &[at, volume]),
        word(0).shifted(48).equal(n(0x5346)),
        word(0).part(40, 8).widened().equal(n(kind)),
    ]);
    (whole, word(1))
}

fn root_at(at: Term) -> (Term, Term) {
    let (whole, number) = lies(at, n(ROOT_SEAL), tag::ROOT);
    let blank = apply("blank", 0, &[at]);
    (all([whole, number.below(n(NUMBERS)), not(blank)]), number)
}

/// Nothing was programmed there since the last erase.
fn erased_at(at: Term) -> Term {
    all(["readable", "blank"].map(|what| apply(what, 0, &[at])))
}

/// One page is looked at, after any others.
fn look() {
    let labels = ["first", "newer", "older", "damaged", "erased"];
    obligation(
        "boot: of two roots the newer counts, and a page that is none is damaged or erased",
        &labels,
        || {
            page_length(SMALL.page_words + SMALL.spare_words, false);
            let place = |name: &str| {
                let (anchor, index) = (Word::bits(name, 2), Word::bits(name, 4));
                (anchor, index, SMALL.page_at(anchor, index).0)
            };
            let (anchor, index, at) = place("here");
            let (before, _, best) = place("newest so far");
            let mut newest = None;
            if chosen("one was found") {
                assume(root_at(best).0);
                let page = Page::medium(best);
                let tag = Tag::read(&SMALL, Word::of(ROOT_SEAL), Word(best), &page);
                newest = tag.map(|tag| (before, tag, page));
            }
            let number_of = |newest: &Option<crate::anchors::Root<Flash>>| {
                newest.as_ref().map(|(_, tag, _)| tag.number.0)
            };
            let was = number_of(&newest);
            // Any other root, looked at before or not.
            let (_, _, other) = place("any root");
            let (whole, number) = root_at(other);
            let earlier = unknown("looked at before", 0);
            assume(whole);
            let bounded = was.map_or(truth(false), |newest| number.at_most(newest));
            assume(implies(earlier, bounded));
            let found = look_for_root(&mut Flash, &SMALL, anchor, index, &mut newest);
            let (here, its) = root_at(at);
            let now = number_of(&newest);
            match found {
                Ok(Anchored::Root) => {
                    prove("a damaged page is taken for a root", here);
                    let Some((lies_in, tag, page)) = &newest else {
                        return prove("a root is forgotten", truth(false));
                    };
                    let this = tag.number.0.equal(its);
                    let same = was.map_or(truth(false), |was| tag.number.0.equal(was));
                    prove("another number is the newest", any([this, same]));
                    let more = was.map_or(truth(true), |was| was.below(its));
                    let of_anchor = lies_in.0.equal(choice(more, anchor.0, before.0));
                    prove("it lies in another anchor", of_anchor);
                    let word = page.at(n(0));
                    let expected = choice(more, at, best);
                    prove(
                        "it is another page",
                        word.equal(Page::medium(expected).at(n(0))),
                    );
                    let looked_at = any([earlier, other.equal(at)]);
                    prove(
                        "a newer root was passed over",
                        implies(looked_at, number.at_most(tag.number.0)),
                    );
                    reached(match was {
                        None => "first",
                        Some(_) if smt::explore::branch(more) => "newer",
                        Some(_) => "older",
                    });
                }
                Ok(other) => {
                    prove("a whole root is taken for a damaged one", not(here));
                    let is = truth(other == Anchored::Erased).equal(erased_at(at));
                    prove(
                        "a damaged page is taken for an erased one, or the other way",
                        is,
                    );
                    let same = match (was, now) {
                        (Some(was), Some(now)) => was.equal(now),
                        (None, None) => truth(true),
                        _ => truth(false),
                    };
                    prove("a damaged page changes the newest", same);
                    reached(if other == Anchored::Erased {
                        "erased"
                    } else {
                        "damaged"
                    });
                }
                Err(_) => prove("the search fails", truth(false)),
            }
        },
    );
}

/// The walk over all anchors, of few pages each; the others are erased.
fn walk(anchors: u64, pages: u64) {
    let name = format!("boot: the newest root of all anchors, {anchors} with {pages} pages");
    let labels = [
        "found",
        "none",
        "it may be damaged",
        "behind a damaged page",
    ];
    let many = if pages > 1 { 4 } else { 3 };
    obligation(&name, &labels[..many], || {
        page_length(SMALL.page_words + SMALL.spare_words, false);
        let shape = Shape { pages, ..SMALL };
        let at = |anchor: u64, index: u64| shape.page_at(Word::of(anchor), Word::of(index)).0;
        for anchor in anchors..ANCHORS {
            for index in 0..pages {
                assume(erased_at(at(anchor, index)));
            }
        }
        let Ok(found) = find_roots(&mut Flash, &shape, &Faults::default()) else {
            return prove("the search fails", truth(false));
        };
        // Pages read: up to two erased pages in a row. Pages that may be newer roots: damaged, and no root after them in
        // their anchor.
        let (mut roots, mut damaged) = (Vec::new(), Vec::new());
        for anchor in 0..anchors {
            let mut reads = truth(true);
            let mut here = Vec::new();
            for index in 0..pages {
                let (whole, number) = root_at(at(anchor, index));
                let is = [erased_at(at(anchor, index)), whole];
                here.push((all([reads, whole]), number, all([reads, not(any(is))])));
                if index > 0 {
                    let two = all([erased_at(at(anchor, index - 1)), is[0]]);
                    reads = all([reads, not(two)]);
                }
            }
            for (index, &(_, _, broken)) in (0..).zip(&here) {
                let later = here[index as usize + 1..].iter().map(|(there, ..)| *there);
                let last = all([broken, not(any(later))]);
                let some = any(here.iter().map(|(there, ..)| *there));
                damaged.push((anchor, at(anchor, index), last, some));
            }
            for (index, (there, number, _)) in (0..).zip(here) {
                roots.push((anchor, index, there, number));
            }
        }
        let own = found.newest.as_ref().map(|(anchor, ..)| anchor.0);
        let may_be = |&(anchor, at, last, some): &(u64, Term, Term, Term)| {
            let own = own.map_or(truth(false), |own| own.equal(n(anchor)));
            (at, all([last, any([own, not(some)])]))
        };
        let may_be: Vec<(Term, Term)> = damaged.iter().map(may_be).collect();
        if let Some(page) = found.damaged {
            let is = may_be.iter().map(|(at, is)| all([*is, at.equal(page.0)]));
            prove("a page that is no newer root is suspected", any(is));
            reached("it may be damaged");
        } else {
            let none = not(any(may_be.iter().map(|(_, is)| *is)));
            prove("a page that may be a newer root is passed over", none);
        }
        let Some((anchor, tag, _)) = found.newest else {
            prove(
                "no root is found",
                not(any(roots.iter().map(|(_, _, there, _)| *there))),
            );
            return reached("none");
        };
        for (_, _, there, number) in &roots {
            prove(
                "a newer root is passed over",
                implies(*there, number.at_most(tag.number.0)),
            );
        }
        let is = roots.iter().map(|(of, _, there, number)| {
            all([anchor.0.equal(n(*of)), *there, number.equal(tag.number.0)])
        });
        prove("what is found is no root", any(is));
        // The first page of an anchor is damaged, and the second is the newest root.
        let behind = roots.iter().filter(|(_, index, ..)| *index == 1);
        let behind = behind.map(|(of, _, there, number)| {
            let first = [root_at(at(*of, 0)).0, erased_at(at(*of, 0))];
            all([*there, not(any(first)), number.equal(tag.number.0)])
        });
        if smt::explore::branch(any(behind)) {
            reached("behind a damaged page");
        }
        reached("found");
    });
}

/// Start of recovery: nothing is known but what it reads.
fn begin() -> State {
    let state = State::any(Begin::default());
    let read = Memory::any("found use", 32);
    change(ghost().uses, |cell| {
        cell.words = Memory::of(move |block| {
            let is = read.get(block);
            let found = [BlockUse::Erasable, BlockUse::Map];
            suppose(any(found.map(|use_| is.equal(n(use_ as u64)))));
            is
        });
    });
    change(ghost().directory, |cell| {
        cell.words = Memory::any("read so far", 32)
    });
    state
}

/// The uses of blocks are as before, but for those that are claimed.
fn claimed(before: &View, blocks: &[(Term, Term)]) {
    let block = any_block();
    let is = any(blocks
        .iter()
        .map(|(there, of)| all([*there, of.equal(block)])));
    let expected = choice(is, n(BlockUse::Map as u64), before.uses.get(block));
    prove(
        "another block is claimed, or one is not",
        View::now().uses.get(block).equal(expected),
    );
}

fn block_of_page(at: Term) -> Term {
    SMALL.block_of_page(Word(at)).0
}

fn place() {
    obligation(
        "boot: any place of a map page is noted and its block is kept, or refused",
        &["place", "none", "refused"],
        || {
            let mut state = begin();
            let (index, at) = (Word::bits("index", 7), Word::bits("place", 32));
            let before = View::now();
            let none = at.0.equal(n(NONE));
            let inside = block_of_page(at.0).below(n(SMALL.blocks));
            if state.ftl.read_place(index, at).is_err() {
                prove("a place that there is is refused", not(any([none, inside])));
                return reached("refused");
            }
            prove("a place outside is taken", any([none, inside]));
            let entry = Word::bits("any entry", 7).0;
            let expected = choice(entry.equal(index.0), at.0, before.directory.get(entry));
            prove(
                "the directory says something else",
                View::now().directory.get(entry).equal(expected),
            );
            claimed(&before, &[(not(none), block_of_page(at.0))]);
            prove(
                "spare blocks are not counted right",
                state.ftl.blocks.spare.0.equal(ghost().spare),
            );
            reached(if smt::explore::branch(none) {
                "none"
            } else {
                "place"
            });
        },
    );
}

/// Entries of the directory, the last page not full, and the last word half.
const NAMED: u64 = 101;

fn directory() {
    let labels = ["words of a directory", "whole", "refused"];
    obligation(
        "boot: any page of the directory is read entry by entry, or refused",
        &labels,
        || {
            let mut state = begin();
            state.ftl.limits.map_pages = NAMED;
            let index = u64::from(chosen("the last page"));
            let at = Word::bits("its place", 32);
            let page = Page::medium(at.0);
            let first = index * SMALL.page_words * 2;
            let words = page.clone();
            let seen: Rc<Cell<Option<Term>>> = Rc::default();
            let before: Rc<std::cell::RefCell<Option<View>>> = Rc::default();
            let begun = before.clone();
            let count = seen.clone();
            loop_of(
                "words of a directory",
                move |_| *begun.borrow_mut() = Some(View::now()),
                move |word| {
                    let Some(before) = before.borrow().clone() else {
                        return prove("no step was begun", truth(false));
                    };
                    let pair = words.at(word);
                    let (low, high) = (pair.part(0, 32).widened(), pair.shifted(32));
                    let even = word.times(2).plus(n(first));
                    let two = even.plus(n(1)).below(n(NAMED));
                    prove("an entry beyond the directory", even.below(n(NAMED)));
                    let entry = Word::bits("any entry", 7).0;
                    let was = before.directory.get(entry);
                    let odd = all([two, entry.equal(even.plus(n(1)))]);
                    let expected = choice(entry.equal(even), low, choice(odd, high, was));
                    prove(
                        "the directory says something else",
                        View::now().directory.get(entry).equal(expected),
                    );
                    let there = |at: Term| differ(at, n(NONE));
                    let blocks = [
                        (there(low), block_of_page(low)),
                        (all([two, there(high)]), block_of_page(high)),
                    ];
                    claimed(&before, &blocks);
                },
                move |words| count.set(Some(words)),
            );
            let before = View::now();
            if state.ftl.read_directory(index, at).is_err() {
                return reached("refused");
            }
            let (whole, number) = lies(at.0, state.ftl.volume.0, tag::DIRECTORY);
            prove(
                "another page is read as the directory",
                all([whole, number.equal(n(index))]),
            );
            let left = (NAMED - first).min(SMALL.page_words * 2).div_ceil(2);
            let all_read = seen
                .get()
                .map_or(truth(false), |words| words.equal(n(left)));
            prove("entries are left out", all_read);
            claimed(&before, &[(truth(true), block_of_page(at.0))]);
            reached("whole");
        },
    );
}

/// A page of the block table. Its entries: `root: an entry of the block table`.
fn table() {
    let labels = ["words of a block table", "whole", "refused"];
    obligation(
        "boot: any page of the block table is read block by block, or refused",
        &labels,
        || {
            let mut state = begin();
            state.ftl.shape.blocks = SMALL.blocks - 3;
            state.ftl.blocks.erases = Table::new(Memory::any("erases so far", 32), SMALL.blocks);
            let last = SMALL.blocks / SMALL.page_words - 1;
            let index = if chosen("the last page") { last } else { 1 };
            let at = Word::bits("its place", 32);
            let first = n(index * SMALL.page_words);
            let words = Page::medium(at.0);
            let valid = state.ftl.blocks.valid.0;
            let erases = state.ftl.blocks.erases.0;
            let seen: Rc<Cell<Option<Term>>> = Rc::default();
            let count = seen.clone();
            let (was, were) = (cell(valid).words, cell(erases).words);
            loop_of(
                "words of a block table",
                |_| {},
                move |word| {
                    let entry = words.at(word);
                    let here = first.plus(word);
                    let block = any_block();
                    let is = block.equal(here);
                    let sectors = entry.part(32, 31).widened();
                    let expected = [
                        (valid, choice(is, sectors, was.get(block))),
                        (
                            erases,
                            choice(is, entry.part(0, 32).widened(), were.get(block)),
                        ),
                    ];
                    for (table, expected) in expected {
                        prove(
                            "a block is read as another",
                            cell(table).words.get(block).equal(expected),
                        );
                    }
                },
                move |words| count.set(Some(words)),
            );
            let before = View::now();
            if state.ftl.read_table(index, at).is_err() {
                return reached("refused");
            }
            let (whole, number) = lies(at.0, state.ftl.volume.0, tag::TABLE);
            prove(
                "another page is read as the block table",
                all([whole, number.equal(n(index))]),
            );
            let left = if index == last {
                SMALL.page_words - 3
            } else {
                SMALL.page_words
            };
            let all_read = seen
                .get()
                .map_or(truth(false), |words| words.equal(n(left)));
            prove("blocks are left out", all_read);
            claimed(&before, &[(truth(true), block_of_page(at.0))]);
            reached("whole");
        },
    );
}

/// All pages that a root names, for any root.
fn tables() {
    obligation(
        "boot: all pages that a root names are read, or it is refused",
        &["read", "refused"],
        || {
            let mut state = begin();
            let (directories, tables) = (2, SMALL.blocks / SMALL.page_words);
            state.ftl.limits.map_pages = NAMED;
            loop_shown("words of a directory", |_| {});
            loop_shown("words of a block table", |_| {});
            // Their blocks are claimed one by one.
            change(ghost().uses, |cell| {
                cell.words = Memory::of(|_| n(BlockUse::Map as u64));
            });
            let root = Page::any("root");
            if state.ftl.read_tables(&root).is_err() {
                return reached("refused");
            }
            let counts = root.at(n(11));
            prove(
                "a root counts other pages",
                counts.equal(n(directories << 32 | tables)),
            );
            for i in 0..directories + tables {
                let word = root.at(n(ROOT_WORDS + i / 2));
                let at = if i % 2 == 0 {
                    word.part(0, 32).widened()
                } else {
                    word.shifted(32)
                };
                let (kind, expected) = if i < directories {
                    (tag::DIRECTORY, i)
                } else {
                    (tag::TABLE, i - directories)
                };
                let (whole, number) = lies(at, state.ftl.volume.0, kind);
                prove(
                    "a page is not the one that is due",
                    all([whole, number.equal(n(expected))]),
                );
            }
            reached("read");
        },
    );
}

/// Place of a sector after a pair.
pub fn changed(pair: Term, sector: Term, was: Term) -> Term {
    let (of, place) = (pair.shifted(32), pair.part(0, 32).widened());
    let trim = n(TRIMMED).at_most(place);
    let count = place.minus(n(TRIMMED));
    let inside = all([of.at_most(sector), sector.minus(of).below(count)]);
    let trimmed = choice(inside, n(NONE), was);
    choice(trim, trimmed, choice(of.equal(sector), place, was))
}

/// Any map; its entries are places, as `load` and `apply` check.
pub fn sound(name: &str) -> Memory {
    let words = Memory::any(name, 32);
    Memory::of(move |sector| {
        let place = words.get(sector);
        suppose(any([
            place.equal(n(NONE)),
            crate::recovery::is_place(place),
        ]));
        place
    })
}

/// All steps over the sectors of a range (`replay: any pair` is one).
pub fn forget(first: Term, count: Term) {
    change(ghost().map, |cell| {
        cell.words.set_where(move |sector| {
            let inside = sector.minus(first).below(count);
            (all([first.at_most(sector), inside]), n(NONE))
        });
    });
}

/// One page of the delta log, after any others; it lies at the first of the places (any of the three:
/// `scan: a delta page`).
fn follow_delta() {
    let labels = [
        "pairs of a page",
        "pairs of a run",
        "taken",
        "committed",
        "end",
        "refused",
    ];
    obligation(
        "boot: pairs of a run are gathered in order, and applied in order with its commit",
        &labels,
        || {
            let mut state = State::any(Begin::default());
            let (block, index) = (Word::bits("block", 32), Word::bits("index", 32));
            let nowhere = (Word::of(NONE), Word::of(0));
            let pairs = Queue::any("pairs of the run");
            let list = pairs.0;
            let (earlier, start) = (cell(list).words, cell(list).length);
            let mut log = DeltaLog {
                places: [(block, index), nowhere, nowhere],
                next: [Word::of(NONE); 2],
                pairs,
                frontier: None,
            };
            let delta = state.ftl.delta.0;
            let volume = state.ftl.volume.0;
            let at = SMALL.page_at(block, index).0;
            let (whole, number) = lies(at, volume, tag::DELTA);
            let inside = all([
                block.0.below(n(SMALL.blocks)),
                index.0.below(n(SMALL.pages)),
            ]);
            let page = Page::medium(at);
            let head = n(delta_head_words(&SMALL));
            let gathered = move |count: Term| {
                let (earlier, page) = (earlier.clone(), Page::medium(at));
                Memory::of(move |i| {
                    let here = i.minus(start);
                    let new = all([start.at_most(i), here.below(count)]);
                    choice(new, page.at(head.plus(here)), earlier.get(i))
                })
            };
            let step = gathered.clone();
            loop_kept(
                "pairs of a page",
                move || vec![list],
                move |_, count| vec![(step(count), start.plus(count))],
            );
            let sector = any_sector();
            let (so_far, behind) = (sound("map so far"), sound("map behind the run"));
            let (step, done) = (so_far.clone(), behind.clone());
            let range: Rc<Cell<Term>> = Rc::new(Cell::new(n(0)));
            let trims = range.clone();
            loop_shown("trimmed sectors", move |count| forget(trims.get(), count));
            let valid = View::now().valid;
            let applied: Rc<Cell<Option<Term>>> = Rc::default();
            let run = applied.clone();
            loop_of(
                "pairs of a run",
                move |i| {
                    change(ghost().map, |cell| cell.words = so_far.clone());
                    range.set(cell(list).words.get(i).shifted(32));
                },
                move |i| {
                    let pair = cell(list).words.get(i);
                    let block = any_block();
                    prove(
                        "what the block table counts is counted again",
                        View::now().valid.get(block).equal(valid.get(block)),
                    );
                    let expected = changed(pair, sector, step.get(sector));
                    prove(
                        "the map is not as the pair says",
                        View::now().map.get(sector).equal(expected),
                    );
                },
                move |count| {
                    change(ghost().map, |cell| cell.words = done.clone());
                    run.set(Some(count));
                },
            );
            // A page that was taken before has a smaller number.
            let other = Word::bits("taken before", 13).0;
            assume(lies(other, volume, tag::DELTA).1.below(delta));
            let before = View::now();
            let commits = page
                .at(n(SMALL.page_words))
                .part(32, 8)
                .widened()
                .equal(n(tag::COMMIT));
            let count = page.at(n(SMALL.page_words + 4));
            // The last page that the block table counts; how others are counted: `replay: any pair`.
            match state.ftl.follow_delta(&mut log, Word(delta)) {
                Ok(true) => {
                    prove(
                        "another page is taken",
                        all([inside, whole, number.equal(delta)]),
                    );
                    prove("a page is taken twice", differ(at, other));
                    prove(
                        "the next number is another one",
                        state.ftl.delta.0.equal(delta.plus(n(1))),
                    );
                    let word = page.at(n(SMALL.page_words + 3));
                    let next = [word.part(0, 32).widened(), word.shifted(32)];
                    let expected = [
                        (block.0, index.0.plus(n(1))),
                        (next[0], n(0)),
                        (next[1], n(0)),
                    ];
                    let places = log.places.iter().zip(expected);
                    let same = places
                        .map(|((b, i), (block, index))| all([b.0.equal(block), i.0.equal(index)]));
                    prove("the next page is looked for elsewhere", all(same));
                    let announced = all((0..2).map(|i| log.next[i].0.equal(next[i])));
                    prove("other blocks are announced", announced);
                    let kept = View::now().used_as(block.0, &[BlockUse::Delta]);
                    prove("a block of the log may be erased", kept);
                    prove(
                        "pairs are applied without a commit, or not with one",
                        commits.equal(truth(applied.get().is_some())),
                    );
                    let Some(run) = applied.get() else {
                        let found = cell(list);
                        let entry = Word::bits("any pair", 41).0;
                        prove(
                            "pairs are lost",
                            all([
                                found.length.equal(start.plus(count)),
                                found.words.get(entry).equal(gathered(count).get(entry)),
                            ]),
                        );
                        let same = View::now().map.get(sector).equal(before.map.get(sector));
                        prove("the map changes without a commit", same);
                        prove(
                            "what a page says counts without a commit",
                            truth(log.frontier.is_none()),
                        );
                        return reached("taken");
                    };
                    prove("not all pairs are applied", run.equal(start.plus(count)));
                    prove("pairs are applied twice", cell(list).length.equal(n(0)));
                    let frontier = log.frontier.as_ref().map_or(truth(false), |found| {
                        all([
                            found.number.0.equal(page.at(n(0))),
                            found.incarnation.0.equal(page.at(n(1))),
                        ])
                    });
                    prove("another frontier counts", frontier);
                    let same = View::now().map.get(sector).equal(behind.get(sector));
                    prove("the map changes behind the run", same);
                    reached("committed");
                }
                Ok(false) => {
                    let there = all([inside, whole, number.equal(delta)]);
                    prove("the next page is passed over", not(there));
                    let same = View::now().map.get(sector).equal(before.map.get(sector));
                    prove(
                        "nothing was taken, and yet",
                        all([
                            same,
                            state.ftl.delta.0.equal(delta),
                            cell(list).length.equal(start),
                        ]),
                    );
                    reached("end");
                }
                Err(FtlError::Corrupt { .. }) => {
                    let there = all([inside, whole, number.equal(delta)]);
                    prove("what is not there is refused", there);
                    reached("refused");
                }
                Err(_) => prove("the walk fails otherwise", truth(false)),
            }
        },
    );
}

pub fn obligations() {
    look();
    walk(1, 3);
    walk(2, 1);
    if smt::run::is_long() {
        walk(4, 1);
        walk(2, 2);
    }
    place();
    directory();
    table();
    tables();
    follow_delta();
}
