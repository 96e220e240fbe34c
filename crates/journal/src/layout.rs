//! The on-disk format of the journal: tail headers and records, and their codecs.
//!
//! ```text
//! tail header (one block each, two of them, in different blocks)
//!   0  magic "STDFTAIL"     8  version u32      12 flags u32 (1 = verdict, 2 = clean)
//!  16  volume [16]         32  generation u64   40 epoch u64       48 record epoch u64
//!  56  tail position u64   64  tail sequence    72 end position    80 end sequence
//!  88  flushed sequence    96  hash [32]       128 zeros
//!
//! record (whole blocks, contiguous in the log modulo its size)
//!   0  magic "STDFRECD"     8  version u32      12 zero u32
//!  16  volume [16]         32  epoch u64        40 sequence u64    48 position u64
//!  56  flushed sequence    64  body bytes u32   68 blocks u32      72 entries u32
//!  76  covered runs u32    80  hash [32]       112 body, then zeros to the block's end
//!
//! body: entries, each   block u64 | flags u8 (1 zero, 2 revoke, 4 meta) | 0 u8 | ranges u16 | bit runs u16 | 0 u16
//!                       | checksum u64 if meta and not revoked
//!                       | ranges × { offset u16, length u16, bytes }
//!                       | bit runs × { first u16, value << 15 | count u16 }
//!       covered runs, each  block u64 | count u32 | 0 u32 | hash [32]
//! ```
//!
//! A *position* counts log blocks since the volume was made, so it also tells laps of
//! the circular log apart. Hashes are BLAKE3, keyed by the volume: a header or record
//! of another volume, epoch, sequence or lap never validates (corner 11).

use crate::{Error, Result};
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockNo};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const TAIL_MAGIC: [u8; 8] = *b"STDFTAIL";
const RECORD_MAGIC: [u8; 8] = *b"STDFRECD";
const VERSION: u32 = 1;

/// Recovery decided what it accepts, and may not have finished replaying it.
const FLAG_VERDICT: u32 = 1;
/// The journal was closed with an empty log.
const FLAG_CLEAN: u32 = 2;

const ENTRY_ZERO: u8 = 1;
const ENTRY_REVOKE: u8 = 2;
const ENTRY_META: u8 = 4;

