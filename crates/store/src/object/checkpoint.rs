//! `map/TERM-N`: regions of the map, parts of the table of objects, and the root that names them all.
//!
//! A map object consists of cells, or it is a root. A name in a cell or a root belongs to the volume that wrote it, or to one
//! of its parents: it carries an index into the list of this volume and its parents, 0 for the volume itself. A reader that
//! found the cell in a parent adds the parent's own index.

use super::cell::{push_body, read_body};
use super::reader::{Reader, put_name, put_reference};
use super::{Bad, CellKind, Coding, Draft, ENVELOPE, Salt, open};
use crate::map::{ObjectEntry, Spot};
use crate::protocol::{ObjectName, Reference, Slot, Stamp};
use bytes::Bytes;

/// A map object that a root needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapObject {
    /// Index of its volume.
    pub(crate) source: u16,
    pub(crate) reference: Reference,
    /// Its length.
    pub(crate) bytes: u64,
}

/// The place of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index into [`Root::maps`].
    pub(crate) map: u32,
    pub(crate) at: u32,
    pub(crate) len: u32,
}

/// The places of all cells.
pub(crate) type Directory = std::collections::BTreeMap<(CellKind, u64), Place>;

/// A checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Root {
    /// Number of the next object in the table.
    pub(crate) next_object: u32,
    /// The last slot in the checkpoint.
    pub(crate) through: Slot,
    pub(crate) maps: Vec<MapObject>,
    pub(crate) directory: Directory,
    /// Objects of this volume that are retired and not yet deleted.
    pub(crate) retired: Vec<ObjectName>,
}

const ROOT_MAGIC: u64 = u64::from_le_bytes(*b"the root");

pub(crate) fn encode_root(
    coding: &Coding,
    salt: Salt,
    name: ObjectName,
    root: &Root,
) -> (Bytes, Stamp) {
    let mut draft = Draft::new(64 + 51 * root.maps.len() + 21 * root.directory.len());
    draft.put_u64(ROOT_MAGIC);
    draft.put_u32(root.next_object);
    draft.put_u64(root.through.0);
    draft.put_u32(root.maps.len() as u32);
    for map in &root.maps {
        draft.put_u16(map.source);
        put_reference(&mut draft, Some(map.reference));
        draft.put_u64(map.bytes);
    }
    draft.put_u32(root.directory.len() as u32);
    for ((kind, index), place) in &root.directory {
        draft.put_u8(kind.code());
        draft.put_u64(*index);
        draft.put_u32(place.map);
        draft.put_u32(place.at);
        draft.put_u32(place.len);
    }
    draft.put_u32(root.retired.len() as u32);
    for name in &root.retired {
        put_name(&mut draft, *name);
    }
    let mut object = Draft::with_cells(coding, salt, draft.len());
    push_body(&mut object, coding, name, CellKind::Root, &draft);
    object.finish(coding, name)
}

pub(crate) fn decode_root(
    coding: &Coding,
    name: ObjectName,
    bytes: &Bytes,
) -> Result<(Root, Stamp), Bad> {
    let (body, stamp) = open(coding, name, bytes)?;
    let body = read_body(coding, name, CellKind::Root, ENVELOPE, &body)?;
    let mut reader = Reader::new(&body);
    if reader.u64()? != ROOT_MAGIC {
        return Err(Bad::Content("it is no root"));
    }
    let mut root = Root {
        next_object: reader.u32()?,
        through: Slot(reader.u64()?),
        ..Root::default()
    };
    for _ in 0..reader.count(51)? {
        root.maps.push(MapObject {
            source: reader.u16()?,
            reference: (reader.reference()?).ok_or(Bad::Content("it names no map object"))?,
            bytes: reader.u64()?,
        });
    }
    for _ in 0..reader.count(21)? {
        let key = (CellKind::of_code(reader.u8()?)?, reader.u64()?);
        let place = Place {
            map: reader.u32()?,
            at: reader.u32()?,
            len: reader.u32()?,
        };
        let map = root.maps.get(place.map as usize);
        if map.is_none_or(|map| u64::from(place.at) + u64::from(place.len) > map.bytes) {
            return Err(Bad::Content("a cell lies outside of its object"));
        }
        root.directory.insert(key, place);
    }
    for _ in 0..reader.count(25)? {
        root.retired.push(reader.name()?);
    }
    reader.end()?;
    Ok((root, stamp))
}

