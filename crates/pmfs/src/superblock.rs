//! The superblock: the parameters of a volume, in two copies, and hints that change with each mount.
//!
//! Promise: a superblock is used only after its checksum and its geometry were checked against the region, so a holder
//! of a [`Superblock`] may compute addresses with its geometry. The first copy that is valid counts.
//!
//! Superblocks are stored by mkfs, by a growth and by a repair; hints by a mount and an unmount.

use crate::error::Error;
use crate::layout::{
    FEATURES, Geometry, LABEL_BYTES, MAGIC, PAGE_BYTES, Page, VERSION, superblock as field,
};
use steadfast_pm::Region;
use xxhash_rust::xxh3::Xxh3Default;

/// First bytes of a volume for block devices.
const BLOCK_MAGIC: u64 = u64::from_le_bytes(*b"STEADFST");
/// Bytes that the checksum covers, itself left out.
const SEALED_BYTES: u64 = 128;
/// The pages of superblock and copy.
pub(crate) const COPIES: [Page; 2] = [Page(0), Page(1)];

/// Identity of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Format version.
    pub version: u32,
    /// Features in use.
    pub features: u32,
    /// Identity.
    pub uuid: [u8; 16],
    /// Name that people gave it.
    pub label: String,
    /// Places of its objects.
    pub geometry: Geometry,
}

/// Hints of the last mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hints {
    /// The volume was unmounted.
    pub clean: bool,
    /// Mounts for writing so far.
    pub mounts: u64,
}

/// A superblock that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Content of the superblock.
    pub superblock: Superblock,
    /// Hints.
    pub hints: Hints,
    /// The defects of the superblock and of its copy. Both differ during growth only.
    pub damage: [Option<String>; 2],
    /// Both are valid, and say different things.
    pub differ: bool,
}

/// Whether these are the first bytes of a volume on persistent memory.
#[must_use]
pub fn is_volume(first: &[u8]) -> bool {
    first.starts_with(&MAGIC.to_le_bytes())
}

/// Reads the superblock of a region.
///
/// # Errors
/// There is none that is valid and within the region, or it needs a newer program.
pub fn load(region: &Region) -> Result<Found, Error> {
    if region.len() < 2 * PAGE_BYTES {
        return Err(Error::NotAVolume);
    }
    let magics = COPIES.map(|page| region.load(page.at() + field::MAGIC));
    if region.failed() {
        return Err(Error::Memory {
            attempt: "reading the superblock",
        });
    }
    if !magics.contains(&MAGIC) {
        return Err(match magics[0] {
            BLOCK_MAGIC => Error::BlockVolume,
            _ => Error::NotAVolume,
        });
    }
    let hints = Hints {
        clean: region.load(field::CLEAN) == 1,
        mounts: region.load(field::MOUNTS),
    };
    let (first, second) = (parse(region, COPIES[0]), parse(region, COPIES[1]));
    let differ = matches!((&first, &second), (Ok(first), Ok(second)) if first != second);
    let (superblock, damage) = match (first, second) {
        (Ok(found), second) => (found, [None, second.err()]),
        (Err(why), Ok(found)) => (found, [Some(why), None]),
        (Err(first), Err(second)) => {
            let detail = match first == second {
                true => first,
                false => format!("first: {first}; second: {second}"),
            };
            return Err(Error::Superblock { detail });
        }
    };
    if superblock.version > VERSION || superblock.version == 0 {
        let found = superblock.version;
        return Err(Error::Version { found });
    }
    if superblock.features & !FEATURES != 0 {
        let found = superblock.features;
        return Err(Error::Features { found });
    }
    let volume = superblock.geometry.pages * PAGE_BYTES;
    if volume > region.len() {
        return Err(Error::Truncated {
            volume,
            region: region.len(),
        });
    }
    Ok(Found {
        superblock,
        hints,
        damage,
        differ,
    })
}

