//! One call of the file-system interface, by inode: the form of an [`Op`](super::Op) when
//! its paths are looked up. Contracts replay calls, not paths: the directory of a call
//! was decided by lookups that no contract orders.

use super::{Handles, OpResult, Outcome, Seen};
use crate::tree::Tree;
use std::sync::Arc;
use steadfast_vfs::{
    AllocateMode, Attr, Caller, FileKind, FileSystem, Ino, NewNode, RenameMode, SetAttr, Time,
    XattrMode,
};

/// A call of [`FileSystem`] that changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields are the parameters of the trait's methods"
)]
pub enum Call {
    /// `mknod`
    Mknod {
        parent: Ino,
        name: Vec<u8>,
        kind: FileKind,
        perm: u16,
        rdev: u32,
    },
    /// `mkdir`
    Mkdir {
        parent: Ino,
        name: Vec<u8>,
        perm: u16,
    },
    /// `symlink`
    Symlink {
        parent: Ino,
        name: Vec<u8>,
        target: Vec<u8>,
    },
    /// `link`
    Link {
        ino: Ino,
        parent: Ino,
        name: Vec<u8>,
    },
    /// `unlink`
    Unlink { parent: Ino, name: Vec<u8> },
    /// `rmdir`
    Rmdir { parent: Ino, name: Vec<u8> },
    /// `rename`
    Rename {
        from: (Ino, Vec<u8>),
        to: (Ino, Vec<u8>),
        mode: RenameMode,
    },
    /// `write`
    Write {
        ino: Ino,
        offset: u64,
        data: Arc<[u8]>,
    },
    /// `append`
    Append { ino: Ino, data: Arc<[u8]> },
    /// `setattr`
    SetAttr { ino: Ino, set: SetAttr },
    /// `fallocate`
    Fallocate {
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    },
    /// `setxattr`
    SetXattr {
        ino: Ino,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: XattrMode,
    },
    /// `removexattr`
    RemoveXattr { ino: Ino, name: Vec<u8> },
    /// `open`
    Open { ino: Ino, handle: u32 },
    /// `release`
    Close { ino: Ino, handle: u32 },
    /// `fsync`
    Fsync { ino: Ino, data_only: bool },
    /// `sync`
    Sync,
}

fn node(attr: &Attr) -> Outcome {
    Outcome::Node(Seen::from(attr))
}

impl Call {
    /// Whether it only opens, closes or syncs: the tree stays as it is.
    #[must_use]
    pub fn keeps_the_tree(&self) -> bool {
        matches!(
            self,
            Call::Open { .. } | Call::Close { .. } | Call::Fsync { .. } | Call::Sync
        )
    }

    pub(super) fn run(
        &self,
        fs: &dyn FileSystem,
        caller: &Caller,
        handles: &mut Handles,
    ) -> steadfast_vfs::Result<Outcome> {
        let c = caller;
        Ok(match self {
            Call::Mknod {
                parent,
                name,
                kind,
                perm,
                rdev,
            } => {
                let new = NewNode {
                    kind: *kind,
                    perm: *perm,
                    rdev: *rdev,
                };
                node(&fs.mknod(c, *parent, name, &new)?)
            }
            Call::Mkdir { parent, name, perm } => node(&fs.mkdir(c, *parent, name, *perm)?),
            Call::Symlink {
                parent,
                name,
                target,
            } => node(&fs.symlink(c, *parent, name, target)?),
            Call::Link { ino, parent, name } => node(&fs.link(c, *ino, *parent, name)?),
            Call::Unlink { parent, name } => done(fs.unlink(c, *parent, name))?,
            Call::Rmdir { parent, name } => done(fs.rmdir(c, *parent, name))?,
            Call::Rename { from, to, mode } => {
                done(fs.rename(c, (from.0, &from.1), (to.0, &to.1), *mode))?
            }
            Call::Write { ino, offset, data } => {
                Outcome::Wrote(fs.write(c, *ino, *offset, data)? as u64)
            }
            Call::Append { ino, data } => match fs.append(c, *ino, data)? {
                (at, written) if written == data.len() => Outcome::At(at),
                (at, written) => Outcome::AtShort(at, written as u64),
            },
            Call::SetAttr { ino, set } => node(&fs.setattr(c, *ino, set)?),
            Call::Fallocate {
                ino,
                mode,
                offset,
                len,
            } => done(fs.fallocate(c, *ino, *mode, *offset, *len))?,
            Call::SetXattr {
                ino,
                name,
                value,
                mode,
            } => done(fs.setxattr(c, *ino, name, value, *mode))?,
            Call::RemoveXattr { ino, name } => done(fs.removexattr(c, *ino, name))?,
            Call::Open { ino, handle } => {
                fs.open(c, *ino)?;
                handles.insert(*handle, *ino);
                Outcome::Done
            }
            Call::Close { ino, handle } => {
                fs.release(*ino);
                handles.remove(handle);
                Outcome::Done
            }
            Call::Fsync { ino, data_only } => done(fs.fsync(c, *ino, *data_only))?,
            Call::Sync => done(fs.sync())?,
        })
    }
}

