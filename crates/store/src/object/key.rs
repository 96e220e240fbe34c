//! `key`: the wrapped key of an encrypted volume.

use super::reader::Reader;
use super::{Bad, Coding, Draft, KEY_BYTES, open};
use crate::protocol::ObjectName;
use bytes::Bytes;

/// Bytes of a wrapped key: the key and its tag.
const WRAPPED: usize = KEY_BYTES + 16;

/// The contents of `key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyObject {
    /// Random salt of the wrapping key.
    pub(crate) salt: [u8; 32],
    pub(crate) wrapped: [u8; WRAPPED],
}

/// `coding` has no keys: a reader of this object does not know them yet.
pub(crate) fn encode_key(coding: &Coding, key: &KeyObject) -> Bytes {
    let mut draft = Draft::new(96);
    draft.put(&key.salt);
    draft.put(&key.wrapped);
    draft.finish(coding, ObjectName::Key).0
}

pub(crate) fn decode_key(coding: &Coding, bytes: &Bytes) -> Result<KeyObject, Bad> {
    let (body, _) = open(coding, ObjectName::Key, bytes)?;
    let mut reader = Reader::new(&body);
    let mut key = KeyObject {
        salt: [0; 32],
        wrapped: [0; WRAPPED],
    };
    key.salt.copy_from_slice(reader.take(32)?);
    key.wrapped.copy_from_slice(reader.take(WRAPPED)?);
    reader.end()?;
    Ok(key)
}
