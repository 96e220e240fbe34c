//! The coding of a volume's objects: plain, compressed, encrypted.
//!
//! A *plain* volume has format version 1. A *coded* volume is compressed, encrypted or both, and has version 2: its cells have
//! a longer header, and a bare table of a plain object becomes a cell, too. `head`, seals, `volume` and `key` are never
//! encrypted. In an encrypted volume the hash of each object is keyed, so no object can be forged without the key.
//!
//! An encrypted volume has one key for ever, 32 random bytes. HKDF-SHA256 derives from it a key for hashes (BLAKE3) and, with a
//! *salt*, a key for each object (AES-256-GCM). Each new object draws 128 random bits from the system as its salt: a counter,
//! or a generator in memory, would repeat after a running virtual machine was copied. The nonce of a cell is its offset in the
//! object, so no nonce is used twice with a key; one [`Draft`](super::Draft), which only grows, consumes a [`Salt`].

use super::{Bad, VolumeId};
use crate::place::PlaceError;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt as HkdfSalt};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// The zstd level: the fastest regular one.
const LEVEL: i32 = 1;

/// Compression of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Zstandard, at level 1. A unit that does not shrink is stored uncompressed.
    Zstd,
}

/// Features that a program must support to read a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Units are compressed.
    pub compression: Option<Compression>,
    /// Units, and the tables that say which blocks they hold, are encrypted.
    pub encrypted: bool,
    /// Most blocks of a unit, which is compressed, encrypted and read as a whole.
    pub unit_blocks: u16,
    /// The volume may be mounted with `flush=cache`: a flush may be durable on a cache device first.
    pub flush_cache: bool,
}

impl Features {
    /// Allowed unit sizes in blocks: 4 KiB to 256 KiB.
    pub const UNITS: std::ops::RangeInclusive<u16> = 1..=64;

    /// Whether objects are neither compressed nor encrypted.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.compression.is_none() && !self.encrypted
    }

    /// The format version of a volume with these features.
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
    /// The volume's key, which the key file wraps.
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
    /// Never none: HKDF allows these lengths.
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

/// The salt of an object's key. Used once.
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
    /// The next salt, if salts are not random.
    #[cfg(feature = "faults")]
    counted_salts: std::sync::atomic::AtomicU64,
}

/// Marks random salts.
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

    /// The coding of a plain volume, or of a volume whose key is not known yet.
    pub(crate) fn plain(volume: VolumeId) -> Coding {
        Coding::new(volume, Features::default(), None)
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.features.is_plain()
    }

    /// A random salt for a new object.
    ///
    /// # Errors
    /// The system has no random numbers.
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

    /// Makes salts count up from 0 from now on.
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

    /// Decrypts the contents of a cell in place. False if the tag does not match.
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

    /// Whether a cell of blocks at this place, `len` bytes with header, can hold `count` blocks after the first `skip`.
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
    /// The compressed contents, if compression is worth it.
    pub(super) fn compress(&mut self, contents: &[u8]) -> Option<Vec<u8>> {
        let compressed = self.compressor.as_mut()?.compress(contents).ok()?;
        // Saving less than a sixteenth is not worth the time of decompression.
        (compressed.len() < contents.len() - contents.len() / 16).then_some(compressed)
    }

    /// Encrypts contents in place. None on failure: then nothing may be written.
    pub(super) fn seal(&self, at: u32, bound: &[u8], contents: &mut [u8]) -> Option<[u8; 16]> {
        let key = self.key.as_ref()?;
        let sealed = key.seal_in_place_separate_tag(nonce_of(at), Aad::from(bound), contents);
        sealed.ok()?.as_ref().try_into().ok()
    }
}

/// Decompresses contents of a known length.
pub(super) fn decompress(contents: &[u8], length: usize) -> Result<Vec<u8>, Bad> {
    let found = zstd::bulk::decompress(contents, length);
    found
        .ok()
        .filter(|found| found.len() == length)
        .ok_or(Bad::Content("its compressed contents are malformed"))
}
