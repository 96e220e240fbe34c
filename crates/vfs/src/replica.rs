//! A file system that others change: states of one volume, each newer than the one before, served one after the other.
//!
//! The follower of the volume passes each state as a file system of its own, which is only read
//! ([`replace`](Replica::replace)). Invariants:
//!
//! * each call sees one state. Calls that begin after a replacement has returned see the new one, or a later one;
//! * an inode that is held open has the generation that it had when it was opened, or every call about it fails with ESTALE:
//!   its number may be another file's in a newer state. A state that is only read frees nothing, so holding an inode open
//!   needs nothing of the state itself;
//! * after [`stop`](Replica::stop), until the next replacement, every call fails with ESTALE: the state's objects may be gone.

use crate::{
    AllocateMode, Attr, Caller, Cookie, DirEntry, Errno, FileSystem, Health, Ino, InodeFlags,
    NewNode, RenameMode, Result, ScrubCursor, ScrubPiece, Seek, SetAttr, Shutdown, StatFs, Streams,
    Wanted, XattrMode, fsync_each,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

/// Called after each replacement or stop.
type Hook = Box<dyn Fn() + Send + Sync>;

/// See the module's header.
pub struct Replica {
    root: Ino,
    /// The served state. None: stopped.
    served: RwLock<Option<Arc<dyn FileSystem>>>,
    /// The inodes that are held open.
    open: Mutex<HashMap<Ino, Opened>>,
    replaced: Mutex<Option<Hook>>,
}

#[derive(Clone, Copy)]
struct Opened {
    generation: u64,
    times: u64,
    /// The state that is served has another file under the number, or none.
    is_gone: bool,
}

impl Replica {
    /// Serves a first state.
    #[must_use]
    pub fn new(state: Arc<dyn FileSystem>) -> Replica {
        Replica {
            root: state.root(),
            served: RwLock::new(Some(state)),
            open: Mutex::default(),
            replaced: Mutex::default(),
        }
    }

    /// Serves a newer state of the same volume. O(inodes that are open).
    pub fn replace(&self, state: Arc<dyn FileSystem>) {
        // The generations of open inodes in the new state. It may have to ask the device: under no lock.
        let mut found: HashMap<Ino, Option<u64>> = HashMap::new();
        loop {
            let unknown: Vec<Ino> = {
                let mut open = self.open();
                let unknown = open.keys().filter(|ino| !found.contains_key(*ino));
                let unknown: Vec<Ino> = unknown.copied().collect();
                if unknown.is_empty() {
                    for (ino, opened) in open.iter_mut() {
                        opened.is_gone = found.get(ino) != Some(&Some(opened.generation));
                    }
                    // Under the lock: an inode that is opened from here on is looked for in the new state.
                    *self.served_mut() = Some(state);
                    break;
                }
                unknown
            };
            for ino in unknown {
                let now = state.getattr(&Caller::root(), ino);
                found.insert(ino, now.ok().map(|attr| attr.generation));
            }
        }
        self.tell();
    }

    /// Serves nothing until the next replacement: every call fails with ESTALE.
    pub fn stop(&self) {
        *self.served_mut() = None;
        self.tell();
    }

    fn tell(&self) {
        let hook = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hook) = &*hook {
            hook();
        }
    }

    /// `hook` is called after each replacement and stop: caches above have to drop their content.
    pub fn on_replace(&self, hook: impl Fn() + Send + Sync + 'static) {
        *self.replaced.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Ino, Opened>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served_mut(&self) -> RwLockWriteGuard<'_, Option<Arc<dyn FileSystem>>> {
        self.served.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state that is served.
    fn state(&self) -> Result<Arc<dyn FileSystem>> {
        let served = self.served.read().unwrap_or_else(PoisonError::into_inner);
        served.clone().ok_or(Errno::Stale.into())
    }

    /// The state that is served, if the inode is the one that is held open, or none is.
    fn about(&self, ino: Ino) -> Result<Arc<dyn FileSystem>> {
        let open = self.open();
        if open.get(&ino).is_some_and(|opened| opened.is_gone) {
            return Err(Errno::Stale.into());
        }
        self.state()
    }

    /// Holds an inode open as the state that is served has it, if `is_wanted` its generation.
    fn hold(&self, caller: &Caller, ino: Ino, is_wanted: impl Fn(u64) -> bool) -> Result<()> {
        let (mut open, generation) = loop {
            let state = self.state()?;
            let attr = state.getattr(caller, ino)?;
            if !is_wanted(attr.generation) {
                return Err(Errno::Stale.into());
            }
            let open = self.open();
            // A replacement that did not see this one open has ended since: look again.
            if Arc::ptr_eq(&state, &self.state()?) {
                break (open, attr.generation);
            }
        };
        let opened = open.entry(ino).or_insert(Opened {
            generation,
            times: 0,
            is_gone: false,
        });
        opened.times += 1;
        // The front end learns the new file's generation here, and asks no more about the old one's.
        opened.generation = generation;
        opened.is_gone = false;
        Ok(())
    }
}

// Each call asks about its inode, or for the state: no field could be passed on to. None may be left to its default.
#[deny(clippy::missing_trait_methods)]
impl FileSystem for Replica {
    fn root(&self) -> Ino {
        self.root
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.about(parent)?.lookup(caller, parent, name)
    }

    fn getattr(&self, caller: &Caller, ino: Ino) -> Result<Attr> {
        self.about(ino)?.getattr(caller, ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.about(ino)?.setattr(caller, ino, set)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        self.about(ino)?.access(caller, ino, mask)
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.about(parent)?.mknod(caller, parent, name, node)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        self.about(parent)?.mkdir(caller, parent, name, perm)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.about(parent)?.symlink(caller, parent, name, target)
    }

    fn readlink(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.about(ino)?.readlink(caller, ino)
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.about(ino)?.link(caller, ino, parent, name)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.about(parent)?.unlink(caller, parent, name)
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.about(parent)?.rmdir(caller, parent, name)
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.about(from.0)?.rename(caller, from, to, mode)
    }

    fn open(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.hold(caller, ino, |_| true)
    }

    fn open_generation(&self, caller: &Caller, ino: Ino, generation: u64) -> Result<()> {
        self.hold(caller, ino, |found| found == generation)
    }

    fn release(&self, ino: Ino) {
        let mut open = self.open();
        if let Some(opened) = open.get_mut(&ino) {
            opened.times -= 1;
            if opened.times == 0 {
                open.remove(&ino);
            }
        }
    }

    fn read(&self, caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.about(ino)?.read(caller, ino, offset, buf)
    }

    fn in_memory(&self, look: &mut dyn FnMut()) -> bool {
        match self.state() {
            Ok(state) => state.in_memory(look),
            Err(_) => {
                look();
                true
            }
        }
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.about(ino)?.write(caller, ino, offset, data)
    }

    fn append(&self, caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        self.about(ino)?.append(caller, ino, data)
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        self.about(ino)?.fsync(caller, ino, data_only)
    }

    /// One by one: each is asked of the state that has its inode.
    fn fsync_together(&self, wanted: &[Wanted]) -> Result<()> {
        fsync_each(self, wanted)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.about(ino)?.fallocate(caller, ino, mode, offset, len)
    }

    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.about(ino)?.seek(caller, ino, offset, whence)
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.about(dir)?.readdir(caller, dir, cookie, sink)
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.about(ino)?.getxattr(caller, ino, name)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.about(ino)?.setxattr(caller, ino, name, value, mode)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.about(ino)?.listxattr(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.about(ino)?.removexattr(caller, ino, name)
    }

    fn flags(&self, caller: &Caller, ino: Ino) -> Result<InodeFlags> {
        self.about(ino)?.flags(caller, ino)
    }

    fn set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.about(ino)?.set_flags(caller, ino, flags)
    }

    fn statfs(&self) -> Result<StatFs> {
        self.state()?.statfs()
    }

    fn sync(&self) -> Result<()> {
        self.state()?.sync()
    }

    fn sync_store(&self) -> Result<()> {
        self.state()?.sync_store()
    }

    /// None: a reference to the streams of a state would outlive the state.
    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    fn accessed(&self, caller: &Caller, ino: Ino) -> Result<()> {
        self.about(ino)?.accessed(caller, ino)
    }

    fn trim(&self, bytes: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.state()?.trim(bytes, min_bytes)
    }

    fn freeze(&self, limit: Duration) -> Result<()> {
        self.state()?.freeze(limit)
    }

    fn thaw(&self) -> bool {
        self.state().is_ok_and(|state| state.thaw())
    }

    fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.state()?.shutdown(how)
    }

    fn scrub(&self, from: ScrubCursor, blocks: u64, data: bool) -> Result<ScrubPiece> {
        self.state()?.scrub(from, blocks, data)
    }

    fn health(&self) -> Health {
        self.state().map_or_else(
            |_| Health {
                read_only: true,
                ..Health::default()
            },
            |state| state.health(),
        )
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.state()
            .map_or_else(|_| Vec::new(), |state| state.counters())
    }
}
