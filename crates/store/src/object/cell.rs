//! Cells: parts of an object that are read and checked by themselves.
//!
//! A cell's hash covers the volume, the object's name and the cell's place in it. So a cell that is read by range is known to
//! be the one that the map means, though the rest of the object was not read.

use super::reader::Reader;
use super::{Bad, Draft, VolumeId, identity};
use crate::protocol::ObjectName;
use bytes::Bytes;

/// Bytes before a cell's contents.
pub(crate) const CELL_HEADER: usize = 32;

/// What a cell holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum CellKind {
    /// Blocks of the disk, one after another.
    Blocks,
    /// A region of the map.
    Region,
    /// A part of the table of objects.
    Objects,
}

impl CellKind {
    pub(crate) fn code(self) -> u8 {
        match self {
            CellKind::Blocks => 1,
            CellKind::Region => 2,
            CellKind::Objects => 3,
        }
    }

    pub(crate) fn of_code(code: u8) -> Result<CellKind, Bad> {
        Ok(match code {
            1 => CellKind::Blocks,
            2 => CellKind::Region,
            3 => CellKind::Objects,
            _ => return Err(Bad::Content("a cell has no known kind")),
        })
    }
}

/// A cell that passed its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) kind: CellKind,
    /// Its first block, or the index of what it holds.
    pub(crate) index: u64,
    pub(crate) contents: Bytes,
}

fn hash(volume: VolumeId, name: ObjectName, at: u32, header: &[u8], contents: &[u8]) -> [u8; 16] {
    let (kind, term, number) = identity(name);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&volume.0);
    hasher.update(&kind.to_le_bytes());
    hasher.update(&term.to_le_bytes());
    hasher.update(&number.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    hasher.update(header);
    hasher.update(contents);
    let mut first = [0; 16];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    first
}

/// Whether `count` blocks after the first `skip` lie in a cell of blocks of this length with header, at this place.
pub(super) fn holds(at: u32, len: u32, skip: u16, count: u32) -> bool {
    let blocks =
        u64::from(len).saturating_sub(CELL_HEADER as u64) / steadfast_block::BLOCK_SIZE as u64;
    at.checked_add(len).is_some() && u64::from(skip) + u64::from(count) <= blocks
}

/// The place of the next cell in a draft; none if the object is too long for one.
pub(crate) fn cell_offset(draft: &Draft) -> Option<u32> {
    u32::try_from(draft.len()).ok()
}

/// Appends a cell. Returns its place and its length with header.
pub(crate) fn push_cell(
    draft: &mut Draft,
    volume: VolumeId,
    name: ObjectName,
    kind: CellKind,
    index: u64,
    parts: &[&[u8]],
) -> (u32, u32) {
    let at = draft.len() as u32;
    let contents: usize = parts.iter().map(|part| part.len()).sum();
    draft.put(&[0; 16]);
    draft.put_u64(index);
    draft.put_u32(u32::from(kind.code()));
    draft.put_u32(contents as u32);
    for part in parts {
        draft.put(part);
    }
    let begin = at as usize;
    let (header, rest) = draft.bytes[begin..].split_at(CELL_HEADER);
    let hash = hash(volume, name, at, &header[16..], rest);
    draft.bytes[begin..begin + 16].copy_from_slice(&hash);
    (at, (CELL_HEADER + contents) as u32)
}

/// Checks the bytes of the cell that begins at `at` of an object. More may follow it.
pub(crate) fn read_cell(
    volume: VolumeId,
    name: ObjectName,
    at: u32,
    bytes: &Bytes,
) -> Result<Cell, Bad> {
    let mut reader = Reader::new(bytes);
    let expected = reader.take(16)?;
    let index = reader.u64()?;
    let (code, length) = (reader.u32()?, reader.u32()? as usize);
    let contents = reader.take(length)?;
    if hash(volume, name, at, &bytes[16..CELL_HEADER], contents) != expected {
        return Err(Bad::Hash);
    }
    let code = u8::try_from(code).map_err(|_| Bad::Content("a cell has no known kind"))?;
    Ok(Cell {
        kind: CellKind::of_code(code)?,
        index,
        contents: bytes.slice(CELL_HEADER..CELL_HEADER + length),
    })
}
