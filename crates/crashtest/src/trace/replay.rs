//! Calls applied to a tree of the model.

use super::call::{Op, Outcome, Who};
use std::sync::Arc;
use steadfast_model::{Kept, Tree, tree::TreeResult};
use steadfast_vfs::{Caller, SetAttr, Stream, Time};

/// The caller as the tree knows it. The kernel has checked permissions before it asked.
#[must_use]
pub fn caller(who: &Who) -> Caller {
    Caller {
        uid: who.uid,
        gid: who.gid,
        groups: Arc::from([]),
        stream: Stream(0),
        checked: true,
        umask: 0,
        note: None,
    }
}

/// Applies `op` to `tree`; `bytes` are those of a write, and nothing for other calls. If they are `kept` elsewhere,
/// the tree refers to them.
///
/// Calls that only make durable, and acknowledgements, change nothing.
///
/// # Errors
/// Those of the tree, which is then as before.
pub fn apply(
    tree: &mut Tree,
    who: &Who,
    at: Time,
    op: &Op,
    (bytes, kept): (&[u8], Option<&Kept>),
) -> TreeResult<Outcome> {
    let me = caller(who);
    match op {
        Op::Create {
            parent, name, perm, ..
        } => {
            let node = super::call::Kind::Regular.node(*perm, 0);
            let ino = tree.mknod(&me, at, *parent, name, &node)?;
            tree.open(ino)?;
            return Ok(Outcome::Made(ino));
        }
        Op::Mknod {
            parent,
            name,
            kind,
            perm,
            rdev,
        } => {
            let node = kind.node(*perm, *rdev);
            return Ok(Outcome::Made(tree.mknod(&me, at, *parent, name, &node)?));
        }
        Op::Mkdir { parent, name, perm } => {
            return Ok(Outcome::Made(tree.mkdir(&me, at, *parent, name, *perm)?));
        }
        Op::Symlink {
            parent,
            name,
            target,
        } => {
            return Ok(Outcome::Made(tree.symlink(&me, at, *parent, name, target)?));
        }
        Op::Link { ino, parent, name } => tree.link(&me, at, *ino, *parent, name)?,
        Op::Unlink { parent, name, .. } => tree.unlink(&me, at, *parent, name)?,
        Op::Rmdir { parent, name, .. } => tree.rmdir(&me, at, *parent, name)?,
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
            ..
        } => tree.rename(
            &me,
            at,
            (*parent, name),
            (*new_parent, new_name),
            (*mode).into(),
        )?,
        Op::Open { ino, truncate, .. } => {
            if *truncate {
                tree.setattr(&me, at, *ino, &sized(0))?;
            }
            tree.open(*ino)?;
        }
        Op::Release { ino } => tree.release(*ino),
        Op::Write { ino, offset, .. } => {
            tree.write_kept(&me, at, *ino, (*offset, bytes), kept)?;
        }
        Op::Truncate { ino, size } => tree.setattr(&me, at, *ino, &sized(*size))?,
        Op::Fallocate {
            ino,
            mode,
            offset,
            len,
        } => tree.fallocate(&me, at, *ino, (*mode).into(), *offset, *len)?,
        Op::SetAttr { ino, change } => tree.setattr(&me, at, *ino, &change.into())?,
        Op::SetXattr {
            ino,
            name,
            value,
            how,
        } => tree.setxattr(&me, at, *ino, (name, value), (*how).into())?,
        Op::RemoveXattr { ino, name } => tree.removexattr(&me, at, *ino, name)?,
        Op::Close { .. }
        | Op::Fsync { .. }
        | Op::Fdatasync { .. }
        | Op::FsyncDir { .. }
        | Op::Syncfs
        | Op::Sync
        | Op::SyncFileRange { .. }
        | Op::Ack { .. } => {}
    }
    Ok(Outcome::Done)
}

fn sized(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        by_handle: true,
        ..SetAttr::default()
    }
}
