//! Operations that change nothing: lookup, getattr, access, readlink, readdir, statfs; open, and release, which may free an
//! inode without names.

use super::inode::{Disk, damaged};
use super::{exists, has_name};
use crate::fs::PmFs;
use crate::index::dir::{COOKIE_DOT, COOKIE_DOT_DOT, Listed};
use crate::index::name::Name;
use crate::layout::{INLINE_BYTES, PAGE_BYTES, inode};
use crate::state::{PageRun, PageRuns};
use crate::table::{Node, State};
use std::sync::atomic::Ordering;
use steadfast_vfs::policy::{self, EXEC, READ, WRITE, may_grow};
use steadfast_vfs::{
    Attr, Caller, Cookie, DirEntry, Errno, FileKind, Ino, NAME_MAX, Result, StatFs,
};

/// Entries that a listing takes from a directory at a time.
const BATCH: usize = 64;

/// An entry of a listing, copied under the directory's lock.
struct Copied {
    ino: Ino,
    kind: FileKind,
    next: Cookie,
    name: Name,
}

impl PmFs {
    pub(crate) fn op_getattr(&self, ino: Ino) -> Result<Attr> {
        let node = self.node(ino)?;
        let state = node.read();
        exists(&node, &state)?;
        Ok(self.attr(&node, &state))
    }

    /// A directory under its lock, which the caller may search. ESTALE, EACCES.
    pub(super) fn search(&self, caller: &Caller, dir: &Node<'_>, state: &State) -> Result<Disk> {
        exists(dir, state)?;
        let disk = self.disk(dir);
        self.require(caller, dir, state, &disk, EXEC)?;
        Ok(disk)
    }

