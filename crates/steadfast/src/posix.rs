//! The steps of a replacement as Linux system calls.
//!
//! It relies on two calls: rename(2) replaces a name atomically, fsync(2) makes a file or
//! a directory durable. It promises, beside the order of [`protocol`](crate::protocol):
//!
//! * all steps go through one descriptor of the directory, so that it may be moved meanwhile;
//! * where the file system can (`O_TMPFILE`), the temporary file has no name until its
//!   content is durable, and a killed process leaves nothing behind; else it is called
//!   `.NAME.PID-N.steadfast`, and is locked while its writer lives;
//! * mode, owner, group, access control list and extended attributes are those of the file
//!   replaced; where the owner cannot be kept, the replacement is refused, where the group
//!   cannot, its bits are cut down to what all users have;
//! * a symbolic link is followed: its target is replaced. Other hard links of the old
//!   file keep the old content.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, Access, AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::{Errno, retry_on_intr};

use crate::protocol::{Steps, Update};

/// Most symbolic links that are followed, as in the kernel.
const LINKS_MAX: usize = 40;
/// Longest name of a file.
const NAME_BYTES_MAX: usize = 255;
/// Bytes that a temporary file's name adds to the name: dots, two numbers, the ending.
const ADDED_BYTES_MAX: usize = 50;
/// Ends the names of temporary files.
const ENDING: &str = ".steadfast";
/// Names that are tried.
const TRIES_MAX: usize = 100;
/// Longest extended attribute.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Step that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Finding the file or its directory.
    Find,
    /// Making the temporary file.
    Create,
    /// Writing it.
    Write,
    /// Giving it the attributes of the file that it replaces.
    Attributes,
    /// Making it durable.
    Sync,
    /// Renaming it.
    Rename,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Find => "opening its directory",
            Step::Create => "making a temporary file beside it",
            Step::Write => "writing the temporary file beside it",
            Step::Attributes => "keeping its mode and attributes",
            Step::Sync => "making the temporary file durable",
            Step::Rename => "renaming the temporary file",
        })
    }
}

/// Error of a replacement. But for [`ReplaceError::NotDurable`], the file is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// A step failed.
    #[error("{}: {step} failed: {source}; the file is as it was", path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// Step that failed.
        step: Step,
        /// Reason.
        source: io::Error,
    },
    /// It is a directory, a device, a pipe.
    #[error("{}: is not a regular file, so it cannot be replaced", path.display())]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// The new file would belong to another user.
    #[error(
        "{}: belongs to user {uid}, and this user cannot give files away; the file is as it was",
        path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// The new content is in place, but a crash may bring back the old.
    #[error("{}: replaced, but its directory could not be made durable: {source}", path.display())]
    NotDurable {
        /// The file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
}

/// Replaces the content of the file `path`, or makes it. When this returns, the new content
/// is durable; a crash before leaves the old content or the new one. Of several writers at
/// a time, the last to rename wins, whole.
///
/// # Errors
/// See [`ReplaceError`].
pub fn atomic_replace(path: impl AsRef<Path>, data: &[u8]) -> Result<(), ReplaceError> {
    let mut update = Update::begin(Files::find(path.as_ref())?)?;
    update.write(data)?;
    update.commit()
}

/// New content for a file, written piece by piece. Dropped before [`Replacement::commit`],
/// it leaves the file as it was.
#[derive(Debug)]
pub struct Replacement(Update<Files>);

impl Replacement {
    /// Begins to replace the file `path`.
    ///
    /// # Errors
    /// See [`ReplaceError`].
    pub fn begin(path: impl AsRef<Path>) -> Result<Replacement, ReplaceError> {
        Ok(Replacement(Update::begin(Files::find(path.as_ref())?)?))
    }

    /// Adds to the new content.
    ///
    /// # Errors
    /// See [`ReplaceError`].
    pub fn write(&mut self, data: &[u8]) -> Result<(), ReplaceError> {
        self.0.write(data)
    }

