//! Encoding of objects. `docs/formats.md` has the byte maps.
//!
//! Every object begins with an *envelope*: its volume, its name, its length and its hash. [`open`] checks all of them before
//! any byte is used, so it detects an object that was swapped, cut, damaged, or copied from another volume. Large objects
//! consist of *cells*, which can be read and checked one by one. This module does no I/O, and no input makes it panic.

mod cell;
mod checkpoint;
mod coding;
mod epoch;
mod head;
mod key;
mod reader;
mod roots;
mod volume;

#[cfg(test)]
mod tests;

pub(crate) use cell::{CELL_HEADER, CellKind, cell_offset, push_cell, read_cell};
pub(crate) use checkpoint::{
    Directory, MapObject, Place, Root, decode_objects, decode_region, decode_root, encode_objects,
    encode_region, encode_root,
};
pub(crate) use coding::{Coding, KEY_BYTES, Keys, Salt};
pub use coding::{Compression, Features};
#[cfg(feature = "faults")]
pub(crate) use epoch::CELLS_AT;
pub(crate) use epoch::{
    DataName, Entry, Epoch, SlotBody, decode_notes, decode_slot, encode_epoch, encode_notes,
    encode_seal,
};
pub(crate) use head::{HeadObject, decode_head, encode_head};
pub(crate) use key::{KeyObject, decode_key, encode_key};
pub use roots::{Pin, PinKind, Roots};
pub(crate) use roots::{decode_roots, encode_roots};
pub use volume::{Parent, VolumeObject};
pub(crate) use volume::{decode_volume, encode_volume};

use crate::protocol::{ObjectName, Stamp};
use bytes::{Bytes, BytesMut};

/// The identity of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub [u8; 16]);

impl std::fmt::Display for VolumeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Bytes of an envelope.
pub(crate) const ENVELOPE: usize = 128;
/// The newest format version that this program knows. Plain volumes have version 1.
pub const FORMAT_VERSION: u32 = 2;
/// Bytes of `head`, at most.
pub(crate) const HEAD_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"SFSTORE\x01";
/// Offset of the hash. It covers all other bytes of the object.
const HASH_AT: usize = 96;

/// Reasons why an object is not the one that its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// Shorter than an envelope.
    #[error("has {0} bytes, fewer than an envelope: it was cut, or is no object of a volume")]
    Short(usize),
    /// Its magic number is wrong: this program did not write it.
    #[error("is no object of a volume")]
    Magic,
    /// A newer program made the volume.
    #[error("needs features that this program does not know (bits {0:#x}): use a newer program")]
    Features(u32),
    /// Its format is not that of its volume.
    #[error("has another format than its volume: it was copied or swapped")]
    OtherFormat,
    /// A newer program wrote it.
    #[error("has format version {0}, this program knows {FORMAT_VERSION}: use a newer program")]
    Version(u32),
    /// It belongs to another volume.
    #[error("belongs to the volume {0}: it was copied or swapped")]
    OtherVolume(VolumeId),
    /// It was written under another name.
    #[error("was written under another name: it was copied or swapped")]
    OtherName,
    /// Cut or extended.
    #[error("has {has} bytes after its envelope, {says} were written")]
    Length {
        /// Present bytes.
        has: u64,
        /// Bytes according to the envelope.
        says: u64,
    },
    /// Shorter than other objects say.
    #[error("has {has} bytes, {needs} are needed: it was cut or written over")]
    Cut {
        /// Present bytes.
        has: u64,
        /// Bytes up to the end of the requested range.
        needs: u64,
    },
    /// Its bytes were changed.
    #[error("fails its checksum")]
    Hash,
    /// The checksum is right, but the contents make no sense.
    #[error("is malformed: {0}")]
    Content(&'static str),
}

/// The kind, the term and the number in an object's name.
pub(crate) fn identity(name: ObjectName) -> (u32, u64, u128) {
    match name {
        ObjectName::Volume => (1, 0, 0),
        ObjectName::Head => (2, 0, 0),
        ObjectName::Log(at) => (3, at.term.0, u128::from(at.slot.0)),
        ObjectName::Data { term, number } => (4, term.0, u128::from(number)),
        ObjectName::Map { term, number } => (5, term.0, u128::from(number)),
        ObjectName::Roots { term, nonce } => (6, term.0, nonce.0),
        ObjectName::Reader(id) => (7, 0, id.0),
        ObjectName::Key => (8, 0, 0),
    }
}

/// The name of an object with cells, from its [`identity`].
pub(crate) fn name_of(kind: u8, term: u64, number: u128) -> Option<ObjectName> {
    reader::object_name(kind, crate::protocol::Term(term), number).ok()
}

/// An object under construction: space for its envelope, then its body.
pub(crate) struct Draft {
    pub(crate) bytes: BytesMut,
    /// Encrypts and compresses cells; none without cells, or in a plain volume.
    sealer: Option<coding::Sealer>,
}

