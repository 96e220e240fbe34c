//! Permissions, as Linux decides them. Every file system asks here, so that all decide alike.
//!
//! Pure functions on a [`Subject`], the part of an inode that decides: access modes, the sticky rule, flags,
//! names; in [`attrs`] the ownership rules and set-id bits, in [`born`] what a new inode gets from its
//! directory, in [`rename`] the order of a rename's checks, in [`xattr`] the namespaces of attributes.
//!
//! An access ACL is an argument where it decides ([`asks_acl`]); the file system fetches it.
//!
//! If a caller is `checked`, the front end has decided about access already; the effects of the
//! identity (set-id bits, the new inode's group) are always decided here.

pub mod attrs;
pub mod born;
pub mod rename;
pub mod xattr;

use crate::acl::Acl;
use crate::{Caller, Errno, FileKind, InodeFlags, NAME_MAX, Result, SYMLINK_MAX};

/// Execute or search.
pub const EXEC: u8 = 1;
/// Write.
pub const WRITE: u8 = 2;
/// Read.
pub const READ: u8 = 4;

/// Set-user-id bit.
pub const SET_UID: u16 = 0o4000;
/// Set-group-id bit.
pub const SET_GID: u16 = 0o2000;
/// Sticky bit.
pub const STICKY: u16 = 0o1000;
/// The bits that chmod may set.
pub const PERM_BITS: u16 = 0o7777;

/// Execute bit of the group.
const GROUP_EXEC: u16 = 0o010;
/// Permission bits of the group, which limit the rights of an access ACL.
const GROUP: u16 = 0o070;

/// Properties of an inode that decide about access to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subject {
    /// Kind of the inode.
    pub kind: FileKind,
    /// The 12 permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Flags.
    pub flags: InodeFlags,
    /// Size in bytes; it counts for regular files only.
    pub size: u64,
}

impl Subject {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// Whether the caller has the rights of root.
pub(crate) fn is_privileged(caller: &Caller) -> bool {
    caller.uid == 0 || caller.checked
}

/// Whether an access ACL of the inode would decide about the caller's rights. As in Linux, a list
/// whose mask is empty counts for nothing.
#[must_use]
pub fn asks_acl(caller: &Caller, inode: &Subject) -> bool {
    caller.uid != 0 && caller.uid != inode.uid && inode.perm & GROUP != 0
}

/// Whether the caller's identity has all of `mask`, also if it is `checked`. `acl` is the access ACL if
/// there is one and it decides ([`asks_acl`]).
///
/// # Errors
/// EACCES.
pub fn access(caller: &Caller, inode: &Subject, acl: Option<&Acl>, mask: u8) -> Result<()> {
    let permits = match acl {
        Some(acl) => acl.permits(caller, inode.gid, mask & 7),
        None => u16::from(mask & 7) & !granted(caller, inode) == 0,
    };
    match permits {
        true => Ok(()),
        false => Err(Errno::Access.into()),
    }
}

/// Rights that the mode gives to the caller, in the last three bits.
fn granted(caller: &Caller, inode: &Subject) -> u16 {
    if caller.uid == 0 {
        // Root may do everything, but may execute only files that some user may execute.
        let executable = inode.is_dir() || inode.perm & 0o111 != 0;
        if executable { 7 } else { 6 }
    } else if caller.uid == inode.uid {
        inode.perm >> 6
    } else if caller.in_group(inode.gid) {
        inode.perm >> 3
    } else {
        inode.perm
    }
}

/// Whether flags allow to change attributes or names of the inode, or to remove entries of it.
///
/// # Errors
/// EPERM.
pub fn not_fixed(inode: &Subject) -> Result<()> {
    match inode.flags.has(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        true => Err(Errno::Perm.into()),
        false => Ok(()),
    }
}

/// Whether flags allow to add to the inode: bytes at its end, or entries.
///
/// # Errors
/// EPERM.
pub fn may_grow(inode: &Subject) -> Result<()> {
    match inode.flags.has(InodeFlags::IMMUTABLE) {
        true => Err(Errno::Perm.into()),
        false => Ok(()),
    }
}

/// Whether flags allow to change the content of the inode from `offset` on.
///
/// # Errors
/// EPERM.
pub fn may_write_at(inode: &Subject, offset: u64) -> Result<()> {
    match offset < inode.size {
        true => not_fixed(inode),
        false => may_grow(inode),
    }
}

/// Whether the caller may set these flags: the owner sets flags, only root those that bind the owner.
///
/// # Errors
/// EOPNOTSUPP unless the inode is a file or a directory, EPERM.
pub fn may_set_flags(caller: &Caller, inode: &Subject, flags: InodeFlags) -> Result<()> {
    require_flags(inode.kind)?;
    let binding = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    let binds = inode.flags.differing(flags).has(binding);
    if !is_privileged(caller) && (caller.uid != inode.uid || binds) {
        return Err(Errno::Perm.into());
    }
    Ok(())
}

/// Whether inodes of this kind have flags.
///
/// # Errors
/// EOPNOTSUPP.
pub fn require_flags(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Regular | FileKind::Directory => Ok(()),
        _ => Err(Errno::OpNotSupp.into()),
    }
}

