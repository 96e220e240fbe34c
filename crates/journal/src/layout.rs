//! The on-disk format of the journal, the codec of its tail headers, and what records share
//! with them; records are in `record`.
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

use crate::Region;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const TAIL_MAGIC: [u8; 8] = *b"STDFTAIL";
pub(crate) const VERSION: u32 = 1;

/// Recovery decided what it accepts, and may not have finished replaying it.
const FLAG_VERDICT: u32 = 1;
/// The journal was closed with an empty log.
const FLAG_CLEAN: u32 = 2;

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

const _: () = assert!(size_of::<DiskTail>() == 128);

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
    pub(crate) fn of(
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
    pub(crate) fn refuse(&self, at: u64, count: u64) -> Option<&'static str> {
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
    pub(crate) fn decode(id: &Identity, block: &[u8]) -> Result<TailHeader, Refusal> {
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
