//! Operations that change nothing: lookup, readdir, readlink, access, statfs, open; and
//! release, which may have an orphan to free.

use super::alive;
use crate::dir::{self, COOKIE_DOT, COOKIE_DOTDOT};
use crate::error::damaged;
use crate::layout::{INLINE_BYTES, INODES_PER_BLOCK};
use crate::mount::{Fs, OWN_STREAM};
use crate::perm;
use crate::reader::Current;
use crate::{data, orphan, slots};
use steadfast_block::BLOCK_SIZE;
use steadfast_vfs::{
    Attr, Caller, Cookie, DirEntry, Errno, FileKind, Ino, NAME_MAX, Result, StatFs,
};

impl Fs {
    /// Attributes of an inode, delayed blocks included.
    pub(crate) fn attr(&self, ino: Ino) -> Result<Attr> {
        let disk = self.read_inode(ino)?;
        if disk.kind() != FileKind::Regular {
            return Ok(disk.attr(ino, 0));
        }
        let inode = self.inode(ino);
        let state = inode.shared();
        // Read again under the lock: pages and allocated blocks then belong together.
        Ok(self.read_inode(ino)?.attr(ino, state.pages.len()))
    }

    pub(crate) fn op_lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        let inode = self.inode(parent);
        let ino = {
            let _lock = inode.shared();
            let disk = self.search(caller, parent)?;
            match name {
                b"." => parent,
                b".." => disk.parent.get(),
                _ => self.find(&disk, name)?.ok_or(Errno::NoEnt)?.ino,
            }
        };
        match self.attr(ino) {
            // Removed since we let go of the directory: then the name is gone, or means another inode.
            Err(error) if error == Errno::Stale && name != b"." && name != b".." => {
                let _lock = inode.shared();
                let disk = self.directory(parent)?;
                let ino = self.find(&disk, name)?.ok_or(Errno::NoEnt)?.ino;
                let disk = self.read_inode(ino).map_err(|e| {
                    if e == Errno::Stale {
                        damaged(format!(
                            "an entry of directory {parent} names inode {ino}, which does not exist"
                        ))
                    } else {
                        e
                    }
                })?;
                Ok(disk.attr(ino, 0))
            }
            result => result,
        }
    }

    pub(crate) fn op_access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        let disk = self.read_inode(ino)?;
        let writes = mask & perm::WRITE != 0;
        let stored = matches!(
            disk.kind(),
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        if writes && stored && self.read_only {
            return Err(Errno::RoFs.into());
        }
        self.access(caller, ino, &disk, mask)
    }

    pub(crate) fn op_readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino);
        let _lock = inode.shared();
        let disk = self.read_inode(ino)?;
        if disk.kind() != FileKind::Symlink {
            return Err(Errno::Inval.into());
        }
        let len = disk.size.get() as usize;
        if len <= INLINE_BYTES {
            return Ok(disk.body[..len].to_vec());
        }
        data::load_block(&self.store, &disk)
    }

    pub(crate) fn op_readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let inode = self.inode(ino);
        let disk = self.directory(ino)?;
        self.require(caller, ino, &disk, perm::READ)?;
        if alive(&disk).is_err() {
            return Ok(());
        }
        let parent = disk.parent.get();
        let dots: [(Cookie, Ino, &[u8]); 2] =
            [(COOKIE_DOT, ino, b"."), (COOKIE_DOTDOT, parent, b"..")];
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
        let mut from = cookie.max(COOKIE_DOTDOT).saturating_add(1);
        loop {
            // The sink is called without the lock: it may call us.
            let listing = {
                let _lock = inode.shared();
                let disk = self.directory(ino)?;
                let mut reader = Current(&self.store.journal);
                dir::list(&mut reader, &self.store.volume, &disk, from)?
            };
            for entry in &listing.entries {
                let name = &listing.block[entry.name.clone()];
                let entry = DirEntry {
                    ino: entry.ino,
                    kind: entry.kind,
                    next: entry.cookie,
                    name,
                };
                if !sink(entry) {
                    return Ok(());
                }
            }
            match listing.next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    pub(crate) fn op_statfs(&self) -> Result<StatFs> {
        let blocks = self.store.volume.data_blocks();
        let free = self.store.alloc.space().free.min(blocks);
        Ok(StatFs {
            block_size: BLOCK_SIZE as u32,
            blocks,
            blocks_free: free,
            inodes: blocks.saturating_mul(INODES_PER_BLOCK),
            inodes_free: free.saturating_mul(INODES_PER_BLOCK),
            name_max: NAME_MAX as u32,
        })
    }

    pub(crate) fn op_open(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino);
        let _lock = inode.shared();
        self.read_inode(ino)?;
        inode.opened();
        Ok(())
    }

    pub(crate) fn op_release(&self, ino: Ino) {
        let inode = self.inode(ino);
        let orphaned = {
            // Whoever removes the last name decides under the exclusive lock whether it is open.
            let _lock = inode.shared();
            inode.closed() && self.read_inode(ino).is_ok_and(|disk| disk.nlink.get() == 0)
        };
        if self.read_only {
            return;
        }
        if orphaned && let Err(error) = orphan::finish(self, ino, OWN_STREAM) {
            self.warn(format!(
                "inode {ino} has no names left and could not be freed ({error}); \
                 the next mount frees it"
            ));
        }
        slots::reap(self);
    }
}
