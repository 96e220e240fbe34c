//! POSIX ACLs: rights, relation of mode and list, inheritance.
//!
//! A list is an extended attribute in the form of [`steadfast_vfs::acl`]. An access ACL that says no more than
//! the mode is not kept.

use super::{Node, TreeResult, Xattrs};
use steadfast_vfs::acl::{Acl, Who, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{Caller, Errno, FileKind};

/// Whether this is the name of an ACL.
pub(super) fn is_acl(name: &[u8]) -> bool {
    name == XATTR_ACCESS || name == XATTR_DEFAULT
}

fn of(node: &Node, name: &[u8]) -> Option<Acl> {
    let value = node.xattrs.get(name)?;
    Acl::from_xattr(value).ok().flatten()
}

fn perm(acl: &Acl, who: Who) -> u16 {
    acl.perm(who).unwrap_or(0).into()
}

/// Entry that the group bits of the mode show.
fn middle(acl: &Acl) -> Who {
    if acl.perm(Who::Mask).is_some() {
        Who::Mask
    } else {
        Who::OwningGroup
    }
}

/// The permission bits that go with an access ACL.
pub(super) fn bits(acl: &Acl) -> u16 {
    perm(acl, Who::Owner) << 6 | perm(acl, middle(acl)) << 3 | perm(acl, Who::Other)
}

fn with_bits(mut acl: Acl, bits: u16) -> Acl {
    let group = middle(&acl);
    acl.set_perm(Who::Owner, (bits >> 6 & 7) as u8);
    acl.set_perm(group, (bits >> 3 & 7) as u8);
    acl.set_perm(Who::Other, (bits & 7) as u8);
    acl
}

/// Whether an access ACL is kept beside its [`bits`].
pub(super) fn is_kept(acl: &Acl) -> bool {
    acl.perm(Who::Mask).is_some()
}

impl Node {
    /// Whether the access ACL lets the caller do all of `mask`; none if the mode decides: for the owner,
    /// and if the mask is empty.
    pub(super) fn acl_permits(&self, caller: &Caller, mask: u16) -> Option<bool> {
        if caller.uid == self.uid || self.perm & 0o070 == 0 {
            return None;
        }
        let acl = of(self, XATTR_ACCESS)?;
        let limit = acl.perm(Who::Mask).map_or(7, u16::from);
        if let Some(named) = acl.perm(Who::User(caller.uid)) {
            return Some(mask & u16::from(named) & limit == mask);
        }
        let groups: Vec<u16> = acl
            .entries()
            .iter()
            .filter(|entry| match entry.who {
                Who::OwningGroup => caller.in_group(self.gid),
                Who::Group(gid) => caller.in_group(gid),
                _ => false,
            })
            .map(|entry| u16::from(entry.perm))
            .collect();
        Some(match groups.is_empty() {
            true => perm(&acl, Who::Other) & mask == mask,
            false => limit & mask == mask && groups.iter().any(|perm| perm & mask == mask),
        })
    }

    /// The access ACL after a change of mode, if there is one.
    pub(super) fn acl_after_chmod(&self, perm: u16) -> Option<Vec<u8>> {
        let acl = of(self, XATTR_ACCESS)?;
        Some(with_bits(acl, perm).to_xattr())
    }

    /// Permission bits and attributes of a new inode in this directory.
    pub(super) fn bequeath(&self, caller: &Caller, kind: FileKind, perm: u16) -> (u16, Xattrs) {
        let mut xattrs = Xattrs::new();
        if kind == FileKind::Symlink {
            return (perm, xattrs);
        }
        let Some(default) = of(self, XATTR_DEFAULT) else {
            return (perm & !(caller.umask & 0o777), xattrs);
        };
        let allowed = perm & bits(&default);
        let access = with_bits(default.clone(), allowed);
        if is_kept(&access) {
            xattrs.insert(XATTR_ACCESS.to_vec(), access.to_xattr());
        }
        if kind == FileKind::Directory {
            xattrs.insert(XATTR_DEFAULT.to_vec(), default.to_xattr());
        }
        (perm & !0o777 | allowed, xattrs)
    }

    /// Checks that an ACL of this name can be set here.
    pub(super) fn may_hold(&self, name: &[u8]) -> TreeResult<()> {
        if name == XATTR_DEFAULT && !self.is_dir() {
            return Err(Errno::Access);
        }
        Ok(())
    }
}
