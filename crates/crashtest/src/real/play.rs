//! The steps of a run, carried out in a directory of a real file system.
//!
//! A file is opened when a step needs it and closed where the run closes it, so that the file system acts on the
//! close as in the run.

use crate::effects::{Body, Entry, Ino, Node, ROOT, Run, What};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use steadfast_vfs::FileKind;

/// Carries out the steps of one run.
pub(super) struct Player {
    root: PathBuf,
    names: HashMap<Ino, Vec<Entry>>,
    at: HashMap<Entry, Ino>,
    open: HashMap<Ino, File>,
    /// The last step that needs each file.
    last_use: HashMap<Ino, usize>,
}

fn missing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what.to_owned())
}

impl Player {
    /// For a run whose initial tree is at `root`.
    pub(super) fn new(root: &Path, run: &Run) -> Player {
        let mut player = Player {
            root: root.to_owned(),
            names: HashMap::new(),
            at: HashMap::new(),
            open: HashMap::new(),
            last_use: HashMap::new(),
        };
        let mut todo = vec![ROOT];
        while let Some(dir) = todo.pop() {
            if let Some(Body::Dir(entries)) = run.base.node(dir).map(|n| &n.body) {
                for (name, ino) in entries {
                    player.name((dir, name.clone()), *ino);
                    todo.push(*ino);
                }
            }
        }
        for (i, step) in run.steps.iter().enumerate() {
            let ino = match &step.what {
                What::Write { ino, .. }
                | What::Truncate { ino, .. }
                | What::Allocate { ino, .. }
                | What::Zero { ino, .. }
                | What::Fsync { ino, .. }
                | What::SyncRange { ino } => *ino,
                _ => continue,
            };
            player.last_use.insert(ino, i);
        }
        player
    }

    fn name(&mut self, at: Entry, ino: Ino) {
        self.names.entry(ino).or_default().push(at.clone());
        self.at.insert(at, ino);
    }

    fn unname(&mut self, at: &Entry) -> Option<Ino> {
        let ino = self.at.remove(at)?;
        if let Some(names) = self.names.get_mut(&ino) {
            names.retain(|n| n != at);
        }
        Some(ino)
    }

