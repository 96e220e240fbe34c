//! State after a mount: the invariants with which every other obligation begins. Streams, the first delta run;
//! a format.

use crate::blocks::BlockUse;
use crate::calls::{failures, parts_are_shown};
use crate::checkpoint::{Phase, ROOT_SEAL, VACANT};
use crate::error::FtlError;
use crate::events::happens;
use crate::ftl::{DELTA, Faults, HOST, MAPS, MOVED};
use crate::limits::{ANCHORS, pair_capacity};
use crate::obligation;
use crate::platform::{Page as _, Word as _};
use crate::roots;
use crate::shape::NONE;
use crate::state::{
    Begin, COUNT_BITS, Ghost, SMALL, State, View, any_block, check_all, chosen, ghost, limits,
    set_ghost, with_ghost,
};
use crate::sym::{
    Anything, Event, Flash, Memory, Page, Queue, Table, cell, change, differ, loop_shown, n,
    no_proposals, programs, value, watch,
};
use crate::tag::{self, Tag};
use smt::explore::{assume, branch, end_path, prove, reached, suppose};
use smt::term::{Term, all, any, implies, not, truth};
use smt::word::Word;
use std::cell::RefCell;
use std::rc::Rc;

use BlockUse::{Bad, Delta, Erasable, Erasing, Free, Invalid, Map, Next, Open};

/// No stream is open, as recovery leaves it. (Blocks are free: some were erased by now.)
fn found() -> State {
    let begin = Begin {
        committed: true,
        open: [0; 4],
        ..Begin::default()
    };
    let state = State::any(begin);
    no_proposals();
    // A step is `erase: only what nothing needs`, any number of them.
    loop_shown("first blocks", |_| {});
    state
}

/// The blocks that the newest delta page announces, as `classify` leaves them, and whether they can be erased.
fn announced(state: &State) -> ([Word; 2], [Term; 2]) {
    let (next, view) = (state.ftl.streams[DELTA].next, View::now());
    let erasable = next.map(|block| {
        let inside = block.0.below(n(SMALL.blocks));
        let uses = [Free, Erasing, Next, Open];
        assume(not(all([inside, view.used_as(block.0, &uses)])));
        all([inside, view.used_as(block.0, &[Erasable])])
    });
    (next, erasable)
}

/// If no block is free it waits, and chooses again.
fn waits(state: &State) {
    assume(differ(cell(state.ftl.blocks.erasing.0).length, n(0)));
    loop_shown("erasing blocks", |_| end_path());
}

fn fresh(view: &View, block: Word) -> Term {
    all([
        block.0.below(n(SMALL.blocks)),
        view.used_as(block.0, &[Next]),
        view.fill.get(block.0).equal(n(0)),
    ])
}

/// Between both, blocks are erased for stock: any number of steps of `erase: only what nothing needs`.
fn erase() {
    obligation(
        "begin: announced blocks that nothing needs are erased anew, no others",
        &["erase", "one", "none", "Bad"],
        || {
            let mut state = found();
            // The second one as well, in the long tier.
            if !smt::run::is_long() {
                state.ftl.streams[DELTA].next[1] = Word::of(NONE);
            }
            let (next, erasable) = announced(&state);
            if state.ftl.erase_announced(next).is_err() {
                return prove("announced blocks cannot be erased", truth(false));
            }
            state.check();
            if state.ftl.await_announced(next).is_err() {
                return prove("an erase cannot be waited for", truth(false));
            }
            let view = View::now();
            for (block, could) in next.into_iter().zip(erasable) {
                let bad = view.used_as(block.0, &[Bad]);
                prove(
                    "an announced block is not erased anew",
                    implies(could, any([fresh(&view, block), bad])),
                );
                if branch(all([could, bad])) {
                    reached("Bad");
                }
            }
            let other = any_block();
            assume(all(next.map(|block| differ(block.0, other))));
            let same = view.uses.get(other).equal(state.before.uses.get(other));
            prove("another block is used", same);
            reached(if branch(any(erasable)) { "one" } else { "none" });
            state.check();
            state.check_contents(None);
            state.check_stable();
        },
    );
}

