//! Operations that remove a name: unlink and rmdir; and what happens to an inode that
//! loses its last one, which renames need too.

use super::{Node, is_dots, load_dir, log};
use crate::dir::{self, Dir};
use crate::inode::{Inode, Locked, State};
use crate::layout::{DiskInode, INLINE_BYTES, INODE_BYTES};
use crate::mount::Fs;
use crate::reader::Current;
use crate::work::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, Work};
use crate::{btree, orphan, perm, slots, truncate};
use std::sync::{Arc, RwLockWriteGuard};
use steadfast_block::BlockNo;
use steadfast_vfs::{Caller, Errno, FileKind, Ino, Result};

/// Log bytes of changing an inode, and of freeing its slot and its attributes' block.
const INODE_CREDITS: u64 =
    COST_BLOCK + 8 * COST_RANGE + INODE_BYTES as u64 + COST_BITS + COST_FREE + COST_BLOCK;

/// Whether an inode has blocks of a file, which [`truncate`] frees.
pub(crate) fn has_extents(disk: &DiskInode) -> bool {
    match disk.kind() {
        FileKind::Regular => true,
        FileKind::Symlink => disk.size.get() > INLINE_BYTES as u64,
        _ => false,
    }
}

/// What becomes of an inode that may lose its last name, decided before the operation begins.
pub(super) struct Farewell {
    /// Log bytes for it.
    pub(super) credits: u64,
    /// Of those, for freeing a file's blocks at once; 0 if that is not to be done.
    extents: u64,
}

/// What has to be done once the operation is committed and its locks are dropped.
#[must_use]
pub(super) struct After {
    /// This orphan is to be freed.
    finish: Option<Ino>,
}

/// The orphan directory, locked only if needed: the last lock an operation takes.
pub(super) struct Orphans {
    inode: Arc<Inode>,
}

impl Orphans {
    pub(super) fn new(fs: &Fs) -> Orphans {
        Orphans {
            inode: fs.inode(fs.store.volume.orphans),
        }
    }
}

impl After {
    pub(super) const NOTHING: After = After { finish: None };

    /// Does it. The removal itself is done: a failure leaves an orphan for the next mount.
    pub(super) fn run(self, fs: &Fs, caller: &Caller) {
        if let Some(ino) = self.finish
            && let Err(error) = orphan::finish(fs, ino, caller.stream)
        {
            fs.warn(format!(
                "the blocks of removed inode {ino} could not be freed ({error}); the next mount frees them"
            ));
        }
    }
}

impl Fs {
    /// Looks at an inode that is about to lose a name.
    pub(super) fn farewell(&self, disk: &DiskInode) -> Result<Farewell> {
        let mut credits = INODE_CREDITS + slots::COST_SLOT + orphan::credits(self)?;
        let mut extents = 0;
        if disk.is_dir() {
            credits += dir::free_credits(btree::level(&self.store.volume, &disk.body)?);
        } else if has_extents(disk) && disk.nlink.get() <= 1 {
            let mut reader = Current(&self.store.journal);
            extents = truncate::free_bytes(&self.store, &mut reader, disk, 0)?;
            // What is not small is freed in slices, so that the removal itself always fits.
            if credits + extents > self.store.journal.op_bytes_max() / 2 {
                extents = 0;
            }
        }
        Ok(Farewell {
            credits: credits + extents,
            extents,
        })
    }

    /// Takes one name from a locked inode that is no directory, or the only one from a
    /// directory, which is empty. Frees it with the last, or lists it as an orphan when it
    /// is open or too large for this operation.
    pub(super) fn drop_name<'a, 'o>(
        &'a self,
        work: &mut Work<'a>,
        node: &mut Node,
        (inode, state): (&Inode, &mut State),
        farewell: &Farewell,
        orphans: &'o Orphans,
        guard: &mut Option<RwLockWriteGuard<'o, State>>,
    ) -> Result<After> {
        node.relate(work);
        let links = node.old.nlink.get();
        let left = if node.old.is_dir() {
            0
        } else {
            links.saturating_sub(1)
        };
        node.new.nlink = left.into();
        node.new.ctime = self.now();
        if left > 0 {
            node.store(work)?;
            return Ok(After::NOTHING);
        }
        let open = inode.is_open();
        if !open && self.free_inode(work, node, farewell)? {
            truncate::forget(self, node.ino, state);
            return Ok(After::NOTHING);
        }
        node.store(work)?;
        if guard.is_none() {
            *guard = Some(orphans.inode.exclusive());
        }
        orphan::add(self, work, node.ino, node.old.kind())?;
        Ok(After {
            finish: (!open).then_some(node.ino),
        })
    }

