//! Rules left out: of recovery, and of the stores that make later calls safe. Each is a store that the volume does without, as
//! if the code did not know the rule; the exploration of later calls finds each.
//!
//! A rule is left out by editing a trace, so that no program has a switch for it. A recovery that leaves out a repair goes on as
//! if it had stored it, as code would that forgot to.

use super::explore::{Recorded, Sequence, explore_trace, record};
use std::cell::RefCell;
use steadfast_model::op::{Data, Op};
use steadfast_pm::{Event, Exploration, Model, Trace};
use steadfast_pmfs::fsck::Problem;
use steadfast_pmfs::layout::*;

/// Most images of a cut call whose recoveries are looked at.
const RECOVERIES_MAX: usize = 24;

fn ops(lines: &[&str]) -> Vec<Op> {
    let parse = |line: &&str| line.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
    lines.iter().map(parse).collect()
}

/// Kind of a store, by its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    /// Of a slot.
    Commit,
    Tag,
    /// Of a descriptor.
    Life,
    Other,
}

fn word_of(geometry: &Geometry, at: u64) -> Word {
    let page = Page(at / PAGE_BYTES);
    if geometry.is_data_page(page) {
        return match at % SLOT_BYTES {
            slot::COMMIT => Word::Commit,
            slot::TAG => Word::Tag,
            _ => Word::Other,
        };
    }
    let chunk = page.0 / geometry.chunk_pages;
    let descriptors = geometry.desc_at(Page(chunk * geometry.chunk_pages));
    let is_life = at >= descriptors && (at - descriptors) % DESC_BYTES == desc::LIFE;
    if is_life { Word::Life } else { Word::Other }
}

/// The trace without the stores that `is_left_out` names, and how many they were.
fn without(trace: &Trace, is_left_out: impl Fn(usize, u64, u64) -> bool) -> (Trace, usize) {
    let stores = trace.events().iter().enumerate().rev();
    let left_out = stores.filter_map(|(index, event)| match *event {
        Event::Store { at, word } if is_left_out(index, at, word) => Some(index),
        _ => None,
    });
    let left_out: Vec<usize> = left_out.collect();
    let less = left_out
        .iter()
        .fold(trace.clone(), |trace, index| trace.without(*index));
    (less, left_out.len())
}

/// A rule of recovery: the call that is cut, its recovery's finding, which of its stores are left out, and the calls after it.
struct Rule {
    problem: Problem,
    setup: &'static [&'static str],
    cut: &'static str,
    left_out: Word,
    /// One of these finds it.
    after: &'static [&'static [&'static str]],
}

const TWO: &[&str] = &[
    "mknod /a file 644 0",
    "mknod /b file 600 0",
    "mkdir /d 755",
    "mknod /d/x file 600 0",
];
const FILE: &[&str] = &[
    "mknod /a file 644 0",
    "write /a 0 #1*9000",
    "mkdir /d 755",
    "mknod /d/x file 600 0",
];

const RULES: &[Rule] = &[
    Rule {
        problem: Problem::RenameUnfinished,
        setup: TWO,
        cut: "rename /a /c replace",
        left_out: Word::Commit,
        after: &[&["unlink /c"]],
    },
    Rule {
        problem: Problem::RenameUnfinished,
        setup: TWO,
        cut: "rename /a /b exchange",
        left_out: Word::Tag,
        after: &[
            &["link /b /c", "rename /a /c exchange"],
            &["link /a /c", "rename /b /c exchange"],
        ],
    },
    Rule {
        problem: Problem::TagOutlived,
        setup: TWO,
        cut: "rename /a /b exchange",
        left_out: Word::Tag,
        after: &[
            &["link /b /c", "rename /a /c exchange"],
            &["link /a /c", "rename /b /c exchange"],
        ],
    },
    Rule {
        problem: Problem::NameOfUnborn,
        setup: TWO,
        cut: "mknod /c file 600 0",
        left_out: Word::Commit,
        after: &[&["mknod /d/n file 644 0"]],
    },
    Rule {
        problem: Problem::LifeUncommitted,
        setup: FILE,
        cut: "write /a 0 #3*8192",
        left_out: Word::Life,
        after: &[&["setattr /a perm=600"]],
    },
    Rule {
        problem: Problem::PagePastEnd,
        setup: FILE,
        cut: "setattr /a size=100",
        left_out: Word::Life,
        after: &[&["setattr /a size=9000"]],
    },
    Rule {
        problem: Problem::PageOfUnborn,
        setup: TWO,
        cut: "symlink /m ttttttttttttttttttttttttttttttttttttttttttttttttt",
        left_out: Word::Life,
        after: &[&["mknod /n file 600 0", "setattr /n size=9000"]],
    },
];

