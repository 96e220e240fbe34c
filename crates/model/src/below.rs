//! [`Below`]: one directory of a file system as a file system of its own. Threads that share a
//! volume each compare their own directory with a tree of their own.

use steadfast_vfs::{
    AllocateMode, Attr, Caller, Cookie, DirEntry, FileSystem, Ino, NewNode, RenameMode, Result,
    Seek, SetAttr, StatFs, XattrMode,
};

/// What lies below one directory; its `..` is itself.
pub struct Below<'a> {
    fs: &'a dyn FileSystem,
    root: Ino,
}

impl<'a> Below<'a> {
    /// What lies below the directory `root` of `fs`.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, root: Ino) -> Below<'a> {
        Below { fs, root }
    }
}

impl FileSystem for Below<'_> {
    fn root(&self) -> Ino {
        self.root
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        let out = parent == self.root && name == b"..";
        let name = if out { b"." } else { name };
        self.fs.lookup(caller, parent, name)
    }

    fn getattr(&self, caller: &Caller, ino: Ino) -> Result<Attr> {
        self.fs.getattr(caller, ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.fs.setattr(caller, ino, set)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        self.fs.access(caller, ino, mask)
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.fs.mknod(caller, parent, name, node)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        self.fs.mkdir(caller, parent, name, perm)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.fs.symlink(caller, parent, name, target)
    }

    fn readlink(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.fs.readlink(caller, ino)
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.fs.link(caller, ino, parent, name)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.fs.unlink(caller, parent, name)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.fs.rmdir(caller, parent, name)
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.fs.rename(caller, from, to, mode)
    }

    fn open(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.fs.open(caller, ino)
    }

    fn release(&self, ino: Ino) {
        self.fs.release(ino);
    }

    fn read(&self, caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.fs.read(caller, ino, offset, buf)
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.fs.write(caller, ino, offset, data)
    }

    fn append(&self, caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        self.fs.append(caller, ino, data)
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        self.fs.fsync(caller, ino, data_only)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.fs.fallocate(caller, ino, mode, offset, len)
    }

    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.fs.seek(caller, ino, offset, whence)
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let root = self.root;
        self.fs.readdir(caller, dir, cookie, &mut |mut entry| {
            if dir == root && entry.name == b".." {
                entry.ino = root;
            }
            sink(entry)
        })
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.getxattr(caller, ino, name)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.fs.setxattr(caller, ino, name, value, mode)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.fs.listxattr(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.fs.removexattr(caller, ino, name)
    }

    fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs()
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync()
    }
}