impl Draft {
    /// An object without cells.
    pub(crate) fn new(body_bytes: usize) -> Draft {
        let mut bytes = BytesMut::with_capacity(ENVELOPE + body_bytes);
        bytes.resize(ENVELOPE, 0);
        Draft {
            bytes,
            sealer: None,
        }
    }

    /// An object with cells.
    pub(crate) fn with_cells(coding: &Coding, salt: Salt, body_bytes: usize) -> Draft {
        let sealer = (!coding.is_plain()).then(|| coding.sealer(salt));
        Draft {
            sealer,
            ..Draft::new(body_bytes)
        }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    pub(crate) fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn put_u128(&mut self, value: u128) {
        self.put(&value.to_le_bytes());
    }

    /// A text of at most 64 KiB, with its length.
    pub(crate) fn put_text(&mut self, text: &str) {
        let text = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
        self.put_u16(text.len() as u16);
        self.put(text);
    }

    /// Bytes so far, with the envelope: the offset of the next byte.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Fills in the envelope.
    pub(crate) fn finish(mut self, coding: &Coding, name: ObjectName) -> (Bytes, Stamp) {
        let body = (self.bytes.len() - ENVELOPE) as u64;
        let (kind, term, number) = identity(name);
        let head = &mut self.bytes[..ENVELOPE];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&kind.to_le_bytes());
        head[12..16].copy_from_slice(&coding.features.format_version().to_le_bytes());
        head[16..32].copy_from_slice(&coding.volume.0);
        head[32..40].copy_from_slice(&term.to_le_bytes());
        head[40..56].copy_from_slice(&number.to_le_bytes());
        head[56..64].copy_from_slice(&body.to_le_bytes());
        let hash = hash_of(coding, &self.bytes);
        self.bytes[HASH_AT..ENVELOPE].copy_from_slice(&hash);
        (self.bytes.freeze(), stamp_of(&hash))
    }
}

fn hash_of(coding: &Coding, bytes: &[u8]) -> [u8; 32] {
    let mut hasher = coding.hasher();
    hasher.update(&bytes[..HASH_AT]);
    hasher.update(&bytes[ENVELOPE..]);
    *hasher.finalize().as_bytes()
}

fn stamp_of(hash: &[u8; 32]) -> Stamp {
    let mut first = [0; 16];
    first.copy_from_slice(&hash[..16]);
    Stamp(u128::from_le_bytes(first))
}

/// The fields of an envelope.
struct Envelope {
    volume: VolumeId,
    version: u32,
    /// Kind, term and number of the object.
    identity: (u32, u64, u128),
    body: u64,
}

/// Decodes an envelope; checks neither name nor hash.
fn envelope(bytes: &[u8]) -> Result<Envelope, Bad> {
    if bytes.len() < ENVELOPE {
        return Err(Bad::Short(bytes.len()));
    }
    if bytes[..8] != MAGIC {
        return Err(Bad::Magic);
    }
    let mut reader = reader::Reader::new(&bytes[8..ENVELOPE]);
    let (kind, version) = (reader.u32()?, reader.u32()?);
    if !(1..=FORMAT_VERSION).contains(&version) {
        return Err(Bad::Version(version));
    }
    let mut volume = [0; 16];
    volume.copy_from_slice(reader.take(16)?);
    let (term, number, body) = (reader.u64()?, reader.u128()?, reader.u64()?);
    Ok(Envelope {
        volume: VolumeId(volume),
        version,
        identity: (kind, term, number),
        body,
    })
}

/// Checks an object that was read under a name. Returns its body and its stamp.
pub(crate) fn open(
    coding: &Coding,
    name: ObjectName,
    bytes: &Bytes,
) -> Result<(Bytes, Stamp), Bad> {
    let found = envelope(bytes)?;
    let has = (bytes.len() - ENVELOPE) as u64;
    if has != found.body {
        let says = found.body;
        return Err(Bad::Length { has, says });
    }
    // Another volume has another key, so its hash cannot be checked.
    if coding.keys.is_some() && found.volume != coding.volume {
        return Err(Bad::OtherVolume(found.volume));
    }
    let hash = hash_of(coding, bytes);
    if bytes[HASH_AT..ENVELOPE] != hash {
        return Err(Bad::Hash);
    }
    if found.volume != coding.volume {
        return Err(Bad::OtherVolume(found.volume));
    }
    if found.identity != identity(name) {
        return Err(Bad::OtherName);
    }
    if found.version != coding.features.format_version() {
        return Err(Bad::OtherFormat);
    }
    Ok((bytes.slice(ENVELOPE..), stamp_of(&hash)))
}

/// The volume of the object `volume`, and its format version. [`open`] checks everything else.
fn volume_of(bytes: &[u8]) -> Result<(VolumeId, u32), Bad> {
    envelope(bytes).map(|found| (found.volume, found.version))
}
