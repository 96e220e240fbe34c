//! Key files, which wrap the keys of volumes.
//!
//! A key file holds at least 32 random bytes. HKDF-SHA256 derives from it, with a random salt, the key that wraps the volume's
//! key with AES-256-GCM. Each wrapping has a new salt, so no nonce is used twice. The wrapping is bound to the whole object
//! `volume`: if a store changes the features, parents or size of a volume, the key file no longer opens it.
//!
//! There is no passphrase: it would need a slow key derivation to be secure. The crate `age`, which has one, is a beta;
//! `age -d` and a file in memory do the same.

use crate::io::{Io, Put};
use crate::object::{
    Coding, Features, KEY_BYTES, KeyObject, Keys, VolumeObject, decode_key, encode_key,
    encode_volume,
};
use crate::opening::OpenError;
use crate::place::{Location, PlaceError, random};
use crate::protocol::ObjectName;
use crate::runtime::runtime;
use bytes::Bytes;
use object_store::PutMode;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Fewest and most bytes of a key file.
const FILE_LEAST: usize = 32;
const FILE_MOST: usize = 1 << 20;

/// Errors of key files.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("reading the key file {path}: {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
    /// The file is too short or too long.
    #[error(
        "the key file has {0} bytes; it needs {FILE_LEAST} random bytes at least, and {FILE_MOST} at most: \
         'head -c 32 /dev/urandom > FILE' makes one"
    )]
    Size(usize),
}

/// The contents of a key file.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyFile(Arc<[u8]>);

impl std::fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyFile")
    }
}

impl KeyFile {
    /// A key file with these contents.
    ///
    /// # Errors
    /// [`KeyFileError::Size`].
    pub fn new(contents: &[u8]) -> Result<KeyFile, KeyFileError> {
        match contents.len() {
            FILE_LEAST..=FILE_MOST => Ok(KeyFile(contents.into())),
            length => Err(KeyFileError::Size(length)),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn read(path: &Path) -> Result<KeyFile, KeyFileError> {
        let failed = |source| KeyFileError::Io {
            path: path.display().to_string(),
            source,
        };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut contents = Vec::new();
        let mut limited = file.take(FILE_MOST as u64 + 1);
        limited.read_to_end(&mut contents).map_err(failed)?;
        KeyFile::new(&contents)
    }

    fn wrapping_key(&self, salt: &[u8]) -> Option<LessSafeKey> {
        let extracted = Salt::new(HKDF_SHA256, salt).extract(&self.0);
        let derived = extracted.expand(&[b"steadfast volume key"], &AES_256_GCM);
        Some(LessSafeKey::new(UnboundKey::from(derived.ok()?)))
    }

    fn wrap(&self, volume: &VolumeObject, keys: &Keys) -> Result<KeyObject, PlaceError> {
        let mut salt = [0; 32];
        salt[..16].copy_from_slice(&random()?.to_le_bytes());
        salt[16..].copy_from_slice(&random()?.to_le_bytes());
        let bound = encode_volume(volume);
        let mut wrapped = [0; KEY_BYTES + 16];
        wrapped[..KEY_BYTES].copy_from_slice(&keys.secret);
        let (contents, tag) = wrapped.split_at_mut(KEY_BYTES);
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let key = self.wrapping_key(&salt);
        let sealed = key.and_then(|key| {
            let sealed = key.seal_in_place_separate_tag(nonce, Aad::from(&bound), contents);
            sealed.ok()
        });
        let sealed = sealed.ok_or_else(|| {
            PlaceError::Threads(std::io::Error::other("the cipher refuses the volume's key"))
        })?;
        tag.copy_from_slice(sealed.as_ref());
        Ok(KeyObject { salt, wrapped })
    }

    fn unwrap_key(&self, volume: &Bytes, object: &KeyObject) -> Option<Keys> {
        let mut wrapped = object.wrapped;
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let key = self.wrapping_key(&object.salt)?;
        let opened = key.open_in_place(nonce, Aad::from(volume), &mut wrapped);
        let secret: [u8; KEY_BYTES] = (&*opened.ok()?).try_into().ok()?;
        Keys::new(secret)
    }
}

/// New keys for a new volume.
pub(crate) fn new_keys() -> Result<Keys, PlaceError> {
    let mut secret = [0; KEY_BYTES];
    secret[..16].copy_from_slice(&random()?.to_le_bytes());
    secret[16..].copy_from_slice(&random()?.to_le_bytes());
    Keys::new(secret).ok_or_else(|| {
        PlaceError::Threads(std::io::Error::other(
            "a key of the volume cannot be derived",
        ))
    })
}

/// The coding of `key`.
fn coding_of(volume: &VolumeObject) -> Coding {
    Coding::new(volume.id, volume.features, None)
}

/// Writes `key` of a new volume.
pub(crate) fn create_key(
    location: &Location,
    volume: &VolumeObject,
    keys: &Keys,
    file: &KeyFile,
    patience: Duration,
) -> Result<(), OpenError> {
    let io = Io::new(location.clone(), coding_of(volume), Some(patience));
    let bytes = encode_key(&io.coding, &file.wrap(volume, keys)?);
    match runtime()?.block_on(io.create(ObjectName::Key, bytes))? {
        true => Ok(()),
        false => Err(OpenError::Exists(location.url.clone())),
    }
}

/// The keys of a volume; none if it is not encrypted. `bytes` are those of its object `volume`.
pub(crate) fn find_keys(
    location: &Location,
    volume: &VolumeObject,
    bytes: &Bytes,
    file: Option<&KeyFile>,
    patience: Duration,
) -> Result<Option<Keys>, OpenError> {
    let url = || location.url.clone();
    let Features { encrypted, .. } = volume.features;
    let file = match (encrypted, file) {
        (false, None) => return Ok(None),
        (false, Some(_)) => return Err(OpenError::NotEncrypted(url())),
        (true, None) => return Err(OpenError::KeyNeeded(url())),
        (true, Some(file)) => file,
    };
    let io = Io::new(location.clone(), coding_of(volume), Some(patience));
    let got = runtime()?.block_on(io.get(ObjectName::Key, None))?;
    let got = got.ok_or_else(|| io.missing(ObjectName::Key))?;
    let object = decode_key(&io.coding, &got.bytes);
    let object = object.map_err(|why| io.damaged(ObjectName::Key, why))?;
    let keys = file.unwrap_key(bytes, &object);
    keys.map(Some).ok_or_else(|| OpenError::WrongKey(url()))
}

/// Wraps a volume's key by another key file. The old file no longer opens the volume, except with a copy of the old object
/// `key`.
pub(crate) fn replace_key(
    location: &Location,
    volume: &VolumeObject,
    keys: &Keys,
    file: &KeyFile,
    patience: Duration,
) -> Result<(), OpenError> {
    let io = Io::new(location.clone(), coding_of(volume), Some(patience));
    let bytes = encode_key(&io.coding, &file.wrap(volume, keys)?);
    runtime()?.block_on(async {
        let got = io.get(ObjectName::Key, None).await?;
        let got = got.ok_or_else(|| io.missing(ObjectName::Key))?;
        let swap = PutMode::Update(got.version);
        let why = match io.put(ObjectName::Key, bytes.clone(), swap).await {
            Put::Done(_) => return Ok(()),
            Put::Refused => "another machine has changed it at the same time".to_owned(),
            Put::Unknown(why) => why,
        };
        // Reading it back shows the outcome.
        let now = io.get(ObjectName::Key, None).await?;
        match now.is_some_and(|now| now.bytes == bytes) {
            true => Ok(()),
            false => Err(io.refused("writing", "key", &why).into()),
        }
    })
}
