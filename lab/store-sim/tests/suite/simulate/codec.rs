//! Bytes of the simulation's objects: fields of fixed size, then a hash of them.

use steadfast_store::protocol::{
    Base, Body, Claim, Head, Nonce, ObjectName, Reference, Slot, SlotName, Span, Stamp, Term,
    Version,
};

/// Values of the disk's blocks.
pub(crate) type Disk = Vec<u64>;

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn n(&mut self, n: u64) -> &mut Writer {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn w(&mut self, n: u128) -> &mut Writer {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Writer {
        self.n(text.len() as u64).0.extend(text.as_bytes());
        self
    }

    fn reference(&mut self, reference: Option<Reference>) -> &mut Writer {
        match reference {
            None => self.n(0),
            Some(Reference { name, stamp }) => self.n(1).text(&name.to_string()).w(stamp.0),
        }
    }

    fn sealed(mut self) -> Vec<u8> {
        let hash = blake3::hash(&self.0);
        self.0.extend(&hash.as_bytes()[..16]);
        self.0
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn open(bytes: &[u8]) -> Option<Reader<'_>> {
        let (body, hash) = bytes.split_at_checked(bytes.len().checked_sub(16)?)?;
        (blake3::hash(body).as_bytes()[..16] == *hash).then_some(Reader(body))
    }

    fn n(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    fn w(&mut self) -> Option<u128> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u128::from_le_bytes(*first))
    }

    fn name(&mut self) -> Option<ObjectName> {
        let length = usize::try_from(self.n()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    fn reference(&mut self) -> Option<Option<Reference>> {
        match self.n()? {
            0 => Some(None),
            _ => Some(Some(Reference {
                name: self.name()?,
                stamp: Stamp(self.w()?),
            })),
        }
    }
}

/// Stamp that distinguishes an object's content from all others.
pub(crate) fn stamp(bytes: &[u8]) -> Stamp {
    let hash = blake3::hash(bytes);
    let (first, _) = hash
        .as_bytes()
        .split_first_chunk()
        .unwrap_or((&[0; 16], &[]));
    Stamp(u128::from_le_bytes(*first))
}

pub(crate) fn encode_head(head: &Head) -> Vec<u8> {
    let mut to = Writer::default();
    to.n(head.version.counter).w(head.version.nonce.0);
    to.n(head.claim.term.0).w(head.claim.nonce.0);
    to.n(head.base.through.0).reference(head.base.root);
    to.n(head.spans.len() as u64);
    for span in &head.spans {
        to.n(span.term.0)
            .n(span.first.0)
            .n(span.last.map_or(0, |last| last.0));
    }
    to.reference(head.roots).n(u64::from(head.released));
    to.sealed()
}

pub(crate) fn decode_head(bytes: &[u8]) -> Option<Head> {
    let mut from = Reader::open(bytes)?;
    let version = Version {
        counter: from.n()?,
        nonce: Nonce(from.w()?),
    };
    let claim = Claim {
        term: Term(from.n()?),
        nonce: Nonce(from.w()?),
    };
    let base = Base {
        through: Slot(from.n()?),
        root: from.reference()?,
    };
    let mut spans = Vec::new();
    for _ in 0..from.n()? {
        spans.push(Span {
            term: Term(from.n()?),
            first: Slot(from.n()?),
            last: Some(from.n()?).filter(|last| *last > 0).map(Slot),
        });
    }
    let head = Head {
        version,
        claim,
        base,
        spans,
        roots: from.reference()?,
        released: from.n()? == 1,
    };
    head.check().ok().map(|()| head)
}

/// An epoch: which flush it is, and its writes, in itself or in a data object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) flush: u64,
    pub(crate) writes: Vec<(u64, u64)>,
    pub(crate) data: Option<Reference>,
}

pub(crate) fn encode_writes(writes: &[(u64, u64)]) -> Vec<u8> {
    let mut to = Writer::default();
    to.n(writes.len() as u64);
    for (block, value) in writes {
        to.n(*block).n(*value);
    }
    to.sealed()
}

pub(crate) fn decode_writes(bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
    let mut from = Reader::open(bytes)?;
    (0..from.n()?)
        .map(|_| Some((from.n()?, from.n()?)))
        .collect()
}

pub(crate) fn encode_epoch(term: Term, slot: Slot, epoch: &Epoch) -> Vec<u8> {
    let mut to = Writer::default();
    to.n(term.0)
        .n(slot.0)
        .n(0)
        .n(epoch.flush)
        .reference(epoch.data);
    to.n(epoch.writes.len() as u64);
    for (block, value) in &epoch.writes {
        to.n(*block).n(*value);
    }
    to.sealed()
}

pub(crate) fn encode_seal(at: SlotName, nonce: Nonce) -> Vec<u8> {
    let mut to = Writer::default();
    to.n(at.term.0).n(at.slot.0).n(1).w(nonce.0);
    to.sealed()
}

pub(crate) fn decode_slot(at: SlotName, bytes: &[u8]) -> Option<(Body, Option<Epoch>)> {
    let mut from = Reader::open(bytes)?;
    if (from.n()?, from.n()?) != (at.term.0, at.slot.0) {
        return None;
    }
    if from.n()? == 1 {
        return Some((Body::Seal(Nonce(from.w()?)), None));
    }
    let (flush, data) = (from.n()?, from.reference()?);
    let writes = (0..from.n()?)
        .map(|_| Some((from.n()?, from.n()?)))
        .collect::<Option<_>>()?;
    Some((
        Body::Epoch(stamp(bytes)),
        Some(Epoch {
            flush,
            writes,
            data,
        }),
    ))
}

/// A checkpoint: the disk as of a flush.
pub(crate) fn encode_root(flush: u64, disk: &Disk) -> Vec<u8> {
    let mut to = Writer::default();
    to.n(flush).n(disk.len() as u64);
    disk.iter().for_each(|value| {
        to.n(*value);
    });
    to.sealed()
}

pub(crate) fn decode_root(bytes: &[u8]) -> Option<(u64, Disk)> {
    let mut from = Reader::open(bytes)?;
    let flush = from.n()?;
    let disk = (0..from.n()?).map(|_| from.n()).collect::<Option<_>>()?;
    Some((flush, disk))
}

/// The list of snapshots: each the root of a checkpoint.
pub(crate) fn encode_roots(roots: &[Reference]) -> Vec<u8> {
    let mut to = Writer::default();
    to.n(roots.len() as u64);
    for root in roots {
        to.reference(Some(*root));
    }
    to.sealed()
}

pub(crate) fn decode_roots(bytes: &[u8]) -> Option<Vec<Reference>> {
    let mut from = Reader::open(bytes)?;
    (0..from.n()?).map(|_| from.reference()?).collect()
}