fn done(result: steadfast_vfs::Result<()>) -> steadfast_vfs::Result<Outcome> {
    result.map(|()| Outcome::Done)
}

impl Tree {
    fn seen(&self, ino: Ino) -> OpResult {
        Ok(node(&self.getattr(ino)?))
    }

    /// Makes one call. A failed call changes nothing.
    pub fn call(&mut self, call: &Call, caller: &Caller, at: Time) -> OpResult {
        let c = caller;
        match call {
            Call::Mknod {
                parent,
                name,
                kind,
                perm,
                rdev,
            } => {
                let new = NewNode {
                    kind: *kind,
                    perm: *perm,
                    rdev: *rdev,
                };
                let ino = self.mknod(c, at, *parent, name, &new)?;
                self.seen(ino)
            }
            Call::Mkdir { parent, name, perm } => {
                let ino = self.mkdir(c, at, *parent, name, *perm)?;
                self.seen(ino)
            }
            Call::Symlink {
                parent,
                name,
                target,
            } => {
                let ino = self.symlink(c, at, *parent, name, target)?;
                self.seen(ino)
            }
            Call::Link { ino, parent, name } => {
                self.link(c, at, *ino, *parent, name)?;
                self.seen(*ino)
            }
            Call::SetAttr { ino, set } => {
                self.setattr(c, at, *ino, set)?;
                self.seen(*ino)
            }
            Call::Write { ino, offset, data } => Ok(Outcome::Wrote(
                self.write(c, at, *ino, *offset, data)? as u64,
            )),
            Call::Append { ino, data } => Ok(Outcome::At(self.append(c, at, *ino, data)?)),
            Call::Open { ino, handle } => {
                self.open(*ino)?;
                Arc::make_mut(&mut self.handles).insert(*handle, *ino);
                Ok(Outcome::Done)
            }
            Call::Close { ino, handle } => {
                Arc::make_mut(&mut self.handles).remove(handle);
                self.release(*ino);
                Ok(Outcome::Done)
            }
            Call::Unlink { parent, name } => self.unlink(c, at, *parent, name).map(finished),
            Call::Rmdir { parent, name } => self.rmdir(c, at, *parent, name).map(finished),
            Call::Rename { from, to, mode } => {
                let (from, to) = ((from.0, &from.1[..]), (to.0, &to.1[..]));
                self.rename(c, at, from, to, *mode).map(finished)
            }
            Call::Fallocate {
                ino,
                mode,
                offset,
                len,
            } => self
                .fallocate(c, at, *ino, *mode, *offset, *len)
                .map(finished),
            Call::SetXattr {
                ino,
                name,
                value,
                mode,
            } => self
                .setxattr(c, at, *ino, (name, value), *mode)
                .map(finished),
            Call::RemoveXattr { ino, name } => self.removexattr(c, at, *ino, name).map(finished),
            Call::Fsync { ino, .. } => self.getattr(*ino).map(|_| Outcome::Done),
            Call::Sync => Ok(Outcome::Done),
        }
    }
}

fn finished((): ()) -> Outcome {
    Outcome::Done
}
