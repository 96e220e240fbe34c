//! `log/TERM/SLOT`: an epoch, or the seal of a term.

use super::cell::{push_body, read_body};
use super::reader::Reader;
use super::{Bad, CellKind, Coding, Draft, Salt, open};
use crate::protocol::{Nonce, ObjectName, SlotName, Stamp};
use bytes::Bytes;

const EPOCH: u8 = 1;
const SEAL: u8 = 2;

/// A run of blocks and the cell that holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The first block.
    pub(crate) block: u64,
    /// The number of blocks. A run does not cross a region.
    pub(crate) count: u16,
    /// Blocks of the cell before the first.
    pub(crate) skip: u16,
    /// 0 for this slot, *k* for the *k*-th object of [`Epoch::data`].
    pub(crate) object: u32,
    /// Offset of the cell.
    pub(crate) at: u32,
    /// Its length with header.
    pub(crate) len: u32,
}

/// A data object that an epoch names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataName {
    /// Its number in the term of the slot.
    pub(crate) number: u64,
    pub(crate) stamp: Stamp,
    /// Its length.
    pub(crate) bytes: u64,
    /// Blocks that it holds.
    pub(crate) blocks: u32,
}

/// The changes from one flush to the next. Entries are in order: where two overlap, the later one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(crate) data: Vec<DataName>,
    /// Discarded runs: first block and count. They take effect before the entries.
    pub(crate) holes: Vec<(u64, u64)>,
    pub(crate) entries: Vec<Entry>,
    /// Blocks in the slot's own cells.
    pub(crate) own_blocks: u32,
    /// Notes that the client left with the blocks.
    pub(crate) notes: Vec<Bytes>,
}

/// What a slot object holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotBody {
    Epoch(Epoch),
    Seal(Nonce),
}

pub(crate) fn encode_seal(coding: &Coding, at: SlotName, nonce: Nonce) -> (Bytes, Stamp) {
    let mut draft = Draft::new(32);
    draft.put_u8(SEAL);
    draft.put_u128(nonce.0);
    draft.finish(coding, ObjectName::Log(at))
}

/// Makes a slot object. `cells` appends the slot's own cells and completes the entries that name them.
pub(crate) fn encode_epoch(
    coding: &Coding,
    salt: Salt,
    at: SlotName,
    mut epoch: Epoch,
    cells: impl FnOnce(&mut Draft, &mut Epoch),
) -> (Bytes, Stamp, Epoch) {
    let inline = epoch.own_blocks as usize * (steadfast_block::BLOCK_SIZE + 4);
    let mut draft = Draft::with_cells(coding, salt, inline + 64 + 24 * epoch.entries.len());
    draft.put_u8(EPOCH);
    // Offset of the tables. They follow the cells, because they name the places of the cells.
    let tables_at = draft.len();
    draft.put_u32(0);
    draft.put(&[0; 3]);
    cells(&mut draft, &mut epoch);
    let tables = draft.len() as u32;
    draft.bytes[tables_at..tables_at + 4].copy_from_slice(&tables.to_le_bytes());
    let mut object = draft;
    let mut draft = Draft::new(64 + 24 * epoch.entries.len());
    draft.put_u32(epoch.data.len() as u32);
    for data in &epoch.data {
        draft.put_u64(data.number);
        draft.put_u128(data.stamp.0);
        draft.put_u64(data.bytes);
        draft.put_u32(data.blocks);
    }
    draft.put_u32(epoch.holes.len() as u32);
    for (block, count) in &epoch.holes {
        draft.put_u64(*block);
        draft.put_u64(*count);
    }
    draft.put_u32(epoch.own_blocks);
    draft.put_u32(epoch.entries.len() as u32);
    for entry in &epoch.entries {
        draft.put_u64(entry.block);
        draft.put_u16(entry.count);
        draft.put_u16(entry.skip);
        draft.put_u32(entry.object);
        draft.put_u32(entry.at);
        draft.put_u32(entry.len);
    }
    // Omitted if empty, so that programs that know no notes can read the epoch.
    if !epoch.notes.is_empty() {
        put_notes(&mut draft, &epoch.notes);
    }
    let name = ObjectName::Log(at);
    push_body(&mut object, coding, name, CellKind::Tables, &draft);
    let (bytes, stamp) = object.finish(coding, name);
    (bytes, stamp, epoch)
}

