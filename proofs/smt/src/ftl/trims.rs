//! The trims of an epoch: they are gathered into ranges, put into pages, and committed with all else.

use crate::ftl::HOST;
use crate::obligation;
use crate::platform::Queue as _;
use crate::shape::TRIMMED;
use crate::state::{
    Begin, Ranges, SMALL, State, Trims, View, any_sector, chosen, covers, ghost, in_range, is_none,
    is_range, with_ghost,
};
use crate::sym::{
    Memory, Queue, Sorted, cell, change, differ, last_blank, loop_kept, loop_of, loop_shown, n,
    programs, table_made, value,
};
use crate::tag::{self, Tag};
use crate::write::end_range;
use smt::explore::{assume, branch, prove, reached, suppose, unknown};
use smt::term::{Term, all, any, choice, implies, not, truth};
use smt::word::Word;
use std::cell::Cell;
use std::rc::Rc;

/// Any trims of an epoch; that they lie on the disk is `trim`'s.
fn noted() -> (Memory, Queue) {
    let length = Word::bits("trims.length", 40).0;
    let read = Memory::any("trims", 64);
    let words = Memory::of(move |at| {
        let trim = read.get(at);
        suppose(implies(at.below(length), is_range(trim)));
        trim
    });
    (words.clone(), Queue::new(words, length))
}

fn end_of(range: Term) -> Term {
    range.shifted(32).plus(range.part(0, 32).widened())
}

/// The ranges, and one more that is under way, are no more than the trims that were begun and the mapped sectors in them.
fn few(ranges: Term, trims: Term, mapped: Term) -> Term {
    ranges.plus(n(1)).at_most(trims.plus(mapped))
}

/// One step over any trims in order: the sectors that those before it name were looked at, and nothing else, all below
/// `at`. After the last step all that any trim names were.
fn walk() {
    obligation(
        "trims: all that they name is looked at, each sector once",
        &["trimmed sectors", "gap", "more", "nested", "all"],
        || {
            let mut state = State::any(Begin::default());
            let map = View::now().map;
            let (old, mut trims) = noted();
            let list = trims.0;
            trims.sort();
            let Some(sorted) = Sorted::of(list) else {
                return prove("nothing was put in order", truth(false));
            };
            let count = trims.length().0;
            let words = cell(trims.0).words;
            let i = Word::bits("trims before", 40).0;
            let (at, run) = (Word::bits("at", 32), Word::bits("run", 32));
            let mapped = Word::bits("mapped", 40).0;
            let mut ranges = Queue::any("ranges");
            let (list, before) = (ranges.0, cell(ranges.0));
            let x = any_sector();
            let seen = unknown("it was looked at", 0);
            // Of the trims before: the one that ends at `at`, the one with a sector that was looked at, and any.
            let index = |which| Word::bits(which, 40).0;
            let (last, its, other) = (index("last trim"), index("its trim"), index("any trim"));
            let noted = all([i.at_most(count), run.0.at_most(at.0)]);
            let begun = [
                last.below(i),
                at.0.equal(end_of(words.get(last))),
                few(before.length, i, mapped),
            ];
            let nothing = [i, at.0, before.length].map(|word| word.equal(n(0)));
            let names = |index: Term| in_range(&words, i, index, x);
            let known = |index: Term| implies(names(index), seen);
            assume(all([
                noted,
                any([all(begun), all(nothing)]),
                implies(seen, all([x.below(at.0), names(its)])),
                known(last),
                known(other),
            ]));
            if chosen("that was all") {
                assume(i.equal(count));
                let any = index("any trim as it was noted");
                assume(known(sorted.to(any)));
                let named = |index: Term| in_range(&old, count, index, x);
                prove(
                    "a trimmed sector is not looked at",
                    implies(named(any), seen),
                );
                prove(
                    "a sector is looked at that was not trimmed",
                    implies(seen, named(sorted.from(its))),
                );
                return reached("all");
            }
            assume(i.below(count));
            sorted.in_order(last, i);
            let trim = words.get(i);
            let gap = branch(at.0.below(trim.shifted(32)));
            let (from, waits) = if gap {
                (trim.shifted(32), n(0))
            } else {
                (at.0, run.0)
            };
            let (made, left) = (Rc::new(Cell::new(n(0))), Rc::new(Cell::new(n(0))));
            let (first, all_of_them) = (made.clone(), left.clone());
            // A step's own obligation is `gather`: here, that it looks at the next sector.
            loop_of(
                "trimmed sectors",
                move |_| first.set(cell(list).length),
                move |step| {
                    let sector = from.plus(step);
                    let (now, made) = (cell(list), made.get());
                    let ends = not(any([is_none(map.get(sector)), waits.equal(n(0))]));
                    let more = differ(now.length, made);
                    prove("another sector is looked at", more.equal(ends));
                    let end = end_of(now.words.get(made)).equal(sector);
                    prove("another sector is looked at", implies(ends, end));
                },
                move |count| all_of_them.set(count),
            );
            let result = (state.ftl).trimmed_range(Word(trim), at, run, &mut ranges);
            let Ok((end, length)) = result else {
                return prove("a trim cannot be looked at", truth(false));
            };
            let (end, left, now) = (end.0, left.get(), cell(list));
            prove("it goes on elsewhere", end.equal(from.plus(left)));
            prove("a run has other sectors", length.0.equal(waits));
            let new = all([from.at_most(x), x.below(end)]);
            prove("a sector is looked at twice", not(all([seen, new])));
            let seen = any([seen, new]);
            prove("one is looked at that follows", implies(seen, x.below(end)));
            let here = covers(trim, x);
            prove("a trimmed sector is left out", implies(here, seen));
            prove("one is looked at that was not trimmed", implies(new, here));
            let ends = [end_of(trim), at.0].map(|place| end.equal(place));
            prove("it ends where no trim does", any(ends));
            let range = now.words.get(before.length);
            let is_run = [
                end_of(range).equal(at.0),
                range.part(0, 32).widened().equal(run.0),
            ];
            if now.length == before.length {
                prove("a run is lost", any([truth(!gap), run.0.equal(n(0))]));
            } else {
                prove("a range goes on", truth(gap));
                prove("a range is not the run", all(is_run));
            }
            prove(
                "there are more ranges than trims and mapped sectors",
                few(now.length, i.plus(n(1)), mapped),
            );
            reached(if gap {
                "gap"
            } else if branch(left.equal(n(0))) {
                "nested"
            } else {
                "more"
            });
        },
    );
}

