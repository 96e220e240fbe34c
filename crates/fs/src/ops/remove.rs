//! Operations that remove a name: unlink and rmdir; and the removal of an inode that
//! loses its last one, which renames need too.

use super::Node;
use super::walk::{Child, Concerned, Entry, Plan, View, same_life};
use crate::dir::{self, Dir};
use crate::inode::{Inode, State};
use crate::layout::{DiskInode, INLINE_BYTES, INODE_BYTES};
use crate::mounted::Mounted;
use crate::reader::Current;
use crate::work::{COST_BLOCK, COST_RANGE, Work};
use crate::{btree, orphan, slots, truncate, xattr};
use std::sync::{Arc, RwLockWriteGuard};
use steadfast_vfs::policy::{self, is_dots};
use steadfast_vfs::{Caller, Errno, FileKind, Ino, Result};

/// Log bytes of changing an inode, and of freeing its slot.
const INODE_CREDITS: u64 = COST_BLOCK + 8 * COST_RANGE + INODE_BYTES as u64;

/// Whether an inode has blocks of a file, which [`truncate`] frees.
pub(crate) fn has_extents(disk: &DiskInode) -> bool {
    match disk.kind() {
        FileKind::Regular => true,
        FileKind::Symlink => disk.size.get() > INLINE_BYTES as u64,
        _ => false,
    }
}

/// The fate of an inode that may lose its last name, decided before the operation begins.
pub(super) struct Farewell {
    /// Log bytes for it.
    pub(super) credits: u64,
    /// Of those, for freeing a file's blocks at once; 0 if that is not to be done.
    extents: u64,
    /// Blocks of attributes that they suffice for.
    xattrs: u64,
}

/// The work that remains after the operation is committed and its locks are dropped.
#[must_use]
pub(super) struct After {
    /// Orphan to free afterwards.
    finish: Option<Ino>,
}

/// The orphan directory, locked only if needed: the last lock an operation takes.
pub(super) struct Orphans {
    inode: Arc<Inode>,
}

impl Orphans {
    pub(super) fn new(fs: &Mounted) -> Orphans {
        Orphans {
            inode: fs.inode(fs.store.volume.orphans),
        }
    }
}

impl After {
    pub(super) const NOTHING: After = After { finish: None };

    /// Does it. The removal itself is done: a failure leaves an orphan for the next mount.
    pub(super) fn run(self, fs: &Mounted, caller: &Caller) {
        if let Some(ino) = self.finish
            && let Err(error) = orphan::finish(fs, ino, caller.stream)
        {
            fs.warn(format!(
                "the blocks of removed inode {ino} could not be freed ({error}); the next mount frees them"
            ));
        }
    }
}

impl Mounted {
    /// Looks at an inode that is about to lose a name. `None`: it is another one by now.
    pub(super) fn farewell(&self, child: &Child) -> Result<Option<Farewell>> {
        let Child { found, disk } = child;
        let mut credits = INODE_CREDITS + slots::COST_SLOT + orphan::credits(self)?;
        let (mut extents, mut xattrs) = (0, 0);
        if disk.is_dir() {
            credits += dir::free_credits(btree::level(&self.store.volume, &disk.body)?);
        }
        let last = disk.is_dir() || disk.nlink.get() <= 1;
        if last && (has_extents(disk) || disk.xattr_block.get() != 0) {
            // Under its lock: else the blocks of its tree may be freed and used again meanwhile.
            let inode = self.inode(found.ino);
            let _lock = inode.shared();
            let now = match self.read_inode(found.ino) {
                Ok(now) if same_life(&now, disk) => now,
                Ok(_) => return Ok(None),
                Err(error) if error == Errno::Stale => return Ok(None),
                Err(error) => return Err(error),
            };
            let mut reader = Current(&self.store.journal);
            let volume = &self.store.volume;
            xattrs = xattr::known_blocks(volume, &mut reader, found.ino, &now)?.count();
            credits += xattrs * xattr::COST_FREE_BLOCK;
            if has_extents(&now) {
                extents = truncate::free_bytes(&self.store, &mut reader, &now, 0)?;
                // Large content is freed in slices, so that the removal itself always fits.
                if credits + extents > self.store.journal.op_bytes_max() / 2 {
                    extents = 0;
                }
            }
        }
        Ok(Some(Farewell {
            credits: credits + extents,
            extents,
            xattrs,
        }))
    }

    /// Takes one name from a locked inode that is no directory, or the only one from a
    /// directory, which is empty. Frees it with the last, or lists it as an orphan when it
    /// is open, too large for this operation, or an orphan already: being truncated.
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
        // A truncation under way has an orphan entry. The inode must keep its number until that is
        // gone, or the entry would cut the next inode with this number.
        let cut = state.pages.cut.is_some();
        if !open && !cut && self.free_inode(work, node, farewell)? {
            truncate::forget(self, node.ino, state);
            return Ok(After::NOTHING);
        }
        node.store(work)?;
        if guard.is_none() {
            *guard = Some(orphans.inode.exclusive());
        }
        orphan::add(self, work, node.ino, node.old.kind())?;
        inode.note_nameless();
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
        let volume = &self.store.volume;
        let xattrs = xattr::known_blocks(volume, work, node.ino, &node.old)?;
        if xattrs.count() > farewell.xattrs {
            return Ok(false);
        }
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
        xattr::free_blocks(work, node.ino, &node.old)?;
        slots::free(&self.store, &self.slots, work, node.place, &node.old)
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
        let concerned = Concerned {
            inode: None,
            entries: [Entry {
                dir: parent,
                name,
                needed: true,
            }],
        };
        let after = self.walk(
            caller,
            &concerned,
            |View { entries: [at], .. }| {
                let child = at.child.ok_or(Errno::NoEnt)?;
                let Some(farewell) = self.farewell(&child)? else {
                    return Ok(None);
                };
                let level = btree::level(&self.store.volume, &at.dir.body)?;
                Ok(Some(Plan {
                    log_bytes: dir::remove_credits(level) + farewell.credits,
                    moves: false,
                    own: farewell,
                }))
            },
            |mut work, plan, View { entries: [at], .. }, locked| {
                let Child { found, disk } = at.child.ok_or(Errno::NoEnt)?;
                work.use_emergency_space();
                let orphans = Orphans::new(self);
                let mut orphan_lock = None;
                let mut dir = self.dir(parent, &at.dir)?;
                let mut node = self.node_of(found.ino, &disk)?;
                self.may_remove(caller, &dir, &node, is_dir)?;
                let held = locked.get(found.ino).ok_or(Errno::Io)?;
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
                    &plan.own,
                    &orphans,
                    &mut orphan_lock,
                )?;
                work.commit();
                Ok(after)
            },
        )?;
        after.run(self, caller);
        Ok(())
    }

    /// Whether an entry of `dir` that names `node` may be removed.
    fn may_remove(&self, caller: &Caller, dir: &Dir, node: &Node, is_dir: bool) -> Result<()> {
        self.require(caller, dir.ino, &dir.disk, policy::WRITE | policy::EXEC)?;
        policy::may_remove(caller, &dir.disk.subject(), &node.old.subject(), is_dir)?;
        match is_dir {
            true => self.must_be_empty(node),
            false => Ok(()),
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
