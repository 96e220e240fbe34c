//! Permissions: access modes, sticky directories, set-id bits.
//!
//! User 0 has the capabilities that Linux gives the superuser. A [`Caller`] that is
//! `checked` passes every access check, but the effects of its identity (bits that are
//! cleared, the group of a new file) are decided here all the same.

use super::{Node, TreeResult};
use steadfast_vfs::{Caller, Errno, FileKind};

pub(super) const READ: u16 = 4;
pub(super) const WRITE: u16 = 2;
pub(super) const EXEC: u16 = 1;

pub(super) const SET_UID: u16 = 0o4000;
pub(super) const SET_GID: u16 = 0o2000;
pub(super) const STICKY: u16 = 0o1000;
const GROUP_EXEC: u16 = 0o010;

/// Whether the caller passes as the superuser in an access check.
pub(super) fn privileged(caller: &Caller) -> bool {
    caller.uid == 0 || caller.checked
}

impl Node {
    /// Whether the mode lets the caller do all of `mask`, `checked` or not.
    pub(super) fn permits(&self, caller: &Caller, mask: u16) -> bool {
        if caller.uid == 0 {
            // The superuser executes only files that some user may execute.
            return mask & EXEC == 0 || self.is_dir() || self.perm & 0o111 != 0;
        }
        if let Some(permits) = self.acl_permits(caller, mask & 7) {
            return permits;
        }
        let class = if caller.uid == self.uid {
            self.perm >> 6
        } else if caller.in_group(self.gid) {
            self.perm >> 3
        } else {
            self.perm
        };
        class & mask == mask & 7
    }

    /// EACCES unless the caller may do all of `mask`.
    pub(super) fn may(&self, caller: &Caller, mask: u16) -> TreeResult<()> {
        if caller.checked || self.permits(caller, mask) {
            Ok(())
        } else {
            Err(Errno::Access)
        }
    }

    /// Whether the caller owns the inode, or passes as its owner.
    pub(super) fn owned_by(&self, caller: &Caller) -> bool {
        privileged(caller) || caller.uid == self.uid
    }

    /// EPERM if this directory is sticky and neither it nor `victim` is the caller's.
    pub(super) fn may_remove(&self, caller: &Caller, victim: &Node) -> TreeResult<()> {
        let sticky = self.perm & STICKY != 0;
        if sticky && !self.owned_by(caller) && !victim.owned_by(caller) {
            return Err(Errno::Perm);
        }
        Ok(())
    }

    /// The mode after a write or truncation by `caller`: set-id bits do not survive
    /// a change by a user that could not have set them.
    pub(super) fn perm_after_write(&self, caller: &Caller) -> u16 {
        if caller.uid == 0 || self.kind != FileKind::Regular {
            return self.perm;
        }
        without_set_id(self.perm, caller.in_group(self.gid))
    }
}

/// The mode without set-user-id, and without set-group-id where that means privilege:
/// group-executable, or changed by a user outside the group.
pub(super) fn without_set_id(perm: u16, in_group: bool) -> u16 {
    let mut perm = perm & !SET_UID;
    if perm & SET_GID != 0 && (perm & GROUP_EXEC != 0 || !in_group) {
        perm &= !SET_GID;
    }
    perm
}

/// Group and mode of a new inode in `dir`: a set-group-id directory hands its group
/// on, and to directories the bit itself; others may not gain the bit for a group
/// that is not theirs.
pub(super) fn inherit(dir: &Node, caller: &Caller, kind: FileKind, perm: u16) -> (u32, u16) {
    if dir.perm & SET_GID == 0 {
        return (caller.gid, perm);
    }
    let gains = perm & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC;
    let perm = if kind == FileKind::Directory {
        perm | SET_GID
    } else if gains && caller.uid != 0 && !caller.in_group(dir.gid) {
        perm & !SET_GID
    } else {
        perm
    };
    (dir.gid, perm)
}