/// Whether a later call shows that the rule was left out. With the rule, no call shows anything.
fn is_found(recorded: &Recorded, rule: &Rule, calls: &[Op]) -> bool {
    let continued: RefCell<Vec<(Recorded, usize)>> = RefCell::default();
    let exploration = Exploration {
        images_max: 4096,
        ..Exploration::default()
    };
    let all = recorded.trace.explore(
        &exploration,
        |_| true,
        |image| {
            if continued.borrow().len() < RECOVERIES_MAX
                && let Some(found) = recorded.continued(image, rule.problem, calls)?
            {
                continued.borrow_mut().push(found);
            }
            Ok::<(), String>(())
        },
    );
    all.unwrap_or_else(|why| panic!("{}: {why}", rule.cut));
    let continued = continued.into_inner();
    assert!(
        !continued.is_empty(),
        "no cut of {} leaves {:?}",
        rule.cut,
        rule.problem
    );
    let mut found = false;
    for (run, first) in &continued {
        let right = explore_trace(run, &run.trace, Model::Line, 64, 1);
        right.unwrap_or_else(|why| panic!("{} with {:?}: {why}", rule.cut, rule.problem));
        let geometry = recorded.geometry;
        let (less, count) = without(&run.trace, |index, at, _| {
            index < *first && word_of(&geometry, at) == rule.left_out
        });
        if count > 0 {
            found |= explore_trace(run, &less, Model::Line, 64, 1).is_err();
        }
    }
    found
}

