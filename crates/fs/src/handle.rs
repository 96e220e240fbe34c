//! [`Fs`]: a mounted volume as its users hold it.
//!
//! A thin layer: each call goes to the module that does it (`ops`, `data`, `allocate`),
//! changes are refused on a read-only volume, and a call that finds no space is tried once more
//! when a commit releases some (corner 1). Dropping it unmounts: it is not the state
//! itself that is dropped then, because the journal still needs that to place delayed data.

use crate::contract::Contract;
use crate::error::{Error, from_journal};
use crate::mounted::Mounted;
use crate::options::MountOptions;
use crate::trim::{TrimRange, Trimmed};
use std::sync::Arc;
use steadfast_block::{BlockDevice, Freezer};
use steadfast_journal::{Object, Recovery};
use steadfast_vfs::{
    AllocateMode, Attr, Caller, Cookie, DirEntry, Errno, FileKind, FileSystem, Health, Ino,
    InodeFlags, NewNode, RenameMode, Result, ScrubCursor, ScrubPiece, Seek, SetAttr, Shutdown,
    StatFs, Stream, Streams, Wanted, XattrMode, fsync_each,
};

/// A mounted volume.
pub struct Fs {
    mounted: Arc<Mounted>,
    freezer: Arc<Freezer>,
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
        let freezer = Arc::new(Freezer::new(device));
        let (mounted, recovery) = Mounted::mount(freezer.clone(), options)?;
        Ok((Arc::new(Fs { mounted, freezer }), recovery))
    }

    /// Commits and checkpoints everything and leaves a clean volume. Every later call fails.
    /// Does nothing when it was called before.
    ///
    /// # Errors
    /// Something could not be written; the volume recovers at its next mount.
    pub fn unmount(&self) -> std::result::Result<(), Error> {
        self.freezer.thaw();
        self.mounted.unmount()
    }

    /// The volume's state, for tests beside it.
    #[cfg(test)]
    pub(crate) fn mounted(&self) -> &Mounted {
        &self.mounted
    }

    /// Whether the volume can only be read: mounted so, or because a write failed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.mounted.read_only || self.mounted.store.journal.failed().is_some()
    }

    /// Changes that a crash may lose.
    #[must_use]
    pub fn contract(&self) -> Contract {
        self.mounted.store.volume.contract
    }

    /// The journal's counters.
    #[must_use]
    pub fn journal_stats(&self) -> steadfast_journal::Stats {
        self.mounted.store.journal.stats()
    }

    /// Tells the device of the free space in a range, in bounded pieces; others may work meanwhile.
    /// `progress` gets the number of block groups looked at so far.
    ///
    /// # Errors
    /// EROFS, EIO, EUCLEAN; EINVAL for a range that begins past the volume.
    pub fn trim(&self, range: &TrimRange, progress: &mut dyn FnMut(u64, u64)) -> Result<Trimmed> {
        self.live()?.trim(range, progress)
    }

    /// Warnings in words, for the user. Each is handed out once.
    #[must_use]
    pub fn take_warnings(&self) -> Vec<String> {
        self.mounted.take_warnings()
    }

    /// Runs a change, and answers it.
    fn change<T>(&self, mut run: impl FnMut(&Mounted) -> Result<T>) -> Result<T> {
        let live = self.live()?;
        self.answer(live.change(|| run(live)))
    }

    /// The volume's state, until it is unmounted.
    fn live(&self) -> Result<&Mounted> {
        self.mounted.check_open()?;
        Ok(&self.mounted)
    }

    /// The answer to a call that may have changed something: under `sync`, its changes are
    /// durable first, also those of a call that failed half-way. All threads are of one stream:
    /// those that come together share a record and its flush. No lock is held. A front end that defers commits waits itself.
    fn answer<T>(&self, result: Result<T>) -> Result<T> {
        if self.contract() != Contract::Sync || self.mounted.options.defer_commits {
            return result;
        }
        let stream = self.mounted.store.stream(Stream::default());
        let durable = self.mounted.store.journal.sync(stream, &[]);
        result.and_then(|value| durable.map(|()| value).map_err(from_journal))
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        // Dropping a mounted volume unmounts it cleanly, without reporting errors.
        let _ = self.unmount();
    }
}

impl FileSystem for Fs {
    fn root(&self) -> Ino {
        self.mounted.store.volume.root
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.live()?.op_lookup(caller, parent, name)
    }

