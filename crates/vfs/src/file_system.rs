//! [`FileSystem`]: the calls of a front end.
//!
//! Calls that a file system must answer have no default. The defaults of the others are those of a file system that is
//! only read and offers nothing more; the documentation of each says its answer. A layer above another file system takes
//! none of them: it passes on what it does not change ([`pass_through!`](crate::pass_through)).

use std::ops::Range;

use crate::{
    AllocateMode, Attr, Caller, Cookie, DirEntry, Errno, Health, Ino, InodeFlags, NewNode,
    RenameMode, Result, ScrubCursor, ScrubPiece, Seek, SetAttr, Shutdown, StatFs, Streams, Wanted,
    XattrMode,
};

/// [`FileSystem::fsync_together`] one after the other. Changes of an inode that is gone are durable with everything else:
/// its stream cannot be named without it.
///
/// # Errors
/// The first that is met.
pub fn fsync_each<F: FileSystem + ?Sized>(fs: &F, wanted: &[Wanted]) -> Result<()> {
    for one in wanted {
        let caller = Caller {
            stream: one.stream,
            ..Caller::root()
        };
        match fs.fsync(&caller, one.ino, one.data_only) {
            Err(e) if e == Errno::Stale => fs.sync()?,
            other => other?,
        }
    }
    Ok(())
}

/// A mounted file system. All calls may come from any thread; each is atomic with
/// respect to all others unless it says otherwise.
///
/// *Durability* is the volume's contract plus `fsync`/`sync`: no other call waits for
/// the medium (except where the contract is `sync`).
///
/// Nine calls have no default, and a file system that is only read needs no others: `root`, `lookup`, `getattr`, `access`,
/// `readlink`, `read`, `readdir`, `statfs` and `sync`.
///
/// ```
/// use steadfast_vfs::{
///     Attr, Caller, Cookie, DirEntry, Errno, FileKind, FileSystem, Ino, NAME_MAX, Result, StatFs, Time,
/// };
///
/// /// One directory with one file.
/// struct Motd;
///
/// const ROOT: Ino = 1;
/// const FILE: Ino = 2;
/// const NAME: &[u8] = b"motd";
/// const TEXT: &[u8] = b"Hello.\n";
///
/// impl FileSystem for Motd {
///     fn root(&self) -> Ino {
///         ROOT
///     }
///     fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
///         match (parent, name) {
///             (ROOT, b"." | b"..") => self.getattr(caller, ROOT),
///             (ROOT, NAME) => self.getattr(caller, FILE),
///             (ROOT, _) => Err(Errno::NoEnt.into()),
///             _ => Err(Errno::NotDir.into()),
///         }
///     }
///     fn getattr(&self, _: &Caller, ino: Ino) -> Result<Attr> {
///         let (kind, perm, nlink, size) = match ino {
///             ROOT => (FileKind::Directory, 0o555, 2, 0),
///             FILE => (FileKind::Regular, 0o444, 1, TEXT.len() as u64),
///             _ => return Err(Errno::Stale.into()),
///         };
///         let [atime, mtime, ctime, btime] = [Time::default(); 4];
///         let (generation, uid, gid, rdev, blocks) = (0, 0, 0, 0, size.div_ceil(512));
///         Ok(Attr { ino, generation, kind, perm, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, btime })
///     }
///     fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
///         // Read (4) and search (1) for everybody.
///         self.getattr(caller, ino)?;
///         if mask & 2 == 0 { Ok(()) } else { Err(Errno::RoFs.into()) }
///     }
///     fn readlink(&self, _: &Caller, _: Ino) -> Result<Vec<u8>> {
///         Err(Errno::Inval.into())
///     }
///     fn read(&self, _: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
///         let rest = match ino {
///             FILE => TEXT.get(offset as usize..).unwrap_or_default(),
///             _ => return Err(Errno::IsDir.into()),
///         };
///         let len = rest.len().min(buf.len());
///         buf[..len].copy_from_slice(&rest[..len]);
///         Ok(len)
///     }
///     fn readdir(
///         &self,
///         _: &Caller,
///         dir: Ino,
///         cookie: Cookie,
///         sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
///     ) -> Result<()> {
///         if dir != ROOT {
///             return Err(Errno::NotDir.into());
///         }
///         let entries = [
///             (ROOT, FileKind::Directory, &b"."[..]),
///             (ROOT, FileKind::Directory, b".."),
///             (FILE, FileKind::Regular, NAME),
///         ];
///         for ((ino, kind, name), next) in entries.into_iter().zip(1..) {
///             if next > cookie && !sink(DirEntry { ino, kind, next, name }) {
///                 break;
///             }
///         }
///         Ok(())
///     }
///     fn statfs(&self) -> Result<StatFs> {
///         Ok(StatFs { block_size: 4096, inodes: 2, name_max: NAME_MAX as u32, ..StatFs::default() })
///     }
///     fn sync(&self) -> Result<()> {
///         Ok(())
///     }
/// }
///
/// let (me, mut text) = (Caller::root(), [0; 16]);
/// let file = Motd.lookup(&me, Motd.root(), b"motd").unwrap();
/// let len = Motd.read(&me, file.ino, 0, &mut text).unwrap();
/// assert_eq!(&text[..len], b"Hello.\n");
/// assert!(Motd.write(&me, file.ino, 0, b"Bye.").unwrap_err() == Errno::RoFs);
/// ```
pub trait FileSystem: Send + Sync {
    /// The root directory's inode.
    fn root(&self) -> Ino;

