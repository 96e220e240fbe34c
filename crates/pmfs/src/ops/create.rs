//! Operations that add a name: mknod, mkdir, symlink, link; and unnamed temporary files.

use super::attributes::NewSet;
use super::locks::Locked;
use super::name::{full, refused, touch};
use super::{LINKS_MAX, exists};
use crate::fs::PmFs;
use crate::index::dir::DirIndex;
use crate::index::file::{Extent, FileIndex};
use crate::layout::{INLINE_BYTES, PageState};
use crate::state::{self, Birth, Created, FreeInode, Link, SymlinkTarget};
use crate::table::{Content, Directory, Node, State};
use crate::xattr::Attributes;
use std::sync::atomic::Ordering;
use steadfast_vfs::acl::XATTR_DEFAULT;
use steadfast_vfs::policy::born::{Born, born, inherits_acl, may_make};
use steadfast_vfs::policy::{self, EXEC, WRITE};
use steadfast_vfs::{Attr, Caller, Errno, FileKind, Ino, NewNode, Result};

/// A new inode besides its name.
#[derive(Clone, Copy)]
struct New<'a> {
    kind: FileKind,
    perm: u16,
    rdev: u32,
    target: &'a [u8],
}

/// The attributes that an inode is born with.
fn inherited(born: Born) -> Attributes {
    let mut all = Attributes::default();
    all.flags = born.flags;
    all.access = born.access;
    all.default = born.default;
    all
}

