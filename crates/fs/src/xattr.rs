//! Extended attributes: records in the inode if all of them fit, else in a block, or in up to
//! [`XATTR_BLOCKS_MAX`](crate::layout::XATTR_BLOCKS_MAX) of them, named by an index block. A change chooses
//! the form anew, so an inode whose attributes fit has no block. A name and its value lie in one block.
//!
//! Which callers may see and change which of them is [`steadfast_vfs::policy::xattr`]'s business.
//! Either form is checked whenever it is read (corner 35). Layout: [`DiskInode::xattrs`], [`XattrHeader`].

use crate::layout::{
    DiskInode, INLINE_XATTR_BYTES, META_BYTES, XATTR_BYTES_MAX, XATTR_MAGIC, XattrHeader,
};
use std::collections::HashSet;
use steadfast_vfs::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::policy::xattr::{check_name, is_acl};
use steadfast_vfs::{Errno, Result, XattrMode};
use zerocopy::{FromBytes, IntoBytes};

mod stored;

pub(crate) use stored::{COST_FREE_BLOCK, Change, Stored, decode_index, free_blocks, known_blocks};

const HEADER: usize = size_of::<XattrHeader>();
/// Bytes of a block's record before its name.
const RECORD: usize = 4;
/// Prefixes of names. A record in an inode has the index in this list, counted from 1, instead.
const NAMESPACES: [&[u8]; 5] = [
    b"user.",
    b"trusted.",
    b"security.",
    XATTR_ACCESS,
    XATTR_DEFAULT,
];

/// The area of an inode that attributes may lie in.
pub(crate) type Inline = [u8; INLINE_XATTR_BYTES];

/// All attributes of an inode, in the order of their records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Xattrs(Vec<(Vec<u8>, Vec<u8>)>);

