//! Blocks: which may be erased, when they are used again, and how streams come to new ones.

use crate::blocks::BlockUse;
use crate::checkpoint::Phase;
use crate::ftl::{DELTA, HOST, MAPS, MOVED};
use crate::obligation;
use crate::state::{Begin, SMALL, State, View};
use crate::sym::{differ, n};
use smt::explore::{assume, prove, reached};
use smt::term::{Term, all, any, implies, truth};
use smt::word::Word;

fn erase() {
    obligation(
        "erase: only what nothing needs, whatever is proposed",
        &["erase", "none"],
        || {
            let mut state = State::any(Begin {
                moved: 1,
                ..Begin::default()
            });
            let begun = state.ftl.begin_erase();
            match begun {
                Ok(true) => reached("begun"),
                Ok(false) => reached("none"),
                Err(_) => prove("an erase cannot be begun", truth(false)),
            }
            state.check();
            state.check_contents(None);
            state.check_stable();
        },
    );
    obligation(
        "erase: a block is free only when that is done",
        &["Free", "Bad", "Pending"],
        || {
            let mut state = State::any(Begin::default());
            let (i, kept, other) = (
                Word::bits("i", 32),
                Word::bits("kept", 32),
                Word::bits("other", 32),
            );
            let length = crate::platform::Queue::length(&state.ftl.blocks.erasing);
            let queue = state.ftl.blocks.erasing.0;
            let entry = |at: Term| crate::sym::cell(queue).words.get(at);
            let listed = |at: Term| {
                let view = View::now();
                let block = entry(at);
                all([
                    block.below(n(SMALL.blocks)),
                    view.used_as(block, &[BlockUse::Erasing]),
                ])
            };
            // Those that were looked at and kept, and those still to be looked at, are all different.
            let left = |at: Term, kept: Term, from: Term| {
                all([any([at.below(kept), from.at_most(at)]), at.below(length.0)])
            };
            assume(all([kept.0.at_most(i.0), i.0.below(length.0), listed(i.0)]));
            assume(all([
                left(other.0, kept.0, i.0),
                listed(other.0),
                differ(other.0, i.0),
            ]));
            assume(differ(entry(other.0), entry(i.0)));
            let block = entry(i.0);
            let wait = crate::state::chosen("wait");
            let Ok(now) = state.ftl.poll_one(i, kept, wait) else {
                return prove("an erase cannot be asked for", truth(false));
            };
            prove("a block under erase is forgotten", listed(other.0));
            let added = now.0.minus(n(1));
            let kept_it = all([
                now.0.equal(kept.0.plus(n(1))),
                entry(added).equal(block),
                listed(added),
            ]);
            prove("the list grows", now.0.at_most(i.0.plus(n(1))));
            let view = View::now();
            for (what, label) in [(BlockUse::Free, "Free"), (BlockUse::Bad, "Bad")] {
                if view.used_as(block, &[what]).as_truth() == Some(true) {
                    prove("a block that is done is kept", now.0.equal(kept.0));
                    reached(label);
                }
            }
            if view
                .used_as(block, &[BlockUse::Free, BlockUse::Bad])
                .as_truth()
                != Some(true)
            {
                prove("a block under erase is lost", kept_it);
                reached("Pending");
            }
            state.check();
            state.check_stable();
        },
    );
}

fn settle() {
    obligation(
        "two phases: an invalid block is erasable when nothing durable needs it",
        &["erasable", "not yet"],
        || {
            let mut state = State::any(Begin {
                committed: true,
                moved: 1,
                ..Begin::default()
            });
            let (i, kept) = (Word::bits("i", 32), Word::bits("kept", 32));
            let length = crate::platform::Queue::length(&state.ftl.blocks.invalid);
            assume(all([kept.0.at_most(i.0), i.0.below(length.0)]));
            let now = state.ftl.blocks.settle_one(i, kept);
            prove(
                "the list grows",
                all([kept.0.at_most(now.0), now.0.at_most(kept.0.plus(n(1)))]),
            );
            state.check();
            state.check_contents(None);
            state.check_stable();
            let block = crate::sym::cell(state.ftl.blocks.invalid.0).words.get(i.0);
            let is = View::now().used_as(block, &[BlockUse::Erasable]);
            if now.0 != kept.0 {
                reached("not yet");
            } else if is.as_truth() == Some(true) {
                reached("erasable");
            }
        },
    );
    obligation(
        "checkpoint: only blocks older than the durable root are given back",
        &["given back"],
        || {
            let begin = Begin {
                committed: true,
                rooted: true,
                phase: Phase::Rooted,
                open: [0, 0, 1, 1],
                ..Begin::default()
            };
            let mut state = State::any(begin);
            let block = Word(crate::state::any_block());
            let view = View::now();
            let meta = view.used_as(block.0, &[BlockUse::Delta, BlockUse::Map]);
            // The count has at least the blocks that are there.
            assume(implies(meta, n(1).at_most(state.ftl.meta_used.0)));
            state.ftl.release_one(block);
            state.check();
            state.check_contents(None);
            state.check_stable();
            reached("given back");
        },
    );
}

