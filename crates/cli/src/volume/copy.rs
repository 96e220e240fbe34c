//! Copies all files of a volume to another, empty one, whatever media the two lie on.
//!
//! While the copy is incomplete, the file [`MARK`] is in the root of the new volume. It is made durable before anything
//! else is changed, and removed when all else is durable. Two things of the root come after that: its times, which the
//! removal changes, and flags that would keep the mark. A crash in between leaves a complete copy without them.
//!
//! Order within an inode: content, owner, extended attributes, permissions, times; each step would undo one of the
//! later ones. Default ACLs of a directory must not reach its entries, and its entries change its times: so its
//! attributes are set after its entries. Flags that forbid changes are set last. The root of an empty volume may have
//! attributes of an earlier use, a default ACL among them: they are removed first.

#[cfg(all(test, feature = "pm"))]
mod tests;

use std::collections::HashMap;

use steadfast_vfs::{
    Attr, Caller, Cookie, Errno, Error, FileKind, FileSystem, Ino, InodeFlags, NewNode, Seek,
    SetAttr, SetTime, XattrMode,
};

/// Name of the file that marks an incomplete copy.
pub(crate) const MARK: &str = ".steadfast-copy-incomplete";

/// Bytes that are read and written at a time.
const PIECE: usize = 1 << 20;

/// Whether a test has planted a fault. A release has no faults.
#[cfg(all(test, feature = "pm"))]
macro_rules! planted {
    ($copy:expr, $fault:ident) => {
        $copy.fault == Some(tests::Fault::$fault)
    };
}
#[cfg(not(all(test, feature = "pm")))]
macro_rules! planted {
    ($copy:expr, $fault:ident) => {
        false
    };
}

/// Counts of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Files, directories and others, without the root.
    pub(crate) inodes: u64,
    /// Bytes of content that were written.
    pub(crate) bytes: u64,
    /// Inodes with a flag that the new volume cannot keep.
    pub(crate) flags_left_out: u64,
}

/// Failure of a copy: its path and its cause.
#[derive(Debug)]
pub(crate) struct CopyError {
    path: Vec<u8>,
    error: Error,
}

impl std::fmt::Display for CopyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.escape_ascii(), self.error)
    }
}

/// Whether a volume has no entry in its root.
pub(crate) fn is_empty(fs: &dyn FileSystem) -> Result<bool, Error> {
    let mut empty = true;
    let root = fs.root();
    fs.readdir(&Caller::root(), root, Cookie::default(), &mut |entry| {
        empty = matches!(entry.name, b"." | b"..");
        empty
    })?;
    Ok(empty)
}

/// Copies all of `from` to `to`, which is empty. `progress` gets the number of inodes copied so far.
pub(crate) fn copy(
    from: &dyn FileSystem,
    to: &dyn FileSystem,
    progress: &mut dyn FnMut(u64),
) -> Result<Copied, CopyError> {
    Copy::new(from, to).all(progress)
}

/// A directory whose entries are to be copied, or whose attributes are to be set.
enum Step {
    Entries(Directory),
    Attributes(Directory),
}

struct Directory {
    from: Ino,
    to: Ino,
    path: Vec<u8>,
}

struct Copy<'a> {
    from: &'a dyn FileSystem,
    to: &'a dyn FileSystem,
    caller: Caller,
    /// Inodes with several names that were copied.
    links: HashMap<Ino, Ino>,
    /// Flags that forbid changes.
    flags: Vec<(Ino, InodeFlags, Vec<u8>)>,
    copied: Copied,
    buffer: Vec<u8>,
    #[cfg(all(test, feature = "pm"))]
    fault: Option<tests::Fault>,
}

