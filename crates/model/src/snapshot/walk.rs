//! Takes a [`Snapshot`] through the file-system interface, and checks on the way that
//! listing, lookup and attributes agree with each other.

use super::{Entry, Snapshot, join, link_up};
use crate::data::FileData;
use crate::tree::Xattrs;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use steadfast_vfs::{Attr, Caller, Errno, Error, FileKind, FileSystem, Ino, Seek};

/// Reads of file data, in bytes.
const READ_BYTES: u64 = 256 * 1024;
/// Files larger than this are read by their data, skipping holes.
const SPARSE_BYTES_MIN: u64 = 1 << 20;

/// A file system that could not be observed, or that contradicts itself.
#[derive(Clone, Debug)]
pub struct WalkError {
    /// Where.
    pub path: Vec<u8>,
    /// Fault of the entry.
    pub what: String,
    /// The error that a call reported, if it was one.
    pub errno: Option<Errno>,
}

impl fmt::Display for WalkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "observing '{}': {}", self.path.escape_ascii(), self.what)
    }
}

impl std::error::Error for WalkError {}

struct Walker<'a> {
    fs: &'a dyn FileSystem,
    caller: Caller,
    path: Vec<u8>,
}

impl Walker<'_> {
    fn bad(&self, what: impl Into<String>) -> WalkError {
        WalkError {
            path: self.path.clone(),
            what: what.into(),
            errno: None,
        }
    }

    fn failed(&self, call: &str) -> impl Fn(Error) -> WalkError {
        let (path, call) = (self.path.clone(), call.to_string());
        move |e| {
            let what = format!("{call} failed: {e}");
            WalkError {
                path: path.clone(),
                what,
                errno: Some(e.errno),
            }
        }
    }

    fn attr(&self, ino: Ino) -> Result<Attr, WalkError> {
        self.fs
            .getattr(&self.caller, ino)
            .map_err(self.failed("getattr"))
    }

    fn data(&self, ino: Ino, size: u64) -> Result<FileData, WalkError> {
        let mut data = FileData::new();
        let mut buf = vec![0u8; size.clamp(1, READ_BYTES) as usize];
        let mut at = 0;
        while at < size {
            if size > SPARSE_BYTES_MIN {
                match self.fs.seek(&self.caller, ino, at, Seek::Data) {
                    Ok(to) if to >= at && to < size => at = to,
                    Ok(to) => return Err(self.bad(format!("seek from {at} to data at {to}"))),
                    Err(e) if e == Errno::NxIo => break,
                    Err(e) if e == Errno::OpNotSupp || e == Errno::NoSys => {}
                    Err(e) => return Err(self.failed("seek")(e)),
                }
            }
            let want = (size - at).min(buf.len() as u64) as usize;
            let read = self.fs.read(&self.caller, ino, at, &mut buf[..want]);
            let n = read.map_err(self.failed("read"))?;
            if n != want {
                return Err(self.bad(format!("read {n} bytes at {at} of {size}, not {want}")));
            }
            data.write(at, &buf[..n]);
            at += n as u64;
        }
        let beyond = self.fs.read(&self.caller, ino, size, &mut buf[..1]);
        if beyond.map_err(self.failed("read"))? != 0 {
            return Err(self.bad(format!("there is data beyond the size, {size}")));
        }
        data.resize(size);
        Ok(data)
    }

    fn xattrs(&self, ino: Ino) -> Result<Arc<Xattrs>, WalkError> {
        let names = match self.fs.listxattr(&self.caller, ino) {
            Ok(names) => names,
            Err(e) if e == Errno::OpNotSupp || e == Errno::NoSys => return Ok(Arc::default()),
            Err(e) => return Err(self.failed("listxattr")(e)),
        };
        let mut all = Xattrs::new();
        for name in names {
            let value = self.fs.getxattr(&self.caller, ino, &name);
            let value = value.map_err(self.failed("getxattr"))?;
            if all.insert(name, value).is_some() {
                return Err(self.bad("an extended attribute is listed twice"));
            }
        }
        Ok(Arc::new(all))
    }

    fn entry(&self, attr: &Attr) -> Result<Entry, WalkError> {
        let device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let mut entry = Entry {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            size: 0,
            rdev: if device { attr.rdev } else { 0 },
            mtime: attr.mtime,
            data: FileData::new(),
            target: Arc::default(),
            xattrs: self.xattrs(attr.ino)?,
            same_as: None,
        };
        match attr.kind {
            FileKind::Regular => {
                entry.data = self.data(attr.ino, attr.size)?;
                entry.size = attr.size;
            }
            FileKind::Symlink => {
                let target = self.fs.readlink(&self.caller, attr.ino);
                entry.target = Arc::from(target.map_err(self.failed("readlink"))?);
                entry.size = attr.size;
                if entry.size != entry.target.len() as u64 {
                    return Err(self.bad(format!("size {} of a symbolic link", attr.size)));
                }
            }
            _ => {}
        }
        Ok(entry)
    }

    /// Names, inodes and kinds below a directory, `.` and `..` checked and left out.
    fn list(&self, dir: Ino, parent: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>, WalkError> {
        let mut all = Vec::new();
        let mut names = HashSet::new();
        let mut dots = 0;
        let mut wrong = None;
        let listed = self.fs.readdir(&self.caller, dir, 0, &mut |e| {
            let expected = match e.name {
                b"." => Some(dir),
                b".." => Some(parent),
                _ => None,
            };
            if let Some(ino) = expected {
                dots += 1;
                if e.ino != ino || e.kind != FileKind::Directory {
                    wrong = Some(format!("'{}' is inode {}", e.name.escape_ascii(), e.ino));
                }
            } else {
                all.push((e.name.to_vec(), e.ino, e.kind));
            }
            if !names.insert(e.name.to_vec()) {
                wrong = Some(format!("'{}' is listed twice", e.name.escape_ascii()));
            }
            true
        });
        listed.map_err(self.failed("readdir"))?;
        if dots != 2 {
            wrong = Some("'.' and '..' are not both listed".into());
        }
        wrong.map_or(Ok(all), |w| Err(self.bad(w)))
    }
}

