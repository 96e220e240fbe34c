//! Conditions that every change keeps at its moment, and so at every crash point: of map and uses, for the
//! counts; of the flash memory, for the state after a crash.

use crate::blocks::BlockUse::{Anchor, Erasable, Erasing, Free, Invalid, Open};
use crate::checkpoint::{ROOT_SEAL, VERSION};
use crate::shape::NONE;
use crate::state::any_more;
use crate::sym::{Event, Page, Seal, cell, change, differ, n, value};
use crate::tag::{self, Tag};
use crate::view::*;
use smt::explore::{fresh, prove, reached, suppose, unknown};
use smt::term::{Term, all, any, choice, implies, not, truth};
use smt::word::Word;

/// The map changes: so do the numbers of sectors that lie in blocks. A number is not zero if there
/// is one.
pub fn map_is_set(sector: Term, place: Term) {
    let g = ghost();
    let old = cell(g.map).words.get(sector);
    let counted = cell(g.count).words.get(block_of(old));
    suppose(any([is_none(old), n(1).at_most(counted)]));
    for (place, up) in [(place, true), (old, false)] {
        let block = block_of(place);
        let have = cell(g.count).words.get(block);
        let new = if up {
            have.plus(n(1))
        } else {
            have.minus(n(1))
        };
        change(g.count, |cell| {
            cell.words.set(block, choice(is_none(place), have, new));
        });
    }
}

/// A block's use changes: so does the number of spare ones, which is not zero if there is one, and
/// not all if there is another.
pub fn use_is_set(block: Term, what: Term) {
    let view = View::now();
    let spare = [Free, Erasing, Erasable, Invalid];
    let is = any(spare.map(|use_| what.equal(use_.number::<Word>().0)));
    let was = view.used_as(block, &spare);
    let have = view.ghost.spare;
    suppose(all([
        any([not(was), n(1).at_most(have)]),
        any([was, have.below(n(SMALL.blocks))]),
    ]));
    let one = |is: Term| choice(is, n(1), n(0));
    let change = one(is).minus(one(was));
    with_ghost(|g| g.spare = g.spare.plus(change));
}

/// Conditions that every change of the flash memory keeps, for any state after a crash.
pub fn happens(event: &Event) {
    match *event {
        Event::Program { at, page } => program(at, page),
        Event::Erase { block } => {
            needs_nothing(&View::now(), block);
            let g = ghost();
            let unknown = Word::bits("interrupted erase", 5).0;
            suppose(unknown.at_most(n(SMALL.pages)));
            change(g.fill, |cell| cell.words.set(block, unknown));
            reached("erase");
        }
        Event::Erased { block } => change(ghost().fill, |cell| cell.words.set(block, n(0))),
        Event::Sync => {
            let g = ghost();
            if g.committing {
                let view = View::now();
                let sector = any_sector();
                let same = view.map.get(sector).equal(view.replay.get(sector));
                prove("what is committed is not what the map says", same);
                let replay = cell(g.replay).words;
                change(g.stable, |cell| cell.words = replay);
                with_ghost(|g| {
                    g.flushed = g.number;
                    g.committing = false;
                });
                reached("commit");
            }
            if g.root_waiting {
                let directory = cell(g.directory).words;
                change(g.rooted, |cell| cell.words = directory);
                let tables = cell(g.tables_next).words;
                change(g.tables, |cell| cell.words = tables);
                with_ghost(|g| {
                    (g.durable_from, g.anchor) = (g.from, g.root_at);
                    g.root_page = g.root_page_waiting;
                });
            }
            with_ghost(|g| {
                g.delta_durable = g.delta;
                (g.maps_waiting, g.root_waiting) = (false, false);
            });
        }
        // Pages that did not fail may be durable, or not: nothing is assumed.
        Event::Failed => {}
    }
}

pub fn any_sector() -> Term {
    let sector = unknown("any sector", 32).widened();
    suppose(sector.below(n(SECTORS)));
    any_more(sector);
    sector
}

pub fn any_block() -> Term {
    let block = unknown("any block", 32).widened();
    suppose(block.below(n(SMALL.blocks)));
    block
}