impl Xattrs {
    /// Decodes a block. The error is its fault.
    fn decode(block: &[u8]) -> std::result::Result<Xattrs, &'static str> {
        let Ok((header, _)) = XattrHeader::read_from_prefix(block) else {
            return Err("too short");
        };
        let bytes = header.bytes.get() as usize;
        if header.magic.get() != XATTR_MAGIC || bytes > XATTR_BYTES_MAX {
            return Err("no valid header");
        }
        let (mut rest, unused) = block[HEADER..].split_at(bytes);
        let mut found = Xattrs::default();
        for _ in 0..header.count.get() {
            let [name_len, 0, low, high, tail @ ..] = rest else {
                return Err("a record is cut short");
            };
            let value_len = u16::from_le_bytes([*low, *high]).into();
            rest = found.take(b"", (*name_len).into(), value_len, tail)?;
        }
        found.check_names()?;
        if found.is_empty() || !rest.is_empty() || unused.iter().any(|byte| *byte != 0) {
            return Err("bytes without a record");
        }
        Ok(found)
    }

    /// Decodes the area of an inode, likewise.
    fn decode_inline(area: &Inline) -> std::result::Result<Xattrs, &'static str> {
        let mut rest = &area[..];
        let mut found = Xattrs::default();
        while let [code, behind @ ..] = rest
            && *code != 0
        {
            let Some(prefix) = NAMESPACES.get(usize::from(*code) - 1) else {
                return Err("an unknown namespace");
            };
            let [name_len, value_len, tail @ ..] = behind else {
                return Err("a record is cut short");
            };
            rest = found.take(prefix, (*name_len).into(), (*value_len).into(), tail)?;
        }
        if rest.iter().any(|byte| *byte != 0) {
            return Err("bytes without a record");
        }
        found.check_names()?;
        Ok(found)
    }

    fn check_names(&self) -> std::result::Result<(), &'static str> {
        let mut names = HashSet::with_capacity(self.0.len());
        if self.names().all(|name| names.insert(name)) {
            Ok(())
        } else {
            Err("a name is there twice")
        }
    }

    /// Takes a record's name and value from the start of `bytes`; returns the rest.
    fn take<'a>(
        &mut self,
        prefix: &[u8],
        name_len: usize,
        value_len: usize,
        bytes: &'a [u8],
    ) -> std::result::Result<&'a [u8], &'static str> {
        let Some((record, rest)) = bytes.split_at_checked(name_len + value_len) else {
            return Err("a record has a wrong length");
        };
        let (name, value) = record.split_at(name_len);
        let name = [prefix, name].concat();
        if check_name(&name).is_err() {
            return Err("a name that cannot be one");
        }
        if is_acl(&name) && Acl::from_stored(value).is_none() {
            return Err("a malformed ACL");
        }
        self.0.push((name, value.to_vec()));
        Ok(rest)
    }

    /// The encoding in an inode, unless it does not fit there.
    pub(crate) fn encode_inline(&self) -> Option<Inline> {
        let mut area = [0; INLINE_XATTR_BYTES];
        let mut rest = &mut area[..];
        for (name, value) in &self.0 {
            let (code, prefix) = (1..).zip(NAMESPACES).find(|(_, p)| name.starts_with(p))?;
            let name = &name[prefix.len()..];
            let lengths = [name.len(), value.len()].map(u8::try_from);
            let head = [code, lengths[0].ok()?, lengths[1].ok()?];
            for part in [&head[..], name, value] {
                let (to, behind) = rest.split_at_mut_checked(part.len())?;
                to.copy_from_slice(part);
                rest = behind;
            }
        }
        Some(area)
    }

    /// The encoding in a block, without its seal.
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

    /// Names and values.
    pub(crate) fn into_pairs(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.0
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
    /// EEXIST, ENODATA as `mode` says.
    pub(crate) fn set(&mut self, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let at = self.0.iter().position(|(other, _)| other == name);
        match (mode, at) {
            (XattrMode::Create, Some(_)) => return Err(Errno::Exist.into()),
            (XattrMode::Replace, None) => return Err(Errno::NoData.into()),
            _ => {}
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

/// Whether an inode has none, without a look at its block.
pub(crate) fn has_none(disk: &DiskInode) -> bool {
    disk.xattr_block.get() == 0 && disk.xattrs[0] == 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fsck::{block_fault, inline_fault};
    use proptest::prelude::*;
    use steadfast_block::BLOCK_SIZE;
    use steadfast_vfs::FileKind;

    fn of(all: &[(&[u8], &[u8])]) -> Xattrs {
        Xattrs(all.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect())
    }

    #[test]
    fn attributes_are_found_after_encoding_and_decoding() {
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
        let again = Xattrs::decode(&xattrs.encode()).unwrap();
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
        let largest = XATTR_BYTES_MAX - RECORD - 6;
        let value = vec![7; largest + 1];
        let none = Stored::default();
        assert!(none.change(&of(&[(b"user.x", &value)]), 16).is_none());
        let xattrs = of(&[(b"user.x", &value[1..])]);
        assert!(none.change(&xattrs, 1).is_some());
        let both = of(&[(b"user.x", &value[1..]), (b"user.y", b"")]);
        assert!(none.change(&both, 1).is_none() && none.change(&both, 2).is_some());
        assert_eq!(Xattrs::decode(&xattrs.encode()).unwrap(), xattrs);
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
                let _ = Xattrs::decode(&block);
            }
        }
    }

    #[test]
    fn capabilities_or_a_label_fit_into_the_inode_and_no_byte_is_lost() {
        let label = &b"system_u:object_r:systemd_unit_file_t:s0\0"[..];
        for (name, value) in [
            (&b"security.capability"[..], &[1; 20][..]),
            (b"security.capability", &[1; 24]),
            (b"security.selinux", label),
            (b"security.selinux", &[b'l'; 42]),
            (b"user.k", &[2; INLINE_XATTR_BYTES - 4]),
            (b"trusted.k", b""),
        ] {
            let xattrs = of(&[(name, value)]);
            let area = xattrs.encode_inline().unwrap();
            assert_eq!(Xattrs::decode_inline(&area).unwrap(), xattrs);
        }
        for (name, value) in [
            (&b"security.selinux"[..], &[b'l'; 43][..]),
            (b"user.k", &[2; INLINE_XATTR_BYTES - 3]),
            (b"user.k", &[2; 3000]),
            (&[&b"user."[..], &[b'k'; 200]].concat(), b""),
        ] {
            assert_eq!(of(&[(name, value)]).encode_inline(), None);
        }
        assert_eq!(
            Xattrs::default().encode_inline(),
            Some([0; INLINE_XATTR_BYTES])
        );
    }

    #[test]
    fn corner_35_faults_in_the_inode_are_reported() {
        let wrong = |bytes: &[u8]| {
            let mut area = [0; INLINE_XATTR_BYTES];
            area[..bytes.len()].copy_from_slice(bytes);
            Xattrs::decode_inline(&area).unwrap_err()
        };
        assert_eq!(wrong(&[6, 1, 0, b'k']), "an unknown namespace");
        assert_eq!(wrong(&[4, 1, 0, b'k']), "a name that cannot be one");
        assert_eq!(wrong(&[255, 1, 0, b'k']), "an unknown namespace");
        assert_eq!(wrong(&[1, 0, 1, b'k']), "a name that cannot be one");
        assert_eq!(wrong(&[1, 2, 0, b'k', 0]), "a name that cannot be one");
        assert_eq!(wrong(&[1, 49, 1]), "a record has a wrong length");
        assert_eq!(wrong(&[1, 255, 255]), "a record has a wrong length");
        assert_eq!(wrong(&[0, 1]), "bytes without a record");
        assert_eq!(wrong(&[1, 1, 0, b'k', 0, 7]), "bytes without a record");
        let twice = [1, 1, 0, b'k', 2, 1, 0, b'k', 1, 1, 1, b'k', 7];
        assert_eq!(wrong(&twice), "a name is there twice");
        let mut full = [1; INLINE_XATTR_BYTES];
        full[1..3].copy_from_slice(&[1, 47]);
        assert_eq!(wrong(&full), "a record is cut short");
    }

    #[test]
    fn corner_35_a_block_that_says_too_much_or_nothing_is_refused() {
        let good = of(&[(b"user.a", b"1")]).encode();
        assert!(Xattrs::decode(&good).is_ok());
        for (at, value) in [(9, 1), (12, b'U'), (14, 0), (META_BYTES - 1, 1)] {
            let mut block = good.clone();
            block[at] = value;
            assert!(Xattrs::decode(&block).is_err(), "byte {at}");
        }
        assert!(Xattrs::decode(&Xattrs::default().encode()).is_err());
    }

    fn any_name() -> impl Strategy<Value = Vec<u8>> {
        let short = prop::collection::vec(1..=255u8, 1..6);
        let long = prop::collection::vec(1..=255u8, 1..240);
        (0..3usize, prop_oneof![4 => short, 1 => long])
            .prop_map(|(space, name)| [NAMESPACES[space], &name].concat())
    }

    fn any_value() -> impl Strategy<Value = Vec<u8>> {
        let short = prop::collection::vec(any::<u8>(), 0..20);
        prop_oneof![4 => short, 1 => prop::collection::vec(any::<u8>(), 0..300)]
    }

    /// A record's namespace, lengths and bytes; most are good.
    fn any_record() -> impl Strategy<Value = (u8, u8, u8, Vec<u8>)> {
        let code = prop_oneof![8 => 1..3u8, 1 => 0..5u8];
        let name = prop_oneof![8 => 1..4u8, 1 => 0..4u8];
        let bytes = prop::collection::vec(prop_oneof![8 => 1..5u8, 1 => 0..1u8], 12);
        (code, name, 0..8u8, bytes)
    }

    proptest! {
        #[test]
        fn both_forms_hold_the_attributes_that_were_set(
            all in prop::collection::btree_map(any_name(), any_value(), 0..6)
        ) {
            let xattrs = Xattrs(all.into_iter().collect());
            if !xattrs.is_empty() {
                prop_assert_eq!(&Xattrs::decode(&xattrs.encode()).unwrap(), &xattrs);
            }
            let needed = |(name, value): &(Vec<u8>, Vec<u8>)| {
                let prefix = NAMESPACES.iter().find(|p| name.starts_with(p)).unwrap();
                3 + name.len() - prefix.len() + value.len()
            };
            let bytes: usize = xattrs.0.iter().map(needed).sum();
            match xattrs.encode_inline() {
                Some(area) => {
                    prop_assert!(area[bytes..].iter().all(|byte| *byte == 0));
                    prop_assert_eq!(Xattrs::decode_inline(&area).unwrap(), xattrs);
                }
                None => prop_assert!(bytes > INLINE_XATTR_BYTES),
            }
        }

        /// Any bytes are refused, or decode to exactly their content, and the check
        /// says the same of them as the mount.
        #[test]
        fn corner_35_any_bytes_in_an_inode_are_attributes_or_refused(
            records in prop::collection::vec(any_record(), 0..5),
            noise in prop::collection::vec((0..INLINE_XATTR_BYTES, any::<u8>()), 0..3),
        ) {
            let mut bytes = Vec::new();
            for (code, name, value, content) in records {
                bytes.extend([code, name, value]);
                bytes.extend(&content[..usize::from(name + value)]);
            }
            bytes.resize(INLINE_XATTR_BYTES, 0);
            let mut area: Inline = bytes.try_into().unwrap();
            for (at, byte) in noise {
                area[at] = byte;
            }
            let decoded = Xattrs::decode_inline(&area);
            let fault = inline_fault(&area, FileKind::Directory);
            prop_assert_eq!(decoded.is_err(), fault.is_some(), "{:?}, {:?}", decoded, fault);
            if let Ok(xattrs) = decoded {
                prop_assert_eq!(xattrs.encode_inline(), Some(area));
            }
        }

        #[test]
        fn corner_35_any_bytes_in_a_block_are_attributes_or_refused(
            records in prop::collection::vec(any_record(), 0..5),
            noise in prop::collection::vec((0..40usize, any::<u8>()), 0..2),
        ) {
            let mut block = [0; BLOCK_SIZE];
            let mut at = HEADER;
            let count = records.len() as u16;
            for (code, name, value, content) in records {
                let prefix = NAMESPACES.get(usize::from(code)).copied().unwrap_or(b"other.");
                let (name, value) = (usize::from(name), usize::from(value));
                let head = [(prefix.len() + name) as u8, 0, value as u8, 0];
                let record = [&head, prefix, &content[..name + value]].concat();
                block[at..at + record.len()].copy_from_slice(&record);
                at += record.len();
            }
            let bytes = ((at - HEADER) as u16).into();
            let header = XattrHeader { magic: XATTR_MAGIC.into(), count: count.into(), bytes };
            block[..HEADER].copy_from_slice(header.as_bytes());
            for (at, byte) in noise {
                block[at] = byte;
            }
            let decoded = Xattrs::decode(&block[..META_BYTES]);
            let fault = block_fault(&block, FileKind::Directory);
            prop_assert_eq!(decoded.is_err(), fault.is_some(), "{:?}, {:?}", decoded, fault);
            if let Ok(xattrs) = decoded {
                prop_assert_eq!(&xattrs.encode()[..], &block[..META_BYTES]);
            }
        }
    }
}
