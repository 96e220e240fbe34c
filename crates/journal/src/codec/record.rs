//! The codec of records: header, entries with their ranges and bit runs, covered runs.

use super::{BLOCK_BYTES, Bytes, HASH_BYTES, Keyed, Refusal, Sink, Word, put_prefix, refuse};

const MAGIC: u64 = u64::from_le_bytes(*b"STDFRECD");

const ENTRY_ZERO: u64 = 1;
const ENTRY_REVOKE: u64 = 2;
const ENTRY_META: u64 = 4;

/// Offset of the hash.
const HASH_AT: u64 = 80;
/// Bytes of a record before its body.
pub(crate) const HEADER_BYTES: u64 = HASH_AT + HASH_BYTES;
/// Encoded bytes of an entry without checksum and ranges.
pub(crate) const ENTRY_HEADER_BYTES: u64 = 16;
/// Encoded bytes of the checksum after the entry header.
pub(crate) const CHECKSUM_BYTES: u64 = 8;
/// Encoded bytes of a covered run.
pub(crate) const COVERED_BYTES: u64 = 48;
/// Encoded bytes of a range's header, and of a bit run.
const RANGE_BYTES: u64 = 4;
/// Largest record: as large as the largest log, for merged transactions may fill it.
pub(crate) const RECORD_BLOCKS_MAX: u64 = 1 << 18;
/// Longest covered run that a reader accepts.
pub(crate) const COVERED_RUN_BLOCKS_MAX: u64 = 4096;
/// The value of a bit run, beside its length.
const RUN_VALUE: u64 = 0x8000;
/// Longest bit run.
pub(crate) const RUN_BITS_MAX: u64 = RUN_VALUE - 1;

/// Identity of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordId<W = u64> {
    pub(crate) epoch: W,
    pub(crate) seq: W,
    pub(crate) pos: W,
    pub(crate) flushed_seq: W,
}

/// The claims of the first block of a possible record, before its hash is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordClaim<W = u64> {
    pub(crate) id: RecordId<W>,
    pub(crate) body_bytes: W,
    pub(crate) blocks: W,
    pub(crate) entries: W,
    pub(crate) covered: W,
}

/// Blocks of a record with a body of this length.
pub(crate) fn blocks<W: Word>(body_bytes: W) -> W {
    (W::of(HEADER_BYTES + BLOCK_BYTES - 1) + body_bytes) >> BLOCK_BYTES.trailing_zeros()
}

/// Appends a record's header with the hash of header and body.
pub(crate) fn put_header<B: Bytes, K: Keyed<B>>(
    id: &K,
    record: &RecordId<B::Word>,
    entries: B::Word,
    covered: B::Word,
    body: B,
    out: &mut K::Out,
) {
    put_prefix(id, MAGIC, B::Word::of(0), out);
    for number in [record.epoch, record.seq, record.pos, record.flushed_seq] {
        out.put::<8>(number);
    }
    for number in [body.length(), blocks(body.length()), entries, covered] {
        out.put::<4>(number);
    }
    id.seal(out, Some(body));
}

/// The claim, or why the block is no start of a record of this volume.
pub(crate) fn claim<B: Bytes, K: Keyed<B>>(
    id: &K,
    block: B,
) -> Result<RecordClaim<B::Word>, Refusal> {
    let of = B::Word::of;
    if block.length() < of(HEADER_BYTES) {
        return Err(Refusal::Fields);
    }
    if let Some(refusal) = refuse(id, block, MAGIC) {
        return Err(refusal);
    }
    let claim = RecordClaim {
        id: RecordId {
            epoch: block.word::<8>(of(32)),
            seq: block.word::<8>(of(40)),
            pos: block.word::<8>(of(48)),
            flushed_seq: block.word::<8>(of(56)),
        },
        body_bytes: block.word::<4>(of(64)),
        blocks: block.word::<4>(of(68)),
        entries: block.word::<4>(of(72)),
        covered: block.word::<4>(of(76)),
    };
    if claim.blocks != blocks(claim.body_bytes) || claim.blocks > of(RECORD_BLOCKS_MAX) {
        return Err(Refusal::Fields);
    }
    Ok(claim)
}

/// The blocks that a record may name: those of the device without the journal's own, which lie
/// on it.
#[derive(Clone, Copy)]
pub(crate) struct Bounds<W> {
    pub(crate) headers: [W; 2],
    pub(crate) log: W,
    pub(crate) log_blocks: W,
    pub(crate) device_blocks: W,
}

