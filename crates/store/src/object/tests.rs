use super::*;
use crate::map::{ObjectEntry, Spot};
use crate::protocol::{Base, Claim, Head, Nonce, Reference, Slot, SlotName, Span, Term, Version};
use proptest::prelude::*;

const VOLUME: VolumeId = VolumeId([7; 16]);
const AT: SlotName = SlotName {
    term: Term(3),
    slot: Slot(9),
};
const MAP: ObjectName = ObjectName::Map {
    term: Term(3),
    number: 4,
};
const ROOTS: ObjectName = ObjectName::Roots {
    term: Term(3),
    nonce: Nonce(5),
};

/// All codings of objects.
fn codings() -> Vec<Coding> {
    let mut codings = Vec::new();
    for (zstd, encrypted, unit_blocks) in [
        (false, false, 16),
        (false, false, 2),
        (true, false, 16),
        (false, true, 16),
        (true, true, 64),
    ] {
        let features = Features {
            compression: zstd.then_some(Compression::Zstd),
            encrypted,
            unit_blocks,
            flush_cache: encrypted,
        };
        let keys = encrypted.then(|| Keys::new([5; KEY_BYTES])).flatten();
        assert_eq!(keys.is_some(), encrypted);
        codings.push(Coding::new(VOLUME, features, keys));
    }
    codings
}

fn salt() -> Salt {
    Salt([3; 16])
}

fn head() -> HeadObject {
    let root = Reference {
        name: MAP,
        stamp: Stamp(1),
    };
    HeadObject {
        head: Head {
            version: Version {
                counter: 8,
                nonce: Nonce(1),
            },
            claim: Claim {
                term: Term(4),
                nonce: Nonce(2),
            },
            base: Base {
                through: Slot(6),
                root: Some(root),
            },
            spans: vec![
                Span {
                    term: Term(3),
                    first: Slot(7),
                    last: Some(Slot(8)),
                },
                Span {
                    term: Term(4),
                    first: Slot(9),
                    last: None,
                },
            ],
            roots: None,
            released: false,
        },
        owner: "host pid 7".into(),
        blocks: 0,
        lease_ms: 5000,
    }
}

fn epoch(coding: &Coding) -> (Bytes, Epoch) {
    let mut epoch = Epoch {
        holes: vec![(100, 7)],
        own_blocks: 2,
        notes: vec![Bytes::from_static(b"a note"), Bytes::new()],
        ..Epoch::default()
    };
    epoch.data.push(DataName {
        number: 2,
        stamp: Stamp(9),
        bytes: 5000,
        blocks: 1,
    });
    epoch.entries.push(Entry {
        block: 70,
        count: 1,
        skip: 0,
        object: 1,
        at: 128,
        len: 4128,
    });
    let (bytes, _, epoch) = encode_epoch(coding, salt(), AT, epoch, |draft, epoch| {
        let blocks = [5_u8; 2 * 4096];
        let kind = CellKind::Blocks;
        let (at, len) = push_cell(draft, coding, ObjectName::Log(AT), kind, 40, &[&blocks]);
        epoch.entries.push(Entry {
            block: 40,
            count: 2,
            skip: 0,
            object: 0,
            at,
            len,
        });
    });
    (bytes, epoch)
}

fn root() -> Root {
    let mut root = Root {
        next_object: 9,
        through: Slot(6),
        ..Root::default()
    };
    root.maps.push(MapObject {
        source: 0,
        reference: Reference {
            name: MAP,
            stamp: Stamp(3),
        },
        bytes: 900,
    });
    let place = Place {
        map: 0,
        at: 128,
        len: 700,
    };
    root.directory.insert((CellKind::Region, 3), place);
    root.retired.push(ObjectName::Log(AT));
    root
}

fn volume(features: Features) -> VolumeObject {
    VolumeObject {
        id: VOLUME,
        blocks: 4711,
        made: -5,
        parents: vec![Parent {
            url: "s3://a/b".into(),
            id: VolumeId([8; 16]),
        }],
        base: Some(head().head.base),
        features,
    }
}

fn roots() -> Roots {
    Roots {
        pins: vec![Pin {
            kind: PinKind::Clone,
            name: "s3://a/c".into(),
            made: 77,
            base: head().head.base,
            id: VolumeId([9; 16]),
        }],
    }
}

/// Whether bytes decode to the expected object.
type Decode = fn(&Coding, &Bytes) -> Result<bool, Bad>;

