//! Obligations: records. Header and claim; the body's parts, read from any bytes, and read again;
//! the blocks that they may name. Writing and reading back: `parts`.

use crate::codec::record::{
    Bounds, COVERED_RUN_BLOCKS_MAX, CoveredRun, Cursor, Entry, Malformed, RECORD_BLOCKS_MAX,
    RecordClaim, RecordId, authentic, check, claim,
};
use crate::codec::{Bytes, Refusal, Sink};
use crate::obligation;
use crate::sym::{
    LENGTH_BITS, Step, View, Volume, compare_bodies_at, last_hashed, last_loop_end, same_loops,
    watch_steps,
};
use crate::writers::{hash_covered, n, write_record, write_tail};
use smt::explore::{assume, branch, prove, reached, unknown};
use smt::term::{Term, all, any, implies, not, truth};
use smt::word::Word;
use std::cell::RefCell;
use std::rc::Rc;

/// Of `layout`'s byte map, written down a second time.
const MAGIC: u64 = u64::from_le_bytes(*b"STDFRECD");

/// Any region that a journal opens on a device: the log and both headers lie on it, apart.
pub fn any_bounds() -> Bounds<Word> {
    let log_blocks = Word::bits("log_blocks", 19);
    let (log, behind) = (Word::bits("log", 61), Word::bits("behind the log", 61));
    let bounds = Bounds {
        headers: ["header 0", "header 1"].map(|name| Word::bits(name, 62)),
        log,
        log_blocks,
        device_blocks: log + log_blocks + behind,
    };
    let device = bounds.device_blocks.0;
    assume(all([
        n(64).at_most(log_blocks.0),
        log_blocks.0.at_most(n(RECORD_BLOCKS_MAX)),
        bounds.headers[0].0.below(device),
        bounds.headers[1].0.below(device),
    ]));
    bounds
}

/// Any block of the run is on the device, and none of the journal's own.
fn is_home(bounds: &Bounds<Word>, at: Term, count: Term) -> Term {
    let into = Word::bits("into the run", 32).0;
    let (block, log) = (at.plus(into), bounds.log.0);
    let log_end = log.plus(bounds.log_blocks.0);
    let home = all([
        block.below(bounds.device_blocks.0),
        any([block.below(log), log_end.at_most(block)]),
        not(any(bounds.headers.map(|header| block.equal(header.0)))),
    ]);
    implies(into.below(count), home)
}

/// A cursor anywhere in any bytes.
fn any_cursor() -> Cursor<View> {
    let part = |name: &str| Word::bits(name, LENGTH_BITS);
    let at = part("at");
    let end = at + part("left");
    let bytes = View::sized("record", (end + part("behind")).0);
    Cursor { bytes, at, end }
}

pub fn same_id(a: &RecordId<Word>, b: &RecordId<Word>) -> Term {
    all([
        a.epoch.0.equal(b.epoch.0),
        a.seq.0.equal(b.seq.0),
        a.pos.0.equal(b.pos.0),
        a.flushed_seq.0.equal(b.flushed_seq.0),
    ])
}

pub fn same_bytes(a: View, b: View) -> Term {
    let place = unknown("byte", 64);
    let same = implies(place.below(a.span()), a.byte(place).equal(b.byte(place)));
    all([a.span().equal(b.span()), same])
}

pub fn obligations() {
    headers();
    hashes();
    bodies();
    read_twice();
}

