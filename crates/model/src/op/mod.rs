//! Operations as values: the calls of a test on a file system, by path.
//!
//! An [`Op`] can be printed on one line and read back ([`Op`]'s `Display` and
//! `FromStr`), so a failing history is a text file. The same `Op` runs on a
//! [`Tree`] ([`Tree::apply`]) and on any [`FileSystem`] ([`Op::run`]); both resolve
//! its paths by looking names up, without following symbolic links, and then make one
//! [`Call`]. Results are [`Outcome`]s, equal if and only if the caller saw the same.
//!
//! Neighbours: [`crate::tree`], [`crate::ordered`], [`crate::workload`].

mod call;
mod text;

pub use call::Call;
pub use text::ParseError;

use crate::hash::Hasher128;
use crate::tree::{ROOT, Tree};
use std::collections::BTreeMap;
use std::sync::Arc;
use steadfast_vfs::{
    AllocateMode, Attr, Caller, Errno, FileKind, FileSystem, Ino, RenameMode, SetAttr, Stream,
    Time, XattrMode,
};

/// An absolute path; the empty one is the root. Components may be `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path(pub Vec<Vec<u8>>);

impl Path {
    /// From text such as `/a/b`. Empty components are skipped.
    #[must_use]
    pub fn new(text: &str) -> Path {
        Path(
            text.split('/')
                .filter(|c| !c.is_empty())
                .map(|c| c.as_bytes().to_vec())
                .collect(),
        )
    }
}

impl From<&str> for Path {
    fn from(text: &str) -> Path {
        Path::new(text)
    }
}

/// Target of an operation on an existing inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Inode that this path names.
    Path(Path),
    /// The file that an [`Op::Open`] with this number opened; lives on when its names are gone.
    Handle(u32),
}

impl From<&str> for Target {
    fn from(text: &str) -> Target {
        Target::Path(Path::new(text))
    }
}

/// Bytes to write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    /// These bytes.
    Bytes(Vec<u8>),
    /// This number of bytes that follow from a seed; none of them is zero, so that they can
    /// be distinguished from a hole.
    Pattern {
        /// Seed of the bytes.
        seed: u64,
        /// Number of bytes.
        len: u64,
    },
}

impl Data {
    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Data::Bytes(b) => b.len() as u64,
            Data::Pattern { len, .. } => *len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (seed, len) = match self {
            Data::Bytes(b) => return b.clone(),
            Data::Pattern { seed, len } => (*seed, *len),
        };
        let mut out = Vec::with_capacity(len as usize + 16);
        let mut index = 0;
        while (out.len() as u64) < len {
            let word = Hasher128::new(seed).u64(index).finish();
            out.extend(word.to_le_bytes().map(|b| b.max(1)));
            index += 1;
        }
        out.truncate(len as usize);
        out
    }
}

/// An operation that changes a file system or its durability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes a regular file, device, pipe or socket.
    Mknod {
        /// Its path.
        path: Path,
        /// Kind of the inode.
        kind: FileKind,
        /// Mode.
        perm: u16,
        /// Device number.
        rdev: u32,
    },
    /// Makes a directory.
    Mkdir {
        /// Its path.
        path: Path,
        /// Mode.
        perm: u16,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Its path.
        path: Path,
        /// Content of the link.
        target: Vec<u8>,
    },
    /// Makes another name.
    Link {
        /// The inode.
        from: Target,
        /// Its new name.
        to: Path,
    },
    /// Removes a name.
    Unlink {
        /// The name.
        path: Path,
    },
    /// Removes an empty directory.
    Rmdir {
        /// The directory.
        path: Path,
    },
    /// Renames.
    Rename {
        /// Old path.
        from: Path,
        /// New path.
        to: Path,
        /// How.
        mode: RenameMode,
    },
    /// Writes at an offset.
    Write {
        /// The file.
        file: Target,
        /// Where.
        offset: u64,
        /// What.
        data: Data,
    },
    /// Writes at the end.
    Append {
        /// The file.
        file: Target,
        /// What.
        data: Data,
    },
    /// Changes attributes, the size among them.
    SetAttr {
        /// The inode.
        file: Target,
        /// Changes.
        set: SetAttr,
    },
    /// Changes the allocation of a range.
    Fallocate {
        /// The file.
        file: Target,
        /// How.
        mode: AllocateMode,
        /// Where.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The inode.
        file: Target,
        /// Name.
        name: Vec<u8>,
        /// Value.
        value: Vec<u8>,
        /// How.
        mode: XattrMode,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The inode.
        file: Target,
        /// Name.
        name: Vec<u8>,
    },
    /// Opens an inode under a number that is not in use.
    Open {
        /// The inode.
        path: Path,
        /// The number.
        handle: u32,
    },
    /// Closes a number.
    Close {
        /// The number.
        handle: u32,
    },
    /// Makes an inode durable.
    Fsync {
        /// The inode.
        file: Target,
    },
    /// Makes a file's data durable.
    Fdatasync {
        /// The file.
        file: Target,
    },
    /// Makes everything durable.
    Sync,
}

