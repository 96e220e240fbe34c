//! The trims of an epoch: they are gathered into ranges, put into pages, and committed with all else.

use crate::ftl::HOST;
use crate::obligation;
use crate::platform::Queue as _;
use crate::shape::TRIMMED;
use crate::state::{
    Begin, Ranges, SMALL, State, Trims, View, any_sector, chosen, ghost, in_range, is_none,
    is_range, with_ghost,
};
use crate::sym::{
    Memory, Queue, cell, change, differ, last_blank, loop_of, loop_shown, n, programs, table_made,
    value,
};
use crate::tag::{self, Tag};
use crate::write::end_range;
use smt::explore::{assume, prove, reached, suppose};
use smt::term::{Term, all, any, implies, truth};
use smt::word::Word;
use std::rc::Rc;

/// One step: the unmapped sectors so far lie in ranges, or in the run that ends here, and nothing else does.
fn gather() {
    obligation(
        "trims: all that is unmapped goes into ranges, and nothing else",
        &["run", "range", "end"],
        || {
            let mut state = State::any(Begin::default());
            let map = View::now().map;
            let (first, sector) = (Word::bits("first", 32), Word::bits("sector", 32));
            let length = Word::bits("run", 32);
            let mut ranges = Queue::any("ranges");
            let before = cell(ranges.0);
            let x = any_sector();
            let unmapped = is_none(map.get(x));
            let run = |end: Term, length: Term| all([x.below(end), end.minus(length).at_most(x)]);
            let (its, other) = (Word::bits("its range", 40).0, Word::bits("any range", 40).0);
            let last = chosen("the last one");
            assume(all([
                first.0.at_most(sector.0),
                length.0.at_most(sector.0.minus(first.0)),
                sector
                    .0
                    .at_most(n(crate::state::SECTORS - u64::from(!last))),
                implies(run(sector.0, length.0), unmapped),
            ]));
            let lies = |at: Term| in_range(&before.words, before.length, at, x);
            for at in [its, other] {
                assume(all([
                    implies(lies(at), unmapped),
                    implies(at.below(before.length), is_range(before.words.get(at))),
                ]));
            }
            let seen = |end: Term| all([first.0.at_most(x), x.below(end), unmapped]);
            let gathered = any([run(sector.0, length.0), lies(its)]);
            assume(implies(seen(sector.0), gathered));
            let (end, length) = if last {
                end_range::<crate::sym::Flash>(&mut ranges, sector, length);
                reached("end");
                (sector.0, n(0))
            } else {
                match state.ftl.trimmed_one(sector, length, &mut ranges) {
                    Ok(length) => (sector.0.plus(n(1)), length.0),
                    Err(_) => return prove("a sector cannot be looked up", truth(false)),
                }
            };
            let after = cell(ranges.0);
            let lies = |at: Term| in_range(&after.words, after.length, at, x);
            prove("a mapped sector is trimmed", implies(lies(other), unmapped));
            prove(
                "a run has a mapped sector",
                implies(run(end, length), unmapped),
            );
            prove(
                "a range is not on the disk",
                implies(other.below(after.length), is_range(after.words.get(other))),
            );
            let kept = after.words.get(other).equal(before.words.get(other));
            prove(
                "an earlier range is lost",
                implies(other.below(before.length), kept),
            );
            let gathered = any([run(end, length), lies(its), lies(before.length)]);
            prove("a trimmed sector is left out", implies(seen(end), gathered));
            reached(if after.length == before.length {
                "run"
            } else {
                "range"
            });
        },
    );
}

/// The ranges of an epoch, as `gather` has them: all trimmed sectors that are unmapped now.
fn gathered() -> Ranges {
    let length = Word::bits("ranges", 40).0;
    let read = Memory::any("range", 64);
    let words = Memory::of(move |at| {
        let range = read.get(at);
        suppose(implies(at.below(length), is_range(range)));
        range
    });
    let of = |sector: Term| value("range of", 40, &[sector.part(0, 13)]);
    let (view, known) = (View::now(), words.clone());
    let fact = move |index: Term, sector: Term| {
        let unmapped = is_none(view.map.get(sector));
        let lies = |at: Term| in_range(&known, length, at, sector);
        all([
            implies(lies(index), unmapped),
            implies(all([unmapped, view.was_trimmed(sector)]), lies(of(sector))),
        ])
    };
    Ranges {
        words,
        length,
        fact: Rc::new(fact),
        of: Rc::new(of),
    }
}