/// One step over the sectors that `walk` looks at: those that are unmapped lie in ranges, or in the run that ends here, and no others do.
fn gather() {
    obligation(
        "trims: all that is unmapped goes into ranges, and nothing else",
        &["run", "range", "end"],
        || {
            let mut state = State::any(Begin::default());
            let map = View::now().map;
            let (sector, length) = (Word::bits("sector", 32), Word::bits("run", 32));
            let mut ranges = Queue::any("ranges");
            let before = cell(ranges.0);
            let x = any_sector();
            let seen = unknown("it was looked at", 0);
            let run = |end: Term, length: Term| all([x.below(end), end.minus(length).at_most(x)]);
            let (its, other) = (Word::bits("its range", 40).0, Word::bits("any range", 40).0);
            let (walked, mapped) = (Word::bits("trims", 40).0, Word::bits("mapped", 40).0);
            let last = chosen("the last one");
            let belongs = all([seen, is_none(map.get(x))]);
            let most = n(crate::state::SECTORS - u64::from(!last));
            assume(all([
                sector.0.at_most(most),
                length.0.at_most(sector.0),
                implies(seen, x.below(sector.0)),
                implies(run(sector.0, length.0), belongs),
                few(before.length, walked, mapped),
            ]));
            let lies = |at: Term| in_range(&before.words, before.length, at, x);
            for at in [its, other] {
                let range = before.words.get(at);
                let behind = end_of(range).at_most(sector.0.minus(length.0));
                assume(all([
                    implies(lies(at), belongs),
                    implies(at.below(before.length), all([is_range(range), behind])),
                ]));
            }
            let gathered = any([run(sector.0, length.0), lies(its)]);
            assume(implies(belongs, gathered));
            let (end, length, seen) = if last {
                end_range::<crate::sym::Flash>(&mut ranges, sector, length);
                reached("end");
                (sector.0, n(0), seen)
            } else {
                match state.ftl.trimmed_one(sector, length, &mut ranges) {
                    Ok(length) => {
                        let seen = any([seen, x.equal(sector.0)]);
                        (sector.0.plus(n(1)), length.0, seen)
                    }
                    Err(_) => return prove("a sector cannot be looked up", truth(false)),
                }
            };
            let after = cell(ranges.0);
            let lies = |at: Term| in_range(&after.words, after.length, at, x);
            let belongs = all([seen, is_none(map.get(x))]);
            prove(
                "a range has a sector that is mapped, or was not trimmed",
                implies(lies(other), belongs),
            );
            prove(
                "a run has a sector that is mapped, or was not trimmed",
                implies(run(end, length), belongs),
            );
            let range = after.words.get(other);
            prove(
                "a range is not on the disk",
                implies(other.below(after.length), is_range(range)),
            );
            let behind = end_of(range).at_most(end.minus(length));
            prove(
                "a range and the run overlap",
                implies(other.below(after.length), behind),
            );
            let two = all([lies(other), lies(before.length), other.below(before.length)]);
            prove("two ranges overlap", not(two));
            let kept = range.equal(before.words.get(other));
            prove(
                "an earlier range is lost",
                implies(other.below(before.length), kept),
            );
            let gathered = any([run(end, length), lies(its), lies(before.length)]);
            prove("a trimmed sector is left out", implies(belongs, gathered));
            let has_place = not(is_none(map.get(sector.0)));
            let more = mapped.plus(choice(has_place, n(1), n(0)));
            prove(
                "there are more ranges than trims and mapped sectors",
                if last {
                    after.length.at_most(walked.plus(mapped))
                } else {
                    few(after.length, walked, more)
                },
            );
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
    let words = ranges.words.clone();
    loop_kept(
        "ranges of a page",
        move || vec![last_blank().0, pairs],
        move |begun, count| {
            let from = ghost().ranges_said;
            let [page, list] = [0, 1].map(|i: usize| begun[i].words.clone());
            let [ranges, waiting] = [words.clone(), words.clone()];
            let (mut page, mut list, begin) = (page, list, begun[1].length);
            page.set_where(move |at| (at.below(count), ranges.get(from.plus(at))));
            list.set_where(move |at| {
                let index = at.minus(begin);
                let new = all([begin.at_most(at), index.below(count)]);
                // The length must not carry over into the sector.
                let range = waiting.get(from.plus(index));
                let length = range.part(0, 32).widened().plus(n(TRIMMED));
                (
                    new,
                    range
                        .shifted(32)
                        .raised(32)
                        .filled(length.part(0, 32).widened()),
                )
            });
            vec![(page, begun[0].length), (list, begin.plus(count))]
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
                let (pairs, trims) = (state.ftl.pairs.0, state.ftl.trims.0);
                loop_shown("trims of the epoch", move |_| {
                    let in_order = Sorted::of(trims).is_some();
                    prove("the trims are not in order", truth(in_order));
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
    walk();
    gather();
    page();
    commit();
}
