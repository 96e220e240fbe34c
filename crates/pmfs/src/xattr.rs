//! The extended attributes of an inode as one string of bytes, which is stored in its second line or in pages.
//!
//! A change writes the whole set anew and commits with the inode's sequence: a crash leaves the set of before or of after.
//! ACLs and the flags of `chattr` are part of it. They come first, so that a permission check reads no more than the
//! beginning.
//!
//! # Records
//!
//! | bytes | content |
//! |---|---|
//! | 1 | code: 1 flags, 2 access ACL, 3 default ACL, 4 `user.`, 5 `trusted.`, 6 `security.` |
//! | 1 + n | codes 4 to 6: length of the rest of the name, and the rest |
//! | 1 – 3 | length of the value, seven bits in a byte, least significant first |
//! | n | the value: of flags, the bits of `FS_IOC_SETFLAGS`, little-endian, without leading zeros; of ACLs, the stored form |
//!
//! Codes do not decrease; 1 to 3 are there at most once, no name is there twice. In pages the records follow a 32-bit length.
//!
//! Every byte is checked when it is read: a wrong one is an error, never a panic.

use crate::layout::PAGE_BYTES;
use steadfast_vfs::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::policy::xattr::{PREFIXES, check_name, is_acl};
use steadfast_vfs::{Errno, InodeFlags, Result, XattrMode};

/// Longest value of one attribute.
pub const VALUE_BYTES_MAX: usize = 1 << 16;
/// Pages that a set may take.
pub const PAGES_MAX: u64 = 17;
/// Bytes of the length before the records in pages.
pub const HEADER_BYTES: usize = 4;
/// Most bytes of records: one value of the largest length and some more fit.
pub const RECORD_BYTES_MAX: usize = (PAGES_MAX * PAGE_BYTES) as usize - HEADER_BYTES;

const FLAGS: u8 = 1;
const ACCESS: u8 = 2;
const DEFAULT: u8 = 3;
const FIRST_PREFIX: u8 = 4;

/// All attributes of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Flags of `chattr`.
    pub flags: InodeFlags,
    /// Access ACL.
    pub access: Option<Acl>,
    /// Default ACL.
    pub default: Option<Acl>,
    /// Others, by the namespace of their names.
    named: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Fault of stored attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadAttributes {
    /// A record ends beyond the last byte.
    #[error("a record of its extended attributes is cut short")]
    Short,
    /// An unknown code, or one that comes too late or twice.
    #[error("a record of its extended attributes has a wrong code")]
    Code,
    /// A name that cannot be one, or that is there twice.
    #[error("an extended attribute has a name that it cannot have")]
    Name,
    /// Flags that are unknown, or a list that is none.
    #[error("its flags or an access control list of it are malformed")]
    Value,
    /// The length before the records is larger than a set may be.
    #[error("its extended attributes have an impossible length")]
    Length,
}

/// One record.
struct Record<'a> {
    code: u8,
    name: &'a [u8],
    value: &'a [u8],
}

/// Takes a record from the start of `bytes`; returns it with the rest.
fn take(bytes: &[u8]) -> std::result::Result<(Record<'_>, &[u8]), BadAttributes> {
    let (&code, rest) = bytes.split_first().ok_or(BadAttributes::Short)?;
    let (name, rest) = match usize::from(code).checked_sub(FIRST_PREFIX.into()) {
        None if code == 0 => return Err(BadAttributes::Code),
        None => (&[][..], rest),
        Some(prefix) if prefix < PREFIXES.len() => {
            let (&len, rest) = rest.split_first().ok_or(BadAttributes::Short)?;
            let at = rest.split_at_checked(len.into());
            at.ok_or(BadAttributes::Short)?
        }
        Some(_) => return Err(BadAttributes::Code),
    };
    let (len, rest) = take_len(rest)?;
    let (value, rest) = rest.split_at_checked(len).ok_or(BadAttributes::Short)?;
    Ok((Record { code, name, value }, rest))
}

fn take_len(bytes: &[u8]) -> std::result::Result<(usize, &[u8]), BadAttributes> {
    let mut len = 0;
    for (at, byte) in bytes.iter().take(3).enumerate() {
        len |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            // A length has one form only.
            return match at > 0 && *byte == 0 || len > VALUE_BYTES_MAX {
                true => Err(BadAttributes::Length),
                false => Ok((len, &bytes[at + 1..])),
            };
        }
    }
    Err(BadAttributes::Short)
}

fn put(to: &mut Vec<u8>, code: u8, name: Option<&[u8]>, value: &[u8]) {
    to.push(code);
    if let Some(name) = name {
        // `check_name` has limited it.
        to.push(name.len() as u8);
        to.extend_from_slice(name);
    }
    let mut len = value.len();
    while len > 0x7f {
        to.push(0x80 | (len & 0x7f) as u8);
        len >>= 7;
    }
    to.push(len as u8);
    to.extend_from_slice(value);
}