/// Bytes of a record before its body.
pub(crate) const RECORD_HEADER_BYTES: usize = size_of::<RecordHeader>();
/// Encoded bytes of an entry without ranges, the checksum included.
pub(crate) const ENTRY_BYTES: usize = 24;
/// Encoded bytes of a covered run.
pub(crate) const COVERED_BYTES: usize = 48;
/// Largest record: as large as the largest log, for merged transactions may fill it.
pub(crate) const RECORD_BLOCKS_MAX: u64 = 1 << 18;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskTail {
    magic: [u8; 8],
    version: U32,
    flags: U32,
    volume: [u8; 16],
    generation: U64,
    epoch: U64,
    record_epoch: U64,
    tail_pos: U64,
    tail_seq: U64,
    end_pos: U64,
    end_seq: U64,
    flushed_seq: U64,
    hash: [u8; 32],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordHeader {
    magic: [u8; 8],
    version: U32,
    reserved: U32,
    volume: [u8; 16],
    epoch: U64,
    seq: U64,
    pos: U64,
    flushed_seq: U64,
    body_bytes: U32,
    blocks: U32,
    entries: U32,
    covered: U32,
    hash: [u8; 32],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskEntry {
    block: U64,
    flags: u8,
    zero: u8,
    ranges: U16,
    bit_runs: U16,
    zero2: U16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskCovered {
    block: U64,
    count: U32,
    zero: U32,
    hash: [u8; 32],
}

const _: () = {
    assert!(size_of::<DiskTail>() == 128);
    assert!(size_of::<RecordHeader>() == 112);
    assert!(size_of::<DiskEntry>() + 8 == ENTRY_BYTES);
    assert!(size_of::<DiskCovered>() == COVERED_BYTES);
    assert!(RECORD_BLOCKS_MAX * BLOCK_SIZE as u64 <= u32::MAX as u64);
};

/// The volume's identity as the codecs need it.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) volume: [u8; 16],
    key: [u8; 32],
}

impl Identity {
    pub(crate) fn new(volume: [u8; 16]) -> Identity {
        Identity {
            volume,
            key: blake3::derive_key("steadfast journal 1: records and tail headers", &volume),
        }
    }

    fn hasher(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(&self.key)
    }

    /// Hash of a run of blocks that a record covers; names the address.
    pub(crate) fn covered_hash<'a>(
        &self,
        at: BlockNo,
        blocks: impl Iterator<Item = &'a Block>,
    ) -> [u8; 32] {
        let mut hasher = self.hasher();
        hasher.update(b"covered").update(&at.0.to_le_bytes());
        for block in blocks {
            hasher.update(block);
        }
        *hasher.finalize().as_bytes()
    }
}

/// A tail header: where the log begins, and recovery's verdict while it replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailHeader {
    /// Grows with every header written; the higher of two valid ones counts.
    pub generation: u64,
    /// Epoch of the mount that wrote it.
    pub epoch: u64,
    /// Epoch of the records from the tail on.
    pub record_epoch: u64,
    /// Position of the first record that is not known to be written home.
    pub tail_pos: u64,
    /// Its sequence number.
    pub tail_seq: u64,
    /// Present while recovery replays: one past the last accepted record (position, sequence).
    pub verdict: Option<(u64, u64)>,
    /// Highest sequence number known durable when it was written.
    pub flushed_seq: u64,
    /// Closed with an empty log.
    pub clean: bool,
}

impl TailHeader {
    pub(crate) fn encode(&self, id: &Identity) -> Box<Block> {
        let mut disk = DiskTail {
            magic: TAIL_MAGIC,
            version: VERSION.into(),
            flags: (if self.verdict.is_some() {
                FLAG_VERDICT
            } else {
                0
            } | if self.clean { FLAG_CLEAN } else { 0 })
            .into(),
            volume: id.volume,
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            record_epoch: self.record_epoch.into(),
            tail_pos: self.tail_pos.into(),
            tail_seq: self.tail_seq.into(),
            end_pos: self.verdict.map_or(0, |v| v.0).into(),
            end_seq: self.verdict.map_or(0, |v| v.1).into(),
            flushed_seq: self.flushed_seq.into(),
            hash: [0; 32],
        };
        disk.hash = *id.hasher().update(disk.as_bytes()).finalize().as_bytes();
        let mut block = Box::new([0u8; BLOCK_SIZE]);
        block[..size_of::<DiskTail>()].copy_from_slice(disk.as_bytes());
        block
    }

    /// `None` if the block is no valid header of this volume.
    pub(crate) fn decode(id: &Identity, block: &[u8]) -> Option<TailHeader> {
        let (mut disk, _) = DiskTail::read_from_prefix(block).ok()?;
        let hash = std::mem::take(&mut disk.hash);
        let flags = disk.flags.get();
        if disk.magic != TAIL_MAGIC
            || disk.version.get() != VERSION
            || disk.volume != id.volume
            || flags & !(FLAG_VERDICT | FLAG_CLEAN) != 0
            || *id.hasher().update(disk.as_bytes()).finalize().as_bytes() != hash
        {
            return None;
        }
        Some(TailHeader {
            generation: disk.generation.get(),
            epoch: disk.epoch.get(),
            record_epoch: disk.record_epoch.get(),
            tail_pos: disk.tail_pos.get(),
            tail_seq: disk.tail_seq.get(),
            verdict: (flags & FLAG_VERDICT != 0).then(|| (disk.end_pos.get(), disk.end_seq.get())),
            flushed_seq: disk.flushed_seq.get(),
            clean: flags & FLAG_CLEAN != 0,
        })
    }
}

