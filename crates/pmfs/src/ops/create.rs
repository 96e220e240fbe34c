//! Operations that add a name: mknod, mkdir, symlink, link; and unnamed temporary files.

use super::attributes::{Form, NewSet};
use super::inode::time;
use super::locks::{Locked, lock_new};
use super::name::{Parent, full, refused, touch};
use super::{LINKS_MAX, exists};
use crate::fs::PmFs;
use crate::index::dir::DirIndex;
use crate::index::file::{Extent, FileIndex};
use crate::layout::{INLINE_BYTES, PAGE_BYTES, PageState};
use crate::state::{self, Birth, Created, FreeInode, FreePages, Link, SymlinkTarget};
use crate::table::{Content, Directory, Node, State};
use crate::xattr::Attributes;
use std::sync::RwLockWriteGuard;
use std::sync::atomic::Ordering;
use steadfast_vfs::acl::XATTR_DEFAULT;
use steadfast_vfs::policy::born::{Born, New, born, inherits_acl, may_make};
use steadfast_vfs::policy::{self, EXEC, WRITE};
use steadfast_vfs::{Attr, Caller, Errno, FileKind, Ino, InodeFlags, NewNode, Result};

impl PmFs {
    pub(crate) fn op_mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        node: &NewNode,
    ) -> Result<Attr> {
        self.create(caller, parent, name, &New::node(node)?)
    }

    pub(crate) fn op_mkdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
    ) -> Result<Attr> {
        self.create(caller, parent, name, &New::directory(perm))
    }

    pub(crate) fn op_symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr> {
        self.create(caller, parent, name, &New::symlink(target)?)
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], new: &New<'_>) -> Result<Attr> {
        // Other inodes begin with the state that their place in the table already has.
        let mut locks = new.kind == FileKind::Directory || new.target.len() > INLINE_BYTES;
        loop {
            if let Some(attr) = self.create_once(caller, parent, name, new, locks)? {
                return Ok(attr);
            }
            locks = true;
        }
    }

    /// Makes an inode, with the lock of its place if `locks`. `None`: it needs that, because it inherits attributes in pages.
    fn create_once(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: &New<'_>,
        locks: bool,
    ) -> Result<Option<Attr>> {
        let dir = self.directory(parent)?;
        // Before the locks, because the lock of its place is taken in its turn.
        let Some((inode, node)) = self.free_inode(new.kind)? else {
            // Other errors come first.
            self.may_create(caller, &dir, &dir.write(), name)?;
            may_make(caller, new.kind, new.rdev)?;
            return Err(full());
        };
        let (mut state, inner) = match locks {
            true => {
                let (state, inner) = lock_new(&dir, &node)?;
                (state, Some(inner))
            }
            false => (dir.write(), None),
        };
        let parent = self.may_create(caller, &dir, &state, name)?;
        may_make(caller, new.kind, new.rdev)?;
        let born = self.born(caller, &dir, &state, &parent, new)?;
        let now = self.now();
        let mut birth = birth(caller, inode, &born, new, now);
        let attr = newborn(&birth);
        let (created, content, index) = if new.kind == FileKind::Symlink {
            let pages = self.target(new.target)?;
            let (target, content) = match pages {
                None => (SymlinkTarget::Inline(new.target), Content::default()),
                Some((page, pages)) => {
                    let target = new.target;
                    (SymlinkTarget::Page { page, target }, Content::Pages(pages))
                }
            };
            let room = self.room(&dir, &mut state, name)?;
            let touch = touch(dir.inode, now);
            let created = state::symlink(self.medium(), birth, target, room, touch);
            (created, content, None)
        } else {
            let NewSet { bytes, form } = self.inherited(born)?;
            let index = form.index();
            if index.is_some() && !locks {
                return Ok(None);
            }
            birth.attributes = form.newborn(&bytes);
            let room = self.room(&dir, &mut state, name)?;
            let created = state::create(self.medium(), birth, room, touch(dir.inode, now));
            (created, Content::default(), index)
        };
        let Created { placed, .. } = created.map_err(refused)?;
        // The fence is under way until the first locked instruction: work that needs none comes first.
        self.entered(&dir, &mut state, parent.hash, placed);
        let content = match new.kind {
            FileKind::Directory => {
                state.links += 1;
                directory(dir.inode.number)
            }
            _ => content,
        };
        let attr = enter(&node, inner, content, index, attr);
        Ok(Some(attr))
    }

    /// A page for the target of a symlink that does not fit into the inode, and the index of it. ENOSPC.
    fn target(&self, target: &[u8]) -> Result<Option<(FreePages<'_>, FileIndex)>> {
        if target.len() <= INLINE_BYTES {
            return Ok(None);
        }
        let mut page = self.free()?.pages(1, None).ok_or_else(full)?;
        let page = page.pop().ok_or_else(full)?;
        let mut pages = FileIndex::new();
        pages.insert(Extent {
            offset: 0,
            page: page.start(),
            len: 1,
            state: PageState::Written,
        });
        Ok(Some((page, pages)))
    }

    /// Attributes that a new inode gets from its directory.
    fn born(
        &self,
        caller: &Caller,
        dir: &Node<'_>,
        state: &State,
        parent: &Parent,
        new: &New<'_>,
    ) -> Result<Born> {
        let default = match inherits_acl(new.kind) {
            true => self.acl_of(dir, state, &parent.disk, XATTR_DEFAULT)?,
            false => None,
        };
        let (kind, perm) = (new.kind, new.perm);
        Ok(born(caller, &parent.subject, kind, perm, default.as_ref()))
    }

    /// The attributes that an inode is born with, with the pages that they need. ENOSPC.
    #[inline]
    fn inherited(&self, born: Born) -> Result<NewSet<'_>> {
        if born.flags == InodeFlags::NONE && born.access.is_none() && born.default.is_none() {
            return Ok(NewSet {
                bytes: Vec::new(),
                form: Form::None,
            });
        }
        let mut all = Attributes::default();
        all.flags = born.flags;
        all.access = born.access;
        all.default = born.default;
        self.new_set(&all, true)
    }

    /// A free inode, and its place in the table. `None`: there is none.
    pub(super) fn free_inode(&self, kind: FileKind) -> Result<Option<(FreeInode<'_>, Node<'_>)>> {
        let inode = self.free()?.inode(self.medium());
        Ok(inode.and_then(|inode| {
            let node = self.table().place(inode.inode(), kind, false)?;
            Some((inode, node))
        }))
    }

    /// The birth of a whiteout in a directory.
    pub(super) fn whiteout<'f>(
        &self,
        caller: &Caller,
        dir: &Node<'_>,
        state: &State,
        inode: FreeInode<'f>,
        now: u64,
    ) -> Result<Birth<'static, 'f>> {
        let new = New::WHITEOUT;
        let subject = self.subject(dir, state, &self.disk(dir))?;
        let born = born(caller, &subject, new.kind, new.perm, None);
        Ok(birth(caller, inode, &born, &new, now))
    }

    /// Makes a regular file without a name, in the directory that it may get one in (`O_TMPFILE`), and opens it. Its last
    /// [`release`](steadfast_vfs::FileSystem::release) frees it, unless [`link`](steadfast_vfs::FileSystem::link) has
    /// named it before.
    pub(crate) fn op_tmpfile(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Attr> {
        let dir = self.directory(parent)?;
        let new = New::file(perm);
        let born = {
            let state = dir.read();
            exists(&dir, &state)?;
            let disk = self.search(caller, &dir, &state)?;
            super::has_name(&state)?;
            let subject = self.subject(&dir, &state, &disk)?;
            policy::may_grow(&subject)?;
            self.require(caller, &dir, &state, &disk, WRITE | EXEC)?;
            let parent = Parent {
                hash: 0,
                disk,
                subject,
            };
            self.born(caller, &dir, &state, &parent, &new)?
        };
        let (inode, node) = self.free_inode(new.kind)?.ok_or_else(full)?;
        let mut birth = birth(caller, inode, &born, &new, self.now());
        let attr = Attr {
            nlink: 0,
            ..newborn(&birth)
        };
        let NewSet { bytes, form } = self.inherited(born)?;
        let index = form.index();
        birth.attributes = form.newborn(&bytes);
        let mut inner = node.write();
        let orphan = state::nameless(self.medium(), birth).map_err(refused)?;
        inner.orphan = Some(orphan);
        inner.linkable = true;
        node.opens().store(1, Ordering::Release);
        Ok(enter(&node, Some(inner), Content::default(), index, attr))
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
        let mut locked = Locked::lock([&node, &dir]);
        exists(&node, locked.look(INODE))?;
        let hash = self.may_create(caller, &dir, locked.look(DIR), name)?.hash;
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

/// An inode that inherits from its directory.
fn birth<'f>(
    caller: &Caller,
    inode: FreeInode<'f>,
    born: &Born,
    new: &New<'_>,
    now: u64,
) -> Birth<'static, 'f> {
    Birth {
        inode,
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
    }
}

/// The attributes of an inode that is to be born with one name and without pages.
fn newborn(birth: &Birth<'_, '_>) -> Attr {
    let (inode, now) = (birth.inode.inode(), time(birth.now));
    let (size, rdev) = match birth.kind {
        FileKind::Directory => (PAGE_BYTES, 0),
        FileKind::Regular | FileKind::Symlink => (birth.size_or_rdev, 0),
        FileKind::CharDevice | FileKind::BlockDevice => (0, birth.size_or_rdev as u32),
        FileKind::Fifo | FileKind::Socket => (0, 0),
    };
    Attr {
        ino: inode.number.into(),
        generation: inode.generation.into(),
        kind: birth.kind,
        perm: birth.perm,
        nlink: if birth.kind == FileKind::Directory {
            2
        } else {
            1
        },
        uid: birth.uid,
        gid: birth.gid,
        rdev,
        size,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    }
}

/// The new inode is there. The lock of its place has been held since before its birth, or it begins as most do.
fn enter(
    node: &Node<'_>,
    state: Option<RwLockWriteGuard<'_, State>>,
    content: Content,
    attributes: Option<Box<FileIndex>>,
    attr: Attr,
) -> Attr {
    let Some(mut state) = state else {
        node.settle();
        return attr;
    };
    state.links = attr.nlink;
    state.content = content;
    state.attributes = attributes;
    node.settle();
    let held = state.pages_held();
    Attr {
        size: match attr.kind {
            FileKind::Directory => held.max(1) * PAGE_BYTES,
            _ => attr.size,
        },
        blocks: held * (PAGE_BYTES / 512),
        ..attr
    }
}

/// An empty directory below `parent`.
fn directory(parent: u32) -> Content {
    Content::Directory(Box::new(Directory::new(parent, DirIndex::default())))
}