/// An operation with its caller and its time: one line of a history.
#[derive(Clone, Debug)]
pub struct Step {
    /// The caller.
    pub caller: Caller,
    /// When.
    pub at: Time,
    /// What.
    pub op: Op,
}

impl Step {
    /// The operation as done: a short write is a write of what fits.
    pub fn as_done(&self, result: OpResult) -> (Step, OpResult) {
        let short = |data: &Data, written: u64| {
            (0 < written && written < data.len())
                .then(|| Data::Bytes(data.bytes()[..written as usize].to_vec()))
        };
        let mut done = self.clone();
        match (&mut done.op, result) {
            (Op::Write { data, .. }, Ok(Outcome::Wrote(written))) => {
                if let Some(kept) = short(data, written) {
                    *data = kept;
                }
                (done, result)
            }
            (Op::Append { data, .. }, Ok(Outcome::AtShort(at, written))) => {
                let Some(kept) = short(data, written) else {
                    return (done, result);
                };
                *data = kept;
                (done, Ok(Outcome::At(at)))
            }
            _ => (done, result),
        }
    }

    /// The superuser does `op` in `stream` at time 0.
    #[must_use]
    pub fn new(stream: u32, op: Op) -> Step {
        let caller = Caller {
            stream: Stream(stream),
            ..Caller::root()
        };
        Step {
            caller,
            at: Time::default(),
            op,
        }
    }

    /// The same at another time.
    #[must_use]
    pub fn at(mut self, at: Time) -> Step {
        self.at = at;
        self
    }
}

/// Attributes that a call reports. Link count and size of a directory are left out
/// (zero): other streams change the one, the file system chooses the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Kind of the inode.
    pub kind: FileKind,
    /// Mode.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number; zero unless it is a device.
    pub rdev: u32,
    /// Hard links; zero for directories.
    pub nlink: u32,
    /// Size in bytes; zero for directories.
    pub size: u64,
}

impl From<&Attr> for Seen {
    fn from(a: &Attr) -> Seen {
        let dir = a.kind == FileKind::Directory;
        let device = matches!(a.kind, FileKind::CharDevice | FileKind::BlockDevice);
        Seen {
            kind: a.kind,
            perm: a.perm,
            uid: a.uid,
            gid: a.gid,
            rdev: if device { a.rdev } else { 0 },
            nlink: if dir { 0 } else { a.nlink },
            size: if dir { 0 } else { a.size },
        }
    }
}

/// Report of a successful operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing but success.
    Done,
    /// The attributes of the inode that was made, linked or changed.
    Node(Seen),
    /// Number of bytes written.
    Wrote(u64),
    /// The offset that an append went to.
    At(u64),
    /// The same, and how many bytes it wrote: not all.
    AtShort(u64, u64),
}

/// Result of an operation.
pub type OpResult = Result<Outcome, Errno>;

/// Open handles of a file system that is driven by [`Op`]s: number → inode.
pub type Handles = BTreeMap<u32, Ino>;

/// Lookup of a path, one name at a time.
type Lookup<'a> = &'a dyn Fn(Ino, &[u8]) -> Result<Ino, Errno>;

struct Walk<'a> {
    root: Ino,
    lookup: Lookup<'a>,
    handles: &'a Handles,
}

impl Walk<'_> {
    fn down(&self, path: &[Vec<u8>]) -> Result<Ino, Errno> {
        path.iter()
            .try_fold(self.root, |dir, name| (self.lookup)(dir, name))
    }

    fn target(&self, target: &Target) -> Result<Ino, Errno> {
        match target {
            Target::Path(p) => self.down(&p.0),
            Target::Handle(h) => self.handles.get(h).copied().ok_or(Errno::BadF),
        }
    }

    /// Directory and name; `root` is the result for the root itself.
    fn entry(&self, path: &Path, root: Errno) -> Result<(Ino, Vec<u8>), Errno> {
        let (name, above) = path.0.split_last().ok_or(root)?;
        Ok((self.down(above)?, name.clone()))
    }
}

