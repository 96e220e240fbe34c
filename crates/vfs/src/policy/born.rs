//! The properties that a new inode inherits from its directory: group, permission bits, ACLs, flags.

use super::{GROUP_EXEC, PERM_BITS, SET_GID, Subject, check_target, is_privileged};
use crate::acl::Acl;
use crate::{Caller, Errno, FileKind, InodeFlags, NewNode, Result};

/// A new inode as it was asked for, besides its name.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Kind of the inode.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u16,
    /// Device number; 0 for an inode that is no device.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

impl<'a> New<'a> {
    /// Whiteout: it hides a name of a lower layer from union file systems.
    pub const WHITEOUT: New<'static> = New::plain(FileKind::CharDevice, 0);

    const fn plain(kind: FileKind, perm: u16) -> New<'static> {
        New {
            kind,
            perm,
            rdev: 0,
            target: b"",
        }
    }

    /// A regular file.
    #[must_use]
    pub fn file(perm: u16) -> New<'static> {
        New::plain(FileKind::Regular, perm)
    }

    /// The inode that `mknod` makes.
    ///
    /// # Errors
    /// EPERM for directories, EINVAL for symbolic links.
    pub fn node(node: &NewNode) -> Result<New<'static>> {
        let rdev = match node.kind {
            FileKind::Directory => return Err(Errno::Perm.into()),
            FileKind::Symlink => return Err(Errno::Inval.into()),
            FileKind::CharDevice | FileKind::BlockDevice => node.rdev,
            _ => 0,
        };
        Ok(New {
            rdev,
            ..New::plain(node.kind, node.perm)
        })
    }

    /// A directory. Its set-id bits come from its parent only.
    #[must_use]
    pub fn directory(perm: u16) -> New<'static> {
        New::plain(FileKind::Directory, perm & 0o1777)
    }

    /// A symbolic link.
    ///
    /// # Errors
    /// As [`check_target`].
    pub fn symlink(target: &'a [u8]) -> Result<New<'a>> {
        check_target(target)?;
        let new = New::plain(FileKind::Symlink, 0o777);
        Ok(New { target, ..new })
    }
}

/// A new inode besides its name, number and content. Its owner is the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Born {
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub perm: u16,
    /// Flags.
    pub flags: InodeFlags,
    /// Access ACL, if it says more than the permission bits.
    pub access: Option<Acl>,
    /// Default ACL of a directory.
    pub default: Option<Acl>,
}

/// Whether the caller may make an inode of this kind. Only root makes devices; a whiteout, the character
/// device 0, is none.
///
/// # Errors
/// EPERM.
pub fn may_make(caller: &Caller, kind: FileKind, rdev: u32) -> Result<()> {
    let device = match kind {
        FileKind::CharDevice => rdev != 0,
        FileKind::BlockDevice => true,
        _ => false,
    };
    match device && !is_privileged(caller) {
        true => Err(Errno::Perm.into()),
        false => Ok(()),
    }
}

/// Whether new inodes of this kind get ACLs from the default ACL of their directory.
#[must_use]
pub fn inherits_acl(kind: FileKind) -> bool {
    kind != FileKind::Symlink
}

/// A new inode in `parent`, which has the default ACL `default`, if it has one and the inode inherits.
/// The caller's umask counts where there is none.
#[must_use]
pub fn born(
    caller: &Caller,
    parent: &Subject,
    kind: FileKind,
    perm: u16,
    default: Option<&Acl>,
) -> Born {
    let (gid, perm) = inherit(caller, parent, perm, kind == FileKind::Directory);
    let inherited = InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::NOCOW;
    let flags = match kind {
        FileKind::Regular | FileKind::Directory => parent.flags.both(inherited),
        _ => InodeFlags::NONE,
    };
    let mut born = Born {
        gid,
        perm,
        flags,
        access: None,
        default: None,
    };
    match default {
        None if kind == FileKind::Symlink => {}
        None => born.perm &= !(caller.umask & 0o777),
        Some(default) => {
            let access = default.inherited(perm);
            born.perm = perm & !0o777 | access.perm_bits();
            born.access = (!access.is_minimal()).then_some(access);
            born.default = (kind == FileKind::Directory).then(|| default.clone());
        }
    }
    born
}

