//! How a volume's objects are written: as they are, compressed, encrypted.
//!
//! A *plain* volume has format version 1. A *coded* one, compressed or encrypted or both, has version 2: its cells have a longer
//! header, and what is a bare table in a plain object is a cell, too. `head`, seals, `volume` and `key` are never encrypted; of
//! an encrypted volume the hash of each object is keyed, so that none of them can be made without the key.
//!
//! An encrypted volume has one key for ever, 32 random bytes. By HKDF-SHA256 it gives a key for hashes (BLAKE3) and, with a
//! *salt*, a key for each object (AES-256-GCM). Every object that is made draws 128 random bits as its salt, from the system
//! and at that moment: a counter, or a generator in memory, would repeat after a virtual machine was copied while it ran. The
//! nonce of a cell is its place in the object, so no nonce is used twice with a key; [`Salt`] is used up by one
//! [`Draft`](super::Draft), which only grows.

use super::{Bad, VolumeId};
use crate::place::PlaceError;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt as HkdfSalt};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// The level of zstd: the fastest of its usual ones.
const LEVEL: i32 = 1;

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Zstandard, at level 1. A unit that does not shrink stays as it is.
    Zstd,
}

/// What a program must know to read a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Units are compressed.
    pub compression: Option<Compression>,
    /// Units, and all that says which blocks they are, are encrypted.
    pub encrypted: bool,
    /// Blocks of a unit, at most: what is compressed, encrypted and read at a time.
    pub unit_blocks: u16,
    /// It may be mounted under `flush=cache`: a flush may be durable on a cache device first.
    pub flush_cache: bool,
}

impl Features {
    /// Units that a volume may have, in blocks: 4 KiB to 256 KiB.
    pub const UNITS: std::ops::RangeInclusive<u16> = 1..=64;

    /// Whether objects are written as they are.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.compression.is_none() && !self.encrypted
    }

    /// The version of the format of such a volume's objects.
    #[must_use]
    pub fn format_version(&self) -> u32 {
        match *self == Features::default() {
            true => 1,
            false => 2,
        }
    }
}

impl Default for Features {
    fn default() -> Features {
        Features {
            compression: None,
            encrypted: false,
            unit_blocks: 16,
            flush_cache: false,
        }
    }
}

/// The keys of an encrypted volume.
#[derive(Clone)]
pub(crate) struct Keys {
    /// What is wrapped by the key file.
    pub(crate) secret: [u8; KEY_BYTES],
    objects: Prk,
    hashes: [u8; KEY_BYTES],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// None cannot be: the lengths are those that HKDF allows.
    pub(crate) fn new(secret: [u8; KEY_BYTES]) -> Option<Keys> {
        let objects = HkdfSalt::new(HKDF_SHA256, b"steadfast object store").extract(&secret);
        let mut hashes = [0; KEY_BYTES];
        let derived = objects.expand(&[b"hashes"], HKDF_SHA256).ok()?;
        derived.fill(&mut hashes).ok()?;
        Some(Keys {
            secret,
            objects,
            hashes,
        })
    }

    fn of_object(&self, volume: VolumeId, salt: &[u8; 16]) -> Option<LessSafeKey> {
        let info: [&[u8]; 3] = [b"object", &volume.0, salt];
        let derived = self.objects.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }
}

/// What makes an object's key its own. Used once.
#[derive(Debug)]
pub(crate) struct Salt(pub(super) [u8; 16]);

/// Encrypts the cells of one object.
pub(crate) struct Sealer {
    pub(super) salt: [u8; 16],
    key: Option<LessSafeKey>,
    compressor: Option<zstd::bulk::Compressor<'static>>,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Coding {
    pub(crate) volume: VolumeId,
    pub(crate) features: Features,
    pub(crate) keys: Option<Keys>,
    /// The next salt, instead of random ones.
    #[cfg(feature = "faults")]
    counted_salts: std::sync::atomic::AtomicU64,
}

/// Salts are random.
#[cfg(feature = "faults")]
const UNCOUNTED: u64 = u64::MAX;

