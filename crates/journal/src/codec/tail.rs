//! The codec of tail headers, which of two counts, and whether its numbers can be computed with.

use super::{Bytes, HASH_BYTES, Keyed, Refusal, Sink, Word, put_prefix, refuse};

const MAGIC: u64 = u64::from_le_bytes(*b"STDFTAIL");

/// Recovery decided which records it accepts, and may not have finished replaying them.
const FLAG_VERDICT: u64 = 1;
/// The journal was closed with an empty log.
const FLAG_CLEAN: u64 = 2;

/// Offset of the hash.
const HASH_AT: u64 = 96;
/// Bytes of a header, which the rest of its block follows as zeros.
pub(crate) const TAIL_BYTES: u64 = HASH_AT + HASH_BYTES;

/// A tail header: where the log begins, and recovery's verdict while it replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailHeader<W = u64> {
    /// Grows with every header written; the higher of two valid ones counts.
    pub generation: W,
    /// Epoch of the mount that wrote it.
    pub epoch: W,
    /// Epoch of the records from the tail on.
    pub record_epoch: W,
    /// Position of the first record that is not known to be written home.
    pub tail_pos: W,
    /// Its sequence number.
    pub tail_seq: W,
    /// Present while recovery replays: one past the last accepted record (position, sequence).
    pub verdict: Option<(W, W)>,
    /// Highest sequence number known durable when it was written.
    pub flushed_seq: W,
    /// Closed with an empty log.
    pub clean: bool,
}

/// Appends the header, its hash included.
pub(crate) fn encode<B: Bytes, K: Keyed<B>>(
    header: &TailHeader<B::Word>,
    id: &K,
    out: &mut K::Out,
) {
    let of = B::Word::of;
    let verdict = if header.verdict.is_some() {
        FLAG_VERDICT
    } else {
        0
    };
    let clean = if header.clean { FLAG_CLEAN } else { 0 };
    put_prefix(id, MAGIC, of(verdict | clean), out);
    let (end_pos, end_seq) = header.verdict.unwrap_or((of(0), of(0)));
    for number in [
        header.generation,
        header.epoch,
        header.record_epoch,
        header.tail_pos,
        header.tail_seq,
        end_pos,
        end_seq,
        header.flushed_seq,
    ] {
        out.put::<8>(number);
    }
    id.seal(out, None);
}

/// The header in a block, or why there is none of this volume.
pub(crate) fn decode<B: Bytes, K: Keyed<B>>(
    id: &K,
    block: B,
) -> Result<TailHeader<B::Word>, Refusal> {
    let of = B::Word::of;
    if block.length() < of(TAIL_BYTES) {
        return Err(Refusal::Fields);
    }
    if let Some(refusal) = refuse(id, block, MAGIC) {
        return Err(refusal);
    }
    if id.digest(block.slice(of(0), of(HASH_AT)), None) != block.digest(of(HASH_AT)) {
        return Err(Refusal::Hash);
    }
    let flags = block.word::<4>(of(12));
    if flags > of(FLAG_VERDICT | FLAG_CLEAN) {
        return Err(Refusal::Fields);
    }
    let number = |at: u64| block.word::<8>(of(at));
    let verdict = flags & of(FLAG_VERDICT) != of(0);
    Ok(TailHeader {
        generation: number(32),
        epoch: number(40),
        record_epoch: number(48),
        tail_pos: number(56),
        tail_seq: number(64),
        verdict: verdict.then(|| (number(72), number(80))),
        flushed_seq: number(88),
        clean: flags & of(FLAG_CLEAN) != of(0),
    })
}

/// Index of the header that counts: of the valid ones, the one with the greater generation.
pub(crate) fn newest<W: Word>(read: [Option<&TailHeader<W>>; 2]) -> Option<usize> {
    match read {
        [Some(a), Some(b)] => Some(usize::from(b.generation > a.generation)),
        [Some(_), None] => Some(0),
        [None, Some(_)] => Some(1),
        [None, None] => None,
    }
}

/// Whether the numbers of a header can be computed with.
pub(crate) fn makes_sense<W: Word>(header: &TailHeader<W>, log_blocks: W) -> bool {
    let bound = W::of(u64::MAX / 4);
    header.tail_seq >= W::of(1)
        && header.tail_pos < bound
        && header.tail_seq < bound
        && header.epoch < bound
        && header.record_epoch <= header.epoch
        && header.generation < bound
        && header.verdict.is_none_or(|(pos, seq)| {
            pos >= header.tail_pos && pos - header.tail_pos <= log_blocks && seq >= header.tail_seq
        })
}

/// Whether `other` was written right before `header`, which counts and makes sense: headers are
/// written in turns, each a generation after the other.
pub(crate) fn follows<W: Word>(header: &TailHeader<W>, other: &TailHeader<W>) -> bool {
    other.generation + W::of(1) == header.generation
}

/// Recovery's verdict on the log that `header` begins: it ends before `pos` and `seq`.
pub(crate) fn judged<W: Word>(header: &TailHeader<W>, pos: W, seq: W) -> TailHeader<W> {
    TailHeader {
        generation: header.generation + W::of(1),
        epoch: header.epoch + W::of(1),
        verdict: Some((pos, seq)),
        flushed_seq: seq - W::of(1),
        clean: false,
        ..*header
    }
}

/// The header of a log that is empty from `pos` and `seq` on, after one of `generation`.
pub(crate) fn empty<W: Word>(generation: W, epoch: W, pos: W, seq: W) -> TailHeader<W> {
    TailHeader {
        generation: generation + W::of(1),
        epoch,
        record_epoch: epoch,
        tail_pos: pos,
        tail_seq: seq,
        verdict: None,
        flushed_seq: seq - W::of(1),
        clean: false,
    }
}
