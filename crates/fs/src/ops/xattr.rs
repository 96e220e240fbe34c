//! Operations on extended attributes, ACLs among them. All of an inode's lie in it if they fit, else in a
//! block or in several, which come when they outgrow the inode and go when they fit again.
//!
//! A change of form is one operation: the inode's bytes and pointer, the blocks' bytes and their bits
//! are patches of one transaction, so a crash leaves all attributes as they were before or after it.
//! A block that is given up is not handed out again before that is durable (`Client::released`).

use super::Node;
use super::walk::{Concerned, Plan, View, same_life};
use crate::error::{damaged, from_journal};
use crate::features::Feature;
use crate::inode;
use crate::layout::{DiskInode, META_BYTES, XATTR_BLOCKS_MAX};
use crate::mounted::Mounted;
use crate::pages::COST_INODE;
use crate::reader::Current;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Work};
use crate::xattr::{self, Change, Stored, Xattrs};
use std::mem::offset_of;
use steadfast_block::BlockNo;
use steadfast_vfs::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::policy::{self, attrs::perm_after_acl};
use steadfast_vfs::{Caller, Errno, Ino, Result, XattrMode};

/// Log bytes of changing attributes that lie in one block or none, before and after: the inode with its
/// count of blocks, a block newly written, and one freed.
pub(super) const CREDITS: u64 =
    COST_INODE + META_BYTES as u64 + COST_RANGE + 3 * COST_BLOCK + COST_BITS + COST_FREE;

impl Mounted {
    fn xattrs(&self, ino: Ino, disk: &DiskInode) -> Result<Stored> {
        let mut reader = Current(&self.store.journal);
        Stored::of(&self.store.volume, &mut reader, ino, disk)
    }