#[test]
fn a_repair_left_out_of_a_recovery_is_found() {
    let mut missed = Vec::new();
    for rule in RULES {
        let recorded = record(&Sequence {
            setup: ops(rule.setup),
            calls: ops(&[rule.cut]),
        });
        let found = rule
            .after
            .iter()
            .map(|calls| is_found(&recorded, rule, &ops(calls)));
        if !found.collect::<Vec<bool>>().contains(&true) {
            missed.push(format!("{:?} after {}", rule.problem, rule.cut));
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

/// Calls after which a page that was a removed directory's is taken by a file.
fn removal() -> Vec<Op> {
    ops(&[
        "mknod /a file 644 0",
        "mknod /b file 600 0",
        "write /b 0 #1*4096",
        "mkdir /gone 755",
        "mknod /gone/x file 600 0",
        "mknod /c file 600 0",
        "write /c 0 #2*4096",
        "unlink /gone/x",
        "mknod /taker file 600 0",
    ])
}

/// A write whose bytes would be slots that rename `/a` away, were they read as slots.
fn forgery(words: &[u64], geometry: &Geometry) -> Op {
    let word = |at: u64| words[(at / 8) as usize];
    let places = geometry
        .data_pages(0)
        .flat_map(|page| (0..SLOTS_PER_PAGE).map(move |k| Place::new(Page(page), k)));
    let name = u64::from(b'a');
    let mut found =
        places.filter(|place| word(place.at() + slot::NAME) == name && word(place.at()) != 0);
    let place = found.next().expect("the volume has a name a");
    let tag = Tag::from_word(word(place.at() + slot::TAG)).tag;
    let pointer = Pointer {
        from: place,
        tag,
        exchange: None,
    };
    let (one, two) = pointer.words();
    let mut slot = [0u64; 8];
    (slot[0], slot[1], slot[2]) = (word(place.at()), one, two);
    slot[3] = Tag {
        tag: tag + 1,
        len: 1,
        hash: name_hash(b"z"),
    }
    .word();
    slot[4] = u64::from(b'z');
    let bytes = slot.iter().flat_map(|word| word.to_le_bytes());
    Op::Write {
        file: "/taker".into(),
        offset: 0,
        data: Data::Bytes(bytes.cycle().take(PAGE_BYTES as usize).collect()),
    }
}

#[test]
fn a_page_of_a_removed_directory_that_is_kept_is_found() {
    // The removal returns; then a file takes the page.
    let recorded = record(&Sequence {
        setup: removal(),
        calls: ops(&["rmdir /gone"]),
    });
    let write = forgery(recorded.trace.base(), &recorded.geometry);
    let both = record(&Sequence {
        setup: removal(),
        calls: vec![ops(&["rmdir /gone"]).remove(0), write.clone()],
    });
    explore_trace(&both, &both.trace, Model::Line, 4096, 1).unwrap();
    let geometry = both.geometry;
    let (less, count) = without(&both.trace, |index, at, word| {
        let kills = word == 0 && word_of(&geometry, at) == Word::Life;
        kills && first_store(&both.trace, at) == Some(index)
    });
    assert_eq!(count, 1, "one page dies with the directory");
    assert!(
        explore_trace(&both, &less, Model::Line, 4096, 1).is_err(),
        "a page that stays is read as slots"
    );
    // The removal is cut between name and page; recovery frees the page.
    let rule = Rule {
        problem: Problem::PageOfRemoved,
        setup: &[],
        cut: "rmdir /gone",
        left_out: Word::Life,
        after: &[],
    };
    assert!(is_found(&recorded, &rule, &[write]));
}

/// The stores of the first call.
fn first_call(trace: &Trace) -> usize {
    let mut events = trace.events().iter();
    let returned = events.position(|event| *event == Event::Mark(1));
    returned.unwrap_or_default()
}

#[test]
fn an_old_tag_of_a_slot_that_an_exchange_has_changed_is_found() {
    let found = ["/b /c\nrename /a /c exchange", "/a /c\nrename /b /c exchange"].map(|then| {
        let lines = format!("rename /a /b exchange\nlink {then}");
        let calls: Vec<&str> = lines.lines().collect();
        let recorded = record(&Sequence {
            setup: ops(TWO),
            calls: ops(&calls),
        });
        explore_trace(&recorded, &recorded.trace, Model::Line, 512, 1).unwrap();
        // The exchange stores two tags; that of the slot that changes last is the last.
        let end = first_call(&recorded.trace);
        let is_tag = |event: &Event| matches!(event, Event::Store { at, .. } if word_of(&recorded.geometry, *at) == Word::Tag);
        let tag = recorded.trace.events()[..end].iter().rposition(is_tag);
        let (less, count) = without(&recorded.trace, |index, _, _| Some(index) == tag);
        count == 1 && explore_trace(&recorded, &less, Model::Line, 512, 1).is_err()
    });
    assert!(found.contains(&true));
}

#[test]
fn a_descriptor_that_is_not_neutral_before_its_new_words_is_found() {
    // A page that a live file has given up, and whose mark names a later sequence than that of the file that takes it.
    let mut tried = 0;
    for pages in 112..117 {
        let mut setup = ops(TWO);
        setup.extend(ops(&["write /a 0 #7*4096"]));
        setup.extend((1..9).map(|seed| Op::Write {
            file: "/b".into(),
            offset: 0,
            data: Data::Pattern { seed, len: 4096 },
        }));
        // Little else is free.
        setup.extend(ops(&["mknod /filler file 600 0"]));
        setup.push(Op::Write {
            file: "/filler".into(),
            offset: 0,
            data: Data::Pattern {
                seed: 9,
                len: pages * PAGE_BYTES,
            },
        });
        let recorded = record(&Sequence {
            setup,
            calls: ops(&["write /a 0 #8*4096"]),
        });
        let is_life = |at| word_of(&recorded.geometry, at) == Word::Life;
        let (less, count) = without(&recorded.trace, |_, at, word| {
            let old = Life::from_word(recorded.trace.base()[(at / 8) as usize]);
            word == 0 && is_life(at) && old.at > 2 && old.cur == PageState::Written
        });
        if count == 0 {
            continue;
        }
        tried += 1;
        explore_trace(&recorded, &recorded.trace, Model::Line, 512, 1).unwrap();
        assert!(explore_trace(&recorded, &less, Model::Line, 512, 1).is_err());
    }
    assert!(tried > 0, "no page of a live file was taken");
}

/// The first store to a word.
fn first_store(trace: &Trace, wanted: u64) -> Option<usize> {
    let mut events = trace.events().iter();
    events.position(|event| matches!(event, Event::Store { at, .. } if *at == wanted))
}
