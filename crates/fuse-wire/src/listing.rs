//! The entries of a directory as READDIR and READDIRPLUS reply with them.

use zerocopy::IntoBytes;

use crate::abi;

/// Entries that are written one after the other, as long as they fit.
pub struct Listing<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> Listing<'a> {
    pub(crate) fn new(room: &'a mut [u8]) -> Listing<'a> {
        Listing { room, len: 0 }
    }

    /// Adds a name: its node's number, the position after it, and the file type's bits of a mode. Whether it fits.
    #[must_use]
    pub fn add(&mut self, name: &[u8], ino: u64, next: u64, mode: u32) -> bool {
        self.put(&[], name, ino, next, mode)
    }

    /// The same with the attributes of its node, whose references the kernel then counts.
    #[must_use]
    pub fn add_with_attributes(&mut self, name: &[u8], next: u64, entry: &abi::EntryOut) -> bool {
        self.put(
            entry.as_bytes(),
            name,
            entry.attr.ino,
            next,
            entry.attr.mode,
        )
    }

    /// Bytes so far.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    fn put(&mut self, entry: &[u8], name: &[u8], ino: u64, next: u64, mode: u32) -> bool {
        let dirent = abi::Dirent {
            ino,
            off: next,
            namelen: name.len() as u32,
            // `DT_…` are the file type's bits of a mode.
            kind: (mode & 0o170_000) >> 12,
        };
        let whole = entry.len() + size_of::<abi::Dirent>() + name.len();
        let end = self.len + whole.next_multiple_of(8);
        let Some(room) = self.room.get_mut(self.len..end) else {
            return false;
        };
        let mut at = 0;
        for part in [entry, dirent.as_bytes(), name] {
            room[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        room[at..].fill(0);
        self.len = end;
        true
    }
}
