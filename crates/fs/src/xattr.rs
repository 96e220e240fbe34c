//! Extended attributes: records in one metadata block per inode.
//!
//! Namespaces as on Linux: `user.*` for regular files and directories, by permission;
//! `trusted.*` for root only; `security.*` for all to read and root to write; others are EOPNOTSUPP.
//! The block is checked whenever it is read (corner 35). Layout: [`XattrHeader`].

use crate::error::damaged;
use crate::inode::S_ISVTX;
use crate::layout::DiskInode;
use crate::layout::{META_BYTES, XATTR_BYTES_MAX, XATTR_MAGIC, XattrHeader};
use crate::perm;
use steadfast_block::BlockNo;
use steadfast_vfs::{Caller, Errno, FileKind, NAME_MAX, Result, XattrMode};
use zerocopy::{FromBytes, IntoBytes};

const HEADER: usize = size_of::<XattrHeader>();
/// Bytes of a record before its name.
const RECORD: usize = 4;

/// All attributes of an inode, in the order of their records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Xattrs(Vec<(Vec<u8>, Vec<u8>)>);

impl Xattrs {
    /// Decodes a block.
    ///
    /// # Errors
    /// EUCLEAN.
    pub(crate) fn decode(at: BlockNo, block: &[u8]) -> Result<Xattrs> {
        let wrong = |why: &str| damaged(format!("extended attributes in block {at}: {why}"));
        let Ok((header, _)) = XattrHeader::read_from_prefix(block) else {
            return Err(wrong("too short"));
        };
        let bytes = header.bytes.get() as usize;
        if header.magic.get() != XATTR_MAGIC || bytes > XATTR_BYTES_MAX {
            return Err(wrong("no valid header"));
        }
        let mut rest = &block[HEADER..HEADER + bytes];
        let mut found = Vec::new();
        for _ in 0..header.count.get() {
            let Some((fixed, tail)) = rest.split_at_checked(RECORD) else {
                return Err(wrong("a record is cut short"));
            };
            let name_len = fixed[0] as usize;
            let value_len = u16::from_le_bytes([fixed[2], fixed[3]]) as usize;
            if name_len == 0 || name_len + value_len > tail.len() {
                return Err(wrong("a record has a wrong length"));
            }
            let (name, tail) = tail.split_at(name_len);
            let (value, tail) = tail.split_at(value_len);
            if found.iter().any(|(other, _)| other == name) {
                return Err(wrong("a name is there twice"));
            }
            found.push((name.to_vec(), value.to_vec()));
            rest = tail;
        }
        if rest.is_empty() {
            Ok(Xattrs(found))
        } else {
            Err(wrong("bytes without a record"))
        }
    }

    /// The whole block without its seal.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let header = XattrHeader {
            magic: XATTR_MAGIC.into(),
            count: (self.0.len() as u16).into(),
            bytes: (self.bytes() as u16).into(),
        };
        let mut block = Vec::with_capacity(META_BYTES);
        block.extend_from_slice(header.as_bytes());
        for (name, value) in &self.0 {
            block.extend_from_slice(&[name.len() as u8, 0]);
            block.extend_from_slice(&(value.len() as u16).to_le_bytes());
            block.extend_from_slice(name);
            block.extend_from_slice(value);
        }
        block.resize(META_BYTES, 0);
        block
    }

    fn bytes(&self) -> usize {
        self.0
            .iter()
            .map(|(name, value)| RECORD + name.len() + value.len())
            .sum()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|(name, _)| name.as_slice())
    }

    /// The value of `name`.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value.as_slice())
    }

    /// Sets a value.
    ///
    /// # Errors
    /// EEXIST, ENODATA as `mode` says; ENOSPC when all together would be too large.
    pub(crate) fn set(&mut self, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let at = self.0.iter().position(|(other, _)| other == name);
        match (mode, at) {
            (XattrMode::Create, Some(_)) => return Err(Errno::Exist.into()),
            (XattrMode::Replace, None) => return Err(Errno::NoData.into()),
            _ => {}
        }
        let old = at.map_or(0, |at| RECORD + name.len() + self.0[at].1.len());
        if self.bytes() - old + RECORD + name.len() + value.len() > XATTR_BYTES_MAX {
            return Err(Errno::NoSpc.into());
        }
        match at {
            Some(at) => self.0[at].1 = value.to_vec(),
            None => self.0.push((name.to_vec(), value.to_vec())),
        }
        Ok(())
    }

    /// Removes a value.
    ///
    /// # Errors
    /// ENODATA.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Result<()> {
        match self.0.iter().position(|(other, _)| other == name) {
            Some(at) => {
                self.0.remove(at);
                Ok(())
            }
            None => Err(Errno::NoData.into()),
        }
    }
}

