//! Cells: parts of an object that can be read and checked alone.
//!
//! A cell's hash covers the volume, the object's name and the cell's place in it. So a cell that is read by range is known to
//! be the one in the map, although the rest of the object was not read. The tag of an encrypted cell covers the same.

use super::reader::Reader;
use super::{Bad, Coding, Draft, identity};
use crate::protocol::ObjectName;
use bytes::Bytes;

/// Bytes before a cell's contents.
pub(crate) const CELL_HEADER: usize = 32;

/// The kind of a cell's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum CellKind {
    /// Blocks of the disk, one after another.
    Blocks,
    /// A region of the map.
    Region,
    /// A part of the table of objects.
    Objects,
    /// The tables of an epoch, in a coded volume.
    Tables,
    /// The root of a checkpoint, in a coded volume.
    Root,
    /// A list of snapshots, in a coded volume.
    Roots,
    /// The newest notes.
    Notes,
}

impl CellKind {
    pub(crate) fn code(self) -> u8 {
        match self {
            CellKind::Blocks => 1,
            CellKind::Region => 2,
            CellKind::Objects => 3,
            CellKind::Tables => 4,
            CellKind::Root => 5,
            CellKind::Roots => 6,
            CellKind::Notes => 7,
        }
    }

    pub(crate) fn of_code(code: u8) -> Result<CellKind, Bad> {
        Ok(match code {
            1 => CellKind::Blocks,
            2 => CellKind::Region,
            3 => CellKind::Objects,
            4 => CellKind::Tables,
            5 => CellKind::Root,
            6 => CellKind::Roots,
            7 => CellKind::Notes,
            _ => return Err(Bad::Content("a cell has no known kind")),
        })
    }
}

/// A cell that passed its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) kind: CellKind,
    /// Its first block, or the index of its contents.
    pub(crate) index: u64,
    pub(crate) contents: Bytes,
    /// Its length in the object, with header.
    pub(crate) len: usize,
}

/// Bytes before the contents of a cell of a coded volume.
const CODED_HEADER: usize = 64;
/// Contents up to this length are compressed. So no cell makes a reader allocate more, unless the cell itself is longer.
const COMPRESSED_MOST: usize = 64 << 20;
const ZSTD: u8 = 1;
const AES_256_GCM: u8 = 1;

/// The bytes to which a cell is bound: its volume, its object, its offset there, and its header.
fn bound(coding: &Coding, name: ObjectName, at: u32, header: &[u8]) -> Vec<u8> {
    let (kind, term, number) = identity(name);
    let mut bound = Vec::with_capacity(48 + header.len());
    bound.extend(coding.volume.0);
    bound.extend(kind.to_le_bytes());
    bound.extend(term.to_le_bytes());
    bound.extend(number.to_le_bytes());
    bound.extend(at.to_le_bytes());
    bound.extend(header);
    bound
}

/// BLAKE3 hashes 16 chunks of 1 KiB at once, if they lie one after the other and begin at a multiple of 16 chunks of the input.
const HASHED_AT_ONCE: usize = 16 << 10;

fn hash(coding: &Coding, bound: &[u8], contents: &[u8]) -> [u8; 16] {
    let mut hasher = coding.hasher();
    // `bound` alone would leave all chunks after it out of step: a third of the speed.
    let mut first = [0; HASHED_AT_ONCE];
    let length = bound.len() + contents.len();
    let (first, rest) = match first.get_mut(..length.min(HASHED_AT_ONCE)) {
        Some(first) if first.len() >= bound.len() => {
            let (begin, rest) = contents.split_at(first.len() - bound.len());
            first[..bound.len()].copy_from_slice(bound);
            first[bound.len()..].copy_from_slice(begin);
            (&*first, rest)
        }
        _ => (bound, contents),
    };
    hasher.update(first);
    hasher.update(rest);
    let mut hash = [0; 16];
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    hash
}

/// The place of the next cell in a draft; none if the object is too long for one.
pub(crate) fn cell_offset(draft: &Draft) -> Option<u32> {
    u32::try_from(draft.len()).ok()
}

/// Appends a cell. Returns its place and its length with header.
pub(crate) fn push_cell(
    draft: &mut Draft,
    coding: &Coding,
    name: ObjectName,
    kind: CellKind,
    index: u64,
    parts: &[&[u8]],
) -> (u32, u32) {
    let at = draft.len() as u32;
    if !coding.is_plain() {
        return push_coded(draft, coding, name, (kind, index), &parts.concat());
    }
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
    let hash = hash(coding, &bound(coding, name, at, &header[16..]), rest);
    draft.bytes[begin..begin + 16].copy_from_slice(&hash);
    (at, (CELL_HEADER + contents) as u32)
}