    pub(crate) fn op_lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        let dir = self.directory(parent)?;
        match name {
            b"." => {
                let state = dir.read();
                let disk = self.search(caller, &dir, &state)?;
                Ok(self.attr_of(&dir, &state, &disk))
            }
            b".." => self.look_up(caller, &dir),
            _ => self.look_down(caller, &dir, name),
        }
    }

    /// The directory above.
    fn look_up(&self, caller: &Caller, dir: &Node<'_>) -> Result<Attr> {
        let mut missed = None;
        loop {
            let above = {
                let state = dir.read();
                self.search(caller, dir, &state)?;
                // A directory that was removed no longer keeps the one above it.
                has_name(&state)?;
                state.directory().map_or(0, |content| content.parent)
            };
            // The lock of the one above is not to be waited for under this one's.
            if let Ok(above) = self.node(above.into()) {
                let state = above.read();
                if exists(&above, &state).is_ok() {
                    return Ok(self.attr(&above, &state));
                }
            }
            // Moved meanwhile, and the old parent is gone; or there never was one.
            if missed.replace(above) == Some(above) {
                return Err(damaged(dir, "a directory below one that does not exist"));
            }
        }
    }

    fn look_down(&self, caller: &Caller, dir: &Node<'_>, name: &[u8]) -> Result<Attr> {
        loop {
            let state = dir.read();
            self.search(caller, dir, &state)?;
            policy::check_name(name)?;
            let found = self.find(dir, &state, name)?.entry.ok_or(Errno::NoEnt)?;
            let child = &found.node;
            if child.inode.number > dir.inode.number {
                let inner = child.read();
                return Ok(self.attr(child, &inner));
            }
            // Against the order of locks: only if it is free.
            if let Some(inner) = child.try_read() {
                return Ok(self.attr(child, &inner));
            }
            drop(state);
            let inner = child.read();
            if exists(child, &inner).is_ok() && inner.links > 0 {
                return Ok(self.attr(child, &inner));
            }
            // Removed meanwhile: the name is gone, or means another inode.
        }
    }

    pub(crate) fn op_access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        let node = self.node(ino)?;
        let state = node.read();
        exists(&node, &state)?;
        let disk = self.disk(&node);
        if mask & WRITE != 0 {
            let stored = matches!(
                disk.kind,
                FileKind::Regular | FileKind::Directory | FileKind::Symlink
            );
            if stored && self.is_read_only() {
                return Err(Errno::RoFs.into());
            }
            may_grow(&self.subject(&node, &state, &disk)?)?;
        }
        self.allowed(caller, &node, &state, &disk, mask)
    }

    pub(crate) fn op_readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let state = node.read();
        exists(&node, &state)?;
        let disk = self.disk(&node);
        if disk.kind != FileKind::Symlink {
            return Err(Errno::Inval.into());
        }
        self.sound(&node)?;
        let wrong = || damaged(&node, "a symbolic link without a target");
        let len = usize::try_from(disk.size).map_err(|_| wrong())?;
        if len > steadfast_vfs::SYMLINK_MAX {
            return Err(wrong());
        }
        let mut target = vec![0; len];
        if len <= INLINE_BYTES {
            let at = self.medium().geometry().inode_at(node.inode.number);
            self.load_bytes(at + inode::INLINE, &mut target);
        } else {
            let found = state.pages().and_then(|pages| pages.find(0));
            let page = found.ok_or_else(wrong)?.page;
            self.medium().read(page.at(), &mut target);
        }
        Ok(target)
    }

    pub(crate) fn op_readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = self.directory(ino)?;
        let parent = {
            let state = node.read();
            exists(&node, &state)?;
            let disk = self.disk(&node);
            self.require(caller, &node, &state, &disk, READ)?;
            if has_name(&state).is_err() {
                return Ok(());
            }
            state.directory().map_or(0, |content| content.parent)
        };
        let dots: [(Cookie, Ino, &[u8]); 2] = [
            (COOKIE_DOT, ino, b"."),
            (COOKIE_DOT_DOT, parent.into(), b".."),
        ];
        for (next, ino, name) in dots {
            let entry = DirEntry {
                ino,
                kind: FileKind::Directory,
                next,
                name,
            };
            if cookie < next && !sink(entry) {
                return Ok(());
            }
        }
        let mut from = cookie.max(COOKIE_DOT_DOT);
        let mut batch = Vec::new();
        loop {
            // The sink is called without the lock: it may call us.
            let ended = self.list(&node, from, &mut batch)?;
            for copied in batch.drain(..) {
                from = copied.next;
                let entry = DirEntry {
                    ino: copied.ino,
                    kind: copied.kind,
                    next: copied.next,
                    name: copied.name.bytes(),
                };
                if !sink(entry) {
                    return Ok(());
                }
            }
            if ended {
                return Ok(());
            }
        }
    }

    /// Copies entries after `from`; returns whether these are all.
    fn list(&self, node: &Node<'_>, from: Cookie, to: &mut Vec<Copied>) -> Result<bool> {
        let state = node.read();
        let Some(content) = state.directory() else {
            return Ok(true);
        };
        let m = self.medium();
        for listed in content.names.entries(m, from) {
            if to.len() == BATCH {
                return Ok(false);
            }
            let Listed { inode, next, .. } = listed;
            let name = listed.name(m);
            let child = self.table().get(inode.number);
            let (Some(name), Some(child)) = (name, child) else {
                return Err(damaged(node, "an entry without a name or an inode"));
            };
            to.push(Copied {
                ino: inode.number.into(),
                kind: child.kind,
                next,
                name,
            });
        }
        Ok(true)
    }

    pub(crate) fn op_statfs(&self) -> StatFs {
        let m = self.medium();
        let (pages, inodes) = match self.free() {
            Ok(free) => (free.free_pages(), free.free_inodes()),
            Err(_) => (self.report().free_pages, self.report().free_inodes),
        };
        StatFs {
            block_size: PAGE_BYTES as u32,
            blocks: m.geometry().data_pages_total(),
            blocks_free: pages,
            inodes: m.geometry().inodes().into(),
            inodes_free: inodes,
            name_max: NAME_MAX as u32,
        }
    }

    /// Opens an inode; if a generation is given, only that one. ESTALE.
    pub(crate) fn op_open(&self, ino: Ino, generation: Option<u64>) -> Result<()> {
        let node = self.node(ino)?;
        let state = node.read();
        exists(&node, &state)?;
        if generation.is_some_and(|wanted| wanted != u64::from(node.inode.generation)) {
            return Err(Errno::Stale.into());
        }
        node.opens().fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    pub(crate) fn op_release(&self, ino: Ino) {
        let Ok(node) = self.node(ino) else {
            return;
        };
        // Under the lock: the removal of the last name decides under it whether the inode is open.
        let last = {
            let state = node.read();
            if !node.is_there() {
                return;
            }
            let one_less = |opens: u32| opens.checked_sub(1);
            let before = node
                .opens()
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
            before == Ok(1) && state.orphan.is_some()
        };
        if last {
            self.free_orphan(&node);
        }
    }

    /// Frees an inode that has neither names nor openers.
    fn free_orphan(&self, node: &Node<'_>) {
        let mut state = node.write();
        if !node.is_there() || node.opens().load(Ordering::Acquire) > 0 {
            return;
        }
        if let Some(orphan) = state.orphan.take() {
            self.dissolve(node, &mut state, orphan);
        }
    }

    /// Frees an inode and its pages. The caller holds its lock.
    pub(super) fn dissolve(
        &self,
        node: &Node<'_>,
        state: &mut State,
        orphan: crate::state::Orphan,
    ) {
        let run = |page, len| PageRun { start: page, len };
        let mut runs = PageRuns::new();
        match &state.content {
            crate::table::Content::Pages(pages) => {
                runs.extend(pages.iter().map(|extent| run(extent.page, extent.len)));
            }
            crate::table::Content::Directory(content) => {
                runs.extend(content.names.pages().iter().map(|(_, page)| run(*page, 1)));
            }
        }
        if let Some(pages) = &state.attributes {
            runs.extend(pages.iter().map(|extent| run(extent.page, extent.len)));
        }
        // Before the number is free: another inode gets it then.
        node.leave(state);
        let freed = orphan.dissolve(self.medium(), runs);
        if let Ok(free) = self.free() {
            free.add(freed);
        }
    }
}