/// Group and permission bits of a new inode in `parent`.
fn inherit(caller: &Caller, parent: &Subject, perm: u16, is_dir: bool) -> (u32, u16) {
    let perm = perm & PERM_BITS;
    if parent.perm & SET_GID == 0 {
        return (caller.gid, perm);
    }
    let gid = parent.gid;
    if is_dir {
        return (gid, perm | SET_GID);
    }
    let gains = perm & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC;
    let forbidden = gains && caller.uid != 0 && !caller.in_group(gid);
    (gid, if forbidden { perm & !SET_GID } else { perm })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::acl::Who;
    use crate::acl::tests::list;
    use crate::policy::tests::{caller, dir};

    #[test]
    fn the_group_of_a_set_gid_directory_is_inherited() {
        let parent = dir(0o2777, 1, 50);
        let stranger = caller(5, 6, &[]);
        assert_eq!(inherit(&stranger, &parent, 0o755, true), (50, 0o2755));
        assert_eq!(inherit(&stranger, &parent, 0o2755, false), (50, 0o755));
        let member = caller(5, 6, &[50]);
        assert_eq!(inherit(&member, &parent, 0o2755, false), (50, 0o2755));
        let plain = dir(0o777, 1, 50);
        assert_eq!(inherit(&stranger, &plain, 0o2755, false), (6, 0o2755));
    }

    #[test]
    fn the_umask_counts_where_there_is_no_default_acl() {
        let masked = Caller {
            umask: 0o027,
            ..caller(5, 6, &[])
        };
        let parent = dir(0o777, 1, 1);
        let plain = born(&masked, &parent, FileKind::Regular, 0o666, None);
        assert_eq!((plain.gid, plain.perm), (6, 0o640));
        let link = born(&masked, &parent, FileKind::Symlink, 0o777, None);
        assert_eq!(link.perm, 0o777);
        let default = list(&[
            (Who::Owner, 7),
            (Who::User(5), 7),
            (Who::OwningGroup, 5),
            (Who::Mask, 7),
            (Who::Other, 1),
        ])
        .unwrap();
        let file = born(&masked, &parent, FileKind::Regular, 0o666, Some(&default));
        assert_eq!(file.perm, 0o660);
        assert_eq!(file.access.unwrap().perm(Who::Mask), Some(6));
        assert_eq!(file.default, None);
        let sub = born(&masked, &parent, FileKind::Directory, 0o777, Some(&default));
        assert_eq!((sub.perm, sub.default), (0o771, Some(default)));
    }

    #[test]
    fn only_some_flags_are_inherited_and_not_by_all() {
        let parent = Subject {
            flags: InodeFlags::NODUMP | InodeFlags::APPEND,
            ..dir(0o777, 1, 1)
        };
        let flags = |kind| born(&Caller::root(), &parent, kind, 0, None).flags;
        assert_eq!(flags(FileKind::Regular), InodeFlags::NODUMP);
        assert_eq!(flags(FileKind::Fifo), InodeFlags::NONE);
    }

    #[test]
    fn users_make_whiteouts_but_no_other_device() {
        let user = caller(5, 5, &[]);
        assert!(may_make(&user, FileKind::CharDevice, 0).is_ok());
        assert!(may_make(&user, FileKind::CharDevice, 1).is_err());
        assert!(may_make(&user, FileKind::BlockDevice, 0).is_err());
        assert!(may_make(&user, FileKind::Fifo, 7).is_ok());
        assert!(may_make(&Caller::root(), FileKind::BlockDevice, 7).is_ok());
    }
}