fn nonce_of(at: u32) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&at.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl Coding {
    pub(crate) fn new(volume: VolumeId, features: Features, keys: Option<Keys>) -> Coding {
        Coding {
            volume,
            features,
            keys,
            #[cfg(feature = "faults")]
            counted_salts: UNCOUNTED.into(),
        }
    }

    /// That of a volume that is not encrypted; or of one whose key is not known yet.
    pub(crate) fn plain(volume: VolumeId) -> Coding {
        Coding::new(volume, Features::default(), None)
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.features.is_plain()
    }

    /// Random bits for a new object.
    ///
    /// # Errors
    /// If the system has none.
    pub(crate) fn salt(&self) -> Result<Salt, PlaceError> {
        if self.keys.is_none() {
            return Ok(Salt([0; 16]));
        }
        #[cfg(feature = "faults")]
        {
            use std::sync::atomic::Ordering::Relaxed;
            if self.counted_salts.load(Relaxed) != UNCOUNTED {
                let next = self.counted_salts.fetch_add(1, Relaxed);
                return Ok(Salt(u128::from(next).to_le_bytes()));
            }
        }
        Ok(Salt(crate::place::random()?.to_le_bytes()))
    }

    /// From now on, salts count up from 0.
    #[cfg(feature = "faults")]
    pub(crate) fn count_salts(&self) {
        (self.counted_salts).store(0, std::sync::atomic::Ordering::Relaxed);
    }

    pub(super) fn hasher(&self) -> blake3::Hasher {
        match &self.keys {
            Some(keys) => blake3::Hasher::new_keyed(&keys.hashes),
            None => blake3::Hasher::new(),
        }
    }

    pub(super) fn sealer(&self, salt: Salt) -> Sealer {
        let Salt(salt) = salt;
        let keys = self.keys.as_ref();
        Sealer {
            salt,
            key: keys.and_then(|keys| keys.of_object(self.volume, &salt)),
            compressor: self
                .features
                .compression
                .and_then(|Compression::Zstd| zstd::bulk::Compressor::new(LEVEL).ok()),
        }
    }

    /// Decrypts the contents of a cell in place. False if they are not what was encrypted.
    pub(super) fn unseal(
        &self,
        salt: &[u8; 16],
        at: u32,
        bound: &[u8],
        tag: [u8; 16],
        contents: &mut [u8],
    ) -> bool {
        let keys = self.keys.as_ref();
        let Some(key) = keys.and_then(|keys| keys.of_object(self.volume, salt)) else {
            return false;
        };
        let (aad, tag) = (Aad::from(bound), Tag::from(tag));
        key.open_in_place_separate_tag(nonce_of(at), aad, tag, contents, 0..)
            .is_ok()
    }

    /// Whether `count` blocks after the first `skip` can lie in a cell of blocks of this length with header, at this place.
    pub(super) fn holds(&self, at: u32, len: u32, skip: u16, count: u32) -> bool {
        let blocks = match self.is_plain() {
            true => {
                let contents = u64::from(len).saturating_sub(super::CELL_HEADER as u64);
                contents / steadfast_block::BLOCK_SIZE as u64
            }
            false => u64::from(self.features.unit_blocks),
        };
        at.checked_add(len).is_some() && u64::from(skip) + u64::from(count) <= blocks
    }
}

impl Sealer {
    /// The contents in fewer bytes, if that is worth it.
    pub(super) fn compress(&mut self, contents: &[u8]) -> Option<Vec<u8>> {
        let compressed = self.compressor.as_mut()?.compress(contents).ok()?;
        // Less than a sixteenth is not worth the time of reading it.
        (compressed.len() < contents.len() - contents.len() / 16).then_some(compressed)
    }

    /// Encrypts contents in place. None if it cannot be: then nothing may be written.
    pub(super) fn seal(&self, at: u32, bound: &[u8], contents: &mut [u8]) -> Option<[u8; 16]> {
        let key = self.key.as_ref()?;
        let sealed = key.seal_in_place_separate_tag(nonce_of(at), Aad::from(bound), contents);
        sealed.ok()?.as_ref().try_into().ok()
    }
}

/// The contents that were compressed, of a length that is known.
pub(super) fn decompress(contents: &[u8], length: usize) -> Result<Vec<u8>, Bad> {
    let found = zstd::bulk::decompress(contents, length);
    found
        .ok()
        .filter(|found| found.len() == length)
        .ok_or(Bad::Content("its compressed contents are malformed"))
}
