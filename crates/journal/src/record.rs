//! Records: one commit's bytes in the log, built and taken apart. The format is in `layout`,
//! its codec in `codec::record`.

use crate::codec::record::{
    self as codec, CHECKSUM_BYTES, COVERED_RUN_BLOCKS_MAX, CoveredRun, Cursor, ENTRY_HEADER_BYTES,
    Malformed, RUN_BITS_MAX,
};
use crate::layout::{Homes, Identity, Refusal, set_bits};
use crate::{COVERED_BLOCKS_MAX, Error, Result};
use std::fmt;
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockNo};

pub(crate) use codec::{Entry, RECORD_BLOCKS_MAX, RecordClaim, RecordId};

/// Bytes of a record before its body.
pub(crate) const RECORD_HEADER_BYTES: usize = codec::HEADER_BYTES as usize;
/// Encoded bytes of an entry without ranges, the checksum included.
pub(crate) const ENTRY_BYTES: usize = (ENTRY_HEADER_BYTES + CHECKSUM_BYTES) as usize;
/// Encoded bytes of a covered run.
pub(crate) const COVERED_BYTES: usize = codec::COVERED_BYTES as usize;

const _: () = {
    assert!(RECORD_HEADER_BYTES == 112 && ENTRY_BYTES == 24 && COVERED_BYTES == 48);
    assert!(RECORD_BLOCKS_MAX * BLOCK_SIZE as u64 <= u32::MAX as u64);
    assert!(COVERED_BLOCKS_MAX <= COVERED_RUN_BLOCKS_MAX);
};

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

    /// A writer with capacity for a body of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> RecordWriter {
        RecordWriter {
            body: Vec::with_capacity(bytes),
            entries: 0,
            covered: 0,
        }
    }

    /// The block was freed: earlier patches of it are void.
    pub(crate) fn revoke(&mut self, at: BlockNo) {
        self.entry(at, false, true, None, [0, 0]);
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
        let longest = RUN_BITS_MAX as usize;
        let mut bit_runs: Vec<(usize, usize, u8)> = Vec::with_capacity(bits.len());
        for &(first, count) in bits {
            for i in first..first + count {
                match bit_runs.last_mut() {
                    Some(run) if run.0 + run.1 == i && run.2 == bit(i) && run.1 < longest => {
                        run.1 += 1;
                    }
                    _ => bit_runs.push((i, 1, bit(i))),
                }
            }
        }
        let parts = [ranges.len() as u64, bit_runs.len() as u64];
        self.entry(at, zero, false, checksum, parts);
        for &(offset, len) in ranges {
            let bytes = &image[offset..offset + len];
            codec::put_range(offset as u64, bytes, &mut self.body);
        }
        for (first, count, value) in bit_runs {
            codec::put_bit_run(first as u64, count as u64, value == 1, &mut self.body);
        }
    }

    fn entry(&mut self, at: BlockNo, zero: bool, revoke: bool, sum: Option<u64>, parts: [u64; 2]) {
        debug_assert_eq!(self.covered, 0, "entries come before covered runs");
        codec::put_entry(at.0, zero, revoke, sum, parts, &mut self.body);
        self.entries += 1;
    }

    /// A run of blocks written outside the log, with its hash.
    pub(crate) fn covered(&mut self, run: &Covered) {
        let run = CoveredRun {
            at: run.at.0,
            count: u64::from(run.count),
            hash: run.hash,
        };
        codec::put_covered(&run, &mut self.body);
        self.covered += 1;
    }

    /// The record's blocks, ready to be written at its position.
    pub(crate) fn finish(self, id: &Identity, record: RecordId) -> BlockBuf {
        let mut header = Vec::with_capacity(RECORD_HEADER_BYTES);
        let (entries, covered) = (u64::from(self.entries), u64::from(self.covered));
        let body = self.body.as_slice();
        codec::put_header(id, &record, entries, covered, body, &mut header);
        let bytes = header.len() + body.len();
        let mut buf = BlockBuf::zeroed(bytes.div_ceil(BLOCK_SIZE));
        let out = buf.as_bytes_mut();
        out[..header.len()].copy_from_slice(&header);
        out[header.len()..bytes].copy_from_slice(body);
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

impl RecordClaim {
    /// The claim, or why the block is no start of a record of this volume.
    pub(crate) fn read(id: &Identity, block: &[u8]) -> std::result::Result<RecordClaim, Refusal> {
        codec::claim(id, block)
    }
}

impl Entry {
    /// Byte ranges: offset in the block, and the bytes. `record` is the one it was decoded from.
    pub(crate) fn ranges<'a>(
        &self,
        record: &'a [u8],
    ) -> impl ExactSizeIterator<Item = (usize, &'a [u8])> + use<'a> {
        let mut rest = Cursor::new(record, self.body);
        (0..self.ranges as usize).map(move |_| {
            let (offset, bytes) = rest.range().unwrap_or_default();
            (offset as usize, bytes)
        })
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
        (0..self.bit_runs as usize).map(move |_| {
            let (first, count, value) = rest.bit_run().unwrap_or_default();
            (first as usize, count as usize, value)
        })
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
    rest: Cursor<&'a [u8]>,
    left: usize,
}

impl<'a> Entries<'a> {
    pub(crate) fn of(record: &Record, bytes: &'a [u8]) -> Entries<'a> {
        Entries {
            rest: Cursor::new(bytes, codec::HEADER_BYTES),
            left: record.entries,
        }
    }

    /// The entry that begins at `from`, a position from [`Entries::position`].
    pub(crate) fn at(bytes: &[u8], from: usize) -> Option<Entry> {
        Cursor::new(bytes, from as u64).entry().ok()
    }

    /// Start of the next entry.
    pub(crate) fn position(&self) -> usize {
        self.rest.at as usize
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
    /// Number of blocks that it changes; see [`Entries`].
    pub(crate) entries: usize,
    pub(crate) covered: Vec<Covered>,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Part(what) => f.write_str(what),
            Malformed::Entry(at, which) => write!(f, "an entry names block {at}, {which}"),
            Malformed::RunLength(count) => write!(f, "a covered run has {count} blocks"),
            Malformed::Run(at, count, which) => write!(
                f,
                "a run of {count} covered blocks at block {at} names blocks {which}"
            ),
        }
    }
}

/// Decodes a whole record. `Ok(None)`: the hash does not hold, so this is no record.
/// An error: the hash holds and the contents make no sense (our own bug or an attack).
#[cfg(any(test, feature = "fuzz", feature = "trace"))]
pub(crate) fn decode_record(id: &Identity, buf: &[u8], homes: Homes<'_>) -> Result<Option<Record>> {
    Ok(decode_expected(id, buf, homes, |_| true)?.map(|(record, _)| record))
}

/// Decodes a whole record that makes the claim that is expected. `Ok(None)`: this is not that record.
pub(crate) fn decode_expected(
    id: &Identity,
    buf: &[u8],
    homes: Homes<'_>,
    expected: impl Fn(&RecordClaim) -> bool,
) -> Result<Option<(Record, RecordClaim)>> {
    let Some((claim, body)) = codec::authentic(id, buf, expected) else {
        return Ok(None);
    };
    let mut covered = Vec::new();
    let checked = codec::check(&claim, body, &homes.bounds(), |run| {
        covered.push(Covered {
            at: BlockNo(run.at),
            count: run.count as u32,
            hash: run.hash,
        });
    });
    if let Err(what) = checked {
        let region = homes.region;
        let at = region.log.offset(claim.id.pos % region.log_blocks);
        let seq = claim.id.seq;
        return Err(Error::Corrupt {
            what: format!("log record {seq} at block {at} is authentic but malformed: {what}"),
        });
    }
    let record = Record {
        id: claim.id,
        body_bytes: claim.body_bytes,
        entries: claim.entries as usize,
        covered,
    };
    Ok(Some((record, claim)))
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
        let mut writer = RecordWriter::new(BLOCK_SIZE);
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
    fn a_record_decodes_to_the_written_entries() {
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
            let mut writer = RecordWriter::new(BLOCK_SIZE);
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
    fn a_tail_header_decodes_to_the_written_fields() {
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