    /// Puts the new content in place, durably.
    ///
    /// # Errors
    /// See [`ReplaceError`].
    pub fn commit(self) -> Result<(), ReplaceError> {
        self.0.commit()
    }
}

impl Write for Replacement {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data).map_err(|error| match error {
            ReplaceError::Failed { source, .. } => source,
            error => io::Error::other(error),
        })?;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Removes temporary files of writers of `path` that were killed or lost power
/// (`crash_safe_recover` of the paper); returns their number. Files of writers that live
/// are locked and stay.
///
/// # Errors
/// When the directory cannot be read, or a file in it not removed.
pub fn remove_leftovers(path: impl AsRef<Path>) -> Result<usize, ReplaceError> {
    let files = Files::find(path.as_ref())?;
    files.remove_leftovers().map_err(files.failed(Step::Find))
}

/// Numbers the temporary files of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The files of one replacement.
#[derive(Debug)]
struct Files {
    /// Path with all links resolved; for messages and for attributes.
    path: PathBuf,
    dir: OwnedFd,
    name: OsString,
    /// The file to replace.
    old: Option<Stat>,
    temporary: Option<Temporary>,
}

#[derive(Debug)]
struct Temporary {
    file: File,
    /// None if it has no name.
    name: Option<OsString>,
}

impl Files {
    /// Follows links to the file itself, and looks at it.
    fn find(path: &Path) -> Result<Files, ReplaceError> {
        let mut path = path.to_owned();
        let failed = |path: &Path, source: io::Error| ReplaceError::Failed {
            path: path.to_owned(),
            step: Step::Find,
            source,
        };
        for _ in 0..LINKS_MAX {
            let slash = path.as_os_str().as_bytes().ends_with(b"/");
            let name = match path.file_name() {
                Some(name) if !slash => name.to_owned(),
                _ => return Err(ReplaceError::NotRegular { path }),
            };
            let parent = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = retry_on_intr(|| fs::open(parent, flags, Mode::empty()))
                .map_err(|e| failed(&path, e.into()))?;
            match fs::readlinkat(&dir, &name, Vec::new()) {
                Ok(target) => path = parent.join(OsString::from_vec(target.into_bytes())),
                Err(Errno::INVAL | Errno::NOENT) => {
                    let old = look(&dir, &name).map_err(|e| failed(&path, e))?;
                    let regular = |old: &Stat| FileType::from_raw_mode(old.st_mode).is_file();
                    if old.as_ref().is_some_and(|old| !regular(old)) {
                        return Err(ReplaceError::NotRegular { path });
                    }
                    return Ok(Files {
                        path,
                        dir,
                        name,
                        old,
                        temporary: None,
                    });
                }
                Err(e) => return Err(failed(&path, e.into())),
            }
        }
        Err(failed(&path, Errno::LOOP.into()))
    }

    fn failed(&self, step: Step) -> impl FnOnce(io::Error) -> ReplaceError + use<> {
        let path = self.path.clone();
        move |source| ReplaceError::Failed { path, step, source }
    }

    /// The temporary file; there is none only before [`Steps::create`].
    fn file(&self) -> io::Result<&File> {
        self.temporary
            .as_ref()
            .map(|t| &t.file)
            .ok_or_else(|| Errno::BADF.into())
    }

    /// Prefix of the names of temporary files.
    fn prefix(&self) -> Vec<u8> {
        let name = self.name.as_bytes();
        let name = &name[..name.len().min(NAME_BYTES_MAX - ADDED_BYTES_MAX)];
        [b".", name, b"."].concat()
    }

    fn new_name(&self) -> OsString {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut name = self.prefix();
        name.extend(format!("{}-{number}{ENDING}", std::process::id()).bytes());
        OsString::from_vec(name)
    }

    fn is_leftover(&self, name: &[u8]) -> bool {
        let numbers = name
            .strip_prefix(&*self.prefix())
            .and_then(|rest| rest.strip_suffix(ENDING.as_bytes()));
        numbers.is_some_and(|numbers| {
            let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
            let mut parts = numbers.split(|byte| *byte == b'-');
            parts.next().is_some_and(digits)
                && parts.next().is_some_and(digits)
                && parts.next().is_none()
        })
    }

