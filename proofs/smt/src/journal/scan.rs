//! Obligations: the scan of recovery along the log, one step of it from any state that keeps the
//! invariant, and the headers that recovery writes after it.

use crate::codec::Sink;
use crate::codec::record::{RECORD_BLOCKS_MAX, RecordClaim, authentic};
use crate::codec::scan::Scan;
use crate::codec::tail::{TailHeader, empty, follows, judged, makes_sense, newest};
use crate::obligation;
use crate::sym::{View, Volume, last_hashed};
use crate::writers::{WrittenRecord, any_header, any_header_of, n, write_record};
use smt::explore::{assume, end_path, prove, reached};
use smt::term::{Term, all, truth};
use smt::word::Word;

/// Any header that makes sense, for a log of this size. Its numbers are below 2^62, as an obligation
/// says; except for those that are only compared, not computed with.
fn sensible(log_blocks: Word) -> TailHeader<Word> {
    assume(all([
        n(64).at_most(log_blocks.0),
        log_blocks.0.at_most(n(RECORD_BLOCKS_MAX)),
    ]));
    let header = TailHeader {
        flushed_seq: Word::any("header.flushed_seq"),
        ..any_header_of("header", 62)
    };
    if !makes_sense(&header, log_blocks) {
        end_path();
    }
    header
}

/// Invariant of a walk.
fn invariant(header: &TailHeader<Word>, log_blocks: Word, scan: &Scan<Word>) -> Term {
    let walked = scan.pos.0.minus(header.tail_pos.0);
    let records = scan.seq.0.minus(header.tail_seq.0);
    all([
        header.tail_pos.0.at_most(scan.pos.0),
        walked.at_most(log_blocks.0),
        header.tail_seq.0.at_most(scan.seq.0),
        records.at_most(walked),
        header.flushed_seq.0.at_most(scan.proved.0),
    ])
}

/// Any moment of a walk.
fn walking() -> (TailHeader<Word>, Word, Scan<Word>) {
    let part = |name: &str| Word::bits(name, 19);
    let (walked, room, records) = (part("walked"), part("room"), part("records"));
    let log_blocks = walked + room;
    let header = sensible(log_blocks);
    let mut scan = Scan::new(&header, log_blocks);
    scan.pos = header.tail_pos + walked;
    scan.seq = header.tail_seq + records;
    scan.proved = Word::any("proved");
    assume(invariant(&header, log_blocks, &scan));
    (header, log_blocks, scan)
}

/// The next record, accepted from any bytes, and one that a writer wrote once, with any volume, epoch,
/// sequence and position, and that these bytes validate as.
fn accepted(then: impl Fn(&TailHeader<Word>, &Scan<Word>, &Volume, &WrittenRecord)) {
    let (header, _, scan) = walking();
    let (id, bytes) = (Volume::any("volume"), View::any("read"));
    if authentic(&id, bytes, |claim| scan.expects(claim)).is_none() {
        return;
    }
    let found = last_hashed().digest;
    let written = write_record();
    assume(found.equal(written.hashed.digest));
    reached("accepted");
    then(&header, &scan, &id, &written);
}

