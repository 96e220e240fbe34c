//! Operations that remove a name: unlink and rmdir.

use super::inode::Disk;
use super::name::{Entry, refused, touch};
use crate::fs::PmFs;
use crate::layout::Page;
use crate::state::{self, PageRun, Remove, Unlinked};
use crate::table::{Node, State};
use std::sync::atomic::Ordering;
use steadfast_vfs::policy::{self, EXEC, WRITE, is_dots};
use steadfast_vfs::{Caller, Errno, Ino, Result};

impl PmFs {
    /// Removes the name of anything but a directory, or of an empty directory.
    pub(crate) fn op_remove(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        is_dir: bool,
    ) -> Result<()> {
        let dir = self.directory(parent)?;
        if is_dots(name) {
            self.search(caller, &dir, &dir.read())?;
            return Err(match (name, is_dir) {
                (_, false) => Errno::IsDir,
                (b".", true) => Errno::Inval,
                (_, true) => Errno::NotEmpty,
            }
            .into());
        }
        let before = |state: &State| {
            let disk = self.search(caller, &dir, state)?;
            policy::check_name(name)?;
            Ok(disk)
        };
        self.with_entry(&dir, name, before, |state, disk, found, mut inner| {
            self.remove(caller, (&dir, state, &disk), found, &mut inner, is_dir)
        })
    }

    fn remove(
        &self,
        caller: &Caller,
        (dir, state, disk): (&Node<'_>, &mut State, &Disk),
        (hash, entry): (u64, &Entry<'_>),
        inner: &mut State,
        is_dir: bool,
    ) -> Result<()> {
        let victim = &entry.node;
        self.require(caller, dir, state, disk, WRITE | EXEC)?;
        policy::may_remove(
            caller,
            &self.subject(dir, state, disk)?,
            &self.subject(victim, inner, &self.disk(victim))?,
            is_dir,
        )?;
        if is_dir {
            must_be_empty(inner)?;
        }
        let now = self.now();
        let remove = Remove {
            place: entry.place,
            inode: victim.inode,
            ctime: now,
            kills: kills(inner),
        };
        let removed = state::remove(self.medium(), remove, touch(dir.inode, now));
        let removed = removed.map_err(refused)?;
        self.left(dir, state, (hash, entry.place), removed.slots);
        if is_dir {
            state.links = state.links.saturating_sub(1);
        }
        self.unlinked(victim, inner, removed.unlinked);
        Ok(())
    }

    /// Counts a name less of an inode, whose lock the caller holds, and frees it with the last, unless it is open.
    pub(super) fn unlinked(&self, node: &Node<'_>, state: &mut State, unlinked: Unlinked) {
        state.links = match state.directory() {
            Some(_) => 0,
            None => state.links.saturating_sub(1),
        };
        if state.links > 0 {
            return;
        }
        let orphan = unlinked.last();
        match node.opens().load(Ordering::Acquire) {
            0 => self.dissolve(node, state, orphan),
            _ => state.orphan = Some(orphan),
        }
    }
}

/// ENOTEMPTY.
pub(super) fn must_be_empty(state: &State) -> Result<()> {
    match state.directory() {
        Some(content) if !content.names.is_empty() => Err(Errno::NotEmpty.into()),
        _ => Ok(()),
    }
}

/// The pages of a directory, which die with its name.
pub(super) fn kills(state: &State) -> Vec<PageRun> {
    let pages = state
        .directory()
        .map_or(&[][..], |content| content.names.pages());
    let run = |(_, page): &(u64, Page)| PageRun {
        start: *page,
        len: 1,
    };
    pages.iter().map(run).collect()
}
