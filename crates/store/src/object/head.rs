//! `head`: the present writer, and the places of the history.

use super::reader::{Reader, put_reference};
use super::{Bad, Coding, Draft, HEAD_MAX, open};
use crate::protocol::{Base, Claim, Head, Nonce, ObjectName, Slot, Span, Term, Version};
use bytes::Bytes;

/// Encodes the missing last slot of an open term.
const OPEN: u64 = u64::MAX;
/// Bytes of the owner's name, at most.
const OWNER_MAX: usize = 512;

/// `head` with the fields that the protocol does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeadObject {
    pub(crate) head: Head,
    /// The machine and the process that claimed the volume last, for messages and for a restart on the same machine.
    pub(crate) owner: String,
    /// Blocks of the disk after it has grown; 0 while the number in `volume` holds. It never shrinks.
    pub(crate) blocks: u64,
    /// Lease of the open term's writer in milliseconds: the time after a proof of ownership in which it may answer clients. 0:
    /// none.
    pub(crate) lease_ms: u32,
}

pub(crate) fn encode_head(coding: &Coding, object: &HeadObject) -> Bytes {
    let head = &object.head;
    let mut draft = Draft::new(1024);
    draft.put_u64(head.version.counter);
    draft.put_u128(head.version.nonce.0);
    draft.put_u64(head.claim.term.0);
    draft.put_u128(head.claim.nonce.0);
    draft.put_u64(head.base.through.0);
    put_reference(&mut draft, head.base.root);
    put_reference(&mut draft, head.roots);
    draft.put_u8(u8::from(head.released));
    draft.put_u32(head.spans.len() as u32);
    for span in &head.spans {
        draft.put_u64(span.term.0);
        draft.put_u64(span.first.0);
        draft.put_u64(span.last.map_or(OPEN, |last| last.0));
    }
    let owner = object.owner.char_indices();
    let end = owner
        .take_while(|(at, c)| at + c.len_utf8() <= OWNER_MAX)
        .last()
        .map_or(0, |(at, c)| at + c.len_utf8());
    draft.put_text(&object.owner[..end]);
    // Trailing fields are omitted where they are 0, so that older programs can read the head.
    if object.blocks > 0 || object.lease_ms > 0 {
        draft.put_u64(object.blocks);
    }
    if object.lease_ms > 0 {
        draft.put_u32(object.lease_ms);
    }
    draft.finish(coding, ObjectName::Head).0
}

pub(crate) fn decode_head(coding: &Coding, bytes: &Bytes) -> Result<HeadObject, Bad> {
    if bytes.len() > HEAD_MAX {
        return Err(Bad::Content("it is longer than a head can be"));
    }
    let (body, _) = open(coding, ObjectName::Head, bytes)?;
    let mut reader = Reader::new(&body);
    let version = Version {
        counter: reader.u64()?,
        nonce: Nonce(reader.u128()?),
    };
    let claim = Claim {
        term: Term(reader.u64()?),
        nonce: Nonce(reader.u128()?),
    };
    let base = Base {
        through: Slot(reader.u64()?),
        root: reader.reference()?,
    };
    let roots = reader.reference()?;
    let released = reader.flag()?;
    let mut spans = Vec::with_capacity(reader.count(24)?);
    for _ in 0..spans.capacity() {
        spans.push(Span {
            term: Term(reader.u64()?),
            first: Slot(reader.u64()?),
            last: Some(reader.u64()?).filter(|last| *last != OPEN).map(Slot),
        });
    }
    let owner = reader.text()?;
    let blocks = match reader.is_at_end() {
        true => 0,
        false => reader.u64()?,
    };
    let lease_ms = match reader.is_at_end() {
        true => 0,
        false => reader.u32()?,
    };
    reader.end()?;
    if blocks > u64::MAX / steadfast_block::BLOCK_SIZE as u64 {
        return Err(Bad::Content("it has no possible size"));
    }
    let head = Head {
        version,
        claim,
        base,
        spans,
        roots,
        released,
    };
    head.check().map_err(Bad::Content)?;
    Ok(HeadObject {
        head,
        owner,
        blocks,
        lease_ms,
    })
}
