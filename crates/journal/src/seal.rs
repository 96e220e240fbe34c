//! The seal at the end of every metadata block: its own address and a checksum over
//! address, volume and contents. Placed only at home write and at replay.

use std::hash::Hasher;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};
use xxhash_rust::xxh3::Xxh3;

/// Bytes at the end of a metadata block that belong to the journal.
pub const SEAL_BYTES: usize = 16;
/// Bytes of a metadata block that belong to the caller.
pub const META_BYTES: usize = BLOCK_SIZE - SEAL_BYTES;

/// The checksum of a metadata block's contents at its address in its volume.
pub(crate) fn checksum(volume: &[u8; 16], at: BlockNo, block: &Block) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(volume);
    hasher.update(&at.0.to_le_bytes());
    hasher.update(&block[..META_BYTES]);
    hasher.finish()
}

/// Places the seal of a block whose checksum is known.
pub(crate) fn place(at: BlockNo, block: &mut Block, sum: u64) {
    block[META_BYTES..META_BYTES + 8].copy_from_slice(&at.0.to_le_bytes());
    block[META_BYTES + 8..].copy_from_slice(&sum.to_le_bytes());
}

/// Places the seal. O(block).
pub fn seal(volume: &[u8; 16], at: BlockNo, block: &mut Block) {
    let sum = checksum(volume, at, block);
    place(at, block, sum);
}

/// Whether the block carries the seal of this address, volume and contents.
#[must_use]
pub fn seal_holds(volume: &[u8; 16], at: BlockNo, block: &Block) -> bool {
    let mut expected = *block;
    seal(volume, at, &mut expected);
    expected[META_BYTES..] == block[META_BYTES..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_names_volume_address_and_contents() {
        let mut block = [7u8; BLOCK_SIZE];
        seal(&[1; 16], BlockNo(9), &mut block);
        assert!(seal_holds(&[1; 16], BlockNo(9), &block));
        assert!(!seal_holds(&[2; 16], BlockNo(9), &block));
        assert!(!seal_holds(&[1; 16], BlockNo(8), &block));
        block[100] ^= 1;
        assert!(!seal_holds(&[1; 16], BlockNo(9), &block));
    }
}