fn headers() {
    let refusals = ["Blank", "Magic", "Version(0)", "Volume", "Fields"];
    let outcomes: Vec<&str> = refusals.into_iter().chain(["claim"]).collect();

    obligation(
        "record: a claim is read in range from any bytes",
        &outcomes,
        || {
            let outcome = claim(&Volume::any("volume"), View::any("block"));
            reached(&outcome.map_or_else(|refusal| format!("{refusal:?}"), |_| "claim".into()));
        },
    );

    obligation(
        "record: a claim lies where the format says",
        &["claim"],
        || {
            let (id, block) = (Volume::any("volume"), View::any("block"));
            let Ok(claim) = claim(&id, block) else {
                return;
            };
            reached("claim");
            prove("another magic number", block.at(0, 8).equal(n(MAGIC)));
            prove("another version", block.at(8, 4).equal(n(1)));
            prove(
                "another volume",
                Volume([block.at(16, 8), block.at(24, 8)]).is(&id),
            );
            for (field, place, bytes) in [
                (claim.id.epoch, 32, 8),
                (claim.id.seq, 40, 8),
                (claim.id.pos, 48, 8),
                (claim.id.flushed_seq, 56, 8),
                (claim.body_bytes, 64, 4),
                (claim.blocks, 68, 4),
                (claim.entries, 72, 4),
                (claim.covered, 76, 4),
            ] {
                prove(
                    &format!("field at {place}"),
                    field.0.equal(block.at(place, bytes)),
                );
            }
        },
    );

    obligation(
        "record: blocks and body of a claim agree",
        &["claim"],
        || {
            let Ok(claim) = claim(&Volume::any("volume"), View::any("block")) else {
                return;
            };
            reached("claim");
            let (blocks, bytes) = (claim.blocks.0, claim.body_bytes.0.plus(n(112)));
            prove("no block", n(1).at_most(blocks));
            prove("more than a log has", blocks.at_most(n(RECORD_BLOCKS_MAX)));
            prove("too few", bytes.at_most(blocks.times(4096)));
            prove("too many", blocks.minus(n(1)).times(4096).below(bytes));
        },
    );

    obligation("record: a refusal has its reason", &refusals, || {
        let (id, block) = (Volume::any("volume"), View::any("block"));
        let Err(refusal) = claim(&id, block) else {
            return;
        };
        reached(&format!("{refusal:?}"));
        let (blocks, bytes) = (block.at(68, 4), block.at(64, 4).plus(n(112)));
        let reason = match refusal {
            Refusal::Blank | Refusal::Magic => not(block.at(0, 8).equal(n(MAGIC))),
            Refusal::Version(_) => not(block.at(8, 4).equal(n(1))),
            Refusal::Volume => not(Volume([block.at(16, 8), block.at(24, 8)]).is(&id)),
            Refusal::Fields => any([
                block.span().below(n(112)),
                n(RECORD_BLOCKS_MAX).below(blocks),
                blocks.times(4096).below(bytes),
                bytes.plus(n(4095)).below(blocks.times(4096)),
            ]),
            Refusal::Hash => truth(false),
        };
        prove("refused without a reason", reason);
    });
}

/// The bytes of a writer, followed by any bytes.
fn hashes() {
    obligation(
        "record: what is written is authentic, and the same",
        &["read"],
        || {
            let mut written = write_record();
            prove(
                "its header has 112 bytes",
                written.out.length.minus(written.body.span()).equal(n(112)),
            );
            written.out.append(View::any("behind it"));
            let Some((claim, body)) = authentic(&written.volume, written.out.view(), |_| true)
            else {
                prove("it is refused", truth(false));
                return;
            };
            reached("read");
            prove("another identity", same_id(&claim.id, &written.id));
            prove(
                "another number of entries",
                claim.entries.0.equal(written.entries.0),
            );
            prove(
                "another number of covered runs",
                claim.covered.0.equal(written.covered.0),
            );
            let found = body.bytes.slice(body.at, body.end);
            prove("another body", same_bytes(found, written.body));
        },
    );

    obligation(
        "record: any bytes are tried in range",
        &["authentic", "none"],
        || {
            let bytes = View::any("bytes");
            let Some((claim, body)) = authentic(&Volume::any("volume"), bytes, |_| true) else {
                reached("none");
                return;
            };
            reached("authentic");
            prove("its body begins elsewhere", body.at.0.equal(n(112)));
            prove(
                "its body ends elsewhere",
                body.end.0.equal(claim.body_bytes.0.plus(n(112))),
            );
            prove("its body is cut", body.end.0.at_most(bytes.span()));
        },
    );

    obligation(
        "record: one with a changed byte is refused",
        &["head", "hash", "body"],
        || {
            let (id, bytes) = (Volume::any("volume"), View::any("bytes"));
            let place = unknown("place", 64);
            compare_bodies_at(place.minus(n(112)));
            let Some((_, body)) = authentic(&id, bytes, |_| true) else {
                return;
            };
            assume(place.below(body.end.0));
            reached(if branch(place.below(n(80))) {
                "head"
            } else if branch(place.below(n(112))) {
                "hash"
            } else {
                "body"
            });
            let changed = authentic(&id, bytes.changed(place), |_| true);
            prove("the change is not noticed", truth(changed.is_none()));
        },
    );

    obligation(
        "record: what is authentic was written as this, for this volume",
        &["valid"],
        || {
            let (id, bytes) = (Volume::any("volume"), View::any("bytes"));
            let place = unknown("place", 64);
            compare_bodies_at(place);
            let Some((claim, body)) = authentic(&id, bytes, |_| true) else {
                return;
            };
            let found = last_hashed().digest;
            let written = write_record();
            assume(found.equal(written.hashed.digest));
            reached("valid");
            prove("by another volume", written.volume.is(&id));
            prove("as another record", same_id(&claim.id, &written.id));
            prove(
                "with other entries",
                claim.entries.0.equal(written.entries.0),
            );
            prove(
                "with other covered runs",
                claim.covered.0.equal(written.covered.0),
            );
            prove(
                "with a longer or shorter body",
                claim.body_bytes.0.equal(written.body.span()),
            );
            let inside = place.below(claim.body_bytes.0);
            let same = bytes
                .byte(body.at.0.plus(place))
                .equal(written.body.byte(place));
            prove("with another body", implies(inside, same));
        },
    );

    obligation(
        "record: neither a header nor covered blocks pass for one",
        &["valid"],
        || {
            let (id, bytes) = (Volume::any("volume"), View::any("bytes"));
            if authentic(&id, bytes, |_| true).is_none() {
                return;
            }
            let found = last_hashed().digest;
            reached("valid");
            let header = write_tail().hashed.digest;
            prove("a header does", not(found.equal(header)));
            prove("covered blocks do", not(found.equal(hash_covered())));
        },
    );
}

