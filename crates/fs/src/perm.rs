//! Who may do what, as Linux decides it: access modes, the sticky rule, ownership
//! changes, set-id bits, the group of a new inode. Pure functions.
//!
//! An access ACL is an argument where it decides ([`asks_acl`]): `Fs::require` and `Fs::access` fetch it.
//!
//! Where a caller is `checked` the front end has decided about access already; what
//! follows from identity (set-id bits, the new inode's group) is decided here always.

use crate::acl;
use crate::inode::{PERM_BITS, S_ISGID, S_ISUID, S_ISVTX};
use crate::layout::DiskInode;
use steadfast_vfs::acl::Acl;
use steadfast_vfs::{Caller, Errno, FileKind, InodeFlags, Result, SetAttr, SetTime};

/// Execute or search.
pub(crate) const EXEC: u8 = 1;
/// Write.
pub(crate) const WRITE: u8 = 2;
/// Read.
pub(crate) const READ: u8 = 4;

/// Execute bit of the group.
const S_IXGRP: u32 = 0o010;

/// Permission bits of the group, which limit what an access ACL gives.
const S_IRWXG: u32 = 0o070;

/// Whether an access ACL of `inode` would decide what the caller may do. As in Linux, a list whose
/// mask is empty counts for nothing.
pub(crate) fn asks_acl(caller: &Caller, inode: &DiskInode) -> bool {
    caller.uid != 0 && caller.uid != inode.uid.get() && inode.mode.get() & S_IRWXG != 0
}

/// EACCES unless the caller's identity has all of `mask`, whoever checked before. `acl` is the
/// access ACL if there is one and it decides ([`asks_acl`]).
pub(crate) fn access(
    caller: &Caller,
    inode: &DiskInode,
    acl: Option<&Acl>,
    mask: u8,
) -> Result<()> {
    if let Some(acl) = acl {
        return match acl::permits(acl, caller, inode.gid.get(), mask & 7) {
            true => Ok(()),
            false => Err(Errno::Access.into()),
        };
    }
    let mode = inode.mode.get();
    let mask = u32::from(mask & 7);
    let granted = if caller.uid == 0 {
        // Root may do everything, but execute only what somebody may execute.
        let executable = inode.is_dir() || mode & 0o111 != 0;
        if executable { 7 } else { 6 }
    } else if caller.uid == inode.uid.get() {
        mode >> 6
    } else if caller.in_group(inode.gid.get()) {
        mode >> 3
    } else {
        mode
    };
    if mask & !granted == 0 {
        Ok(())
    } else {
        Err(Errno::Access.into())
    }
}

/// EPERM if flags forbid to change attributes or names of `inode`, or to remove entries of it.
pub(crate) fn not_fixed(inode: &DiskInode) -> Result<()> {
    match inode
        .flags()
        .has(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
    {
        true => Err(Errno::Perm.into()),
        false => Ok(()),
    }
}

/// EPERM if flags forbid to add to `inode`: bytes at its end, or entries.
pub(crate) fn may_grow(inode: &DiskInode) -> Result<()> {
    match inode.flags().has(InodeFlags::IMMUTABLE) {
        true => Err(Errno::Perm.into()),
        false => Ok(()),
    }
}

/// EPERM if flags forbid to change the content of `inode` from `offset` on.
pub(crate) fn may_write_at(inode: &DiskInode, offset: u64) -> Result<()> {
    match offset < inode.size.get() {
        true => not_fixed(inode),
        false => may_grow(inode),
    }
}

/// EPERM if a sticky directory forbids to remove or rename `victim` in it.
pub(crate) fn sticky(caller: &Caller, dir: &DiskInode, victim: &DiskInode) -> Result<()> {
    let free = caller.checked
        || dir.mode.get() & S_ISVTX == 0
        || caller.uid == 0
        || caller.uid == dir.uid.get()
        || caller.uid == victim.uid.get();
    if free {
        Ok(())
    } else {
        Err(Errno::Perm.into())
    }
}

/// The mode of a file of group `gid` after `caller` changed its content: set-id bits do not
/// survive a write by somebody who could not have set them.
pub(crate) fn mode_after_write(caller: &Caller, mode: u32, gid: u32) -> u32 {
    if caller.uid == 0 {
        mode
    } else {
        without_set_id(mode, caller.in_group(gid))
    }
}

/// The mode without set-user-id, and without set-group-id where that is a privilege:
/// executable by the group, or changed by somebody who does not belong to it.
fn without_set_id(mode: u32, in_group: bool) -> u32 {
    let group = if mode & S_IXGRP != 0 || !in_group {
        S_ISGID
    } else {
        0
    };
    mode & !(S_ISUID | group)
}

/// Group and permission bits of a new inode in `parent`.
pub(crate) fn inherit(caller: &Caller, parent: &DiskInode, perm: u16, is_dir: bool) -> (u32, u32) {
    let perm = u32::from(perm) & PERM_BITS;
    if parent.mode.get() & S_ISGID == 0 {
        return (caller.gid, perm);
    }
    let gid = parent.gid.get();
    if is_dir {
        return (gid, perm | S_ISGID);
    }
    let forbidden =
        perm & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP && caller.uid != 0 && !caller.in_group(gid);
    (gid, if forbidden { perm & !S_ISGID } else { perm })
}

/// What a change of attributes asks for besides what [`may_set`] decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// Permission to write to the inode.
    Write,
}