/// A copy, if it is valid. Its version, its features and the region's size are not compared yet.
fn parse(region: &Region, page: Page) -> Result<Superblock, String> {
    let word = |at: u64| region.load(page.at() + at);
    if word(field::MAGIC) != MAGIC {
        return Err("it does not begin with the magic number".into());
    }
    if word(field::CHECKSUM) != checksum(word) {
        return Err("its checksum is wrong".into());
    }
    let bytes = |at: u64| word(at).to_le_bytes();
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&bytes(field::UUID));
    uuid[8..].copy_from_slice(&bytes(field::UUID + 8));
    let mut label: Vec<u8> = (0..LABEL_BYTES as u64)
        .step_by(8)
        .flat_map(|at| bytes(field::LABEL + at))
        .collect();
    label.truncate(
        label
            .iter()
            .rposition(|b| *b != 0)
            .map_or(0, |last| last + 1),
    );
    let told = Geometry {
        pages: word(field::PAGES),
        chunk_pages: word(field::CHUNK_PAGES),
        chunk_inodes: word(field::CHUNK_INODES),
    };
    // A newer version may lay out its tables otherwise; it is refused by its number.
    let (version, features) = (
        word(field::VERSION) as u32,
        (word(field::VERSION) >> 32) as u32,
    );
    let geometry = match version {
        VERSION => told.checked().filter(|checked| *checked == told),
        _ => Some(told),
    };
    Ok(Superblock {
        version,
        features,
        uuid,
        label: String::from_utf8_lossy(&label).into_owned(),
        geometry: geometry.ok_or("its sizes are impossible")?,
    })
}

/// The checksum over a copy's words.
fn checksum(word: impl Fn(u64) -> u64) -> u64 {
    let mut hash = Xxh3Default::new();
    for at in (0..SEALED_BYTES).step_by(8) {
        if at != field::CHECKSUM {
            hash.update(&word(at).to_le_bytes());
        }
    }
    hash.digest()
}

/// Gives a copy the checksum of its content.
#[cfg(feature = "fuzz")]
pub(crate) fn reseal(region: &Region, page: Page) {
    let sum = checksum(|at| region.load(page.at() + at));
    region.store(page.at() + field::CHECKSUM, sum);
}

/// Stores one copy and makes it durable. The objects that it refers to must be durable before.
pub(crate) fn store(region: &Region, page: Page, superblock: &Superblock) {
    for (at, word) in (page.at()..).step_by(8).zip(words(superblock)) {
        region.store(at, word);
    }
    region.write_back(page.at(), SEALED_BYTES);
    region.fence();
}