/// Each choice is `stream: a block to open`, and leads to all invariants.
fn announce() {
    obligation(
        "begin: the delta stream goes on where announced if it can, the others in fresh blocks",
        &["goes on", "new"],
        || {
            let mut state = found();
            waits(&state);
            let next = state.ftl.streams[DELTA].next;
            let erased = any(next.map(|block| fresh(&state.before, block)));
            let Ok(goes_on) = state.ftl.announce_all() else {
                return prove("streams cannot begin", truth(false));
            };
            prove(
                "the delta stream goes on, or not",
                erased.equal(truth(goes_on)),
            );
            let view = View::now();
            let streams = &state.ftl.streams;
            let others = [HOST, MOVED, MAPS].map(|stream| streams[stream].next);
            let mut new: Vec<Word> = others.into_iter().flatten().collect();
            let now = streams[DELTA].next;
            if goes_on {
                let kept = all((0..2).map(|i| now[i].0.equal(next[i].0)));
                prove("the delta stream goes on elsewhere", kept);
                reached("goes on");
            } else {
                new.extend(now);
                reached("new");
            }
            for (i, &block) in new.iter().enumerate() {
                prove(
                    "a block is announced that is not erased",
                    fresh(&view, block),
                );
                let was = state.before.used_as(block.0, &[Free]);
                prove("a block is announced that was not free", was);
                let other = new[..i].iter().map(|other| differ(other.0, block.0));
                prove("a block is announced twice", all(other));
            }
        },
    );
}

/// The first delta run, where the log goes on; one of few pairs (any: `deltas`).
fn say() {
    obligation(
        "begin: a run says what was found, in an announced block, and is durable",
        &["said", "worn out"],
        || {
            let mut state = found();
            waits(&state);
            assume(state.ftl.incarnation.0.below(n(NONE - 1)));
            let pairs = cell(state.ftl.pairs.0).length;
            assume(pairs.at_most(n(pair_capacity(&SMALL))));
            loop_shown("pairs of a page", |_| {});
            let announced = state.ftl.streams[DELTA].next;
            let view = View::now();
            for block in announced {
                let inside = block.0.below(n(SMALL.blocks));
                assume(not(all([
                    inside,
                    view.used_as(block.0, &[Free, Erasing, Open]),
                ])));
            }
            let incarnation = state.ftl.incarnation.0.plus(n(1));
            with_ghost(|g| g.incarnation = incarnation);
            match state.ftl.say_found(true) {
                Ok(()) => {}
                Err(FtlError::WornOut) => return reached("worn out"),
                Err(_) => return prove("a run cannot be written", truth(false)),
            }
            let made = programs();
            prove("more than the run is written", truth(made.len() == 1));
            let Some((at, page)) = made.first() else {
                return;
            };
            let Some(tag) = Tag::read(&SMALL, state.ftl.volume, Word(*at), page) else {
                return prove("the run is not sealed", truth(false));
            };
            let is = all([
                tag.kind.0.equal(n(tag::DELTA)),
                tag.flags.0.equal(n(tag::COMMIT)),
                tag.incarnation.0.equal(incarnation),
                tag.count.0.equal(pairs),
            ]);
            prove("it is no whole run of this mount", is);
            let first = |block: Word| {
                let first = SMALL.page_at(block, Word::of(0)).0.equal(*at);
                all([first, view.used_as(block.0, &[Next])])
            };
            prove(
                "recovery would not look for it there",
                any(announced.map(first)),
            );
            let Ok(found) = state.ftl.read_frontier(page, Word(*at)) else {
                return prove("what the run says of the streams is refused", truth(false));
            };
            prove(
                "it says another end of the data log",
                all([
                    found.number.0.equal(state.ftl.number.0),
                    found.incarnation.0.equal(incarnation),
                    truth(found.heads.is_empty()),
                ]),
            );
            for stream in [HOST, MOVED] {
                let next = state.ftl.streams[stream].next;
                let same = all((0..2).map(|i| found.next[stream][i].0.equal(next[i].0)));
                prove("it announces other blocks", same);
            }
            let g = ghost();
            prove("it is not durable", g.delta_durable.equal(g.delta));
            prove(
                "pairs wait that were said",
                cell(state.ftl.pairs.0).length.equal(n(0)),
            );
            with_ghost(|g| {
                (g.said, g.covered) = (g.number, g.number);
                g.runs = g.runs.plus(n(1));
                g.durable_runs = g.runs;
            });
            state.check();
            state.check_contents(None);
            state.check_stable();
            reached("said");
        },
    );
}