/// One object of each kind.
fn kinds(coding: &Coding) -> Vec<(&'static str, Bytes, Decode)> {
    let features = coding.features;
    vec![
        ("head", encode_head(coding, &head()), |coding, bytes| {
            decode_head(coding, bytes).map(|found| found == head())
        }),
        ("epoch", epoch(coding).0, |coding, bytes| {
            let (found, _) = decode_slot(coding, AT, bytes)?;
            Ok(found == SlotBody::Epoch(epoch(coding).1))
        }),
        (
            "seal",
            encode_seal(coding, AT, Nonce(6)).0,
            |coding, bytes| {
                decode_slot(coding, AT, bytes).map(|(found, _)| found == SlotBody::Seal(Nonce(6)))
            },
        ),
        (
            "root",
            encode_root(coding, salt(), MAP, &root()).0,
            |coding, bytes| decode_root(coding, MAP, bytes).map(|(found, _)| found == root()),
        ),
        (
            "volume",
            encode_volume(&volume(features)),
            |coding, bytes| decode_volume(bytes).map(|found| found == volume(coding.features)),
        ),
        (
            "roots",
            encode_roots(coding, salt(), ROOTS, &roots()).0,
            |coding, bytes| decode_roots(coding, ROOTS, bytes).map(|(found, _)| found == roots()),
        ),
        ("key", encode_key(coding, &KEY), |coding, bytes| {
            decode_key(coding, bytes).map(|found| found == KEY)
        }),
    ]
}

const KEY: KeyObject = KeyObject {
    salt: [1; 32],
    wrapped: [2; 48],
};

#[test]
fn what_is_encoded_decodes_to_itself() {
    for coding in codings() {
        for (kind, bytes, decode) in kinds(&coding) {
            assert_eq!(decode(&coding, &bytes), Ok(true), "{kind}, {coding:?}");
        }
    }
}

/// Old plain volumes open unchanged, and old programs refuse coded volumes by their version.
#[test]
fn a_plain_volume_has_the_first_version_and_others_have_the_second() {
    for coding in codings() {
        let expected = match coding.features == Features::default() {
            true => 1,
            false => 2,
        };
        for (kind, bytes, _) in kinds(&coding) {
            assert_eq!(bytes[12..16], [expected, 0, 0, 0], "{kind}, {coding:?}");
        }
        let plain = Coding::plain(VOLUME);
        let (bytes, found) = (epoch(&coding).0, decode_slot(&plain, AT, &epoch(&coding).0));
        assert_eq!(found.is_ok(), expected == 1, "{} bytes", bytes.len());
    }
    // Features that a later program may add.
    let features = Features {
        compression: Some(Compression::Zstd),
        ..Features::default()
    };
    let bytes = encode_volume(&volume(features));
    let mut body = bytes[ENVELOPE..].to_vec();
    let at = body.len() - 6;
    body[at] |= 8;
    let mut draft = Draft::new(body.len());
    draft.put(&body);
    let coding = Coding::new(VOLUME, features, None);
    let (bytes, _) = draft.finish(&coding, ObjectName::Volume);
    assert_eq!(decode_volume(&bytes), Err(Bad::Features(9)));
}

