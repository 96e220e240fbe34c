//! Operations on extended attributes, ACLs among them. All of an inode's lie in it if they fit, else in one
//! block, which comes when they outgrow the inode and goes when they fit again.
//!
//! A change of form is one operation: the inode's bytes and pointer, the block's bytes and its bit
//! are patches of one transaction, so a crash leaves all attributes as they were before or after it.
//! A block that is given up is not handed out again before that is durable (`Client::released`).

use super::Node;
use super::walk::{Concerned, Plan, View, same_life};
use crate::acl;
use crate::error::{damaged, from_journal};
use crate::features::Feature;
use crate::inode::{self, S_ISGID};
use crate::layout::{DiskInode, META_BYTES};
use crate::mount::Fs;
use crate::pages::COST_INODE;
use crate::perm;
use crate::reader::Current;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Work};
use crate::xattr::{self, Xattrs};
use std::mem::offset_of;
use steadfast_block::BlockNo;
use steadfast_journal::Kind;
use steadfast_vfs::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{Caller, Errno, Ino, Result, XattrMode};

/// Log bytes of changing the attributes, whichever form they leave and take: the inode with its
/// count of blocks, a block newly written, and one freed.
pub(super) const CREDITS: u64 =
    COST_INODE + META_BYTES as u64 + COST_RANGE + 3 * COST_BLOCK + COST_BITS + COST_FREE;

impl Fs {
    fn xattrs(&self, ino: Ino, disk: &DiskInode) -> Result<Xattrs> {
        let mut reader = Current(&self.store.journal);
        Xattrs::of(&self.store.volume, &mut reader, ino, disk)
    }

