//! Requests for names and attributes, carried out on the file system: lookup, make, link, rename,
//! remove; attributes, extended attributes, listings without attributes.

use steadfast_fuse_wire::Errno;
use steadfast_vfs::acl;
use steadfast_vfs::{Attr, Caller, DirEntry, FileSystem, Ino, NewNode, SetAttr};

use crate::convert;
use crate::identity::Requester;
use crate::server::Server;
use crate::values::{Changes, NewMode, Node};

/// Whether this is the name of a POSIX ACL.
fn is_acl(name: &[u8]) -> bool {
    name == acl::XATTR_ACCESS || name == acl::XATTR_DEFAULT
}

impl Server {
    /// A call whose result, found in `parent`, gives the kernel a reference to an inode.
    pub(crate) fn reference(
        &self,
        what: &'static str,
        caller: &Caller,
        parent: Ino,
        call: impl FnOnce(&dyn FileSystem) -> steadfast_vfs::Result<Attr>,
    ) -> Result<Attr, Errno> {
        self.shared.call(what, |fs| {
            let attr = call(fs)?;
            self.shared.nodes.remember(fs, caller, &attr, parent)?;
            Ok(attr)
        })
    }

    /// The caller of a call that makes an inode of this mode.
    pub(crate) fn maker(&self, request: &Requester, new: NewMode) -> Caller {
        const S_ISGID: u32 = 0o2000;
        let caller = if new.mode & S_ISGID != 0 {
            self.identity.owner(request)
        } else {
            self.identity.caller(request)
        };
        Caller {
            umask: (new.umask & 0o777) as u16,
            ..caller
        }
    }