    pub(crate) fn op_getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino);
        let _lock = inode.shared();
        let disk = self.read_inode(ino)?;
        policy::xattr::check_name(name)?;
        if policy::xattr::may(caller, &disk.subject(), name, false)? {
            self.require(caller, ino, &disk, policy::READ)?;
        }
        if policy::xattr::is_acl(name) {
            let acl = self.acl(ino, &disk, name)?.ok_or(Errno::NoData)?;
            return Ok(acl.to_xattr());
        }
        self.xattrs(ino, &disk)?
            .into_all()
            .get(name)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| Errno::NoData.into())
    }

    /// One of an inode's ACLs.
    fn acl(&self, ino: Ino, disk: &DiskInode, name: &[u8]) -> Result<Option<Acl>> {
        if xattr::has_none(disk) {
            return Ok(None);
        }
        let xattrs = self.xattrs(ino, disk)?.into_all();
        let Some(value) = xattrs.get(name) else {
            return Ok(None);
        };
        let acl = Acl::from_stored(value);
        acl.map(Some)
            .ok_or_else(|| damaged(format!("an ACL of inode {ino} is malformed")))
    }

    /// An inode's access ACL.
    pub(crate) fn access_acl(&self, ino: Ino, disk: &DiskInode) -> Result<Option<Acl>> {
        self.acl(ino, disk, XATTR_ACCESS)
    }

    /// A directory's default ACL.
    pub(super) fn default_acl(&self, ino: Ino, disk: &DiskInode) -> Result<Option<Acl>> {
        self.acl(ino, disk, XATTR_DEFAULT)
    }

    /// Stores an ACL in `node.new` in place of one as long, with [`CREDITS`].
    pub(super) fn put_acl(
        &self,
        work: &mut Work<'_>,
        node: &mut Node,
        name: &[u8],
        acl: &Acl,
    ) -> Result<()> {
        let stored = self.xattrs(node.ino, &node.old)?;
        let mut all = stored.clone().into_all();
        all.set(name, &acl.to_stored(), XattrMode::Any)?;
        let change = stored.change(&all, XATTR_BLOCKS_MAX).ok_or(Errno::NoSpc)?;
        put(work, node, change)
    }

    pub(crate) fn op_listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(ino);
        let _lock = inode.shared();
        let disk = self.read_inode(ino)?;
        let xattrs = self.xattrs(ino, &disk)?.into_all();
        let visible = |name: &&[u8]| policy::xattr::is_listed(caller, name);
        Ok(xattrs.names().filter(visible).map(<[u8]>::to_vec).collect())
    }

    /// False if the inode's attributes would not fit.
    pub(crate) fn op_setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<bool> {
        if !policy::xattr::is_acl(name) {
            return self
                .change_xattrs(caller, ino, name, |_, xattrs| xattrs.set(name, value, mode));
        }
        let Some(acl) = Acl::from_xattr(value)? else {
            return match self.op_removexattr(caller, ino, name) {
                Err(error) if error == Errno::NoData => Ok(true),
                other => other.map(|()| true),
            };
        };
        if name == XATTR_DEFAULT || !acl.is_minimal() {
            self.need(Feature::Acl)?;
        }
        let value = acl.to_stored();
        if name == XATTR_DEFAULT {
            return self.change_xattrs(caller, ino, name, |node, xattrs| match node.old.is_dir() {
                true => xattrs.set(name, &value, mode),
                false => Err(Errno::Access.into()),
            });
        }
        // List and mode agree after every crash: both are patches of one operation.
        let follow = |node: &mut Node| {
            let perm = perm_after_acl(caller, &node.old.subject(), acl.perm_bits());
            node.new.set_perm(perm);
        };
        if self.options.faults.mode_before_acl {
            self.change_xattrs(caller, ino, name, |node, _| {
                follow(node);
                Ok(())
            })?;
            self.store.journal.sync_all().map_err(from_journal)?;
        }
        self.change_xattrs(caller, ino, name, |node, xattrs| {
            xattrs.set(name, &value, mode)?;
            if acl.is_minimal() {
                xattrs.remove(name)?;
            }
            follow(node);
            Ok(())
        })
    }

    pub(crate) fn op_removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change_xattrs(caller, ino, name, |_, xattrs| xattrs.remove(name))
            .map(drop)
    }

    /// Changes the set of attributes; false if it does not fit then.
    fn change_xattrs(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        change: impl Fn(&mut Node, &mut Xattrs) -> Result<()>,
    ) -> Result<bool> {
        policy::xattr::check_name(name)?;
        loop {
            if let Some(fits) = self.change_xattrs_once(caller, ino, name, &change)? {
                return Ok(fits);
            }
        }
    }

    /// `None`: the set became one that takes more to change.
    fn change_xattrs_once(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        change: &impl Fn(&mut Node, &mut Xattrs) -> Result<()>,
    ) -> Result<Option<bool>> {
        let changed = |node: &mut Node| -> Result<Option<Change>> {
            self.may_change_xattr(caller, ino, &node.old, name)?;
            let stored = self.xattrs(ino, &node.old)?;
            let mut all = stored.clone().into_all();
            change(node, &mut all)?;
            Ok(stored.change(&all, XATTR_BLOCKS_MAX))
        };
        let concerned = Concerned {
            inode: Some(ino),
            entries: [],
        };
        let plan = |seen: &View<0>| {
            let planned = {
                let inode = self.inode(ino);
                let _lock = inode.shared();
                let mut node = self.node(ino)?;
                if !same_life(&node.old, &seen.inode.ok_or(Errno::Stale)?) {
                    return Err(Errno::Stale.into());
                }
                changed(&mut node)?
            };
            let wide = planned.as_ref().is_some_and(Change::is_wide);
            if wide {
                self.need(Feature::XattrBlocks)?;
            }
            Ok(Some(Plan {
                log_bytes: COST_INODE + planned.map_or(0, |change| change.log_bytes()),
                moves: false,
                own: wide,
            }))
        };
        self.walk(caller, &concerned, plan, |mut work, plan, seen, _| {
            let mut node = self.node_of(ino, &seen.inode.ok_or(Errno::Stale)?)?;
            let Some(change) = changed(&mut node)? else {
                return Ok(Some(false));
            };
            let costs = COST_INODE + change.log_bytes();
            if costs > plan.log_bytes || change.is_wide() && !plan.own {
                return Ok(None);
            }
            node.relate(&mut work);
            put(&mut work, &mut node, change)?;
            node.new.ctime = self.now();
            node.store(&mut work)?;
            work.commit();
            Ok(Some(true))
        })
    }

    /// Under the inode's lock.
    fn may_change_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        disk: &DiskInode,
        name: &[u8],
    ) -> Result<()> {
        policy::not_fixed(&disk.subject())?;
        if policy::xattr::may(caller, &disk.subject(), name, true)? {
            self.require(caller, ino, disk, policy::WRITE)?;
        }
        Ok(())
    }
}

/// Stores the attributes of an inode in `node.new`, and in blocks if they need some.
fn put(work: &mut Work<'_>, node: &mut Node, change: Change) -> Result<()> {
    node.new.xattrs = change.area;
    let (named, grown) = change.carry_out(work, node.place.block.offset(1))?;
    node.new.xattr_block = named.into();
    count(work, node, grown)
}

/// Stores the attributes of an inode that is being made, which lies at `near`.
pub(super) fn put_new(
    work: &mut Work<'_>,
    near: BlockNo,
    disk: &mut DiskInode,
    xattrs: &Xattrs,
) -> Result<()> {
    let change = Stored::default().change(xattrs, 1).ok_or(Errno::NoSpc)?;
    disk.xattrs = change.area;
    let (named, grown) = change.carry_out(work, near.offset(1))?;
    disk.xattr_block = named.into();
    disk.blocks = disk.blocks.get().saturating_add_signed(grown).into();
    Ok(())
}

/// Other changes inside a directory count its blocks without relating, so this one adds too.
fn count(work: &mut Work<'_>, node: &mut Node, delta: i64) -> Result<()> {
    if node.old.is_dir() {
        return inode::add(work, node.place, offset_of!(DiskInode, blocks), delta);
    }
    node.new.blocks = node.old.blocks.get().saturating_add_signed(delta).into();
    Ok(())
}