/// The same where no mount would look for a run: the delta stream has fresh blocks, to which a root leads. The run
/// is one of few pairs, the tables are small, and the root's anchor has room (any: `root`).
fn lead() {
    obligation(
        "begin: where the delta log has no usable end, a root leads to the run before it counts",
        &["root", "released", "led"],
        || {
            let mut state = found();
            waits(&state);
            roots::few(&mut state);
            roots::all_maps(true);
            let next = state.ftl.streams[DELTA].next;
            let view = View::now();
            let announced = [next, state.ftl.streams[MAPS].next].concat();
            for (i, &block) in announced.iter().enumerate() {
                let other = announced[..i].iter().map(|other| differ(other.0, block.0));
                assume(all(other.chain([fresh(&view, block)])));
            }
            let (incarnation, number) = (state.ftl.incarnation.0.plus(n(1)), ghost().delta);
            assume(incarnation.below(n(NONE)));
            with_ghost(|g| g.incarnation = incarnation);
            if state.ftl.say_found(false).is_err() {
                return prove("a mount cannot go on elsewhere", truth(false));
            }
            let made = programs();
            let run = made.iter().find_map(|(at, page)| {
                let tag = Tag::read(&SMALL, state.ftl.volume, Word(*at), page)?;
                tag.is(tag::DELTA).then_some((*at, tag, page))
            });
            let (Some((at, tag, page)), Some((_, root))) = (run, made.last()) else {
                return prove("no run or no root is written", truth(false));
            };
            prove(
                "it is no whole run of this mount",
                all([
                    tag.flags.0.equal(n(tag::COMMIT)),
                    tag.incarnation.0.equal(incarnation),
                    tag.number.0.equal(number),
                ]),
            );
            let first = SMALL.page_at(next[0], Word::of(0)).0;
            let word = |at: u64| root.word(Word::of(at));
            prove(
                "the root does not lead to the run",
                all([
                    at.equal(first),
                    word(7).0.equal(number),
                    word(8).high().0.equal(n(NONE)),
                    word(9).low().0.equal(next[0].0),
                    word(10).0.equal(number),
                ]),
            );
            let Ok(said) = state.ftl.read_frontier(page, Word(at)) else {
                return prove("what the run says of the streams is refused", truth(false));
            };
            let end = [
                (said.number.0, state.ftl.number.0),
                (said.incarnation.0, incarnation),
            ];
            prove(
                "it says another end of the data log",
                all(end.map(|(found, expected)| found.equal(expected))),
            );
            let g = ghost();
            prove(
                "the root is not durable",
                all([
                    truth(!g.root_waiting),
                    g.durable_from.equal(number),
                    g.delta_durable.equal(g.delta),
                ]),
            );
            with_ghost(|g| {
                (g.said, g.covered) = (g.number, g.number);
                g.runs = g.runs.plus(n(1));
                g.durable_runs = g.runs;
                (g.rooted_now, g.tables_written) = (true, false);
            });
            // The map pages were written.
            state.ftl.checkpoint.written = Word(g.written);
            state.check();
            state.check_contents(None);
            state.check_stable();
            reached("led");
        },
    );
}