/// What identifies a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordId {
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    pub(crate) pos: u64,
    pub(crate) flushed_seq: u64,
}

/// Builds a record.
pub(crate) struct RecordWriter {
    body: Vec<u8>,
    entries: u32,
    covered: u32,
}

impl RecordWriter {
    pub(crate) fn new() -> RecordWriter {
        RecordWriter {
            body: Vec::with_capacity(BLOCK_SIZE),
            entries: 0,
            covered: 0,
        }
    }

    /// The block was freed: earlier patches of it are void.
    pub(crate) fn revoke(&mut self, at: BlockNo) {
        self.entry(at, ENTRY_REVOKE, 0, 0);
    }

    /// Patches of one block; values are taken from `image`. `checksum` is that of a metadata block.
    pub(crate) fn patches(
        &mut self,
        at: BlockNo,
        zero: bool,
        checksum: Option<u64>,
        ranges: &[(usize, usize)],
        bits: &[(usize, usize)],
        image: &Block,
    ) {
        let bit = |i: usize| image[i / 8] >> (i % 8) & 1;
        // A run of bits in the mask may hold both values: one encoded run each.
        let mut bit_runs: Vec<(usize, usize, u8)> = Vec::with_capacity(bits.len());
        for &(first, count) in bits {
            for i in first..first + count {
                match bit_runs.last_mut() {
                    Some(run) if run.0 + run.1 == i && run.2 == bit(i) && run.1 < 0x7fff => {
                        run.1 += 1;
                    }
                    _ => bit_runs.push((i, 1, bit(i))),
                }
            }
        }
        let flags =
            if zero { ENTRY_ZERO } else { 0 } | if checksum.is_some() { ENTRY_META } else { 0 };
        self.entry(at, flags, ranges.len() as u16, bit_runs.len() as u16);
        if let Some(sum) = checksum {
            self.body.extend_from_slice(&sum.to_le_bytes());
        }
        for &(offset, len) in ranges {
            self.body.extend_from_slice(&(offset as u16).to_le_bytes());
            self.body.extend_from_slice(&(len as u16).to_le_bytes());
            self.body.extend_from_slice(&image[offset..offset + len]);
        }
        for (first, count, value) in bit_runs {
            self.body.extend_from_slice(&(first as u16).to_le_bytes());
            self.body
                .extend_from_slice(&(count as u16 | u16::from(value) << 15).to_le_bytes());
        }
    }

    fn entry(&mut self, at: BlockNo, flags: u8, ranges: u16, bit_runs: u16) {
        debug_assert_eq!(self.covered, 0, "entries come before covered runs");
        let disk = DiskEntry {
            block: at.0.into(),
            flags,
            zero: 0,
            ranges: ranges.into(),
            bit_runs: bit_runs.into(),
            zero2: 0.into(),
        };
        self.body.extend_from_slice(disk.as_bytes());
        self.entries += 1;
    }

    /// A run of blocks written outside the log, with its hash.
    pub(crate) fn covered(&mut self, run: &Covered) {
        let disk = DiskCovered {
            block: run.at.0.into(),
            count: run.count.into(),
            zero: 0.into(),
            hash: run.hash,
        };
        self.body.extend_from_slice(disk.as_bytes());
        self.covered += 1;
    }