impl<W: Word> Bounds<W> {
    /// Fault of a run of blocks.
    pub(crate) fn refuse(&self, at: W, count: W) -> Option<&'static str> {
        if at >= self.device_blocks || count > self.device_blocks - at {
            return Some("beyond the device");
        }
        let end = at + count;
        let inside = |header: &W| at <= *header && *header < end;
        let of_log = at < self.log + self.log_blocks && end > self.log;
        (of_log || self.headers.iter().any(inside)).then_some("of the journal itself")
    }
}

/// Fault of a record whose hash holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Malformed<W = u64> {
    /// A part of it.
    Part(&'static str),
    /// An entry names this block.
    Entry(W, &'static str),
    /// A covered run has this number of blocks.
    RunLength(W),
    /// A covered run names these blocks: the first, and how many.
    Run(W, W, &'static str),
}

/// The claim and the body of a record that is whole and of this volume, if the claim is the
/// expected one.
pub(crate) fn authentic<B: Bytes, K: Keyed<B>>(
    id: &K,
    bytes: B,
    expected: impl Fn(&RecordClaim<B::Word>) -> bool,
) -> Option<(RecordClaim<B::Word>, Cursor<B>)> {
    let of = B::Word::of;
    let claim = claim(id, bytes).ok().filter(expected)?;
    let at = of(HEADER_BYTES);
    let end = at + claim.body_bytes;
    if end > bytes.length() {
        return None;
    }
    let hash = id.digest(bytes.slice(of(0), of(HASH_AT)), Some(bytes.slice(at, end)));
    (hash == bytes.digest(of(HASH_AT))).then_some((claim, Cursor { bytes, at, end }))
}

/// Checks an authentic record's body: all of it makes sense. `covered` gets each covered run.
pub(crate) fn check<B: Bytes>(
    claim: &RecordClaim<B::Word>,
    mut body: Cursor<B>,
    bounds: &Bounds<B::Word>,
    mut covered: impl FnMut(CoveredRun<B>),
) -> Result<(), Malformed<B::Word>> {
    let of = B::Word::of;
    B::repeat(claim.entries, &mut body, |body| {
        let entry = body.entry().map_err(Malformed::Part)?;
        match bounds.refuse(entry.at, of(1)) {
            Some(which) => Err(Malformed::Entry(entry.at, which)),
            None => Ok(()),
        }
    })?;
    B::repeat(claim.covered, &mut body, |body| {
        let run = (body.covered()).ok_or(Malformed::Part("a covered run is cut short"))?;
        if run.count > of(COVERED_RUN_BLOCKS_MAX) {
            return Err(Malformed::RunLength(run.count));
        }
        if let Some(which) = bounds.refuse(run.at, run.count) {
            return Err(Malformed::Run(run.at, run.count, which));
        }
        covered(run);
        Ok(())
    })?;
    if body.at != body.end {
        return Err(Malformed::Part("bytes are left over"));
    }
    Ok(())
}

/// One block's part of a record, whose ranges and bit runs lie inside the block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<W = u64> {
    pub(crate) at: W,
    pub(crate) zero: bool,
    pub(crate) revoke: bool,
    pub(crate) meta: bool,
    pub(crate) checksum: W,
    pub(crate) ranges: W,
    pub(crate) bit_runs: W,
    /// Start of the ranges in the record.
    pub(crate) body: W,
}

/// Appends an entry's header and checksum; its ranges and its bit runs come next.
pub(crate) fn put_entry<B: Bytes>(
    at: B::Word,
    zero: bool,
    revoke: bool,
    checksum: Option<B::Word>,
    [ranges, bit_runs]: [B::Word; 2],
    out: &mut impl Sink<B>,
) {
    let of = B::Word::of;
    let flag = |set, flag| if set { flag } else { 0 };
    let flags = flag(zero, ENTRY_ZERO) | flag(revoke, ENTRY_REVOKE);
    out.put::<8>(at);
    out.put::<1>(of(flags | flag(checksum.is_some(), ENTRY_META)));
    out.put::<1>(of(0));
    out.put::<2>(ranges);
    out.put::<2>(bit_runs);
    out.put::<2>(of(0));
    if let Some(sum) = checksum {
        out.put::<8>(sum);
    }
}

/// Appends a range of an entry: where it lies in the block, and its bytes.
pub(crate) fn put_range<B: Bytes>(offset: B::Word, bytes: B, out: &mut impl Sink<B>) {
    out.put::<2>(offset);
    out.put::<2>(bytes.length());
    out.append(bytes);
}

/// Appends a bit run of an entry, of [`RUN_BITS_MAX`] bits at most.
pub(crate) fn put_bit_run<B: Bytes>(
    first: B::Word,
    count: B::Word,
    value: bool,
    out: &mut impl Sink<B>,
) {
    out.put::<2>(first);
    out.put::<2>(count + B::Word::of(if value { RUN_VALUE } else { 0 }));
}

/// A run of blocks that a record vouches for.
pub(crate) struct CoveredRun<B: Bytes> {
    pub(crate) at: B::Word,
    pub(crate) count: B::Word,
    pub(crate) hash: B::Digest,
}

/// Appends a covered run.
pub(crate) fn put_covered<B: Bytes>(run: &CoveredRun<B>, out: &mut impl Sink<B>) {
    out.put::<8>(run.at);
    out.put::<4>(run.count);
    out.put::<4>(B::Word::of(0));
    out.put_digest(&run.hash);
}

/// The rest of a record's body: `at ..= end`, inside the bytes.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<B: Bytes> {
    pub(crate) bytes: B,
    pub(crate) at: B::Word,
    pub(crate) end: B::Word,
}

