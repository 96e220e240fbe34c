//! That the logs which recovery follows are those that were written: each page lies where the one before says,
//! the changes that wait for delta pages are those of the data pages, and followed changes wait again.

use crate::boot::{changed, sound};
use crate::follow::{Head, Place};
use crate::ftl::{DELTA, HOST, MOVED};
use crate::obligation;
use crate::platform::Platform as _;
use crate::shape::NONE;
use crate::state::{Begin, SMALL, State, View, any_sector, chosen, ghost};
use crate::sym::{Queue, cell, change, loop_of, loop_shown, n, no_proposals, programs};
use crate::tag::{self, Tag};
use smt::explore::{assume, end_path, prove, reached};
use smt::term::{all, any, truth};
use smt::word::Word;
use std::cell::Cell;
use std::rc::Rc;

/// Behind a page, recovery looks at the next page of each open block and at the first of the two that are
/// announced (`scan`, `boot`): these are the places that the stream has before.
fn next_place() {
    let streams = [
        ("host", HOST, tag::DATA),
        ("delta", DELTA, tag::DELTA),
        ("moved", MOVED, tag::DATA),
    ];
    let few = if smt::run::is_long() { 3 } else { 2 };
    for (name, stream, kind) in streams.into_iter().take(few) {
        let name = format!("log: the next page of the {name} stream lies where recovery looks");
        obligation(&name, &["open", "first", "second", "worn out"], || {
            let mut open = [0; 4];
            open[stream] = 1;
            let begin = Begin {
                open,
                full: chosen("it is full").then_some(stream),
                committed: true,
                ..Begin::default()
            };
            let mut state = State::any(begin);
            no_proposals();
            // Where none is free it waits, and chooses again.
            assume(smt::term::not(
                cell(state.ftl.blocks.erasing.0).length.equal(n(0)),
            ));
            loop_shown("erasing blocks", |_| end_path());
            if chosen("all are open") {
                state.ftl.streams[stream].width = 1;
            }
            let s = &state.ftl.streams[stream];
            let (next, pages) = (s.next, s.pages);
            let head = (s.open[0].block.0, s.open[0].page.0);
            let number = match stream {
                DELTA => state.ftl.delta,
                _ => Word(state.ftl.number.0.plus(n(1))),
            };
            let tag = state.ftl.tag(kind, number, Word::of(0));
            let page = state.ftl.platform.blank();
            let none = [Word::of(NONE); 2];
            let Ok(at) = state.ftl.append(stream, page, tag, &none) else {
                return reached("worn out");
            };
            let first = |block: Word| SMALL.page_at(block, Word::of(0)).0.equal(at.0);
            let goes_on = all([
                SMALL.page_at(Word(head.0), Word(head.1)).0.equal(at.0),
                head.1.below(n(pages)),
            ]);
            let places = [goes_on, first(next[0]), first(next[1])];
            prove("recovery would not find the page", any(places));
            let made = programs();
            let tag = made
                .last()
                .and_then(|(_, page)| Tag::read(&SMALL, state.ftl.volume, at, page));
            let Some(tag) = tag else {
                return prove("the page is not sealed", truth(false));
            };
            let s = &state.ftl.streams[stream];
            let same = all((0..2).map(|i| tag.next[i].0.equal(s.next[i].0)));
            prove("the page announces other blocks", same);
            // The same for the next page.
            let behind = s.open.iter().map(|cursor| {
                let at = at.0.plus(n(1));
                SMALL.page_at(cursor.block, cursor.page).0.equal(at)
            });
            prove("the stream goes on elsewhere", any(behind));
            let kept = s
                .open
                .iter()
                .map(|cursor| all([cursor.block.0.equal(head.0), cursor.page.0.equal(head.1)]));
            let full = head.1.equal(n(pages));
            prove(
                "an open block goes on elsewhere",
                any(kept.chain([goes_on, full])),
            );
            let labels = ["open", "first", "second"];
            for (place, label) in places.into_iter().zip(labels) {
                if smt::explore::branch(place) {
                    return reached(label);
                }
            }
        });
    }
}