/// Nothing that recovery reads, or that the map names, lies in the block.
fn needs_nothing(view: &View, block: Term) {
    let other = all([
        view.used_as(block, &[Anchor]),
        differ(block, view.ghost.anchor),
    ]);
    prove(
        "a block is erased that is not erasable, nor an anchor without the newest root",
        any([view.used_as(block, &[Erasable]), other]),
    );
    let sector = any_sector();
    let in_block = |place: Term| all([not(is_none(place)), block_of(place).equal(block)]);
    prove(
        "an erase takes a committed sector",
        not(in_block(view.stable.get(sector))),
    );
    prove(
        "an erase takes a sector",
        not(in_block(view.map.get(sector))),
    );
    let of_page = |at: Term| SMALL.block_of_page(Word(at)).0.equal(block);
    let number = Word::any("any data page").0;
    let g = &view.ghost;
    let needed = all([g.covered.below(number), number.at_most(g.number)]);
    let taken = all([needed, of_page(view.log.get(number))]);
    prove(
        "an erase takes a data page that no delta page says",
        not(taken),
    );
    let number = Word::any("any delta page").0;
    let needed = all([g.durable_from.at_most(number), number.below(g.delta)]);
    let taken = all([needed, of_page(view.deltas.get(number))]);
    prove("an erase takes a delta page", not(taken));
    let index = Word::bits("any map page", 32).0;
    suppose(index.below(n(limits().map_pages)));
    let root = view.rooted.get(index);
    prove(
        "an erase takes a map page",
        not(all([not(is_none(root)), of_page(root)])),
    );
    let index = any_table();
    let taken = all([is_table(g, index), of_page(view.tables.get(index))]);
    prove(
        "an erase takes a page of directory or block table",
        not(taken),
    );
}

/// A page goes to the next place of an open block, where nothing lay; if it is one of a log, it has
/// the next number. It commits only where that is meant, and last.
fn program(at: Term, page: &Page) {
    let g = ghost();
    let view = View::now();
    let (block, index) = (
        SMALL.block_of_page(Word(at)).0,
        SMALL.index_of_page(Word(at)).0,
    );
    prove(
        "a page is programmed outside",
        all([block.below(n(SMALL.blocks)), index.below(n(SMALL.pages))]),
    );
    prove(
        "a page is not the next of its block",
        view.fill.get(block).equal(index),
    );
    change(g.fill, |cell| cell.words.set(block, index.plus(n(1))));
    if let Seal::By(by, _) = cell(page.0).seal
        && by.as_number() == Some(ROOT_SEAL)
    {
        return root(&view, at, page);
    }
    prove(
        "a page goes to a block that is not open",
        view.used_as(block, &[Open]),
    );
    let Some(tag) = Tag::read(&SMALL, Word(g.volume), Word(at), page) else {
        prove("a page without a tag is programmed", truth(false));
        return;
    };
    let holds = if tag.is(tag::DATA) || tag.is(tag::TRIM) || tag.is(tag::SUMMARY) {
        PAGES_OF_DATA
    } else if tag.is(tag::DELTA) {
        PAGES_OF_DELTAS
    } else {
        PAGES_OF_MAPS
    };
    let first = index.equal(n(0));
    let same = view.holds.get(block).equal(n(holds));
    prove("a block holds pages of two streams", any([first, same]));
    change(g.holds, |cell| cell.words.set(block, n(holds)));
    prove(
        "a page is of another mount",
        tag.incarnation.0.equal(g.incarnation),
    );
    prove(
        "a page says that more is durable than is",
        tag.flushed.0.at_most(g.flushed),
    );
    if tag.is(tag::SUMMARY) {
        prove(
            "a summary lies among data",
            n(SMALL.data_pages()).at_most(index),
        );
    } else if let Some(failed) = &g.failed {
        repeated(at, page, &tag, failed);
    } else if tag.is(tag::DATA) || tag.is(tag::TRIM) {
        data_page(at, page, &tag);
    } else {
        prove(
            "metadata is written before it is committed",
            g.flushed.equal(g.number),
        );
        prove("metadata is written before the sync", truth(!g.committing));
        if !tag.is(tag::DELTA) {
            with_ghost(|g| g.maps_waiting = true);
            let directory = tag.is(tag::DIRECTORY);
            if directory || tag.is(tag::TABLE) {
                let index = table_index(directory, tag.number.0);
                change(g.tables_next, |cell| cell.words.set(index, at));
            }
        } else {
            prove(
                "a delta page's number is not the next",
                tag.number.0.equal(g.delta),
            );
            change(g.deltas, |cell| cell.words.set(g.delta, at));
            with_ghost(|g| g.delta = g.delta.plus(n(1)));
        }
    }
}

