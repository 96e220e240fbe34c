//! `volume`: the immutable properties of a volume.

use super::reader::{Reader, put_reference};
use super::{Bad, Coding, Compression, Draft, Features, VolumeId, open};
use crate::protocol::{Base, ObjectName, Slot};
use bytes::Bytes;

/// The volume from which a clone was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its URL.
    pub url: String,
    /// Its identity.
    pub id: VolumeId,
}

/// The contents of `volume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeObject {
    /// Its identity.
    pub id: VolumeId,
    /// Blocks of the disk.
    pub blocks: u64,
    /// Creation time in seconds since 1970, by the clock of the machine that made it.
    pub made: i64,
    /// For a clone: the volumes whose objects it reads, the nearest first.
    pub parents: Vec<Parent>,
    /// For a clone: its first checkpoint, which belongs to the nearest parent.
    pub base: Option<Base>,
    /// Features that a program needs to read the volume. A clone has those of its parent.
    pub features: Features,
}

const ZSTD: u32 = 1;
const ENCRYPTED: u32 = 2;
const FLUSH_CACHE: u32 = 4;

/// The coding of `volume`. It has no key: the object is read before the key is known.
fn coding_of(id: VolumeId, features: Features) -> Coding {
    Coding::new(id, features, None)
}

pub(crate) fn encode_volume(volume: &VolumeObject) -> Bytes {
    let mut draft = Draft::new(256);
    draft.put_u64(volume.blocks);
    draft.put_u64(volume.made as u64);
    draft.put_u8(u8::from(volume.base.is_some()));
    let base = volume.base.unwrap_or_default();
    draft.put_u64(base.through.0);
    put_reference(&mut draft, base.root);
    draft.put_u32(volume.parents.len() as u32);
    for parent in &volume.parents {
        draft.put(&parent.id.0);
        draft.put_text(&parent.url);
    }
    let features = volume.features;
    if features != Features::default() {
        let zstd = features.compression.map_or(0, |Compression::Zstd| ZSTD);
        let encrypted = u32::from(features.encrypted) * ENCRYPTED;
        let cache = u32::from(features.flush_cache) * FLUSH_CACHE;
        draft.put_u32(zstd | encrypted | cache);
        draft.put_u16(features.unit_blocks);
    }
    let coding = coding_of(volume.id, features);
    draft.finish(&coding, ObjectName::Volume).0
}

pub(crate) fn decode_volume(bytes: &Bytes) -> Result<VolumeObject, Bad> {
    let (id, version) = super::volume_of(bytes)?;
    // The features are in the body. To open it, only the version matters.
    let mut features = Features::default();
    features.encrypted = version > features.format_version();
    let (body, _) = open(&coding_of(id, features), ObjectName::Volume, bytes)?;
    let mut reader = Reader::new(&body);
    let (blocks, made) = (reader.u64()?, reader.u64()? as i64);
    let has_base = reader.flag()?;
    let base = Base {
        through: Slot(reader.u64()?),
        root: reader.reference()?,
    };
    let mut parents = Vec::new();
    for _ in 0..reader.count(18)? {
        let mut id = VolumeId([0; 16]);
        id.0.copy_from_slice(reader.take(16)?);
        let url = reader.text()?;
        parents.push(Parent { url, id });
    }
    if features.encrypted {
        let bits = reader.u32()?;
        features.unit_blocks = reader.u16()?;
        features.compression = (bits & ZSTD > 0).then_some(Compression::Zstd);
        features.encrypted = bits & ENCRYPTED > 0;
        features.flush_cache = bits & FLUSH_CACHE > 0;
        if bits & !(ZSTD | ENCRYPTED | FLUSH_CACHE) > 0 {
            return Err(Bad::Features(bits));
        }
        if !Features::UNITS.contains(&features.unit_blocks) {
            return Err(Bad::Content("it has units of no possible size"));
        }
    }
    reader.end()?;
    if has_base == parents.is_empty() {
        return Err(Bad::Content(
            "a clone needs a parent, and only a clone has one",
        ));
    }
    if blocks == 0 || blocks > u64::MAX / steadfast_block::BLOCK_SIZE as u64 {
        return Err(Bad::Content("it has no possible size"));
    }
    Ok(VolumeObject {
        id,
        blocks,
        made,
        parents,
        base: has_base.then_some(base),
        features,
    })
}
