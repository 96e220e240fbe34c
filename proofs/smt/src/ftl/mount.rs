//! The uses that a mount gives to blocks: no block that it found to be needed is free or erasable.

use crate::blocks::BlockUse;
use crate::limits::ANCHORS;
use crate::obligation;
use crate::platform::Platform as _;
use crate::state::{Begin, State, View, any_block, ghost};
use crate::sym::{Memory, cell, change, differ, n};
use smt::explore::{assume, prove, reached, suppose};
use smt::term::{Term, all, any, implies, not, truth};
use smt::word::Word;

use BlockUse::{Anchor, Bad, Delta, Erasable, Invalid, Map, Used};

fn classes() {
    obligation(
        "mount: a block that the map, the logs or the root need is not erasable",
        &[
            "anchor", "metadata", "used", "log", "bad", "erasable", "refused",
        ],
        || {
            let mut state = State::any(Begin::default());
            // State of the tables when the logs have been followed.
            let read = Memory::any("found use", 32);
            change(ghost().uses, |cell| {
                cell.words = Memory::of(move |block| {
                    let is = read.get(block);
                    let found = [Erasable, Invalid, Delta, Map];
                    let found = found.map(|use_| is.equal(n(use_ as u64)));
                    suppose(any(found));
                    is
                });
            });
            change(ghost().valid, |cell| {
                cell.words = Memory::any("found count", 32)
            });
            let block = any_block();
            let before = View::now();
            let known_bad = state.ftl.platform.is_bad(Word(block));
            let failing = not(cell(state.ftl.blocks.failing.0)
                .words
                .get(block)
                .equal(n(0)));
            let failing = any([failing, truth(known_bad)]);
            let needed = not(before.valid.get(block).equal(n(0)));
            let (meta, bad) = (state.ftl.meta_used.0, state.ftl.bad.0);
            let invalid = state.ftl.blocks.invalid.0;
            let listed = cell(invalid).length;
            let result = state.ftl.classify_one(Word(block));
            let after = View::now();
            let (was, is) = (
                |use_| before.used_as(block, &[use_]),
                |use_| after.used_as(block, &[use_]),
            );
            let of_meta = any([was(Delta), was(Map)]);
            let anchor = block.below(n(ANCHORS));
            if result.is_err() {
                prove(
                    "a block that makes sense is refused",
                    all([of_meta, needed]),
                );
                return reached("refused");
            }
            let use_ = before.uses.get(block);
            let expected = classified(block, use_, before.valid.get(block), failing);
            prove(
                "a block is used as something else",
                after.uses.get(block).equal(expected),
            );
            prove("an anchor may be used", anchor.equal(is(Anchor)));
            let free = all([not(anchor), was(Erasable), not(needed), not(failing)]);
            prove(
                "a block is erasable that something needs, or one is lost",
                free.equal(is(Erasable)),
            );
            let data = all([not(anchor), not(of_meta)]);
            prove(
                "a block with sectors is not kept",
                all([data, needed]).equal(is(Used)),
            );
            let log = all([data, not(needed), was(Invalid)]);
            prove("a block of the log is not kept", log.equal(is(Invalid)));
            let list = cell(invalid);
            let grown = list.length.equal(listed.plus(n(1)));
            let last = list.words.get(listed).equal(block);
            prove(
                "an invalid block is never settled",
                implies(log, all([grown, last])),
            );
            prove(
                "another block is settled",
                implies(not(log), list.length.equal(listed)),
            );
            let kept = all([not(anchor), of_meta]);
            prove(
                "metadata is not kept",
                implies(kept, after.uses.get(block).equal(before.uses.get(block))),
            );
            let one = |is| smt::term::choice(is, n(1), n(0));
            prove(
                "metadata's blocks are not counted",
                state.ftl.meta_used.0.equal(meta.plus(one(kept))),
            );
            prove(
                "bad blocks are not counted",
                state.ftl.bad.0.equal(bad.plus(one(failing))),
            );
            let out = all([data, not(needed), was(Erasable), failing]);
            prove("a bad block is not set aside", out.equal(is(Bad)));
            prove(
                "spare blocks are not counted right",
                state.ftl.blocks.spare.0.equal(ghost().spare),
            );
            let other = any_block();
            assume(differ(other, block));
            prove(
                "another block is classified",
                after.uses.get(other).equal(before.uses.get(other)),
            );
            for (what, label) in [
                (anchor, "anchor"),
                (kept, "metadata"),
                (is(Used), "used"),
                (log, "log"),
                (is(Bad), "bad"),
                (is(Erasable), "erasable"),
            ] {
                if smt::explore::branch(what) {
                    reached(label);
                }
            }
        },
    );
}

/// A block's use after `classify`, from recovery's findings (`mount: a block that the map`).
pub fn classified(block: Term, found: Term, valid: Term, failing: Term) -> Term {
    let is = |what: BlockUse| n(what as u64);
    let one = |what: BlockUse| found.equal(is(what));
    let pick = smt::term::choice;
    let free = pick(failing, is(Bad), is(Erasable));
    let without = pick(one(Invalid), is(Invalid), free);
    let data = pick(valid.equal(n(0)), without, is(BlockUse::Used));
    let kept = pick(any([one(Delta), one(Map)]), found, data);
    pick(block.below(n(ANCHORS)), is(BlockUse::Anchor), kept)
}

pub fn obligations() {
    classes();
}
