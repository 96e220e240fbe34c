//! The on-disk format of the journal; the parts of the volume that its codecs (`codec`) need; tail headers.
//! Records are in `record`.
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
//! A *position* counts log blocks since the volume was made, so it also distinguishes laps of
//! the circular log. Hashes are BLAKE3, keyed by the volume: a header or record
//! of another volume, epoch, sequence or lap never validates (corner 11).

use crate::Region;
use crate::codec::record::Bounds;
use crate::codec::tail::{self, TAIL_BYTES};
use crate::codec::{self, Bytes, HASH_BYTES, Keyed};
use std::fmt;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};

pub use crate::codec::Refusal;
pub use crate::codec::tail::TailHeader;

const _: () = assert!(codec::BLOCK_BYTES == BLOCK_SIZE as u64 && TAIL_BYTES == 128);

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Blank => f.write_str("it was never written"),
            Refusal::Magic => f.write_str("it has no magic number"),
            Refusal::Version(version) => write!(f, "it has format version {version}"),
            Refusal::Volume => f.write_str("it belongs to another volume"),
            Refusal::Fields => f.write_str("its fields make no sense"),
            Refusal::Hash => f.write_str("its hash does not hold"),
        }
    }
}

/// The blocks that a record may name: those of the device without the journal's own.
#[derive(Clone, Copy)]
pub(crate) struct Homes<'a> {
    pub(crate) region: &'a Region,
    pub(crate) device_blocks: u64,
}

impl Homes<'_> {
    pub(crate) fn bounds(&self) -> Bounds<u64> {
        Bounds {
            headers: self.region.headers.map(|at| at.0),
            log: self.region.log.0,
            log_blocks: self.region.log_blocks,
            device_blocks: self.device_blocks,
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

impl<'a> Keyed<&'a [u8]> for Identity {
    type Out = Vec<u8>;

    fn volume(&self) -> [u64; 2] {
        let volume = self.volume.as_slice();
        [volume.word::<8>(0), volume.word::<8>(8)]
    }

    fn digest(&self, head: &'a [u8], body: Option<&'a [u8]>) -> [u8; 32] {
        let mut hasher = self.hasher();
        hasher.update(head).update(&[0; HASH_BYTES as usize]);
        *hasher
            .update(body.unwrap_or_default())
            .finalize()
            .as_bytes()
    }

    fn seal(&self, out: &mut Vec<u8>, body: Option<&'a [u8]>) {
        let digest = self.digest(out, body);
        out.extend_from_slice(&digest);
    }
}

impl TailHeader {
    pub(crate) fn encode(&self, id: &Identity) -> Box<Block> {
        let mut bytes = Vec::with_capacity(TAIL_BYTES as usize);
        tail::encode(self, id, &mut bytes);
        let mut block = Box::new([0u8; BLOCK_SIZE]);
        block[..bytes.len()].copy_from_slice(&bytes);
        block
    }

    /// The header in a block, or why there is none of this volume.
    pub(crate) fn decode(id: &Identity, block: &[u8]) -> Result<TailHeader, Refusal> {
        tail::decode(id, block)
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