    /// The record's blocks, ready to be written at its position.
    pub(crate) fn finish(self, id: &Identity, record: RecordId) -> BlockBuf {
        let bytes = RECORD_HEADER_BYTES + self.body.len();
        let blocks = bytes.div_ceil(BLOCK_SIZE);
        let mut header = RecordHeader {
            magic: RECORD_MAGIC,
            version: VERSION.into(),
            reserved: 0.into(),
            volume: id.volume,
            epoch: record.epoch.into(),
            seq: record.seq.into(),
            pos: record.pos.into(),
            flushed_seq: record.flushed_seq.into(),
            body_bytes: (self.body.len() as u32).into(),
            blocks: (blocks as u32).into(),
            entries: self.entries.into(),
            covered: self.covered.into(),
            hash: [0; 32],
        };
        header.hash = *id
            .hasher()
            .update(header.as_bytes())
            .update(&self.body)
            .finalize()
            .as_bytes();
        let mut buf = BlockBuf::zeroed(blocks);
        let out = buf.as_bytes_mut();
        out[..RECORD_HEADER_BYTES].copy_from_slice(header.as_bytes());
        out[RECORD_HEADER_BYTES..bytes].copy_from_slice(&self.body);
        buf
    }
}

/// A run of blocks that a record vouches for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    pub(crate) at: BlockNo,
    pub(crate) count: u32,
    pub(crate) hash: [u8; 32],
}

/// What the first block of a would-be record says of itself, before its hash is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordClaim {
    pub(crate) id: RecordId,
    pub(crate) blocks: u64,
}

impl RecordClaim {
    /// `None` unless the block looks like the start of a record of this volume.
    pub(crate) fn read(id: &Identity, block: &[u8]) -> Option<RecordClaim> {
        let (header, _) = RecordHeader::ref_from_prefix(block).ok()?;
        let blocks = u64::from(header.blocks.get());
        let bytes = RECORD_HEADER_BYTES as u64 + u64::from(header.body_bytes.get());
        if header.magic != RECORD_MAGIC
            || header.version.get() != VERSION
            || header.volume != id.volume
            || blocks != bytes.div_ceil(BLOCK_SIZE as u64)
            || blocks > RECORD_BLOCKS_MAX
        {
            return None;
        }
        Some(RecordClaim {
            id: RecordId {
                epoch: header.epoch.get(),
                seq: header.seq.get(),
                pos: header.pos.get(),
                flushed_seq: header.flushed_seq.get(),
            },
            blocks,
        })
    }
}

/// One block's part of a decoded record. Ranges and bit runs were checked to lie inside the block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) at: u64,
    pub(crate) zero: bool,
    pub(crate) revoke: bool,
    pub(crate) meta: bool,
    pub(crate) checksum: u64,
    /// (offset in the block, length, where the bytes lie in the record's buffer)
    pub(crate) ranges: Vec<(u16, u16, u32)>,
    /// (first, count, value)
    pub(crate) bits: Vec<(u16, u16, bool)>,
}

impl Entry {
    /// Applies the patches to `image`; `record` is the buffer that the entry was decoded from.
    pub(crate) fn apply(&self, record: &[u8], image: &mut Block) {
        if self.zero {
            image.fill(0);
        }
        for &(offset, len, from) in &self.ranges {
            let (offset, len, from) = (offset as usize, len as usize, from as usize);
            image[offset..offset + len].copy_from_slice(&record[from..from + len]);
        }
        for &(first, count, value) in &self.bits {
            set_bits(image, first as usize, count as usize, value);
        }
    }
}

/// Sets bits `first .. first + count` of a block.
pub(crate) fn set_bits(image: &mut Block, first: usize, count: usize, value: bool) {
    let end = first + count;
    let mut i = first;
    while i < end {
        if i.is_multiple_of(8) && end - i >= 8 {
            let bytes = (end - i) / 8;
            image[i / 8..i / 8 + bytes].fill(if value { 0xff } else { 0 });
            i += bytes * 8;
        } else {
            let bit = 1u8 << (i % 8);
            if value {
                image[i / 8] |= bit;
            } else {
                image[i / 8] &= !bit;
            }
            i += 1;
        }
    }
}

/// A decoded record.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: RecordId,
    pub(crate) entries: Vec<Entry>,
    pub(crate) covered: Vec<Covered>,
}