/// The sealed words of a copy.
fn words(superblock: &Superblock) -> [u64; SEALED_BYTES as usize / 8] {
    let mut bytes = [0; SEALED_BYTES as usize];
    let mut put = |at: u64, value: &[u8]| {
        bytes[at as usize..at as usize + value.len()].copy_from_slice(value);
    };
    let geometry = &superblock.geometry;
    put(field::MAGIC, &MAGIC.to_le_bytes());
    put(field::VERSION, &superblock.version.to_le_bytes());
    put(field::VERSION + 4, &superblock.features.to_le_bytes());
    put(field::UUID, &superblock.uuid);
    let label = superblock.label.as_bytes();
    put(field::LABEL, &label[..label.len().min(LABEL_BYTES)]);
    put(field::PAGES, &geometry.pages.to_le_bytes());
    put(field::CHUNK_PAGES, &geometry.chunk_pages.to_le_bytes());
    put(field::CHUNK_INODES, &geometry.chunk_inodes.to_le_bytes());
    let mut words = [0; SEALED_BYTES as usize / 8];
    let (chunks, _) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*bytes);
    }
    words[field::CHECKSUM as usize / 8] = checksum(|at| words[at as usize / 8]);
    words
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn superblock(bytes: u64) -> Superblock {
        Superblock {
            version: VERSION,
            features: 0,
            uuid: *b"0123456789abcdef",
            label: "größe".into(),
            geometry: Geometry::new(bytes, 16 << 10).unwrap(),
        }
    }

    fn made(superblock: &Superblock) -> Region {
        let region = Region::anonymous(superblock.geometry.pages * PAGE_BYTES);
        for page in COPIES {
            store(&region, page, superblock);
        }
        region
    }

    #[test]
    fn a_superblock_comes_back_as_it_was_stored() {
        let sb = superblock(1 << 20);
        let region = made(&sb);
        let hints = Hints {
            clean: true,
            mounts: 7,
        };
        region.store(field::CLEAN, 1);
        region.store(field::MOUNTS, 7);
        let found = load(&region).unwrap();
        assert_eq!((found.superblock, found.hints), (sb, hints));
        assert_eq!((found.damage, found.differ), ([None, None], false));
    }

    #[test]
    fn each_sealed_word_is_covered_by_the_checksum_and_the_copy_serves() {
        let sb = superblock(1 << 20);
        for at in (0..SEALED_BYTES).step_by(8) {
            for bit in 0..64 {
                let region = made(&sb);
                region.store(at, region.load(at) ^ 1 << bit);
                let found = load(&region).unwrap();
                assert!(found.damage[0].is_some(), "bit {bit} of word {at}");
                assert_eq!(found.superblock, sb);
                region.store(PAGE_BYTES + at, region.load(PAGE_BYTES + at) ^ 1 << bit);
                let expected = match at {
                    field::MAGIC => "no Steadfast volume",
                    _ => "both copies",
                };
                let error = load(&region).unwrap_err().to_string();
                assert!(error.starts_with(expected), "{error}");
            }
        }
    }

    #[test]
    fn foreign_volumes_are_distinguished() {
        let sb = superblock(1 << 20);
        let region = Region::anonymous(1 << 20);
        assert!(matches!(load(&region), Err(Error::NotAVolume)));
        region.store(0, BLOCK_MAGIC);
        assert!(matches!(load(&region), Err(Error::BlockVolume)));
        assert!(matches!(
            load(&Region::anonymous(64)),
            Err(Error::NotAVolume)
        ));
        let newer = |version, features| Superblock {
            version,
            features,
            ..sb.clone()
        };
        let error = load(&made(&newer(2, 0))).unwrap_err();
        assert!(matches!(error, Error::Version { found: 2 }), "{error}");
        let error = load(&made(&newer(1, 4))).unwrap_err();
        assert!(matches!(error, Error::Features { found: 4 }), "{error}");
        let region = Region::with_content(&made(&sb).content()[..(1 << 20) - 4096]);
        let error = load(&region).unwrap_err();
        assert!(matches!(error, Error::Truncated { .. }), "{error}");
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_even_with_a_checksum() {
        for geometry in [
            Geometry {
                pages: u64::MAX,
                chunk_pages: 256,
                chunk_inodes: 64,
            },
            Geometry {
                pages: 256,
                chunk_pages: 255,
                chunk_inodes: 64,
            },
            Geometry {
                pages: 256,
                chunk_pages: 256,
                chunk_inodes: 0,
            },
            Geometry {
                pages: 256,
                chunk_pages: 256,
                chunk_inodes: u64::MAX - 31,
            },
            Geometry {
                pages: 0,
                chunk_pages: 0,
                chunk_inodes: 0,
            },
            Geometry {
                pages: 1 << 33,
                chunk_pages: 1 << 63,
                chunk_inodes: 32,
            },
            Geometry {
                pages: 257,
                chunk_pages: 256,
                chunk_inodes: 64,
            },
        ] {
            let region = Region::anonymous(1 << 20);
            let sb = Superblock {
                geometry,
                ..superblock(1 << 20)
            };
            for page in COPIES {
                store(&region, page, &sb);
            }
            let error = load(&region).unwrap_err();
            assert!(
                matches!(error, Error::Superblock { .. }),
                "{geometry:?}: {error}"
            );
        }
    }
}