impl<B: Bytes> Cursor<B> {
    /// A cursor from `at` to the end of the bytes; empty, if that is not inside them.
    pub(crate) fn new(bytes: B, at: B::Word) -> Cursor<B> {
        let end = bytes.length();
        let at = if at > end { end } else { at };
        Cursor { bytes, at, end }
    }

    #[inline]
    fn take(&mut self, count: B::Word) -> Option<B> {
        if count > self.end - self.at {
            return None;
        }
        let from = self.at;
        self.at = from + count;
        Some(self.bytes.slice(from, self.at))
    }

    /// An entry with all of its ranges and bit runs, or its defect.
    pub(crate) fn entry(&mut self) -> Result<Entry<B::Word>, &'static str> {
        let of = B::Word::of;
        let cut_short = "an entry is cut short";
        let header = self.take(of(ENTRY_HEADER_BYTES)).ok_or(cut_short)?;
        let flags = header.word::<1>(of(8));
        let flag = |flag: u64| flags & of(flag) != of(0);
        let mut entry = Entry {
            at: header.word::<8>(of(0)),
            zero: flag(ENTRY_ZERO),
            revoke: flag(ENTRY_REVOKE),
            meta: flag(ENTRY_META),
            checksum: of(0),
            ranges: header.word::<2>(of(10)),
            bit_runs: header.word::<2>(of(12)),
            body: of(0),
        };
        if entry.meta && !entry.revoke {
            let sum = self.take(of(CHECKSUM_BYTES)).ok_or(cut_short)?;
            entry.checksum = sum.word::<8>(of(0));
        }
        entry.body = self.at;
        B::repeat(entry.ranges, self, |rest| {
            let (offset, bytes) = rest.range().ok_or("a range is cut short")?;
            if offset + bytes.length() > of(BLOCK_BYTES) {
                return Err("a range reaches beyond its block");
            }
            Ok(())
        })?;
        B::repeat(entry.bit_runs, self, |rest| {
            let (first, count, _) = rest.bit_run().ok_or("a bit run is cut short")?;
            if first + count > of(BLOCK_BYTES * 8) {
                return Err("a bit run reaches beyond its block");
            }
            Ok(())
        })?;
        Ok(entry)
    }

    /// Offset in the block, and the bytes.
    #[inline]
    pub(crate) fn range(&mut self) -> Option<(B::Word, B)> {
        let of = B::Word::of;
        let header = self.take(of(RANGE_BYTES))?;
        let bytes = self.take(header.word::<2>(of(2)))?;
        Some((header.word::<2>(of(0)), bytes))
    }

    /// First bit of the block, count, value.
    #[inline]
    pub(crate) fn bit_run(&mut self) -> Option<(B::Word, B::Word, bool)> {
        let of = B::Word::of;
        let header = self.take(of(RANGE_BYTES))?;
        let run = header.word::<2>(of(2));
        let value = run & of(RUN_VALUE) != of(0);
        Some((header.word::<2>(of(0)), run & of(RUN_BITS_MAX), value))
    }

    pub(crate) fn covered(&mut self) -> Option<CoveredRun<B>> {
        let of = B::Word::of;
        let run = self.take(of(COVERED_BYTES))?;
        Some(CoveredRun {
            at: run.word::<8>(of(0)),
            count: run.word::<4>(of(8)),
            hash: run.digest(of(16)),
        })
    }
}
