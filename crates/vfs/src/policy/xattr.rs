//! Extended attributes: their namespaces as on Linux. `user.*` is for regular files and directories, by
//! permission; `trusted.*` for root only; `security.*` for all to read and root to write; the two ACLs of
//! `system.*` for all to read and the owner to write. Others are EOPNOTSUPP.

use super::{STICKY, Subject, is_privileged};
use crate::acl::{XATTR_ACCESS, XATTR_DEFAULT};
use crate::{Caller, Errno, FileKind, NAME_MAX, Result};

/// Prefixes of the names of attributes that are no ACL.
pub const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Whether this is the name of an ACL.
#[must_use]
pub fn is_acl(name: &[u8]) -> bool {
    name == XATTR_ACCESS || name == XATTR_DEFAULT
}

/// Checks that `name` can be the name of an attribute.
///
/// # Errors
/// ERANGE for its length or a NUL, EINVAL for a prefix alone, EOPNOTSUPP for another namespace.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
        return Err(Errno::Range.into());
    }
    if is_acl(name) {
        return Ok(());
    }
    match PREFIXES.into_iter().find(|prefix| name.starts_with(prefix)) {
        Some(prefix) if name.len() == prefix.len() => Err(Errno::Inval.into()),
        Some(_) => Ok(()),
        None => Err(Errno::OpNotSupp.into()),
    }
}

/// Whether the caller may see (`write == false`) or change the attribute, as far as that does not
/// depend on permission to read or write the inode: whether that is asked for, too.
///
/// # Errors
/// EPERM, EACCES, EOPNOTSUPP, or ENODATA for an attribute that the caller may not even see.
pub fn may(caller: &Caller, inode: &Subject, name: &[u8], write: bool) -> Result<bool> {
    let denied = if write { Errno::Perm } else { Errno::NoData };
    let privileged = is_privileged(caller);
    let owner = privileged || caller.uid == inode.uid;
    if is_acl(name) {
        return match inode.kind {
            FileKind::Symlink => Err(Errno::OpNotSupp.into()),
            _ if write && !owner => Err(Errno::Perm.into()),
            _ => Ok(false),
        };
    }
    if name.starts_with(b"trusted.") {
        return match privileged {
            true => Ok(false),
            false => Err(denied.into()),
        };
    }
    if name.starts_with(b"security.") {
        return match privileged || !write {
            true => Ok(false),
            false => Err(Errno::Perm.into()),
        };
    }
    if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
        return Err(denied.into());
    }
    if write && inode.is_dir() && inode.perm & STICKY != 0 && !owner {
        return Err(Errno::Perm.into());
    }
    Ok(true)
}

/// Whether the caller sees this name in a list. Also where the front end checks: the kernel asks for one
/// name, but hides none.
#[must_use]
pub fn is_listed(caller: &Caller, name: &[u8]) -> bool {
    caller.uid == 0 || !name.starts_with(b"trusted.")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::policy::tests::{caller, dir, file};

    fn errno<T>(result: Result<T>) -> std::result::Result<T, Errno> {
        result.map_err(|e| e.errno)
    }

    #[test]
    fn a_name_has_a_namespace_and_something_in_it() {
        for name in [&b"user.a"[..], b"trusted.b", b"security.c", XATTR_ACCESS] {
            assert_eq!(errno(check_name(name)), Ok(()));
        }
        for (name, wrong) in [
            (&b""[..], Errno::Range),
            (b"user.a\0", Errno::Range),
            (&[b'u'; 256], Errno::Range),
            (b"user.", Errno::Inval),
            (b"system.posix_acl_accessible", Errno::OpNotSupp),
            (b"other.a", Errno::OpNotSupp),
        ] {
            assert_eq!(errno(check_name(name)), Err(wrong));
        }
    }

    #[test]
    fn each_namespace_has_its_rule() {
        let (owner, other) = (caller(1, 1, &[]), caller(2, 2, &[]));
        let f = file(0o666, 1, 1);
        assert_eq!(errno(may(&other, &f, b"user.a", true)), Ok(true));
        let denied = may(&owner, &f, b"trusted.a", false);
        assert_eq!(errno(denied), Err(Errno::NoData));
        let denied = may(&owner, &f, b"trusted.a", true);
        assert_eq!(errno(denied), Err(Errno::Perm));
        assert_eq!(errno(may(&other, &f, b"security.a", false)), Ok(false));
        let denied = may(&owner, &f, b"security.a", true);
        assert_eq!(errno(denied), Err(Errno::Perm));
        assert_eq!(errno(may(&owner, &f, XATTR_ACCESS, true)), Ok(false));
        let denied = may(&other, &f, XATTR_ACCESS, true);
        assert_eq!(errno(denied), Err(Errno::Perm));
        let sticky = dir(0o1777, 1, 1);
        let denied = may(&other, &sticky, b"user.a", true);
        assert_eq!(errno(denied), Err(Errno::Perm));
        let fifo = Subject {
            kind: FileKind::Fifo,
            ..f
        };
        let denied = may(&owner, &fifo, b"user.a", false);
        assert_eq!(errno(denied), Err(Errno::NoData));
        assert!(is_listed(&Caller::root(), b"trusted.a") && !is_listed(&owner, b"trusted.a"));
    }
}
