//! A file system with one file, the disk: its writes, `fsync` (a flush of the whole disk) and
//! `fallocate` with a punched hole go to the layer. A loop device can be made of it.
//!
//! There is nothing to create, rename or remove, and the file's size is the disk's. Only the user that mounts it
//! may use it. Times stand still: they are those of the start.

use std::sync::Arc;

use steadfast_vfs::{
    AllocateMode, Attr, Caller, Clock, Cookie, DirEntry, Errno, Error, FileKind, FileSystem, Ino,
    NewNode, RenameMode, Result, Seek, SetAttr, StatFs, SystemClock, Time, XattrMode,
};

use crate::served::{Refusal, ServedDisk};

/// Name of the file.
pub const DISK_NAME: &str = "disk";

const ROOT: Ino = 1;
const DISK: Ino = 2;
const BLOCK: u64 = steadfast_block::BLOCK_SIZE as u64;

/// See the module's header.
#[derive(Debug)]
pub struct DiskFile {
    served: Arc<ServedDisk>,
    owner: (u32, u32),
    begun: Time,
}

/// The outcome of a failed request: the error number, and the text for the server's log.
fn refused(refusal: &Refusal) -> Error {
    match refusal {
        Refusal::PastEnd { .. } => refusal.errno().into(),
        _ => Error::new(refusal.errno(), refusal.to_string()),
    }
}