/// The whole of it, whatever can be erased and whatever fails: `elsewhere` is so as long as the next mount would not find
/// the run.
fn incarnation() {
    obligation(
        "begin: no block is settled before what was found is durable and found",
        &["goes on", "checkpoint", "again", "settled"],
        || {
            let mut state = found();
            waits(&state);
            // The second one as well, in the long tier.
            if !smt::run::is_long() {
                state.ftl.streams[DELTA].next[1] = Word::of(NONE);
            }
            let (next, _) = announced(&state);
            assume(state.ftl.incarnation.0.below(n(NONE - 1)));
            let pairs = cell(state.ftl.pairs.0).length;
            assume(pairs.at_most(n(pair_capacity(&SMALL))));
            loop_shown("pairs of a page", |_| {});
            // The state that was found is durable.
            assume(ghost().delta_durable.equal(ghost().delta));
            with_ghost(|g| {
                g.incarnation = g.incarnation.plus(n(1));
                g.elsewhere = true;
            });
            watch(move |event| {
                happens(event);
                if let Event::Program { at, .. } = event {
                    let first = |block: Word| SMALL.page_at(block, Word::of(0)).0.equal(*at);
                    if branch(any(next.map(first))) {
                        with_ghost(|g| g.elsewhere = false);
                        reached("goes on");
                    }
                }
            });
            loop_shown("invalid blocks", |_| {
                let g = ghost();
                prove(
                    "blocks are settled before what was found is durable and found",
                    all([truth(!g.elsewhere), g.delta_durable.equal(g.delta)]),
                );
                reached("settled");
                end_path();
            });
            parts_are_shown();
            failures(1);
            let _ = state.ftl.begin_incarnation();
        },
    );
}

fn new_layer(volume: Word) -> crate::state::Layer {
    crate::state::Layer::empty(Flash, Anything, SMALL, limits(), volume, Faults::default())
}

