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

use crate::{COVERED_BLOCKS_MAX, Error, Region, Result};
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
/// Longest covered run that a reader accepts.
const COVERED_RUN_BLOCKS_MAX: u64 = 4096;

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
    assert!(COVERED_BLOCKS_MAX <= COVERED_RUN_BLOCKS_MAX);
};

/// Why a block is no tail header, or no start of a record, of this volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Zeros.
    #[error("it was never written")]
    Blank,
    /// Something else.
    #[error("it has no magic number")]
    Magic,
    /// Of a format that this version does not know.
    #[error("it has format version {0}")]
    Version(u32),
    /// Written for another volume.
    #[error("it belongs to another volume")]
    Volume,
    /// Flags or a length that nothing has.
    #[error("its fields make no sense")]
    Fields,
    /// Damaged, or cut while it was written.
    #[error("its hash does not hold")]
    Hash,
}

impl Refusal {
    /// What magic, version and volume say.
    fn of(
        id: &Identity,
        block: &[u8],
        magic: bool,
        version: u32,
        volume: &[u8; 16],
    ) -> Option<Refusal> {
        if !magic {
            const ZEROS: Block = [0; BLOCK_SIZE];
            let blank = (block.chunks(BLOCK_SIZE)).all(|part| *part == ZEROS[..part.len()]);
            return Some(if blank {
                Refusal::Blank
            } else {
                Refusal::Magic
            });
        }
        if version != VERSION {
            return Some(Refusal::Version(version));
        }
        (*volume != id.volume).then_some(Refusal::Volume)
    }
}

/// The blocks that a record may name: those of the device without the journal's own.
#[derive(Clone, Copy)]
pub(crate) struct Homes<'a> {
    pub(crate) region: &'a Region,
    pub(crate) device_blocks: u64,
}

