//! POSIX access control lists: their entries, the rights that they give, and their two forms:
//! values of [`XATTR_ACCESS`] and [`XATTR_DEFAULT`], which programs and the kernel exchange, and the shorter
//! one that file systems store ([`Acl::to_stored`]).
//!
//! The form of a value (version 2): a 32-bit 2, then for each entry a 16-bit tag, 16-bit permissions and a
//! 32-bit id, all little endian. An [`Acl`] is valid by construction.

mod rights;
mod stored;

use crate::{Errno, Result};

/// Name of the attribute that holds an inode's access ACL.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute that holds a directory's default ACL, which new children inherit.
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;
/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;

/// The users or groups that an entry applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Who {
    /// The owner.
    Owner,
    /// This user.
    User(u32),
    /// The owning group.
    OwningGroup,
    /// This group.
    Group(u32),
    /// No one: the most that users, groups and the owning group can have.
    Mask,
    /// All others.
    Other,
}

impl Who {
    /// From a tag and an id. The id of entries that have none is not looked at.
    #[must_use]
    pub fn new(tag: u16, id: u32) -> Option<Who> {
        Some(match tag {
            0x01 => Who::Owner,
            0x02 => Who::User(id),
            0x04 => Who::OwningGroup,
            0x08 => Who::Group(id),
            0x10 => Who::Mask,
            0x20 => Who::Other,
            _ => return None,
        })
    }

    /// The tag.
    #[must_use]
    pub fn tag(self) -> u16 {
        match self {
            Who::Owner => 0x01,
            Who::User(_) => 0x02,
            Who::OwningGroup => 0x04,
            Who::Group(_) => 0x08,
            Who::Mask => 0x10,
            Who::Other => 0x20,
        }
    }

    /// The id, if the entry has one.
    #[must_use]
    pub fn id(self) -> Option<u32> {
        match self {
            Who::User(id) | Who::Group(id) => Some(id),
            _ => None,
        }
    }

    /// Whether the entry gives rights to a user or a group by name.
    #[must_use]
    pub fn is_named(self) -> bool {
        self.id().is_some()
    }
}

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Entry {
    /// The users or groups that it applies to.
    pub who: Who,
    /// Read (4), write (2), execute or search (1).
    pub perm: u8,
}

