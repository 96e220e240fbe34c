//! Delta pages and map pages: they record the committed changes, whole and in order. Moves.

use crate::blocks::BlockUse;
use crate::checkpoint::Phase;
use crate::ftl::{DELTA, HOST, MAPS, Victim};
use crate::limits::{delta_head_words, pair_capacity};
use crate::obligation;
use crate::shape::NONE;
use crate::state::{Begin, SMALL, State, View, check_all, ghost, with_ghost};
use crate::sym::{Memory, Queue, cell, change, last_blank, loop_kept, loop_of, n, programs};
use crate::tag::{self, Tag};
use smt::explore::{assume, prove, reached};
use smt::term::{Term, all, any, choice, implies, not, number, truth};
use smt::word::Word;

fn deltas() {
    obligation(
        "deltas: a run says all pairs, in order, and only what is committed",
        &["pairs of a page", "run", "more"],
        || {
            let begin = Begin {
                committed: true,
                open: [1, 0, 1, 0],
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(DELTA);
            // There are fewer mounts than that.
            assume(state.ftl.incarnation.0.below(n(NONE)));
            let pairs = cell(state.ftl.pairs.0);
            let (head, capacity) = (n(delta_head_words(&SMALL)), n(pair_capacity(&SMALL)));
            let any_index = Word::bits("any pair", 32).0;
            let (number, incarnation) = (state.ftl.number.0, state.ftl.incarnation.0);
            let volume = state.ftl.volume;
            let words = pairs.words.clone();
            loop_kept(
                "pairs of a page",
                || vec![last_blank().0],
                move |page, count| {
                    let (mut filled, words) = (page[0].words.clone(), words.clone());
                    filled.set_where(move |at| {
                        let index = at.minus(head);
                        let here = all([head.at_most(at), index.below(count)]);
                        (here, words.get(index))
                    });
                    vec![(filled, page[0].length)]
                },
            );
            let fits = pairs.length.at_most(capacity);
            // After a full page comes another one, which begins after it: the same once more.
            if !smt::explore::branch(fits) {
                reached("more");
                smt::explore::end_path();
            }
            let result = state.ftl.write_deltas();
            prove("a run cannot be written", truth(result.is_ok()));
            let all_programs = programs();
            prove("a run of one page has one", truth(all_programs.len() == 1));
            let Some((at, page)) = all_programs.into_iter().next() else {
                return;
            };
            let Some(tag) = Tag::read(&SMALL, volume, Word(at), &page) else {
                return prove("a delta page is not sealed", truth(false));
            };
            prove("the run does not commit", tag.flags.0.equal(n(tag::COMMIT)));
            prove("pairs are left out", tag.count.0.equal(pairs.length));
            let said = page
                .at(head.plus(any_index))
                .equal(pairs.words.get(any_index));
            prove(
                "a pair is another one",
                implies(any_index.below(pairs.length), said),
            );
            prove(
                "the run says another data page",
                page.at(n(0)).equal(number),
            );
            prove(
                "the run says another mount",
                page.at(n(1)).equal(incarnation),
            );
            let Ok(found) = state.ftl.read_frontier(&page, Word::of(0)) else {
                return prove("what the run says of the streams is refused", truth(false));
            };
            let next = &state.ftl.streams[HOST].next;
            let same = all((0..2).map(|i| found.next[HOST][i].0.equal(next[i].0)));
            prove("announced blocks are read as others", same);
            let cursor = &state.ftl.streams[HOST].open[0];
            let read = found.heads.first().map_or(truth(false), |head| {
                all([
                    head.block.0.equal(cursor.block.0),
                    head.page.0.equal(cursor.page.0),
                ])
            });
            prove("an open block is read as another", read);
            let none = cell(state.ftl.pairs.0).length.equal(n(0));
            prove("pairs wait that were said", none);
            with_ghost(|g| {
                g.said = g.number;
                g.runs = g.runs.plus(n(1));
            });
            state.check();
            state.check_stable();
            reached("run");
        },
    );
}

fn with_map(f: impl FnOnce(&mut Memory)) {
    change(ghost().map, |cell| f(&mut cell.words));
}

fn load() {
    obligation(
        "map page: what it says is in the map, or it is refused",
        &["loaded", "refused"],
        || {
            let mut state = State::any(Begin::default());
            change(state.ftl.loaded.0, |cell| {
                cell.words = Memory::any("loaded", 32)
            });
            change(state.ftl.directory.0, |cell| {
                cell.words = Memory::any("directory", 32)
            });
            change(state.ftl.map.0, |cell| cell.words = Memory::of(|_| n(NONE)));
            let index = Word::bits("index", 7);
            let at = cell(state.ftl.directory.0).words.get(index.0);
            let bits = SMALL.entry_bits();
            let says = move |sector: Term| {
                let word = crate::sym::Page::medium(at).at(sector.part(1, bits - 1).widened());
                let even = sector.part(0, 1).equal(number(1, 0));
                choice(even, word.part(0, 32).widened(), word.shifted(32))
            };
            let sector = crate::state::any_sector();
            let (entry, before) = (sector, View::now().map);
            loop_of(
                "entries of a map page",
                |_| {},
                move |word| {
                    let here = entry
                        .shifted(1)
                        .equal(index.0.raised(bits - 1).filled(word));
                    let found = View::now().map.get(entry);
                    let expected = choice(here, says(entry), before.get(entry));
                    prove("a step reads another entry", found.equal(expected));
                    let sound = any([found.equal(n(NONE)), crate::recovery::is_place(found)]);
                    prove("a place that is none is read", implies(here, sound));
                },
                move |_| {
                    with_map(move |map| {
                        map.set_where(move |sector| {
                            (sector.shifted(bits).equal(index.0), says(sector))
                        });
                    });
                },
            );
            let Ok(()) = state.ftl.load(index) else {
                return reached("refused");
            };
            let here = all([sector.shifted(bits).equal(index.0), not(at.equal(n(NONE)))]);
            let expected = choice(here, says(sector), n(NONE));
            prove(
                "an entry is another one",
                View::now().map.get(sector).equal(expected),
            );
            reached("loaded");
        },
    );
}

/// The change of the invariants when something becomes durable, or a checkpoint begins.
fn moments() {
    obligation(
        "two phases: behind a sync the runs before it are durable",
        &["done"],
        || {
            let _state = State::any(Begin::default());
            with_ghost(|g| (g.covered, g.durable_runs) = (g.said, g.runs));
            check_all(&View::now());
            reached("done");
        },
    );
    obligation(
        "checkpoint: when all map pages are written and a root is durable, it is the one",
        &["done"],
        || {
            let state = State::any(Begin {
                committed: true,
                phase: Phase::Rooted,
                ..Begin::default()
            });
            assume(ghost().written.equal(n(state.ftl.limits.map_pages)));
            let directory = cell(ghost().directory).words;
            change(ghost().rooted, |cell| cell.words = directory);
            let tables = cell(ghost().tables_next).words;
            change(ghost().tables, |cell| cell.words = tables);
            with_ghost(|g| {
                g.durable_from = g.from;
                (g.rooted_now, g.tables_written) = (true, false);
            });
            check_all(&View::now());
            reached("done");
        },
    );
    obligation(
        "checkpoint: it begins at the end of the delta log, with no map page",
        &["done"],
        || {
            let mut state = State::any(Begin {
                committed: true,
                ..Begin::default()
            });
            state.ftl.begin_checkpoint();
            with_ghost(|g| {
                (g.from, g.cycle, g.written) = (g.delta, g.cycle.plus(n(1)), n(0));
            });
            let (c, g) = (&state.ftl.checkpoint, ghost());
            let same = [
                (c.from.number, g.from),
                (c.cycle, g.cycle),
                (c.written, g.written),
            ];
            prove(
                "it begins elsewhere",
                all(same.map(|(word, ghost)| word.0.equal(ghost))),
            );
            state.check();
            state.check_stable();
            reached("done");
        },
    );
    obligation(
        "checkpoint: a map page says what is committed, and the next one follows",
        &["entries of a map page", "written"],
        || {
            let begin = Begin {
                committed: true,
                phase: Phase::Maps,
                open: [0, 0, 0, 1],
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(MAPS);
            // The last one, or one before it.
            let last = n(state.ftl.limits.map_pages - 1);
            if crate::state::chosen("the last one") {
                assume(ghost().written.equal(last));
                state.ftl.checkpoint.written = Word(last);
            } else {
                assume(ghost().written.below(last));
            }
            let index = state.ftl.checkpoint.written.0;
            let map = View::now().map;
            let (step, bits) = (map.clone(), SMALL.entry_bits());
            let entry = move |word: Term, parity: u64| {
                index.raised(bits).plus(word.times(2)).plus(n(parity))
            };
            let pair = move |map: &Memory, word: Term| {
                map.get(entry(word, 1))
                    .raised(32)
                    .filled(map.get(entry(word, 0)))
            };
            loop_kept(
                "entries of a map page",
                || vec![last_blank().0],
                move |page, count| {
                    let (mut filled, map) = (page[0].words.clone(), step.clone());
                    filled.set_where(move |word| (word.below(count), pair(&map, word)));
                    vec![(filled, page[0].length)]
                },
            );
            let result = state.ftl.write_maps(1);
            prove("a map page cannot be written", truth(result.is_ok()));
            let made = programs();
            prove("one page is one", truth(made.len() == 1));
            let Some((at, page)) = made.into_iter().next() else {
                return;
            };
            let tag = Tag::read(&SMALL, state.ftl.volume, Word(at), &page);
            let right = tag.map_or(truth(false), |tag| {
                all([tag.kind.0.equal(n(tag::MAP)), tag.number.0.equal(index)])
            });
            prove("it is not the map page that is next", right);
            prove(
                "the directory names another place",
                View::now().directory.get(index).equal(at),
            );
            with_ghost(|g| g.written = g.written.plus(n(1)));
            prove(
                "it is not counted",
                state.ftl.checkpoint.written.0.equal(ghost().written),
            );
            state.check();
            state.check_stable();
            reached("written");
        },
    );
}

fn relocate() {
    obligation(
        "move: a sector waits as it is, from where it is",
        &["moved", "stays", "looked at"],
        || {
            let mut state = State::any(Begin::default());
            let block = Word(crate::state::any_block());
            assume(View::now().used_as(block.0, &[BlockUse::Used]));
            let at = Word::bits("at", 32);
            crate::sym::some_number(5);
            state.ftl.victim = Some(Victim {
                block,
                sectors: Queue::any("list"),
                at,
                valid: 1,
                page: None,
            });
            let before = state.ftl.stats.moved;
            if state.ftl.relocate_next().is_err() {
                return;
            }
            state.check();
            state.check_contents(None);
            state.check_stable();
            let moved = state.ftl.stats.moved > before;
            let nothing = any([truth(moved), truth(state.ftl.moved.sectors.is_empty())]);
            prove("a sector waits that was not moved", nothing);
            let Some(victim) = &state.ftl.victim else {
                return reached("looked at");
            };
            let next = victim.at.0.equal(at.0.plus(n(1)));
            prove("another sector is next", next);
            reached(if moved { "moved" } else { "stays" });
        },
    );
}

/// All of it was looked at.
fn leave() {
    obligation(
        "victim: a block whose sectors cannot be moved keeps them",
        &["kept", "left"],
        || {
            let mut state = State::any(Begin {
                moved: 1,
                ..Begin::default()
            });
            let block = Word(crate::state::any_block());
            assume(View::now().used_as(block.0, &[BlockUse::Used, BlockUse::Invalid]));
            let bad = state.ftl.bad.0;
            state.ftl.leave_victim(block);
            state.check();
            state.check_contents(None);
            state.check_stable();
            let is_bad = View::now().used_as(block.0, &[BlockUse::Bad]);
            let more = choice(is_bad, n(1), n(0));
            prove("it is not counted", state.ftl.bad.0.equal(bad.plus(more)));
            let kept = smt::explore::branch(is_bad);
            reached(if kept { "kept" } else { "left" });
        },
    );
}

pub fn obligations() {
    deltas();
    leave();
    load();
    moments();
    relocate();
}
