//! The order in which a directory store changes and reads files, as [`super`] states it.

use super::disk::{Contents, Disk, part_of};
use object_store::{GetRange, PutMode};
use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A directory's names could not be synced. Sticky: a later sync may succeed without them.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "syncing the directory {} failed: {why}; names in it may be lost, so this process writes nothing to the store any more: \
     check the disk, then start again", dir.display()
)]
pub(crate) struct SyncFailed {
    dir: PathBuf,
    why: String,
}

/// Errors of writing and reading a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Sync(#[from] SyncFailed),
    /// The name is taken.
    #[error("the name is taken")]
    Taken,
    /// The file is not the one that is to be replaced.
    #[error("the contents are {now:?}, not {expected:?}")]
    Changed {
        now: Option<String>,
        expected: Option<String>,
    },
}

/// Planted faults: rules that tests leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests plant faults"))]
pub(super) enum Fault {
    /// A file gets its name before its bytes are durable.
    FileUnsynced,
    /// A create returns before its name is durable.
    CreateUnsynced,
    /// A swap returns before its name is durable.
    SwapUnsynced,
    /// The names of new directories are not synced.
    ParentsUnsynced,
    /// A file is marked before its name is durable.
    MarkedEarly,
    /// A file that is not marked is read like any other.
    UnsettledRead,
    /// A file that is not marked is synced again, not written anew.
    SyncedAgain,
    /// After a failed sync, the next one is believed.
    FailureForgotten,
}

/// State of the names in the store's directories.
#[derive(Debug, Default)]
struct Names {
    /// Directories whose own names this process has synced. The existence of a directory is no proof: another PUT may have made
    /// it and not synced it yet, or have died before it did.
    synced: HashSet<PathBuf>,
    failed: Option<SyncFailed>,
}

/// A directory with objects.
#[derive(Debug)]
pub(crate) struct Directory<D> {
    pub(crate) root: PathBuf,
    disk: D,
    /// Locked while a directory is synced, so that a failed sync is known before the next one starts.
    names: Mutex<Names>,
    #[cfg(test)]
    pub(super) fault: Option<Fault>,
}

pub(super) fn tag(contents: &[u8]) -> String {
    format!("\"{}\"", &blake3::hash(contents).to_hex()[..32])
}

impl<D: Disk> Directory<D> {
    pub(crate) fn new(root: &Path, disk: D) -> Directory<D> {
        Directory {
            root: root.to_owned(),
            disk,
            names: Mutex::default(),
            #[cfg(test)]
            fault: None,
        }
    }

