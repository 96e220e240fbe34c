//! Mounting: from a device to a [`Fs`] and back.
//!
//! A mount reads the superblock, lets the journal recover, counts the free space and
//! finishes what the orphan directory lists. From then on all state lives in the
//! journal's current image, in the allocator, in the free slots and in the inode
//! table; unmounting commits and checkpoints everything.
//!
//! [`Fs`] offers [`FileSystem`] as a thin layer: each call goes to the module that
//! does it (`ops`, `data`, `truncate`), changes are refused on a read-only volume,
//! and what finds no space is tried once more when a commit releases some (corner 1).

use crate::error::{Error, from_journal};
use crate::inode::{Inode, Table};
use crate::layout::{DiskInode, DiskTime};
use crate::slots::Slots;
use crate::superblock;
use crate::work::Store;
use crate::orphan;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_journal::{Client, Config, Journal, Object, Op, Recovery, StreamId};
use steadfast_vfs::{
    AllocateMode, Attr, Caller, Clock, Cookie, DirEntry, Errno, FileKind, FileSystem, Ino, NewNode,
    RenameMode, Result, Seek, SetAttr, StatFs, Stream, SystemClock, XattrMode,
};

/// How to mount.
#[derive(Clone)]
#[non_exhaustive]
pub struct MountOptions {
    /// Nothing is written, not even a recovery: the log is applied in memory.
    pub read_only: bool,
    /// Everything is committed at least this often.
    pub commit_interval: Duration,
    /// Memory for clean cached metadata and journalled data.
    pub cache_bytes: u64,
    /// Bound of data written but not yet committed.
    pub uncommitted_bytes: u64,
    /// Commit and checkpoint in threads of their own. Without it the callers do everything,
    /// in an order that depends on nothing but the calls.
    pub background: bool,
    /// Where times come from.
    pub clock: Arc<dyn Clock>,
    /// Inode generations derive from this number, for tests that must give the same image
    /// each time; they are random if it is absent.
    pub seed: Option<u64>,
    /// Bugs planted on purpose, for tests of the tests.
    #[doc(hidden)]
    pub faults: Faults,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            commit_interval: Duration::from_secs(5),
            cache_bytes: 64 << 20,
            uncommitted_bytes: 32 << 20,
            background: true,
            clock: Arc::new(SystemClock),
            seed: None,
            faults: Faults::default(),
        }
    }
}

/// Bugs that the crash tests plant to see that they find them.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Faults {
    /// A file's size is committed one transaction before its data.
    pub size_before_data: bool,
    /// An inode that loses its last name while open is not listed as an orphan.
    pub forget_orphan: bool,
    /// Those of the journal.
    pub journal: steadfast_journal::Faults,
}

/// A mounted volume.
pub struct Fs {
    /// Journal, geometry, free space.
    pub(crate) store: Store,
    /// Free inode slots.
    pub(crate) slots: Slots,
    /// Inode objects.
    pub(crate) table: Table,
    /// Where times come from.
    pub(crate) clock: Arc<dyn Clock>,
    /// Planted bugs.
    pub(crate) faults: Faults,
    /// Nothing may be changed.
    pub(crate) read_only: bool,
    /// Held by renames that move a directory to another parent: the shape of the tree
    /// above any directory stands still.
    moves: Mutex<()>,
    unmounted: AtomicBool,
    warnings: Mutex<Vec<String>>,
}

impl Fs {
    /// Mounts the volume on `device`: recovers it, frees its orphans.
    ///
    /// # Errors
    /// See [`Error`]; nothing was written when there is no volume that can be used.
    pub fn mount(
        device: Arc<dyn BlockDevice>,
        options: &MountOptions,
    ) -> std::result::Result<(Arc<Fs>, Recovery), Error> {
        let found = superblock::load(&*device)?;
        let volume = found.volume;
        let read_only = options.read_only || found.read_only || device.geometry().read_only;
        let config = Config {
            region: volume.region(),
            volume: volume.uuid,
            read_only,
            commit_interval: options.commit_interval,
            uncommitted_blocks_max: options.uncommitted_bytes.div_ceil(BLOCK_SIZE as u64).max(16),
            cache_blocks_max: (options.cache_bytes / BLOCK_SIZE as u64).max(64) as usize,
            faults: options.faults.journal.clone(),
        };
        let (journal, recovery) =
            Journal::open(device, config).map_err(Error::journal("opening the journal"))?;
        let mut seed = [0; 16];
        match options.seed {
            Some(number) => seed[..8].copy_from_slice(&number.to_le_bytes()),
            None => getrandom::fill(&mut seed).map_err(|e| Error::Random(e.to_string()))?,
        }
        let store = Store::new(journal, volume).map_err(Error::call("counting the free space"))?;
        let fs = Arc::new(Fs {
            store,
            slots: Slots::new(seed),
            table: Table::new(),
            clock: Arc::clone(&options.clock),
            faults: options.faults.clone(),
            read_only,
            moves: Mutex::new(()),
            unmounted: AtomicBool::new(false),
            warnings: Mutex::new(found.warning.into_iter().collect()),
        });
        for (ino, what) in [
            (fs.store.volume.root, "reading the root directory"),
            (fs.store.volume.orphans, "reading the orphan directory"),
        ] {
            fs.directory(ino).map_err(Error::call(what))?;
        }
        let client: Weak<dyn Client> = Arc::<Fs>::downgrade(&fs);
        fs.store.journal.set_client(client);
        if !read_only {
            orphan::recover(&fs).map_err(Error::call("finishing interrupted deletions"))?;
            if options.background {
                fs.store.journal.start_workers();
            }
        }
        Ok((fs, recovery))
    }