/// An object with a flipped bit, a cut object and a longer object are refused.
#[test]
fn a_flipped_bit_and_a_cut_are_found() {
    for coding in codings() {
        for (kind, bytes, decode) in kinds(&coding) {
            for at in 0..bytes.len() {
                // In the middle of a large cell, a few positions suffice.
                if at > 400 && at + 400 < bytes.len() && at % 97 != 0 {
                    continue;
                }
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 1 << (at % 8);
                let found = decode(&coding, &flipped.into());
                assert!(found.is_err(), "{kind}, byte {at}, {coding:?}");
                let found = decode(&coding, &bytes.slice(..at));
                assert!(found.is_err(), "{kind}, cut at {at}, {coding:?}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(decode(&coding, &longer.into()).is_err(), "{kind}");
        }
    }
}

/// With another key only the object that is read before the key is known opens.
#[test]
fn another_key_opens_nothing() {
    for coding in codings().iter().filter(|coding| coding.keys.is_some()) {
        let other = Coding::new(VOLUME, coding.features, Keys::new([6; KEY_BYTES]));
        for (kind, bytes, decode) in kinds(coding) {
            // In this test even `key` was written with a key, which a reader of `key` does not have.
            let found = decode(&other, &bytes);
            assert_eq!(found.is_ok(), kind == "volume", "{kind}");
        }
    }
}

#[test]
fn an_object_of_another_volume_or_name_is_found() {
    let other = VolumeId([1; 16]);
    for coding in codings() {
        let elsewhere = Coding::new(other, coding.features, coding.keys.clone());
        let bytes = encode_head(&elsewhere, &head());
        assert_eq!(decode_head(&coding, &bytes), Err(Bad::OtherVolume(other)));
        let at = SlotName {
            slot: Slot(10),
            ..AT
        };
        let (bytes, _) = encode_seal(&coding, at, Nonce(1));
        assert_eq!(decode_slot(&coding, AT, &bytes), Err(Bad::OtherName));
    }
}

#[test]
fn a_cell_is_known_by_its_place() {
    for coding in codings() {
        let (bytes, epoch) = epoch(&coding);
        let entry = epoch.entries[1];
        let cell = bytes.slice(entry.at as usize..(entry.at + entry.len) as usize);
        let name = ObjectName::Log(AT);
        let found = read_cell(&coding, name, entry.at, &cell);
        assert_eq!(found.as_ref().map(|cell| cell.index), Ok(40));
        assert_eq!(found.as_ref().map(|cell| cell.len), Ok(entry.len as usize));
        assert_eq!(found.map(|cell| cell.contents), Ok(vec![5; 8192].into()));
        let compressed = coding.features.compression.is_some();
        assert_eq!(entry.len < 1000, compressed);
        assert_eq!(
            read_cell(&coding, name, entry.at + 1, &cell),
            Err(Bad::Hash)
        );
        assert_eq!(read_cell(&coding, MAP, entry.at, &cell), Err(Bad::Hash));
        assert!(read_cell(&coding, name, entry.at, &cell.slice(..50)).is_err());
    }
}

/// Computes the hash of changed bytes anew, so that the decoders are tested and not the hash check.
fn resealed(coding: &Coding, name: ObjectName, body: &[u8]) -> Bytes {
    let mut draft = Draft::new(body.len());
    draft.put(body);
    draft.finish(coding, name).0
}

fn decode_all(coding: &Coding, name: ObjectName, bytes: &Bytes) {
    let _ = decode_head(coding, bytes);
    let _ = decode_volume(bytes);
    let _ = decode_roots(coding, name, bytes);
    let _ = decode_root(coding, name, bytes);
    if let ObjectName::Log(at) = name {
        let _ = decode_slot(coding, at, bytes);
    }
    let _ = read_cell(coding, name, 0, bytes);
    let _ = decode_region(coding, bytes);
    let _ = decode_objects(bytes);
    let _ = decode_key(coding, bytes);
}

proptest! {
    /// No bytes make a decoder panic, or allocate more than their length.
    #[test]
    fn hostile_bytes_give_errors(
        kind in 0_usize..7,
        coding in 0_usize..5,
        body in prop::collection::vec(any::<u8>(), 0..300),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let names = [ObjectName::Head, ObjectName::Log(AT), ObjectName::Log(AT), MAP, ObjectName::Volume, ROOTS, ObjectName::Key];
        let coding = &codings()[coding];
        let name = names[kind];
        decode_all(coding, name, &Bytes::from(body.clone()));
        decode_all(coding, name, &resealed(coding, name, &body));
        // A real object, cut and changed in a few places.
        let whole = kinds(coding)[kind].1[ENVELOPE..].to_vec();
        let mut changed = whole[..whole.len().min(1 + cut.index(whole.len()))].to_vec();
        for (at, byte) in changes {
            let at = at.index(changed.len());
            changed[at] = byte;
        }
        decode_all(coding, name, &resealed(coding, name, &changed));
    }

    #[test]
    fn regions_and_tables_decode_to_themselves(
        extents in prop::collection::btree_map(0_u64..1000, (1_u32..5, any::<(u32, u16, u8)>()), 0..40),
        live in 0_u32..5,
    ) {
        let mut runs = std::collections::BTreeMap::new();
        for (block, (count, (object, at, skip))) in extents {
            let (at, skip) = (u32::from(at), u16::from(skip));
            let len = (u32::from(skip) + count) * 4096 + 32;
            runs.insert(block * 10, (count, Spot { object, at, len, skip }));
        }
        let found = decode_region(&Coding::plain(VOLUME), &encode_region(runs.iter()));
        prop_assert_eq!(found, Ok(runs.into_iter().collect::<Vec<_>>()));
        let entry = ObjectEntry { source: 1, name: ObjectName::Log(AT), stamp: Stamp(4), bytes: 9, blocks: 4, live };
        let table = std::collections::BTreeMap::from([(7, entry)]);
        let found = decode_objects(&encode_objects(table.iter()));
        prop_assert_eq!(found.is_ok(), live <= 4);
    }
}
