//! The operations on names and attributes, one family per file.
//!
//! Every change takes the same walk, which [`walk`] has once: look, begin, lock, compare, retry.
//!
//! All of it is atomic: an error anywhere drops the work, and nothing remains (corner 30).

mod accessed;
mod attr;
mod create;
mod flags;
mod look;
mod remove;
mod rename;
#[cfg(test)]
mod tests;
mod walk;
mod xattr;

pub(crate) use remove::has_extents;

use crate::inode::{self, Place};
use crate::layout::DiskInode;
use crate::mounted::Mounted;
use crate::work::Work;
use steadfast_journal::{Access, Object};
use steadfast_vfs::{Caller, Errno, Ino, Result, policy};

/// An inode that an operation changes; the caller holds its lock.
pub(crate) struct Node {
    /// Its number.
    pub(crate) ino: Ino,
    /// Place of the inode.
    pub(crate) place: Place,
    /// The inode as it is.
    pub(crate) old: DiskInode,
    /// The inode as it will be.
    pub(crate) new: DiskInode,
}

impl Mounted {
    /// EACCES unless the caller has all of `mask`.
    pub(crate) fn require(
        &self,
        caller: &Caller,
        ino: Ino,
        disk: &DiskInode,
        mask: u8,
    ) -> Result<()> {
        if caller.checked {
            return Ok(());
        }
        self.access(caller, ino, disk, mask)
    }

    /// EACCES unless the caller's identity has all of `mask`, also if the kernel checked before.
    pub(crate) fn access(
        &self,
        caller: &Caller,
        ino: Ino,
        disk: &DiskInode,
        mask: u8,
    ) -> Result<()> {
        let acl = match policy::asks_acl(caller, &disk.subject()) {
            true => self.access_acl(ino, disk)?,
            false => None,
        };
        policy::access(caller, &disk.subject(), acl.as_ref(), mask)
    }

    /// An inode to change. ESTALE.
    pub(crate) fn node(&self, ino: Ino) -> Result<Node> {
        let old = self.read_inode(ino)?;
        self.node_of(ino, &old)
    }

    /// The same of an inode that was read under its lock.
    fn node_of(&self, ino: Ino, old: &DiskInode) -> Result<Node> {
        Ok(Node {
            ino,
            place: Place::of(&self.store.volume, ino)?,
            old: *old,
            new: *old,
        })
    }
}

impl Node {
    /// Says that the operation concerns the inode as a whole.
    pub(crate) fn relate(&self, work: &mut Work<'_>) {
        work.relate(object(self.ino, &self.old), Access::Exclusive);
    }

    /// Writes the changes in `new`.
    pub(crate) fn store(&self, work: &mut Work<'_>) -> Result<()> {
        inode::patch(work, self.place, &self.old, &self.new)
    }
}

/// The object that names a whole inode among streams.
fn object(ino: Ino, disk: &DiskInode) -> Object {
    if disk.is_dir() {
        Object::Directory(ino)
    } else {
        Object::File(ino)
    }
}

/// ENOENT for directories that were removed but are still open.
fn alive(dir: &DiskInode) -> Result<()> {
    if dir.nlink.get() == 0 {
        Err(Errno::NoEnt.into())
    } else {
        Ok(())
    }
}
