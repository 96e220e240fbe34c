//! The three computations that hash under a volume's key, with any arguments, and the assumption
//! that connects them with a reader's findings.
//!
//! **Assumption.** A hash that a reader computes and finds in the bytes that it reads was
//! computed before, by one of the three writers here, for the same input under the same volume's key.
//! So hashes do not collide (`sym::hash`), and no other program makes them. As in DFSCQ, executions
//! in which a hash matches without that are left out: the claim is about all others.

use crate::codec::record::{self, RecordId};
use crate::codec::tail::{self, TailHeader};
use crate::codec::{Sink, record::RECORD_BLOCKS_MAX};
use crate::sym::{Hashed, Out, View, Volume, hash, last_hashed};
use smt::explore::{assume, branch, unknown};
use smt::term::{Term, all, number, truth};
use smt::word::Word;

pub fn n(value: u64) -> Term {
    number(64, value)
}

/// Any header.
pub fn any_header(name: &str) -> TailHeader<Word> {
    any_header_of(name, 64)
}

/// Any header whose numbers are below 2^bits.
pub fn any_header_of(name: &str, bits: u32) -> TailHeader<Word> {
    let any = |field: &str| Word::bits(&format!("{name}.{field}"), bits);
    let yes = |field: &str| branch(unknown(&format!("{name}.{field}"), 0));
    TailHeader {
        generation: any("generation"),
        epoch: any("epoch"),
        record_epoch: any("record_epoch"),
        tail_pos: any("tail_pos"),
        tail_seq: any("tail_seq"),
        verdict: yes("verdict").then(|| (any("end_pos"), any("end_seq"))),
        flushed_seq: any("flushed_seq"),
        clean: yes("clean"),
    }
}

pub fn same_header(a: &TailHeader<Word>, b: &TailHeader<Word>) -> Term {
    let verdict = match (a.verdict, b.verdict) {
        (None, None) => truth(true),
        (Some(a), Some(b)) => all([a.0.0.equal(b.0.0), a.1.0.equal(b.1.0)]),
        _ => truth(false),
    };
    all([
        a.generation.0.equal(b.generation.0),
        a.epoch.0.equal(b.epoch.0),
        a.record_epoch.0.equal(b.record_epoch.0),
        a.tail_pos.0.equal(b.tail_pos.0),
        a.tail_seq.0.equal(b.tail_seq.0),
        verdict,
        a.flushed_seq.0.equal(b.flushed_seq.0),
        truth(a.clean == b.clean),
    ])
}

/// Content once written as a tail header.
pub struct WrittenTail {
    pub volume: Volume,
    pub header: TailHeader<Word>,
    pub hashed: Hashed,
}

pub fn write_tail() -> WrittenTail {
    let volume = Volume::any("writer's volume");
    let header = any_header("written");
    let mut out = Out::new();
    tail::encode(&header, &volume, &mut out);
    let hashed = last_hashed();
    WrittenTail {
        volume,
        header,
        hashed,
    }
}

/// Content once written as a record.
pub struct WrittenRecord {
    pub volume: Volume,
    pub id: RecordId<Word>,
    pub entries: Word,
    pub covered: Word,
    pub body: View,
    pub out: Out,
    pub hashed: Hashed,
}

/// Any record that fits the largest log. A writer counts entries and runs in 32 bits.
pub fn write_record() -> WrittenRecord {
    let any = |field: &str| Word::any(&format!("written.{field}"));
    let volume = Volume::any("writer's volume");
    let id = RecordId {
        epoch: any("epoch"),
        seq: any("seq"),
        pos: any("pos"),
        flushed_seq: any("flushed_seq"),
    };
    let count = |field: &str| Word::bits(&format!("written.{field}"), 32);
    let (entries, covered) = (count("entries"), count("covered"));
    let body = View::any("written body");
    assume(body.span().at_most(n(RECORD_BLOCKS_MAX * 4096 - 112)));
    let mut out = Out::new();
    record::put_header(&volume, &id, entries, covered, body, &mut out);
    let hashed = last_hashed();
    out.append(body);
    WrittenRecord {
        volume,
        id,
        entries,
        covered,
        body,
        out,
        hashed,
    }
}

/// The hash of covered blocks: a word that names it, the address, the blocks.
pub fn hash_covered() -> Term {
    let mut head = Out::new();
    for byte in *b"covered" {
        head.put::<1>(Word::of(u64::from(byte)));
    }
    head.put::<8>(Word::any("covered.at"));
    let blocks = View::any("covered.blocks");
    let volume = Volume::any("covered.volume");
    hash(volume.0, head.view(), 0, Some(blocks))
}