/// The layer's state after recovery has followed the logs, from any state before the crash: the map is the committed
/// one, or with a commit that is `whole` the new one, and recovery finds the use of each block that is needed (`boot`, `scan`).
/// `lost`: the delta log's last pages lie where no mount looks, after failures or in a mount that moves the log, and the
/// root that leads there is not durable yet; no block was settled because of these pages (`begin`, `call`).
fn recovered(before: &View, whole: bool, lost: bool) -> Ghost {
    let g = &before.ghost;
    let (stable, newest) = if whole {
        (before.map.clone(), g.number)
    } else {
        (before.stable.clone(), g.flushed)
    };
    let found = Memory::any("found use", 32);
    let of_page = |at: Term| SMALL.block_of_page(Word(at)).0;
    let said = |found: &Memory, block: Term, uses: &[BlockUse]| {
        let found = found.get(block);
        any(uses.iter().map(|&use_| found.equal(n(use_ as u64))))
    };
    let counted = Memory::any("counted", 32);
    let plain = |words: Memory, limit: u64| Table::new(words, limit).0;
    // The map, and its sectors in blocks are counted.
    let map = {
        let (stable, counted) = (stable.clone(), counted.clone());
        Memory::of(move |sector| {
            let place = stable.get(sector);
            let one = n(1).at_most(counted.get(crate::state::block_of(place)));
            suppose(any([crate::state::is_none(place), one]));
            place
        })
    };
    // A block counts sectors only if one lies there.
    let valid = {
        let (before, counted) = (before.clone(), counted.clone());
        Memory::of(move |block| {
            let count = counted.get(block);
            let one = value("sector of", 13, &[block.part(0, 9)]);
            let place = stable.get(one);
            let there = all([
                not(crate::state::is_none(place)),
                crate::state::block_of(place).equal(block),
            ]);
            suppose(any([count.equal(n(0)), there]));
            // It has no more than its programmed pages have room for.
            suppose(count.at_most(n(SMALL.block_sectors())));
            suppose(count.at_most(before.fill.get(block).times(SMALL.sectors)));
            count
        })
    };
    // The delta log may end before pages that were not durable, and so say less of the data log.
    let [delta, said_to] =
        ["found delta pages", "found frontier"].map(|name| Word::bits(name, COUNT_BITS).0);
    assume(all([
        any([truth(lost), g.delta_durable.at_most(delta)]),
        g.durable_from.at_most(delta),
        delta.at_most(g.delta),
        g.covered.at_most(said_to),
        said_to.at_most(g.said),
    ]));
    let needed = [g.durable_from, delta];
    // Delta pages: their blocks were followed into, and no others.
    let deltas = {
        let (before, found) = (before.clone(), found.clone());
        Memory::of(move |number| {
            let at = before.deltas.get(number);
            let there = all([needed[0].at_most(number), number.below(needed[1])]);
            suppose(implies(there, said(&found, of_page(at), &[Delta])));
            at
        })
    };
    let rooted = {
        let (before, found) = (before.clone(), found.clone());
        Memory::of(move |index| {
            let at = before.rooted.get(index);
            suppose(any([
                crate::state::is_none(at),
                said(&found, of_page(at), &[Map]),
            ]));
            at
        })
    };
    let tables = {
        let (before, found) = (before.clone(), found.clone());
        Memory::of(move |index| {
            let at = before.tables.get(index);
            suppose(said(&found, of_page(at), &[Map]));
            at
        })
    };
    let log = {
        let (before, found) = (before.clone(), found.clone());
        Memory::of(move |number| {
            let at = before.log.get(number);
            let there = all([said_to.below(number), number.at_most(newest)]);
            suppose(implies(there, not(said(&found, of_page(at), &[Erasable]))));
            at
        })
    };
    let uses = {
        let (before, found, valid) = (before.clone(), found.clone(), valid.clone());
        let g = g.clone();
        Memory::of(move |block| {
            let is = |uses: &[BlockUse]| said(&found, block, uses);
            suppose(is(&[Erasable, Invalid, Delta, Map]));
            // Why it was found to be so.
            let short = block.part(0, 9);
            let page = value("delta page in", 64, &[short]);
            let delta = all([
                g.durable_from.at_most(page),
                page.below(delta),
                of_page(before.deltas.get(page)).equal(block),
            ]);
            suppose(implies(is(&[Delta]), delta));
            let meta = all([
                before
                    .holds
                    .get(block)
                    .equal(n(crate::state::PAGES_OF_MAPS)),
                before.used_as(block, &[Open, Map]),
            ]);
            suppose(implies(is(&[Map]), meta));
            let page = value("data page in", 64, &[short]);
            // Pages after the last commit were looked at, too.
            let data = all([
                said_to.below(page),
                page.at_most(g.number),
                of_page(before.log.get(page)).equal(block),
            ]);
            suppose(implies(is(&[Invalid]), data));
            let failing = value("failing", 32, &[block]);
            crate::mount::classified(
                block,
                found.get(block),
                valid.get(block),
                not(failing.equal(n(0))),
            )
        })
    };
    // The rest is as a layer has it that knows nothing yet.
    let new = new_layer(Word(g.volume));
    Ghost {
        map: plain(map.clone(), crate::state::SECTORS),
        stable: plain(map.clone(), crate::state::SECTORS),
        replay: plain(map, crate::state::SECTORS),
        uses: plain(uses, SMALL.blocks),
        valid: plain(valid.clone(), SMALL.blocks),
        count: plain(valid, SMALL.blocks),
        ages: new.blocks.ages.0,
        directory: plain(rooted.clone(), limits().map_pages),
        rooted: plain(rooted, limits().map_pages),
        deltas: plain(deltas, u64::MAX),
        log: plain(log, u64::MAX),
        tables: plain(tables, 64),
        number: newest,
        flushed: newest,
        said: said_to,
        covered: said_to,
        delta,
        delta_durable: delta,
        runs: new.runs.0,
        durable_runs: new.blocks.durable_runs.0,
        cycle: new.checkpoint.cycle.0,
        from: g.durable_from,
        written: n(limits().map_pages),
        committed: true,
        rooted_now: true,
        ..g.clone()
    }
}

