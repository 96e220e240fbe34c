//! Pages that came back from a sync: each kind goes to a fresh place, as it was, and references to its place follow.

use crate::blocks::BlockUse;
use crate::checkpoint::Phase;
use crate::ftl::{DELTA, HOST, MAPS};
use crate::limits::ANCHORS;
use crate::obligation;
use crate::shape::NONE;
use crate::state::{
    Begin, Returned, SMALL, State, View, any_sector, chosen, ghost, limits, with_ghost,
};
use crate::sym::{Memory, Page, Queue, Seal, cell, change, differ, found, look_at, n, programs};
use crate::tag;
use smt::explore::{assume, prove, reached};
use smt::term::{Term, all, any, choice, implies, truth};
use smt::word::Word;

use BlockUse::{Bad, Delta, Invalid, Map, Used};

const MAGIC: u64 = 0x5346;

/// A page of this kind that was programmed since the last sync, in a block that is given up; its number.
fn returned(kind: u64, entries: Word, uses: &[BlockUse]) -> (Word, Page, Word) {
    let g = ghost();
    let view = View::now();
    let at = Word::bits("place that failed", 13);
    let index = SMALL.index_of_page(at).0;
    let block = SMALL.block_of_page(at).0;
    let number = Word::bits("its number", 62);
    let flags = Word::bits("its flags", 1).0;
    assume(all([
        view.used_as(block, uses),
        index.below(view.fill.get(block)),
        index.below(n(SMALL.pages)),
    ]));
    // No other pages than roots lie in anchors.
    assume(all(
        (0..ANCHORS).map(|anchor| view.used_as(n(anchor), &[BlockUse::Anchor]))
    ));
    let page = Page::medium(at.0);
    let head = n((MAGIC << 16) + (kind << 8)).plus(flags).raised(32);
    let words = [
        head.filled(g.incarnation),
        number.0,
        Word::bits("commit that it knows", 62).0,
        Word::any("blocks that it announces").0,
        entries.0,
    ];
    assume(words[2].at_most(g.flushed));
    change(page.0, |cell| {
        for (at, word) in (SMALL.page_words..).zip(words) {
            cell.words.set(n(at), word);
        }
        cell.seal = Seal::By(g.volume, at.0);
    });
    with_ghost(|g| {
        g.failed = Some(Returned {
            at: at.0,
            page: page.clone().0,
        })
    });
    (at, page, number)
}

fn entries() -> Word {
    Word::bits("its entries", 32)
}

/// It is a page of the data log, not yet committed.
fn of_data_log(at: Word, number: Word) {
    let (g, view) = (ghost(), View::now());
    let block = SMALL.block_of_page(at).0;
    assume(all([
        g.flushed.below(number.0),
        number.0.at_most(g.number),
        view.log.get(number.0).equal(at.0),
        SMALL.index_of_page(at).0.below(n(SMALL.data_pages())),
        view.holds.get(block).equal(n(crate::view::PAGES_OF_DATA)),
    ]));
}