/// Decodes a whole record. `Ok(None)`: the hash does not hold, so this is no record.
/// An error: the hash holds and the contents make no sense (our own bug or an attack).
pub(crate) fn decode_record(
    id: &Identity,
    buf: &[u8],
    device_blocks: u64,
) -> Result<Option<Record>> {
    let Some(claim) = RecordClaim::read(id, buf) else {
        return Ok(None);
    };
    let Ok((mut header, _)) = RecordHeader::read_from_prefix(buf) else {
        return Ok(None);
    };
    let body_end = RECORD_HEADER_BYTES + header.body_bytes.get() as usize;
    let Some(body) = buf.get(RECORD_HEADER_BYTES..body_end) else {
        return Ok(None);
    };
    let hash = std::mem::take(&mut header.hash);
    if *id
        .hasher()
        .update(header.as_bytes())
        .update(body)
        .finalize()
        .as_bytes()
        != hash
    {
        return Ok(None);
    }
    let bad = |what: &str| Error::Corrupt {
        what: format!(
            "log record {} is authentic but malformed: {what}",
            claim.id.seq
        ),
    };
    let mut rest = Cursor {
        buf,
        at: RECORD_HEADER_BYTES,
        end: body_end,
    };
    let mut entries = Vec::new();
    for _ in 0..header.entries.get() {
        let disk: DiskEntry = rest.take().ok_or_else(|| bad("an entry is cut short"))?;
        let mut entry = Entry {
            at: disk.block.get(),
            zero: disk.flags & ENTRY_ZERO != 0,
            revoke: disk.flags & ENTRY_REVOKE != 0,
            meta: disk.flags & ENTRY_META != 0,
            ..Entry::default()
        };
        if entry.at >= device_blocks {
            return Err(bad("an entry names a block beyond the device"));
        }
        if entry.meta && !entry.revoke {
            entry.checksum = rest
                .take::<U64>()
                .ok_or_else(|| bad("an entry is cut short"))?
                .get();
        }
        for _ in 0..disk.ranges.get() {
            let offset: U16 = rest.take().ok_or_else(|| bad("a range is cut short"))?;
            let len: U16 = rest.take().ok_or_else(|| bad("a range is cut short"))?;
            let from = rest
                .skip(len.get() as usize)
                .ok_or_else(|| bad("a range is cut short"))?;
            if offset.get() as usize + len.get() as usize > BLOCK_SIZE {
                return Err(bad("a range reaches beyond its block"));
            }
            entry.ranges.push((offset.get(), len.get(), from as u32));
        }
        for _ in 0..disk.bit_runs.get() {
            let first: U16 = rest.take().ok_or_else(|| bad("a bit run is cut short"))?;
            let run: U16 = rest.take().ok_or_else(|| bad("a bit run is cut short"))?;
            let (count, value) = (run.get() & 0x7fff, run.get() >> 15 == 1);
            if first.get() as usize + count as usize > BLOCK_SIZE * 8 {
                return Err(bad("a bit run reaches beyond its block"));
            }
            entry.bits.push((first.get(), count, value));
        }
        entries.push(entry);
    }
    let mut covered = Vec::new();
    for _ in 0..header.covered.get() {
        let disk: DiskCovered = rest
            .take()
            .ok_or_else(|| bad("a covered run is cut short"))?;
        let (at, count) = (disk.block.get(), disk.count.get());
        if at
            .checked_add(u64::from(count))
            .is_none_or(|end| end > device_blocks)
        {
            return Err(bad("a covered run reaches beyond the device"));
        }
        covered.push(Covered {
            at: BlockNo(at),
            count,
            hash: disk.hash,
        });
    }
    if rest.at != rest.end {
        return Err(bad("bytes are left over"));
    }
    Ok(Some(Record {
        id: claim.id,
        entries,
        covered,
    }))
}

struct Cursor<'a> {
    buf: &'a [u8],
    at: usize,
    end: usize,
}