fn composed() {
    obligation(
        "begin: of any state before a crash, what is found has all invariants",
        &["found", "whole", "lost", "next root", "data", "metadata"],
        || {
            // The root that was under way may be whole, too.
            let rooted = chosen("the next root is whole");
            let phase = if rooted { Phase::Rooted } else { Phase::Maps };
            let _state = State::any(Begin {
                phase,
                ..Begin::default()
            });
            if rooted {
                let words = View::now();
                assume(ghost().written.equal(n(limits().map_pages)));
                change(ghost().rooted, |cell| cell.words = words.directory);
                change(ghost().tables, |cell| cell.words = words.tables_next);
                // It was written when that was durable (`root`).
                assume(ghost().from.at_most(ghost().delta_durable));
                with_ghost(|g| g.durable_from = g.from);
                reached("next root");
            }
            let before = View::now();
            // The commit that was under way is whole by luck: it is the map then (`commit`).
            let whole = chosen("it is whole");
            let lost = chosen("the delta log's last pages are elsewhere");
            set_ghost(recovered(&before, whole, lost));
            check_all(&View::now());
            let block = any_block();
            let view = View::now();
            // `classify` refuses metadata in which sectors are counted: its own is never.
            let found = [Delta, Map];
            prove(
                "a block of metadata counts sectors",
                implies(
                    view.used_as(block, &found),
                    view.valid.get(block).equal(n(0)),
                ),
            );
            if branch(view.used_as(block, &[BlockUse::Used])) {
                reached("data");
            } else if branch(view.used_as(block, &found)) {
                reached("metadata");
            }
            reached(if whole { "whole" } else { "found" });
            if lost {
                reached("lost");
            }
        },
    );
}

/// Effects of a format on the anchors so far.
#[derive(Clone, Default)]
struct Cleared {
    erased: Vec<Term>,
    /// Place of the root that says that there is no disk.
    vacant: Option<Term>,
    durable: bool,
}

/// Nothing of an older disk is touched but an anchor without its newest root, before that is obsolete.
fn clear() {
    let labels = ["vacant", "cleared", "failed", "worn out"];
    obligation(
        "format: a root says that there is no disk, before anything else of the old one is touched",
        &labels,
        || {
            let mut state = State::any(Begin::default());
            let old = (0..ANCHORS - 1).find(|_| chosen("this anchor"));
            let old = n(old.unwrap_or(ANCHORS - 1));
            let c = &mut state.ftl.checkpoint;
            c.durable_anchor = Word::of(NONE);
            (c.directories, c.tables) = (Queue::default(), Queue::default());
            let (from, root) = (c.from, Word::bits("old root", COUNT_BITS).0);
            // State of a new layer.
            assume(all(
                [from.number, from.block, from.page].map(|w| w.0.at_most(n(NONE)))
            ));
            let failing = cell(state.ftl.blocks.failing.0).words;
            let done: Rc<RefCell<Cleared>> = Rc::default();
            let so_far = done.clone();
            watch(move |event| {
                let mut seen = so_far.borrow_mut();
                match *event {
                    Event::Program { at, page } => {
                        let block = SMALL.block_of_page(Word(at)).0;
                        prove("two pages are programmed", truth(seen.vacant.is_none()));
                        let erased = seen.erased.last().is_some_and(|last| *last == block);
                        prove("a root goes to a page that is not erased", truth(erased));
                        let first = SMALL.page_at(Word(block), Word::of(0)).0;
                        prove("a root lies behind nothing", at.equal(first));
                        let tag = Tag::read(&SMALL, Word::of(ROOT_SEAL), Word(at), page);
                        let newer = tag.map_or(truth(false), |tag| {
                            all([
                                tag.kind.0.equal(n(tag::ROOT)),
                                tag.number.0.equal(root.plus(n(1))),
                            ])
                        });
                        prove("it is not the newest root", newer);
                        prove(
                            "it says that there is a disk",
                            page.at(n(0)).equal(n(VACANT)),
                        );
                        seen.vacant = Some(block);
                        reached("vacant");
                    }
                    Event::Sync => seen.durable = true,
                    Event::Erase { block } => {
                        prove(
                            "a block is erased that is no anchor",
                            block.below(n(ANCHORS)),
                        );
                        let obsolete = truth(seen.vacant.is_some() && seen.durable);
                        prove(
                            "the newest root is erased",
                            any([obsolete, differ(block, old)]),
                        );
                        let vacant = seen.vacant.unwrap_or(n(NONE));
                        prove("the root that counts is erased", differ(block, vacant));
                        seen.erased.push(block);
                    }
                    Event::Erased { .. } | Event::Failed => {}
                }
            });
            let bad = state.ftl.bad.0;
            let found = Tag {
                number: Word(root),
                ..state.ftl.tag(tag::ROOT, Word::of(0), Word::of(0))
            };
            let found = (Word(old), found, Page::any("old root"));
            match state.ftl.clear(Some(found)) {
                Ok(()) => {}
                Err(FtlError::WornOut) => {
                    prove(
                        "the old disk is lost, and none is made",
                        truth(done.borrow().vacant.is_none()),
                    );
                    return reached("worn out");
                }
                Err(_) => return prove("a memory cannot be cleared", truth(false)),
            }
            let Cleared {
                erased,
                vacant,
                durable,
            } = done.borrow().clone();
            let Some(vacant) = vacant else {
                return prove("the old root counts", truth(false));
            };
            prove("that there is no disk is not durable", truth(durable));
            let c = &state.ftl.checkpoint;
            prove(
                "the root that counts lies elsewhere",
                c.durable_anchor.0.equal(vacant),
            );
            prove("later roots say that there is no disk", truth(!c.vacant));
            prove("numbers go back", c.root.0.equal(root.plus(n(1))));
            for anchor in 0..ANCHORS {
                let anchor = n(anchor);
                let was = any(erased.iter().map(|block| block.equal(anchor)));
                let failed = not(failing.get(anchor).equal(n(0)));
                prove(
                    "an old root is left, though it could be erased",
                    any([was, failed]),
                );
            }
            if branch(bad.below(state.ftl.bad.0)) {
                reached("failed");
            }
            reached("cleared");
        },
    );
}