impl Snapshot {
    /// Everything that the superuser can observe of a file system.
    ///
    /// Fails if a call fails, or if the file system contradicts itself: an entry that
    /// is listed but not found, two entries of one name, a directory in two places,
    /// `..` that leads elsewhere, data beyond the size.
    pub fn of_fs(fs: &dyn FileSystem) -> Result<Snapshot, WalkError> {
        let mut snapshot = Snapshot::default();
        let mut inos = BTreeMap::new();
        let mut dirs = HashSet::new();
        let mut walker = Walker {
            fs,
            caller: Caller::root(),
            path: b"/".to_vec(),
        };
        let root = fs.root();
        let mut todo = vec![(b"/".to_vec(), root, root)];
        while let Some((path, ino, parent)) = todo.pop() {
            walker.path = path;
            let attr = walker.attr(ino)?;
            let entry = walker.entry(&attr)?;
            if attr.kind == FileKind::Directory {
                if !dirs.insert(ino) {
                    return Err(walker.bad("the directory is in two places"));
                }
                let dotdot = fs.lookup(&walker.caller, ino, b"..");
                if dotdot.map_err(walker.failed("lookup of '..'"))?.ino != parent {
                    return Err(walker.bad("'..' leads to another directory"));
                }
                for (name, child, kind) in walker.list(ino, parent)? {
                    let found = fs.lookup(&walker.caller, ino, &name);
                    let found = found.map_err(walker.failed("lookup of a listed name"))?;
                    if found.ino != child || found.kind != kind {
                        let name = name.escape_ascii();
                        return Err(walker.bad(format!(
                            "'{name}' is listed as {kind:?} {child}, found as {:?} {}",
                            found.kind, found.ino
                        )));
                    }
                    todo.push((join(&walker.path, &name), child, ino));
                }
            } else if attr.nlink > 1 {
                inos.insert(walker.path.clone(), ino);
            }
            snapshot.entries.insert(walker.path.clone(), entry);
        }
        link_up(&mut snapshot.entries, &inos);
        Ok(snapshot)
    }
}