pub fn obligations() {
    obligation("scan: the walk begins well", &["begun"], || {
        let log_blocks = Word::bits("log_blocks", 19);
        let header = sensible(log_blocks);
        let scan = Scan::new(&header, log_blocks);
        reached("begun");
        prove("the invariant", invariant(&header, log_blocks, &scan));
        prove("room for a whole log", scan.room().0.equal(log_blocks.0));
    });

    obligation(
        "scan: a step keeps the invariant, and the room shrinks",
        &["step"],
        || {
            let (header, log_blocks, mut scan) = walking();
            let bytes = View::any("read");
            let room = scan.room();
            let expected = |claim: &RecordClaim<Word>| scan.expects(claim);
            let Some((claim, _)) = authentic(&Volume::any("volume"), bytes, expected) else {
                return;
            };
            reached("step");
            let (pos, seq, proved) = (scan.pos, scan.seq, scan.proved);
            scan.take(&claim);
            prove("the invariant", invariant(&header, log_blocks, &scan));
            prove("the room does not shrink", scan.room().0.below(room.0));
            prove(
                "it goes on elsewhere",
                scan.pos.0.equal(pos.0.plus(claim.blocks.0)),
            );
            prove(
                "it goes on with another one",
                scan.seq.0.equal(seq.0.plus(n(1))),
            );
            let proofs = [proved.0, claim.id.flushed_seq.0];
            prove(
                "a proof is forgotten",
                all(proofs.map(|p| p.at_most(scan.proved.0))),
            );
            let one = smt::term::any(proofs.map(|p| p.equal(scan.proved.0)));
            prove("a proof is made up", one);
        },
    );

    obligation(
        "scan: an accepted record fits before the tail",
        &["step"],
        || {
            let (header, log_blocks, scan) = walking();
            let expected = |claim: &RecordClaim<Word>| scan.expects(claim);
            let bytes = View::any("read");
            let Some((claim, _)) = authentic(&Volume::any("volume"), bytes, expected) else {
                return;
            };
            reached("step");
            let walked = scan.pos.0.minus(header.tail_pos.0);
            let end = walked.plus(claim.blocks.0);
            prove("it overtakes the tail", end.at_most(log_blocks.0));
            let bytes_claimed = claim.body_bytes.0.plus(n(112));
            prove("it is not read whole", bytes_claimed.at_most(bytes.span()));
        },
    );

    obligation(
        "scan: a record of another volume is never accepted",
        &["accepted"],
        || {
            accepted(|_, _, id, written| prove("it is", written.volume.is(id)));
        },
    );
    obligation(
        "scan: a record of another epoch is never accepted",
        &["accepted"],
        || {
            accepted(|header, _, _, written| {
                prove("it is", written.id.epoch.0.equal(header.record_epoch.0));
            });
        },
    );
    obligation(
        "scan: a record of another sequence is never accepted",
        &["accepted"],
        || {
            accepted(|_, scan, _, written| prove("it is", written.id.seq.0.equal(scan.seq.0)));
        },
    );
    obligation(
        "scan: a record of another lap or place is never accepted",
        &["accepted"],
        || {
            accepted(|_, scan, _, written| prove("it is", written.id.pos.0.equal(scan.pos.0)));
        },
    );
    obligation(
        "scan: the next record, whole, is accepted",
        &["accepted"],
        || {
            let (header, _, scan) = walking();
            let mut written = write_record();
            let blocks = written.body.span().plus(n(112 + 4095)).shifted(12);
            assume(all([
                written.id.pos.0.equal(scan.pos.0),
                written.id.seq.0.equal(scan.seq.0),
                written.id.epoch.0.equal(header.record_epoch.0),
                blocks.at_most(scan.room().0),
            ]));
            written.out.append(View::any("behind it"));
            let bytes = written.out.view();
            let found = authentic(&written.volume, bytes, |claim| scan.expects(claim));
            reached("accepted");
            prove("it is refused", truth(found.is_some()));
        },
    );

    obligation("recovery: nothing it computes overflows", &["all"], || {
        let (header, log_blocks, scan) = walking();
        let (verdict, lap_end) = (judged(&header, scan.pos, scan.seq), scan.lap_end());
        let fresh = empty(verdict.generation, verdict.epoch, scan.pos, scan.seq);
        let _next = scan.pos + Word::of(1);
        reached("all");
        prove(
            "a lap ends elsewhere",
            lap_end.0.equal(header.tail_pos.0.plus(log_blocks.0)),
        );
        prove(
            "the verdict is no newer",
            header.generation.0.below(verdict.generation.0),
        );
        prove(
            "the fresh header is no newer",
            verdict.generation.0.below(fresh.generation.0),
        );
        prove("the epoch is not new", header.epoch.0.below(fresh.epoch.0));
        prove(
            "records are of an old epoch",
            header.record_epoch.0.below(fresh.record_epoch.0),
        );
    });

    obligation(
        "recovery: the headers that it writes make sense",
        &["both"],
        || {
            let (header, log_blocks, scan) = walking();
            // A volume wears out long before its numbers are used up.
            let far = n(u64::MAX / 8);
            assume(all([
                header.generation.0.below(far),
                header.epoch.0.below(far),
                scan.pos.0.below(far),
                scan.seq.0.below(far),
            ]));
            let verdict = judged(&header, scan.pos, scan.seq);
            let fresh = empty(verdict.generation, verdict.epoch, scan.pos, scan.seq);
            reached("both");
            prove(
                "the verdict does not",
                truth(makes_sense(&verdict, log_blocks)),
            );
            prove(
                "the fresh header does not",
                truth(makes_sense(&fresh, log_blocks)),
            );
            prove(
                "the verdict is of other records",
                verdict.record_epoch.0.equal(header.record_epoch.0),
            );
            prove(
                "the verdict moves the tail",
                verdict.tail_pos.0.equal(header.tail_pos.0),
            );
            prove(
                "the fresh log is not the verdict's end",
                fresh.tail_pos.0.equal(scan.pos.0),
            );
        },
    );

    obligation(
        "recovery: a header before the newest one is told",
        &["before", "not"],
        || {
            let headers = [any_header("first"), any_header("second")];
            let log_blocks = Word::any("log_blocks");
            let Some(slot) = newest([Some(&headers[0]), Some(&headers[1])]) else {
                return prove("none counts", truth(false));
            };
            let (header, other) = (&headers[slot], &headers[1 - slot]);
            if !makes_sense(header, log_blocks) {
                return;
            }
            let before = follows(header, other);
            reached(if before { "before" } else { "not" });
            let next = other.generation.0.plus(n(1)).equal(header.generation.0);
            prove("it is told wrongly", next.equal(truth(before)));
        },
    );

    obligation(
        "recovery: numbers that make sense are below a quarter",
        &["sense"],
        || {
            let log_blocks = Word::bits("log_blocks", 19);
            let header = any_header("header");
            if !makes_sense(&header, log_blocks) {
                return;
            }
            reached("sense");
            for number in [
                header.generation,
                header.epoch,
                header.tail_pos,
                header.tail_seq,
            ] {
                prove("a number is larger", number.0.below(n(1 << 62)));
            }
            prove(
                "the tail's sequence is zero",
                n(1).at_most(header.tail_seq.0),
            );
            prove(
                "records of a later epoch",
                header.record_epoch.0.at_most(header.epoch.0),
            );
            if let Some((pos, seq)) = header.verdict {
                let span = pos.0.minus(header.tail_pos.0);
                prove(
                    "a verdict before the tail",
                    header.tail_pos.0.at_most(pos.0),
                );
                prove("a verdict beyond the log", span.at_most(log_blocks.0));
                prove(
                    "a verdict on earlier records",
                    header.tail_seq.0.at_most(seq.0),
                );
            }
        },
    );
}