fn data() {
    let most = if smt::run::is_long() { 2 } else { 1 };
    for count in 1..=most {
        let name =
            format!("failure: a data page of {count} sectors lies elsewhere, and they follow");
        obligation(&name, &["repeated", "follows", "newer"], || {
            let begin = Begin {
                open: [1, 0, 0, 0],
                moved: 1,
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(HOST);
            let (at, page, number) = returned(tag::DATA, Word::of(count), &[Used, Invalid, Bad]);
            of_data_log(at, number);
            let view = View::now();
            for slot in 0..SMALL.sectors {
                let listed = view.listed.get(SMALL.place(at, slot).0);
                let none = listed.equal(n(NONE));
                let sector = listed.below(n(crate::state::SECTORS));
                assume(if slot < count {
                    any([none, sector])
                } else {
                    none
                });
            }
            let was = View::now();
            // One pair waits (any number: `amend`).
            let (pairs, pair) = (state.ftl.pairs.0, Word::any("pair that waits").0);
            change(pairs, |cell| {
                (cell.words, cell.length) = (Memory::of(move |_| pair), n(1));
            });
            look_at(n(0));
            let mut fresh = [Some(0), None, None, None];
            let result = state.ftl.again(at, page, &mut fresh);
            prove(
                "a page cannot be programmed once more",
                truth(result.is_ok()),
            );
            let Some(new) = elsewhere(at) else {
                return;
            };
            let mut expected = pair;
            for slot in 0..count {
                let [old, new] = [at.0, new].map(|at| SMALL.place(Word(at), slot).0);
                let sector = was.listed.get(old);
                let here = sector.below(n(crate::state::SECTORS));
                let moved = all([here, was.map.get(sector).equal(old)]);
                let of = |place: Term| sector.part(0, 32).widened().raised(32).filled(place);
                let its = all([moved, pair.equal(of(old))]);
                expected = choice(its, of(new), expected);
            }
            let waits = cell(pairs).words.get(n(0));
            prove("the pair that waits does not follow", waits.equal(expected));
            is_elsewhere();
            // The sectors of the failed page are at the new place; no other sector moves, and none is left.
            let (sector, view) = (any_sector(), View::now());
            let (before, now) = (was.map.get(sector), view.map.get(sector));
            let of = |place: Term| SMALL.page_of(Word(place)).0;
            let lay = all([differ(before, n(NONE)), of(before).equal(at.0)]);
            let there = SMALL
                .place(Word(new), 0)
                .0
                .plus(SMALL.slot_of(Word(before)).0);
            prove(
                "the map does not follow",
                now.equal(choice(lay, there, before)),
            );
            // The result of replay follows, too.
            let replayed = |view: &View| view.map.get(sector).equal(view.replay.get(sector));
            let same = implies(replayed(&was), replayed(&view));
            prove("replay does not follow", same);
            holds(&state);
            if smt::explore::branch(lay) {
                reached("follows");
            } else {
                reached("newer");
            }
        });
    }
}

/// It goes once to one place, in another block.
fn elsewhere(at: Word) -> Option<Term> {
    let made = programs();
    prove("one page is one", truth(made.len() == 1));
    let (new, _) = made.first()?;
    let blocks = [at, Word(*new)].map(|at| SMALL.block_of_page(at).0);
    prove(
        "it goes to the block that failed",
        differ(blocks[0], blocks[1]),
    );
    Some(*new)
}

/// A mount may not look there.
fn is_elsewhere() {
    prove("it counts as found", truth(ghost().elsewhere));
}

fn holds(state: &State) {
    state.check();
    state.check_contents(None);
    state.check_stable();
}

fn trims() {
    obligation(
        "failure: a page of trims lies elsewhere, and nothing else changes",
        &["repeated", "done"],
        || {
            let mut state = State::any(Begin::default()).with_room(HOST);
            let (at, page, number) = returned(tag::TRIM, entries(), &[Used, Invalid, Bad]);
            of_data_log(at, number);
            let mut fresh = [Some(0), None, None, None];
            let result = state.ftl.again(at, page, &mut fresh);
            prove(
                "a page cannot be programmed once more",
                truth(result.is_ok()),
            );
            let (sector, view) = (any_sector(), View::now());
            let same = view.map.get(sector).equal(state.before.map.get(sector));
            prove("the map changes", same);
            let Some(new) = elsewhere(at) else {
                return;
            };
            prove(
                "the log is not continued here",
                view.log.get(number.0).equal(new),
            );
            is_elsewhere();
            holds(&state);
            reached("done");
        },
    );
}

fn deltas() {
    obligation(
        "failure: a delta page lies elsewhere, and counts as astray",
        &["repeated", "done"],
        || {
            let begin = Begin {
                open: [0, 0, 1, 0],
                phase: Phase::Maps,
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(DELTA);
            let (at, page, number) = returned(tag::DELTA, entries(), &[Delta]);
            let g = ghost();
            assume(all([
                g.durable_from.at_most(number.0),
                number.0.below(g.delta),
                View::now().deltas.get(number.0).equal(at.0),
            ]));
            let mut fresh = [None, None, Some(0), None];
            let result = state.ftl.again(at, page, &mut fresh);
            prove(
                "a page cannot be programmed once more",
                truth(result.is_ok()),
            );
            let Some(new) = elsewhere(at) else {
                return;
            };
            let found = View::now().deltas.get(number.0);
            prove("the log is not continued here", found.equal(new));
            let needed = g.from.at_most(number.0);
            let g = ghost();
            prove("it counts as found", g.astray.equal(needed));
            is_elsewhere();
            holds(&state);
            reached("done");
        },
    );
}

/// Map pages, directories and tables.
fn checkpoint() {
    obligation(
        "failure: a map page lies elsewhere, and the directory names it",
        &["repeated", "named", "not named"],
        || {
            let begin = Begin {
                open: [0, 0, 0, 1],
                phase: Phase::Maps,
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(MAPS);
            let (at, page, number) = returned(tag::MAP, entries(), &[Map]);
            assume(number.0.below(n(limits().map_pages)));
            let was = View::now().directory;
            let mut fresh = [None, None, None, Some(0)];
            let result = state.ftl.again(at, page, &mut fresh);
            prove(
                "a page cannot be programmed once more",
                truth(result.is_ok()),
            );
            let Some(new) = elsewhere(at) else {
                return;
            };
            let index = Word::bits("any map page", 32).0;
            assume(index.below(n(limits().map_pages)));
            let named = was.get(number.0).equal(at.0);
            let its = all([named, index.equal(number.0)]);
            prove(
                "the directory does not follow",
                View::now()
                    .directory
                    .get(index)
                    .equal(choice(its, new, was.get(index))),
            );
            prove("it counts as durable", truth(ghost().maps_waiting));
            holds(&state);
            reached(if smt::explore::branch(named) {
                "named"
            } else {
                "not named"
            });
        },
    );
    for (what, kind) in [("directory", tag::DIRECTORY), ("table", tag::TABLE)] {
        let name =
            format!("failure: a page of the {what} lies elsewhere, and the root will name it");
        obligation(&name, &["repeated", "named", "not named"], || {
            let begin = Begin {
                open: [0, 0, 0, 1],
                phase: Phase::Named,
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(MAPS);
            let (at, page, number) = returned(kind, entries(), &[Map]);
            let c = &state.ftl.checkpoint;
            let lists = [c.directories.0, c.tables.0];
            let was = lists.map(cell);
            let mut fresh = [None, None, None, Some(0)];
            let result = state.ftl.again(at, page, &mut fresh);
            prove(
                "a page cannot be programmed once more",
                truth(result.is_ok()),
            );
            let Some(new) = elsewhere(at) else {
                return;
            };
            let index = Word::bits("any page of it", 32).0;
            let its = usize::from(kind == tag::TABLE);
            let mut named = truth(false);
            for (i, (was, now)) in was.iter().zip(lists.map(cell)).enumerate() {
                let before = was.words.get(index);
                let here = all([
                    truth(i == its),
                    index.below(was.length),
                    index.equal(number.0),
                    before.equal(at.0),
                ]);
                let right = [
                    now.length.equal(was.length),
                    now.words.get(index).equal(choice(here, new, before)),
                ];
                prove("the list does not follow", all(right));
                named = any([named, here]);
            }
            holds(&state);
            reached(if smt::explore::branch(named) {
                "named"
            } else {
                "not named"
            });
        });
    }
}

fn summary() {
    obligation(
        "failure: a block's list is given up, and nothing changes",
        &["done"],
        || {
            let mut state = State::any(Begin::default());
            let (at, page, _) = returned(tag::SUMMARY, entries(), &[Used, Invalid, Bad]);
            let result = state.ftl.again(at, page, &mut [None; 4]);
            prove("a list cannot be given up", truth(result.is_ok()));
            prove(
                "a list is programmed once more",
                truth(programs().is_empty()),
            );
            holds(&state);
            reached("done");
        },
    );
}

/// Failed while it was to become durable; other anchors may have failed before.
fn root() {
    obligation(
        "failure: a root is written anew, in another anchor, and the durable one stays",
        &["erase", "root", "worn out"],
        || {
            let mut state = crate::roots::state();
            let g = ghost();
            let c = &mut state.ftl.checkpoint;
            c.directories = Queue::new(Memory::any("directory page", 32), n(2));
            c.tables = Queue::new(Memory::any("table page", 32), n(1));
            let at = SMALL.page_at(c.anchor, Word::bits("page that failed", 4));
            assume(all([
                g.written.equal(n(limits().map_pages)),
                c.counted.0.below(g.delta_durable),
                g.from.at_most(c.counted.0),
            ]));
            let failed = Page::any("root that failed");
            with_ghost(|g| {
                g.root_waiting = true;
                g.failed = Some(Returned {
                    at: at.0,
                    page: failed.0,
                });
            });
            let anchor = c.anchor;
            change(state.ftl.blocks.failing.0, |cell| {
                cell.words = Memory::any("failing anchor", 32);
                cell.words.set(anchor.0, n(1));
            });
            if state.ftl.again(at, failed, &mut [None; 4]).is_err() {
                return reached("worn out");
            }
            let Some(new) = elsewhere(at) else {
                return;
            };
            let block = SMALL.block_of_page(Word(new)).0;
            prove(
                "it goes to the durable root's anchor",
                differ(block, g.anchor),
            );
            let c = &state.ftl.checkpoint;
            prove("the anchor is another one", c.anchor.0.equal(block));
            state.check_stable();
        },
    );
}

/// The place where they go: the block has room, for any fresh block. In the quick tier the block announced first is the
/// one that is opened (`open` is shown with `stream`).
fn refuge() {
    let long = smt::run::is_long();
    let streams = [("data", HOST), ("delta", DELTA), ("map", MAPS)];
    for (name, stream) in streams.into_iter().take(if long { 3 } else { 2 }) {
        let name = format!("failure: there is a place with room for {name} pages");
        let labels = ["first", "room", "full", "waits"];
        obligation(&name, &labels, || {
            let mut open = [0; 4];
            open[stream] = 1;
            let begin = Begin {
                open,
                ..Begin::default()
            };
            let mut state = State::any(begin);
            crate::sym::no_proposals();
            let s = &mut state.ftl.streams[stream];
            if !long || chosen("all are open") {
                s.width = 1;
            }
            if !long {
                assume(View::now().used_as(s.next[0].0, &[BlockUse::Next]));
                assume(s.next[0].0.below(n(SMALL.blocks)));
            }
            let full = s.open[0].page.0.equal(n(s.pages));
            let fresh = chosen("there is a fresh one").then_some(0);
            let Ok(index) = state.ftl.refuge(stream, fresh) else {
                return;
            };
            let s = &state.ftl.streams[stream];
            prove("no room", s.open[index].page.0.below(n(s.pages)));
            holds(&state);
            reached(match fresh {
                None => "first",
                Some(_) if smt::explore::branch(full) => "full",
                Some(_) => "room",
            });
        });
    }
}

/// Of all pairs, the one is changed, if it waits.
fn amend() {
    obligation(
        "failure: the pair of a sector that moved is changed, and no other",
        &["changed", "none"],
        || {
            let mut state = State::any(Begin::default());
            let (old, new) = (Word::any("old pair"), Word::any("new pair"));
            let list = state.ftl.pairs.0;
            let (was, index) = (cell(list), Word::bits("any pair", 40).0);
            assume(index.below(was.length));
            look_at(index);
            state.ftl.amend(old, new);
            let now = cell(list);
            prove("a pair is lost", now.length.equal(was.length));
            let before = was.words.get(index);
            let it = before.equal(old.0);
            match found() {
                // A place is programmed once: its pair is there once.
                Some(at) => {
                    assume(implies(it, index.equal(at)));
                    reached("changed");
                }
                None => reached("none"),
            }
            let expected = choice(it, new.0, before);
            prove(
                "a pair is another one",
                now.words.get(index).equal(expected),
            );
        },
    );
}

pub fn obligations() {
    data();
    trims();
    deltas();
    checkpoint();
    summary();
    root();
    refuge();
    amend();
}
