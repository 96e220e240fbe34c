//! Whole calls: their effect if each part does what its obligations show. A part is replaced by its contract: its
//! assumptions are proved, and after it the layer is in any state with the invariants and the effects that the part's own
//! obligations show.
//!
//! | part | shown by |
//! |---|---|
//! | seal, seal moved | `seal`, `stream` |
//! | reclaim, balance, relocate | `call: reclaiming`, `balancing`, `relocating` (what waits of the host's may be sealed besides) |
//! | move | `move`, `victim`, `seal`, `stream` |
//! | victim | `space` |
//! | commit | `commit`, `trims` |
//! | after commit | `call: what a commit allows` |
//! | settle, restock | `two phases`, `erase` |
//! | deltas | `deltas` |
//! | step | `checkpoint`, `slice`, `root` |
//! | abandon, again | `failure` |
//! | all maps, tables, root | `checkpoint`, `root` |
//! | checkpoint | `call: a whole checkpoint` |
//! | settle all | `call: a commit is durable` |
//! | finish | `root: the rest of a checkpoint` |
//! | end epoch, make room | `call: behind a flush` |

use crate::checkpoint::Phase;
use crate::ftl::{Ftl, Victim};
use crate::obligation;
use crate::platform::Platform as _;
use crate::state::{
    Begin, Buffered, State, View, always, any_block, any_sector, any_state, chosen, ghost, is_none,
    limits, with_ghost,
};
use crate::stream::Buffer;
use crate::sym::{Flash, Queue, Sector, differ, fail, loop_shown, n, next_state, programs};
use smt::explore::{assume, end_path, prove, reached};
use smt::run::is_long;
use smt::term::{Term, all, any, choice, implies, not, truth};
use smt::word::Word;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

