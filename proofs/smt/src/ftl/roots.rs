//! The checkpoint's order: slices, tables, root, each durable before it is named; content of tables and root.

use crate::blocks::BlockUse;
use crate::checkpoint::{Phase, ROOT_SEAL, ROOT_WORDS};
use crate::ftl::{DELTA, MAPS};
use crate::limits::{ANCHORS, pair_capacity};
use crate::obligation;
use crate::platform::{Page as _, Platform as _, Word as _};
use crate::recover::check_root;
use crate::shape::NONE;
use crate::state::{Begin, PAGES_OF_MAPS, SMALL, State, View, ghost, is_none, limits, with_ghost};
use crate::sym::{
    Memory, Page, Queue, Seal, Table, cell, change, differ, loop_shown, n, no_proposals, programs,
    value,
};
use crate::tag::{self, Tag};
use smt::explore::{assume, prove, reached, suppose};
use smt::term::{Term, all, any, implies, truth};
use smt::word::Word;

/// Blocks that the block table speaks of, none of them failing (any entry: `entry`), and map pages that the
/// directory names: the solver reads each.
const TABLED: u64 = 4;
const NAMED: u64 = 5;

/// A checkpoint is due its tables: all map pages are written, and nothing is uncommitted.
pub fn state() -> State {
    let begin = Begin {
        committed: true,
        phase: Phase::Maps,
        open: [1, 0, 1, 1],
        ..Begin::default()
    };
    let mut state = State::any(begin).with_room(DELTA).with_pages(MAPS, 2);
    few(&mut state);
    state
}

/// Its tables and the pairs that wait are few; old blocks are given back when a root is durable, which lies after the
/// last one.
pub fn few(state: &mut State) {
    no_proposals();
    state.ftl.shape.blocks = TABLED;
    state.ftl.limits.map_pages = NAMED;
    with_ghost(|g| g.tables_of = [1, 1]);
    change(state.ftl.blocks.failing.0, |cell| {
        cell.words = Memory::of(|_| n(0))
    });
    let view = View::now();
    assume(all(
        (0..ANCHORS).map(|anchor| view.used_as(n(anchor), &[BlockUse::Anchor]))
    ));
    assume(state.ftl.incarnation.0.below(n(NONE)));
    assume(
        cell(state.ftl.pairs.0)
            .length
            .at_most(n(pair_capacity(&SMALL))),
    );
    loop_shown("pairs of a page", |_| {});
    loop_shown("delta and map blocks", |_| {
        let g = ghost();
        let durable = truth(!g.root_waiting && !g.maps_waiting);
        prove(
            "old blocks are given back before the root is durable",
            all([durable, g.durable_from.equal(g.from)]),
        );
        reached("released");
    });
    let (anchor, page) = (
        state.ftl.checkpoint.anchor.0,
        state.ftl.checkpoint.anchor_page.0,
    );
    assume(all([
        n(1).at_most(page),
        page.below(n(SMALL.pages)),
        view.fill.get(anchor).equal(page),
    ]));
    with_ghost(|g| g.root_page = SMALL.page_at(Word(anchor), Word(page)).0.minus(n(1)));
}

/// The map pages of a whole checkpoint, a new one or the rest of one under way, lie in its blocks; each is as `checkpoint: a map page` has it.
pub fn all_maps(begins: bool) {
    loop_shown("map pages", move |_| {
        with_ghost(|g| {
            if begins {
                (g.from, g.cycle) = (g.delta, g.cycle.plus(n(1)));
            }
            g.written = n(limits().map_pages);
            g.maps_waiting = true;
        });
        let view = View::now();
        change(view.ghost.directory, |cell| {
            cell.words = Memory::of(move |index| {
                let at = value("place of a map page", 32, &[index]);
                let here = [
                    view.is_page(at, &[BlockUse::Open, BlockUse::Map], PAGES_OF_MAPS),
                    view.ghost.cycle.at_most(view.page_age(at)),
                ];
                suppose(any([is_none(at), all(here)]));
                at
            });
        });
    });
}