impl Homes<'_> {
    /// What is wrong with a run of blocks.
    fn refuse(&self, at: u64, count: u64) -> Option<&'static str> {
        let end = at.saturating_add(count);
        let Region {
            headers,
            log,
            log_blocks,
        } = self.region;
        if at >= self.device_blocks || end > self.device_blocks {
            Some("beyond the device")
        } else if (at < log.0 + log_blocks && end > log.0)
            || headers.iter().any(|h| (at..end).contains(&h.0))
        {
            Some("of the journal itself")
        } else {
            None
        }
    }
}

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

    pub(crate) fn hasher(&self) -> blake3::Hasher {
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

    /// The header in a block, or why there is none of this volume.
    pub(crate) fn decode(id: &Identity, block: &[u8]) -> std::result::Result<TailHeader, Refusal> {
        let (mut disk, _) = DiskTail::read_from_prefix(block).map_err(|_| Refusal::Fields)?;
        let hash = std::mem::take(&mut disk.hash);
        let flags = disk.flags.get();
        let magic = disk.magic == TAIL_MAGIC;
        if let Some(refusal) = Refusal::of(id, block, magic, disk.version.get(), &disk.volume) {
            return Err(refusal);
        }
        if *id.hasher().update(disk.as_bytes()).finalize().as_bytes() != hash {
            return Err(Refusal::Hash);
        }
        if flags & !(FLAG_VERDICT | FLAG_CLEAN) != 0 {
            return Err(Refusal::Fields);
        }
        Ok(TailHeader {
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
    /// The claim, or why the block is no start of a record of this volume.
    pub(crate) fn read(id: &Identity, block: &[u8]) -> std::result::Result<RecordClaim, Refusal> {
        let (header, _) = RecordHeader::ref_from_prefix(block).map_err(|_| Refusal::Fields)?;
        let magic = header.magic == RECORD_MAGIC;
        if let Some(refusal) = Refusal::of(id, block, magic, header.version.get(), &header.volume) {
            return Err(refusal);
        }
        let blocks = u64::from(header.blocks.get());
        let bytes = RECORD_HEADER_BYTES as u64 + u64::from(header.body_bytes.get());
        if blocks != bytes.div_ceil(BLOCK_SIZE as u64) || blocks > RECORD_BLOCKS_MAX {
            return Err(Refusal::Fields);
        }
        Ok(RecordClaim {
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
    pub(crate) body_bytes: u64,
    pub(crate) entries: Vec<Entry>,
    pub(crate) covered: Vec<Covered>,
}

/// Decodes a whole record. `Ok(None)`: the hash does not hold, so this is no record.
/// An error: the hash holds and the contents make no sense (our own bug or an attack).
pub(crate) fn decode_record(id: &Identity, buf: &[u8], homes: Homes<'_>) -> Result<Option<Record>> {
    let Ok(claim) = RecordClaim::read(id, buf) else {
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
    let region = homes.region;
    let bad = |what: &str| Error::Corrupt {
        what: format!(
            "log record {} at block {} is authentic but malformed: {what}",
            claim.id.seq,
            region.log.offset(claim.id.pos % region.log_blocks)
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
        if let Some(which) = homes.refuse(entry.at, 1) {
            return Err(bad(&format!("an entry names block {}, {which}", entry.at)));
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
        if u64::from(count) > COVERED_RUN_BLOCKS_MAX {
            return Err(bad(&format!("a covered run has {count} blocks")));
        }
        if let Some(which) = homes.refuse(at, u64::from(count)) {
            return Err(bad(&format!(
                "a run of {count} covered blocks at block {at} names blocks {which}"
            )));
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
        body_bytes: u64::from(header.body_bytes.get()),
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

    const REGION: Region = Region {
        headers: [BlockNo(90), BlockNo(91)],
        log: BlockNo(92),
        log_blocks: 8,
    };

    fn homes(device_blocks: u64) -> Homes<'static> {
        Homes {
            region: &REGION,
            device_blocks,
        }
    }

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
        let record = decode_record(&id, buf.as_bytes(), homes(100))
            .unwrap()
            .unwrap();
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
            decode_record(&Identity::new([4; 16]), buf.as_bytes(), homes(100))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn an_authentic_record_with_wild_addresses_is_an_error() {
        let (id, buf) = sample();
        assert!(decode_record(&id, buf.as_bytes(), homes(20)).is_err());
    }

    /// A fuzzed image replayed a record over the tail headers: entries name homes only.
    #[test]
    fn an_authentic_record_that_names_the_journal_itself_is_an_error() {
        let id = Identity::new([3; 16]);
        let at = |write: &dyn Fn(&mut RecordWriter)| {
            let mut writer = RecordWriter::new();
            write(&mut writer);
            let record = RecordId {
                epoch: 2,
                seq: 11,
                pos: 43,
                flushed_seq: 10,
            };
            let buf = writer.finish(&id, record);
            match decode_record(&id, buf.as_bytes(), homes(100_000)) {
                Err(error) => error.to_string(),
                Ok(_) => String::new(),
            }
        };
        let covered = |at: u64, count: u32| Covered {
            at: BlockNo(at),
            count,
            hash: [0; 32],
        };
        for block in [90, 91, 92, 99] {
            let said = at(&|w| w.patches(BlockNo(block), true, None, &[], &[], &[0; BLOCK_SIZE]));
            let which = format!("names block {block}, of the journal itself");
            assert!(
                said.contains(&which) && said.contains("at block 95"),
                "{said}"
            );
            assert!(!at(&|w| w.revoke(BlockNo(block))).is_empty());
        }
        for (from, count) in [(80, 11), (91, 1), (99, 2), (u64::MAX - 1, 5), (99_999, 2)] {
            assert!(!at(&|w| w.covered(&covered(from, count))).is_empty());
        }
        assert!(at(&|w| w.covered(&covered(100, 5000))).contains("5000"));
        for (from, count) in [(80, 10), (100, 4096)] {
            assert_eq!(at(&|w| w.covered(&covered(from, count))), "");
        }
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
        assert_eq!(TailHeader::decode(&id, block.as_slice()), Ok(header));
        block[57] ^= 1;
        assert_eq!(
            TailHeader::decode(&id, block.as_slice()),
            Err(Refusal::Hash)
        );
    }

    proptest! {
        #[test]
        fn any_flipped_byte_is_refused(at in 0usize..260, bit in 0u8..8) {
            let (id, mut buf) = sample();
            let used = RECORD_HEADER_BYTES + 16 + 8 + 14 + 5 + 12 + 16 + 48;
            prop_assume!(at < used);
            buf.as_bytes_mut()[at] ^= 1 << bit;
            prop_assert!(!matches!(decode_record(&id, buf.as_bytes(), homes(100)), Ok(Some(_))));
        }

        #[test]
        fn random_bytes_are_never_a_record(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            let id = Identity::new([3; 16]);
            prop_assert!(decode_record(&id, &bytes, homes(100)).unwrap().is_none());
            prop_assert!(TailHeader::decode(&id, &bytes).is_err());
        }
    }
}