    #[cfg(test)]
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "the same call with and without tests")]
    const fn has(&self, _: Fault) -> bool {
        false
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the failure that ended writing, if there is one.
    fn check(&self, names: &Names) -> Result<(), SyncFailed> {
        match &names.failed {
            Some(failed) if !self.has(Fault::FailureForgotten) => Err(failed.clone()),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> io::Result<D::Lock> {
        self.disk.lock(&self.root.join(".lock"))
    }

    fn temporary(&self) -> io::Result<PathBuf> {
        let random = crate::place::random().map_err(io::Error::other)?;
        Ok(self.root.join(format!(".new-{random:032x}")))
    }

    /// Makes the names in a directory durable and, the first time, the names of the directory and of all directories above it.
    fn sync_names(&self, dir: &Path) -> Result<(), SyncFailed> {
        let mut names = self.names();
        self.check(&names)?;
        let synced = self.sync_dirs(dir, &mut names.synced);
        synced.map_err(|(dir, why)| {
            let why = why.to_string();
            let failed = SyncFailed { dir, why };
            names.failed = Some(failed.clone());
            failed
        })
    }

    fn sync_dirs(
        &self,
        dir: &Path,
        synced: &mut HashSet<PathBuf>,
    ) -> Result<(), (PathBuf, io::Error)> {
        let mut made = Vec::new();
        for (above, dir) in dir.ancestors().enumerate() {
            let at = |e| (dir.to_owned(), e);
            if above > 0 && dir.starts_with(&self.root) || self.root.parent() == Some(dir) {
                self.change(dir).map_err(at)?;
            }
            match self.disk.sync(dir) {
                // Directories above the store's may belong to others, and this process may have no permission to read them.
                Err(e) if !dir.starts_with(&self.root) && may_be_refused(&e) => {}
                done => done.map_err(at)?,
            }
            if synced.contains(dir) || self.has(Fault::ParentsUnsynced) {
                break;
            }
            made.push(dir.to_owned());
        }
        synced.extend(made);
        Ok(())
    }

    /// Changes a directory of directories. If an earlier process failed to sync it, the kernel takes its names for clean; a
    /// change makes the next sync write them again.
    fn change(&self, dir: &Path) -> io::Result<()> {
        let name = self.temporary()?;
        let change = dir.join(name.file_name().unwrap_or_default());
        let changed = self.disk.write_new(&change, &[], false);
        match changed.and_then(|()| self.disk.remove(&change)) {
            Err(e) if !dir.starts_with(&self.root) && may_be_refused(&e) => Ok(()),
            done => done,
        }
    }

    /// Writes a file. Returns its tag when it is durable.
    pub(crate) fn put(
        &self,
        name: &str,
        parts: &[&[u8]],
        mode: &PutMode,
    ) -> Result<String, FileError> {
        self.check(&self.names())?;
        let target = self.root.join(name);
        let dir = target.parent().unwrap_or(&self.root);
        self.disk.make_dirs(dir)?;
        let temporary = self.temporary()?;
        let made = self
            .disk
            .write_new(&temporary, parts, !self.has(Fault::FileUnsynced));
        let placed = match made {
            Ok(()) => self.place(&temporary, &target, dir, mode),
            Err(e) => Err(e.into()),
        };
        // Unless it was renamed, it still exists. If it cannot be removed, it is harmless garbage.
        let _ = self.disk.remove(&temporary);
        placed?;
        Ok(tag(&parts.concat()))
    }

    fn place(
        &self,
        temporary: &Path,
        target: &Path,
        dir: &Path,
        mode: &PutMode,
    ) -> Result<(), FileError> {
        if let PutMode::Create = mode {
            self.disk
                .link(temporary, target)
                .map_err(|e| match e.kind() {
                    ErrorKind::AlreadyExists => FileError::Taken,
                    _ => e.into(),
                })?;
            if self.has(Fault::MarkedEarly) {
                let _ = self.disk.mark(temporary);
            }
            if !self.has(Fault::CreateUnsynced) {
                self.sync_names(dir)?;
            }
            // The same file as the target, even if the target's name was replaced since. Without a mark, a reader settles it.
            let _ = self.disk.mark(temporary);
            return Ok(());
        }
        let lock = self.lock()?;
        if let PutMode::Update(version) = mode {
            let now = match self.disk.read(target, None) {
                Ok(contents) => Some(tag(&contents.bytes)),
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                Err(e) => return Err(e.into()),
            };
            if now.is_none() || now != version.e_tag {
                let expected = version.e_tag.clone();
                return Err(FileError::Changed { now, expected });
            }
        }
        self.replace(temporary, target, dir, lock)
    }

    /// Renames a file over another one. The lock is held until the rename is durable.
    fn replace(
        &self,
        temporary: &Path,
        target: &Path,
        dir: &Path,
        lock: D::Lock,
    ) -> Result<(), FileError> {
        if self.has(Fault::MarkedEarly) {
            let _ = self.disk.mark(temporary);
        }
        self.disk.rename(temporary, target)?;
        if !self.has(Fault::SwapUnsynced) {
            self.sync_names(dir)?;
        }
        let _ = self.disk.mark(target);
        drop(lock);
        Ok(())
    }

    /// Reads a file, or a part of it. The returned contents are durable.
    pub(crate) fn get(&self, name: &str, range: Option<&GetRange>) -> Result<Contents, FileError> {
        let path = self.root.join(name);
        match self.disk.read(&path, range) {
            Ok(contents) if contents.settled || self.has(Fault::UnsettledRead) => Ok(contents),
            Ok(_) => {
                let mut whole = self.settle(&path)?;
                let part = part_of(range, whole.length)?;
                // The whole file is in memory, so the casts are lossless.
                whole.bytes.truncate(part.end as usize);
                whole.bytes.drain(..part.start as usize);
                whole.range = part;
                Ok(whole)
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                // A failed sync may have lost the name.
                self.check(&self.names())?;
                Err(e.into())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Makes the file with this name durable, and returns its contents.
    fn settle(&self, path: &Path) -> Result<Contents, FileError> {
        self.check(&self.names())?;
        let dir = path.parent().unwrap_or(&self.root);
        let lock = match self.lock() {
            Ok(lock) => lock,
            Err(e) if may_be_refused(&e) => {
                // A reader without write permission cannot settle the file, but it acknowledges nothing.
                let contents = self.disk.read(path, None)?;
                self.disk.sync(path)?;
                self.disk.sync(dir)?;
                return Ok(contents);
            }
            Err(e) => return Err(e.into()),
        };
        // A swap that was in progress has ended meanwhile.
        let contents = self.disk.read(path, None)?;
        if contents.settled {
            return Ok(contents);
        }
        if self.has(Fault::SyncedAgain) {
            self.disk.sync(path)?;
            self.sync_names(dir)?;
            return Ok(contents);
        }
        let temporary = self.temporary()?;
        let made = self.disk.write_new(&temporary, &[&contents.bytes], true);
        let placed = match made {
            Ok(()) => self.replace(&temporary, path, dir, lock),
            Err(e) => Err(e.into()),
        };
        if placed.is_err() {
            let _ = self.disk.remove(&temporary);
        }
        placed.map(|()| contents)
    }
}

impl Directory<super::disk::RealDisk> {
    /// Those of the store's directory and its parents that do not exist.
    pub(crate) fn absent(&self) -> Vec<PathBuf> {
        let dirs = self.root.ancestors().take_while(|dir| !dir.exists());
        dirs.map(Path::to_owned).collect()
    }

    /// Removes an empty directory of the store, then the directories that were made for it, if they are empty.
    pub(crate) fn remove_empty(&self, name: &str, made: &[PathBuf]) -> io::Result<()> {
        // The next PUT syncs the directories anew.
        self.names().synced.clear();
        std::fs::remove_dir(self.root.join(name))?;
        if made.is_empty() {
            return Ok(());
        }
        let lock = self.lock()?;
        std::fs::remove_file(self.root.join(".lock"))?;
        // From the innermost on; stops at a directory in which another process has begun to write.
        let _ = made.iter().try_for_each(std::fs::remove_dir);
        drop(lock);
        Ok(())
    }
}

fn may_be_refused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::InvalidInput
    )
}
