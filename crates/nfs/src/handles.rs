//! File handles: the names of inodes for clients, which may keep them for ever.
//!
//! A handle holds export, inode number and generation, and a keyed hash over all of them
//! (SipHash-2-4 with 128 bits), so that no client can forge a handle of a file that it did not look up.
//! The key is 16 random bytes in an extended attribute of the volume's root directory that only root
//! may read (`trusted.steadfast.nfs`). It moves with the volume, so handles live as long as
//! their files, across restarts and hosts. A public identity, such as
//! the volume's UUID, could not be a key. A volume that is read-only, or has no extended attributes, holds no key: then the
//! embedder gives one ([`HandleKey`]). A volume that can hold a key and has none yet takes the given one. For an export of a directory, the hash covers that directory, too (`subtree`).
//!
//! ```text
//! 0 version u32 = 1   4 export u32   8 inode u64   16 generation u64   24 hash [16]     (big endian)
//! ```

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};
use steadfast_vfs::{Attr, Caller, Errno, FileSystem, Ino, XattrMode};

use crate::handle_key::HandleKey;
use crate::subtree::Subtree;

/// Bytes of a handle.
pub(crate) const HANDLE_BYTES: usize = 40;
/// Offset of the hash.
const HASHED_BYTES: usize = 24;
/// The version at the start of a handle.
const VERSION: u32 = 1;

/// Extended attribute with the key of a volume.
const KEY_ATTRIBUTE: &[u8] = b"trusted.steadfast.nfs";

/// The inode that a handle names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    /// The export through which it was issued.
    pub(crate) export: u32,
    /// Inode.
    pub(crate) ino: Ino,
    /// Generation of the inode.
    pub(crate) generation: u64,
}

impl Named {
    /// The name of an inode.
    pub(crate) fn of(export: u32, attr: &Attr) -> Named {
        Named {
            export,
            ino: attr.ino,
            generation: attr.generation,
        }
    }
}