/// Content of directory, table and root, as recovery reads them.
fn says(state: &State) {
    let ftl = &state.ftl;
    let made = programs();
    let of_kind = |kind: u64, volume: Word| -> Vec<(Term, Tag<Word>, &Page)> {
        let tagged = made.iter().filter_map(|(at, page)| {
            let Seal::By(by, _) = cell(page.0).seal else {
                return None;
            };
            (by == volume.0).then(|| (*at, Tag::read(&SMALL, volume, Word(*at), page), page))
        });
        tagged
            .filter_map(|(at, tag, page)| tag.filter(|tag| tag.is(kind)).map(|tag| (at, tag, page)))
            .collect()
    };
    let directories = of_kind(tag::DIRECTORY, ftl.volume);
    let tables = of_kind(tag::TABLE, ftl.volume);
    let index = crate::state::any_table();
    let next = View::now().tables_next.get(index);
    let written = directories.iter().chain(&tables);
    let written = smt::term::any(written.map(|(at, ..)| at.equal(next)));
    let is_one = crate::state::is_table(&ghost(), index);
    prove(
        "a page of the tables is not known",
        implies(is_one, written),
    );
    prove(
        "a page of directory or table is missing",
        truth(directories.len() == 1 && tables.len() == 1),
    );
    let directory = View::now().directory;
    for (_, tag, page) in &directories {
        prove("a directory has another number", tag.number.0.equal(n(0)));
        for entry in 0..SMALL.page_words * 2 {
            let said = tag::half(page.word(Word::of(entry / 2)), entry);
            let expected = if entry < NAMED {
                directory.get(n(entry))
            } else {
                n(NONE)
            };
            prove(
                "the directory names another map page",
                said.0.equal(expected),
            );
        }
    }
    for (_, tag, page) in &tables {
        prove("a table has another number", tag.number.0.equal(n(0)));
        for block in 0..TABLED {
            let said = page.at(n(block));
            prove(
                "an entry of the block table is another one",
                said.equal(ftl.table_entry(Word::of(block)).0),
            );
        }
    }
    let roots = of_kind(tag::ROOT, Word::of(ROOT_SEAL));
    let Some((_, _, root)) = roots.last() else {
        return prove("no root is written", truth(false));
    };
    let word = |at: u64| root.word(Word::of(at));
    let sound = check_root::<Word, ()>(&ftl.shape, &word);
    prove("its own geometry is refused", truth(sound.is_ok()));
    let c = &ftl.checkpoint;
    let expected = [
        (word(1), ftl.volume),
        (word(5), Word::of(ftl.limits.sectors)),
        (word(6).low(), Word::of(ftl.limits.epoch)),
        (word(6).high(), Word::of(ftl.limits.delta_pages)),
        (word(7), c.from.number),
        (word(8).high(), c.from.block),
        (word(8).low(), c.from.page),
        (word(9).low(), c.from.next[0]),
        (word(9).high(), c.from.next[1]),
        (word(10), c.counted),
        (word(11).high(), Word::of(directories.len() as u64)),
        (word(11).low(), Word::of(tables.len() as u64)),
    ];
    for (found, expected) in expected {
        prove(
            "a word of the root is another one",
            found.0.equal(expected.0),
        );
    }
    for (at, (place, _, _)) in (0..).zip(directories.iter().chain(&tables)) {
        let listed = tag::half(word(ROOT_WORDS + at / 2), at);
        prove("the root names another page", listed.0.equal(*place));
    }
}

/// Recovery reads the root, and has directory and block table as they were.
fn read_back(state: &mut State) {
    let made = programs();
    let Some((_, root)) = made.last() else {
        return prove("no root is written", truth(false));
    };
    let at = |table: &Table, index: u64| cell(table.0).words.get(n(index));
    let tables = |state: &State| {
        let blocks = &state.ftl.blocks;
        let entry = |table| (0..TABLED).map(move |block| at(table, block));
        let named = (0..NAMED).map(|index| at(&state.ftl.directory, index));
        named
            .chain(entry(&blocks.valid))
            .chain(entry(&blocks.erases))
            .chain(entry(&blocks.failing))
            .collect::<Vec<Term>>()
    };
    let written = tables(state);
    let empty = |id: usize, value: u64| {
        change(id, |cell| cell.words = Memory::of(move |_| n(value)));
    };
    let blocks = &state.ftl.blocks;
    empty(state.ftl.directory.0, NONE);
    for table in [&blocks.valid, &blocks.erases, &blocks.failing] {
        empty(table.0, 0);
    }
    // The table has a page of entries, for any blocks.
    state.ftl.shape.blocks = SMALL.blocks;
    let listed = |at: u64| tag::half(root.word(Word::of(ROOT_WORDS)), at);
    let directory = state.ftl.read_directory(0, listed(0));
    let read = directory.and_then(|()| state.ftl.read_table(0, listed(1)));
    prove("its own tables are refused", truth(read.is_ok()));
    let same = written.iter().zip(tables(state));
    prove(
        "directory or block table are read as others",
        all(same.map(|(a, b)| a.equal(b))),
    );
    reached("read back");
}

