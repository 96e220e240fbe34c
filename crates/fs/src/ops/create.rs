//! Operations that add a name: mknod, mkdir, symlink, link.

use super::{alive, is_dots, load_dir, log, object, xattr};
use crate::acl;
use crate::dir::{self, Dir};
use crate::in_place::Concerns;
use crate::inode::{Locked, Place, mode_of};
use crate::layout::{DiskInode, INLINE_BYTES, INODE_BYTES, LINK_MAX};
use crate::mount::Fs;
use crate::perm;
use crate::slots;
use crate::work::{COST_BLOCK, COST_RANGE, Work};
use crate::xattr::Xattrs;
use crate::{btree, data};
use steadfast_journal::Access;
use steadfast_vfs::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{Attr, Caller, Errno, FileKind, Ino, NewNode, Result, SYMLINK_MAX, XattrMode};
use zerocopy::FromZeros;

/// A new inode besides its name.
pub(super) struct New<'a> {
    kind: FileKind,
    perm: u16,
    rdev: u32,
    target: &'a [u8],
}

impl New<'_> {
    /// What hides a name of a lower layer from union file systems.
    pub(super) const WHITEOUT: New<'static> = New {
        kind: FileKind::CharDevice,
        perm: 0,
        rdev: 0,
        target: b"",
    };
}

fn is_device(kind: FileKind) -> bool {
    matches!(kind, FileKind::CharDevice | FileKind::BlockDevice)
}

/// Only root makes devices. A whiteout is none.
fn needs_root(new: &New<'_>) -> bool {
    is_device(new.kind) && (new.kind != FileKind::CharDevice || new.rdev != 0)
}

/// The permission bits of a new inode, and the ACLs that it gets from the default ACL of its directory.
/// The caller's umask counts where there is none.
fn new_acls(
    caller: &Caller,
    kind: FileKind,
    perm: u32,
    default: Option<&Acl>,
) -> Result<(u32, Xattrs)> {
    let mut acls = Xattrs::default();
    let Some(default) = default else {
        let umask = match kind {
            FileKind::Symlink => 0,
            _ => u32::from(caller.umask & 0o777),
        };
        return Ok((perm & !umask, acls));
    };
    let access = acl::inherit(default, perm);
    if !acl::is_minimal(&access) {
        acls.set(XATTR_ACCESS, &acl::encode(&access), XattrMode::Any)?;
    }
    if kind == FileKind::Directory {
        acls.set(XATTR_DEFAULT, &acl::encode(default), XattrMode::Any)?;
    }
    Ok((perm & !0o777 | acl::mode(&access), acls))
}