fn push_coded(
    draft: &mut Draft,
    coding: &Coding,
    name: ObjectName,
    (kind, index): (CellKind, u64),
    contents: &[u8],
) -> (u32, u32) {
    let at = draft.len() as u32;
    let sealer = draft
        .sealer
        .as_mut()
        .filter(|_| contents.len() <= COMPRESSED_MOST);
    let compressed = sealer.and_then(|sealer| sealer.compress(contents));
    let method = compressed.as_ref().map_or(0, |_| ZSTD);
    let mut stored = compressed.unwrap_or_else(|| contents.to_vec());
    let mut header = [0; CODED_HEADER];
    header[16..24].copy_from_slice(&index.to_le_bytes());
    header[24..28].copy_from_slice(&u32::from(kind.code()).to_le_bytes());
    header[28..32].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    header[32..36].copy_from_slice(&(contents.len() as u32).to_le_bytes());
    header[36] = method;
    let tag = if coding.features.encrypted {
        header[37] = AES_256_GCM;
        if let Some(sealer) = &draft.sealer {
            header[48..].copy_from_slice(&sealer.salt);
        }
        let bound = bound(coding, name, at, &header[16..]);
        let sealer = draft.sealer.as_ref();
        // Without a key, the contents must not be written: the cell is zeros, and fails its checks.
        sealer
            .and_then(|sealer| sealer.seal(at, &bound, &mut stored))
            .unwrap_or_else(|| {
                stored.fill(0);
                [0; 16]
            })
    } else {
        hash(coding, &bound(coding, name, at, &header[16..]), &stored)
    };
    header[..16].copy_from_slice(&tag);
    draft.put(&header);
    draft.put(&stored);
    (at, (CODED_HEADER + stored.len()) as u32)
}

/// Checks the bytes of the cell at offset `at` of an object. Other bytes may follow it.
pub(crate) fn read_cell(
    coding: &Coding,
    name: ObjectName,
    at: u32,
    bytes: &Bytes,
) -> Result<Cell, Bad> {
    let mut reader = Reader::new(bytes);
    let mut expected = [0; 16];
    expected.copy_from_slice(reader.take(16)?);
    let index = reader.u64()?;
    let (code, length) = (reader.u32()?, reader.u32()? as usize);
    let kind = || {
        let code = u8::try_from(code).map_err(|_| Bad::Content("a cell has no known kind"))?;
        CellKind::of_code(code)
    };
    if coding.is_plain() {
        let contents = reader.take(length)?;
        let bound = bound(coding, name, at, &bytes[16..CELL_HEADER]);
        if hash(coding, &bound, contents) != expected {
            return Err(Bad::Hash);
        }
        return Ok(Cell {
            kind: kind()?,
            index,
            contents: bytes.slice(CELL_HEADER..CELL_HEADER + length),
            len: CELL_HEADER + length,
        });
    }
    let plain_length = reader.u32()? as usize;
    let (method, cipher) = (reader.u8()?, reader.u8()?);
    reader.take(10)?;
    let mut salt = [0; 16];
    salt.copy_from_slice(reader.take(16)?);
    let stored = reader.take(length)?;
    let bound = bound(coding, name, at, &bytes[16..CODED_HEADER]);
    let mut contents = bytes.slice(CODED_HEADER..CODED_HEADER + length);
    if coding.features.encrypted {
        let mut opened = stored.to_vec();
        if cipher != AES_256_GCM || !coding.unseal(&salt, at, &bound, expected, &mut opened) {
            return Err(Bad::Hash);
        }
        contents = opened.into();
    } else if cipher != 0 || hash(coding, &bound, stored) != expected {
        return Err(Bad::Hash);
    }
    let kind = kind()?;
    let most = match kind {
        CellKind::Blocks => usize::from(coding.features.unit_blocks) * steadfast_block::BLOCK_SIZE,
        _ => COMPRESSED_MOST.max(contents.len()),
    };
    if plain_length > most {
        return Err(Bad::Content("a cell is longer than a unit"));
    }
    match method {
        0 if plain_length == contents.len() => {}
        ZSTD => contents = super::coding::decompress(&contents, plain_length)?.into(),
        _ => return Err(Bad::Content("a cell has an unknown compression")),
    }
    Ok(Cell {
        kind,
        index,
        contents,
        len: CODED_HEADER + length,
    })
}

/// Appends a part that is not read by cells: as it is in a plain volume, as one cell in a coded volume.
pub(super) fn push_body(
    draft: &mut Draft,
    coding: &Coding,
    name: ObjectName,
    kind: CellKind,
    body: &Draft,
) {
    let body = &body.bytes[super::ENVELOPE..];
    match coding.is_plain() {
        true => draft.put(body),
        false => {
            push_cell(draft, coding, name, kind, 0, &[body]);
        }
    }
}

/// Reads the bytes that [`push_body`] appended at `at`, up to the end of an object's body.
pub(super) fn read_body(
    coding: &Coding,
    name: ObjectName,
    kind: CellKind,
    at: usize,
    body: &Bytes,
) -> Result<Bytes, Bad> {
    let rest = at
        .checked_sub(super::ENVELOPE)
        .filter(|from| *from <= body.len());
    let rest = body.slice(rest.ok_or(Bad::Content("it ends too early"))?..);
    if coding.is_plain() {
        return Ok(rest);
    }
    let at = u32::try_from(at).map_err(|_| Bad::Content("it is too long"))?;
    let cell = read_cell(coding, name, at, &rest)?;
    match cell.kind == kind && cell.len == rest.len() {
        true => Ok(cell.contents),
        false => Err(Bad::Content("it consists of other cells")),
    }
}