/// Checks that `name` can be the name of an attribute.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
        return Err(Errno::Range.into());
    }
    let known: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match known.into_iter().find(|prefix| name.starts_with(prefix)) {
        Some(prefix) if name.len() == prefix.len() => Err(Errno::Inval.into()),
        Some(_) => Ok(()),
        None => Err(Errno::OpNotSupp.into()),
    }
}

/// Whether the caller may see (`write == false`) or change the attribute.
///
/// # Errors
/// EPERM, EACCES, or ENODATA for what may not even be seen.
pub(crate) fn may(caller: &Caller, inode: &DiskInode, name: &[u8], write: bool) -> Result<()> {
    let denied = if write { Errno::Perm } else { Errno::NoData };
    let privileged = caller.uid == 0 || caller.checked;
    if name.starts_with(b"trusted.") {
        return if privileged {
            Ok(())
        } else {
            Err(denied.into())
        };
    }
    if name.starts_with(b"security.") {
        return if privileged || !write {
            Ok(())
        } else {
            Err(Errno::Perm.into())
        };
    }
    if !matches!(inode.kind(), FileKind::Regular | FileKind::Directory) {
        return Err(denied.into());
    }
    let owner = privileged || caller.uid == inode.uid.get();
    if write && inode.is_dir() && inode.mode.get() & S_ISVTX != 0 && !owner {
        return Err(Errno::Perm.into());
    }
    perm::require(caller, inode, if write { perm::WRITE } else { perm::READ })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_set_is_found_after_encoding_and_decoding() {
        let mut xattrs = Xattrs::default();
        xattrs.set(b"user.a", b"1", XattrMode::Create).unwrap();
        xattrs.set(b"user.b", &[0xff; 300], XattrMode::Any).unwrap();
        xattrs.set(b"user.a", b"", XattrMode::Replace).unwrap();
        assert!(
            xattrs
                .set(b"user.a", b"", XattrMode::Create)
                .is_err_and(|error| error == Errno::Exist)
        );
        assert!(
            xattrs
                .set(b"user.c", b"", XattrMode::Replace)
                .is_err_and(|error| error == Errno::NoData)
        );
        let again = Xattrs::decode(BlockNo(9), &xattrs.encode()).unwrap();
        assert_eq!(again, xattrs);
        assert_eq!(again.get(b"user.a"), Some(&b""[..]));
        xattrs.remove(b"user.a").unwrap();
        assert!(
            xattrs
                .remove(b"user.a")
                .is_err_and(|error| error == Errno::NoData)
        );
        assert_eq!(xattrs.names().collect::<Vec<_>>(), [b"user.b"]);
    }

    #[test]
    fn the_block_can_be_filled_to_its_last_byte_and_no_further() {
        let mut xattrs = Xattrs::default();
        let largest = XATTR_BYTES_MAX - RECORD - 6;
        let value = vec![7; largest + 1];
        assert!(
            xattrs
                .set(b"user.x", &value, XattrMode::Any)
                .is_err_and(|error| error == Errno::NoSpc)
        );
        xattrs.set(b"user.x", &value[1..], XattrMode::Any).unwrap();
        xattrs.set(b"user.x", &value[1..], XattrMode::Any).unwrap();
        assert_eq!(
            Xattrs::decode(BlockNo(0), &xattrs.encode()).unwrap(),
            xattrs
        );
    }

    #[test]
    fn corner_35_no_wrong_byte_of_the_block_is_more_than_an_error() {
        let mut xattrs = Xattrs::default();
        xattrs.set(b"user.a", b"value", XattrMode::Any).unwrap();
        xattrs.set(b"user.b", b"other", XattrMode::Any).unwrap();
        let good = xattrs.encode();
        for at in 0..HEADER + xattrs.bytes() + 4 {
            for wrong in [0, 1, 0x7f, 0xff] {
                let mut block = good.clone();
                block[at] = wrong;
                let _ = Xattrs::decode(BlockNo(0), &block);
            }
        }
    }
}