    /// Frees an inode with everything it owns in this operation, if that has room for it.
    fn free_inode<'a>(
        &'a self,
        work: &mut Work<'a>,
        node: &mut Node,
        farewell: &Farewell,
    ) -> Result<bool> {
        if node.old.is_dir() {
            dir::free_all(work, node.ino, &node.old)?;
        } else if has_extents(&node.old)
            && !truncate::free_all(work, &mut node.new, farewell.extents)?
        {
            return Ok(false);
        }
        self.free_slot(work, node)?;
        Ok(true)
    }

    /// Frees an inode whose data blocks are gone.
    pub(crate) fn free_slot<'a>(&'a self, work: &mut Work<'a>, node: &Node) -> Result<()> {
        let xattrs = node.old.xattr_block.get();
        if xattrs != 0 {
            work.free_run(BlockNo(xattrs), 1)?;
        }
        slots::free(self, work, node.place, &node.old)
    }

    /// Removes the name of anything but a directory, or of an empty directory.
    pub(crate) fn op_remove(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        is_dir: bool,
    ) -> Result<()> {
        if is_dots(name) {
            self.search(caller, parent)?;
            return Err(match (name, is_dir) {
                (_, false) => Errno::IsDir,
                (b".", true) => Errno::Inval,
                (_, true) => Errno::NotEmpty,
            }
            .into());
        }
        let dir_inode = self.inode(parent);
        loop {
            let (child, level) = {
                let _lock = dir_inode.shared();
                let dir = self.search(caller, parent)?;
                let found = self.find(&dir, name)?.ok_or(Errno::NoEnt)?;
                (found.ino, btree::level(&self.store.volume, &dir.body)?)
            };
            let Some(disk) = self.named(parent, child)? else {
                continue;
            };
            let farewell = self.farewell(&disk)?;
            let credits = log(dir::remove_credits(level) + farewell.credits);
            let mut work = self.store.begin(caller.stream, credits)?;
            work.use_emergency_space();
            let orphans = Orphans::new(self);
            let mut orphan_lock = None;
            let inodes = self.table.get_sorted(&[parent, child]);
            let mut locked = Locked::lock(&inodes);
            let mut dir = load_dir(self, parent)?;
            let found = self.find(&dir.disk, name)?.ok_or(Errno::NoEnt)?;
            if found.ino != child {
                continue;
            }
            let mut node = self.node(child)?;
            self.may_remove(caller, &dir, &node, is_dir)?;
            let Some(held) = locked.get(child) else {
                continue;
            };
            dir::relate_name(&mut work, parent, name);
            dir.remove(&mut work, &found)?;
            if is_dir {
                dir.add_links(&mut work, -1)?;
            }
            dir.touch(&mut work, self.now())?;
            let after = self.drop_name(
                &mut work,
                &mut node,
                held,
                &farewell,
                &orphans,
                &mut orphan_lock,
            )?;
            work.commit();
            drop(orphan_lock);
            drop(locked);
            after.run(self, caller);
            return Ok(());
        }
    }

    /// An inode that a directory named a moment ago: `None` if it was removed meanwhile,
    /// an error if the entry is still there.
    pub(super) fn named(&self, parent: Ino, child: Ino) -> Result<Option<DiskInode>> {
        match self.read_inode(child) {
            Ok(disk) => Ok(Some(disk)),
            Err(error) if error == Errno::Stale => {
                // Wait for whoever is removing it, then look whether the name went too.
                let inode = self.inode(parent);
                let _lock = inode.shared();
                let dir = self.directory(parent)?;
                let mut reader = Current(&self.store.journal);
                let mut from = 0;
                loop {
                    let listing = dir::list(&mut reader, &self.store.volume, &dir, from)?;
                    if listing.entries.iter().any(|entry| entry.ino == child) {
                        return Err(crate::error::damaged(format!(
                            "an entry of directory {parent} names inode {child}, which does not exist"
                        )));
                    }
                    match listing.next {
                        Some(next) => from = next,
                        None => return Ok(None),
                    }
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Whether an entry of `dir` that names `node` may be removed.
    fn may_remove(&self, caller: &Caller, dir: &Dir, node: &Node, is_dir: bool) -> Result<()> {
        self.require(caller, dir.ino, &dir.disk, perm::WRITE | perm::EXEC)?;
        perm::sticky(caller, &dir.disk, &node.old)?;
        match (is_dir, node.old.is_dir()) {
            (false, true) => Err(Errno::IsDir.into()),
            (true, false) => Err(Errno::NotDir.into()),
            (true, true) => self.must_be_empty(node),
            (false, false) => Ok(()),
        }
    }

    /// ENOTEMPTY.
    pub(super) fn must_be_empty(&self, node: &Node) -> Result<()> {
        let mut reader = Current(&self.store.journal);
        if dir::is_empty(&mut reader, &self.store.volume, node.ino, &node.old)? {
            Ok(())
        } else {
            Err(Errno::NotEmpty.into())
        }
    }
}