impl PmFs {
    pub(crate) fn op_mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        node: &NewNode,
    ) -> Result<Attr> {
        let rdev = match node.kind {
            FileKind::Directory => return Err(Errno::Perm.into()),
            FileKind::Symlink => return Err(Errno::Inval.into()),
            FileKind::CharDevice | FileKind::BlockDevice => node.rdev,
            _ => 0,
        };
        let new = New {
            kind: node.kind,
            perm: node.perm,
            rdev,
            target: b"",
        };
        self.create(caller, parent, name, &new)
    }

    pub(crate) fn op_mkdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
    ) -> Result<Attr> {
        // Set-id bits of a directory come from its parent only.
        let new = New {
            kind: FileKind::Directory,
            perm: perm & 0o1777,
            rdev: 0,
            target: b"",
        };
        self.create(caller, parent, name, &new)
    }

    pub(crate) fn op_symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr> {
        policy::check_target(target)?;
        let new = New {
            kind: FileKind::Symlink,
            perm: 0o777,
            rdev: 0,
            target,
        };
        self.create(caller, parent, name, &new)
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], new: &New<'_>) -> Result<Attr> {
        let dir = self.directory(parent)?;
        let mut state = dir.write();
        let hash = self.may_create(caller, &dir, &state, name)?;
        may_make(caller, new.kind, new.rdev)?;
        let born = self.born(caller, &dir, &state, new)?;
        let now = self.now();
        let mut birth = self.birth(caller, &born, new, now)?;
        if new.kind == FileKind::Symlink {
            return self.create_symlink(&dir, &mut state, (name, hash), new.target, birth);
        }
        let NewSet { bytes, form } = self.new_set(&inherited(born), true)?;
        let index = form.index();
        birth.attributes = form.newborn(&bytes);
        let room = self.room(&dir, &mut state, name)?;
        let created = state::create(self.medium(), birth, room, touch(dir.inode, now));
        let created = created.map_err(refused)?;
        let content = match new.kind {
            FileKind::Directory => {
                state.links += 1;
                directory(dir.inode.number)
            }
            _ => Content::default(),
        };
        Ok(self.enter(&dir, &mut state, hash, created, new.kind, content, index))
    }

    /// Enters a new inode in the table and its name in the directory.
    #[expect(clippy::too_many_arguments, reason = "both halves of what was made")]
    fn enter(
        &self,
        dir: &Node,
        state: &mut State,
        hash: u64,
        created: Created,
        kind: FileKind,
        content: Content,
        attributes: Option<Box<FileIndex>>,
    ) -> Attr {
        let node = self.table().insert(Node::new(
            created.inode,
            kind,
            State {
                links: if kind == FileKind::Directory { 2 } else { 1 },
                content,
                attributes,
                ..State::default()
            },
        ));
        self.entered(dir, state, hash, created.placed);
        self.attr(&node, &node.read())
    }

    fn create_symlink(
        &self,
        dir: &Node,
        state: &mut State,
        (name, hash): (&[u8], u64),
        target: &[u8],
        birth: Birth<'_, '_>,
    ) -> Result<Attr> {
        let mut pages = FileIndex::new();
        let target = match target.len() <= INLINE_BYTES {
            true => SymlinkTarget::Inline(target),
            false => {
                let mut page = self.free()?.pages(1, None).ok_or_else(full)?;
                let page = page.pop().ok_or_else(full)?;
                pages.insert(Extent {
                    offset: 0,
                    page: page.start(),
                    len: 1,
                    state: PageState::Written,
                });
                SymlinkTarget::Page { page, target }
            }
        };
        let room = self.room(dir, state, name)?;
        let touch = touch(dir.inode, birth.now);
        let created = state::symlink(self.medium(), birth, target, room, touch);
        let created = created.map_err(refused)?;
        let content = Content::Pages(pages);
        Ok(self.enter(dir, state, hash, created, FileKind::Symlink, content, None))
    }

    /// What a new inode gets from its directory.
    fn born(&self, caller: &Caller, dir: &Node, state: &State, new: &New<'_>) -> Result<Born> {
        let disk = self.disk(dir);
        let default = match inherits_acl(new.kind) {
            true => self.acl_of(dir, state, &disk, XATTR_DEFAULT)?,
            false => None,
        };
        let subject = self.subject(dir, state, &disk)?;
        Ok(born(caller, &subject, new.kind, new.perm, default.as_ref()))
    }

    fn birth(
        &self,
        caller: &Caller,
        born: &Born,
        new: &New<'_>,
        now: u64,
    ) -> Result<Birth<'_, '_>> {
        Ok(Birth {
            inode: self.free_inode()?,
            kind: new.kind,
            perm: born.perm,
            uid: caller.uid,
            gid: born.gid,
            size_or_rdev: match new.kind {
                FileKind::Symlink => new.target.len() as u64,
                _ => new.rdev.into(),
            },
            now,
            attributes: None,
        })
    }

    fn free_inode(&self) -> Result<FreeInode<'_>> {
        self.free()?.inode(self.medium()).ok_or_else(full)
    }

    /// The birth of a whiteout in a directory.
    pub(super) fn whiteout(
        &self,
        caller: &Caller,
        dir: &Node,
        state: &State,
        now: u64,
    ) -> Result<Birth<'_, '_>> {
        let new = New {
            kind: FileKind::CharDevice,
            perm: 0,
            rdev: 0,
            target: b"",
        };
        let subject = self.subject(dir, state, &self.disk(dir))?;
        let born = born(caller, &subject, new.kind, new.perm, None);
        self.birth(caller, &born, &new, now)
    }

    /// Makes a regular file without a name, in the directory that it may get one in (`O_TMPFILE`), and opens it. Its last
    /// [`release`](steadfast_vfs::FileSystem::release) frees it, unless [`link`](steadfast_vfs::FileSystem::link) has
    /// named it before.
    pub(crate) fn op_tmpfile(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Attr> {
        let dir = self.directory(parent)?;
        let state = dir.read();
        exists(&dir, &state)?;
        let disk = self.search(caller, &dir, &state)?;
        super::has_name(&state)?;
        policy::may_grow(&self.subject(&dir, &state, &disk)?)?;
        self.require(caller, &dir, &state, &disk, WRITE | EXEC)?;
        let new = New {
            kind: FileKind::Regular,
            perm,
            rdev: 0,
            target: b"",
        };
        let born = self.born(caller, &dir, &state, &new)?;
        let mut birth = self.birth(caller, &born, &new, self.now())?;
        let NewSet { bytes, form } = self.new_set(&inherited(born), true)?;
        let attributes = form.index();
        birth.attributes = form.newborn(&bytes);
        let orphan = state::nameless(self.medium(), birth).map_err(refused)?;
        let node = Node::new(
            orphan.inode(),
            FileKind::Regular,
            State {
                attributes,
                orphan: Some(orphan),
                linkable: true,
                ..State::default()
            },
        );
        node.opens.store(1, Ordering::Release);
        let node = self.table().insert(node);
        let attr = self.attr(&node, &node.read());
        Ok(attr)
    }

    pub(crate) fn op_link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<Attr> {
        const INODE: usize = 0;
        const DIR: usize = 1;
        let node = self.node(ino)?;
        let dir = self.directory(parent)?;
        let mut locked = Locked::lock([&*node, &*dir]);
        exists(&node, locked.look(INODE))?;
        let hash = self.may_create(caller, &dir, locked.look(DIR), name)?;
        let disk = self.disk(&node);
        let state = locked.look(INODE);
        if disk.is_dir() {
            return Err(Errno::Perm.into());
        }
        policy::not_fixed(&self.subject(&node, state, &disk)?)?;
        if state.links == 0 && !state.linkable {
            return Err(Errno::NoEnt.into());
        }
        if state.links >= LINKS_MAX {
            return Err(Errno::MLink.into());
        }
        let now = self.now();
        let room = self.room(&dir, locked.state(DIR), name)?;
        let link = Link {
            inode: node.inode,
            ctime: now,
        };
        let placed = state::link(self.medium(), link, room, touch(dir.inode, now));
        let placed = placed.map_err(refused)?;
        self.entered(&dir, locked.state(DIR), hash, placed);
        let state = locked.state(INODE);
        state.links += 1;
        // It was without a name, and is no longer.
        state.orphan = None;
        state.linkable = false;
        Ok(self.attr_of(&node, state, &disk))
    }
}

/// An empty directory below `parent`.
fn directory(parent: u32) -> Content {
    Content::Directory(Box::new(Directory::new(parent, DirIndex::default())))
}
