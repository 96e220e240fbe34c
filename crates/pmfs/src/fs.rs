//! [`PmFs`]: a mounted volume as its users hold it. A thin layer over [`crate::ops`].
//!
//! Every call that has returned is durable (contract `sync`). A call is atomic: a crash leaves its tree of before or of after;
//! times alone may be of either.
//!
//! # Locks
//!
//! In this order; none is held twice, and no caller's code runs under any of them:
//!
//! 1. the *moves* lock: held by a rename that gives a directory another parent, from before it looks at the directories above
//!    until its end. A call that has it reads parents that stay (one node's lock at a time);
//! 2. the locks of nodes, by number. Reading takes them shared; a change takes those of the inodes that it changes. A lookup,
//!    an unlink, a rmdir and a rename within one directory lock the directory first, because the child is only known then; a
//!    child with a smaller number is locked only if it is free. If not, the directory is unlocked, all are locked in order, and
//!    the name is looked at again. The place of a new inode is locked in its turn if the inode begins with more than most do;
//! 3. the locks of the free space: innermost, for one access each.
//!
//! Two threads on different inodes share no lock but those of the third kind, which are sharded.
//!
//! An inode is freed when it has neither names nor openers, under its exclusive lock. Nodes are found without a lock. A call
//! that has locked one asks first whether the inode is still there: ESTALE.
//!
//! # When the memory fails
//!
//! A region that has failed loses stores, and zeros are in the place of words. Each call looks at that at its end, and reports
//! EIO: its changes may be lost, its reads may be wrong. Nothing is changed any more.

use crate::error::Error;
use crate::gate::{Gate, Passing};
use crate::layout::{ROOT, time_word};
use crate::mount::{self, Mount, MountReport};
use crate::options::MountOptions;
use crate::state::{self, FreeSpace, Medium};
use crate::superblock::Superblock;
use crate::table::Table;
use std::sync::{Mutex, MutexGuard, PoisonError};
use steadfast_pm::Region;
use steadfast_vfs::{
    AllocateMode, Attr, Caller, Cookie, DirEntry, Errno, FileSystem, Health, Ino, InodeFlags,
    NewNode, RenameMode, Result, Seek, SetAttr, Shutdown, StatFs, XattrMode,
};

/// Message for a failed region.
const FAILED: &str =
    "the persistent memory failed: its file was cut short, or the medium is broken";

/// A mounted volume on persistent memory.
pub struct PmFs {
    mount: Mount,
    options: MountOptions,
    moves: Mutex<()>,
    gate: Gate,
}

impl PmFs {
    /// Mounts the volume in `region`, and recovers it. `progress` gets the parts done so far, and their number.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn mount(
        region: Region,
        options: &MountOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> std::result::Result<PmFs, Error> {
        Ok(PmFs {
            mount: mount::mount(region, options, progress)?,
            options: options.clone(),
            moves: Mutex::default(),
            gate: Gate::default(),
        })
    }

    /// Notes that the volume is unmounted; without that, the next mount says that there was a crash. Everything is durable
    /// already. Every later change fails. Does nothing when it was called before.
    ///
    /// # Errors
    /// EIO if the memory has failed.
    pub fn unmount(&self) -> Result<()> {
        if self.gate.close() && self.mount.free.is_some() && !self.medium().failed() {
            state::store_hints(self.medium(), true, self.mount.report.mounts);
        }
        self.intact()
    }

    /// Unmounts, and gives the region back.
    #[must_use]
    pub fn into_region(self) -> Region {
        // The region itself reports the failures of unmounting.
        let _ = self.unmount();
        self.mount.medium.into_region()
    }

    /// Findings of the mount.
    #[must_use]
    pub fn report(&self) -> &MountReport {
        &self.mount.report
    }

    /// Content of the superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.mount.superblock
    }

    /// Makes a regular file without a name (`O_TMPFILE`) in `parent`, whose group, default ACL and flags it gets, and opens
    /// it. [`link`](FileSystem::link) may name it; if that has not happened, its last [`release`](FileSystem::release) frees
    /// it, and so does a crash.
    ///
    /// # Errors
    /// As of [`mknod`](FileSystem::mknod), names aside.
    pub fn tmpfile(&self, caller: &Caller, parent: Ino, perm: u16) -> Result<Attr> {
        self.change(|| self.op_tmpfile(caller, parent, perm))
    }

    /// The region, to look at.
    #[must_use]
    pub fn medium(&self) -> &Medium {
        &self.mount.medium
    }

    pub(crate) fn table(&self) -> &Table {
        &self.mount.table
    }

    /// The free space. EROFS if the volume is mounted read-only.
    pub(crate) fn free(&self) -> Result<&FreeSpace> {
        self.mount.free.as_ref().ok_or_else(|| Errno::RoFs.into())
    }

    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    /// The time now, as it is stored.
    pub(crate) fn now(&self) -> u64 {
        let now = self.options.clock.now();
        time_word(now.secs, now.nanos)
    }

    /// The directory tree stands still: no directory changes its parent.
    pub(crate) fn lock_moves(&self) -> MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing can be changed: mounted so, gone down, or failed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.mount.free.is_none() || self.gate.is_closed() || self.medium().failed()
    }

    /// EIO if the memory has failed.
    pub(crate) fn intact(&self) -> Result<()> {
        match self.medium().failed() {
            true => Err(steadfast_vfs::Error::new(Errno::Io, FAILED)),
            false => Ok(()),
        }
    }

    /// Begins a change. EROFS, EIO.
    fn begin(&self) -> Result<Passing<'_>> {
        self.free()?;
        self.intact()?;
        let gone = || steadfast_vfs::Error::new(Errno::Io, "the volume has gone down");
        self.gate.pass().ok_or_else(gone)
    }

    /// Runs a call that changes nothing. Its reads are right unless the memory failed.
    fn look<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let seen = run();
        self.intact()?;
        seen
    }

    /// Runs a change. It is durable then, unless the memory failed.
    fn change<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let _passing = self.begin()?;
        let done = run();
        self.intact()?;
        done
    }
}