thread_local! {
    static STAND_IN: Cell<bool> = const { Cell::new(false) };
    static LAST: Cell<&str> = const { Cell::new("") };
    static MOVES: Cell<bool> = const { Cell::new(false) };
    static ROUND: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

/// A new path begins: all parts are run.
pub fn reset() {
    STAND_IN.set(false);
    MOVES.set(false);
    ROUND.take();
}

/// The conditions after each round of the loop of a flush; the next round begins with a state like the first.
fn each_round(check: impl Fn() + 'static) {
    ROUND.set(Some(Rc::new(check)));
}

/// From here on contracts stand for the parts.
pub fn parts_are_shown() {
    STAND_IN.set(true);
}

/// The effect of a part, if its contract stands for it; returns whether it was done.
pub fn part<Y>(name: &'static str, ftl: &mut Ftl<Flash, Y>) -> Option<bool> {
    if !STAND_IN.get() {
        return None;
    }
    if chosen("a part fails") {
        return Some(false);
    }
    let last = LAST.replace(name);
    if name == "relocate" && ftl.stats.extra_commits > 0 {
        if let Some(check) = ROUND.with_borrow(Clone::clone) {
            check();
        }
        reached("round");
        end_path();
    }
    if name == "after commit" {
        // A whole checkpoint syncs after its delta run.
        let synced = truth(["commit", "checkpoint"].contains(&last));
        prove("runs are taken for durable without a sync", synced);
    }
    if name == "settle" {
        let durable = (ftl.blocks.durable_runs.0).at_most(ghost().durable_runs);
        prove("blocks are settled by runs that are not durable", durable);
    }
    match name {
        "victim" => begins(ftl),
        "move" => {
            prove("nothing is to be moved", truth(ftl.victim.is_some()));
            // The second of these begins with such a state as the first.
            if MOVES.replace(true) {
                reached("round");
                end_path();
            }
            moves(name, ftl);
            begins(ftl);
        }
        "reclaim" | "seal" | "seal moved" | "balance" | "relocate" => moves(name, ftl),
        "commit" | "end epoch" => commits(ftl),
        "after commit" | "settle" | "deltas" | "step" | "restock" | "settle all" | "finish"
        | "checkpoint" => {
            let g = ghost();
            if name == "checkpoint" {
                // Replay begins after them, and must reach that place.
                let durable = g.delta_durable.equal(g.delta);
                prove(
                    "a checkpoint begins before older delta pages are durable",
                    durable,
                );
            }
            settled(name, ftl);
            if name == "settle all" || name == "finish" {
                let g = ghost();
                assume(g.delta_durable.equal(g.delta));
            }
        }
        "make room" => {
            settled(name, ftl);
            ftl.budget = Word::bits("budget", 32);
            assume(ftl.budget.0.at_most(n(ftl.limits.epoch)));
        }
        "abandon" | "again" | "all maps" | "tables" | "root" => checkpoints(name, ftl),
        _ => panic!("nothing was shown of the part '{name}'"),
    }
    Some(true)
}

/// Another state: every sector reads as before, and the epoch has as many writes.
fn another<Y>(ftl: &mut Ftl<Flash, Y>, committed: bool) -> (View, View) {
    let (before, waiting) = (View::now(), Buffered::of(&ftl.host));
    let g = ghost();
    let (writes, budget, dirty) = (ftl.writes, ftl.budget, ftl.dirty);
    next_state();
    let begin = Begin {
        // No whole call looks into buffers or open blocks by itself, but for the room that is left (`budget`).
        open: [0; 4],
        phase: Phase::Maps,
        committed,
        ..Begin::default()
    };
    any_state(ftl, begin);
    (ftl.writes, ftl.budget, ftl.dirty) = (writes, budget, dirty);
    // The room that is left is any by the number of spare blocks alone.
    (ftl.meta_used, ftl.bad) = (Word::of(0), Word::of(0));
    with_ghost(|now| {
        now.may_commit = g.may_commit;
        (now.elsewhere, now.astray) = (g.elsewhere, g.astray);
        now.trims = g.trims;
    });
    let after = View::now();
    let (then, now) = (before.clone(), after.clone());
    always(move |sector| {
        let nothing = Buffered {
            sectors: Vec::new(),
            contents: Vec::new(),
        };
        (now.content(&nothing, sector)).equal(then.content(&waiting, sector))
    });
    (before, after)
}

/// A crash returns to the same.
fn same_stable(before: View, after: View) {
    always(move |sector| {
        let (was, is) = (before.stable.get(sector), after.stable.get(sector));
        let data = [before.data.get(was), after.data.get(is)];
        all([was.equal(is), any([is_none(was), data[0].equal(data[1])])])
    });
}

/// Sectors are programmed, the host's that waited or others; nothing commits.
fn moves<Y>(name: &str, ftl: &mut Ftl<Flash, Y>) {
    if name == "seal" {
        prove("nothing waits", truth(!ftl.host.sectors.is_empty()));
    } else if name != "reclaim" {
        prove(
            "the host's sectors wait, and are not looked at",
            truth(ftl.host.sectors.is_empty()),
        );
    }
    let (before, after) = another(ftl, false);
    same_stable(before, after);
    if ["relocate", "move"].contains(&name) && chosen("sectors are moved") {
        ftl.stats.moved += 1;
        ftl.dirty = true;
    }
}

/// There may be a victim now.
fn begins<Y>(ftl: &mut Ftl<Flash, Y>) {
    ftl.victim = chosen("a victim").then(|| Victim {
        block: Word(any_block()),
        sectors: Queue::any("list"),
        at: Word::bits("at", 32),
        valid: 1,
        page: None,
    });
}

/// A crash returns to everything that was written.
fn commits<Y>(ftl: &mut Ftl<Flash, Y>) {
    prove("a call commits that must not", truth(ghost().may_commit));
    another(ftl, true);
    ftl.host = Buffer::new();
    (ftl.writes, ftl.dirty) = (Word::of(0), false);
    ftl.stats.flushes += 1;
    reached("commit");
}

fn is_committed() {
    let g = ghost();
    prove(
        "a part is begun before the commit",
        all([g.flushed.equal(g.number), truth(!g.committing)]),
    );
    let (sector, view) = (any_sector(), View::now());
    let same = view.stable.get(sector).equal(view.map.get(sector));
    prove("a part is begun with what a crash does not return to", same);
}

/// Metadata is written, blocks become erasable; all stays committed.
fn settled<Y>(name: &'static str, ftl: &mut Ftl<Flash, Y>) {
    is_committed();
    if name == "checkpoint" {
        // Pages elsewhere are found through their root.
        let (g, runs) = (ghost(), ftl.blocks.durable_runs.0);
        prove(
            "a run counts as durable before its root",
            any([truth(!g.elsewhere), runs.at_most(g.durable_runs)]),
        );
    }
    let (before, after) = another(ftl, true);
    same_stable(before, after);
    if name == "checkpoint" {
        with_ghost(|g| (g.elsewhere, g.astray) = (false, truth(false)));
        let g = ghost();
        assume(g.delta_durable.equal(g.delta));
    }
    reached(name);
}

/// Parts of a sync with failures, and of a whole checkpoint: each goes on with the one under way, and the result of
/// replay stays the map.
fn checkpoints<Y>(name: &'static str, ftl: &mut Ftl<Flash, Y>) {
    if name == "all maps" {
        // It has begun (`checkpoint: it begins`).
        prove(
            "it begins elsewhere",
            ftl.checkpoint.from.number.0.equal(ghost().delta),
        );
        with_ghost(|g| (g.from, g.astray) = (g.delta, truth(false)));
    }
    let (was, counted) = (ghost(), ftl.checkpoint.counted.0);
    let pages = n(limits().map_pages);
    if name == "root" {
        prove(
            "a root's map pages are not written",
            was.written.equal(pages),
        );
        prove(
            "a root is written before what it names is durable",
            truth(!was.maps_waiting),
        );
        prove(
            "a root's delta run is not durable",
            counted.below(was.delta_durable),
        );
        prove("a root's delta run may not be found", not(was.astray));
        prove("another root is not durable", truth(!was.root_waiting));
    }
    let committed = was.committed && !was.committing;
    if name != "abandon" && name != "again" {
        is_committed();
    }
    let (before, after) = another(ftl, committed);
    let (then, now) = (before.clone(), after.clone());
    always(move |sector| {
        let same = [&then, &now].map(|view| view.map.get(sector).equal(view.replay.get(sector)));
        implies(same[0], same[1])
    });
    same_stable(before, after);
    let g = ghost();
    let mut kept = vec![
        g.from.equal(was.from),
        g.durable_from.equal(was.durable_from),
    ];
    if name != "all maps" {
        kept.push(g.written.equal(was.written));
    }
    if name != "tables" {
        kept.extend([
            g.delta.equal(was.delta),
            g.delta_durable.equal(was.delta_durable),
        ]);
        kept.push(ftl.checkpoint.counted.0.equal(counted));
    }
    assume(all(kept));
    with_ghost(|g| {
        g.committing = was.committing;
        (g.maps_waiting, g.root_waiting) = (was.maps_waiting, was.root_waiting);
    });
    match name {
        "again" => with_ghost(|g| {
            // It may be any page, but of deltas that the root needs only if there are some.
            g.elsewhere = true;
            g.astray = any([was.astray, was.from.below(was.delta)]);
            g.maps_waiting = true;
        }),
        "all maps" => {
            assume(g.written.equal(pages));
            with_ghost(|g| g.maps_waiting = true);
        }
        "tables" => {
            let counted = ftl.checkpoint.counted.0;
            assume(all([g.from.at_most(counted), counted.below(g.delta)]));
            with_ghost(|g| g.maps_waiting = true);
        }
        "root" => with_ghost(|g| g.root_waiting = true),
        _ => {}
    }
    reached(name);
}

fn write() {
    obligation(
        "call: a write with a full buffer changes one sector, and nothing that a crash returns to",
        &["written", "refused", "fails"],
        || {
            let begin = Begin {
                host: 2,
                ..Begin::default()
            };
            let mut state = State::any(begin);
            parts_are_shown();
            state.ftl.dirty = chosen("something was written");
            let (sector, content) = (Word::any("sector"), Word::any("content").0);
            let waits = state.ftl.host.sectors.iter();
            assume(all(waits.map(|other| differ(other.0, sector.0))));
            let (writes, budget) = (state.ftl.writes.0, state.ftl.budget.0);
            match state.ftl.write(sector, &Sector(content)) {
                Ok(()) => {
                    prove(
                        "an epoch has more writes than its budget, or they are not counted",
                        all([
                            state.ftl.writes.0.at_most(budget),
                            state.ftl.writes.0.equal(writes.plus(n(1))),
                        ]),
                    );
                    prove("a flush would find nothing to do", truth(state.ftl.dirty));
                    state.check();
                    state.check_contents(Some((sector.0, content)));
                    state.check_stable();
                    reached("written");
                }
                Err(_) if state.ftl.stopped => reached("fails"),
                Err(_) => {
                    state.check_contents(None);
                    reached("refused");
                }
            }
            prove("a write programs a page", truth(programs().is_empty()));
        },
    );
}

/// A state, and the conditions after a call that makes all of it durable.
fn to_be_durable(begin: Begin) -> (State, impl Fn() + Clone + 'static) {
    let state = State::any(begin);
    parts_are_shown();
    // The epoch's trims are committed with it.
    with_ghost(|g| (g.may_commit, g.trims) = (true, None));
    let (before, waiting) = (state.before.clone(), Buffered::of(&state.ftl.host));
    let all_is_there = move || {
        let (sector, after) = (any_sector(), View::now());
        let expected = before.content(&waiting, sector);
        let nothing = Buffered {
            sectors: Vec::new(),
            contents: Vec::new(),
        };
        let found = after.content(&nothing, sector);
        prove("a sector reads as something else", found.equal(expected));
        let place = after.stable.get(sector);
        let found = choice(is_none(place), n(0), after.data.get(place));
        prove("a crash returns to something else", found.equal(expected));
    };
    each_round(all_is_there.clone());
    (state, all_is_there)
}

fn an_epoch_begins(state: &State) {
    state.check();
    let (epoch, ftl) = (state.ftl.limits.epoch, &state.ftl);
    prove("an epoch is larger", ftl.budget.0.at_most(n(epoch)));
    prove("sectors wait", truth(ftl.host.sectors.is_empty()));
}

/// A sector waits, and the epoch trimmed something.
fn waiting() -> Begin {
    Begin {
        host: 1,
        trims: true,
        ..Begin::default()
    }
}

/// The loop that adds commits begins again with such a state as it began with: its second round is the first of another.
fn flush() {
    obligation(
        "call: behind a flush a crash returns to all that was written",
        &["commit", "after commit", "deltas", "round", "done", "fails"],
        || {
            let (mut state, all_is_there) = to_be_durable(waiting());
            if state.ftl.flush().is_err() {
                prove("a disk goes on behind a failure", truth(state.ftl.stopped));
                return reached("fails");
            }
            all_is_there();
            an_epoch_begins(&state);
            prove(
                "an epoch begins with writes",
                state.ftl.writes.0.equal(n(0)),
            );
            reached("done");
        },
    );
}

/// With something to commit, or without.
fn graceful_end() {
    obligation(
        "call: behind a graceful end a crash returns to all that was written",
        &[
            "commit",
            "deltas",
            "settle all",
            "finish",
            "checkpoint",
            "after commit",
            "make room",
            "done",
            "fails",
            "worn out",
        ],
        || {
            let dirty = chosen("something waits");
            let begin = if dirty {
                waiting()
            } else {
                Begin {
                    committed: true,
                    ..Begin::default()
                }
            };
            let (mut state, all_is_there) = to_be_durable(begin);
            state.ftl.dirty = dirty;
            let epoch = n(state.ftl.limits.epoch);
            assume(state.ftl.budget.0.at_most(epoch));
            if state.ftl.checkpoint().is_err() {
                if !state.ftl.stopped {
                    prove("what waits is refused", truth(!dirty));
                    return reached("worn out");
                }
                return reached("fails");
            }
            all_is_there();
            an_epoch_begins(&state);
            reached("done");
        },
    );
}

/// Any victims and any number of sectors to move: one after the other.
fn moving(what: &str, begin: Begin, call: impl Fn(&mut State) -> crate::error::Result<(), ()>) {
    let name = format!("call: {what} moves sectors, and nothing that a crash returns to");
    obligation(&name, &["round", "done", "fails"], || {
        let mut state = State::any(begin);
        parts_are_shown();
        // As in `another`.
        (state.ftl.meta_used, state.ftl.bad) = (Word::of(0), Word::of(0));
        // The number of blocks that settle only says how much is moved.
        loop_shown("unsettled blocks", |_| {});
        if call(&mut state).is_err() {
            return reached("fails");
        }
        state.check();
        state.check_contents(None);
        state.check_stable();
        prove("it programs by itself", truth(programs().is_empty()));
        reached("done");
    });
}

fn moves_sectors() {
    let waiting = Begin {
        moved: 1,
        ..Begin::default()
    };
    moving("balancing", waiting, |state| state.ftl.balance(1));
    let any = Begin::default();
    moving("relocating", any, |state| state.ftl.relocate(1));
    if is_long() {
        moving("reclaiming", any, |state| state.ftl.reclaim());
    }
}

/// In a row, and the next one of a checkpoint's steps, whichever that is.
fn after_commit() {
    obligation(
        "call: what a commit allows changes nothing that a crash returns to",
        &["settle", "deltas", "step", "restock", "allowed", "fails"],
        || {
            let begin = Begin {
                committed: true,
                ..Begin::default()
            };
            let mut state = State::any(begin);
            parts_are_shown();
            // The sync of the commit has just been (`two phases: behind a sync`).
            with_ghost(|g| (g.covered, g.durable_runs) = (g.said, g.runs));
            if state.ftl.after_commit().is_err() {
                return reached("fails");
            }
            state.check();
            state.check_contents(None);
            state.check_stable();
            reached("allowed");
        },
    );
}

/// A page that failed. Only `again` looks into it; in which order they come makes no difference to its contract.
fn some_page() -> (Term, usize) {
    (Word::bits("place that failed", 13).0, Flash.blank().0)
}

/// Pages that come back from two syncs in a row.
pub fn failures(most: usize) -> bool {
    let mut lists = Vec::new();
    for _ in 0..most {
        if !chosen("programs fail") {
            break;
        }
        lists.push((0..2).map(|_| some_page()).collect());
    }
    let some = !lists.is_empty();
    fail(lists);
    some
}

fn committing() -> State {
    let state = State::any(Begin::default());
    with_ghost(|g| (g.committing, g.may_commit) = (true, true));
    let before = View::now();
    always(move |sector| before.map.get(sector).equal(before.replay.get(sector)));
    state
}

fn settle() {
    obligation(
        "call: a commit is durable and found, whatever failed",
        &[
            "commit",
            "abandon",
            "again",
            "checkpoint",
            "whole",
            "mended",
        ],
        || {
            let mut state = committing();
            parts_are_shown();
            let some = failures(2);
            if state.ftl.settle().is_err() {
                return;
            }
            prove(
                "pages lie where a mount may not look",
                truth(!ghost().elsewhere),
            );
            is_committed();
            state.check_contents(None);
            state.check_committed();
            reached(if some { "mended" } else { "whole" });
        },
    );
}

fn checkpoint() {
    obligation(
        "call: a whole checkpoint has a root when all that it names is durable and found",
        &[
            "all maps",
            "tables",
            "root",
            "rooted",
            "not rooted",
            "again",
        ],
        || {
            let begin = Begin {
                committed: true,
                ..Begin::default()
            };
            let mut state = State::any(begin);
            parts_are_shown();
            loop_shown("delta and map blocks", |_| {
                let g = ghost();
                let durable = truth(!g.root_waiting && !g.maps_waiting);
                prove(
                    "old blocks are given back before the root is durable",
                    all([durable, g.durable_from.equal(g.from)]),
                );
            });
            // In one of its three syncs.
            let which = (0..3).find(|_| chosen("this one fails"));
            let mut lists = vec![Vec::new(); which.unwrap_or(0)];
            if which.is_some() {
                lists.push(vec![some_page()]);
            }
            fail(lists);
            let Ok(rooted) = state.ftl.checkpoint_now() else {
                return;
            };
            is_committed();
            state.check_contents(None);
            state.check_committed();
            let g = ghost();
            prove("the root is not durable", truth(!g.root_waiting));
            if !rooted {
                return reached("not rooted");
            }
            prove(
                "a delta page is not durable",
                g.delta_durable.equal(g.delta),
            );
            reached("rooted");
        },
    );
}

pub fn obligations() {
    write();
    flush();
    graceful_end();
    moves_sectors();
    after_commit();
    settle();
    checkpoint();
}