/// The secret key of a volume.
#[derive(Clone, Copy)]
pub(crate) struct Key([u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Lifetime of handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lasting {
    /// Handles live as long as their files.
    Always,
    /// Handles live as long as this server: the volume holds no key, and none was given.
    ThisServer,
}

impl Key {
    fn random() -> Result<Key, steadfast_vfs::Error> {
        let mut key = [0; 16];
        getrandom::fill(&mut key)
            .map_err(|e| steadfast_vfs::Error::new(Errno::Io, format!("no random numbers: {e}")))?;
        Ok(Key(key))
    }

    /// The key of a volume. If there is none, the given one, or a new one, is made durable there if it can hold one.
    pub(crate) fn of(
        fs: &dyn FileSystem,
        read_only: bool,
        given: Option<Key>,
    ) -> steadfast_vfs::Result<(Key, Lasting)> {
        let (root, caller) = (fs.root(), Caller::root());
        match fs.getxattr(&caller, root, KEY_ATTRIBUTE) {
            Ok(value) => {
                let key = value.as_slice().try_into().map_err(|_| {
                    let why = "the attribute trusted.steadfast.nfs of the root directory is no key: \
                               remove it, and clients have to mount again";
                    steadfast_vfs::Error::new(Errno::Uclean, why)
                })?;
                Ok((Key(key), Lasting::Always))
            }
            Err(e) if e == Errno::NoData || e == Errno::OpNotSupp => {
                let key = given.map_or_else(Key::random, Ok)?;
                if !read_only && key.keep(fs)? {
                    return Ok((key, Lasting::Always));
                }
                let lasting = match given {
                    Some(_) => Lasting::Always,
                    None => Lasting::ThisServer,
                };
                Ok((key, lasting))
            }
            Err(e) => Err(e),
        }
    }

    /// Makes the key durable in the volume; false if the file system can hold none.
    fn keep(&self, fs: &dyn FileSystem) -> steadfast_vfs::Result<bool> {
        let (root, caller) = (fs.root(), Caller::root());
        match fs.setxattr(&caller, root, KEY_ATTRIBUTE, &self.0, XattrMode::Create) {
            Ok(()) => fs.fsync(&caller, root, false).map(|()| true),
            Err(e) if e == Errno::OpNotSupp || e == Errno::RoFs => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The key that the embedder gave, for the volume of this name.
    pub(crate) fn given(key: &HandleKey, volume: &str) -> Key {
        Key(key.of_volume(volume))
    }

    fn hash(&self, bytes: &[u8], subtree: Option<Subtree>) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        if let Some(Subtree { ino, generation }) = subtree {
            hasher.write(&[ino, generation].map(u64::to_be_bytes).concat());
        }
        hasher.finish128().as_u128().to_be_bytes()
    }

    /// The handle of an inode, in the subtree of an export if it has one.
    pub(crate) fn handle(&self, named: Named, subtree: Option<Subtree>) -> [u8; HANDLE_BYTES] {
        let mut handle = [0; HANDLE_BYTES];
        handle[..4].copy_from_slice(&VERSION.to_be_bytes());
        handle[4..8].copy_from_slice(&named.export.to_be_bytes());
        handle[8..16].copy_from_slice(&named.ino.to_be_bytes());
        handle[16..24].copy_from_slice(&named.generation.to_be_bytes());
        let hash = self.hash(&handle[..HASHED_BYTES], subtree);
        handle[HASHED_BYTES..].copy_from_slice(&hash);
        handle
    }

    /// Whether a handle was made with this key, for this subtree.
    pub(crate) fn made(&self, handle: &Unproved<'_>, subtree: Option<Subtree>) -> bool {
        let hash = self.hash(&handle.bytes[..HASHED_BYTES], subtree);
        // Compares every byte, so that the time does not reveal where they differ.
        let differ = hash.iter().zip(&handle.bytes[HASHED_BYTES..]);
        differ.fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }

    /// A key for tests.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Key {
        Key([7; 16])
    }
}

/// A handle from a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unproved<'a> {
    bytes: &'a [u8; HANDLE_BYTES],
    /// Decoded contents.
    pub(crate) named: Named,
}

impl<'a> Unproved<'a> {
    /// Decodes a handle; none if it does not have the form of a handle.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<Unproved<'a>> {
        let bytes: &[u8; HANDLE_BYTES] = bytes.try_into().ok()?;
        let mut decoder = crate::xdr::Decoder::new(bytes);
        let version = decoder.u32().ok()?;
        let named = Named {
            export: decoder.u32().ok()?,
            ino: decoder.u64().ok()?,
            generation: decoder.u64().ok()?,
        };
        (version == VERSION).then_some(Unproved { bytes, named })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_handle_is_known_again_and_no_bit_of_it_can_be_changed() {
        let key = Key::for_tests();
        let named = Named {
            export: 3,
            ino: 4711,
            generation: u64::MAX,
        };
        let handle = key.handle(named, None);
        let read = Unproved::read(&handle).unwrap();
        assert_eq!(read.named, named);
        assert!(key.made(&read, None));
        let subtree = Subtree {
            ino: 1,
            generation: 2,
        };
        assert!(!key.made(&read, Some(subtree)), "of the whole volume");
        let confined = key.handle(named, Some(subtree));
        let confined = Unproved::read(&confined).unwrap();
        assert!(key.made(&confined, Some(subtree)) && !key.made(&confined, None));
        let other = Subtree { ino: 2, ..subtree };
        assert!(!key.made(&confined, Some(other)));
        for bit in 0..HANDLE_BYTES * 8 {
            let mut forged = handle;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !Unproved::read(&forged).is_some_and(|h| key.made(&h, None)),
                "{bit}"
            );
        }
        assert!(!Key([8; 16]).made(&read, None), "another volume's");
        for len in [0, 1, 16, 39] {
            assert!(Unproved::read(&handle[..len]).is_none());
        }
    }
}
