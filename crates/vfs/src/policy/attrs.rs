//! Changes of attributes: the ownership rules of chown, chgrp, chmod and utimes, and set-id bits.

use super::{GROUP_EXEC, PERM_BITS, SET_GID, SET_UID, Subject, is_privileged, may_grow, not_fixed};
use crate::{Caller, Errno, FileKind, Result, SetAttr, SetTime};

/// The permission that a change of attributes needs, besides the rules of [`may_set`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// Permission to write to the inode.
    Write,
}

/// Whether no attribute is to be changed.
#[must_use]
pub fn is_nothing(set: &SetAttr) -> bool {
    let SetAttr {
        perm,
        uid,
        gid,
        size,
        atime,
        mtime,
        guard: _,
        by_handle: _,
    } = set;
    perm.is_none()
        && uid.is_none()
        && gid.is_none()
        && size.is_none()
        && atime.is_none()
        && mtime.is_none()
}

/// Whether the caller may make these changes to the inode.
///
/// # Errors
/// EPERM for a change that only the owner or root may make; EOPNOTSUPP for the mode of a symbolic link.
pub fn may_set(caller: &Caller, inode: &Subject, set: &SetAttr) -> Result<Needs> {
    if set.perm.is_some() && inode.kind == FileKind::Symlink {
        return Err(Errno::OpNotSupp.into());
    }
    let times = [set.atime, set.mtime];
    let explicit = |time: &Option<SetTime>| matches!(time, Some(SetTime::At(_)));
    let owned = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
    if owned || set.size.is_some() || times.iter().any(explicit) {
        not_fixed(inode)?;
    } else if times.iter().any(Option::is_some) {
        may_grow(inode)?;
    }
    if is_privileged(caller) {
        return Ok(Needs::Nothing);
    }
    let owner = caller.uid == inode.uid;
    if set.uid.is_some_and(|uid| !owner || uid != inode.uid) {
        return Err(Errno::Perm.into());
    }
    let foreign = |gid: u32| gid != inode.gid && !caller.in_group(gid);
    if set.gid.is_some_and(|gid| !owner || foreign(gid)) {
        return Err(Errno::Perm.into());
    }
    if set.perm.is_some() && !owner {
        return Err(Errno::Perm.into());
    }
    if !owner && times.iter().any(explicit) {
        return Err(Errno::Perm.into());
    }
    // A truncation brings its own mtime; write permission was asked for with it.
    if !owner && times.iter().any(Option::is_some) && set.size.is_none() {
        return Ok(Needs::Write);
    }
    Ok(Needs::Nothing)
}

/// The permission bits of a file after `caller` changed its content: set-id bits do not survive a write
/// by a user that could not have set them.
#[must_use]
pub fn perm_after_write(caller: &Caller, perm: u16, gid: u32) -> u16 {
    if caller.uid == 0 {
        perm
    } else {
        without_set_id(perm, caller.in_group(gid))
    }
}

/// The permission bits without set-user-id, and without set-group-id where that is a privilege:
/// executable by the group, or changed by a user that does not belong to it.
fn without_set_id(perm: u16, in_group: bool) -> u16 {
    let group = if perm & GROUP_EXEC != 0 || !in_group {
        SET_GID
    } else {
        0
    };
    perm & !(SET_UID | group)
}

/// The permission bits that an inode has after the change.
#[must_use]
pub fn perm_after_set(caller: &Caller, inode: &Subject, set: &SetAttr) -> u16 {
    let mut perm = inode.perm;
    if set.size.is_some() {
        perm = perm_after_write(caller, perm, inode.gid);
    }
    if let Some(asked) = set.perm {
        perm = asked & PERM_BITS;
        if caller.uid != 0 && !caller.in_group(set.gid.unwrap_or(inode.gid)) {
            perm &= !SET_GID;
        }
    }
    if (set.uid.is_some() || set.gid.is_some()) && !inode.is_dir() {
        perm = without_set_id(perm, caller.uid == 0 || caller.in_group(inode.gid));
    }
    perm
}

/// The permission bits after an access ACL with these nine bits was set.
#[must_use]
pub fn perm_after_acl(caller: &Caller, inode: &Subject, bits: u16) -> u16 {
    let perm = inode.perm & !0o777 | bits;
    match caller.uid != 0 && !caller.in_group(inode.gid) {
        true => perm & !SET_GID,
        false => perm,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::policy::tests::{caller, dir, file};

    #[test]
    fn set_id_bits_do_not_survive_a_write_by_others() {
        let after = |who: &Caller, perm, gid| perm_after_write(who, perm, gid);
        assert_eq!(after(&caller(5, 5, &[]), 0o6755, 5), 0o755);
        assert_eq!(after(&caller(5, 5, &[]), 0o6745, 5), 0o2745);
        assert_eq!(after(&caller(5, 5, &[]), 0o6745, 6), 0o745);
        assert_eq!(after(&caller(0, 0, &[]), 0o6755, 6), 0o6755);
    }

    #[test]
    fn changing_the_owner_clears_set_id_bits_of_files_only() {
        let set = SetAttr {
            uid: Some(7),
            ..SetAttr::default()
        };
        let root = caller(0, 0, &[]);
        assert_eq!(perm_after_set(&root, &file(0o6755, 1, 1), &set), 0o755);
        assert_eq!(perm_after_set(&root, &dir(0o6755, 1, 1), &set), 0o6755);
        let both = SetAttr {
            perm: Some(0o4755),
            ..set
        };
        assert_eq!(perm_after_set(&root, &file(0o644, 1, 1), &both), 0o755);
    }

    #[test]
    fn ownership_changes_follow_linux() {
        let file = file(0o644, 1, 1);
        let set = |set: SetAttr, who: &Caller| may_set(who, &file, &set).map_err(|e| e.errno);
        let owner = caller(1, 1, &[8]);
        let uid = |uid| SetAttr {
            uid: Some(uid),
            ..SetAttr::default()
        };
        let gid = |gid| SetAttr {
            gid: Some(gid),
            ..SetAttr::default()
        };
        assert_eq!(set(uid(1), &owner), Ok(Needs::Nothing));
        assert_eq!(set(uid(2), &owner), Err(Errno::Perm));
        assert_eq!(set(gid(8), &owner), Ok(Needs::Nothing));
        assert_eq!(set(gid(9), &owner), Err(Errno::Perm));
        assert_eq!(set(gid(8), &caller(2, 8, &[])), Err(Errno::Perm));
        let now = SetAttr {
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        assert_eq!(set(now, &caller(2, 2, &[])), Ok(Needs::Write));
        let at = SetAttr {
            mtime: Some(SetTime::At(Default::default())),
            ..SetAttr::default()
        };
        assert_eq!(set(at, &caller(2, 2, &[])), Err(Errno::Perm));
    }
}
