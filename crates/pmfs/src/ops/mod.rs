//! The operations, one family per file. [`crate::fs`] documents their locks.
//!
//! Every change goes the same way: lock, look, check, reserve, one call of [`crate::state`], then the indexes. Steps that can fail
//! come before the call, which has no error left but that of a damaged medium. So a call is done or leaves no trace.

mod accessed;
mod allocate;
mod attr;
mod attributes;
mod create;
mod edit;
mod flags;
mod inode;
mod locks;
mod look;
mod name;
mod read;
mod remove;
mod rename;
mod seek;
mod write;
mod xattr;

use crate::fs::PmFs;
use crate::table::{Node, State};
use std::sync::atomic::Ordering;
use steadfast_vfs::{Errno, FileKind, Ino, Result};

/// Largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 44;
/// Most hard links of an inode that is no directory.
pub const LINKS_MAX: u32 = 65_000;

impl PmFs {
    /// The node of an inode. ESTALE.
    fn node(&self, ino: Ino) -> Result<Node<'_>> {
        let number = u32::try_from(ino).map_err(|_| Errno::Stale)?;
        let node = self.table().get(number);
        node.ok_or_else(|| Errno::Stale.into())
    }

    /// The node of a directory. ESTALE, ENOTDIR.
    fn directory(&self, ino: Ino) -> Result<Node<'_>> {
        let node = self.node(ino)?;
        match node.kind {
            FileKind::Directory => Ok(node),
            _ => Err(Errno::NotDir.into()),
        }
    }
}

/// ESTALE for a node that was freed before its lock was taken.
fn exists(node: &Node<'_>, state: &State) -> Result<()> {
    match node.is_there() && (state.links > 0 || node.opens().load(Ordering::Acquire) > 0) {
        true => Ok(()),
        false => Err(Errno::Stale.into()),
    }
}

/// ENOENT for directories that were removed but are still open.
fn has_name(state: &State) -> Result<()> {
    match state.links > 0 {
        true => Ok(()),
        false => Err(Errno::NoEnt.into()),
    }
}
