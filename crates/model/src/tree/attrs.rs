//! Calls that change an inode: setattr, write, append, fallocate, xattrs.
//!
//! Ownership rules are those of Linux: only the superuser gives files away, an owner
//! may choose among its groups, a change of owner or group and a write by a user
//! without privilege clear set-id bits.

use super::acl::{self, is_acl};
use super::perm::{READ, SET_GID, STICKY, WRITE, privileged, without_set_id};
use super::{Body, Node, Tree, TreeResult, Xattrs};
use crate::data::FileData;
use crate::kept::Kept;
use std::sync::Arc;
use steadfast_vfs::acl::{Acl, XATTR_ACCESS};
use steadfast_vfs::{
    AllocateMode, Caller, Errno, FileKind, Ino, NAME_MAX, SetAttr, SetTime, Time, XattrMode,
};

impl Tree {
    /// Changes attributes atomically. Asking for nothing changes nothing.
    ///
    /// Errors in this order: guard (EAGAIN), size on a non-file (EISDIR, EINVAL) or too
    /// large (EFBIG) or not writable (EACCES), owner, group, mode, times (EPERM).
    pub fn setattr(
        &mut self,
        caller: &Caller,
        at: Time,
        ino: Ino,
        set: &SetAttr,
    ) -> TreeResult<()> {
        let node = self.node(ino)?;
        if set.guard.is_some_and(|g| g != node.ctime) {
            return Err(Errno::Again);
        }
        if let Some(size) = set.size {
            node.file()?;
            if !set.by_handle {
                node.may(caller, WRITE)?;
            }
            if size > self.limits.file_bytes_max {
                return Err(Errno::FBig);
            }
        }
        check_owner(node, caller, set)?;
        let asks = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
        let times = set.atime.is_some() || set.mtime.is_some();
        if !asks && !times && set.size.is_none() {
            return Ok(());
        }

        let acl = set.perm.and_then(|perm| node.acl_after_chmod(perm));
        if let Some(acl) = acl {
            self.xattrs_mut(at, ino)?.insert(XATTR_ACCESS.to_vec(), acl);
        }
        let node = self.node_mut(ino)?;
        let gid = set.gid.unwrap_or(node.gid);
        if set.size.is_some() {
            node.perm = node.perm_after_write(caller);
        }
        if let Some(perm) = set.perm {
            node.perm = perm & 0o7777;
            if caller.uid != 0 && !caller.in_group(gid) {
                node.perm &= !SET_GID;
            }
        }
        if (set.uid.is_some() || set.gid.is_some()) && !node.is_dir() {
            let in_group = caller.uid == 0 || caller.in_group(node.gid);
            node.perm = without_set_id(node.perm, in_group);
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = gid;
        if let (Some(size), Body::File(data)) = (set.size, &mut node.body) {
            data.resize(size);
            node.mtime = at;
        }
        let when = |t: SetTime| match t {
            SetTime::Now => at,
            SetTime::At(t) => t,
        };
        node.atime = set.atime.map_or(node.atime, when);
        node.mtime = set.mtime.map_or(node.mtime, when);
        node.ctime = at;
        Ok(())
    }

    /// Prepares a change of a file's content that keeps it within `end` bytes.
    fn changing(
        &mut self,
        caller: &Caller,
        at: Time,
        ino: Ino,
        end: Option<u64>,
    ) -> TreeResult<&mut FileData> {
        self.node(ino)?.file()?;
        if end.is_none_or(|e| e > self.limits.file_bytes_max) {
            return Err(Errno::FBig);
        }
        let node = self.node_mut(ino)?;
        node.perm = node.perm_after_write(caller);
        node.mtime = at;
        node.ctime = at;
        match &mut node.body {
            Body::File(data) => Ok(data),
            _ => Err(Errno::Inval),
        }
    }

    /// Writes all of `data` at `offset`. Writing nothing changes nothing.
    pub fn write(
        &mut self,
        caller: &Caller,
        at: Time,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> TreeResult<usize> {
        self.write_kept(caller, at, ino, (offset, data), None)
    }

    /// The same with bytes that are kept elsewhere, too ([`FileData::write_kept`]).
    pub fn write_kept(
        &mut self,
        caller: &Caller,
        at: Time,
        ino: Ino,
        (offset, data): (u64, &[u8]),
        kept: Option<&Kept>,
    ) -> TreeResult<usize> {
        if data.is_empty() {
            self.node(ino)?.file()?;
            return Ok(0);
        }
        let end = offset.checked_add(data.len() as u64);
        let file = self.changing(caller, at, ino, end)?;
        file.write_kept(offset, data, kept);
        Ok(data.len())
    }

    /// Writes all of `data` at the end; returns the offset it went to.
    pub fn append(&mut self, caller: &Caller, at: Time, ino: Ino, data: &[u8]) -> TreeResult<u64> {
        let offset = self.node(ino)?.file()?.size();
        self.write(caller, at, ino, offset, data)?;
        Ok(offset)
    }

    /// Changes the allocation of a range; an empty one is EINVAL.
    pub fn fallocate(
        &mut self,
        caller: &Caller,
        at: Time,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> TreeResult<()> {
        if len == 0 {
            return Err(Errno::Inval);
        }
        let end = offset.checked_add(len);
        let data = self.changing(caller, at, ino, end)?;
        match mode {
            AllocateMode::Allocate | AllocateMode::KeepSize => {}
            _ => data.zero(offset, len),
        }
        if let (AllocateMode::Allocate | AllocateMode::ZeroRange, Some(end)) = (mode, end) {
            data.resize(end.max(data.size()));
        }
        Ok(())
    }

    /// Value of an extended attribute.
    pub fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> TreeResult<&[u8]> {
        let node = self.node(ino)?;
        may_xattr(node, caller, name, READ)?;
        node.xattrs
            .get(name)
            .map(Vec::as_slice)
            .ok_or(Errno::NoData)
    }

    /// Names of the extended attributes that the caller may see.
    pub fn listxattr(&self, caller: &Caller, ino: Ino) -> TreeResult<Vec<Vec<u8>>> {
        let all = self.node(ino)?.xattrs.keys();
        let hides = |n: &[u8]| !privileged(caller) && n.starts_with(b"trusted.");
        Ok(all.filter(|n| !hides(n)).cloned().collect())
    }

    fn xattrs_mut(&mut self, at: Time, ino: Ino) -> TreeResult<&mut Xattrs> {
        let node = self.node_mut(ino)?;
        node.ctime = at;
        Ok(Arc::make_mut(&mut node.xattrs))
    }

    /// Sets an extended attribute. An access ACL sets the permission bits, too.
    pub fn setxattr(
        &mut self,
        caller: &Caller,
        at: Time,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
    ) -> TreeResult<()> {
        let acl = match is_acl(name) {
            true => match Acl::from_xattr(value).map_err(|e| e.errno)? {
                Some(acl) => Some(acl),
                None => {
                    return match self.removexattr(caller, at, ino, name) {
                        Err(Errno::NoData) => Ok(()),
                        other => other,
                    };
                }
            },
            false => None,
        };
        let node = self.node(ino)?;
        may_xattr(node, caller, name, WRITE)?;
        if acl.is_some() {
            node.may_hold(name)?;
        }
        if value.len() > self.limits.xattr_value_bytes_max {
            return Err(Errno::Range);
        }
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::Exist),
            (XattrMode::Replace, false) => return Err(Errno::NoData),
            _ => {}
        }
        let xattrs = self.xattrs_mut(at, ino)?;
        xattrs.insert(name.to_vec(), value.to_vec());
        let Some(acl) = acl.filter(|_| name == XATTR_ACCESS) else {
            return Ok(());
        };
        if !acl::is_kept(&acl) {
            xattrs.remove(name);
        }
        let node = self.node_mut(ino)?;
        node.perm = node.perm & !0o777 | acl::bits(&acl);
        if caller.uid != 0 && !caller.in_group(node.gid) {
            node.perm &= !SET_GID;
        }
        Ok(())
    }

    /// Removes an extended attribute.
    pub fn removexattr(
        &mut self,
        caller: &Caller,
        at: Time,
        ino: Ino,
        name: &[u8],
    ) -> TreeResult<()> {
        let node = self.node(ino)?;
        may_xattr(node, caller, name, WRITE)?;
        if !node.xattrs.contains_key(name) {
            return Err(Errno::NoData);
        }
        self.xattrs_mut(at, ino)?.remove(name);
        Ok(())
    }
}

/// The ownership rules of chown, chgrp, chmod and utimes.
fn check_owner(node: &Node, caller: &Caller, set: &SetAttr) -> TreeResult<()> {
    let owner = node.owned_by(caller);
    let really_owner = caller.uid == node.uid;
    if let Some(uid) = set.uid
        && !privileged(caller)
        && !(really_owner && uid == node.uid)
    {
        return Err(Errno::Perm);
    }
    if let Some(gid) = set.gid
        && !privileged(caller)
        && !(really_owner && (caller.in_group(gid) || gid == node.gid))
    {
        return Err(Errno::Perm);
    }
    if set.perm.is_some() {
        if node.kind == FileKind::Symlink {
            return Err(Errno::OpNotSupp);
        }
        if !owner {
            return Err(Errno::Perm);
        }
    }
    let times = [set.atime, set.mtime];
    if times.iter().any(|t| matches!(t, Some(SetTime::At(_)))) && !owner {
        return Err(Errno::Perm);
    }
    // A truncation brings its own mtime; being allowed to write is enough for "now".
    if times.iter().any(Option::is_some) && !owner && set.size.is_none() {
        node.may(caller, WRITE)?;
    }
    Ok(())
}

/// Whether the caller may read or write an attribute of this name: the namespaces
/// are `user.` (files and directories, by mode), `trusted.` (the superuser),
/// `security.` (everyone reads, the superuser writes), and the two ACLs of `system.` (everyone reads, the
/// owner writes; not for symbolic links). Others: EOPNOTSUPP. A namespace
/// without a name in it: EINVAL.
fn may_xattr(node: &Node, caller: &Caller, name: &[u8], mask: u16) -> TreeResult<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
        return Err(Errno::Range);
    }
    if [&b"user."[..], b"trusted.", b"security."].contains(&name) {
        return Err(Errno::Inval);
    }
    let writes = mask == WRITE;
    if is_acl(name) {
        return match node.kind {
            FileKind::Symlink => Err(Errno::OpNotSupp),
            _ if writes && !node.owned_by(caller) => Err(Errno::Perm),
            _ => Ok(()),
        };
    }
    let refuse = Err(if writes { Errno::Perm } else { Errno::NoData });
    if name.starts_with(b"trusted.") {
        return if privileged(caller) { Ok(()) } else { refuse };
    }
    if name.starts_with(b"security.") {
        return if writes && !privileged(caller) {
            Err(Errno::Perm)
        } else {
            Ok(())
        };
    }
    if !name.starts_with(b"user.") {
        return Err(Errno::OpNotSupp);
    }
    if !matches!(node.kind, FileKind::Regular | FileKind::Directory) {
        return refuse;
    }
    if writes && node.is_dir() && node.perm & STICKY != 0 && !node.owned_by(caller) {
        return Err(Errno::Perm);
    }
    node.may(caller, mask)
}