/// The contents of a region's cell.
pub(crate) fn encode_region<'a>(
    extents: impl ExactSizeIterator<Item = (&'a u64, &'a (u32, Spot))>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + 26 * extents.len());
    bytes.extend((extents.len() as u32).to_le_bytes());
    for (block, (count, spot)) in extents {
        bytes.extend(block.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(spot.object.to_le_bytes());
        bytes.extend(spot.at.to_le_bytes());
        bytes.extend(spot.len.to_le_bytes());
        bytes.extend(spot.skip.to_le_bytes());
    }
    bytes
}

/// A run of blocks: the first block, the count, the place.
pub(crate) type Extent = (u64, (u32, Spot));

/// Decodes the extents of a region. They are in order and do not overlap.
pub(crate) fn decode_region(coding: &Coding, contents: &[u8]) -> Result<Vec<Extent>, Bad> {
    let mut reader = Reader::new(contents);
    let mut extents = Vec::with_capacity(reader.count(26)?);
    let mut end = 0;
    for _ in 0..extents.capacity() {
        let (block, count) = (reader.u64()?, reader.u32()?);
        let spot = Spot {
            object: reader.u32()?,
            at: reader.u32()?,
            len: reader.u32()?,
            skip: reader.u16()?,
        };
        let next = block.checked_add(u64::from(count));
        if block < end || count == 0 || next.is_none() {
            return Err(Bad::Content("its extents are out of order"));
        }
        if !coding.holds(spot.at, spot.len, spot.skip, count) {
            return Err(Bad::Content("an extent lies outside of its cell"));
        }
        end = next.unwrap_or(u64::MAX);
        extents.push((block, (count, spot)));
    }
    reader.end()?;
    Ok(extents)
}

/// The contents of a cell with a part of the table of objects.
pub(crate) fn encode_objects<'a>(
    entries: impl ExactSizeIterator<Item = (&'a u32, &'a ObjectEntry)>,
) -> Vec<u8> {
    let mut draft = Draft::new(4 + 63 * entries.len());
    draft.put_u32(entries.len() as u32);
    for (id, entry) in entries {
        draft.put_u32(*id);
        draft.put_u16(entry.source);
        put_reference(
            &mut draft,
            Some(Reference {
                name: entry.name,
                stamp: entry.stamp,
            }),
        );
        draft.put_u64(entry.bytes);
        draft.put_u32(entry.blocks);
        draft.put_u32(entry.live);
    }
    draft.bytes[ENVELOPE..].to_vec()
}

pub(crate) fn decode_objects(contents: &[u8]) -> Result<Vec<(u32, ObjectEntry)>, Bad> {
    let mut reader = Reader::new(contents);
    let mut entries = Vec::with_capacity(reader.count(63)?);
    for _ in 0..entries.capacity() {
        let id = reader.u32()?;
        let source = reader.u16()?;
        let reference = reader.reference()?;
        let Reference { name, stamp } = reference.ok_or(Bad::Content("it names no object"))?;
        let entry = ObjectEntry {
            source,
            name,
            stamp,
            bytes: reader.u64()?,
            blocks: reader.u32()?,
            live: reader.u32()?,
        };
        if entry.live > entry.blocks
            || !matches!(name, ObjectName::Log(_) | ObjectName::Data { .. })
        {
            return Err(Bad::Content("an object is impossible"));
        }
        entries.push((id, entry));
    }
    reader.end()?;
    Ok(entries)
}