fn slices() {
    obligation(
        "root: after tables and a sync, and old blocks after another",
        &["root", "released", "done", "read back"],
        || {
            let mut state = state();
            assume(ghost().written.equal(n(limits().map_pages)));
            // Map pages of the last slice may wait.
            with_ghost(|g| g.maps_waiting = true);
            let advance = |state: &mut State| {
                let result = state.ftl.advance_checkpoint();
                prove("a checkpoint cannot go on", truth(result.is_ok()));
            };
            advance(&mut state);
            prove(
                "tables come first",
                truth(state.ftl.checkpoint.phase == Phase::Named),
            );
            let newest = state.ftl.delta.0.minus(n(1));
            prove(
                "the counts are those after another run",
                state.ftl.checkpoint.counted.0.equal(newest),
            );
            let _ = state.ftl.platform.sync();
            advance(&mut state);
            prove(
                "then the root",
                truth(state.ftl.checkpoint.phase == Phase::Rooted),
            );
            says(&state);
            let _ = state.ftl.platform.sync();
            advance(&mut state);
            prove(
                "then nothing",
                truth(state.ftl.checkpoint.phase == Phase::Idle),
            );
            prove(
                "replay begins elsewhere",
                state
                    .ftl
                    .checkpoint
                    .durable_from
                    .0
                    .equal(ghost().durable_from),
            );
            ends(&state);
            read_back(&mut state);
        },
    );
}

/// The newest root is the durable one, and nothing else has changed.
fn ends(state: &State) {
    let anchor = state.ftl.checkpoint.durable_anchor.0;
    prove(
        "the durable root lies elsewhere",
        anchor.equal(ghost().anchor),
    );
    state.check_contents(None);
    state.check_stable();
    reached("done");
}

/// Number of map pages in a slice: never more than are left; each is as `checkpoint: a map page` has it.
fn slice() {
    obligation(
        "slice: as many map pages as are due, and none behind the last",
        &["slice", "due", "any"],
        || {
            let begin = Begin {
                committed: true,
                phase: Phase::Maps,
                open: [1, 0, 1, 1],
                ..Begin::default()
            };
            let mut state = State::any(begin);
            let pages = n(state.ftl.limits.map_pages);
            crate::sym::some_number([0, 3, 1 << 20][choose(3)]);
            loop_shown("map pages", move |count| {
                let written = ghost().written;
                prove(
                    "a map page is written behind the last one",
                    all([written.at_most(pages), count.at_most(pages.minus(written))]),
                );
                reached("slice");
            });
            let written = ghost().written;
            match choose(2) {
                0 => {
                    assume(written.below(pages));
                    let result = state.ftl.advance_checkpoint();
                    prove("a slice fails", truth(result.is_ok()));
                    reached("due");
                }
                _ => {
                    let count = [0, 1, u64::MAX][choose(3)];
                    let result = state.ftl.write_maps(count);
                    prove("map pages cannot be written", truth(result.is_ok()));
                    reached("any");
                }
            }
            prove(
                "a slice goes on to another phase",
                truth(state.ftl.checkpoint.phase == Phase::Maps && programs().is_empty()),
            );
            state.check();
            state.check_contents(None);
            state.check_stable();
        },
    );
}

/// A choice of `of` alternatives.
fn choose(of: usize) -> usize {
    (0..of - 1)
        .find(|_| crate::state::chosen("this one"))
        .unwrap_or(of - 1)
}