/// A page's ranges are those from where the pages before it ended; as pairs they wait for a delta page.
fn page_of(ranges: &Ranges, pairs: usize) {
    let (step, words) = (ranges.words.clone(), ranges.words.clone());
    loop_of(
        "ranges of a page",
        |_| {
            change(last_blank().0, |cell| {
                cell.words = Memory::any("page so far", 64)
            })
        },
        move |i| {
            let range = step.get(ghost().ranges_said.plus(i));
            prove(
                "a range is not where it belongs",
                last_blank().at(i).equal(range),
            );
            let list = cell(pairs);
            let pair = list.words.get(list.length.minus(n(1)));
            prove(
                "a pair is not a trim of this range",
                all([
                    pair.equal(range.plus(n(TRIMMED))),
                    pair.shifted(32).equal(range.shifted(32)),
                ]),
            );
        },
        move |count| {
            let from = ghost().ranges_said;
            let page = words.clone();
            change(last_blank().0, |cell| {
                cell.words
                    .set_where(move |at| (at.below(count), page.get(from.plus(at))));
            });
            let words = words.clone();
            change(pairs, |cell| {
                let begin = cell.length;
                cell.words.set_where(move |at| {
                    let index = at.minus(begin);
                    let new = all([begin.at_most(at), index.below(count)]);
                    (new, words.get(from.plus(index)).plus(n(TRIMMED)))
                });
                cell.length = begin.plus(count);
            });
        },
    );
}

fn page() {
    obligation(
        "trims: a page says the ranges that are next, the last one commits",
        &["ranges of a page", "commits", "last", "more"],
        || {
            let begin = Begin {
                trims: true,
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(HOST);
            let commits = chosen("commits");
            let ranges = gathered();
            let from = Word::bits("from", 40);
            assume(from.0.at_most(ranges.length));
            with_ghost(|g| {
                g.may_commit = commits;
                g.ranges_said = from.0;
                g.ranges = Some(ranges.clone());
            });
            page_of(&ranges, state.ftl.pairs.0);
            let list = Queue::new(ranges.words.clone(), ranges.length);
            let Ok(count) = state.ftl.seal_ranges(&list, from, commits) else {
                return prove("a page of trims cannot be sealed", truth(false));
            };
            let made = programs();
            prove("one page is one", truth(made.len() == 1));
            let tag = made
                .first()
                .and_then(|(at, page)| Tag::read(&SMALL, state.ftl.volume, Word(*at), page));
            let Some(tag) = tag else {
                return prove("a page of trims is not sealed", truth(false));
            };
            prove("it is no page of trims", tag.kind.0.equal(n(tag::TRIM)));
            prove("it counts other ranges", tag.count.0.equal(count.0));
            let end = from.0.plus(count.0);
            prove("it goes beyond the ranges", end.at_most(ranges.length));
            let (last, full) = (end.equal(ranges.length), count.0.equal(n(SMALL.page_words)));
            prove("a page is left that says nothing", any([last, full]));
            let expected = all([last, truth(commits)]);
            let is = tag.flags.0.equal(n(tag::COMMIT));
            prove("it commits before the last one, or not", is.equal(expected));
            state.check();
            state.check_contents(None);
            state.check_stable();
            let is_last = smt::explore::branch(last);
            reached(match (is_last, commits) {
                (true, true) => "commits",
                (true, false) => "last",
                (false, _) => "more",
            });
        },
    );
}

/// The whole commit; its ranges fill one page, in the long tier two at most if nothing else waits (any page: `page`).
fn commit() {
    for host in [0, 1] {
        let pages = if smt::run::is_long() && host == 0 {
            2
        } else {
            1
        };
        let name =
            format!("commit: all or nothing, of an epoch with trims, {host} sectors waiting");
        let labels = ["commit", "done", "one page", "two pages"];
        obligation(
            &name,
            if pages == 1 { &labels[..3] } else { &labels },
            || {
                let begin = Begin {
                    host,
                    trims: true,
                    ..Begin::default()
                };
                let mut state = State::any(begin).with_pages(HOST, 3);
                with_ghost(|g| g.may_commit = true);
                assume(differ(state.ftl.trims.length().0, n(0)));
                let pairs = state.ftl.pairs.0;
                loop_shown("trims of the epoch", move |_| {
                    let ranges = gathered();
                    assume(ranges.length.at_most(n(pages * SMALL.page_words)));
                    change(table_made(0), |cell| {
                        cell.words = ranges.words.clone();
                        cell.length = ranges.length;
                    });
                    page_of(&ranges, pairs);
                    with_ghost(|g| g.ranges = Some(ranges));
                });
                if state.ftl.commit().is_err() {
                    return prove("a commit fails", truth(false));
                }
                let after = View::now();
                let sector = any_sector();
                let now = after.stable.get(sector).equal(after.map.get(sector));
                prove("what a crash returns to is not the map", now);
                let same = after.map.get(sector).equal(after.replay.get(sector));
                prove("a sector is trimmed, and no page says so", same);
                let newest = [ghost().flushed, state.ftl.number.0];
                prove(
                    "the newest page is not durable",
                    all(newest.map(|number| state.ftl.flushed.0.equal(number))),
                );
                prove(
                    "the next epoch is not empty",
                    all([state.ftl.writes.0, state.ftl.trims.length().0].map(|w| w.equal(n(0)))),
                );
                with_ghost(|g| {
                    g.trims = Some(Trims {
                        list: state.ftl.trims.0,
                        grown: false,
                    });
                });
                state.check();
                state.check_contents(None);
                reached("done");
                reached(match programs().len() - host {
                    1 => "one page",
                    _ => "two pages",
                });
            },
        );
    }
}

pub fn obligations() {
    gather();
    page();
    commit();
}