    fn getattr(&self, _caller: &Caller, ino: Ino) -> Result<Attr> {
        self.live()?.attr(ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.change(|live| live.op_setattr(caller, ino, set))
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        self.live()?.op_access(caller, ino, mask)
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.change(|live| live.op_mknod(caller, parent, name, node))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        self.change(|live| live.op_mkdir(caller, parent, name, perm))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.change(|live| live.op_symlink(caller, parent, name, target))
    }

    fn readlink(&self, _caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.live()?.op_readlink(ino)
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.change(|live| live.op_link(caller, ino, parent, name))
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(|live| live.op_remove(caller, parent, name, false))
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(|live| live.op_remove(caller, parent, name, true))
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.change(|live| live.op_rename(caller, from, to, mode))
    }

    fn open(&self, _caller: &Caller, ino: Ino) -> Result<()> {
        self.live()?.op_open(ino, None)
    }

    fn open_generation(&self, _caller: &Caller, ino: Ino, generation: u64) -> Result<()> {
        self.live()?.op_open(ino, Some(generation))
    }

    fn release(&self, ino: Ino) {
        self.mounted.op_release(ino);
    }

    fn read(&self, _caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.live()?.read_file(ino, offset, buf)
    }

    fn in_memory(&self, look: &mut dyn FnMut()) -> bool {
        steadfast_journal::in_memory(look)
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.live()?.writable()?;
        let written = self.live()?.write_file(caller, ino, Some(offset), data);
        self.answer(written).map(|(_, written)| written)
    }

    fn append(&self, caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        self.live()?.writable()?;
        let written = self.live()?.write_file(caller, ino, None, data);
        self.answer(written)
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        if self.live()?.read_only {
            return Ok(());
        }
        let kind = self.live()?.read_inode(ino)?.kind();
        if self.contract() == Contract::MetadataPrefix {
            let metadata = !data_only || kind != FileKind::Regular;
            return self.live()?.sync_file(ino, metadata);
        }
        let object = match kind {
            FileKind::Directory => Object::Directory(ino),
            _ => Object::File(ino),
        };
        let stream = self.live()?.store.stream(caller.stream);
        if self.live()?.options.faults.commit_all {
            return self.sync();
        }
        self.live()?
            .store
            .journal
            .sync(stream, &[object])
            .map_err(from_journal)
    }

    fn fsync_together(&self, wanted: &[Wanted]) -> Result<()> {
        if self.live()?.read_only {
            return Ok(());
        }
        if self.contract() == Contract::MetadataPrefix {
            return fsync_each(self, wanted);
        }
        let live = self.live()?;
        let of = |one: &Wanted| live.store.stream(one.stream);
        let mut streams: Vec<_> = wanted.iter().map(of).collect();
        streams.sort_unstable();
        streams.dedup();
        // Both objects are named, for the kind is not known: an inode never was both.
        let of = |one: &Wanted| [Object::File(one.ino), Object::Directory(one.ino)];
        let mut objects: Vec<_> = wanted.iter().flat_map(of).collect();
        objects.sort_unstable();
        objects.dedup();
        self.live()?
            .store
            .journal
            .sync_together(&streams, &objects)
            .map_err(from_journal)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.live()?.writable()?;
        self.answer(self.live()?.allocate_file(caller, ino, mode, offset, len))
    }

    fn seek(&self, _caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.live()?.seek_file(ino, offset, whence)
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.live()?.op_readdir(caller, dir, cookie, sink)
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.live()?.op_getxattr(caller, ino, name)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        // A set that is full is not a volume that is full: no commit helps.
        if self.change(|live| live.op_setxattr(caller, ino, name, value, mode))? {
            Ok(())
        } else {
            Err(steadfast_vfs::Error::new(
                Errno::NoSpc,
                "the inode has as many extended attributes as fit",
            ))
        }
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.live()?.op_listxattr(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(|live| live.op_removexattr(caller, ino, name))
    }

    fn flags(&self, _caller: &Caller, ino: Ino) -> Result<InodeFlags> {
        self.live()?.op_flags(ino)
    }

    fn set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.change(|live| live.op_set_flags(caller, ino, flags))
    }

    fn statfs(&self) -> Result<StatFs> {
        self.live()?.op_statfs()
    }

    fn sync(&self) -> Result<()> {
        if self.live()?.read_only {
            return Ok(());
        }
        self.live()?.sync()
    }

    fn sync_store(&self) -> Result<()> {
        FileSystem::sync(self)?;
        self.freezer.settle().map_err(|_| Errno::Io.into())
    }

    fn accessed(&self, _caller: &Caller, ino: Ino) -> Result<()> {
        self.live()?.op_accessed(ino)
    }

    fn trim(&self, bytes: std::ops::Range<u64>, min_bytes: u64) -> Result<u64> {
        const BLOCK: u64 = steadfast_block::BLOCK_SIZE as u64;
        let end = self.live()?.store.volume.blocks * BLOCK;
        if bytes.start >= end || bytes.end.saturating_sub(bytes.start) < BLOCK {
            return Err(Errno::Inval.into());
        }
        let range = TrimRange { bytes, min_bytes };
        let trimmed = self.live()?.trim(&range, &mut |_, _| {})?;
        Ok(trimmed.blocks * steadfast_block::BLOCK_SIZE as u64)
    }

    /// A copy has all changes that are durable when the freeze begins; later changes are as a crash may leave them.
    fn freeze(&self, limit: std::time::Duration) -> Result<()> {
        // A sync would wait for the end of the freeze.
        if self.freezer.is_frozen() {
            return Err(Errno::Busy.into());
        }
        self.sync()?;
        match self.freezer.freeze(limit) {
            true => Ok(()),
            false => Err(Errno::Busy.into()),
        }
    }

    fn thaw(&self) -> bool {
        self.freezer.thaw()
    }

    fn health(&self) -> Health {
        let failed = self.mounted.store.journal.failed();
        Health {
            read_only: self.is_read_only(),
            failed: failed.map(|error| error.to_string()),
        }
    }

    fn scrub(&self, from: ScrubCursor, blocks: u64, data: bool) -> Result<ScrubPiece> {
        self.live()?.scrub(from, blocks, data)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.mounted.counters();
        counters.push(("frozen_now", u64::from(self.freezer.is_frozen())));
        counters.extend(self.freezer.statistics());
        counters
    }

    fn streams(&self) -> Option<&dyn Streams> {
        (self.contract() == Contract::Ordered).then_some(&*self.mounted as &dyn Streams)
    }

    fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.freezer.thaw();
        if how != Shutdown::Nothing {
            self.sync()?;
        }
        self.live()?.shut_down(how)
    }
}