/// A root goes to an anchor, and all that it names is durable.
fn root(view: &View, at: Term, page: &Page) {
    let g = &view.ghost;
    let block = SMALL.block_of_page(Word(at)).0;
    prove("a root lies elsewhere", view.used_as(block, &[Anchor]));
    let Some(tag) = Tag::read(&SMALL, Word::of(ROOT_SEAL), Word(at), page) else {
        return prove("a root without a tag is programmed", truth(false));
    };
    prove("it is no root", tag.kind.0.equal(n(tag::ROOT)));
    prove(
        "a root says that there is no disk",
        page.at(n(0)).equal(n(VERSION)),
    );
    // So the search, which ends at the first damaged page of an anchor, comes to it.
    let behind = at.equal(g.root_page.plus(n(1)));
    let first = SMALL.index_of_page(Word(at)).0.equal(n(0));
    prove(
        "a root lies behind a page that may be none",
        any([first, behind]),
    );
    prove("a root is not the newest", g.root.below(tag.number.0));
    prove(
        "a root is written while another is not durable",
        truth(!g.root_waiting || g.failed.is_some()),
    );
    prove(
        "a root is written whose delta run may not be found",
        not(g.astray),
    );
    prove(
        "a root names pages that are not durable",
        truth(!g.maps_waiting),
    );
    prove(
        "a root names map pages that are not written",
        g.written.equal(n(limits().map_pages)),
    );
    prove(
        "a root's counts are those after a delta page that is not durable",
        page.at(n(10)).below(g.delta_durable),
    );
    prove(
        "replay begins elsewhere",
        all([page.at(n(7)).equal(g.from), g.from.at_most(page.at(n(10)))]),
    );
    with_ghost(|g| {
        g.root_waiting = true;
        g.root = tag.number.0;
        g.root_at = block;
        g.root_page_waiting = at;
    });
    reached("root");
}

/// A page that failed is programmed as it was; its former content lies here. Later uses of it concern the place
/// alone.
fn repeated(at: Term, page: &Page, tag: &Tag<Word>, failed: &Returned) {
    let g = ghost();
    let (was, is) = (cell(failed.page), cell(page.0));
    let word = Word::bits("any word of the page", 6).0;
    let (next, seal) = (
        SMALL.page_words + 3,
        SMALL.page_words + SMALL.spare_words - 1,
    );
    prove(
        "a page that failed is programmed as another",
        implies(
            all([word.below(n(seal)), differ(word, n(next))]),
            is.words.get(word).equal(was.words.get(word)),
        ),
    );
    for slot in 0..SMALL.sectors {
        let same = is.slots.get(n(slot)).equal(was.slots.get(n(slot)));
        prove("a sector of a page that failed is another", same);
    }
    if tag.is(tag::DATA) || tag.is(tag::TRIM) {
        let index = SMALL.index_of_page(Word(at)).0;
        prove(
            "a data page lies where summaries do",
            index.below(n(SMALL.data_pages())),
        );
        change(g.log, |cell| cell.words.set(tag.number.0, at));
        if tag.is(tag::DATA) {
            let first = SMALL.place(Word(at), 0).0;
            for slot in 0..SMALL.sectors {
                let old = SMALL.place(Word(failed.at), slot).0;
                for table in [g.listed, g.data] {
                    let lay = cell(table).words.get(old);
                    change(table, |cell| cell.words.set(first.plus(n(slot)), lay));
                }
            }
            // Replaying the page leads here, where it led to its old place.
            let (before, old) = (cell(g.replay).words, failed.at);
            change(g.replay, |cell| {
                cell.words.set_where(move |sector| {
                    let place = Word(before.get(sector));
                    let here = SMALL.page_of(place).0.equal(old);
                    (here, first.plus(SMALL.slot_of(place).0))
                });
            });
        }
    } else if tag.is(tag::DELTA) {
        change(g.deltas, |cell| cell.words.set(tag.number.0, at));
        with_ghost(|g| g.astray = any([g.astray, g.from.at_most(tag.number.0)]));
    } else {
        with_ghost(|g| g.maps_waiting = true);
        let directory = tag.is(tag::DIRECTORY);
        if directory || tag.is(tag::TABLE) {
            let (index, old) = (table_index(directory, tag.number.0), failed.at);
            let before = cell(g.tables_next).words;
            change(g.tables_next, |cell| {
                cell.words.set_where(move |page| {
                    let lay = before.get(page).equal(old);
                    (all([page.equal(index), lay]), at)
                });
            });
        }
        return reached("repeated");
    }
    with_ghost(|g| g.elsewhere = true);
    reached("repeated");
}