/// Whether a sticky directory lets the caller remove or rename `victim` in it.
///
/// # Errors
/// EPERM.
pub fn sticky(caller: &Caller, dir: &Subject, victim: &Subject) -> Result<()> {
    let free = dir.perm & STICKY == 0
        || is_privileged(caller)
        || caller.uid == dir.uid
        || caller.uid == victim.uid;
    match free {
        true => Ok(()),
        false => Err(Errno::Perm.into()),
    }
}

/// Whether the caller may remove an entry of `dir` that names `victim`, of which it is said whether it is
/// to be a directory. The caller has been found to have write permission; whether a directory is empty remains.
///
/// # Errors
/// EPERM, EISDIR, ENOTDIR.
pub fn may_remove(caller: &Caller, dir: &Subject, victim: &Subject, as_dir: bool) -> Result<()> {
    not_fixed(dir)?;
    not_fixed(victim)?;
    sticky(caller, dir, victim)?;
    match (as_dir, victim.is_dir()) {
        (false, true) => Err(Errno::IsDir.into()),
        (true, false) => Err(Errno::NotDir.into()),
        _ => Ok(()),
    }
}

/// `.` and `..`, which no operation makes or removes.
#[must_use]
#[inline]
pub fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Checks that `name` can name an entry of a directory. `.` and `..` pass: each call decides on them.
///
/// # Errors
/// ENOENT for the empty name, ENAMETOOLONG, EINVAL for bytes that cannot be in a name.
#[inline]
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Errno::NoEnt.into());
    }
    if name.len() > NAME_MAX {
        return Err(Errno::NameTooLong.into());
    }
    // Without a branch for each byte: names are short.
    let bad = |bad, byte: &u8| bad | (*byte == 0) | (*byte == b'/');
    match name.iter().fold(false, bad) {
        true => Err(Errno::Inval.into()),
        false => Ok(()),
    }
}

/// Checks that a symbolic link can have this target.
///
/// # Errors
/// ENOENT for the empty target, ENAMETOOLONG, EINVAL.
pub fn check_target(target: &[u8]) -> Result<()> {
    if target.is_empty() {
        return Err(Errno::NoEnt.into());
    }
    if target.len() > SYMLINK_MAX {
        return Err(Errno::NameTooLong.into());
    }
    match target.contains(&0) {
        true => Err(Errno::Inval.into()),
        false => Ok(()),
    }
}