    /// Finds `name` in `parent`. `.` and `..` are understood. ENOENT, ENOTDIR, EACCES, ENAMETOOLONG.
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr>;
    /// Attributes of an inode. ESTALE if there is no such inode.
    fn getattr(&self, caller: &Caller, ino: Ino) -> Result<Attr>;
    /// Changes attributes atomically (ownership rules of POSIX, set-id bits included). The default is EROFS.
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let _ = (caller, ino, set);
        Err(Errno::RoFs.into())
    }
    /// Whether the caller may read (4), write (2), execute or search (1): EACCES if not.
    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()>;

    /// Makes a regular file, device, pipe or socket. EEXIST if the name is taken. The default is EROFS.
    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let _ = (caller, parent, name, node);
        Err(Errno::RoFs.into())
    }
    /// Makes a directory. The default is EROFS.
    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let _ = (caller, parent, name, perm);
        Err(Errno::RoFs.into())
    }
    /// Makes a symbolic link. The default is EROFS.
    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _ = (caller, parent, name, target);
        Err(Errno::RoFs.into())
    }
    /// The target of a symbolic link. EINVAL for all others.
    fn readlink(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>>;
    /// Makes another name for an inode. EPERM for directories, EMLINK at the limit. The default is EROFS.
    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let _ = (caller, ino, parent, name);
        Err(Errno::RoFs.into())
    }
    /// Removes a name. An open inode lives on until its last `release`. The default is EROFS.
    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let _ = (caller, parent, name);
        Err(Errno::RoFs.into())
    }
    /// Removes an empty directory. The default is EROFS.
    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        let _ = (caller, parent, name);
        Err(Errno::RoFs.into())
    }
    /// Renames atomically, with every case of POSIX and Linux. The default is EROFS.
    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let _ = (caller, from, to, mode);
        Err(Errno::RoFs.into())
    }

    /// Keeps an inode alive while it is open, even without names. Pairs with `release`.
    /// Does not check permissions: front ends call `access` where the kernel did not.
    ///
    /// The default asks for the attributes and holds nothing: right where no inode ever goes. A file system that removes
    /// inodes implements this and `release`.
    fn open(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.getattr(caller, ino).map(drop)
    }
    /// The same of an inode that was looked up before: ESTALE if it has gone, also if another has its
    /// number by now. The default opens the inode, then compares the generation in its attributes.
    fn open_generation(&self, caller: &Caller, ino: Ino, generation: u64) -> Result<()> {
        self.open(caller, ino)?;
        match self.getattr(caller, ino) {
            Ok(attr) if attr.generation == generation => Ok(()),
            other => {
                self.release(ino);
                other.and(Err(Errno::Stale.into()))
            }
        }
    }
    /// Ends one `open`. Frees an inode that has no names left. The default does nothing.
    fn release(&self, ino: Ino) {
        let _ = ino;
    }
    /// Reads up to `buf.len()` bytes at `offset`; returns how many (short only at the end).
    fn read(&self, caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Runs `look`, whose calls of this file system change nothing, without waiting for the device. Returns whether all
    /// that it asked for was in memory; if not, the answers mean nothing. The default is that all is in memory: a file system
    /// whose calls wait for a device implements this, or the NFS server's calls from memory wait, too.
    fn in_memory(&self, look: &mut dyn FnMut()) -> bool {
        look();
        true
    }
    /// Writes `data` at `offset`; returns how much of it: less if there is space for a part only. EFBIG, ENOSPC before
    /// any effect; a very long write may be several operations, in order. The default is EROFS.
    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let _ = (caller, ino, offset, data);
        Err(Errno::RoFs.into())
    }
    /// The same at the end of the file, wherever that is; returns the offset it went to, too. The default is EROFS, also for a
    /// file system that has `write`: only the file system can find the end and write there in one step.
    fn append(&self, caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        let _ = (caller, ino, data);
        Err(Errno::RoFs.into())
    }
    /// Makes the inode durable: commits the caller's stream and every stream with an
    /// uncommitted change to it. `data_only` is `fdatasync`. The default is [`sync`](FileSystem::sync), which makes all durable.
    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        let _ = (caller, ino, data_only);
        self.sync()
    }
    /// `fsync` for each, together: they can share a flush. Inodes that are gone are passed over, their streams
    /// are not. The default is one `fsync` after the other.
    fn fsync_together(&self, wanted: &[Wanted]) -> Result<()> {
        fsync_each(self, wanted)
    }
    /// Changes the allocation of a range. EOPNOTSUPP where a mode is not offered, as by default.
    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let _ = (caller, ino, mode, offset, len);
        Err(Errno::OpNotSupp.into())
    }
    /// Finds data or a hole at or after `offset`. ENXIO beyond the end. The default is that a file is data up to its size.
    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let size = self.getattr(caller, ino)?.size;
        match whence {
            _ if offset >= size => Err(Errno::NxIo.into()),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    /// Lists a directory from `cookie` on (0: from the start), `.` and `..` included,
    /// until `sink` returns false (the entry it refused is not consumed) or the end.
    fn readdir(
        &self,
        caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Value of an extended attribute. ENODATA if there is none, as by default.
    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let _ = (caller, ino, name);
        Err(Errno::NoData.into())
    }
    /// Sets an extended attribute. EOPNOTSUPP where there can be none, as by default.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let _ = (caller, ino, name, value, mode);
        Err(Errno::OpNotSupp.into())
    }
    /// Names of all extended attributes. The default is none.
    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let _ = (caller, ino);
        Ok(Vec::new())
    }
    /// Removes an extended attribute. ENODATA if there is none. EOPNOTSUPP where there can be none, as by default.
    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let _ = (caller, ino, name);
        Err(Errno::OpNotSupp.into())
    }

    /// The flags of a file or directory, as `lsattr` shows them. EOPNOTSUPP where there are none, as by default.
    fn flags(&self, caller: &Caller, ino: Ino) -> Result<InodeFlags> {
        let _ = (caller, ino);
        Err(Errno::OpNotSupp.into())
    }
    /// Sets the flags of a file or directory. EPERM, and EOPNOTSUPP for flags that are not offered, by default all.
    fn set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        let _ = (caller, ino, flags);
        Err(Errno::OpNotSupp.into())
    }

    /// State of the volume.
    fn statfs(&self) -> Result<StatFs>;
    /// Commits every stream. There is no default: a file system that takes changes must not forget this, one that takes none
    /// returns `Ok(())`.
    fn sync(&self) -> Result<()>;

    /// Commits every stream, and waits until that is where it is to stay: where a commit is durable on a cache first, until
    /// the store has it. The default is `sync`.
    fn sync_store(&self) -> Result<()> {
        self.sync()
    }

    /// The volume's streams; `None` if its contract has only one, as by default.
    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    /// Notes that an inode was read, where access times are wanted: `read`, `readdir` and
    /// `readlink` change none by themselves. As `relatime`: noted is the first read after a
    /// change, and one a day. The default keeps no access times: it does nothing.
    fn accessed(&self, caller: &Caller, ino: Ino) -> Result<()> {
        let _ = (caller, ino);
        Ok(())
    }

    /// Tells the device of the free space in a range of its bytes, runs of fewer than `min_bytes` left out, while others
    /// work. Returns how many bytes that were. EINVAL if the range is shorter than a block or begins past the end;
    /// EOPNOTSUPP if that is not offered, as by default.
    fn trim(&self, bytes: Range<u64>, min_bytes: u64) -> Result<u64> {
        let _ = (bytes, min_bytes);
        Err(Errno::OpNotSupp.into())
    }

    /// Makes everything durable, then freezes the device until [`thaw`](FileSystem::thaw), at most for `limit`: writes
    /// to it wait, reads go on. EBUSY if it is frozen already; EOPNOTSUPP if that is not offered, as by default.
    fn freeze(&self, limit: std::time::Duration) -> Result<()> {
        let _ = limit;
        Err(Errno::OpNotSupp.into())
    }

    /// Ends a freeze: false if there is none, as by default, or if its limit has passed.
    fn thaw(&self) -> bool {
        false
    }

    /// Health of the volume. The default is healthy.
    fn health(&self) -> Health {
        Health::default()
    }

    /// Looks at about `blocks` blocks on the medium, from `from` on, while others work: whether metadata has its
    /// checksums, and, if `data`, whether file content can be read. EOPNOTSUPP if that is not offered, as by
    /// default.
    fn scrub(&self, from: ScrubCursor, blocks: u64, data: bool) -> Result<ScrubPiece> {
        let _ = (from, blocks, data);
        Err(Errno::OpNotSupp.into())
    }

    /// Counters, by name, since the mount. Values with a name in `_now` go up and down; [`metrics`](crate::metrics)
    /// describes them. The default has none.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Goes down now: when this has returned, nothing is written any more, and every call
    /// that changes or syncs fails. EOPNOTSUPP if that is not offered, as by default.
    fn shutdown(&self, how: Shutdown) -> Result<()> {
        let _ = how;
        Err(Errno::OpNotSupp.into())
    }
}

#[cfg(test)]
mod tests;
