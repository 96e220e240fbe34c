//! The file system operations of a directory store. Tests use a model instead, which loses everything that was not synced.

use object_store::GetRange;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::SystemTime;

/// Write permission: a file without it is settled.
const WRITE: u32 = 0o222;
/// Attempts to lock a lock file that is removed between opening and locking it.
const LOCK_ATTEMPTS: u32 = 1000;

/// The result of reading a file.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    pub(crate) bytes: Vec<u8>,
    /// Their range in the file.
    pub(crate) range: Range<u64>,
    /// The length of the file.
    pub(crate) length: u64,
    pub(crate) modified: SystemTime,
    /// The file is marked as settled.
    pub(crate) settled: bool,
}

/// See the module's header. All paths are absolute.
pub(crate) trait Disk: std::fmt::Debug + Send + Sync {
    /// Held from reading a file until its replacement is settled.
    type Lock;

    fn make_dirs(&self, dir: &Path) -> io::Result<()>;
    /// Writes a file under a new name. With `sync`, its bytes are durable afterwards.
    fn write_new(&self, path: &Path, parts: &[&[u8]], sync: bool) -> io::Result<()>;
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes a file's bytes durable, or a directory's names.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Marks a file as settled.
    fn mark(&self, path: &Path) -> io::Result<()>;
    /// Reads a file, or a part of it.
    fn read(&self, path: &Path, range: Option<&GetRange>) -> io::Result<Contents>;
    fn lock(&self, path: &Path) -> io::Result<Self::Lock>;
}

/// The requested range of a file.
pub(crate) fn part_of(range: Option<&GetRange>, length: u64) -> io::Result<Range<u64>> {
    match range {
        None => Ok(0..length),
        Some(range) => range
            .as_range(length)
            .map_err(|e| io::Error::new(ErrorKind::InvalidInput, e)),
    }
}

/// The file system of this machine.
#[derive(Debug)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    type Lock = File;

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)
    }

    fn write_new(&self, path: &Path, parts: &[&[u8]], sync: bool) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let mode = file.metadata()?.mode();
        if mode & WRITE == 0 {
            // The umask removed all write bits: the file would look settled.
            file.set_permissions(Permissions::from_mode(mode | 0o200))?;
        }
        for part in parts {
            file.write_all(part)?;
        }
        match sync {
            true => file.sync_all(),
            false => Ok(()),
        }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn mark(&self, path: &Path) -> io::Result<()> {
        let mode = std::fs::metadata(path)?.mode();
        std::fs::set_permissions(path, Permissions::from_mode(mode & !WRITE))
    }

    fn read(&self, path: &Path, range: Option<&GetRange>) -> io::Result<Contents> {
        let mut file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(ErrorKind::NotFound.into());
        }
        let range = part_of(range, meta.len())?;
        let wanted = range.end - range.start;
        let mut bytes = Vec::with_capacity(usize::try_from(wanted).unwrap_or(0));
        file.seek(SeekFrom::Start(range.start))?;
        file.take(wanted).read_to_end(&mut bytes)?;
        Ok(Contents {
            range: range.start..range.start + bytes.len() as u64,
            bytes,
            length: meta.len(),
            modified: meta.modified()?,
            settled: meta.mode() & WRITE == 0,
        })
    }

    fn lock(&self, path: &Path) -> io::Result<File> {
        for _ in 0..LOCK_ATTEMPTS {
            let mut options = OpenOptions::new();
            let lock = options
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
            // A probe removes the lock file of a directory that it made, so check that the file is still the locked one.
            let held = lock.metadata()?;
            match std::fs::metadata(path) {
                Ok(now) if (now.dev(), now.ino()) == (held.dev(), held.ino()) => return Ok(lock),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let why = format!("{} changes all the time", path.display());
        Err(io::Error::other(why))
    }
}