fn data_page(at: Term, page: &Page, tag: &Tag<Word>) {
    let g = ghost();
    prove(
        "a data page's number is not the next",
        tag.number.0.equal(g.number.plus(n(1))),
    );
    prove(
        "a data page follows the one that commits",
        truth(!g.committing),
    );
    let index = SMALL.index_of_page(Word(at)).0;
    prove(
        "a data page lies where summaries do",
        index.below(n(SMALL.data_pages())),
    );
    change(g.log, |cell| cell.words.set(tag.number.0, at));
    with_ghost(|g| g.number = g.number.plus(n(1)));
    if tag.is(tag::DATA) {
        for slot in 0..SMALL.sectors {
            let place = SMALL.place(Word(at), slot).0;
            let listed = tag::sector(&SMALL, page, slot).0;
            let sector = choice(n(slot).below(tag.count.0), listed, n(NONE));
            prove(
                "a page lists a sector beyond the disk",
                any([is_none(sector), sector.below(n(SECTORS))]),
            );
            change(g.listed, |cell| cell.words.set(place, sector));
            change(g.data, |cell| cell.words.set(place, page.sector(slot)));
            change(g.replay, |cell| {
                cell.words
                    .set_where(move |x| (all([not(is_none(sector)), x.equal(sector)]), place));
            });
        }
    }
    if tag.is(tag::TRIM) {
        trim_page(page, tag.count.0);
    }
    if tag.commits() {
        prove("a page commits that must not", truth(g.may_commit));
        with_ghost(|g| g.committing = true);
    } else {
        prove(
            "a page has a flag that nobody knows",
            tag.flags.0.equal(n(0)),
        );
    }
}

/// Replay forgets the sectors of its ranges, which recovery has to accept.
fn trim_page(page: &Page, count: Term) {
    let g = ghost();
    let words = cell(page.0).words;
    prove(
        "a page has more ranges than room",
        count.at_most(n(SMALL.page_words)),
    );
    let index = Word::bits("any range", 32).0;
    prove(
        "a page says a range that recovery refuses",
        implies(index.below(count), is_range(words.get(index))),
    );
    // The range of the page that has a sector, if one has.
    let chosen = fresh("range that trims");
    let from = g.ranges_said;
    change(g.replay, |cell| {
        cell.words.set_where(move |sector| {
            let index = value(&chosen, 32, &[sector.part(0, SECTORS.ilog2())]);
            let says = in_range(&words, count, index, sector);
            if let Some(ranges) = &g.ranges {
                let expected = (ranges.of)(sector);
                let here = expected.minus(from);
                suppose((ranges.fact)(expected, sector));
                suppose((ranges.fact)(from.plus(index), sector));
                let said = all([
                    from.at_most(expected),
                    in_range(&words, count, here, sector),
                ]);
                suppose(implies(said, says));
            }
            (says, n(NONE))
        });
    });
    with_ghost(|g| g.ranges_said = from.plus(count));
}
