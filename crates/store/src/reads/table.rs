//! The header of a read cache, and the tables of its segments.

use super::Listed;
use crate::cache_kind::{CacheError, READS_MAGIC, is_reads};
use crate::object::{VolumeId, identity, name_of};
use steadfast_block::{BLOCK_SIZE, Block};

const TABLE_MAGIC: [u8; 8] = *b"SFCELLS\x01";
const VERSION: u64 = 1;
/// Bytes of a table before its entries: magic, cache, number, count, hash.
const TABLE_HEADER: usize = 8 + 16 + 8 + 4 + 32;
const ENTRY: usize = 39;
/// Most bytes of a table.
pub(super) const TABLE_MOST: usize = 16 * BLOCK_SIZE;

/// The header of a read cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) volume: VolumeId,
    /// The cache's own identity, so that tables of an earlier cache on the device are not used.
    pub(super) id: VolumeId,
    pub(super) blocks: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

impl Header {
    pub(super) fn encode(&self) -> Block {
        let mut block = [0; BLOCK_SIZE];
        block[..8].copy_from_slice(&READS_MAGIC);
        block[8..16].copy_from_slice(&VERSION.to_le_bytes());
        block[16..32].copy_from_slice(&self.volume.0);
        block[32..48].copy_from_slice(&self.id.0);
        block[48..56].copy_from_slice(&self.blocks.to_le_bytes());
        let hash = blake3::hash(&block[..BLOCK_SIZE - 32]);
        block[BLOCK_SIZE - 32..].copy_from_slice(hash.as_bytes());
        block
    }

    pub(super) fn decode(block: &[u8]) -> Result<Option<Header>, CacheError> {
        let Some(block) = block.get(..BLOCK_SIZE).filter(|block| is_reads(block)) else {
            return Ok(None);
        };
        let hash = blake3::hash(&block[..BLOCK_SIZE - 32]);
        if block[BLOCK_SIZE - 32..] != *hash.as_bytes() {
            return Ok(None);
        }
        let version = u64_at(block, 8);
        if version != VERSION {
            return Err(CacheError::Version(version as u32));
        }
        let mut header = Header {
            volume: VolumeId([0; 16]),
            id: VolumeId([0; 16]),
            blocks: u64_at(block, 48),
        };
        header.volume.0.copy_from_slice(&block[16..32]);
        header.id.0.copy_from_slice(&block[32..48]);
        Ok(Some(header))
    }
}

/// Bytes of a table with this many cells.
pub(super) fn table_bytes(cells: usize) -> usize {
    TABLE_HEADER + cells * ENTRY
}

fn hash(bytes: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes[..TABLE_HEADER - 32]);
    hasher.update(&bytes[TABLE_HEADER..]);
    hasher.finalize()
}

pub(super) fn encode_table(id: &VolumeId, number: u64, cells: &[Listed]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(table_bytes(cells.len()));
    bytes.extend_from_slice(&TABLE_MAGIC);
    bytes.extend_from_slice(&id.0);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(cells.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 32]);
    for ((source, name, cell), at, len) in cells {
        let (kind, term, number) = identity(*name);
        bytes.extend_from_slice(&source.to_le_bytes());
        bytes.push(kind as u8);
        bytes.extend_from_slice(&term.to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&cell.to_le_bytes());
        bytes.extend_from_slice(&at.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
    }
    let hash = hash(&bytes);
    bytes[TABLE_HEADER - 32..TABLE_HEADER].copy_from_slice(hash.as_bytes());
    bytes
}

/// The number of cells in a table, by its first block; none if it is not a table of this cache.
pub(super) fn count(id: &VolumeId, block: &[u8]) -> Option<usize> {
    let begins = block.len() >= TABLE_HEADER && block[..8] == TABLE_MAGIC && block[8..24] == id.0;
    let count = begins.then(|| u32_at(block, 32) as usize)?;
    (count <= (TABLE_MOST - TABLE_HEADER) / ENTRY).then_some(count)
}

/// Decodes the number of a segment and its cells, if the table passes its check.
pub(super) fn decode_table(id: &VolumeId, bytes: &[u8]) -> Option<(u64, Vec<Listed>)> {
    let cells = count(id, bytes)?;
    let bytes = bytes.get(..table_bytes(cells))?;
    if *hash(bytes).as_bytes() != bytes[TABLE_HEADER - 32..TABLE_HEADER] {
        return None;
    }
    let entry = |entry: &[u8]| {
        let source = u16::from_le_bytes([entry[0], entry[1]]);
        let number = u128::from(u64_at(entry, 11)) | u128::from(u64_at(entry, 19)) << 64;
        let name = name_of(entry[2], u64_at(entry, 3), number)?;
        let key = (source, name, u32_at(entry, 27));
        let (at, len) = (u32_at(entry, 31), u32_at(entry, 35));
        at.checked_add(len).map(|_| (key, at, len))
    };
    let cells: Option<Vec<_>> = bytes[TABLE_HEADER..]
        .chunks_exact(ENTRY)
        .map(entry)
        .collect();
    Some((u64_at(bytes, 24), cells?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::protocol::{ObjectName, Term};

    #[test]
    fn a_table_is_read_as_it_was_written_or_not_at_all() {
        let id = VolumeId([7; 16]);
        let name = |number| ObjectName::Data {
            term: Term(3),
            number,
        };
        let cells: Vec<Listed> = (0..200)
            .map(|i| ((i as u16 % 3, name(u64::from(i)), i * 5), i * 100, 99))
            .collect();
        let bytes = encode_table(&id, 42, &cells);
        assert_eq!(bytes.len(), table_bytes(200));
        assert_eq!(count(&id, &bytes[..BLOCK_SIZE]), Some(200));
        let mut padded = bytes.clone();
        padded.resize(3 * BLOCK_SIZE, 9);
        assert_eq!(decode_table(&id, &padded), Some((42, cells)));
        assert_eq!(decode_table(&VolumeId([8; 16]), &padded), None);
        for at in (0..bytes.len()).step_by(7) {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(decode_table(&id, &bad), None, "{at}");
        }
        for len in [0, 7, TABLE_HEADER - 1, bytes.len() - 1] {
            assert_eq!(decode_table(&id, &bytes[..len]), None, "{len}");
        }
        let header = Header {
            volume: VolumeId([1; 16]),
            id,
            blocks: 99,
        };
        assert_eq!(Header::decode(&header.encode()).unwrap(), Some(header));
        let mut bad = header.encode();
        bad[50] ^= 1;
        assert_eq!(Header::decode(&bad).unwrap(), None);
    }
}