/// Whether the caller may make these changes to `inode`.
///
/// # Errors
/// EPERM for what belongs to the owner or to root.
pub(crate) fn may_set(caller: &Caller, inode: &DiskInode, set: &SetAttr) -> Result<Needs> {
    if set.perm.is_some() && inode.kind() == FileKind::Symlink {
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
    if caller.checked || caller.uid == 0 {
        return Ok(Needs::Nothing);
    }
    let owner = caller.uid == inode.uid.get();
    if set.uid.is_some_and(|uid| !owner || uid != inode.uid.get()) {
        return Err(Errno::Perm.into());
    }
    let foreign = |gid: u32| gid != inode.gid.get() && !caller.in_group(gid);
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

/// The mode that an inode has after the change.
pub(crate) fn mode_after_set(caller: &Caller, inode: &DiskInode, set: &SetAttr) -> u32 {
    let mut mode = inode.mode.get();
    let old_gid = inode.gid.get();
    if set.size.is_some() {
        mode = mode_after_write(caller, mode, old_gid);
    }
    if let Some(perm) = set.perm {
        mode = mode & !PERM_BITS | u32::from(perm) & PERM_BITS;
        if caller.uid != 0 && !caller.in_group(set.gid.unwrap_or(old_gid)) {
            mode &= !S_ISGID;
        }
    }
    if (set.uid.is_some() || set.gid.is_some()) && !inode.is_dir() {
        mode = without_set_id(mode, caller.uid == 0 || caller.in_group(old_gid));
    }
    mode
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;
    use steadfast_vfs::Stream;
    use zerocopy::FromZeros;

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller {
            uid,
            gid,
            groups: Arc::from(groups),
            stream: Stream(0),
            checked: false,
            umask: 0,
        }
    }

    fn inode(mode: u32, uid: u32, gid: u32) -> DiskInode {
        let mut inode = DiskInode::new_zeroed();
        inode.mode = mode.into();
        inode.uid = uid.into();
        inode.gid = gid.into();
        inode
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = inode(0o100_074, 1, 2);
        assert!(
            access(&caller(1, 2, &[]), &file, None, READ).is_err(),
            "the owner has nothing"
        );
        assert!(access(&caller(3, 9, &[2]), &file, None, READ | WRITE | EXEC).is_ok());
        assert!(access(&caller(3, 9, &[]), &file, None, READ).is_ok());
        assert!(access(&caller(3, 9, &[]), &file, None, WRITE).is_err());
    }

    #[test]
    fn root_executes_only_what_somebody_may_execute() {
        assert!(
            access(
                &caller(0, 0, &[]),
                &inode(0o100_600, 1, 1),
                None,
                READ | WRITE
            )
            .is_ok()
        );
        assert!(access(&caller(0, 0, &[]), &inode(0o100_600, 1, 1), None, EXEC).is_err());
        assert!(access(&caller(0, 0, &[]), &inode(0o100_601, 1, 1), None, EXEC).is_ok());
        assert!(access(&caller(0, 0, &[]), &inode(0o040_000, 1, 1), None, EXEC).is_ok());
    }

    #[test]
    fn a_sticky_directory_protects_other_peoples_files() {
        let (dir, file) = (inode(0o041_777, 1, 1), inode(0o100_644, 2, 2));
        assert!(sticky(&caller(3, 3, &[]), &dir, &file).is_err());
        for uid in [0, 1, 2] {
            assert!(sticky(&caller(uid, 3, &[]), &dir, &file).is_ok());
        }
    }

    #[test]
    fn set_id_bits_do_not_survive_a_write_by_others() {
        assert_eq!(
            mode_after_write(&caller(5, 5, &[]), 0o106_755, 5),
            0o100_755
        );
        assert_eq!(
            mode_after_write(&caller(5, 5, &[]), 0o106_745, 5),
            0o102_745
        );
        assert_eq!(
            mode_after_write(&caller(5, 5, &[]), 0o106_745, 6),
            0o100_745
        );
        assert_eq!(
            mode_after_write(&caller(0, 0, &[]), 0o106_755, 6),
            0o106_755
        );
    }

    #[test]
    fn changing_the_owner_clears_set_id_bits_of_files_only() {
        let set = SetAttr {
            uid: Some(7),
            ..SetAttr::default()
        };
        let root = caller(0, 0, &[]);
        assert_eq!(
            mode_after_set(&root, &inode(0o106_755, 1, 1), &set),
            0o100_755
        );
        assert_eq!(
            mode_after_set(&root, &inode(0o046_755, 1, 1), &set),
            0o046_755
        );
        let both = SetAttr {
            perm: Some(0o4755),
            ..set
        };
        assert_eq!(
            mode_after_set(&root, &inode(0o100_644, 1, 1), &both),
            0o100_755
        );
    }

    #[test]
    fn the_group_of_a_set_gid_directory_is_inherited() {
        let dir = inode(0o042_777, 1, 50);
        assert_eq!(inherit(&caller(5, 6, &[]), &dir, 0o755, true), (50, 0o2755));
        assert_eq!(
            inherit(&caller(5, 6, &[]), &dir, 0o2755, false),
            (50, 0o755)
        );
        assert_eq!(
            inherit(&caller(5, 6, &[50]), &dir, 0o2755, false),
            (50, 0o2755)
        );
        assert_eq!(
            inherit(&caller(5, 6, &[]), &inode(0o040_777, 1, 50), 0o2755, false),
            (6, 0o2755)
        );
    }

    #[test]
    fn ownership_changes_follow_linux() {
        let file = inode(0o100_644, 1, 1);
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
