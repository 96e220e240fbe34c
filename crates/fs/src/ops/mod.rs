//! The operations on names and attributes, one family per file.
//!
//! Every change follows one pattern: look without locks for what it will concern and for
//! early errors; `begin` with credits for the worst case; lock all inodes concerned in the
//! order of their numbers; look again and *decide*; change through the work; commit; unlock.
//! If what it concerns changed in between, it starts again. The orphan directory is locked
//! last, by whoever needs it.
//!
//! All of it is atomic: an error anywhere drops the work, and nothing remains (corner 30).

mod accessed;
mod attr;
mod create;
mod look;
mod remove;
mod rename;
mod xattr;

pub(crate) use remove::has_extents;

use crate::dir::{self, Dir, Found};
use crate::inode::{self, Place};
use crate::layout::DiskInode;
use crate::mount::Fs;
use crate::perm;
use crate::reader::Current;
use crate::work::Work;
use steadfast_journal::{Access, Credits, Object};
use steadfast_vfs::{Caller, Errno, Ino, Result};

/// Credits of an operation that writes metadata only.
fn log(log_bytes: u64) -> Credits {
    Credits {
        log_bytes,
        data_blocks: 0,
    }
}

/// A directory for an operation that changes it; the caller holds its lock.
fn load_dir(fs: &Fs, ino: Ino) -> Result<Dir> {
    let disk = fs.directory(ino)?;
    Ok(Dir {
        ino,
        place: Place::of(&fs.store.volume, ino)?,
        disk,
    })
}

/// An inode that an operation changes; the caller holds its lock.
pub(crate) struct Node {
    /// Its number.
    pub(crate) ino: Ino,
    /// Where it lies.
    pub(crate) place: Place,
    /// As it is.
    pub(crate) old: DiskInode,
    /// As it will be.
    pub(crate) new: DiskInode,
}

impl Fs {
    /// A directory that the caller may search. ESTALE, ENOTDIR, EACCES.
    fn search(&self, caller: &Caller, ino: Ino) -> Result<DiskInode> {
        let disk = self.directory(ino)?;
        self.require(caller, ino, &disk, perm::EXEC)?;
        Ok(disk)
    }

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

    /// EACCES unless the caller's identity has all of `mask`, whoever checked before.
    pub(crate) fn access(
        &self,
        caller: &Caller,
        ino: Ino,
        disk: &DiskInode,
        mask: u8,
    ) -> Result<()> {
        let acl = match perm::asks_acl(caller, disk) {
            true => self.access_acl(ino, disk)?,
            false => None,
        };
        perm::access(caller, disk, acl.as_ref(), mask)
    }

    /// What a name means in a directory, whose lock the caller holds.
    fn find(&self, dir: &DiskInode, name: &[u8]) -> Result<Option<Found>> {
        dir::check_name(name)?;
        dir::lookup(
            &mut Current(&self.store.journal),
            &self.store.volume,
            dir,
            name,
        )
    }

    /// An inode to change. ESTALE.
    pub(crate) fn node(&self, ino: Ino) -> Result<Node> {
        let old = self.read_inode(ino)?;
        Ok(Node {
            ino,
            place: Place::of(&self.store.volume, ino)?,
            old,
            new: old,
        })
    }
}

impl Node {
    /// Says that the operation concerns the inode as a whole.
    pub(crate) fn relate(&self, work: &mut Work<'_>) {
        work.relate(object(self.ino, &self.old), Access::Exclusive);
    }

    /// Writes what was changed in `new`.
    pub(crate) fn store(&self, work: &mut Work<'_>) -> Result<()> {
        inode::patch(work, self.place, &self.old, &self.new)
    }
}

/// What stands for an inode as a whole among streams.
fn object(ino: Ino, disk: &DiskInode) -> Object {
    if disk.is_dir() {
        Object::Directory(ino)
    } else {
        Object::File(ino)
    }
}

/// `.` and `..`, which no operation makes or removes.
fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// ENOENT for directories that were removed but are still open.
fn alive(dir: &DiskInode) -> Result<()> {
    if dir.nlink.get() == 0 {
        Err(Errno::NoEnt.into())
    } else {
        Ok(())
    }
}
