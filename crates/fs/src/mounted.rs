//! [`Mounted`]: a mounted volume's state, shared by its users and by the journal, which calls it to place delayed data.
//! Users hold a [`crate::handle::Fs`].

use crate::features::{Feature, Features};
use crate::inode::{self, Inode, Table};
use crate::layout::{DiskInode, DiskTime};
use crate::notes::Notes;
use crate::options::MountOptions;
use crate::reader::Current;
use crate::slots::{self, Slots};
use crate::work::Store;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use steadfast_vfs::{Errno, Ino, Result};

/// A mounted volume's state.
pub(crate) struct Mounted {
    /// Journal, geometry, free space.
    pub(crate) store: Store,
    /// Free inode slots.
    pub(crate) slots: Slots,
    /// Inode objects.
    pub(crate) table: Table,
    /// Noted reads.
    pub(crate) notes: Notes,
    /// Features in use, by the superblock.
    pub(crate) features: Features,
    /// As it was mounted.
    pub(crate) options: MountOptions,
    /// Nothing may be changed.
    pub(crate) read_only: bool,
    /// Data that is read stays in memory.
    pub(crate) keeps_data: bool,
    /// Most overwrites that wait to be written in place, in blocks.
    pub(crate) in_place_blocks_max: u64,
    /// Held by renames that move a directory to another parent: the shape of the tree
    /// above any directory stands still.
    pub(crate) moves: Mutex<()>,
    /// Lock of trims: one at a time.
    pub(crate) trims: Mutex<()>,
    pub(crate) unmounted: AtomicBool,
    /// No call is answered any more.
    pub(crate) closed: AtomicBool,
    pub(crate) warnings: Mutex<Vec<String>>,
}

impl Mounted {
    /// Warnings in words, for the user. Each is handed out once.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        if let Some(error) = self.store.alloc.take_unusable() {
            self.warn(format!("some free space cannot be used: {error}"));
        }
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
        self.options.clock.now().into()
    }

    /// EIO when it is unmounted.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(steadfast_vfs::Error::new(
                Errno::Io,
                "the volume is unmounted",
            ));
        }
        Ok(())
    }

    /// EROFS if nothing may be changed.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.read_only {
            Err(Errno::RoFs.into())
        } else {
            Ok(())
        }
    }

    /// The current image of an inode. ESTALE. The orphan directory belongs to the file system alone.
    pub(crate) fn read_inode(&self, ino: Ino) -> Result<DiskInode> {
        if ino == self.store.volume.orphans {
            return Err(Errno::Stale.into());
        }
        let mut reader = Current(&self.store.journal);
        inode::read(&self.store.volume, &mut reader, ino)
    }

    /// The current image of the orphan directory.
    pub(crate) fn orphan_directory(&self) -> Result<DiskInode> {
        let volume = &self.store.volume;
        let disk = inode::read(volume, &mut Current(&self.store.journal), volume.orphans)?;
        if disk.is_dir() {
            Ok(disk)
        } else {
            Err(Errno::NotDir.into())
        }
    }

    /// The same, of a directory. ENOTDIR.
    pub(crate) fn directory(&self, ino: Ino) -> Result<DiskInode> {
        let disk = self.read_inode(ino)?;
        if disk.is_dir() {
            Ok(disk)
        } else {
            Err(Errno::NotDir.into())
        }
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
    pub(crate) fn change<T>(&self, run: impl FnMut() -> Result<T>) -> Result<T> {
        self.writable()?;
        let result = self.store.with_space(run);
        self.reap();
        result
    }

    /// Frees inode blocks that were emptied side by side. Hold no lock.
    pub(crate) fn reap(&self) {
        for warning in slots::reap(&self.store, &self.slots) {
            self.warn(warning);
        }
    }

    /// Has the superblock say that a feature is in use; durable when this returns. May wait for a
    /// commit: hold no lock.
    pub(crate) fn need(&self, feature: Feature) -> Result<()> {
        self.features.need(&self.store, feature)
    }
}