/// A valid list: owner, users, owning group, groups, mask, other, in this order. Owner, owning
/// group and other are there once; the mask at most once, and always if there are users or groups.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// A list of these entries; none if they are not a valid one.
    #[must_use]
    pub fn new(entries: Vec<Entry>) -> Option<Acl> {
        // Each tag is larger than the one before, or both are users, or both are groups.
        let ordered = entries.windows(2).all(|pair| {
            let (a, b) = (pair[0].who, pair[1].who);
            a.tag() < b.tag() || a.tag() == b.tag() && a.is_named()
        });
        let has = |who: Who| entries.iter().any(|entry| entry.who == who);
        let complete = has(Who::Owner) && has(Who::OwningGroup) && has(Who::Other);
        let named = entries.iter().any(|entry| entry.who.is_named());
        let good = |entry: &Entry| entry.perm <= 7 && entry.who.id() != Some(NO_ID);
        let valid = ordered && complete && (has(Who::Mask) || !named) && entries.iter().all(good);
        valid.then_some(Acl(entries))
    }

    /// Its entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// The permissions of the entry for `who`.
    #[must_use]
    pub fn perm(&self, who: Who) -> Option<u8> {
        let found = self.0.iter().find(|entry| entry.who == who);
        found.map(|entry| entry.perm)
    }

    /// Sets the permissions of the entry for `who`, if it is there.
    pub fn set_perm(&mut self, who: Who, perm: u8) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.who == who) {
            entry.perm = perm & 7;
        }
    }

    /// From the value of an attribute; `None` is the list without entries, which removes one.
    ///
    /// # Errors
    /// EINVAL if it is no valid list, EOPNOTSUPP for another version.
    pub fn from_xattr(value: &[u8]) -> Result<Option<Acl>> {
        let Some((version, entries)) = value.split_first_chunk::<HEADER>() else {
            return Err(Errno::Inval.into());
        };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::OpNotSupp.into());
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        let entry = |&[t0, t1, p0, p1, a, b, c, d]: &[u8; ENTRY]| {
            let who = Who::new(
                u16::from_le_bytes([t0, t1]),
                u32::from_le_bytes([a, b, c, d]),
            )?;
            let perm = u8::try_from(u16::from_le_bytes([p0, p1])).ok()?;
            Some(Entry { who, perm })
        };
        let entries: Option<Vec<Entry>> = entries.iter().map(entry).collect();
        match entries.filter(|_| rest.is_empty()).and_then(Acl::new) {
            Some(acl) => Ok(Some(acl)),
            None => Err(Errno::Inval.into()),
        }
    }

    /// As the value of an attribute.
    #[must_use]
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER + self.0.len() * ENTRY);
        value.extend(VERSION.to_le_bytes());
        for entry in &self.0 {
            value.extend(entry.who.tag().to_le_bytes());
            value.extend(u16::from(entry.perm).to_le_bytes());
            value.extend(entry.who.id().unwrap_or(NO_ID).to_le_bytes());
        }
        value
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub(crate) fn list(entries: &[(Who, u8)]) -> Option<Acl> {
        let entries = entries.iter().map(|&(who, perm)| Entry { who, perm });
        Acl::new(entries.collect())
    }

    /// One entry of each kind, two users.
    pub(crate) fn sample() -> Acl {
        let entries = [
            (Who::Owner, 7),
            (Who::User(10), 6),
            (Who::User(11), 0),
            (Who::OwningGroup, 4),
            (Who::Group(20), 3),
            (Who::Mask, 6),
            (Who::Other, 1),
        ];
        list(&entries).unwrap()
    }

    const MINIMAL: [(Who, u8); 3] = [(Who::Owner, 6), (Who::OwningGroup, 4), (Who::Other, 0)];

    #[test]
    fn a_list_is_complete_ordered_and_has_a_mask_if_it_needs_one() {
        let [owner, group, other] = MINIMAL;
        let (user, mask) = ((Who::User(7), 6), (Who::Mask, 6));
        assert!(list(&MINIMAL).is_some());
        assert!(list(&[owner, group, mask, other]).is_some());
        assert!(list(&[owner, user, (Who::User(8), 0), group, mask, other]).is_some());
        for wrong in [
            &[][..],
            &[owner, group],
            &[group, owner, other],
            &[owner, owner, group, other],
            &[owner, user, group, other],
            &[owner, group, mask, mask, other],
            &[owner, group, mask, user, other],
            &[owner, group, (Who::Other, 8)],
            &[owner, (Who::User(NO_ID), 0), group, mask, other],
        ] {
            assert!(list(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_list_written_as_an_attribute_is_read_again() {
        let [owner, group, other] = MINIMAL;
        let acl = list(&[owner, (Who::User(1000), 5), group, (Who::Mask, 7), other]).unwrap();
        let value = acl.to_xattr();
        assert_eq!(value.len(), 44);
        assert_eq!(&value[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(Acl::from_xattr(&value).unwrap(), Some(acl));
        assert_eq!(Acl::from_xattr(&value[..4]).unwrap(), None);
    }

    #[test]
    fn no_wrong_byte_is_more_than_an_error() {
        let [owner, group, other] = MINIMAL;
        let acl = list(&[owner, (Who::User(1), 5), group, (Who::Mask, 7), other]).unwrap();
        let good = acl.to_xattr();
        for len in 0..good.len() {
            let _ = Acl::from_xattr(&good[..len]);
        }
        for at in 0..good.len() {
            for wrong in [0, 1, 0x7f, 0xff] {
                let mut value = good.clone();
                value[at] = wrong;
                if let Ok(Some(acl)) = Acl::from_xattr(&value) {
                    assert!(Acl::new(acl.entries().to_vec()).is_some());
                }
            }
        }
        let mut newer = good;
        newer[0] = 3;
        assert!(Acl::from_xattr(&newer).is_err_and(|e| e == Errno::OpNotSupp));
    }
}
