//! Operations that add a name: mknod, mkdir, symlink, link.

use super::walk::{Concerned, Entry, Plan, ResolvedName, View};
use super::{alive, object, xattr};
use crate::dir::{self, Dir};
use crate::in_place::Concerns;
use crate::inode::Place;
use crate::layout::{DiskInode, INLINE_BYTES, INODE_BYTES, LINK_MAX};
use crate::mounted::Mounted;
use crate::slots;
use crate::work::{COST_BLOCK, COST_RANGE, Work};
use crate::xattr::Xattrs;
use crate::{btree, data};
use steadfast_journal::Access;
use steadfast_vfs::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::policy::born::{Born, New, born, inherits_acl, may_make};
use steadfast_vfs::policy::{self, is_dots};
use steadfast_vfs::{Attr, Caller, Errno, FileKind, Ino, NewNode, Result, XattrMode};
use zerocopy::FromZeros;

/// The ACLs of a new inode.
fn new_acls(born: &Born) -> Result<Xattrs> {
    let mut acls = Xattrs::default();
    for (name, acl) in [(XATTR_ACCESS, &born.access), (XATTR_DEFAULT, &born.default)] {
        if let Some(acl) = acl {
            acls.set(name, &acl.to_stored(), XattrMode::Any)?;
        }
    }
    Ok(acls)
}

