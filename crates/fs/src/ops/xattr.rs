//! Operations on extended attributes. All of an inode's lie in it if they fit, else in one
//! block, which comes when they outgrow the inode and goes when they fit again.
//!
//! A change of form is one operation: the inode's bytes and pointer, the block's bytes and its bit
//! are patches of one transaction, so a crash leaves all attributes as they were before or after it.
//! A block that is given up is not handed out again before that is durable (`Client::released`).

use super::{Node, log};
use crate::inode;
use crate::layout::{DiskInode, META_BYTES};
use crate::mount::Fs;
use crate::pages::COST_INODE;
use crate::reader::Current;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Work};
use crate::xattr::{self, Xattrs};
use std::mem::offset_of;
use steadfast_block::BlockNo;
use steadfast_journal::Kind;
use steadfast_vfs::{Caller, Errno, Ino, Result, XattrMode};

/// Log bytes of changing the attributes, whichever form they leave and take: the inode with its
/// count of blocks, a block newly written, and one freed.
const CREDITS: u64 =
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
        xattr::may(caller, &disk, name, false)?;
        self.xattrs(ino, &disk)?
            .get(name)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| Errno::NoData.into())
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

    pub(crate) fn op_setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.change_xattrs(caller, ino, name, |xattrs| xattrs.set(name, value, mode))
    }

    pub(crate) fn op_removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change_xattrs(caller, ino, name, |xattrs| xattrs.remove(name))
    }

    fn change_xattrs(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        change: impl Fn(&mut Xattrs) -> Result<()>,
    ) -> Result<()> {
        xattr::check_name(name)?;
        let mut work = self.store.begin(caller.stream, log(CREDITS))?;
        let inode = self.inode(ino);
        let _lock = inode.exclusive();
        let mut node = self.node(ino)?;
        xattr::may(caller, &node.old, name, true)?;
        let mut xattrs = self.xattrs(ino, &node.old)?;
        change(&mut xattrs)?;
        node.relate(&mut work);
        if let Some(area) = xattrs.encode_inline() {
            node.new.xattrs = area;
            drop_block(&mut work, &mut node)?;
        } else {
            node.new.xattrs.fill(0);
            let at = match node.old.xattr_block.get() {
                0 => add_block(&mut work, &mut node)?,
                at => BlockNo(at),
            };
            work.write(at, Kind::Meta, 0, &xattrs.encode())?;
        }
        node.new.ctime = self.now();
        node.store(&mut work)?;
        work.commit();
        Ok(())
    }
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