/// A claim with any numbers of parts, whose body is anywhere.
fn any_claim() -> RecordClaim<Word> {
    let any = |name: &str| Word::any(name);
    let part = |name: &str| Word::bits(name, 32);
    RecordClaim {
        id: RecordId {
            epoch: any("epoch"),
            seq: any("seq"),
            pos: any("pos"),
            flushed_seq: any("flushed_seq"),
        },
        body_bytes: part("body_bytes"),
        blocks: part("blocks"),
        entries: part("entries"),
        covered: part("covered"),
    }
}

fn bodies() {
    let outcomes = [
        "accepted",
        "an entry is cut short",
        "a range is cut short",
        "a range reaches beyond its block",
        "a bit run is cut short",
        "a bit run reaches beyond its block",
        "an entry beyond the device",
        "an entry of the journal itself",
        "a covered run is cut short",
        "a long run",
        "a run beyond the device",
        "a run of the journal itself",
        "bytes are left over",
    ];
    obligation(
        "record: any body is checked in range, and used up",
        &outcomes,
        || {
            let body = any_cursor();
            let checked = check(&any_claim(), body, &any_bounds(), |_| {});
            match checked {
                Ok(()) => {
                    reached("accepted");
                    let end = last_loop_end();
                    let used_up = end.map_or(truth(false), |end| end.equal(body.end.0));
                    prove("bytes are left over", used_up);
                }
                Err(Malformed::Part(what)) => reached(what),
                Err(Malformed::Entry(_, which)) => reached(&format!("an entry {which}")),
                Err(Malformed::RunLength(_)) => reached("a long run"),
                Err(Malformed::Run(_, _, which)) => reached(&format!("a run {which}")),
            }
        },
    );

    obligation(
        "record: accepted entries and runs name homes alone",
        &["entry", "run"],
        || {
            let (claim, body, bounds) = (any_claim(), any_cursor(), any_bounds());
            watch_steps(move |step: &Step| {
                let mut again = step.before;
                // The obligation about blocks shows which blocks that lets through.
                let accepted = |what: &str, at, count| {
                    prove(what, truth(bounds.refuse(at, count).is_none()));
                };
                if step.nth == 0 {
                    same_loops();
                    let Ok(entry) = again.entry() else { return };
                    reached("entry");
                    accepted("an entry names no home", entry.at, Word::of(1));
                } else if let Some(run) = again.covered() {
                    reached("run");
                    accepted("a run names no home", run.at, run.count);
                    let longest = n(COVERED_RUN_BLOCKS_MAX);
                    prove("a run is too long", run.count.0.at_most(longest));
                }
            });
            let _ = check(&claim, body, &bounds, |_| {});
        },
    );

    obligation(
        "record: every covered run that is accepted is told",
        &["told"],
        || {
            let (claim, body, bounds) = (any_claim(), any_cursor(), any_bounds());
            let told: Rc<RefCell<Option<CoveredRun<View>>>> = Rc::default();
            let heard = Rc::clone(&told);
            watch_steps(move |step: &Step| {
                let mut again = step.before;
                if step.nth == 0 {
                    return;
                }
                match (again.covered(), heard.take()) {
                    (Some(run), Some(told)) => {
                        reached("told");
                        let same = [
                            run.at.0.equal(told.at.0),
                            run.count.0.equal(told.count.0),
                            run.hash.0.equal(told.hash.0),
                        ];
                        prove("another run is told", all(same));
                    }
                    _ => prove("a run is not told", truth(false)),
                }
            });
            let _ = check(&claim, body, &bounds, |run| {
                told.replace(Some(run));
            });
        },
    );

    obligation(
        "record: blocks are refused if and only if they are no homes",
        &["refused", "home"],
        || {
            let bounds = any_bounds();
            let (low, count) = (Word::bits("block", 63), Word::bits("count", 32));
            assume(n(0).below(count.0));
            let at = if branch(unknown("in the upper half", 0)) {
                Word::of(1 << 63) + low
            } else {
                low
            };
            if bounds.refuse(at, count).is_none() {
                reached("home");
                prove("no home is accepted", is_home(&bounds, at.0, count.0));
                return;
            }
            reached("refused");
            let (log, device) = (bounds.log.0, bounds.device_blocks.0);
            let end = at.0.plus(count.0);
            let fits = all([at.0.below(end), end.at_most(device)]);
            let apart = any([
                end.at_most(log),
                log.plus(bounds.log_blocks.0).at_most(at.0),
            ]);
            let header = any(bounds
                .headers
                .map(|h| all([at.0.at_most(h.0), h.0.below(end)])));
            prove("a home is refused", not(all([fits, apart, not(header)])));
        },
    );

    obligation(
        "entry: ranges and bit runs lie inside the block",
        &["range", "bits"],
        || {
            watch_steps(|step: &Step| {
                let mut again = step.before;
                if step.nth == 0 {
                    let Some((offset, bytes)) = again.range() else {
                        return;
                    };
                    reached("range");
                    let end = offset.0.plus(bytes.span());
                    prove("a range reaches beyond its block", end.at_most(n(4096)));
                } else if let Some((first, count, _)) = again.bit_run() {
                    reached("bits");
                    let end = first.0.plus(count.0);
                    prove("a bit run reaches beyond its block", end.at_most(n(32768)));
                }
            });
            let _ = any_cursor().entry();
        },
    );

    obligation(
        "entry: it is read in range and ends inside the record",
        &["read", "refused"],
        || {
            let mut cursor = any_cursor();
            let from = cursor;
            let Ok(entry) = cursor.entry() else {
                reached("refused");
                return;
            };
            reached("read");
            let (at, body) = (from.at.0, entry.body.0);
            let header = n(if entry.meta && !entry.revoke { 24 } else { 16 });
            prove("its ranges begin elsewhere", body.minus(at).equal(header));
            prove("it ends before its header", body.at_most(cursor.at.0));
            prove("it ends behind the record", cursor.at.0.at_most(from.end.0));
            prove("it moves the end", cursor.end.0.equal(from.end.0));
        },
    );

    obligation(
        "cursor: it begins inside, whatever is asked for",
        &["inside", "beyond"],
        || {
            let at = Word::any("at");
            let cursor = Cursor::new(View::any("record"), at);
            let span = cursor.bytes.span();
            prove(
                "it begins beyond its end",
                cursor.at.0.at_most(cursor.end.0),
            );
            prove("it ends elsewhere", cursor.end.0.equal(span));
            if branch(at.0.at_most(span)) {
                reached("inside");
                prove("it begins elsewhere", cursor.at.0.equal(at.0));
            } else {
                reached("beyond");
                prove("something is left", cursor.at.0.equal(span));
            }
        },
    );
}

