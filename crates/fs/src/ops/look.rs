//! Operations that change nothing: lookup, readdir, readlink, access, statfs, open; and
//! release, which may have an orphan to free.

use super::alive;
use super::walk::{gap, same_life};
use crate::dir::{self, COOKIE_DOT, COOKIE_DOTDOT};
use crate::layout::{INLINE_BYTES, INODES_PER_BLOCK};
use crate::mounted::Mounted;
use crate::reader::Current;
use crate::work::OWN_STREAM;
use crate::{data, orphan};
use steadfast_block::BLOCK_SIZE;
use steadfast_vfs::policy::{READ, WRITE, may_grow};
use steadfast_vfs::{
    Attr, Caller, Cookie, DirEntry, Errno, FileKind, Ino, NAME_MAX, Result, StatFs, Streams,
};

impl Mounted {
    /// Attributes of an inode, delayed blocks included.
    pub(crate) fn attr(&self, ino: Ino) -> Result<Attr> {
        let disk = self.read_inode(ino)?;
        if disk.kind() != FileKind::Regular {
            return Ok(self.attr_of(ino, &disk, 0));
        }
        let inode = self.inode(ino);
        let state = inode.shared();
        // Read again under the lock: pages and allocated blocks then belong together.
        Ok(self.attr_of(ino, &self.read_inode(ino)?, state.pages.new_blocks()))
    }

    pub(crate) fn op_lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        let inode = self.inode(parent);
        loop {
            let lock = inode.shared();
            let dir = self.search(caller, parent)?;
            let (ino, disk) = match name {
                b"." => return Ok(self.attr_of(parent, &dir, 0)),
                b".." => {
                    // A directory that was removed no longer keeps the one above it.
                    alive(&dir)?;
                    let above = dir.parent.get();
                    return Ok(self.attr_of(above, &self.directory(above)?, 0));
                }
                _ => {
                    let child = self.child(parent, &dir, name)?.ok_or(Errno::NoEnt)?;
                    (child.found.ino, child.disk)
                }
            };
            if disk.kind() != FileKind::Regular {
                return Ok(self.attr_of(ino, &disk, 0));
            }
            // A file's lock comes before or after the directory's, by their numbers: both are held
            // only if the second is free.
            let child = self.inode(ino);
            if let Some(state) = child.try_shared() {
                return Ok(self.attr_of(ino, &self.read_inode(ino)?, state.pages.new_blocks()));
            }
            drop(lock);
            gap::pass();
            let state = child.shared();
            match self.read_inode(ino) {
                Ok(now) if same_life(&now, &disk) && now.nlink.get() > 0 => {
                    return Ok(self.attr_of(ino, &now, state.pages.new_blocks()));
                }
                Err(error) if error != Errno::Stale => return Err(error),
                // Removed meanwhile: the name is gone, or means another inode.
                _ => {}
            }
        }
    }

    pub(crate) fn op_access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        let inode = self.inode(ino);
        let _lock = inode.shared();
        let disk = self.read_inode(ino)?;
        let writes = mask & WRITE != 0;
        let stored = matches!(
            disk.kind(),
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        if writes && stored && self.read_only {
            return Err(Errno::RoFs.into());
        }
        if writes {
            may_grow(&disk.subject())?;
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
        let disk = {
            let _lock = inode.shared();
            let disk = self.directory(ino)?;
            self.require(caller, ino, &disk, READ)?;
            disk
        };
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

    /// Opens an inode; if a generation is given, only that one. ESTALE.
    pub(crate) fn op_open(&self, ino: Ino, generation: Option<u64>) -> Result<()> {
        let inode = self.inode(ino);
        let _lock = inode.shared();
        let disk = self.read_inode(ino)?;
        if generation.is_some_and(|wanted| wanted != disk.generation.get()) {
            return Err(Errno::Stale.into());
        }
        if disk.nlink.get() == 0 {
            inode.note_nameless();
        }
        inode.opened();
        Ok(())
    }

    /// Reads nothing for an inode that has names. One without names is freed in the stream that took the last name, or
    /// changed it since, as long as that is not durable: so the freeing does not take another stream along.
    pub(crate) fn op_release(&self, ino: Ino) {
        let inode = self.inode(ino);
        let orphaned = {
            // The removal of the last name decides under the exclusive lock whether it is open.
            let _lock = inode.shared();
            inode.closed()
                && inode.may_be_nameless()
                && self.read_inode(ino).is_ok_and(|disk| disk.nlink.get() == 0)
        };
        let stream = || match self.options.faults.release_elsewhere {
            true => OWN_STREAM,
            false => self.of_inode(ino).unwrap_or(OWN_STREAM),
        };
        if self.read_only {
            return;
        }
        if orphaned && let Err(error) = orphan::finish(self, ino, stream()) {
            self.warn(format!(
                "inode {ino} has no names left and could not be freed ({error}); \
                 the next mount frees it"
            ));
        }
        self.reap();
    }
}
