//! `roots/TERM-NONCE`: snapshots, and pins of clones.

use super::cell::{push_body, read_body};
use super::reader::{REFERENCE, Reader, put_reference};
use super::{Bad, CellKind, Coding, Draft, ENVELOPE, Salt, VolumeId, open};
use crate::protocol::{Base, ObjectName, Slot, Stamp};
use bytes::Bytes;

/// The reason to keep a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinKind {
    /// A snapshot that a user made.
    Snapshot,
    /// A clone reads from it.
    Clone,
}

/// A kept checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The reason to keep it.
    pub kind: PinKind,
    /// Name of the snapshot, or URL of the clone.
    pub name: String,
    /// Creation time in seconds since 1970, by the clock of the machine that made it.
    pub made: i64,
    /// The checkpoint.
    pub base: Base,
    /// Identity of the clone; for a snapshot, a random number.
    pub id: VolumeId,
}

/// The list of kept checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// Pins in the order of their creation.
    pub pins: Vec<Pin>,
}

pub(crate) fn encode_roots(
    coding: &Coding,
    salt: Salt,
    name: ObjectName,
    roots: &Roots,
) -> (Bytes, Stamp) {
    let mut draft = Draft::new(128 * roots.pins.len());
    draft.put_u32(roots.pins.len() as u32);
    for pin in &roots.pins {
        draft.put_u8(match pin.kind {
            PinKind::Snapshot => 1,
            PinKind::Clone => 2,
        });
        draft.put_u64(pin.made as u64);
        draft.put_u64(pin.base.through.0);
        put_reference(&mut draft, pin.base.root);
        draft.put(&pin.id.0);
        draft.put_text(&pin.name);
    }
    let mut object = Draft::with_cells(coding, salt, draft.len());
    push_body(&mut object, coding, name, CellKind::Roots, &draft);
    object.finish(coding, name)
}

pub(crate) fn decode_roots(
    coding: &Coding,
    name: ObjectName,
    bytes: &Bytes,
) -> Result<(Roots, Stamp), Bad> {
    let (body, stamp) = open(coding, name, bytes)?;
    let body = read_body(coding, name, CellKind::Roots, ENVELOPE, &body)?;
    let mut reader = Reader::new(&body);
    let mut roots = Roots::default();
    for _ in 0..reader.count(35 + REFERENCE)? {
        let kind = match reader.u8()? {
            1 => PinKind::Snapshot,
            2 => PinKind::Clone,
            _ => return Err(Bad::Content("a root has a pin of no known kind")),
        };
        let made = reader.u64()? as i64;
        let base = Base {
            through: Slot(reader.u64()?),
            root: reader.reference()?,
        };
        let mut id = VolumeId([0; 16]);
        id.0.copy_from_slice(reader.take(16)?);
        let name = reader.text()?;
        roots.pins.push(Pin {
            kind,
            name,
            made,
            base,
            id,
        });
    }
    reader.end()?;
    Ok((roots, stamp))
}