    /// Attribute names that are passed on: names outside the namespaces do not exist, and no caller may
    /// believe to have set an ACL that the kernel does not enforce.
    fn offered<'a>(&self, name: &'a [u8]) -> Result<&'a [u8], Errno> {
        [&b"user."[..], b"trusted.", b"security."]
            .iter()
            .any(|space| name.starts_with(space))
            .then_some(name)
            .or(Some(name).filter(|name| is_acl(name) && self.policy.acl()))
            .ok_or(Errno::OPNOTSUPP)
    }

    pub(crate) fn found(
        &self,
        request: &Requester,
        parent: Node,
        name: &[u8],
    ) -> Result<Attr, Errno> {
        let (caller, parent) = (self.identity.reader(request), self.ino(parent));
        self.reference("lookup", &caller, parent, |fs| match name {
            // The kernel opens a file handle of an inode that it does not know: of any kind. One
            // without names is only kept for a reference that the kernel has given up.
            b"." => match fs.getattr(&caller, parent)? {
                attr if attr.nlink > 0 => Ok(attr),
                _ => Err(steadfast_vfs::Errno::Stale.into()),
            },
            name => fs.lookup(&caller, parent, name),
        })
    }

    pub(crate) fn made(
        &self,
        request: &Requester,
        parent: Node,
        name: &[u8],
        mode: NewMode,
        rdev: u32,
    ) -> Result<Attr, Errno> {
        let kind = convert::node_kind(mode.mode).ok_or(Errno::INVAL)?;
        let (caller, parent) = (self.maker(request, mode), self.ino(parent));
        let node = NewNode {
            kind,
            perm: convert::perm(mode.mode),
            rdev,
        };
        self.reference("mknod", &caller, parent, |fs| {
            let made = fs.mknod(&caller, parent, name, &node)?;
            self.changed_names(fs, &caller, &[parent])?;
            Ok(made)
        })
    }

    pub(crate) fn made_directory(
        &self,
        request: &Requester,
        parent: Node,
        name: &[u8],
        mode: NewMode,
    ) -> Result<Attr, Errno> {
        let (caller, parent) = (self.maker(request, mode), self.ino(parent));
        self.reference("mkdir", &caller, parent, |fs| {
            let perm = convert::perm(mode.mode);
            let made = fs.mkdir(&caller, parent, name, perm)?;
            self.changed_names(fs, &caller, &[parent])?;
            Ok(made)
        })
    }

    pub(crate) fn made_symlink(
        &self,
        request: &Requester,
        parent: Node,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr, Errno> {
        let (caller, parent) = (self.identity.caller(request), self.ino(parent));
        self.reference("symlink", &caller, parent, |fs| {
            let made = fs.symlink(&caller, parent, name, target)?;
            self.changed_names(fs, &caller, &[parent])?;
            Ok(made)
        })
    }

    pub(crate) fn target(&self, request: &Requester, node: Node) -> Result<Vec<u8>, Errno> {
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        let target = self
            .shared
            .call("readlink", |fs| fs.readlink(&caller, ino))?;
        self.accessed(&caller, ino);
        Ok(target)
    }

    pub(crate) fn linked(
        &self,
        request: &Requester,
        node: Node,
        (parent, name): (Node, &[u8]),
    ) -> Result<Attr, Errno> {
        let parent = self.ino(parent);
        self.identity.streams().changes_below(request, parent);
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        self.reference("link", &caller, parent, |fs| {
            let made = fs.link(&caller, ino, parent, name)?;
            self.changed_names(fs, &caller, &[parent])?;
            Ok(made)
        })
    }

    pub(crate) fn unlinked(
        &self,
        request: &Requester,
        parent: Node,
        name: &[u8],
    ) -> Result<(), Errno> {
        let (caller, parent) = (self.identity.caller(request), self.ino(parent));
        self.shared.call("unlink", |fs| {
            fs.unlink(&caller, parent, name)?;
            self.changed_names(fs, &caller, &[parent])
        })
    }

    pub(crate) fn removed_directory(
        &self,
        request: &Requester,
        parent: Node,
        name: &[u8],
    ) -> Result<(), Errno> {
        let (caller, parent) = (self.identity.caller(request), self.ino(parent));
        self.shared.call("rmdir", |fs| {
            fs.rmdir(&caller, parent, name)?;
            self.changed_names(fs, &caller, &[parent])
        })
    }

    pub(crate) fn renamed(
        &self,
        request: &Requester,
        (parent, name): (Node, &[u8]),
        (new_parent, new_name): (Node, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let mode = convert::rename_mode(flags).ok_or(Errno::INVAL)?;
        let from = (self.ino(parent), name);
        let to = (self.ino(new_parent), new_name);
        let streams = self.identity.streams();
        streams.changes_below(request, to.0);
        let caller = self.identity.caller(request);
        self.shared.call("rename", |fs| {
            fs.rename(&caller, from, to, mode)?;
            if streams.has_directories()
                && let Ok(moved) = fs.lookup(&caller, to.0, to.1)
            {
                self.shared.nodes.set_parent(moved.ino, to.0);
            }
            self.changed_names(fs, &caller, &[from.0, to.0])
        })
    }

    pub(crate) fn attributes(&self, request: &Requester, node: Node) -> Result<Attr, Errno> {
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        self.shared.call("getattr", |fs| fs.getattr(&caller, ino))
    }

    pub(crate) fn changed(
        &self,
        request: &Requester,
        node: Node,
        changes: &Changes,
    ) -> Result<Attr, Errno> {
        let Changes { mode, uid, gid, .. } = *changes;
        let decided_by_groups = mode.is_some() || uid.is_some() || gid.is_some();
        let caller = if decided_by_groups {
            self.identity.owner(request)
        } else {
            self.identity.caller(request)
        };
        let ino = self.ino(node);
        let set = SetAttr {
            perm: mode.map(convert::perm),
            uid,
            gid,
            size: changes.size,
            atime: changes.atime,
            mtime: changes.mtime,
            guard: None,
            by_handle: changes.by_handle,
        };
        self.shared.call("setattr", |fs| {
            let attr = fs.setattr(&caller, ino, &set)?;
            self.changed_content(fs, &caller, ino)?;
            Ok(attr)
        })
    }

    pub(crate) fn may(&self, request: &Requester, node: Node, mask: u8) -> Result<(), Errno> {
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        self.shared
            .call("access", |fs| fs.access(&caller, ino, mask))
    }

    /// Lists a directory from `offset` on, until `take` refuses an entry.
    pub(crate) fn listed(
        &self,
        request: &Requester,
        node: Node,
        offset: u64,
        mut take: impl FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        self.shared
            .call("readdir", |fs| fs.readdir(&caller, ino, offset, &mut take))?;
        self.directory_accessed(&caller, ino);
        Ok(())
    }

    pub(crate) fn xattr(
        &self,
        request: &Requester,
        node: Node,
        name: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        if let Some(value) = self.own_attribute(request, name) {
            return value;
        }
        let name = self.offered(name)?;
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        self.shared
            .call("getxattr", |fs| fs.getxattr(&caller, ino, name))
    }

    pub(crate) fn set_xattr(
        &self,
        request: &Requester,
        node: Node,
        (name, value): (&[u8], &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let name = self.offered(name)?;
        let mode = convert::xattr_mode(flags).ok_or(Errno::INVAL)?;
        // Whether a list takes set-group-id away is decided by groups.
        let caller = match is_acl(name) {
            true => self.identity.owner(request),
            false => self.identity.caller(request),
        };
        let ino = self.ino(node);
        self.shared.call("setxattr", |fs| {
            fs.setxattr(&caller, ino, name, value, mode)?;
            self.changed_content(fs, &caller, ino)
        })
    }

    /// All names, each followed by a NUL.
    pub(crate) fn xattrs(&self, request: &Requester, node: Node) -> Result<Vec<u8>, Errno> {
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        let names = self
            .shared
            .call("listxattr", |fs| fs.listxattr(&caller, ino))?;
        let shown = |name: &Vec<u8>| self.policy.acl() || !is_acl(name);
        let ended = names
            .into_iter()
            .filter(shown)
            .flat_map(|name| name.into_iter().chain([0]));
        Ok(ended.collect())
    }

    pub(crate) fn removed_xattr(
        &self,
        request: &Requester,
        node: Node,
        name: &[u8],
    ) -> Result<(), Errno> {
        let name = self.offered(name)?;
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        self.shared.call("removexattr", |fs| {
            fs.removexattr(&caller, ino, name)?;
            self.changed_content(fs, &caller, ino)
        })
    }
}