fn decode_flags(value: &[u8]) -> Option<InodeFlags> {
    if value.len() > 4 || value.last().is_none_or(|last| *last == 0) {
        return None;
    }
    let mut bits = [0; 4];
    bits[..value.len()].copy_from_slice(value);
    InodeFlags::from_bits(u32::from_le_bytes(bits))
}

/// The code of a name that is no ACL, and its rest. Names are those that `check_name` accepts.
fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    let named = (FIRST_PREFIX..).zip(PREFIXES);
    let mut rests = named.map(|(code, prefix)| Some((code, name.strip_prefix(prefix)?)));
    rests.find_map(|rest| rest)
}

/// The flags, from the beginning of the records. Records after them are not checked.
///
/// # Errors
/// The first record is malformed.
pub fn flags_of(records: &[u8]) -> std::result::Result<InodeFlags, BadAttributes> {
    if records.first() != Some(&FLAGS) {
        return Ok(InodeFlags::NONE);
    }
    decode_flags(take(records)?.0.value).ok_or(BadAttributes::Value)
}

/// The ACL of this name, from the beginning of the records. Records after it are not checked.
///
/// # Errors
/// A record up to it is malformed.
pub fn acl_of(records: &[u8], name: &[u8]) -> std::result::Result<Option<Acl>, BadAttributes> {
    let wanted = if name == XATTR_ACCESS {
        ACCESS
    } else {
        DEFAULT
    };
    let mut rest = records;
    while let Some(code) = rest.first()
        && *code <= wanted
    {
        let (record, tail) = take(rest)?;
        if record.code == wanted {
            let acl = Acl::from_stored(record.value).ok_or(BadAttributes::Value)?;
            return Ok(Some(acl));
        }
        rest = tail;
    }
    Ok(None)
}

impl Attributes {
    /// Decodes the attributes from their records.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(records: &[u8]) -> std::result::Result<Attributes, BadAttributes> {
        let mut found = Attributes::default();
        let mut rest = records;
        let mut last = 0;
        while !rest.is_empty() {
            let (Record { code, name, value }, tail) = take(rest)?;
            rest = tail;
            if code < last || code == last && code < FIRST_PREFIX {
                return Err(BadAttributes::Code);
            }
            last = code;
            let acl = || Acl::from_stored(value).ok_or(BadAttributes::Value);
            match code {
                FLAGS => found.flags = decode_flags(value).ok_or(BadAttributes::Value)?,
                ACCESS => found.access = Some(acl()?),
                DEFAULT => found.default = Some(acl()?),
                _ => {
                    let prefix = PREFIXES[usize::from(code - FIRST_PREFIX)];
                    let name = [prefix, name].concat();
                    check_name(&name).map_err(|_| BadAttributes::Name)?;
                    found.named.push((name, value.to_vec()));
                }
            }
        }
        let mut names: Vec<&[u8]> = found.named.iter().map(|(name, _)| &name[..]).collect();
        names.sort_unstable();
        match names.windows(2).any(|pair| pair[0] == pair[1]) {
            true => Err(BadAttributes::Name),
            false => Ok(found),
        }
    }

    /// Their records.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut records = Vec::new();
        if self.flags != InodeFlags::NONE {
            let bits = self.flags.bits().to_le_bytes();
            let used = bits
                .iter()
                .rposition(|byte| *byte != 0)
                .map_or(0, |at| at + 1);
            put(&mut records, FLAGS, None, &bits[..used]);
        }
        for (code, acl) in [(ACCESS, &self.access), (DEFAULT, &self.default)] {
            if let Some(acl) = acl {
                put(&mut records, code, None, &acl.to_stored());
            }
        }
        for (name, value) in &self.named {
            if let Some((code, rest)) = split(name) {
                put(&mut records, code, Some(rest), value);
            }
        }
        records
    }

    /// Names of all attributes.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let access = self.access.iter().map(|_| XATTR_ACCESS);
        let default = self.default.iter().map(|_| XATTR_DEFAULT);
        let named = self.named.iter().map(|(name, _)| &name[..]);
        access.chain(default).chain(named)
    }

    /// The ACL of this name.
    #[must_use]
    pub fn acl(&self, name: &[u8]) -> Option<&Acl> {
        match name == XATTR_ACCESS {
            true => self.access.as_ref(),
            false => self.default.as_ref(),
        }
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        if is_acl(name) {
            return self.acl(name).map(Acl::to_xattr);
        }
        let found = self.named.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.clone())
    }

    /// Sets a value. That of an ACL has been checked: see [`Attributes::set_acl`].
    ///
    /// # Errors
    /// EEXIST, ENODATA as `mode` says; ERANGE for a value that is too long.
    pub fn set(&mut self, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(Errno::Range.into());
        }
        let at = self.named.iter().position(|(other, _)| other == name);
        check_mode(mode, at.is_some())?;
        match at {
            Some(at) => self.named[at].1 = value.to_vec(),
            None => {
                let code = |name: &[u8]| split(name).map(|(code, _)| code);
                let later = |(other, _): &(Vec<u8>, Vec<u8>)| code(other) > code(name);
                let at = self.named.iter().position(later);
                let at = at.unwrap_or(self.named.len());
                self.named.insert(at, (name.to_vec(), value.to_vec()));
            }
        }
        Ok(())
    }

    /// Sets the ACL of this name; an access ACL that says no more than the mode is not kept.
    ///
    /// # Errors
    /// EEXIST, ENODATA as `mode` says.
    pub fn set_acl(&mut self, name: &[u8], acl: Acl, mode: XattrMode) -> Result<()> {
        check_mode(mode, self.acl(name).is_some())?;
        match name == XATTR_ACCESS {
            true => self.access = (!acl.is_minimal()).then_some(acl),
            false => self.default = Some(acl),
        }
        Ok(())
    }

    /// Removes a value.
    ///
    /// # Errors
    /// ENODATA.
    pub fn remove(&mut self, name: &[u8]) -> Result<()> {
        let gone = if name == XATTR_ACCESS {
            self.access.take().is_some()
        } else if name == XATTR_DEFAULT {
            self.default.take().is_some()
        } else {
            let at = self.named.iter().position(|(other, _)| other == name);
            at.map(|at| self.named.remove(at)).is_some()
        };
        match gone {
            true => Ok(()),
            false => Err(Errno::NoData.into()),
        }
    }
}

