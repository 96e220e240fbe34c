//! Records: the codec of what one commit writes into the log. The format is in `layout`.

use crate::layout::{Homes, Identity, Refusal, VERSION, set_bits};
use crate::{COVERED_BLOCKS_MAX, Error, Result};
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockNo};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const RECORD_MAGIC: [u8; 8] = *b"STDFRECD";

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
    assert!(size_of::<RecordHeader>() == 112);
    assert!(size_of::<DiskEntry>() + 8 == ENTRY_BYTES);
    assert!(size_of::<DiskCovered>() == COVERED_BYTES);
    assert!(RECORD_BLOCKS_MAX * BLOCK_SIZE as u64 <= u32::MAX as u64);
    assert!(COVERED_BLOCKS_MAX <= COVERED_RUN_BLOCKS_MAX);
};

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
    /// Bytes of the record so far.
    pub(crate) fn bytes(&self) -> u64 {
        (RECORD_HEADER_BYTES + self.body.len()) as u64
    }

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

/// One block's part of a record, whose ranges and bit runs lie inside the block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) at: u64,
    pub(crate) zero: bool,
    pub(crate) revoke: bool,
    pub(crate) meta: bool,
    pub(crate) checksum: u64,
    ranges: u16,
    bit_runs: u16,
    /// Where the ranges begin in the record.
    body: usize,
}

impl Entry {
    /// Byte ranges: offset in the block, and the bytes. `record` is the one it was decoded from.
    pub(crate) fn ranges<'a>(
        &self,
        record: &'a [u8],
    ) -> impl ExactSizeIterator<Item = (usize, &'a [u8])> + use<'a> {
        let mut rest = Cursor::new(record, self.body);
        (0..self.ranges).map(move |_| rest.range().unwrap_or_default())
    }

    /// Bit runs: first, count, value.
    pub(crate) fn bits<'a>(
        &self,
        record: &'a [u8],
    ) -> impl ExactSizeIterator<Item = (usize, usize, bool)> + use<'a> {
        let mut rest = Cursor::new(record, self.body);
        for _ in 0..self.ranges {
            let _ = rest.range();
        }
        (0..self.bit_runs).map(move |_| rest.bit_run().unwrap_or_default())
    }

    /// Applies the patches to `image`; `record` is the one that the entry was decoded from.
    pub(crate) fn apply(&self, record: &[u8], image: &mut Block) {
        if self.zero {
            image.fill(0);
        }
        for (offset, bytes) in self.ranges(record) {
            image[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        if self.bit_runs > 0 {
            for (first, count, value) in self.bits(record) {
                set_bits(image, first, count, value);
            }
        }
    }
}

/// The entries of a record that was decoded, from its bytes.
#[derive(Clone)]
pub(crate) struct Entries<'a> {
    rest: Cursor<'a>,
    left: usize,
}

impl<'a> Entries<'a> {
    pub(crate) fn of(record: &Record, bytes: &'a [u8]) -> Entries<'a> {
        Entries {
            rest: Cursor::new(bytes, RECORD_HEADER_BYTES),
            left: record.entries,
        }
    }

    /// The entry that begins at `from`, as [`Entries::position`] told.
    pub(crate) fn at(bytes: &[u8], from: usize) -> Option<Entry> {
        Cursor::new(bytes, from).entry().ok()
    }

    /// Where the next entry begins.
    pub(crate) fn position(&self) -> usize {
        self.rest.at
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        self.left = self.left.checked_sub(1)?;
        self.rest.entry().ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Entries<'_> {}

/// A decoded record.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: RecordId,
    pub(crate) body_bytes: u64,
    /// How many blocks it changes; see [`Entries`].
    pub(crate) entries: usize,
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
    for _ in 0..header.entries.get() {
        let entry = rest.entry().map_err(bad)?;
        if let Some(which) = homes.refuse(entry.at, 1) {
            return Err(bad(&format!("an entry names block {}, {which}", entry.at)));
        }
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
        entries: header.entries.get() as usize,
        covered,
    }))
}

#[derive(Clone)]
struct Cursor<'a> {
    buf: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    fn new(buf: &'a [u8], at: usize) -> Cursor<'a> {
        let end = buf.len();
        Cursor { buf, at, end }
    }

    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, _) = T::read_from_prefix(self.buf.get(self.at..self.end)?).ok()?;
        self.at += size_of::<T>();
        Some(value)
    }

    fn skip(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(bytes).filter(|end| *end <= self.end)?;
        let skipped = self.buf.get(self.at..end)?;
        self.at = end;
        Some(skipped)
    }

    /// An entry with all of its ranges and bit runs, or what is wrong with it.
    fn entry(&mut self) -> std::result::Result<Entry, &'static str> {
        let cut_short = "an entry is cut short";
        let disk: DiskEntry = self.take().ok_or(cut_short)?;
        let mut entry = Entry {
            at: disk.block.get(),
            zero: disk.flags & ENTRY_ZERO != 0,
            revoke: disk.flags & ENTRY_REVOKE != 0,
            meta: disk.flags & ENTRY_META != 0,
            checksum: 0,
            ranges: disk.ranges.get(),
            bit_runs: disk.bit_runs.get(),
            body: 0,
        };
        if entry.meta && !entry.revoke {
            entry.checksum = self.take::<U64>().ok_or(cut_short)?.get();
        }
        entry.body = self.at;
        for _ in 0..entry.ranges {
            let (offset, bytes) = self.range().ok_or("a range is cut short")?;
            if offset + bytes.len() > BLOCK_SIZE {
                return Err("a range reaches beyond its block");
            }
        }
        for _ in 0..entry.bit_runs {
            let (first, count, _) = self.bit_run().ok_or("a bit run is cut short")?;
            if first + count > BLOCK_SIZE * 8 {
                return Err("a bit run reaches beyond its block");
            }
        }
        Ok(entry)
    }

    fn range(&mut self) -> Option<(usize, &'a [u8])> {
        let offset: U16 = self.take()?;
        let len: U16 = self.take()?;
        let bytes = self.skip(len.get() as usize)?;
        Some((offset.get() as usize, bytes))
    }

    fn bit_run(&mut self) -> Option<(usize, usize, bool)> {
        let first: U16 = self.take()?;
        let run: U16 = self.take()?;
        let (count, value) = (run.get() & 0x7fff, run.get() >> 15 == 1);
        Some((first.get() as usize, count as usize, value))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Region;
    use crate::layout::TailHeader;
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
        let entries: Vec<Entry> = Entries::of(&record, buf.as_bytes()).collect();
        assert!(entries[1].revoke && entries[1].at == 8);
        let mut image = [0xffu8; BLOCK_SIZE];
        entries[0].apply(buf.as_bytes(), &mut image);
        assert_eq!(&image[10..20], b"0123456789");
        assert_eq!(
            entries[0].bits(buf.as_bytes()).collect::<Vec<_>>(),
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