impl std::fmt::Debug for PmFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PmFs")
            .field("mount", &self.mount)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl FileSystem for PmFs {
    fn root(&self) -> Ino {
        ROOT.into()
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.look(|| self.op_lookup(caller, parent, name))
    }

    fn getattr(&self, _caller: &Caller, ino: Ino) -> Result<Attr> {
        self.look(|| self.op_getattr(ino))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.change(|| self.op_setattr(caller, ino, set))
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        self.look(|| self.op_access(caller, ino, mask))
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.change(|| self.op_mknod(caller, parent, name, node))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        self.change(|| self.op_mkdir(caller, parent, name, perm))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.change(|| self.op_symlink(caller, parent, name, target))
    }

    fn readlink(&self, _caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.look(|| self.op_readlink(ino))
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.change(|| self.op_link(caller, ino, parent, name))
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(|| self.op_remove(caller, parent, name, false))
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(|| self.op_remove(caller, parent, name, true))
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.change(|| self.op_rename(caller, from, to, mode))
    }

    fn open(&self, _caller: &Caller, ino: Ino) -> Result<()> {
        self.look(|| self.op_open(ino, None))
    }

    fn open_generation(&self, _caller: &Caller, ino: Ino, generation: u64) -> Result<()> {
        self.look(|| self.op_open(ino, Some(generation)))
    }

    fn release(&self, ino: Ino) {
        self.op_release(ino);
    }

    fn read(&self, _caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.look(|| self.op_read(ino, offset, buf))
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let (_, written) = self.change(|| self.op_write(caller, ino, Some(offset), data))?;
        Ok(written)
    }

    fn append(&self, caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        self.change(|| self.op_write(caller, ino, None, data))
    }

    /// Everything is durable already.
    fn fsync(&self, _caller: &Caller, ino: Ino, _data_only: bool) -> Result<()> {
        self.look(|| self.op_getattr(ino))?;
        self.sync()
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.change(|| self.op_fallocate(caller, ino, mode, offset, len))
    }

    fn seek(&self, _caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.look(|| self.op_seek(ino, offset, whence))
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.look(|| self.op_readdir(caller, dir, cookie, sink))
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.look(|| self.op_getxattr(caller, ino, name))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.change(|| self.op_setxattr(caller, ino, name, value, mode))
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.look(|| self.op_listxattr(caller, ino))
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(|| self.op_removexattr(caller, ino, name))
    }

    fn flags(&self, _caller: &Caller, ino: Ino) -> Result<InodeFlags> {
        self.look(|| self.op_flags(ino))
    }

    fn set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.change(|| self.op_set_flags(caller, ino, flags))
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(self.op_statfs())
    }

    /// Everything is durable already.
    fn sync(&self) -> Result<()> {
        if self.mount.free.is_none() {
            return Ok(());
        }
        let _passing = self.begin()?;
        Ok(())
    }

    fn accessed(&self, _caller: &Caller, ino: Ino) -> Result<()> {
        match self.is_read_only() {
            true => Ok(()),
            false => self.change(|| self.op_accessed(ino)),
        }
    }

    fn health(&self) -> Health {
        Health {
            read_only: self.is_read_only(),
            failed: self.medium().failed().then(|| FAILED.to_owned()),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("operations", self.gate.begun()),
            ("failed_now", u64::from(self.medium().failed())),
            ("read_only_now", u64::from(self.is_read_only())),
        ]
    }

    /// There is nothing to make durable, so all ways to go down are one; but `Everything` marks the volume as unmounted.
    fn shutdown(&self, how: Shutdown) -> Result<()> {
        match how {
            Shutdown::Everything => self.unmount(),
            Shutdown::Log | Shutdown::Nothing => {
                self.gate.close();
                self.intact()
            }
        }
    }
}