fn check_mode(mode: XattrMode, is_there: bool) -> Result<()> {
    match (mode, is_there) {
        (XattrMode::Create, true) => Err(Errno::Exist.into()),
        (XattrMode::Replace, false) => Err(Errno::NoData.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::layout::INLINE_BYTES;
    use proptest::prelude::*;
    use steadfast_vfs::acl::{Entry, Who};

    fn acl(perm: u8) -> Acl {
        let entries = [
            (Who::Owner, 7),
            (Who::User(5), perm),
            (Who::OwningGroup, 4),
            (Who::Mask, 7),
            (Who::Other, 0),
        ];
        Acl::new(entries.map(|(who, perm)| Entry { who, perm }).to_vec()).unwrap()
    }

    fn full() -> Attributes {
        let mut all = Attributes {
            flags: InodeFlags::NOATIME | InodeFlags::APPEND,
            access: Some(acl(6)),
            default: Some(acl(1)),
            named: Vec::new(),
        };
        for (name, value) in [
            (&b"security.c"[..], &b"C"[..]),
            (b"user.a", b""),
            (b"trusted.t", &[7; 300]),
            (b"user.b", &[0; 20_000]),
        ] {
            all.set(name, value, XattrMode::Any).unwrap();
        }
        all
    }

    #[test]
    fn attributes_are_found_after_encoding_and_decoding() {
        let all = full();
        let again = Attributes::decode(&all.encode()).unwrap();
        assert_eq!(again, all);
        assert_eq!(again.get(b"user.b"), Some(vec![0; 20_000]));
        assert_eq!(again.get(XATTR_DEFAULT), Some(acl(1).to_xattr()));
        let records = all.encode();
        assert_eq!(flags_of(&records), Ok(all.flags));
        assert_eq!(acl_of(&records, XATTR_ACCESS), Ok(Some(acl(6))));
        assert_eq!(acl_of(&records, XATTR_DEFAULT), Ok(Some(acl(1))));
        let names: Vec<&[u8]> = again.names().collect();
        let sorted: [&[u8]; 6] = [
            XATTR_ACCESS,
            XATTR_DEFAULT,
            b"user.a",
            b"user.b",
            b"trusted.t",
            b"security.c",
        ];
        assert_eq!(names, sorted);
        assert!(Attributes::default().encode().is_empty());
        assert_eq!(Attributes::decode(b"").unwrap(), Attributes::default());
    }

    #[test]
    fn setting_and_removing_follow_their_modes() {
        let mut all = full();
        let errno = |result: Result<()>| result.map_err(|e| e.errno);
        let twice = all.set(b"user.a", b"1", XattrMode::Create);
        assert_eq!(errno(twice), Err(Errno::Exist));
        let absent = all.set(b"user.c", b"1", XattrMode::Replace);
        assert_eq!(errno(absent), Err(Errno::NoData));
        let long = all.set(b"user.c", &[0; VALUE_BYTES_MAX + 1], XattrMode::Any);
        assert_eq!(errno(long), Err(Errno::Range));
        all.set(b"user.c", &[1; VALUE_BYTES_MAX], XattrMode::Any)
            .unwrap();
        for name in [XATTR_ACCESS, XATTR_DEFAULT, b"user.a"] {
            all.remove(name).unwrap();
            assert_eq!(errno(all.remove(name)), Err(Errno::NoData));
        }
        let entries = [(Who::Owner, 6), (Who::OwningGroup, 4), (Who::Other, 0)];
        let minimal = Acl::new(entries.map(|(who, perm)| Entry { who, perm }).to_vec()).unwrap();
        all.set_acl(XATTR_ACCESS, acl(1), XattrMode::Create)
            .unwrap();
        all.set_acl(XATTR_ACCESS, minimal.clone(), XattrMode::Replace)
            .unwrap();
        assert_eq!(all.access, None, "it says no more than the mode");
        all.set_acl(XATTR_DEFAULT, minimal.clone(), XattrMode::Any)
            .unwrap();
        assert_eq!(all.default, Some(minimal));
    }

    #[test]
    fn a_list_or_capabilities_fit_into_the_inode() {
        let one = Attributes {
            flags: InodeFlags::NODUMP,
            access: Some(acl(6)),
            ..Attributes::default()
        };
        assert!(one.encode().len() <= INLINE_BYTES);
        let mut capable = Attributes::default();
        capable
            .set(b"security.capability", &[1; 24], XattrMode::Any)
            .unwrap();
        assert!(capable.encode().len() <= INLINE_BYTES);
    }

    #[test]
    fn corner_35_faults_are_reported() {
        let wrong = |records: &[u8]| Attributes::decode(records).unwrap_err();
        assert_eq!(wrong(&[0]), BadAttributes::Code);
        assert_eq!(wrong(&[7, 0, 0]), BadAttributes::Code);
        assert_eq!(wrong(&[1]), BadAttributes::Short);
        assert_eq!(wrong(&[1, 0]), BadAttributes::Value);
        assert_eq!(wrong(&[1, 1, 0]), BadAttributes::Value);
        assert_eq!(wrong(&[1, 1, 1]), BadAttributes::Value);
        assert_eq!(wrong(&[1, 2, 0x40, 0]), BadAttributes::Value);
        assert_eq!(wrong(&[1, 1, 0x40, 1, 1, 0x40]), BadAttributes::Code);
        assert_eq!(wrong(&[2, 1, 0]), BadAttributes::Value);
        assert_eq!(wrong(&[4, 0, 0]), BadAttributes::Name);
        assert_eq!(wrong(&[4, 1, 0, 0]), BadAttributes::Name);
        assert_eq!(wrong(&[5, 1, b'a', 0, 4, 1, b'a', 0]), BadAttributes::Code);
        assert_eq!(wrong(&[4, 1, b'a', 0, 4, 1, b'a', 0]), BadAttributes::Name);
        assert_eq!(wrong(&[4, 1, b'a', 0x80, 0]), BadAttributes::Length);
        assert_eq!(
            wrong(&[4, 1, b'a', 0xff, 0xff, 0x7f]),
            BadAttributes::Length
        );
        assert_eq!(wrong(&[4, 1, b'a', 0xff, 0xff, 0xff]), BadAttributes::Short);
        assert_eq!(wrong(&[4, 1, b'a', 2, 0]), BadAttributes::Short);
        assert_eq!(wrong(&[4, 2, b'a']), BadAttributes::Short);
    }

    fn any_record() -> impl Strategy<Value = Vec<u8>> {
        let bytes = prop::collection::vec(any::<u8>(), 0..6);
        (0u8..8, bytes.clone(), bytes).prop_map(|(code, name, value)| {
            let mut record = Vec::new();
            let named = code >= FIRST_PREFIX;
            put(&mut record, code, named.then_some(&name[..]), &value);
            record
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn corner_35_any_bytes_are_refused_or_encode_as_they_were(
            records in prop::collection::vec(any_record(), 0..5),
            noise in prop::collection::vec((0..40usize, any::<u8>()), 0..2),
        ) {
            let mut records = records.concat();
            for (at, byte) in noise {
                if let Some(there) = records.get_mut(at) {
                    *there = byte;
                }
            }
            let flags = flags_of(&records);
            let acls = [XATTR_ACCESS, XATTR_DEFAULT].map(|name| acl_of(&records, name));
            if let Ok(all) = Attributes::decode(&records) {
                prop_assert_eq!(flags, Ok(all.flags));
                prop_assert_eq!(acls, [Ok(all.access.clone()), Ok(all.default.clone())]);
                prop_assert_eq!(all.encode(), records);
            }
        }
    }
}
