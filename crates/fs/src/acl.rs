//! POSIX access control lists: how they are stored, what rights they give, and how they follow
//! the mode. Pure functions.
//!
//! Stored as ext4 does: a 32-bit 1, then for each entry a 16-bit tag and 16-bit permissions, and
//! a 32-bit id for users and groups. The values lie among the inode's extended attributes.
//!
//! Invariant: the permission bits of an inode with an access ACL equal the list's entries for
//! owner, mask and other ([`mode`]). Both change in one operation. A list that says no more than
//! the mode is not stored.

use steadfast_vfs::Caller;
use steadfast_vfs::acl::{Acl, Entry, Who};

const VERSION: u32 = 1;

/// As it is stored.
pub(crate) fn encode(acl: &Acl) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for entry in acl.entries() {
        value.extend(entry.who.tag().to_le_bytes());
        value.extend(u16::from(entry.perm).to_le_bytes());
        if let Some(id) = entry.who.id() {
            value.extend(id.to_le_bytes());
        }
    }
    value
}

/// From what was stored, if that is a valid list.
pub(crate) fn decode(value: &[u8]) -> Option<Acl> {
    let (version, mut rest) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (&[t0, t1, p0, p1], tail) = rest.split_first_chunk::<4>()?;
        rest = tail;
        let mut who = Who::new(u16::from_le_bytes([t0, t1]), 0)?;
        if who.is_named() {
            let (id, tail) = rest.split_first_chunk::<4>()?;
            rest = tail;
            who = Who::new(who.tag(), u32::from_le_bytes(*id))?;
        }
        let perm = u8::try_from(u16::from_le_bytes([p0, p1])).ok()?;
        entries.push(Entry { who, perm });
    }
    Acl::new(entries)
}

/// Whether the list gives all of `mask` to a caller that is neither root nor the owner.
/// The first class that the caller belongs to decides; of several groups, any that suffices.
pub(crate) fn permits(acl: &Acl, caller: &Caller, gid: u32, mask: u8) -> bool {
    let limit = acl.perm(Who::Mask).unwrap_or(7);
    if let Some(perm) = acl.perm(Who::User(caller.uid)) {
        return mask & !(perm & limit) == 0;
    }
    let mut in_group = false;
    for entry in acl.entries() {
        let member = match entry.who {
            Who::OwningGroup => caller.in_group(gid),
            Who::Group(id) => caller.in_group(id),
            _ => false,
        };
        if member && mask & !entry.perm == 0 {
            return mask & !limit == 0;
        }
        in_group |= member;
    }
    !in_group && mask & !acl.perm(Who::Other).unwrap_or(0) == 0
}

/// The entry that the group bits of a mode stand for.
fn group_class(acl: &Acl) -> Who {
    match acl.perm(Who::Mask) {
        Some(_) => Who::Mask,
        None => Who::OwningGroup,
    }
}

/// The nine permission bits that an inode with this access ACL has.
pub(crate) fn mode(acl: &Acl) -> u32 {
    [Who::Owner, group_class(acl), Who::Other]
        .into_iter()
        .fold(0, |mode, who| {
            mode << 3 | u32::from(acl.perm(who).unwrap_or(0))
        })
}

/// Changes the list as a change of the mode to `mode` demands.
pub(crate) fn set_mode(acl: &mut Acl, mode: u32) {
    for (who, shift) in [(Who::Owner, 6), (group_class(acl), 3), (Who::Other, 0)] {
        acl.set_perm(who, (mode >> shift & 7) as u8);
    }
}

/// Whether the list says no more than its [`mode`].
pub(crate) fn is_minimal(acl: &Acl) -> bool {
    acl.entries().len() == 3
}

/// The access ACL of a new inode that is asked for with the permission bits `perm`, in a
/// directory with this default ACL: nothing is allowed that either of them does not allow.
pub(crate) fn inherit(default: &Acl, perm: u32) -> Acl {
    let mut acl = default.clone();
    set_mode(&mut acl, mode(default) & perm);
    acl
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;

    fn list(entries: &[(Who, u8)]) -> Acl {
        let entries = entries.iter().map(|&(who, perm)| Entry { who, perm });
        Acl::new(entries.collect()).unwrap()
    }

    fn sample() -> Acl {
        list(&[
            (Who::Owner, 7),
            (Who::User(10), 6),
            (Who::User(11), 0),
            (Who::OwningGroup, 4),
            (Who::Group(20), 3),
            (Who::Mask, 6),
            (Who::Other, 1),
        ])
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller {
            uid,
            gid,
            groups: Arc::from(groups),
            ..Caller::root()
        }
    }

    #[test]
    fn a_stored_list_is_read_again_and_no_wrong_byte_is_more_than_an_error() {
        let value = encode(&sample());
        assert_eq!(value.len(), 4 + 7 * 4 + 3 * 4);
        assert_eq!(decode(&value), Some(sample()));
        for len in 0..value.len() {
            assert_eq!(decode(&value[..len]), None);
        }
        for at in 0..value.len() {
            for wrong in [0, 1, 0x7f, 0xff] {
                let mut value = value.clone();
                value[at] = wrong;
                let _ = decode(&value);
            }
        }
    }

    #[test]
    fn the_first_class_decides_and_the_mask_limits_all_but_owner_and_others() {
        let acl = sample();
        let may = |who: &Caller, mask| permits(&acl, who, 30, mask);
        assert!(may(&caller(10, 0, &[]), 6));
        assert!(
            !may(&caller(10, 20, &[30]), 1),
            "by name, whatever the groups give"
        );
        assert!(
            !may(&caller(11, 30, &[]), 4),
            "by name, though the group may"
        );
        assert!(may(&caller(12, 30, &[]), 4));
        assert!(may(&caller(12, 30, &[20]), 2), "any of the groups");
        assert!(!may(&caller(12, 30, &[20]), 6), "but one of them all of it");
        assert!(
            !may(&caller(12, 20, &[]), 1),
            "the mask takes execution away"
        );
        assert!(may(&caller(12, 12, &[]), 1));
        assert!(!may(&caller(12, 12, &[]), 4));
    }

    #[test]
    fn mode_and_list_follow_each_other() {
        let mut acl = sample();
        assert_eq!(mode(&acl), 0o761);
        set_mode(&mut acl, 0o640);
        assert_eq!(mode(&acl), 0o640);
        assert_eq!(acl.perm(Who::Mask), Some(4));
        assert_eq!(
            acl.perm(Who::OwningGroup),
            Some(4),
            "the mask stands for the group"
        );
        let mut plain = list(&[(Who::Owner, 6), (Who::OwningGroup, 0), (Who::Other, 0)]);
        set_mode(&mut plain, 0o755);
        assert_eq!(mode(&plain), 0o755);
        assert!(is_minimal(&plain) && !is_minimal(&sample()));
    }

    #[test]
    fn what_is_inherited_allows_no_more_than_was_asked_for() {
        let acl = inherit(&sample(), 0o640);
        assert_eq!(mode(&acl), 0o640);
        assert_eq!(acl.perm(Who::User(10)), Some(6));
        assert_eq!(mode(&inherit(&sample(), 0o777)), 0o761);
    }
}