impl<'a> Copy<'a> {
    fn new(from: &'a dyn FileSystem, to: &'a dyn FileSystem) -> Copy<'a> {
        Copy {
            from,
            to,
            caller: Caller::root(),
            links: HashMap::new(),
            flags: Vec::new(),
            copied: Copied::default(),
            buffer: vec![0; PIECE],
            #[cfg(all(test, feature = "pm"))]
            fault: None,
        }
    }

    fn all(&mut self, progress: &mut dyn FnMut(u64)) -> Result<Copied, CopyError> {
        let root = self.to.root();
        if !planted!(self, MarkLate) {
            self.mark(root)?;
        }
        let top = |path: &[u8]| Directory {
            from: self.from.root(),
            to: root,
            path: path.to_vec(),
        };
        let attr = at(b"/", self.from.getattr(&self.caller, self.from.root()))?;
        at(b"/", self.easy_flags(&attr, root, b"/"))?;
        at(b"/", self.clear(root))?;
        let mut steps = vec![Step::Attributes(top(b"/")), Step::Entries(top(b""))];
        while let Some(step) = steps.pop() {
            match step {
                Step::Entries(directory) => self.entries(&directory, &mut steps, progress)?,
                Step::Attributes(directory) => {
                    let attr = self.from.getattr(&self.caller, directory.from);
                    let attr = at(&directory.path, attr)?;
                    let done = self.attributes(&attr, directory.to);
                    at(&directory.path, done)?;
                }
            }
        }
        if planted!(self, MarkLate) {
            self.mark(root)?;
        }
        if planted!(self, FlagsUnmarked) {
            self.unmark(root)?;
        }
        // Flags of the root would keep the mark.
        let flags = std::mem::take(&mut self.flags).into_iter();
        let (last, flags): (Vec<_>, Vec<_>) = flags.partition(|(ino, ..)| *ino == root);
        for (ino, flags, path) in flags {
            at(&path, self.to.set_flags(&self.caller, ino, flags))?;
        }
        if !planted!(self, ContentUnsynced) {
            at(b"/", self.to.sync())?;
        }
        if !planted!(self, FlagsUnmarked) {
            self.unmark(root)?;
        }
        for (ino, flags, path) in last {
            at(&path, self.to.set_flags(&self.caller, ino, flags))?;
        }
        if !planted!(self, EndUnsynced) {
            at(b"/", self.to.sync())?;
        }
        Ok(self.copied)
    }

    /// Marks the new volume as an incomplete copy, durably.
    fn mark(&self, root: Ino) -> Result<(), CopyError> {
        let mark = NewNode {
            kind: FileKind::Regular,
            perm: 0o600,
            rdev: 0,
        };
        let marked = self.to.mknod(&self.caller, root, MARK.as_bytes(), &mark);
        at(MARK.as_bytes(), marked)?;
        match planted!(self, MarkUnsynced) {
            true => Ok(()),
            false => at(MARK.as_bytes(), self.to.sync()),
        }
    }

    /// Removes the mark. The root gets the times of the source again, which the removal changed.
    fn unmark(&self, root: Ino) -> Result<(), CopyError> {
        let times = self.from.getattr(&self.caller, self.from.root());
        let times = at(b"/", times)?;
        let removed = self.to.unlink(&self.caller, root, MARK.as_bytes());
        let removed = removed.and_then(|()| match planted!(self, RootTimesLost) {
            true => Ok(()),
            false => self.times(&times, root),
        });
        at(MARK.as_bytes(), removed)
    }

    /// Removes the extended attributes of the new root, ACLs among them.
    fn clear(&self, root: Ino) -> Result<(), Error> {
        for name in self.to.listxattr(&self.caller, root)? {
            self.to.removexattr(&self.caller, root, &name)?;
        }
        Ok(())
    }

    fn entries(
        &mut self,
        directory: &Directory,
        steps: &mut Vec<Step>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CopyError> {
        let mut names = Vec::new();
        let listed = self.from.readdir(
            &self.caller,
            directory.from,
            Cookie::default(),
            &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    names.push(entry.name.to_vec());
                }
                true
            },
        );
        at(&directory.path, listed)?;
        for name in names {
            let path = [&directory.path[..], b"/", &name].concat();
            if path == [b"/", MARK.as_bytes()].concat() {
                if planted!(self, IncompleteSourceTaken) {
                    continue;
                }
                // The source is itself an incomplete copy.
                return Err(CopyError {
                    path,
                    error: Errno::Exist.into(),
                });
            }
            let made = self.entry(directory, &name, &path);
            if let Some(below) = at(&path, made)? {
                steps.push(Step::Attributes(Directory {
                    path: path.clone(),
                    ..below
                }));
                steps.push(Step::Entries(Directory { path, ..below }));
                if planted!(self, DirectoryFirst) {
                    let last = steps.len() - 1;
                    steps.swap(last, last - 1);
                }
            }
            self.copied.inodes += 1;
            progress(self.copied.inodes);
        }
        Ok(())
    }

    /// Copies an entry. The entries of a directory, and most of its attributes, follow later.
    fn entry(
        &mut self,
        directory: &Directory,
        name: &[u8],
        path: &[u8],
    ) -> Result<Option<Directory>, Error> {
        let attr = self.from.lookup(&self.caller, directory.from, name)?;
        if let Some(there) = self.links.get(&attr.ino) {
            self.to.link(&self.caller, *there, directory.to, name)?;
            return Ok(None);
        }
        let made = match attr.kind {
            FileKind::Directory => self.to.mkdir(&self.caller, directory.to, name, 0o700)?,
            FileKind::Symlink => {
                let target = self.from.readlink(&self.caller, attr.ino)?;
                self.to.symlink(&self.caller, directory.to, name, &target)?
            }
            kind => {
                let new = NewNode {
                    kind,
                    perm: 0o600,
                    rdev: attr.rdev,
                };
                self.to.mknod(&self.caller, directory.to, name, &new)?
            }
        };
        self.easy_flags(&attr, made.ino, path)?;
        if attr.kind == FileKind::Directory {
            return Ok(Some(Directory {
                from: attr.ino,
                to: made.ino,
                path: Vec::new(),
            }));
        }
        if attr.kind == FileKind::Regular {
            self.content(&attr, made.ino)?;
        }
        self.attributes(&attr, made.ino)?;
        if attr.nlink > 1 && !planted!(self, LinkCopied) {
            self.links.insert(attr.ino, made.ino);
        }
        Ok(None)
    }

    /// Copies data; holes stay holes.
    fn content(&mut self, attr: &Attr, to: Ino) -> Result<(), Error> {
        let mut offset = 0;
        while offset < attr.size {
            let data = match self.from.seek(&self.caller, attr.ino, offset, Seek::Data) {
                Ok(data) => data,
                Err(error) if error == Errno::NxIo => break,
                Err(error) => return Err(error),
            };
            let end = self.from.seek(&self.caller, attr.ino, data, Seek::Hole)?;
            let (data, end) = match planted!(self, HoleFilled) {
                true => (offset, attr.size),
                false => (data, end),
            };
            offset = data;
            while offset < end.min(attr.size) {
                let most = (end.min(attr.size) - offset).min(PIECE as u64) as usize;
                if planted!(self, PieceLost) && offset > data && most < PIECE {
                    offset = end;
                    break;
                }
                let read =
                    self.from
                        .read(&self.caller, attr.ino, offset, &mut self.buffer[..most])?;
                if read == 0 {
                    return Err(Errno::Io.into());
                }
                let mut written = 0;
                while written < read {
                    let rest = &self.buffer[written..read];
                    let more = self
                        .to
                        .write(&self.caller, to, offset + written as u64, rest)?;
                    if more == 0 {
                        return Err(Errno::NoSpc.into());
                    }
                    written += more;
                }
                offset += read as u64;
                self.copied.bytes += read as u64;
            }
        }
        let size = SetAttr {
            size: Some(attr.size),
            ..SetAttr::default()
        };
        self.to.setattr(&self.caller, to, &size).map(drop)
    }

    fn attributes(&self, attr: &Attr, to: Ino) -> Result<(), Error> {
        let owner = SetAttr {
            uid: Some(attr.uid),
            gid: Some(attr.gid),
            ..SetAttr::default()
        };
        if planted!(self, PermBeforeOwner) {
            self.perm(attr, to)?;
        }
        self.to.setattr(&self.caller, to, &owner)?;
        for name in self.from.listxattr(&self.caller, attr.ino)? {
            let value = self.from.getxattr(&self.caller, attr.ino, &name)?;
            self.to
                .setxattr(&self.caller, to, &name, &value, XattrMode::Any)?;
        }
        if !planted!(self, PermBeforeOwner) {
            self.perm(attr, to)?;
        }
        self.times(attr, to)
    }

    fn perm(&self, attr: &Attr, to: Ino) -> Result<(), Error> {
        if attr.kind == FileKind::Symlink {
            return Ok(());
        }
        let perm = SetAttr {
            perm: Some(attr.perm),
            ..SetAttr::default()
        };
        self.to.setattr(&self.caller, to, &perm).map(drop)
    }

    fn times(&self, attr: &Attr, to: Ino) -> Result<(), Error> {
        let times = SetAttr {
            atime: Some(SetTime::At(attr.atime)),
            mtime: Some(SetTime::At(attr.mtime)),
            ..SetAttr::default()
        };
        self.to.setattr(&self.caller, to, &times).map(drop)
    }

    /// Sets the flags that forbid nothing, and remembers the others.
    fn easy_flags(&mut self, attr: &Attr, to: Ino, path: &[u8]) -> Result<(), Error> {
        if !matches!(attr.kind, FileKind::Regular | FileKind::Directory) {
            return Ok(());
        }
        let mut flags = match self.from.flags(&self.caller, attr.ino) {
            Ok(flags) => flags,
            Err(error) if error == Errno::OpNotSupp => InodeFlags::NONE,
            Err(error) => return Err(error),
        };
        let there = match self.to.flags(&self.caller, to) {
            Ok(there) => there,
            Err(error) if error == Errno::OpNotSupp => {
                self.copied.flags_left_out += u64::from(flags != InodeFlags::NONE);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        match self.set_easy_flags(flags, there, to) {
            // Persistent memory has no overwrites in place, but all other flags.
            Err(error) if error == Errno::OpNotSupp && flags.has(InodeFlags::NOCOW) => {
                self.copied.flags_left_out += 1;
                flags = flags.differing(InodeFlags::NOCOW);
                self.set_easy_flags(flags, there, to)?;
            }
            set => set?,
        }
        if flags != easy(flags) {
            self.flags.push((to, flags, path.to_vec()));
        }
        Ok(())
    }

    /// Flags inherited from the directory are not the inode's own.
    fn set_easy_flags(&self, flags: InodeFlags, there: InodeFlags, to: Ino) -> Result<(), Error> {
        let easy = easy(flags);
        let keeps = planted!(self, InheritedFlagsKept) && easy == InodeFlags::NONE;
        match easy == there || keeps {
            true => Ok(()),
            false => self.to.set_flags(&self.caller, to, easy),
        }
    }
}

/// The flags that forbid nothing.
fn easy(flags: InodeFlags) -> InodeFlags {
    flags.both(InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::NOCOW)
}

fn at<T>(path: &[u8], result: Result<T, Error>) -> Result<T, CopyError> {
    result.map_err(|error| CopyError {
        path: path.to_vec(),
        error,
    })
}