/// A new one, or the rest of one under way.
fn at_once(name: &str, begins: bool) {
    obligation(name, &["root", "released", "done"], || {
        let mut state = state();
        if !begins {
            assume(ghost().written.at_most(n(NAMED)));
        }
        all_maps(begins);
        let done = if begins {
            matches!(state.ftl.checkpoint_now(), Ok(true))
        } else {
            state.ftl.finish_checkpoint().is_ok()
        };
        prove("a checkpoint fails", truth(done));
        let idle = state.ftl.checkpoint.phase == Phase::Idle;
        prove("a checkpoint has not come to its end", truth(idle));
        says(&state);
        let g = ghost();
        prove("the root is not durable", truth(!g.root_waiting));
        prove(
            "replay begins elsewhere",
            all([
                state.ftl.checkpoint.durable_from.0.equal(g.from),
                g.durable_from.equal(g.from),
            ]),
        );
        ends(&state);
    });
}

/// A full anchor, or one that a crash may have touched.
fn next_anchor() {
    obligation(
        "root: the next anchor is erased, and the newest root is not in it",
        &["erase", "root", "worn out"],
        || {
            let mut state = state();
            state.ftl.checkpoint.anchor_page = Word::of(SMALL.pages);
            // Roots may have failed in others since.
            let current = (0..ANCHORS - 1).find(|_| crate::state::chosen("this anchor"));
            let current = current.unwrap_or(ANCHORS - 1);
            state.ftl.checkpoint.anchor = Word::of(current);
            change(state.ftl.blocks.failing.0, |cell| {
                cell.words = Memory::any("failing anchor", 32)
            });
            let g = ghost();
            let c = &mut state.ftl.checkpoint;
            assume(all([
                g.written.equal(n(limits().map_pages)),
                c.counted.0.below(g.delta_durable),
                g.from.at_most(c.counted.0),
            ]));
            c.directories = Queue::new(Memory::any("directory page", 32), n(2));
            c.tables = Queue::new(Memory::any("table page", 32), n(1));
            if state.ftl.write_root().is_err() {
                return reached("worn out");
            }
            let made = programs();
            let Some((at, _)) = made.first() else {
                return prove("no root is written", truth(false));
            };
            let block = SMALL.block_of_page(Word(*at)).0;
            prove(
                "it is the anchor of the durable root",
                differ(block, g.anchor),
            );
            let failing = cell(state.ftl.blocks.failing.0).words.get(block);
            prove("a failing anchor is used", failing.equal(n(0)));
            prove(
                "the anchor is another one",
                state.ftl.checkpoint.anchor.0.equal(block),
            );
            state.check_stable();
        },
    );
}

fn entry() {
    obligation(
        "root: an entry of the block table is read as it was written",
        &["failing", "whole", "refused"],
        || {
            let mut state = State::any(Begin::default());
            let block = Word(crate::state::any_block());
            let entry = state.ftl.table_entry(block);
            let tables = &state.ftl.blocks;
            let at = |table: &Table| cell(table.0).words.get(block.0);
            let was = (at(&tables.valid), at(&tables.erases), at(&tables.failing));
            // Recovery begins with nothing.
            state.ftl.blocks.failing = Table::new(Memory::of(|_| n(0)), SMALL.blocks);
            state.ftl.blocks.erases = Table::new(Memory::of(|_| n(0)), SMALL.blocks);
            change(state.ftl.blocks.valid.0, |cell| {
                cell.words = Memory::of(|_| n(0))
            });
            let page = Word::bits("page of the table", 13);
            let result = state.ftl.read_entry(block, entry, page);
            prove("its own entry is refused", truth(result.is_ok()));
            let tables = &state.ftl.blocks;
            let failing = at(&tables.failing).equal(n(0));
            prove(
                "an entry is read as another",
                all([
                    at(&tables.valid).equal(was.0),
                    at(&tables.erases).equal(was.1),
                    failing.equal(was.2.equal(n(0))),
                ]),
            );
            reached(if smt::explore::branch(failing) {
                "whole"
            } else {
                "failing"
            });
            // Any other bytes.
            let other = Word::any("any entry");
            match state.ftl.read_entry(block, other, page) {
                Ok(()) => {
                    let valid = cell(state.ftl.blocks.valid.0).words.get(block.0);
                    prove(
                        "a count is larger than a block",
                        valid.at_most(n(SMALL.block_sectors())),
                    );
                }
                Err(_) => reached("refused"),
            }
        },
    );
}

pub fn obligations() {
    slice();
    slices();
    at_once("root: a whole checkpoint keeps to the same order", true);
    at_once(
        "root: the rest of a checkpoint keeps to the same order",
        false,
    );
    next_anchor();
    entry();
}