fn choose() {
    obligation(
        "stream: a block to open was free, whatever is proposed",
        &["chosen", "waits"],
        || {
            let mut state = State::any(Begin::default());
            if let Ok(block) = state.ftl.choose_next(HOST) {
                let was = state.before.used_as(block.0, &[BlockUse::Free]);
                prove("a block is announced that was not free", was);
                let is = View::now().used_as(block.0, &[BlockUse::Next]);
                prove("a block is not announced", is);
                state.check();
                state.check_stable();
                reached("chosen");
            }
        },
    );
}

fn turn() {
    let streams = [
        ("host", HOST),
        ("moved", MOVED),
        ("delta", DELTA),
        ("map", MAPS),
    ];
    for (name, stream) in streams {
        let name = format!("stream: the {name} stream comes to a place with room");
        obligation(&name, &["room", "waits"], || {
            let mut open = [0; 4];
            open[stream] = 1;
            let begin = Begin {
                open,
                full: Some(stream),
                ..Begin::default()
            };
            let mut state = State::any(begin);
            crate::sym::no_proposals();
            // One block is open, or all that there can be; a stream of one has it full.
            if crate::state::chosen("all are open") {
                state.ftl.streams[stream].width = 1;
            }
            if let Ok(index) = state.ftl.turn(stream) {
                let s = &state.ftl.streams[stream];
                prove("no room", s.open[index].page.0.below(n(s.pages)));
                state.check();
                state.check_contents(None);
                state.check_stable();
                reached("room");
            }
        });
    }
}

/// A program failed: nothing more goes to the block, and it is never erased again.
fn abandon() {
    obligation(
        "failure: the block is closed, and never used again",
        &["host", "moved", "delta", "map", "elsewhere"],
        || {
            let begin = Begin {
                open: [1, 1, 1, 1],
                moved: 1,
                ..Begin::default()
            };
            let mut state = State::any(begin);
            let block = Word(crate::state::any_block());
            let failing = state.ftl.blocks.failing.0;
            let was = crate::sym::cell(failing).words.get(block.0);
            let bad = state.ftl.bad.0;
            let at = SMALL.page_at(block, Word::bits("page", 4));
            let open = |state: &State| {
                let of = |stream: usize| {
                    let mut cursors = state.ftl.streams[stream].open.iter();
                    cursors.any(|c| c.block == block)
                };
                [HOST, MOVED, DELTA, MAPS].map(of)
            };
            let before = open(&state);
            if state.ftl.abandon(at).is_err() {
                return prove("a block cannot be closed", truth(false));
            }
            prove("the block goes on", truth(open(&state) == [false; 4]));
            let streams = state.ftl.streams.iter();
            let left = streams.map(|stream| stream.open.len()).sum::<usize>();
            let closed = before.iter().filter(|&&open| open).count();
            prove("another block is closed", truth(left + closed == 4));
            let now = crate::sym::cell(failing).words.get(block.0);
            prove("that it failed is forgotten", differ(now, n(0)));
            let more = smt::term::choice(was.equal(n(0)), n(1), n(0));
            prove("it is not counted", state.ftl.bad.0.equal(bad.plus(more)));
            // A failing block becomes bad, not erasable (`settle`, `release_one`).
            let use_ = View::now().used_as(block.0, &[BlockUse::Erasable]);
            let before_use = state.before.used_as(block.0, &[BlockUse::Erasable]);
            prove("it may be erased", implies(use_, before_use));
            state.check();
            state.check_contents(None);
            state.check_stable();
            let labels = ["host", "moved", "delta", "map"];
            let label = labels.iter().zip(before).find(|(_, open)| *open);
            reached(label.map_or("elsewhere", |(label, _)| label));
        },
    );
}

pub fn obligations() {
    abandon();
    erase();
    settle();
    choose();
    turn();
}