impl Fs {
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
            kind if is_device(kind) => node.rdev,
            _ => 0,
        };
        self.create(
            caller,
            parent,
            name,
            &New {
                kind: node.kind,
                perm: node.perm,
                rdev,
                target: b"",
            },
        )
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
        if target.is_empty() {
            return Err(Errno::NoEnt.into());
        }
        if target.len() > SYMLINK_MAX {
            return Err(Errno::NameTooLong.into());
        }
        if target.contains(&0) {
            return Err(Errno::Inval.into());
        }
        self.create(
            caller,
            parent,
            name,
            &New {
                kind: FileKind::Symlink,
                perm: 0o777,
                rdev: 0,
                target,
            },
        )
    }

    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], new: &New<'_>) -> Result<Attr> {
        let inode = self.inode(parent);
        loop {
            let (level, inherits) = {
                let _lock = inode.shared();
                let dir = self.directory(parent)?;
                self.may_create(caller, parent, &dir, name)?;
                if needs_root(new) && caller.uid != 0 && !caller.checked {
                    return Err(Errno::Perm.into());
                }
                let inherits = self.inherited_acl(parent, &dir, new)?.is_some();
                (btree::level(&self.store.volume, &dir.body)?, inherits)
            };
            let target = if new.target.len() > INLINE_BYTES {
                data::store_block_credits(new.target.len())
            } else {
                0
            };
            let acls = if inherits { xattr::CREDITS } else { 0 };
            let credits = log(dir::insert_credits(level) + slots::COST_SLOT + target + acls);
            let work = self.store.begin(caller.stream, credits)?;
            let _lock = inode.exclusive();
            let dir = load_dir(self, parent)?;
            self.may_create(caller, parent, &dir.disk, name)?;
            let default = self.inherited_acl(parent, &dir.disk, new)?;
            if default.is_some() && !inherits {
                continue;
            }
            return self.create_in(work, caller, dir, name, new, default.as_ref());
        }
    }

    /// The default ACL that a new inode gets its ACLs from.
    fn inherited_acl(&self, parent: Ino, dir: &DiskInode, new: &New<'_>) -> Result<Option<Acl>> {
        match new.kind {
            FileKind::Symlink => Ok(None),
            _ => self.default_acl(parent, dir),
        }
    }

    /// Makes an inode and its name in a locked directory.
    fn create_in<'a>(
        &'a self,
        mut work: Work<'a>,
        caller: &Caller,
        mut dir: Dir,
        name: &[u8],
        new: &New<'_>,
        default: Option<&Acl>,
    ) -> Result<Attr> {
        let (place, disk) = self.make(&mut work, caller, &dir, new, default)?;
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
        Ok(disk.attr(ino, 0))
    }

    /// Whether `name` can be added to `dir`.
    fn may_create(&self, caller: &Caller, parent: Ino, dir: &DiskInode, name: &[u8]) -> Result<()> {
        self.require(caller, parent, dir, perm::EXEC)?;
        if is_dots(name) || self.find(dir, name)?.is_some() {
            return Err(Errno::Exist.into());
        }
        alive(dir)?;
        self.require(caller, parent, dir, perm::WRITE)
    }

    /// Makes the inode: slot, attributes, and the target of a symbolic link.
    pub(super) fn make<'a>(
        &'a self,
        work: &mut Work<'a>,
        caller: &Caller,
        parent: &Dir,
        new: &New<'_>,
        default: Option<&Acl>,
    ) -> Result<(Place, DiskInode)> {
        let is_dir = new.kind == FileKind::Directory;
        let near = if is_dir && parent.ino == self.store.volume.root {
            self.slots.spread(&self.store)
        } else {
            parent.ino
        };
        let place = slots::allocate(self, work, near, caller.stream)?;
        let (gid, perm) = perm::inherit(caller, &parent.disk, new.perm, is_dir);
        let (perm, acls) = new_acls(caller, new.kind, perm, default)?;
        let now = self.now();
        let mut disk = DiskInode::new_zeroed();
        disk.mode = (mode_of(new.kind) | perm).into();
        disk.uid = caller.uid.into();
        disk.gid = gid.into();
        disk.nlink = (if is_dir { 2 } else { 1 }).into();
        disk.generation = self.slots.generation().into();
        (disk.mtime, disk.ctime, disk.atime, disk.btime) = (now, now, now, now);
        disk.rdev = new.rdev.into();
        match new.kind {
            FileKind::Directory => {
                disk.parent = parent.ino.into();
                disk.body = btree::empty();
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
        let level = {
            let linked = self.read_inode(ino)?;
            let inode = self.inode(parent);
            let _lock = inode.shared();
            let dir = self.directory(parent)?;
            self.may_create(caller, parent, &dir, name)?;
            if linked.is_dir() {
                return Err(Errno::Perm.into());
            }
            btree::level(&self.store.volume, &dir.body)?
        };
        let inode_bytes = COST_BLOCK + 8 * COST_RANGE + INODE_BYTES as u64;
        let credits = log(dir::insert_credits(level) + inode_bytes);
        let mut work = self.store.begin(caller.stream, credits)?;
        let inodes = self.table.get_sorted(&[ino, parent]);
        let mut locked = Locked::lock(&inodes);
        let mut dir = load_dir(self, parent)?;
        let mut node = self.node(ino)?;
        self.may_create(caller, parent, &dir.disk, name)?;
        if node.old.is_dir() {
            return Err(Errno::Perm.into());
        }
        let links = node.old.nlink.get();
        if links == 0 {
            return Err(Errno::NoEnt.into());
        }
        if links >= u64::from(LINK_MAX) {
            return Err(Errno::MLink.into());
        }
        let now = self.now();
        node.relate(&mut work);
        node.new.nlink = (links + 1).into();
        node.new.ctime = now;
        node.store(&mut work)?;
        dir.insert(&mut work, name, ino, node.old.kind())?;
        dir.touch(&mut work, now)?;
        work.commit();
        let delayed = locked.get(ino).map_or(0, |(_, state)| state.pages.len());
        Ok(node.new.attr(ino, delayed))
    }
}