impl DiskFile {
    /// The disk as a file of this process's user.
    #[must_use]
    pub fn new(served: Arc<ServedDisk>) -> DiskFile {
        DiskFile {
            served,
            owner: (
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
            begun: SystemClock.now(),
        }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let file = match ino {
            ROOT => false,
            DISK => true,
            _ => return Err(Errno::Stale.into()),
        };
        let size = if file { self.served.bytes() } else { 0 };
        Ok(Attr {
            ino,
            generation: 0,
            kind: if file {
                FileKind::Regular
            } else {
                FileKind::Directory
            },
            perm: match (file, self.served.read_only()) {
                (true, false) => 0o600,
                (true, true) => 0o400,
                (false, _) => 0o500,
            },
            nlink: if file { 1 } else { 2 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            size,
            blocks: size / 512,
            atime: self.begun,
            mtime: self.begun,
            ctime: self.begun,
            btime: self.begun,
        })
    }

    fn disk(&self, ino: Ino) -> Result<&ServedDisk> {
        match ino {
            DISK => Ok(&self.served),
            ROOT => Err(Errno::IsDir.into()),
            _ => Err(Errno::Stale.into()),
        }
    }

    fn directory(dir: Ino) -> Result<()> {
        match dir {
            ROOT => Ok(()),
            DISK => Err(Errno::NotDir.into()),
            _ => Err(Errno::Stale.into()),
        }
    }

    /// Whether the caller is the owner, or has an owner's rights.
    fn owned(&self, caller: &Caller) -> bool {
        caller.checked || caller.uid == 0 || caller.uid == self.owner.0
    }
}

impl FileSystem for DiskFile {
    fn root(&self) -> Ino {
        ROOT
    }

    fn lookup(&self, _: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        DiskFile::directory(parent)?;
        match name {
            b"." | b".." => self.attr(ROOT),
            name if name == DISK_NAME.as_bytes() => self.attr(DISK),
            _ => Err(Errno::NoEnt.into()),
        }
    }

    fn getattr(&self, _: &Caller, ino: Ino) -> Result<Attr> {
        self.attr(ino)
    }

    /// Times can be set by name, to no effect; the size is the disk's.
    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let attr = self.attr(ino)?;
        if set.size.is_some_and(|size| size != attr.size) {
            return Err(Error::new(
                Errno::Perm,
                "the file has the size of the disk: write to it without truncating it (dd conv=notrunc)",
            ));
        }
        let changes = set.perm.is_some_and(|perm| perm != attr.perm)
            || set.uid.is_some_and(|uid| uid != attr.uid)
            || set.gid.is_some_and(|gid| gid != attr.gid);
        if changes {
            return Err(Errno::Perm.into());
        }
        Ok(attr)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        const WRITE: u8 = 2;
        self.attr(ino)?;
        if !self.owned(caller) {
            return Err(Errno::Access.into());
        }
        if ino == DISK && mask & WRITE != 0 && self.served.read_only() {
            return Err(Errno::RoFs.into());
        }
        Ok(())
    }

    fn mknod(&self, _: &Caller, _: Ino, name: &[u8], _: &NewNode) -> Result<Attr> {
        match name == DISK_NAME.as_bytes() {
            true => Err(Errno::Exist.into()),
            false => Err(Errno::Perm.into()),
        }
    }

    fn mkdir(&self, _: &Caller, _: Ino, _: &[u8], _: u16) -> Result<Attr> {
        Err(Errno::Perm.into())
    }

    fn symlink(&self, _: &Caller, _: Ino, _: &[u8], _: &[u8]) -> Result<Attr> {
        Err(Errno::Perm.into())
    }

    fn readlink(&self, _: &Caller, _: Ino) -> Result<Vec<u8>> {
        Err(Errno::Inval.into())
    }

    fn link(&self, _: &Caller, _: Ino, _: Ino, _: &[u8]) -> Result<Attr> {
        Err(Errno::Perm.into())
    }

    fn unlink(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
        Err(Errno::Perm.into())
    }

    fn rmdir(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
        Err(Errno::Perm.into())
    }

    fn rename(&self, _: &Caller, _: (Ino, &[u8]), _: (Ino, &[u8]), _: RenameMode) -> Result<()> {
        Err(Errno::Perm.into())
    }

    fn open(&self, _: &Caller, ino: Ino) -> Result<()> {
        self.attr(ino).map(drop)
    }

    fn release(&self, _: Ino) {}

    fn read(&self, _: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let disk = self.disk(ino)?;
        let left = disk.bytes().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        if len > 0 {
            (disk.read(offset, &mut buf[..len])).map_err(|e| refused(&e))?;
        }
        Ok(len)
    }

    fn write(&self, _: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let written = self.disk(ino)?.write(offset, data);
        written.map(|()| data.len()).map_err(|e| refused(&e))
    }

    fn append(&self, _: &Caller, ino: Ino, _: &[u8]) -> Result<(u64, usize)> {
        self.disk(ino).and(Err(Errno::NoSpc.into()))
    }

    fn fsync(&self, _: &Caller, ino: Ino, _: bool) -> Result<()> {
        self.attr(ino)?;
        self.sync()
    }

    fn fallocate(
        &self,
        _: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let disk = self.disk(ino)?;
        let end = offset.checked_add(len).ok_or(Errno::FBig)?;
        match mode {
            // All there is has its room.
            AllocateMode::Allocate | AllocateMode::KeepSize if end <= disk.bytes() => Ok(()),
            AllocateMode::Allocate | AllocateMode::KeepSize | AllocateMode::ZeroRange
                if end > disk.bytes() =>
            {
                Err(Errno::NoSpc.into())
            }
            // Past the end there is nothing to punch.
            _ => {
                let count = end.min(disk.bytes()).saturating_sub(offset);
                if count == 0 {
                    return Ok(());
                }
                (disk.zero(offset, count)).map_err(|e| refused(&e))
            }
        }
    }

    fn seek(&self, _: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let disk = self.disk(ino)?;
        let mut at = offset;
        while at < disk.bytes() {
            let (len, hole) = disk.run(at, disk.bytes()).map_err(|e| refused(&e))?;
            if hole == (whence == Seek::Hole) {
                return Ok(at);
            }
            at += len.max(1);
        }
        match whence {
            Seek::Hole if offset < disk.bytes() => Ok(disk.bytes()),
            _ => Err(Errno::NxIo.into()),
        }
    }

    fn readdir(
        &self,
        _: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        DiskFile::directory(dir)?;
        let entries: [(&[u8], Ino, FileKind); 3] = [
            (b".", ROOT, FileKind::Directory),
            (b"..", ROOT, FileKind::Directory),
            (DISK_NAME.as_bytes(), DISK, FileKind::Regular),
        ];
        for ((name, ino, kind), next) in entries.into_iter().zip(1..) {
            let entry = DirEntry {
                ino,
                kind,
                next,
                name,
            };
            if next > cookie && !sink(entry) {
                break;
            }
        }
        Ok(())
    }

    fn getxattr(&self, _: &Caller, ino: Ino, _: &[u8]) -> Result<Vec<u8>> {
        self.attr(ino).and(Err(Errno::NoData.into()))
    }

    fn setxattr(&self, _: &Caller, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        Err(Errno::OpNotSupp.into())
    }

    fn listxattr(&self, _: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.attr(ino).map(|_| Vec::new())
    }

    fn removexattr(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
        Err(Errno::NoData.into())
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs {
            block_size: BLOCK as u32,
            blocks: self.served.bytes() / BLOCK,
            blocks_free: 0,
            inodes: 2,
            inodes_free: 0,
            name_max: steadfast_vfs::NAME_MAX as u32,
        })
    }

    fn sync(&self) -> Result<()> {
        self.served.flush().map_err(|e| refused(&e))
    }
}