impl Op {
    /// The call that the operation makes once its paths are looked up.
    fn resolve(&self, walk: &Walk<'_>) -> Result<Call, Errno> {
        Ok(match self {
            Op::Mknod {
                path,
                kind,
                perm,
                rdev,
            } => {
                let (parent, name) = walk.entry(path, Errno::Exist)?;
                Call::Mknod {
                    parent,
                    name,
                    kind: *kind,
                    perm: *perm,
                    rdev: *rdev,
                }
            }
            Op::Mkdir { path, perm } => {
                let (parent, name) = walk.entry(path, Errno::Exist)?;
                Call::Mkdir {
                    parent,
                    name,
                    perm: *perm,
                }
            }
            Op::Symlink { path, target } => {
                let (parent, name) = walk.entry(path, Errno::Exist)?;
                Call::Symlink {
                    parent,
                    name,
                    target: target.clone(),
                }
            }
            Op::Link { from, to } => {
                let ino = walk.target(from)?;
                let (parent, name) = walk.entry(to, Errno::Exist)?;
                Call::Link { ino, parent, name }
            }
            Op::Unlink { path } => {
                let (parent, name) = walk.entry(path, Errno::IsDir)?;
                Call::Unlink { parent, name }
            }
            Op::Rmdir { path } => {
                let (parent, name) = walk.entry(path, Errno::Busy)?;
                Call::Rmdir { parent, name }
            }
            Op::Rename { from, to, mode } => {
                let from = walk.entry(from, Errno::Busy)?;
                // The first path is walked to its end before the second one is.
                (walk.lookup)(from.0, b".")?;
                let no_replace = mode.is_no_replace();
                let to = walk.entry(
                    to,
                    if no_replace {
                        Errno::Exist
                    } else {
                        Errno::Busy
                    },
                )?;
                Call::Rename {
                    from,
                    to,
                    mode: *mode,
                }
            }
            Op::Write { file, offset, data } => {
                let data = Arc::from(data.bytes());
                Call::Write {
                    ino: walk.target(file)?,
                    offset: *offset,
                    data,
                }
            }
            Op::Append { file, data } => Call::Append {
                ino: walk.target(file)?,
                data: Arc::from(data.bytes()),
            },
            Op::SetAttr { file, set } => Call::SetAttr {
                ino: walk.target(file)?,
                set: *set,
            },
            Op::Fallocate {
                file,
                mode,
                offset,
                len,
            } => {
                let ino = walk.target(file)?;
                Call::Fallocate {
                    ino,
                    mode: *mode,
                    offset: *offset,
                    len: *len,
                }
            }
            Op::SetXattr {
                file,
                name,
                value,
                mode,
            } => Call::SetXattr {
                ino: walk.target(file)?,
                name: name.clone(),
                value: value.clone(),
                mode: *mode,
            },
            Op::RemoveXattr { file, name } => Call::RemoveXattr {
                ino: walk.target(file)?,
                name: name.clone(),
            },
            Op::Open { path, handle } => {
                if walk.handles.contains_key(handle) {
                    return Err(Errno::Busy);
                }
                Call::Open {
                    ino: walk.down(&path.0)?,
                    handle: *handle,
                }
            }
            Op::Close { handle } => Call::Close {
                ino: walk.target(&Target::Handle(*handle))?,
                handle: *handle,
            },
            Op::Fsync { file } => Call::Fsync {
                ino: walk.target(file)?,
                data_only: false,
            },
            Op::Fdatasync { file } => Call::Fsync {
                ino: walk.target(file)?,
                data_only: true,
            },
            Op::Sync => Call::Sync,
        })
    }

    /// Runs the operation on a file system. `handles` are its open handles.
    pub fn run(&self, fs: &dyn FileSystem, caller: &Caller, handles: &mut Handles) -> OpResult {
        let lookup =
            |dir: Ino, name: &[u8]| Ok(fs.lookup(caller, dir, name).map_err(|e| e.errno)?.ino);
        let walk = Walk {
            root: fs.root(),
            lookup: &lookup,
            handles,
        };
        let call = self.resolve(&walk)?;
        call.run(fs, caller, handles).map_err(|e| e.errno)
    }
}

impl Tree {
    /// The call that `op` makes on this tree; an error if its paths lead nowhere.
    pub fn resolve(&self, op: &Op, caller: &Caller) -> Result<Call, Errno> {
        let lookup = |dir: Ino, name: &[u8]| self.lookup(caller, dir, name);
        op.resolve(&Walk {
            root: ROOT,
            lookup: &lookup,
            handles: &self.handles,
        })
    }

    /// Runs the operation on this tree. A failed operation changes nothing.
    pub fn apply(&mut self, op: &Op, caller: &Caller, at: Time) -> OpResult {
        let call = self.resolve(op, caller)?;
        self.call(&call, caller, at)
    }

    /// Runs one line of a history.
    pub fn step(&mut self, step: &Step) -> OpResult {
        self.apply(&step.op, &step.caller, step.at)
    }
}