/// Pairs that wait lead from what delta pages say to where replay leads; so they do with those of a page more.
fn pairs() {
    let hosts = if smt::run::is_long() { 2 } else { 1 };
    for (name, host, moved) in [("host's", hosts, 0), ("moved", 0, 1)] {
        let name = format!("log: what waits for delta pages is what a {name} page says");
        obligation(&name, &["said"], || {
            let stream = if host > 0 { HOST } else { MOVED };
            let mut open = [0; 4];
            open[stream] = 1;
            let begin = Begin {
                host,
                moved,
                open,
                ..Begin::default()
            };
            let mut state = State::any(begin).with_room(stream);
            let list = state.ftl.pairs.0;
            let (sector, waiting) = (any_sector(), cell(list));
            let mut expected = View::now().replay.get(sector);
            if state.ftl.seal(stream, false).is_err() {
                return prove("a page cannot be sealed", truth(false));
            }
            let now = cell(list);
            let earlier = Word::bits("any pair", 40).0;
            let same = now.words.get(earlier).equal(waiting.words.get(earlier));
            prove(
                "a pair that waits is lost",
                smt::term::implies(earlier.below(waiting.length), same),
            );
            let Some(more) = now.length.minus(waiting.length).as_number() else {
                return prove("pairs are lost", truth(false));
            };
            for i in 0..more {
                let pair = now.words.get(waiting.length.plus(n(i)));
                expected = changed(pair, sector, expected);
            }
            prove(
                "delta pages will not say what a data page says",
                View::now().replay.get(sector).equal(expected),
            );
            if more > 0 {
                reached("said");
            }
        });
    }
}

/// The changes of a flush that recovery follows are applied in order, and wait for a delta page in order.
fn again() {
    let labels = ["changes of a flush", "committed"];
    obligation(
        "log: what recovery follows is applied in order, and waits to be said again",
        &labels,
        || {
            let mut state = State::any(Begin::default());
            let place = Place {
                stream: HOST,
                block: Word::bits("block", 32),
                page: Word::bits("index", 32),
                announced: false,
            };
            let Ok(head) = state.ftl.head(place) else {
                return prove("the scan fails", truth(false));
            };
            let Some((tag, _)) = &head.found else {
                end_path()
            };
            // Content of its pages, and where it goes on: `replay`, `scan`.
            assume(all([
                tag.flags.0.equal(n(tag::COMMIT)),
                tag.kind.0.equal(n(tag::TRIM)),
                all(tag.next.map(|block| block.0.equal(n(NONE)))),
            ]));
            let expected = tag.number;
            let mut changes = Queue::any("changes");
            let list = changes.0;
            let pairs = state.ftl.pairs.0;
            let (waiting, start) = (cell(pairs).words, cell(pairs).length);
            let sector = any_sector();
            let so_far = sound("map so far");
            let step = so_far.clone();
            let range = Rc::new(Cell::new(n(0)));
            let trims = range.clone();
            loop_shown("ranges of a page", |_| {});
            loop_shown("trimmed sectors", move |count| {
                crate::boot::forget(trims.get(), count);
            });
            let all_of = Rc::new(Cell::new(None));
            let run = all_of.clone();
            loop_of(
                "changes of a flush",
                move |i| {
                    change(ghost().map, |cell| cell.words = so_far.clone());
                    change(pairs, |cell| cell.length = start.plus(i));
                    range.set(cell(list).words.get(i).shifted(32));
                },
                move |i| {
                    let pair = cell(list).words.get(i);
                    let made = changed(pair, sector, step.get(sector));
                    prove(
                        "the map is not as the page says",
                        View::now().map.get(sector).equal(made),
                    );
                    let now = cell(pairs);
                    let last = start.plus(i);
                    let waits = all([
                        now.length.equal(last.plus(n(1))),
                        now.words.get(last).equal(pair),
                    ]);
                    prove("a change is not said again", waits);
                    let earlier = Word::bits("any pair", 41).0;
                    let same = now.words.get(earlier).equal(waiting.get(earlier));
                    prove(
                        "a pair that waits is lost",
                        smt::term::implies(earlier.below(last), same),
                    );
                },
                move |count| run.set(Some(count)),
            );
            let mut heads: Vec<Head<_>> = vec![head];
            let gathered = cell(list).length;
            if let Ok(taken) = state.ftl.follow_one(&mut heads, &mut changes, expected) {
                prove("the page is passed over", truth(taken));
                let whole = all_of
                    .get()
                    .map_or(truth(false), |count: smt::term::Term| count.equal(gathered));
                prove("changes are left out", whole);
                reached("committed");
            }
        },
    );
}

pub fn obligations() {
    next_place();
    pairs();
    again();
}