/// Offset of a slot's first cell: after the envelope and 8 bytes. The cells extend to the tables.
pub(crate) const CELLS_AT: usize = super::ENVELOPE + 8;

pub(crate) fn decode_slot(
    coding: &Coding,
    at: SlotName,
    bytes: &Bytes,
) -> Result<(SlotBody, Stamp), Bad> {
    let (body, stamp) = open(coding, ObjectName::Log(at), bytes)?;
    let mut reader = Reader::new(&body);
    match reader.u8()? {
        SEAL => {
            let nonce = Nonce(reader.u128()?);
            reader.end()?;
            Ok((SlotBody::Seal(nonce), stamp))
        }
        EPOCH => {
            let tables = reader.u32()? as usize;
            let cells = tables
                .checked_sub(CELLS_AT)
                .ok_or(Bad::Content("its tables lie in its envelope"))?;
            reader.take(3)?;
            reader.take(cells)?;
            let name = ObjectName::Log(at);
            let contents = read_body(coding, name, CellKind::Tables, tables, &body)?;
            let epoch = decode_tables(coding, Reader::new(&contents), tables)?;
            Ok((SlotBody::Epoch(epoch), stamp))
        }
        _ => Err(Bad::Content("it is neither an epoch nor a seal")),
    }
}

fn decode_tables(coding: &Coding, mut reader: Reader<'_>, cells_end: usize) -> Result<Epoch, Bad> {
    let mut epoch = Epoch::default();
    for _ in 0..reader.count(36)? {
        epoch.data.push(DataName {
            number: reader.u64()?,
            stamp: Stamp(reader.u128()?),
            bytes: reader.u64()?,
            blocks: reader.u32()?,
        });
    }
    for _ in 0..reader.count(16)? {
        epoch.holes.push((reader.u64()?, reader.u64()?));
    }
    epoch.own_blocks = reader.u32()?;
    for _ in 0..reader.count(24)? {
        let entry = Entry {
            block: reader.u64()?,
            count: reader.u16()?,
            skip: reader.u16()?,
            object: reader.u32()?,
            at: reader.u32()?,
            len: reader.u32()?,
        };
        let object_bytes = match entry.object.checked_sub(1) {
            None => cells_end as u64,
            Some(data) => epoch
                .data
                .get(data as usize)
                .map(|data| data.bytes)
                .ok_or(Bad::Content("an entry names no object"))?,
        };
        if u64::from(entry.at) + u64::from(entry.len) > object_bytes || entry.count == 0 {
            return Err(Bad::Content("an entry lies outside of its object"));
        }
        if !coding.holds(entry.at, entry.len, entry.skip, u32::from(entry.count)) {
            return Err(Bad::Content("an entry lies outside of its cell"));
        }
        epoch.entries.push(entry);
    }
    if !reader.is_at_end() {
        epoch.notes = read_notes(&mut reader)?;
    }
    reader.end()?;
    Ok(epoch)
}

fn put_notes<'a>(
    draft: &mut Draft,
    notes: impl IntoIterator<Item = &'a Bytes, IntoIter: ExactSizeIterator>,
) {
    let notes = notes.into_iter();
    draft.put_u32(notes.len() as u32);
    for note in notes {
        draft.put_u32(note.len() as u32);
        draft.put(note);
    }
}

fn read_notes(reader: &mut Reader<'_>) -> Result<Vec<Bytes>, Bad> {
    let mut notes = Vec::with_capacity(reader.count(4)?);
    for _ in 0..notes.capacity() {
        let length = reader.u32()? as usize;
        notes.push(Bytes::copy_from_slice(reader.take(length)?));
    }
    Ok(notes)
}

/// The contents of a checkpoint's notes cell.
pub(crate) fn encode_notes<'a>(
    notes: impl IntoIterator<Item = &'a Bytes, IntoIter: ExactSizeIterator>,
) -> Vec<u8> {
    let mut draft = Draft::new(64);
    put_notes(&mut draft, notes);
    draft.bytes[super::ENVELOPE..].to_vec()
}

pub(crate) fn decode_notes(contents: &[u8]) -> Result<Vec<Bytes>, Bad> {
    let mut reader = Reader::new(contents);
    let notes = read_notes(&mut reader)?;
    reader.end()?;
    Ok(notes)
}
