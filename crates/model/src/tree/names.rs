//! Calls that make and remove names: mknod, mkdir, symlink, link, unlink, rmdir.
//!
//! Order of checks, as in Linux: parent is a directory, search permission, the name
//! itself, existence, write permission, sticky bit, kind, limits. Nothing changes
//! unless all of them pass.

use super::perm::{EXEC, STICKY, WRITE, inherit, privileged};
use super::{Body, Dir, Node, Tree, TreeResult, check_name, is_dots};
use crate::data::FileData;
use std::sync::Arc;
use steadfast_vfs::{Caller, Errno, FileKind, Ino, NewNode, SYMLINK_MAX, Time};

impl Tree {
    /// Inode that `name` in `parent` names, or that the name is free. Not for `.` and `..`.
    pub(super) fn find(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> TreeResult<Option<Ino>> {
        let dir = self.search(caller, parent)?;
        check_name(name)?;
        Ok(dir.entries.get(name).map(|s| s.ino))
    }

    /// Checks that the caller may make the name, which is free.
    fn may_create(&self, caller: &Caller, parent: Ino, name: &[u8]) -> TreeResult<()> {
        let taken = is_dots(name) && self.search(caller, parent).is_ok();
        if taken || self.find(caller, parent, name)?.is_some() {
            return Err(Errno::Exist);
        }
        self.may_add(caller, parent)
    }

    /// Checks that the caller may add an entry to a directory that still exists.
    pub(super) fn may_add(&self, caller: &Caller, parent: Ino) -> TreeResult<()> {
        let dir = self.node(parent)?;
        if dir.nlink == 0 {
            return Err(Errno::NoEnt);
        }
        dir.may(caller, WRITE | EXEC)
    }

    /// Checks that the caller may remove the name of `victim`, wanted as a directory or not.
    pub(super) fn may_delete(
        &self,
        caller: &Caller,
        parent: Ino,
        victim: Ino,
        as_dir: bool,
    ) -> TreeResult<()> {
        let (dir, node) = (self.node(parent)?, self.node(victim)?);
        dir.may(caller, WRITE | EXEC)?;
        dir.may_remove(caller, node)?;
        match (as_dir, node.is_dir()) {
            (true, false) => Err(Errno::NotDir),
            (false, true) => Err(Errno::IsDir),
            _ => Ok(()),
        }
    }

    pub(super) fn touch_dir(&mut self, dir: Ino, at: Time) {
        if let Ok(node) = self.node_mut(dir) {
            node.mtime = at;
            node.ctime = at;
        }
    }

    fn make(
        &mut self,
        caller: &Caller,
        at: Time,
        (parent, name): (Ino, &[u8]),
        node: &NewNode,
        body: Body,
    ) -> TreeResult<Ino> {
        let ino = self.next_ino;
        let (gid, perm) = inherit(self.node(parent)?, caller, node.kind, node.perm & 0o7777);
        let (perm, xattrs) = self.node(parent)?.bequeath(caller, node.kind, perm);
        let is_dir = node.kind == FileKind::Directory;
        let made = Node {
            kind: node.kind,
            perm,
            uid: caller.uid,
            gid,
            nlink: if is_dir { 2 } else { 1 },
            rdev: node.rdev,
            atime: at,
            mtime: at,
            ctime: at,
            btime: at,
            xattrs: Arc::new(xattrs),
            body,
        };
        self.nodes.insert(ino, made);
        self.next_ino += 1;
        self.dir_mut(parent)?.set(name, ino);
        if is_dir {
            self.node_mut(parent)?.nlink += 1;
        }
        self.touch_dir(parent, at);
        Ok(ino)
    }

    /// Makes a regular file, device, pipe or socket.
    pub fn mknod(
        &mut self,
        caller: &Caller,
        at: Time,
        parent: Ino,
        name: &[u8],
        node: &NewNode,
    ) -> TreeResult<Ino> {
        let device = matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let body = match node.kind {
            FileKind::Directory => return Err(Errno::Perm),
            FileKind::Symlink => return Err(Errno::Inval),
            FileKind::Regular => Body::File(FileData::new()),
            _ => Body::Special,
        };
        self.may_create(caller, parent, name)?;
        let whiteout = node.kind == FileKind::CharDevice && node.rdev == 0;
        if device && !whiteout && !privileged(caller) {
            return Err(Errno::Perm);
        }
        let node = NewNode {
            rdev: if device { node.rdev } else { 0 },
            ..*node
        };
        self.make(caller, at, (parent, name), &node, body)
    }

    /// Makes a directory. Set-id bits of `perm` are ignored.
    pub fn mkdir(
        &mut self,
        caller: &Caller,
        at: Time,
        parent: Ino,
        name: &[u8],
        perm: u16,
    ) -> TreeResult<Ino> {
        self.may_create(caller, parent, name)?;
        let node = NewNode {
            kind: FileKind::Directory,
            perm: perm & (STICKY | 0o777),
            rdev: 0,
        };
        let body = Body::Dir(Arc::new(Dir::new(parent)));
        self.make(caller, at, (parent, name), &node, body)
    }

    /// Makes a symbolic link.
    pub fn symlink(
        &mut self,
        caller: &Caller,
        at: Time,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> TreeResult<Ino> {
        if target.is_empty() {
            return Err(Errno::NoEnt);
        }
        if target.len() > SYMLINK_MAX {
            return Err(Errno::NameTooLong);
        }
        if target.contains(&0) {
            return Err(Errno::Inval);
        }
        self.may_create(caller, parent, name)?;
        let node = NewNode {
            kind: FileKind::Symlink,
            perm: 0o777,
            rdev: 0,
        };
        self.make(
            caller,
            at,
            (parent, name),
            &node,
            Body::Link(Arc::from(target)),
        )
    }

    /// Makes another name for an inode.
    pub fn link(
        &mut self,
        caller: &Caller,
        at: Time,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> TreeResult<()> {
        self.node(ino)?;
        self.may_create(caller, parent, name)?;
        let limits = self.limits;
        let node = self.node_mut(ino)?;
        if node.is_dir() {
            return Err(Errno::Perm);
        }
        if node.nlink == 0 {
            return Err(Errno::NoEnt);
        }
        if node.nlink >= limits.links_max {
            return Err(Errno::MLink);
        }
        node.nlink += 1;
        node.ctime = at;
        self.dir_mut(parent)?.set(name, ino);
        self.touch_dir(parent, at);
        Ok(())
    }

    /// Takes one name from an inode that is no directory, all from one that is.
    pub(super) fn drop_name(&mut self, at: Time, ino: Ino) -> TreeResult<()> {
        let node = self.node_mut(ino)?;
        node.nlink = if node.is_dir() {
            0
        } else {
            node.nlink.saturating_sub(1)
        };
        node.ctime = at;
        self.reap(ino);
        Ok(())
    }

    /// Removes the name of anything but a directory.
    pub fn unlink(
        &mut self,
        caller: &Caller,
        at: Time,
        parent: Ino,
        name: &[u8],
    ) -> TreeResult<()> {
        if is_dots(name) {
            self.search(caller, parent)?;
            return Err(Errno::IsDir);
        }
        let victim = self.find(caller, parent, name)?.ok_or(Errno::NoEnt)?;
        self.may_delete(caller, parent, victim, false)?;
        self.dir_mut(parent)?.unset(name);
        self.touch_dir(parent, at);
        self.drop_name(at, victim)
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, caller: &Caller, at: Time, parent: Ino, name: &[u8]) -> TreeResult<()> {
        if is_dots(name) {
            self.search(caller, parent)?;
            return Err(if name == b"." {
                Errno::Inval
            } else {
                Errno::NotEmpty
            });
        }
        let victim = self.find(caller, parent, name)?.ok_or(Errno::NoEnt)?;
        self.may_delete(caller, parent, victim, true)?;
        if !self.node(victim)?.dir()?.entries.is_empty() {
            return Err(Errno::NotEmpty);
        }
        self.dir_mut(parent)?.unset(name);
        self.node_mut(parent)?.nlink -= 1;
        self.touch_dir(parent, at);
        self.drop_name(at, victim)
    }
}