impl Cursor<'_> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, _) = T::read_from_prefix(self.buf.get(self.at..self.end)?).ok()?;
        self.at += size_of::<T>();
        Some(value)
    }

    fn skip(&mut self, bytes: usize) -> Option<usize> {
        let from = self.at;
        (self.end - self.at >= bytes).then(|| {
            self.at += bytes;
            from
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn sample() -> (Identity, BlockBuf) {
        let id = Identity::new([3; 16]);
        let mut image = [0u8; BLOCK_SIZE];
        image[10..20].copy_from_slice(b"0123456789");
        set_bits(&mut image, 800, 20, true);
        let mut writer = RecordWriter::new();
        writer.patches(
            BlockNo(7),
            true,
            Some(99),
            &[(10, 10), (50, 1)],
            &[(790, 40)],
            &image,
        );
        writer.revoke(BlockNo(8));
        writer.covered(&Covered {
            at: BlockNo(30),
            count: 2,
            hash: [5; 32],
        });
        let buf = writer.finish(
            &id,
            RecordId {
                epoch: 2,
                seq: 11,
                pos: 40,
                flushed_seq: 10,
            },
        );
        (id, buf)
    }

    #[test]
    fn a_record_decodes_to_what_was_written() {
        let (id, buf) = sample();
        let record = decode_record(&id, buf.as_bytes(), 100).unwrap().unwrap();
        assert_eq!(
            record.id,
            RecordId {
                epoch: 2,
                seq: 11,
                pos: 40,
                flushed_seq: 10
            }
        );
        assert_eq!(
            record.covered,
            vec![Covered {
                at: BlockNo(30),
                count: 2,
                hash: [5; 32]
            }]
        );
        assert!(record.entries[1].revoke && record.entries[1].at == 8);
        let mut image = [0xffu8; BLOCK_SIZE];
        record.entries[0].apply(buf.as_bytes(), &mut image);
        assert_eq!(&image[10..20], b"0123456789");
        assert_eq!(
            record.entries[0].bits,
            vec![(790, 10, false), (800, 20, true), (820, 10, false)]
        );
    }

    #[test]
    fn corner_11_another_volume_never_validates() {
        let (_, buf) = sample();
        assert!(
            decode_record(&Identity::new([4; 16]), buf.as_bytes(), 100)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn an_authentic_record_with_wild_addresses_is_an_error() {
        let (id, buf) = sample();
        assert!(decode_record(&id, buf.as_bytes(), 20).is_err());
    }

    #[test]
    fn a_tail_header_decodes_to_what_was_written() {
        let id = Identity::new([3; 16]);
        let header = TailHeader {
            generation: 4,
            epoch: 3,
            record_epoch: 2,
            tail_pos: 100,
            tail_seq: 50,
            verdict: Some((120, 60)),
            flushed_seq: 59,
            clean: false,
        };
        let mut block = header.encode(&id);
        assert_eq!(TailHeader::decode(&id, block.as_slice()), Some(header));
        block[57] ^= 1;
        assert_eq!(TailHeader::decode(&id, block.as_slice()), None);
    }

    proptest! {
        #[test]
        fn any_flipped_byte_is_refused(at in 0usize..260, bit in 0u8..8) {
            let (id, mut buf) = sample();
            let used = RECORD_HEADER_BYTES + 16 + 8 + 14 + 5 + 12 + 16 + 48;
            prop_assume!(at < used);
            buf.as_bytes_mut()[at] ^= 1 << bit;
            prop_assert!(!matches!(decode_record(&id, buf.as_bytes(), 100), Ok(Some(_))));
        }

        #[test]
        fn random_bytes_are_never_a_record(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            let id = Identity::new([3; 16]);
            prop_assert!(decode_record(&id, &bytes, 100).unwrap().is_none());
            prop_assert!(TailHeader::decode(&id, &bytes).is_none());
        }
    }
}
