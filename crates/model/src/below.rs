//! [`Below`]: one directory of a file system as a file system of its own. Threads that share a
//! volume each compare their own directory with a tree of their own.

use steadfast_vfs::{Attr, Caller, Cookie, DirEntry, FileSystem, Ino, Result};

/// View of the tree below one directory; its `..` is itself.
pub struct Below<'a> {
    fs: &'a dyn FileSystem,
    root: Ino,
}

impl<'a> Below<'a> {
    /// View of the tree below the directory `root` of `fs`.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, root: Ino) -> Below<'a> {
        Below { fs, root }
    }
}

impl FileSystem for Below<'_> {
    steadfast_vfs::pass_through! { fs: all but root, lookup, readdir }

    fn root(&self) -> Ino {
        self.root
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        let out = parent == self.root && name == b"..";
        let name = if out { b"." } else { name };
        self.fs.lookup(caller, parent, name)
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
}
