//! The pages that a mount looks at past the end of the logs, and those of them that prove that more was durable.
//!
//! That no such page is there after a crash is in the checks of every program (`events`): a page names no commit as
//! durable that is not, and is of the mount that programs it, whose first delta run is durable (`begin`).

use crate::obligation;
use crate::past::Lies;
use crate::state::{Begin, State};
use crate::sym::{n, page_length};
use crate::tag::{self, Tag};
use smt::explore::{branch, prove, reached};
use smt::term::{Term, all, any, apply, not, truth};
use smt::word::Word;

fn proves() {
    let labels = ["a newer commit", "a later mount", "nothing"];
    obligation(
        "end: a page proves more if it names a newer commit, or is data of a later mount, and only then",
        &labels,
        || {
            let state = State::any(Begin::default());
            let tag = Tag {
                kind: Word::bits("kind", 8),
                flags: Word::bits("flags", 8),
                incarnation: Word::bits("incarnation of the page", 32),
                number: Word::any("number of the page"),
                flushed: Word::any("flushed"),
                next: ["first", "second"].map(|name| Word::bits(name, 32)),
                count: Word::any("count"),
            };
            let newer = state.ftl.number.0.below(tag.flushed.0);
            let data = any([tag::DATA, tag::TRIM].map(|kind| tag.kind.0.equal(n(kind))));
            let later = all([data, state.ftl.incarnation.0.below(tag.incarnation.0)]);
            let said = state.ftl.proves_more(&tag);
            prove(
                "it is decided otherwise",
                truth(said).equal(any([newer, later])),
            );
            reached(match (said, branch(newer)) {
                (true, true) => labels[0],
                (true, false) => labels[1],
                _ => labels[2],
            });
        },
    );
}

/// Pages of the block.
const PAGES: u64 = 3;

fn through() {
    let labels = ["to the end", "two erased", "stopped"];
    obligation(
        "end: the pages of a block are looked at up to two erased ones in a row",
        &labels,
        || {
            let mut state = State::any(Begin::default());
            state.ftl.shape.pages = PAGES;
            page_length(
                state.ftl.shape.page_words + state.ftl.shape.spare_words,
                false,
            );
            let block = Word::bits("block", 9);
            let at = |index: u64| state.ftl.shape.page_at(block, Word::of(index)).0;
            let places: Vec<Term> = (0..PAGES).map(at).collect();
            let stop = smt::explore::unknown("it stops at the first page", 0);
            let mut seen = Vec::new();
            let volume = state.ftl.volume.0;
            let mut right = truth(true);
            let done = state
                .ftl
                .look_through(block, Word::of(0), 0, |_, at, lies| {
                    let readable = apply("readable", 0, &[at.0]);
                    let intact = apply("intact", 0, &[at.0, volume]);
                    let blank = apply("blank", 0, &[at.0]);
                    let is = match lies {
                        Lies::Whole(_) => all([readable, intact]),
                        Lies::Erased => all([readable, blank]),
                        Lies::Damaged(_) => any([not(readable), not(intact), not(blank)]),
                    };
                    right = all([right, is]);
                    seen.push((at.0, matches!(lies, Lies::Erased)));
                    branch(stop)
                });
            prove("a page is taken for what it is not", right);
            let same = seen
                .iter()
                .zip(&places)
                .map(|((at, _), place)| at.equal(*place));
            prove("another page is looked at", all(same));
            let two = seen.len() > 1 && seen[seen.len() - 2..].iter().all(|(_, erased)| *erased);
            let Ok(stopped) = done else {
                return prove("looking fails", truth(false));
            };
            prove(
                "it stops where it was not told to",
                truth(stopped).equal(stop),
            );
            let all_seen = seen.len() as u64 == PAGES;
            prove("a page is left out", truth(stopped || two || all_seen));
            let early = seen
                .windows(2)
                .rev()
                .skip(1)
                .any(|pair| pair.iter().all(|(_, erased)| *erased));
            prove("it goes on behind two erased pages", truth(!early));
            reached(match (stopped, two) {
                (true, _) => labels[2],
                (_, true) => labels[1],
                _ => labels[0],
            });
        },
    );
}

pub fn obligations() {
    proves();
    through();
}