    /// Only the owner reads the temporary file until it has the old file's mode.
    fn first_mode(&self) -> Mode {
        Mode::from_raw_mode(if self.old.is_some() { 0o600 } else { 0o666 })
    }

    /// A file without a name, if the file system has such and it can get one later.
    fn create_nameless(&self) -> Option<Temporary> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let open = || fs::openat(&self.dir, ".", flags, self.first_mode());
        let file = File::from(retry_on_intr(open).ok()?);
        fs::stat(descriptor_path(&file)).ok()?;
        lock(&file);
        Some(Temporary { file, name: None })
    }

    fn create_named(&self) -> io::Result<Temporary> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        for _ in 0..TRIES_MAX {
            let name = self.new_name();
            let open = || fs::openat(&self.dir, &name, flags, self.first_mode());
            let file = match retry_on_intr(open) {
                Ok(file) => File::from(file),
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(e.into()),
            };
            lock(&file);
            // Before it was locked, it could be taken for a leftover.
            if fs::fstat(&file)?.st_nlink > 0 {
                let name = Some(name);
                return Ok(Temporary { file, name });
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Gives the temporary file the attributes of the old one. The owner comes before the mode,
    /// since a change of owner clears set-id bits.
    fn keep_attributes(&self, old: &Stat) -> Result<(), ReplaceError> {
        let file = self.file().map_err(self.failed(Step::Attributes))?;
        let failed = |e: Errno| self.failed(Step::Attributes)(e.into());
        let new = fs::fstat(file).map_err(failed)?;
        let mut mode = old.st_mode & 0o7777;
        if new.st_gid != old.st_gid
            && fs::fchown(file, None, Some(Gid::from_raw(old.st_gid))).is_err()
        {
            let everybody = mode & 0o007;
            mode &= !0o2070 | everybody << 3;
        }
        if new.st_uid != old.st_uid
            && fs::fchown(file, Some(Uid::from_raw(old.st_uid)), None).is_err()
        {
            return Err(ReplaceError::Owner {
                path: self.path.clone(),
                uid: old.st_uid,
            });
        }
        copy_xattrs(&self.path, file).map_err(failed)?;
        fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(failed)
    }

    fn remove_leftovers(&self) -> io::Result<usize> {
        let mut removed = 0;
        for entry in fs::Dir::read_from(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if !self.is_leftover(name.to_bytes()) {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = match fs::openat(&self.dir, name, flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::NOENT | Errno::LOOP) => continue,
                Err(e) => return Err(e.into()),
            };
            if fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            // Its writer may have renamed it before it could be locked.
            let (opened, named) = (
                fs::fstat(&file)?,
                look(&self.dir, OsStr::from_bytes(name.to_bytes()))?,
            );
            if named
                .is_some_and(|named| (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino))
            {
                fs::unlinkat(&self.dir, name, AtFlags::empty())?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl Steps for Files {
    type Error = ReplaceError;

    fn create(&mut self) -> Result<(), ReplaceError> {
        // A file that may not be written may not be replaced either.
        if self.old.is_some() {
            fs::accessat(&self.dir, &self.name, Access::WRITE_OK, AtFlags::EACCESS)
                .map_err(|e| self.failed(Step::Create)(e.into()))?;
        }
        let temporary = match self.create_nameless() {
            Some(temporary) => temporary,
            None => self.create_named().map_err(self.failed(Step::Create))?,
        };
        self.temporary = Some(temporary);
        Ok(())
    }

    fn write(&mut self, data: &[u8]) -> Result<(), ReplaceError> {
        self.file()
            .and_then(|mut file| file.write_all(data))
            .map_err(self.failed(Step::Write))
    }

    fn sync_file(&mut self) -> Result<(), ReplaceError> {
        if let Some(old) = &self.old {
            self.keep_attributes(old)?;
        }
        self.file()
            .and_then(|file| Ok(retry_on_intr(|| fs::fsync(file))?))
            .map_err(self.failed(Step::Sync))
    }

    fn rename(&mut self) -> Result<(), ReplaceError> {
        let failed = self.failed(Step::Rename);
        let link = |file: &File| -> io::Result<OsString> {
            for _ in 0..TRIES_MAX {
                let name = self.new_name();
                let from = descriptor_path(file);
                match fs::linkat(fs::CWD, from, &self.dir, &name, AtFlags::SYMLINK_FOLLOW) {
                    Err(Errno::EXIST) => {}
                    done => return Ok(done.map(|()| name)?),
                }
            }
            Err(Errno::EXIST.into())
        };
        let name = match &self.temporary {
            Some(Temporary {
                name: Some(name), ..
            }) => Ok(name.clone()),
            Some(Temporary { file, name: None }) => link(file),
            None => Err(Errno::BADF.into()),
        };
        let renamed = name.and_then(|name| {
            let renamed = fs::renameat(&self.dir, &name, &self.dir, &self.name);
            if let Some(temporary) = &mut self.temporary {
                temporary.name = Some(name);
            }
            Ok(renamed?)
        });
        renamed.map_err(failed)
    }

    fn sync_directory(&mut self) -> Result<(), ReplaceError> {
        let synced = match retry_on_intr(|| fs::fsync(&self.dir)) {
            // No fsync for directories here: then for everything.
            Err(Errno::INVAL) => fs::syncfs(&self.dir),
            synced => synced,
        };
        synced.map_err(|e| ReplaceError::NotDurable {
            path: self.path.clone(),
            source: e.into(),
        })
    }

    fn remove(&mut self) {
        if let Some(Temporary {
            name: Some(name), ..
        }) = self.temporary.take()
        {
            let _ = fs::unlinkat(&self.dir, name, AtFlags::empty());
        }
    }
}

/// The file that a name stands for, if any.
fn look(dir: &OwnedFd, name: &OsStr) -> io::Result<Option<Stat>> {
    match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Says that the file's writer lives. Where there are no locks, its leftovers stay.
fn lock(file: &File) {
    let _ = fs::flock(file, FlockOperation::NonBlockingLockExclusive);
}

fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// Attributes of the file, and not of its content, place or last writer.
fn is_kept(name: &[u8]) -> bool {
    ![
        &b"security.capability"[..],
        b"security.ima",
        b"security.evm",
    ]
    .contains(&name)
}

/// Attributes whose loss would lose data, or let other users in.
fn is_needed(name: &[u8]) -> bool {
    name == ACCESS_LIST || name.starts_with(b"user.")
}

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Copies extended attributes, the access control list among them.
fn copy_xattrs(from: &Path, to: &File) -> Result<(), Errno> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let len = match fs::llistxattr(from, &mut names[..]) {
        Ok(len) => len,
        // Not offered, or the old file has gone meanwhile.
        Err(Errno::OPNOTSUPP | Errno::NOENT) => return Ok(()),
        Err(e) => return Err(e),
    };
    let names = names[..len]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty());
    let mut listed = false;
    let mut value = vec![0; XATTR_BYTES_MAX];
    for name in names.filter(|name| is_kept(name)) {
        listed |= name == ACCESS_LIST;
        let copied = fs::lgetxattr(from, OsStr::from_bytes(name), &mut value[..]).and_then(|len| {
            let flags = fs::XattrFlags::empty();
            fs::fsetxattr(to, OsStr::from_bytes(name), &value[..len], flags)
        });
        match copied {
            Err(Errno::NODATA | Errno::NOENT) => {}
            Err(e) if is_needed(name) => return Err(e),
            _ => {}
        }
    }
    if !listed {
        // One that the new file has inherited from the directory.
        match fs::fremovexattr(to, OsStr::from_bytes(ACCESS_LIST)) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
