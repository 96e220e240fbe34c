//! Obligations: the parts of a record's body, read back where they were written.

use crate::codec::Sink;
use crate::codec::record::{
    Bounds, COVERED_RUN_BLOCKS_MAX, CoveredRun, Cursor, RecordId, authentic, check, put_bit_run,
    put_covered, put_entry, put_header, put_range,
};
use crate::obligation;
use crate::record::{same_bytes, same_id};
use crate::sym::{Digest, Out, View, Volume};
use crate::writers::n;
use smt::explore::{assume, branch, prove, reached, unknown};
use smt::term::{Term, all, truth};
use smt::word::Word;
use std::cell::RefCell;

pub fn obligations() {
    written();
    bounded();
}

/// A cursor at the beginning of bytes that are appended to any bytes, and followed by any bytes.
fn read_back(put: impl FnOnce(&mut Out)) -> (Cursor<View>, Term) {
    let mut out = Out::new();
    out.append(View::any("before"));
    let at = Word(out.length);
    put(&mut out);
    let end = out.length;
    out.append(View::any("behind"));
    (Cursor::new(out.view(), at), end)
}

/// Each part is read back where it was written, and the reader is then at its end: so a reader
/// reads any sequence of parts that a writer appends.
fn written() {
    obligation(
        "entry: its header is read back where it was written",
        &["read"],
        || {
            let at = Word::any("written at");
            let parts = [Word::bits("ranges", 16), Word::bits("bit runs", 16)];
            let limits = all([parts[0].0.at_most(n(4096)), parts[1].0.at_most(n(32768))]);
            assume(limits);
            let yes = |name: &str| branch(unknown(name, 0));
            let (zero, revoke) = (yes("zero"), yes("revoke"));
            // A freed block has no checksum.
            let sum = (!revoke && yes("meta")).then(|| Word::any("checksum"));
            let (mut cursor, end) = read_back(|out| put_entry(at, zero, revoke, sum, parts, out));
            match cursor.entry() {
                Err(what) => prove("it is cut", truth(what != "an entry is cut short")),
                Ok(entry) => {
                    reached("read");
                    prove("another block", entry.at.0.equal(at.0));
                    let flags = (entry.zero, entry.revoke, entry.meta);
                    prove("other flags", truth(flags == (zero, revoke, sum.is_some())));
                    if let Some(sum) = sum {
                        prove("another checksum", entry.checksum.0.equal(sum.0));
                    }
                    prove("another number of ranges", entry.ranges.0.equal(parts[0].0));
                    prove(
                        "another number of bit runs",
                        entry.bit_runs.0.equal(parts[1].0),
                    );
                    prove("its ranges begin elsewhere", entry.body.0.equal(end));
                }
            }
        },
    );

    obligation(
        "range: it is read back where it was written",
        &["read"],
        || {
            let (offset, bytes) = (
                Word::bits("offset", 13),
                View::sized("image", Word::bits("image.length", 13).0),
            );
            let inside = all([
                offset.0.at_most(n(4096)),
                offset.0.plus(bytes.span()).at_most(n(4096)),
            ]);
            assume(inside);
            let (mut cursor, end) = read_back(|out| put_range(offset, bytes, out));
            let Some((found, read)) = cursor.range() else {
                return prove("it is cut", truth(false));
            };
            reached("read");
            prove("another offset", found.0.equal(offset.0));
            prove("other bytes", same_bytes(read, bytes));
            prove("the next part is elsewhere", cursor.at.0.equal(end));
        },
    );

    obligation(
        "bit run: it is read back where it was written",
        &["read"],
        || {
            let (first, count) = (Word::bits("first", 15), Word::bits("count", 15));

            let value = branch(unknown("value", 0));
            let (mut cursor, end) = read_back(|out| put_bit_run(first, count, value, out));
            let Some(run) = cursor.bit_run() else {
                return prove("it is cut", truth(false));
            };
            reached("read");
            let same = [
                run.0.0.equal(first.0),
                run.1.0.equal(count.0),
                truth(run.2 == value),
            ];
            prove("another bit run", all(same));
            prove("the next part is elsewhere", cursor.at.0.equal(end));
        },
    );

    obligation(
        "covered run: it is read back where it was written",
        &["read"],
        || {
            let run = any_run();
            let (mut cursor, end) = read_back(|out| put_covered(&run, out));
            let Some(read) = cursor.covered() else {
                return prove("it is cut", truth(false));
            };
            reached("read");
            prove("another run", same_run(&read, &run));
            prove("the next part is elsewhere", cursor.at.0.equal(end));
        },
    );
}