/// An entry that was checked is read again later: from the same place, with a later end.
fn read_twice() {
    obligation(
        "entry: read again it is the one that was checked",
        &["same", "range", "bits"],
        || {
            let mut checked = any_cursor();
            let later = checked.end + Word::bits("later", LENGTH_BITS);
            assume(later.0.at_most(checked.bytes.span()));
            let mut again = Cursor {
                end: later,
                ..checked
            };
            watch_steps(move |step: &Step| {
                let mut first = step.before;
                let mut second = Cursor {
                    end: later,
                    ..first
                };
                if step.nth == 0 {
                    let (Some(a), Some(b)) = (first.range(), second.range()) else {
                        return prove("a range is not there", truth(false));
                    };
                    reached("range");
                    prove("another offset", a.0.0.equal(b.0.0));
                    prove("another length", a.1.span().equal(b.1.span()));
                    prove("other bytes", a.1.from.equal(b.1.from));
                } else {
                    let (Some(a), Some(b)) = (first.bit_run(), second.bit_run()) else {
                        return prove("a bit run is not there", truth(false));
                    };
                    reached("bits");
                    let same = [a.0.0.equal(b.0.0), a.1.0.equal(b.1.0), truth(a.2 == b.2)];
                    prove("another bit run", all(same));
                }
                prove(
                    "the next one is elsewhere",
                    second.at.0.equal(step.behind.at.0),
                );
            });
            let Ok(first) = checked.entry() else {
                return;
            };
            same_loops();
            let Ok(second) = again.entry() else {
                return prove("the entry is not there", truth(false));
            };
            reached("same");
            prove("another entry", same_entry(&first, &second));
            prove("the next one is elsewhere", again.at.0.equal(checked.at.0));
        },
    );
}

fn same_entry(a: &Entry<Word>, b: &Entry<Word>) -> Term {
    all([
        a.at.0.equal(b.at.0),
        truth((a.zero, a.revoke, a.meta) == (b.zero, b.revoke, b.meta)),
        a.checksum.0.equal(b.checksum.0),
        a.ranges.0.equal(b.ranges.0),
        a.bit_runs.0.equal(b.bit_runs.0),
        a.body.0.equal(b.body.0),
    ])
}