    /// Commits and checkpoints everything and leaves a clean volume. Every later call fails.
    ///
    /// # Errors
    /// Something could not be written; the volume recovers at its next mount.
    pub fn unmount(&self) -> std::result::Result<(), Error> {
        if self.unmounted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.store.journal.close().map_err(Error::journal("unmounting"))
    }

    /// Whether the volume can only be read: mounted so, or because a write failed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.store.journal.failed().is_some()
    }

    /// The journal's counters.
    #[must_use]
    pub fn journal_stats(&self) -> steadfast_journal::Stats {
        self.store.journal.stats()
    }

    /// What was found wrong on the way, in words; each is told once.
    #[must_use]
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes something that the user should know.
    pub(crate) fn warn(&self, warning: String) {
        const WARNINGS_MAX: usize = 64;
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < WARNINGS_MAX {
            warnings.push(warning);
        }
    }

    /// The time now.
    pub(crate) fn now(&self) -> DiskTime {
        self.clock.now().into()
    }

    /// EROFS if nothing may be changed.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.read_only { Err(Errno::RoFs.into()) } else { Ok(()) }
    }

    /// The current image of an inode. ESTALE.
    pub(crate) fn read_inode(&self, ino: Ino) -> Result<DiskInode> {
        let mut reader = crate::reader::Current(&self.store.journal);
        crate::inode::read(&self.store.volume, &mut reader, ino)
    }

    /// The same, of a directory. ENOTDIR.
    pub(crate) fn directory(&self, ino: Ino) -> Result<DiskInode> {
        let disk = self.read_inode(ino)?;
        if disk.is_dir() { Ok(disk) } else { Err(Errno::NotDir.into()) }
    }

    /// The object of an inode number.
    pub(crate) fn inode(&self, ino: Ino) -> Arc<Inode> {
        self.table.get(ino)
    }

    /// See [`Fs::moves`].
    pub(crate) fn lock_moves(&self) -> MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a change: refused when read-only, tried again when space could be released.
    fn change<T>(&self, run: impl FnMut() -> Result<T>) -> Result<T> {
        self.writable()?;
        self.store.with_space(run)
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        // Whoever drops a mounted volume gets what a clean unmount gives, but not its errors.
        let _ = self.unmount();
    }
}

impl Client for Fs {
    fn close(&self, op: &mut Op<'_>, keys: &[u64]) -> steadfast_journal::Result<()> {
        self.close_delayed(op, keys).map_err(|error| closing_failed(self, &error))
    }

    fn released(&self, runs: &[(BlockNo, u64)]) {
        self.store.alloc.released(&self.store.volume, runs);
    }
}

impl FileSystem for Fs {
    fn root(&self) -> Ino {
        self.store.volume.root
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.op_lookup(caller, parent, name)
    }

    fn getattr(&self, _caller: &Caller, ino: Ino) -> Result<Attr> {
        self.attr(ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.change(|| self.op_setattr(caller, ino, set))
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        self.op_access(caller, ino, mask)
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
        self.op_readlink(ino)
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
        self.op_open(ino)
    }

    fn release(&self, ino: Ino) {
        self.op_release(ino);
    }

    fn read(&self, _caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_file(ino, offset, buf)
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.writable()?;
        self.write_file(caller, ino, Some(offset), data).map(|(_, written)| written)
    }

    fn append(&self, caller: &Caller, ino: Ino, data: &[u8]) -> Result<u64> {
        self.writable()?;
        let (offset, written) = self.write_file(caller, ino, None, data)?;
        if written < data.len() {
            let why = format!("only {written} of {} bytes could be appended", data.len());
            return Err(steadfast_vfs::Error::new(Errno::NoSpc, why));
        }
        Ok(offset)
    }

    fn fsync(&self, caller: &Caller, ino: Ino, _data_only: bool) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let object = match self.read_inode(ino)?.kind() {
            FileKind::Directory => Object::Directory(ino),
            _ => Object::File(ino),
        };
        let stream = StreamId(caller.stream.0);
        self.store.journal.sync(stream, &[object]).map_err(from_journal)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.writable()?;
        self.allocate_file(caller, ino, mode, offset, len)
    }

    fn seek(&self, _caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.seek_file(ino, offset, whence)
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.op_readdir(caller, dir, cookie, sink)
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.op_getxattr(caller, ino, name)
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
        self.op_listxattr(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(|| self.op_removexattr(caller, ino, name))
    }

    fn statfs(&self) -> Result<StatFs> {
        self.op_statfs()
    }

    fn sync(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.store.journal.sync_all().map_err(from_journal)
    }
}

/// Why the journal cannot commit: delayed data found no place. Space and log were kept for
/// it, so that this is damage or a failed read.
fn closing_failed(fs: &Fs, error: &steadfast_vfs::Error) -> steadfast_journal::Error {
    let what = format!("placing delayed data failed: {error}");
    fs.warn(what.clone());
    steadfast_journal::Error::Corrupt { what }
}

/// The stream of what nobody asked for: releases, orphans.
pub(crate) const OWN_STREAM: Stream = Stream(0);