fn any_run() -> CoveredRun<View> {
    let run: CoveredRun<View> = CoveredRun {
        at: Word::any("run at"),
        count: Word::any("run count"),
        hash: Digest(unknown("run hash", 256)),
    };
    assume(run.count.0.at_most(n(COVERED_RUN_BLOCKS_MAX)));
    run
}

fn same_run(a: &CoveredRun<View>, b: &CoveredRun<View>) -> Term {
    all([
        a.at.0.equal(b.at.0),
        a.count.0.equal(b.count.0),
        a.hash.0.equal(b.hash.0),
    ])
}

/// A whole record with a part of each kind, numbers and lengths unknown: written, checked and read.
fn bounded() {
    obligation(
        "record: (one of each part) a whole record is read as written",
        &["read"],
        || {
            let bounds = Bounds {
                headers: [Word::of(0), Word::of(1)],
                log: Word::of(2),
                log_blocks: Word::of(64),
                device_blocks: Word::of(1 << 40),
            };
            let home = |name: &str| Word::of(66) + Word::bits(name, 32);
            let blocks = [home("patched"), home("freed")];
            let run = CoveredRun {
                at: home("run at"),
                ..any_run()
            };
            let sum = Word::any("checksum");
            let (offset, bytes) = (
                Word::bits("offset", 13),
                View::sized("image", Word::bits("image.length", 13).0),
            );
            let (first, count) = (Word::bits("first", 15), Word::bits("count", 15));
            assume(all([
                offset.0.at_most(n(4096)),
                offset.0.plus(bytes.span()).at_most(n(4096)),
                first.0.plus(count.0).at_most(n(32768)),
            ]));
            let mut body = Out::new();
            put_entry(
                blocks[0],
                true,
                false,
                Some(sum),
                [1, 1].map(Word::of),
                &mut body,
            );
            put_range(offset, bytes, &mut body);
            put_bit_run(first, count, true, &mut body);
            put_entry(
                blocks[1],
                false,
                true,
                None,
                [0, 0].map(Word::of),
                &mut body,
            );
            put_covered(&run, &mut body);

            let id = Volume::any("volume");
            let record = RecordId {
                epoch: Word::any("epoch"),
                seq: Word::any("seq"),
                pos: Word::any("pos"),
                flushed_seq: Word::any("flushed_seq"),
            };
            let mut out = Out::new();
            put_header(
                &id,
                &record,
                Word::of(2),
                Word::of(1),
                body.view(),
                &mut out,
            );
            out.append(body.view());
            out.append(View::any("behind it"));
            let Some((claim, cursor)) = authentic(&id, out.view(), |_| true) else {
                return prove("it is refused", truth(false));
            };
            prove("another record", same_id(&claim.id, &record));
            let told = RefCell::new(Vec::new());
            if let Err(what) = check(&claim, cursor, &bounds, |run| told.borrow_mut().push(run)) {
                return prove(&format!("it is malformed: {what:?}"), truth(false));
            }
            reached("read");
            let told = told.into_inner();
            prove("another number of covered runs", truth(told.len() == 1));
            prove(
                "another covered run",
                all(told.iter().map(|t| same_run(t, &run))),
            );
            let mut entries = Cursor::new(out.view(), Word::of(112));
            let (Ok(patch), Ok(freed)) = (entries.entry(), entries.entry()) else {
                return prove("an entry is lost", truth(false));
            };
            let flags = [
                patch.zero,
                patch.revoke,
                patch.meta,
                freed.zero,
                freed.revoke,
                freed.meta,
            ];
            prove(
                "other flags",
                truth(flags == [true, false, true, false, true, false]),
            );
            prove("another block", patch.at.0.equal(blocks[0].0));
            prove("another freed block", freed.at.0.equal(blocks[1].0));
            prove("another checksum", patch.checksum.0.equal(sum.0));
            let mut parts = Cursor::new(out.view(), patch.body);
            let (Some(range), Some(bits)) = (parts.range(), parts.bit_run()) else {
                return prove("a part is lost", truth(false));
            };
            prove("another range", range.0.0.equal(offset.0));
            prove("other bytes", same_bytes(range.1, bytes));
            let same = [
                bits.0.0.equal(first.0),
                bits.1.0.equal(count.0),
                truth(bits.2),
            ];
            prove("another bit run", all(same));
        },
    );
}