/// The layer that a format begins with, made as it ships.
fn empty() {
    obligation(
        "format: an empty disk has all invariants, and nothing is needed",
        &["empty", "erasable"],
        || {
            let state = State::any(Begin::default());
            let ftl = new_layer(state.ftl.volume);
            let found = cell(ftl.blocks.uses.0).words;
            let (valid, failing) = (ftl.blocks.valid.0, Memory::any("failing", 32));
            let counts = cell(valid).words;
            let none = |limit: u64| Table::new(Memory::of(|_| n(NONE)), limit).0;
            change(ftl.blocks.uses.0, |cell| {
                cell.words = Memory::of(move |block| {
                    let failing = not(failing.get(block).equal(n(0)));
                    crate::mount::classified(block, found.get(block), counts.get(block), failing)
                });
            });
            set_ghost(Ghost {
                map: ftl.map.0,
                stable: none(crate::state::SECTORS),
                replay: none(crate::state::SECTORS),
                uses: ftl.blocks.uses.0,
                valid,
                count: valid,
                ages: ftl.blocks.ages.0,
                directory: ftl.directory.0,
                rooted: none(limits().map_pages),
                tables_of: [0; 2],
                number: ftl.number.0,
                flushed: ftl.flushed.0,
                said: n(0),
                covered: n(0),
                runs: ftl.runs.0,
                durable_runs: ftl.blocks.durable_runs.0,
                cycle: ftl.checkpoint.cycle.0,
                delta: ftl.delta.0,
                from: ftl.checkpoint.from.number.0,
                durable_from: ftl.checkpoint.durable_from.0,
                written: ftl.checkpoint.written.0,
                ..ghost()
            });
            let view = View::now();
            check_all(&view);
            let block = any_block();
            if branch(view.used_as(block, &[Erasable])) {
                reached("erasable");
            }
            reached("empty");
        },
    );
}

pub fn obligations() {
    erase();
    announce();
    say();
    lead();
    incarnation();
    composed();
    clear();
    empty();
}