/// Checks that an inode has file data.
///
/// # Errors
/// EISDIR for a directory, EINVAL for other kinds.
pub fn require_file(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::IsDir.into()),
        _ => Err(Errno::Inval.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;

    pub(super) fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller {
            uid,
            gid,
            groups: Arc::from(groups),
            ..Caller::root()
        }
    }

    fn inode(kind: FileKind, perm: u16, uid: u32, gid: u32) -> Subject {
        Subject {
            kind,
            perm,
            uid,
            gid,
            flags: InodeFlags::NONE,
            size: 0,
        }
    }

    pub(super) fn file(perm: u16, uid: u32, gid: u32) -> Subject {
        inode(FileKind::Regular, perm, uid, gid)
    }

    pub(super) fn dir(perm: u16, uid: u32, gid: u32) -> Subject {
        inode(FileKind::Directory, perm, uid, gid)
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = file(0o074, 1, 2);
        assert!(
            access(&caller(1, 2, &[]), &file, None, READ).is_err(),
            "the owner has nothing"
        );
        assert!(access(&caller(3, 9, &[2]), &file, None, READ | WRITE | EXEC).is_ok());
        assert!(access(&caller(3, 9, &[]), &file, None, READ).is_ok());
        assert!(access(&caller(3, 9, &[]), &file, None, WRITE).is_err());
    }

    #[test]
    fn root_executes_only_files_with_an_execute_bit() {
        let may = |inode: &Subject, mask| access(&caller(0, 0, &[]), inode, None, mask).is_ok();
        assert!(may(&file(0o600, 1, 1), READ | WRITE));
        assert!(!may(&file(0o600, 1, 1), EXEC));
        assert!(may(&file(0o601, 1, 1), EXEC));
        assert!(may(&dir(0, 1, 1), EXEC));
    }

    #[test]
    fn a_sticky_directory_protects_other_peoples_files() {
        let (dir, file) = (dir(0o1777, 1, 1), file(0o644, 2, 2));
        assert!(sticky(&caller(3, 3, &[]), &dir, &file).is_err());
        for uid in [0, 1, 2] {
            assert!(sticky(&caller(uid, 3, &[]), &dir, &file).is_ok());
        }
    }

    #[test]
    fn flags_bind_everybody_and_only_root_sets_those_that_bind() {
        let plain = file(0o644, 5, 5);
        let grows = Subject {
            flags: InodeFlags::APPEND,
            size: 10,
            ..plain
        };
        assert!(may_write_at(&grows, 9).is_err() && may_write_at(&grows, 10).is_ok());
        let fixed = Subject {
            flags: InodeFlags::IMMUTABLE,
            ..plain
        };
        assert!(may_write_at(&fixed, 0).is_err() && not_fixed(&fixed).is_err());
        let owner = caller(5, 5, &[]);
        assert!(may_set_flags(&owner, &plain, InodeFlags::NODUMP).is_ok());
        assert!(may_set_flags(&owner, &plain, InodeFlags::IMMUTABLE).is_err());
        assert!(may_set_flags(&owner, &grows, InodeFlags::NONE).is_err());
        assert!(may_set_flags(&caller(6, 6, &[]), &plain, InodeFlags::NODUMP).is_err());
        assert!(may_set_flags(&caller(0, 0, &[]), &grows, InodeFlags::NONE).is_ok());
    }

    #[test]
    fn names_and_targets_have_limits() {
        let errno = |result: Result<()>| result.map_err(|e| e.errno);
        assert_eq!(errno(check_name(b"")), Err(Errno::NoEnt));
        assert_eq!(errno(check_name(&[b'n'; 255])), Ok(()));
        assert_eq!(errno(check_name(&[b'n'; 256])), Err(Errno::NameTooLong));
        assert_eq!(errno(check_name(b"a/b")), Err(Errno::Inval));
        assert_eq!(errno(check_name(b"a\0")), Err(Errno::Inval));
        assert_eq!(errno(check_target(b"")), Err(Errno::NoEnt));
        assert_eq!(errno(check_target(&[b't'; 4095])), Ok(()));
        assert_eq!(errno(check_target(&[b't'; 4096])), Err(Errno::NameTooLong));
        assert_eq!(errno(check_target(b"a\0")), Err(Errno::Inval));
    }
}