    pub(crate) fn op_getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino);
        let _lock = inode.shared();
        let disk = self.read_inode(ino)?;
        xattr::check_name(name)?;
        if xattr::may(caller, &disk, name, false)? {
            self.require(caller, ino, &disk, perm::READ)?;
        }
        if xattr::is_acl(name) {
            let acl = self.acl(ino, &disk, name)?.ok_or(Errno::NoData)?;
            return Ok(acl.to_xattr());
        }
        self.xattrs(ino, &disk)?
            .get(name)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| Errno::NoData.into())
    }

    /// One of an inode's ACLs.
    fn acl(&self, ino: Ino, disk: &DiskInode, name: &[u8]) -> Result<Option<Acl>> {
        if xattr::has_none(disk) {
            return Ok(None);
        }
        let xattrs = self.xattrs(ino, disk)?;
        let Some(value) = xattrs.get(name) else {
            return Ok(None);
        };
        let acl = acl::decode(value);
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

    /// Stores an ACL in `node.new`, with [`CREDITS`].
    pub(super) fn put_acl(
        &self,
        work: &mut Work<'_>,
        node: &mut Node,
        name: &[u8],
        acl: &Acl,
    ) -> Result<()> {
        let mut xattrs = self.xattrs(node.ino, &node.old)?;
        set(&mut xattrs, name, &acl::encode(acl))?;
        put(work, node, &xattrs)
    }

    pub(crate) fn op_listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(ino);
        let _lock = inode.shared();
        let disk = self.read_inode(ino)?;
        let xattrs = self.xattrs(ino, &disk)?;
        // Also where the front end checks: the kernel asks for one name, but hides none.
        let visible = |name: &&[u8]| caller.uid == 0 || !name.starts_with(b"trusted.");
        Ok(xattrs.names().filter(visible).map(<[u8]>::to_vec).collect())
    }

    /// False if the inode's attributes would outgrow what fits.
    pub(crate) fn op_setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<bool> {
        if !xattr::is_acl(name) {
            return self
                .change_xattrs(caller, ino, name, |_, xattrs| xattrs.set(name, value, mode));
        }
        let Some(acl) = Acl::from_xattr(value)? else {
            return match self.op_removexattr(caller, ino, name) {
                Err(error) if error == Errno::NoData => Ok(true),
                other => other.map(|()| true),
            };
        };
        if name == XATTR_DEFAULT || !acl::is_minimal(&acl) {
            self.need(Feature::Acl)?;
        }
        let value = acl::encode(&acl);
        if name == XATTR_DEFAULT {
            return self.change_xattrs(caller, ino, name, |node, xattrs| match node.old.is_dir() {
                true => xattrs.set(name, &value, mode),
                false => Err(Errno::Access.into()),
            });
        }
        // List and mode agree after every crash: both are patches of one operation.
        let follow = |node: &mut Node| {
            let bits = node.old.mode.get() & !0o777 | acl::mode(&acl);
            let gains = caller.uid != 0 && !caller.in_group(node.old.gid.get());
            node.new.mode = (if gains { bits & !S_ISGID } else { bits }).into();
        };
        if self.faults.mode_before_acl {
            self.change_xattrs(caller, ino, name, |node, _| {
                follow(node);
                Ok(true)
            })?;
            self.store.journal.sync_all().map_err(from_journal)?;
        }
        self.change_xattrs(caller, ino, name, |node, xattrs| {
            if !xattrs.set(name, &value, mode)? {
                return Ok(false);
            }
            if acl::is_minimal(&acl) {
                xattrs.remove(name)?;
            }
            follow(node);
            Ok(true)
        })
    }

    pub(crate) fn op_removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change_xattrs(caller, ino, name, |_, xattrs| {
            xattrs.remove(name).map(|()| true)
        })
        .map(drop)
    }

    /// Changes the set of attributes, unless `change` says that it does not fit then: false.
    fn change_xattrs(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        change: impl Fn(&mut Node, &mut Xattrs) -> Result<bool>,
    ) -> Result<bool> {
        xattr::check_name(name)?;
        let concerned = Concerned {
            inode: Some(ino),
            entries: [],
        };
        let plan = |seen: &View<0>| {
            let inode = self.inode(ino);
            let _lock = inode.shared();
            let disk = self.read_inode(ino)?;
            if !same_life(&disk, &seen.inode.ok_or(Errno::Stale)?) {
                return Err(Errno::Stale.into());
            }
            self.may_change_xattr(caller, ino, &disk, name)?;
            Ok(Some(Plan {
                log_bytes: CREDITS,
                moves: false,
                own: (),
            }))
        };
        self.walk(caller, &concerned, plan, |mut work, _, seen, _| {
            let mut node = self.node_of(ino, &seen.inode.ok_or(Errno::Stale)?)?;
            self.may_change_xattr(caller, ino, &node.old, name)?;
            let mut xattrs = self.xattrs(ino, &node.old)?;
            if !change(&mut node, &mut xattrs)? {
                return Ok(false);
            }
            node.relate(&mut work);
            put(&mut work, &mut node, &xattrs)?;
            node.new.ctime = self.now();
            node.store(&mut work)?;
            work.commit();
            Ok(true)
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
        perm::not_fixed(disk)?;
        if xattr::may(caller, disk, name, true)? {
            self.require(caller, ino, disk, perm::WRITE)?;
        }
        Ok(())
    }
}

/// Sets a value. ENOSPC if it does not fit.
pub(super) fn set(xattrs: &mut Xattrs, name: &[u8], value: &[u8]) -> Result<()> {
    if xattrs.set(name, value, XattrMode::Any)? {
        Ok(())
    } else {
        Err(Errno::NoSpc.into())
    }
}

/// Stores all attributes of an inode in `node.new`, and in a block if they need one.
pub(super) fn put(work: &mut Work<'_>, node: &mut Node, xattrs: &Xattrs) -> Result<()> {
    if let Some(area) = xattrs.encode_inline() {
        node.new.xattrs = area;
        return drop_block(work, node);
    }
    node.new.xattrs.fill(0);
    let at = match node.old.xattr_block.get() {
        0 => add_block(work, node)?,
        at => BlockNo(at),
    };
    work.write(at, Kind::Meta, 0, &xattrs.encode())
}

/// Stores the attributes of an inode that is being made, which lies at `near`.
pub(super) fn put_new(
    work: &mut Work<'_>,
    near: BlockNo,
    disk: &mut DiskInode,
    xattrs: &Xattrs,
) -> Result<()> {
    if let Some(area) = xattrs.encode_inline() {
        disk.xattrs = area;
        return Ok(());
    }
    let at = work.allocate_block(near.offset(1))?;
    work.zero(at, Kind::Meta)?;
    work.write(at, Kind::Meta, 0, &xattrs.encode())?;
    disk.xattr_block = at.0.into();
    disk.blocks = (disk.blocks.get() + 1).into();
    Ok(())
}

fn add_block(work: &mut Work<'_>, node: &mut Node) -> Result<BlockNo> {
    let at = work.allocate_block(node.place.block.offset(1))?;
    work.zero(at, Kind::Meta)?;
    node.new.xattr_block = at.0.into();
    count(work, node, 1)?;
    Ok(at)
}

fn drop_block(work: &mut Work<'_>, node: &mut Node) -> Result<()> {
    let at = node.old.xattr_block.get();
    if at == 0 {
        return Ok(());
    }
    work.free_run(BlockNo(at), 1)?;
    node.new.xattr_block = 0.into();
    count(work, node, -1)
}

/// Other changes inside a directory count its blocks without relating, so this one adds too.
fn count(work: &mut Work<'_>, node: &mut Node, delta: i64) -> Result<()> {
    if node.old.is_dir() {
        return inode::add(work, node.place, offset_of!(DiskInode, blocks), delta);
    }
    node.new.blocks = node.old.blocks.get().saturating_add_signed(delta).into();
    Ok(())
}
