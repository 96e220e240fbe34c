//! Write, read, seal, commit: between two flushes nothing changes that a crash returns to, and a
//! flush changes it in one step.

use crate::ftl::{DELTA, HOST, MOVED};
use crate::obligation;
use crate::shape::NONE;
use crate::state::{Begin, Buffered, State, Trims, View, any_sector, ghost, is_range, with_ghost};
use crate::sym::{Sector, cell, change, differ, loop_of, loop_shown, n, no_proposals, programs};
use smt::explore::{assume, end_path, prove, reached};
use smt::term::{Term, all, any, choice, truth};
use smt::word::Word;

fn seal() {
    let most = if smt::run::is_long() { 2 } else { 1 };
    for host in 1..=most {
        let name = format!("seal: the host's page, {host} sectors");
        obligation(&name, &["sealed"], || {
            let mut state = State::any(Begin {
                host,
                ..Begin::default()
            })
            .with_room(HOST);
            if state.ftl.seal(HOST, false).is_ok() {
                state.check();
                state.check_contents(None);
                state.check_stable();
                reached("sealed");
            } else {
                prove("a page cannot be sealed", truth(false));
            }
        });
    }
    obligation("seal: a moved sector", &["moved", "stale"], || {
        let begin = Begin {
            moved: 1,
            open: [0, 1, 0, 0],
            ..Begin::default()
        };
        let mut state = State::any(begin).with_room(MOVED);
        let result = state.ftl.seal(MOVED, false);
        prove("a page cannot be sealed", truth(result.is_ok()));
        state.check();
        state.check_contents(None);
        state.check_stable();
        reached(if programs().is_empty() {
            "stale"
        } else {
            "moved"
        });
    });
}

