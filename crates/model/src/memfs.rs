//! [`MemFs`]: the tree under a lock, as a file system. Front ends are tested on it
//! without storage, and file systems against it.
//!
//! Reads work on a clone of the tree, which is a few pointers: no caller's code ever
//! runs under the lock. Everything is as durable as the process.

use crate::tree::{Listed, ROOT, Tree, TreeResult};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use steadfast_vfs::{
    AllocateMode, Attr, Caller, Clock, Cookie, DirEntry, FileSystem, Ino, NAME_MAX, NewNode,
    RenameMode, Result, Seek, SetAttr, StatFs, SystemClock, Time, XattrMode,
};

/// A clock that stands still until a test moves it. Every part of the test that
/// holds a clone sees the same time.
#[derive(Clone, Debug, Default)]
pub struct TestClock {
    nanos: Arc<AtomicU64>,
}

impl TestClock {
    /// A clock at 1970.
    #[must_use]
    pub fn new() -> TestClock {
        TestClock::default()
    }

    /// Sets the time; times before 1970 count as 1970.
    pub fn set(&self, at: Time) {
        let secs = u64::try_from(at.secs).unwrap_or(0);
        let nanos = secs
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::from(at.nanos));
        self.nanos.store(nanos, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Time {
        let nanos = self.nanos.load(Ordering::SeqCst);
        Time {
            secs: (nanos / 1_000_000_000) as i64,
            nanos: (nanos % 1_000_000_000) as u32,
        }
    }
}

/// Entries that one `readdir` takes from the tree at a time.
const BATCH: usize = 256;

/// A file system in memory.
pub struct MemFs {
    tree: RwLock<Tree>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for MemFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemFs({} inodes)", self.tree().inodes())
    }
}

impl Default for MemFs {
    fn default() -> MemFs {
        MemFs::new(Arc::new(SystemClock))
    }
}

impl MemFs {
    /// An empty file system with this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> MemFs {
        let tree = Tree::new(clock.now());
        MemFs::with_tree(tree, clock)
    }

    /// A file system that starts as `tree`.
    #[must_use]
    pub fn with_tree(tree: Tree, clock: Arc<dyn Clock>) -> MemFs {
        MemFs {
            tree: RwLock::new(tree),
            clock,
        }
    }

    /// The tree as it is now.
    #[must_use]
    pub fn tree(&self) -> Tree {
        // A panic while the lock was held cannot leave a torn tree that matters more than
        // the panic: keep serving.
        self.tree
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn change<T>(&self, f: impl FnOnce(&mut Tree, Time) -> TreeResult<T>) -> Result<T> {
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        Ok(f(&mut tree, self.clock.now())?)
    }

    fn make(&self, f: impl FnOnce(&mut Tree, Time) -> TreeResult<Ino>) -> Result<Attr> {
        self.change(|tree, at| {
            let ino = f(tree, at)?;
            tree.getattr(ino)
        })
    }
}

impl FileSystem for MemFs {
    fn root(&self) -> Ino {
        ROOT
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        let tree = self.tree();
        Ok(tree.getattr(tree.lookup(caller, parent, name)?)?)
    }

    fn getattr(&self, _caller: &Caller, ino: Ino) -> Result<Attr> {
        Ok(self.tree().getattr(ino)?)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.make(|tree, at| tree.setattr(caller, at, ino, set).map(|()| ino))
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        Ok(self.tree().access(caller, ino, mask)?)
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.make(|tree, at| tree.mknod(caller, at, parent, name, node))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        self.make(|tree, at| tree.mkdir(caller, at, parent, name, perm))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.make(|tree, at| tree.symlink(caller, at, parent, name, target))
    }

    fn readlink(&self, _caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.tree().readlink(ino)?.to_vec())
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.make(|tree, at| tree.link(caller, at, ino, parent, name).map(|()| ino))
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(|tree, at| tree.unlink(caller, at, parent, name))
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(|tree, at| tree.rmdir(caller, at, parent, name))
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.change(|tree, at| tree.rename(caller, at, from, to, mode))
    }

    fn open(&self, _caller: &Caller, ino: Ino) -> Result<()> {
        self.change(|tree, _| tree.open(ino))
    }

    fn release(&self, ino: Ino) {
        self.tree
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .release(ino);
    }

    fn read(&self, _caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.tree().read(ino, offset, buf)?)
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.change(|tree, at| tree.write(caller, at, ino, offset, data))
    }

    fn append(&self, caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        let at = self.change(|tree, at| tree.append(caller, at, ino, data))?;
        Ok((at, data.len()))
    }

    fn fsync(&self, _caller: &Caller, ino: Ino, _data_only: bool) -> Result<()> {
        self.tree().getattr(ino)?;
        Ok(())
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.change(|tree, at| tree.fallocate(caller, at, ino, mode, offset, len))
    }

    fn seek(&self, _caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        Ok(self.tree().seek(ino, offset, whence)?)
    }

    fn readdir(
        &self,
        _caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut cookie = cookie;
        loop {
            let batch: Vec<Listed> = self.tree().readdir(dir, cookie, BATCH)?;
            for e in &batch {
                let entry = DirEntry {
                    ino: e.ino,
                    kind: e.kind,
                    next: e.cookie,
                    name: &e.name,
                };
                if !sink(entry) {
                    return Ok(());
                }
                cookie = e.cookie;
            }
            if batch.len() < BATCH {
                return Ok(());
            }
        }
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.tree().getxattr(caller, ino, name)?.to_vec())
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.change(|tree, at| tree.setxattr(caller, at, ino, (name, value), mode))
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.tree().listxattr(caller, ino)?)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(|tree, at| tree.removexattr(caller, at, ino, name))
    }

    fn statfs(&self) -> Result<StatFs> {
        let used = self.tree().inodes() as u64;
        let free = 1 << 20;
        Ok(StatFs {
            block_size: 4096,
            blocks: 1 << 28,
            blocks_free: 1 << 27,
            inodes: used + free,
            inodes_free: free,
            name_max: NAME_MAX as u32,
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
