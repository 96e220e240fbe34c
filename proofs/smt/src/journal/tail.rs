//! Obligations: tail headers.

use crate::codec::tail::{decode, encode, newest};
use crate::codec::{Refusal, Sink};
use crate::obligation;
use crate::sym::{Out, View, Volume, last_hashed};
use crate::writers::{any_header, hash_covered, n, same_header, write_record, write_tail};
use smt::explore::{assume, branch, prove, reached, unknown};
use smt::term::{all, any, implies, not, truth};

/// Of `layout`'s byte map, written down a second time.
const MAGIC: u64 = u64::from_le_bytes(*b"STDFTAIL");

pub fn obligations() {
    let refusals = ["Blank", "Magic", "Version(0)", "Volume", "Fields", "Hash"];
    let outcomes: Vec<&str> = refusals.into_iter().chain(["valid"]).collect();

    obligation("tail: any bytes are decoded in range", &outcomes, || {
        let outcome = decode(&Volume::any("volume"), View::any("block"));
        reached(&outcome.map_or_else(|refusal| format!("{refusal:?}"), |_| "valid".into()));
    });

    obligation(
        "tail: what is decoded lies where the format says",
        &["valid"],
        || {
            let (id, block) = (Volume::any("volume"), View::any("block"));
            let Ok(header) = decode(&id, block) else {
                return;
            };
            reached("valid");
            let at = |place| block.at(place, 8);
            let flags = block.at(12, 4);
            prove("the block is too short", n(128).at_most(block.span()));
            prove("another magic number", at(0).equal(n(MAGIC)));
            prove("another version", block.at(8, 4).equal(n(1)));
            prove("another volume", Volume([at(16), at(24)]).is(&id));
            let verdict = truth(header.verdict.is_some());
            prove(
                "flag of the verdict",
                flags.masked(1).equal(n(1)).equal(verdict),
            );
            prove(
                "flag of a clean log",
                flags.masked(2).equal(n(2)).equal(truth(header.clean)),
            );
            prove("another flag", flags.below(n(4)));
            let fields = [
                (header.generation, 32),
                (header.epoch, 40),
                (header.record_epoch, 48),
                (header.tail_pos, 56),
                (header.tail_seq, 64),
                (header.flushed_seq, 88),
            ];
            let verdict = header.verdict.map(|(pos, seq)| [(pos, 72), (seq, 80)]);
            for (field, place) in fields.into_iter().chain(verdict.into_iter().flatten()) {
                prove(&format!("field at {place}"), field.0.equal(at(place)));
            }
        },
    );

    obligation("tail: a refusal has its reason", &refusals, || {
        let (id, block) = (Volume::any("volume"), View::any("block"));
        let Err(refusal) = decode(&id, block) else {
            return;
        };
        reached(&format!("{refusal:?}"));
        let at = |place| block.at(place, 8);
        let reason = match refusal {
            Refusal::Blank | Refusal::Magic => not(at(0).equal(n(MAGIC))),
            Refusal::Version(_) => not(block.at(8, 4).equal(n(1))),
            Refusal::Volume => not(Volume([at(16), at(24)]).is(&id)),
            Refusal::Fields => any([block.span().below(n(128)), n(3).below(block.at(12, 4))]),
            Refusal::Hash => {
                let found: Vec<_> = (96..128).rev().map(|i| block.byte(n(i))).collect();
                not(smt::term::joined(&found).equal(last_hashed().digest))
            }
        };
        prove("refused without a reason", reason);
    });

    obligation(
        "tail: what is encoded is decoded",
        &["verdict", "none"],
        || {
            let (id, header) = (Volume::any("volume"), any_header("header"));
            reached(if header.verdict.is_some() {
                "verdict"
            } else {
                "none"
            });
            let mut out = Out::new();
            encode(&header, &id, &mut out);
            prove("it has 128 bytes", out.length.equal(n(128)));
            out.append(View::any("behind it"));
            match decode(&id, out.view()) {
                Ok(decoded) => prove("another header", same_header(&header, &decoded)),
                Err(refusal) => prove(&format!("refused: {refusal:?}"), truth(false)),
            }
        },
    );

    obligation(
        "tail: different headers have different bytes",
        &["two"],
        || {
            let id = Volume::any("volume");
            let (a, b) = (any_header("one"), any_header("other"));
            let bytes = [&a, &b].map(|header| {
                let mut out = Out::new();
                encode(header, &id, &mut out);
                out.view()
            });
            reached("two");
            let same = all((0..96).map(|i| bytes[0].byte(n(i)).equal(bytes[1].byte(n(i)))));
            prove("two headers look alike", implies(same, same_header(&a, &b)));
        },
    );

    obligation(
        "tail: a header with a changed byte is refused",
        &["head", "hash"],
        || {
            let (id, block) = (Volume::any("volume"), View::any("block"));
            if decode(&id, block).is_err() {
                return;
            }
            let place = unknown("place", 64);
            assume(place.below(n(128)));
            reached(if branch(place.below(n(96))) {
                "head"
            } else {
                "hash"
            });
            let changed = decode(&id, block.changed(place));
            prove("the change is not noticed", truth(changed.is_err()));
        },
    );

    obligation(
        "tail: what is valid was written as this, for this volume",
        &["valid"],
        || {
            let (id, block) = (Volume::any("volume"), View::any("block"));
            let Ok(header) = decode(&id, block) else {
                return;
            };
            let found = last_hashed().digest;
            let written = write_tail();
            assume(found.equal(written.hashed.digest));
            reached("valid");
            prove("by another volume", written.volume.is(&id));
            prove("as another header", same_header(&header, &written.header));
        },
    );

    obligation(
        "tail: neither a record nor covered blocks pass for one",
        &["valid"],
        || {
            let (id, block) = (Volume::any("volume"), View::any("block"));
            if decode(&id, block).is_err() {
                return;
            }
            let found = last_hashed().digest;
            reached("valid");
            let record = write_record().hashed.digest;
            prove("a record does", not(found.equal(record)));
            prove("covered blocks do", not(found.equal(hash_covered())));
        },
    );

    obligation(
        "tail: of two valid headers the newer counts",
        &["0", "1", "none"],
        || {
            let read = ["first", "second"].map(|name| {
                let valid = branch(unknown(&format!("{name} is valid"), 0));
                valid.then(|| any_header(name))
            });
            let best = newest([read[0].as_ref(), read[1].as_ref()]);
            let Some(slot) = best else {
                reached("none");
                prove(
                    "one is valid",
                    truth(read.iter().all(|header| header.is_none())),
                );
                return;
            };
            reached(&slot.to_string());
            let Some(header) = &read[slot] else {
                prove("it is not valid", truth(false));
                return;
            };
            let at_most = read
                .iter()
                .flatten()
                .map(|other| other.generation.0.at_most(header.generation.0));
            prove("another one is newer", all(at_most));
        },
    );
}
