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
    }
}

fn epoch() -> (Bytes, Epoch) {
    let mut epoch = Epoch {
        holes: vec![(100, 7)],
        own_blocks: 2,
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
    let (bytes, _, epoch) = encode_epoch(VOLUME, AT, epoch, |draft, epoch| {
        let blocks = [5_u8; 2 * 4096];
        let kind = CellKind::Blocks;
        let (at, len) = push_cell(draft, VOLUME, ObjectName::Log(AT), kind, 40, &[&blocks]);
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

fn volume() -> VolumeObject {
    VolumeObject {
        id: VOLUME,
        blocks: 4711,
        made: -5,
        parents: vec![Parent {
            url: "s3://a/b".into(),
            id: VolumeId([8; 16]),
        }],
        base: Some(head().head.base),
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

/// Says whether bytes decode to what they should.
type Decode = fn(&Bytes) -> Result<bool, Bad>;

/// One object of each kind.
fn kinds() -> Vec<(&'static str, Bytes, Decode)> {
    vec![
        ("head", encode_head(VOLUME, &head()), |bytes| {
            decode_head(VOLUME, bytes).map(|found| found == head())
        }),
        ("epoch", epoch().0, |bytes| {
            decode_slot(VOLUME, AT, bytes).map(|(found, _)| found == SlotBody::Epoch(epoch().1))
        }),
        ("seal", encode_seal(VOLUME, AT, Nonce(6)).0, |bytes| {
            decode_slot(VOLUME, AT, bytes).map(|(found, _)| found == SlotBody::Seal(Nonce(6)))
        }),
        ("root", encode_root(VOLUME, MAP, &root()).0, |bytes| {
            decode_root(VOLUME, MAP, bytes).map(|(found, _)| found == root())
        }),
        ("volume", encode_volume(&volume()), |bytes| {
            decode_volume(bytes).map(|found| found == volume())
        }),
        ("roots", encode_roots(VOLUME, ROOTS, &roots()).0, |bytes| {
            decode_roots(VOLUME, ROOTS, bytes).map(|(found, _)| found == roots())
        }),
    ]
}

#[test]
fn what_is_encoded_decodes_to_itself() {
    for (kind, bytes, decode) in kinds() {
        assert_eq!(decode(&bytes), Ok(true), "{kind}");
    }
}

/// Every bit counts: flip any, and the object is refused. Cut or lengthen it, and it is refused.
#[test]
fn a_flipped_bit_and_a_cut_are_found() {
    for (kind, bytes, decode) in kinds() {
        for at in 0..bytes.len() {
            // Of the zeros in the middle of a large cell, a few do.
            if at > 400 && at + 400 < bytes.len() && at % 97 != 0 {
                continue;
            }
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << (at % 8);
            assert!(decode(&flipped.into()).is_err(), "{kind}, byte {at}");
            assert!(decode(&bytes.slice(..at)).is_err(), "{kind}, cut at {at}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(decode(&longer.into()).is_err(), "{kind}");
    }
}

#[test]
fn an_object_of_another_volume_or_name_is_found() {
    let other = VolumeId([1; 16]);
    let bytes = encode_head(other, &head());
    assert_eq!(decode_head(VOLUME, &bytes), Err(Bad::OtherVolume(other)));
    let elsewhere = SlotName {
        slot: Slot(10),
        ..AT
    };
    let (bytes, _) = encode_seal(VOLUME, elsewhere, Nonce(1));
    assert_eq!(decode_slot(VOLUME, AT, &bytes), Err(Bad::OtherName));
}

#[test]
fn a_cell_is_known_by_its_place() {
    let (bytes, epoch) = epoch();
    let entry = epoch.entries[1];
    let cell = bytes.slice(entry.at as usize..(entry.at + entry.len) as usize);
    let name = ObjectName::Log(AT);
    let found = read_cell(VOLUME, name, entry.at, &cell);
    assert_eq!(found.as_ref().map(|cell| cell.index), Ok(40));
    assert_eq!(found.map(|cell| cell.contents.len()), Ok(8192));
    assert_eq!(read_cell(VOLUME, name, entry.at + 1, &cell), Err(Bad::Hash));
    assert_eq!(read_cell(VOLUME, MAP, entry.at, &cell), Err(Bad::Hash));
    assert!(read_cell(VOLUME, name, entry.at, &cell.slice(..100)).is_err());
}

/// Seals the bytes anew: so the decoders themselves are tried, and not the hash alone.
fn resealed(name: ObjectName, body: &[u8]) -> Bytes {
    let mut draft = Draft::new(body.len());
    draft.put(body);
    draft.finish(VOLUME, name).0
}

fn decode_all(name: ObjectName, bytes: &Bytes) {
    let _ = decode_head(VOLUME, bytes);
    let _ = decode_volume(bytes);
    let _ = decode_roots(VOLUME, name, bytes);
    let _ = decode_root(VOLUME, name, bytes);
    if let ObjectName::Log(at) = name {
        let _ = decode_slot(VOLUME, at, bytes);
    }
    let _ = read_cell(VOLUME, name, 0, bytes);
    let _ = decode_region(bytes);
    let _ = decode_objects(bytes);
}

proptest! {
    /// No bytes make a decoder panic, or allocate more than they are.
    #[test]
    fn hostile_bytes_give_errors(
        kind in 0_usize..6,
        body in prop::collection::vec(any::<u8>(), 0..300),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let names = [ObjectName::Head, ObjectName::Log(AT), ObjectName::Log(AT), MAP, ObjectName::Volume, ROOTS];
        let name = names[kind];
        decode_all(name, &Bytes::from(body.clone()));
        decode_all(name, &resealed(name, &body));
        // The bytes of a real object, changed in a few places and cut.
        let whole = kinds()[kind].1[ENVELOPE..].to_vec();
        let mut changed = whole[..whole.len().min(1 + cut.index(whole.len()))].to_vec();
        for (at, byte) in changes {
            let at = at.index(changed.len());
            changed[at] = byte;
        }
        decode_all(name, &resealed(name, &changed));
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
        let found = decode_region(&encode_region(runs.iter()));
        prop_assert_eq!(found, Ok(runs.into_iter().collect::<Vec<_>>()));
        let entry = ObjectEntry { source: 1, name: ObjectName::Log(AT), stamp: Stamp(4), bytes: 9, blocks: 4, live };
        let table = std::collections::BTreeMap::from([(7, entry)]);
        let found = decode_objects(&encode_objects(table.iter()));
        prop_assert_eq!(found.is_ok(), live <= 4);
    }
}