fn commit() {
    for host in [0, 1] {
        let name = format!("commit: all or nothing, {host} sectors waiting");
        obligation(&name, &["commit", "done"], || {
            let begin = Begin {
                host,
                open: [1, 0, 0, 0],
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(HOST);
            with_ghost(|g| g.may_commit = true);
            // Nothing is trimmed: replay leads to the map.
            let before = View::now();
            crate::state::always(move |sector: Term| {
                before.map.get(sector).equal(before.replay.get(sector))
            });
            if state.ftl.commit().is_ok() {
                let after = View::now();
                let sector = any_sector();
                let now = after.stable.get(sector).equal(after.map.get(sector));
                prove("what a crash returns to is not the map", now);
                let newest = state.ftl.flushed.0.equal(state.ftl.number.0);
                prove("the newest page is not durable", newest);
                prove(
                    "the ghost knows another commit",
                    ghost().flushed.equal(state.ftl.flushed.0),
                );
                prove(
                    "the next epoch is not empty",
                    state.ftl.writes.0.equal(n(0)),
                );
                state.check();
                state.check_contents(None);
                reached("done");
            }
        });
    }
}

/// The order of a flush again (`call`), its parts done and not replaced, up to where it looks at blocks under erase; few pairs wait.
fn flush() {
    obligation(
        "flush: commits first, and nothing else is programmed before",
        &["commit", "settled", "waits"],
        || {
            let begin = Begin {
                host: 1,
                open: [1, 0, 1, 0],
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(HOST).with_room(DELTA);
            with_ghost(|g| g.may_commit = true);
            no_proposals();
            assume(cell(state.ftl.pairs.0).length.below(n(8)));
            let before = View::now();
            crate::state::always(move |sector: Term| {
                before.map.get(sector).equal(before.replay.get(sector))
            });
            loop_shown("pairs of a page", |_| {});
            // That moves come first, where room is short, is `space`'s.
            loop_shown("unsettled blocks", |_| end_path());
            loop_shown("invalid blocks", |_| {
                let g = ghost();
                prove(
                    "blocks are settled before the commit",
                    g.flushed.equal(g.number),
                );
                prove("blocks are settled before the sync", truth(!g.committing));
                reached("settled");
            });
            let _ = state.ftl.flush_all();
            prove(
                "a flush ends before it looks at erased blocks",
                truth(false),
            );
        },
    );
}

fn write() {
    obligation(
        "write: one sector changes, within the budget",
        &["written", "refused", "again"],
        || {
            let mut state = State::any(Begin {
                host: 1,
                ..Begin::default()
            });
            let sector = Word::any("sector");
            let content = Word::any("content").0;
            let (writes, budget) = (state.ftl.writes.0, state.ftl.budget.0);
            match state.ftl.write(sector, &Sector(content)) {
                Ok(()) => {
                    let more = differ(state.ftl.writes.0, writes);
                    let fits = any([smt::term::not(more), state.ftl.writes.0.at_most(budget)]);
                    prove("an epoch has more writes than its budget", fits);
                    state.check_contents(Some((sector.0, content)));
                    reached(if state.ftl.host.sectors.len() == 1 {
                        "again"
                    } else {
                        "written"
                    });
                }
                Err(_) => {
                    state.check_contents(None);
                    reached("refused");
                }
            }
            state.check_stable();
            prove("a write programs a page", truth(programs().is_empty()));
        },
    );
    obligation("read: what was written last", &["found", "refused"], || {
        let mut state = State::any(Begin {
            host: 1,
            ..Begin::default()
        });
        let sector = Word::any("sector");
        let mut data = Sector(Word::any("nothing yet").0);
        match state.ftl.read(sector, &mut data) {
            Ok(()) => {
                let expected = state.before.content(&state.buffer, sector.0);
                prove("a sector reads as something else", data.0.equal(expected));
                reached("found");
            }
            Err(_) => reached("refused"),
        }
        state.check_contents(None);
    });
}

fn trim() {
    let labels = ["trimmed sectors", "trimmed", "refused"];
    obligation(
        "trim: its sectors read as zeros, and nothing else changes",
        &labels,
        || {
            let mut state = State::any(Begin {
                host: 1,
                moved: 1,
                trims: true,
                ..Begin::default()
            });
            let trims = state.ftl.trims.0;
            let noted = cell(trims).length;
            // That a trimmed sector is noted holds again when all is done.
            with_ghost(|g| g.trims = None);
            let (first, count) = (Word::any("first"), Word::any("count"));
            let (writes, budget) = (state.ftl.writes.0, state.ftl.budget.0);
            let (found, before) = (any_sector(), View::now().map);
            loop_of(
                "trimmed sectors",
                |_| {},
                move |i| {
                    let here = found.equal(first.0.plus(i));
                    let expected = choice(here, n(NONE), before.get(found));
                    let view = View::now();
                    prove(
                        "a step trims another sector",
                        view.map.get(found).equal(expected),
                    );
                    crate::state::check_all(&view);
                },
                move |count| {
                    change(ghost().map, |cell| {
                        cell.words.set_where(move |sector| {
                            let inside = sector.minus(first.0).below(count);
                            (all([first.0.at_most(sector), inside]), n(NONE))
                        });
                    });
                },
            );
            let done = state.ftl.trim(first, count);
            prove("a trim programs a page", truth(programs().is_empty()));
            state.check_stable();
            if done.is_err() {
                return reached("refused");
            }
            let sector = any_sector();
            let inside = all([
                first.0.at_most(sector),
                sector.minus(first.0).below(count.0),
            ]);
            let was = state.before.content(&state.buffer, sector);
            let now = View::now().content(&Buffered::of(&state.ftl.host), sector);
            prove(
                "a sector reads as something else",
                now.equal(choice(inside, n(0), was)),
            );
            with_ghost(|g| {
                g.trims = Some(Trims {
                    list: trims,
                    grown: true,
                });
            });
            let sector = any_sector();
            prove(
                "a sector was trimmed and is not noted",
                View::now().replay_holds(sector),
            );
            if cell(trims).length == noted {
                return;
            }
            let noted = cell(trims).words.get(noted);
            let range = first
                .0
                .part(0, 32)
                .widened()
                .raised(32)
                .filled(count.0.part(0, 32).widened());
            prove("another range is noted", noted.equal(range));
            prove("a range is noted beyond the disk", is_range(noted));
            prove(
                "an epoch has more writes than its budget",
                state.ftl.writes.0.at_most(budget),
            );
            prove(
                "a trim is not counted",
                state.ftl.writes.0.equal(writes.plus(n(1))),
            );
            reached("trimmed");
        },
    );
}

fn point() {
    obligation(
        "map: one sector is pointed elsewhere, and all counts are right",
        &["pointed"],
        || {
            let mut state = State::any(Begin::default());
            let sector = Word(any_sector());
            let none = crate::state::chosen("to nowhere");
            let place = if none {
                Word::of(NONE)
            } else {
                Word::bits("place", 14)
            };
            if !none {
                let view = View::now();
                let block = crate::shape::Shape::block_of(&crate::state::SMALL, place).0;
                assume(view.used_as(block, &[crate::blocks::BlockUse::Open]));
            }
            let result = state.ftl.point(sector, place, true);
            prove("a sound map cannot be changed", truth(result.is_ok()));
            let (before, after) = (&state.before, View::now());
            let any = any_sector();
            let expected = choice(any.equal(sector.0), place.0, before.map.get(any));
            prove(
                "another sector was moved",
                after.map.get(any).equal(expected),
            );
            crate::state::check_counts(&after);
            prove(
                "spare blocks are not counted right",
                state.ftl.blocks.spare.0.equal(ghost().spare),
            );
            reached("pointed");
        },
    );
}

pub fn obligations() {
    point();
    seal();
    commit();
    if smt::run::is_long() {
        flush();
    }
    write();
    trim();
}