    fn path(&self, ino: Ino) -> io::Result<PathBuf> {
        let mut parts = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let names = self.names.get(&at).and_then(|n| n.first());
            let (dir, name) = names.ok_or_else(|| missing("an inode without a name"))?;
            parts.push(name);
            at = *dir;
            if parts.len() > 4096 {
                return Err(missing("a circle of directories"));
            }
        }
        let mut path = self.root.clone();
        path.extend(parts.iter().rev().map(|p| OsStr::from_bytes(p)));
        Ok(path)
    }

    fn entry(&self, at: &Entry) -> io::Result<PathBuf> {
        Ok(self.path(at.0)?.join(OsStr::from_bytes(&at.1)))
    }

    fn file(&mut self, ino: Ino) -> io::Result<&File> {
        if !self.open.contains_key(&ino) {
            let path = self.path(ino)?;
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = match rustix::fs::open(&path, flags, Mode::empty()) {
                Err(rustix::io::Errno::ISDIR) => File::open(&path)?,
                other => File::from(other?),
            };
            self.open.insert(ino, file);
        }
        self.open.get(&ino).ok_or_else(|| missing("no file"))
    }

    /// Closes a file if it is open; directories never stay open.
    fn close(&mut self, ino: Ino) {
        self.open.remove(&ino);
    }

    /// Carries out step `i`.
    pub(super) fn step(&mut self, i: usize, what: &What) -> io::Result<()> {
        match what {
            What::Make { at, ino, node } => {
                let path = self.entry(at)?;
                if let Some(file) = make(&path, node)? {
                    self.open.insert(*ino, file);
                }
                self.name(at.clone(), *ino);
            }
            What::Link { ino, at } => {
                std::fs::hard_link(self.path(*ino)?, self.entry(at)?)?;
                self.name(at.clone(), *ino);
            }
            What::Remove { at } => {
                let path = self.entry(at)?;
                self.hold(i, at)?;
                match std::fs::symlink_metadata(&path)?.is_dir() {
                    true => std::fs::remove_dir(&path)?,
                    false => std::fs::remove_file(&path)?,
                }
                self.unname(at);
            }
            What::Rename { from, to, exchange } => {
                let (source, target) = (self.entry(from)?, self.entry(to)?);
                self.hold(i, to)?;
                let flags = match exchange {
                    true => RenameFlags::EXCHANGE,
                    false => RenameFlags::empty(),
                };
                rustix::fs::renameat_with(CWD, &source, CWD, &target, flags)?;
                let (old, new) = (self.unname(from), self.unname(to));
                if let Some(ino) = old {
                    self.name(to.clone(), ino);
                }
                if let (Some(ino), true) = (new, *exchange) {
                    self.name(from.clone(), ino);
                }
            }
            What::Write { ino, offset, bytes } => {
                self.file(*ino)?.write_all_at(&bytes.all(), *offset)?;
            }
            What::Truncate { ino, size } => self.file(*ino)?.set_len(*size)?,
            What::Allocate { ino, size } => {
                rustix::fs::fallocate(self.file(*ino)?, FallocateFlags::empty(), 0, *size)?;
            }
            What::Zero { ino, offset, len } => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(self.file(*ino)?, how, *offset, *len)?;
            }
            What::Attr {
                ino,
                perm,
                uid,
                gid,
            } => {
                let path = self.path(*ino)?;
                if let Some(perm) = perm {
                    let mode = Mode::from_raw_mode(u32::from(*perm));
                    rustix::fs::chmodat(CWD, &path, mode, AtFlags::empty())?;
                }
                if uid.is_some() || gid.is_some() {
                    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                    rustix::fs::chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
                }
            }
            What::Xattr { ino, name, value } => {
                let path = self.path(*ino)?;
                match value {
                    Some(value) => {
                        let flags = XattrFlags::empty();
                        rustix::fs::lsetxattr(&path, name.as_slice(), value, flags)?;
                    }
                    None => rustix::fs::lremovexattr(&path, name.as_slice())?,
                }
            }
            What::Close { ino } => self.close(*ino),
            What::Fsync { ino, data_only } => {
                let file = self.file(*ino)?;
                match data_only {
                    true => rustix::fs::fdatasync(file)?,
                    false => file.sync_all()?,
                }
                if file.metadata()?.is_dir() {
                    self.close(*ino);
                }
            }
            What::Sync => rustix::fs::syncfs(File::open(&self.root)?)?,
            What::SyncRange { ino } => self.write_back(*ino)?,
            What::Ack { .. } => {}
        }
        Ok(())
    }

    /// Keeps a file whose name is removed open if later steps need it.
    fn hold(&mut self, i: usize, at: &Entry) -> io::Result<()> {
        let Some(ino) = self.at.get(at).copied() else {
            return Ok(());
        };
        let needed = self.last_use.get(&ino).is_some_and(|last| *last > i);
        let last_name = self.names.get(&ino).is_some_and(|n| n.len() == 1);
        if needed && last_name {
            self.file(ino)?;
        }
        Ok(())
    }

    /// Makes the kernel write out the cached data of a file, as it does by itself after some time, and as
    /// sync_file_range does.
    pub(super) fn write_back(&mut self, ino: Ino) -> io::Result<()> {
        let was_open = self.open.contains_key(&ino);
        let file = self.file(ino)?;
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
        if !was_open {
            // The run did not make this close; the file was not cut, so the close has no meaning.
            self.close(ino);
        }
        Ok(())
    }

    /// The files of the run that have a name now.
    pub(super) fn files(&self) -> Vec<Ino> {
        let mut all: Vec<Ino> = self
            .names
            .iter()
            .filter(|(_, n)| !n.is_empty())
            .map(|(i, _)| *i)
            .collect();
        all.sort_unstable();
        all
    }
}

fn make(path: &Path, node: &Node) -> io::Result<Option<File>> {
    let mode = Mode::from_raw_mode(u32::from(node.perm));
    match &node.body {
        Body::File { .. } => {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            return Ok(Some(File::from(rustix::fs::open(path, flags, mode)?)));
        }
        Body::Dir(_) => rustix::fs::mkdirat(CWD, path, mode)?,
        Body::Link(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), path)?,
        Body::Special => {
            let kind = match node.kind {
                FileKind::Socket => rustix::fs::FileType::Socket,
                _ => rustix::fs::FileType::Fifo,
            };
            rustix::fs::mknodat(CWD, path, kind, mode, 0)?;
        }
    }
    Ok(None)
}