impl Mounted {
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
        let root = self.store.volume.root;
        let near = if new.kind == FileKind::Directory && parent == root {
            self.slots.spread(&self.store)
        } else {
            parent
        };
        let mut searched = false;
        loop {
            match self.create_once(caller, parent, name, new, near) {
                Ok(Some(attr)) => return Ok(attr),
                Ok(None) => {}
                // Perhaps an inode block has room that was not looked into yet.
                Err(full) if full == Errno::NoSpc && !searched => {
                    searched = true;
                    let stream = self.store.stream(caller.stream);
                    if !self.slots.search(&self.store, stream)? {
                        return Err(full);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// `None`: the directory has got a default ACL, which was not reckoned with.
    fn create_once(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: &New<'_>,
        near: Ino,
    ) -> Result<Option<Attr>> {
        let own = match new.kind {
            FileKind::Directory => dir::BEGIN_CREDITS,
            _ if new.target.len() > INLINE_BYTES => data::store_block_credits(new.target.len()),
            _ => 0,
        };
        let concerned = Concerned {
            inode: None,
            entries: [Entry {
                dir: parent,
                name,
                needed: false,
            }],
        };
        self.walk(
            caller,
            &concerned,
            |View { entries: [at], .. }| {
                let inherits = {
                    let inode = self.inode(parent);
                    let _lock = inode.shared();
                    let dir = self.same_directory(parent, &at.dir)?;
                    self.may_create(caller, parent, &ResolvedName { dir, ..*at }, name)?;
                    self.inherited_acl(parent, &dir, new)?.is_some()
                };
                may_make(caller, new.kind, new.rdev)?;
                let stream = self.store.stream(caller.stream);
                self.slots.look_ahead(&self.store, near, stream)?;
                let acls = if inherits { xattr::CREDITS } else { 0 };
                let level = btree::level(&self.store.volume, &at.dir.body)?;
                Ok(Some(Plan {
                    log_bytes: dir::insert_credits(level) + slots::COST_SLOT + own + acls,
                    moves: false,
                    own: inherits,
                }))
            },
            |mut work, plan, View { entries: [at], .. }, _| {
                self.may_create(caller, parent, &at, name)?;
                let default = self.inherited_acl(parent, &at.dir, new)?;
                if default.is_some() && !plan.own {
                    return Ok(None);
                }
                let mut dir = self.dir(parent, &at.dir)?;
                let made = self.make(&mut work, caller, &dir, new, near, default.as_ref())?;
                let (place, disk) = made;
                let ino = place.ino();
                dir.insert(&mut work, name, ino, new.kind)?;
                dir.touch(&mut work, disk.ctime)?;
                if disk.is_dir() {
                    dir.add_links(&mut work, 1)?;
                }
                let ticket = work.commit();
                if new.kind == FileKind::Regular {
                    self.note_change(ino, Concerns::Size, ticket);
                }
                Ok(Some(disk.attr(ino, 0)))
            },
        )
    }

    /// The default ACL that a new inode gets its ACLs from.
    fn inherited_acl(&self, parent: Ino, dir: &DiskInode, new: &New<'_>) -> Result<Option<Acl>> {
        match inherits_acl(new.kind) {
            true => self.default_acl(parent, dir),
            false => Ok(None),
        }
    }

    /// Whether the caller may add `name` to a directory, whose lock it holds.
    fn may_create(
        &self,
        caller: &Caller,
        parent: Ino,
        at: &ResolvedName,
        name: &[u8],
    ) -> Result<()> {
        may_add(at, name)?;
        policy::may_grow(&at.dir.subject())?;
        self.require(caller, parent, &at.dir, policy::WRITE)
    }

    /// Makes the inode: slot, attributes, and the target of a symbolic link.
    pub(super) fn make<'a>(
        &'a self,
        work: &mut Work<'a>,
        caller: &Caller,
        parent: &Dir,
        new: &New<'_>,
        near: Ino,
        default: Option<&Acl>,
    ) -> Result<(Place, DiskInode)> {
        let is_dir = new.kind == FileKind::Directory;
        let place = slots::allocate(&self.store, &self.slots, work, near)?;
        let born = born(caller, &parent.disk.subject(), new.kind, new.perm, default);
        let acls = new_acls(&born)?;
        let now = self.now();
        let mut disk = DiskInode::new_zeroed();
        disk.mode = (new.kind.mode_bits() | u32::from(born.perm)).into();
        disk.uid = caller.uid.into();
        disk.gid = born.gid.into();
        disk.nlink = (if is_dir { 2 } else { 1 }).into();
        disk.generation = self.slots.generation().into();
        (disk.mtime, disk.ctime, disk.atime, disk.btime) = (now, now, now, now);
        disk.flags = born.flags.bits().into();
        disk.rdev = new.rdev.into();
        match new.kind {
            FileKind::Directory => {
                disk.parent = parent.ino.into();
                dir::begin(work, place, &mut disk)?;
            }
            FileKind::Regular => disk.body = btree::empty(),
            FileKind::Symlink => self.set_target(work, place, &mut disk, new.target)?,
            _ => {}
        }
        if !acls.is_empty() {
            xattr::put_new(work, place.block, &mut disk, &acls)?;
        }
        work.relate(object(place.ino(), &disk), Access::Exclusive);
        slots::fill(work, place, &disk)?;
        Ok((place, disk))
    }

    fn set_target(
        &self,
        work: &mut Work<'_>,
        place: Place,
        disk: &mut DiskInode,
        target: &[u8],
    ) -> Result<()> {
        disk.size = (target.len() as u64).into();
        if target.len() <= INLINE_BYTES {
            disk.body[..target.len()].copy_from_slice(target);
            return Ok(());
        }
        data::store_block(work, disk, place.block.offset(1), target)
    }

    pub(crate) fn op_link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<Attr> {
        let concerned = Concerned {
            inode: Some(ino),
            entries: [Entry {
                dir: parent,
                name,
                needed: false,
            }],
        };
        let may_link = |linked: Option<DiskInode>, at: &ResolvedName| -> Result<DiskInode> {
            self.may_create(caller, parent, at, name)?;
            let linked = linked.ok_or(Errno::Stale)?;
            if linked.is_dir() {
                return Err(Errno::Perm.into());
            }
            policy::not_fixed(&linked.subject())?;
            match linked.nlink.get() {
                0 => Err(Errno::NoEnt.into()),
                links if links >= u64::from(LINK_MAX) => Err(Errno::MLink.into()),
                _ => Ok(linked),
            }
        };
        self.walk(
            caller,
            &concerned,
            |View {
                 inode: linked,
                 entries: [at],
             }| {
                let dir = {
                    let inode = self.inode(parent);
                    let _lock = inode.shared();
                    let dir = self.same_directory(parent, &at.dir)?;
                    may_link(*linked, &ResolvedName { dir, ..*at })?;
                    dir
                };
                let level = btree::level(&self.store.volume, &dir.body)?;
                let inode_bytes = COST_BLOCK + 8 * COST_RANGE + INODE_BYTES as u64;
                Ok(Some(Plan {
                    log_bytes: dir::insert_credits(level) + inode_bytes,
                    moves: false,
                    own: (),
                }))
            },
            |mut work, _, seen, locked| {
                let linked = may_link(seen.inode, &seen.entries[0])?;
                let mut node = self.node_of(ino, &linked)?;
                let mut dir = self.dir(parent, &seen.entries[0].dir)?;
                let now = self.now();
                node.relate(&mut work);
                node.new.nlink = (node.old.nlink.get() + 1).into();
                node.new.ctime = now;
                node.store(&mut work)?;
                dir.insert(&mut work, name, ino, node.old.kind())?;
                dir.touch(&mut work, now)?;
                work.commit();
                let delayed = locked
                    .get(ino)
                    .map_or(0, |(_, state)| state.pages.new_blocks());
                Ok(self.attr_of(ino, &node.new, delayed))
            },
        )
    }
}

/// Whether `name` can be added to a directory, permissions aside.
fn may_add(at: &ResolvedName, name: &[u8]) -> Result<()> {
    if is_dots(name) || at.child.is_some() {
        return Err(Errno::Exist.into());
    }
    alive(&at.dir)
}
