//! The walk of every change: look, begin, lock, compare, retry.
//!
//! An operation looks at its inodes without their locks, to know which locks to take and which credits to request
//! from the journal. Admission may wait, so no lock is held then. Under all the locks the same look is taken
//! again. The operation runs only on the results of that second look, and only if it found the inodes of the
//! first one: *number and generation*, because a number is used again at once. If a name means another inode now,
//! the walk starts again; if a number that the caller gave is another inode now, the answer is ESTALE.
//!
//! Invariants:
//! * an entry and the inode that it names are read under the directory's lock. Both go in one
//!   operation, which needs that lock exclusively: an entry without an inode is damage;
//! * locks are taken in this order: moves, inodes by number, the orphan directory.

use crate::dir::{self, Dir, Found};
use crate::error::damaged;
use crate::inode::{Locked, Place};
use crate::layout::DiskInode;
use crate::mounted::Mounted;
use crate::reader::Current;
use crate::work::Work;
use steadfast_journal::Credits;
use steadfast_vfs::policy::EXEC;
use steadfast_vfs::{Caller, Errno, Ino, Result};

/// A name in a directory.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) dir: Ino,
    pub(super) name: &'a [u8],
    /// Without it there is nothing to do: ENOENT, before the next name is looked at.
    pub(super) needed: bool,
}

/// Inode and names that an operation concerns, as its caller gives them.
pub(super) struct Concerned<'a, const N: usize> {
    /// An inode by its number.
    pub(super) inode: Option<Ino>,
    /// Names.
    pub(super) entries: [Entry<'a>; N],
}

/// An entry and the inode that it names.
#[derive(Clone, Copy)]
pub(super) struct Child {
    pub(super) found: Found,
    pub(super) disk: DiskInode,
}

/// Directory and inode of a name.
#[derive(Clone, Copy)]
pub(super) struct ResolvedName {
    /// The directory.
    pub(super) dir: DiskInode,
    /// Nothing if the name is not there, or is `.` or `..`.
    pub(super) child: Option<Child>,
}

/// One look at the inodes of an operation.
pub(super) struct View<const N: usize> {
    /// The inode that was given by its number.
    pub(super) inode: Option<DiskInode>,
    /// Meanings of the names.
    pub(super) entries: [ResolvedName; N],
}

/// Result of the first look.
pub(super) struct Plan<P> {
    /// Log bytes of the worst case.
    pub(super) log_bytes: u64,
    /// A directory gets another parent: the tree above all directories has to stand still.
    pub(super) moves: bool,
    /// Further results of the first look, for the operation itself.
    pub(super) own: P,
}

impl Child {
    pub(super) fn is(&self, other: &Child) -> bool {
        self.found.ino == other.found.ino && same_life(&self.disk, &other.disk)
    }
}

/// Whether two looks at one number saw the same inode.
pub(super) fn same_life(one: &DiskInode, other: &DiskInode) -> bool {
    one.generation == other.generation
}

impl<const N: usize> Concerned<'_, N> {
    /// Everything to be locked.
    fn numbers(&self, seen: &View<N>) -> Vec<Ino> {
        let dirs = self.entries.iter().map(|entry| entry.dir);
        let children = seen.entries.iter().filter_map(|entry| entry.child);
        let children = children.map(|child| child.found.ino);
        self.inode.into_iter().chain(dirs).chain(children).collect()
    }
}

impl<const N: usize> View<N> {
    /// Whether the caller's inode number names the same inode as in an earlier look. ESTALE.
    fn given_as_in(&self, before: &View<N>) -> Result<()> {
        let inode = self.inode.iter().zip(&before.inode);
        let dirs = self.entries.iter().zip(&before.entries);
        let dirs = dirs.map(|(now, then)| (&now.dir, &then.dir));
        if inode.chain(dirs).all(|(now, then)| same_life(now, then)) {
            Ok(())
        } else {
            Err(Errno::Stale.into())
        }
    }

    /// Whether the names mean the same as in an earlier look.
    fn names_as_in(&self, before: &View<N>) -> bool {
        let pairs = self.entries.iter().zip(&before.entries);
        pairs
            .into_iter()
            .all(|(now, then)| match (now.child, then.child) {
                (Some(now), Some(then)) => now.is(&then),
                (None, None) => true,
                _ => false,
            })
    }
}

impl Mounted {
    /// Runs an operation: see the module's header. `plan` sees the first look, under no lock, and
    /// may ask for another with `None`. `act` gets the second look under all locks, which are
    /// dropped after it has committed.
    ///
    /// # Errors
    /// Those of the looks (ESTALE, ENOTDIR, EACCES, EUCLEAN, EIO), of `plan` and of `act`.
    pub(super) fn walk<'a, const N: usize, P, T>(
        &'a self,
        caller: &Caller,
        concerned: &Concerned<'_, N>,
        mut plan: impl FnMut(&View<N>) -> Result<Option<Plan<P>>>,
        mut act: impl FnMut(Work<'a>, Plan<P>, View<N>, &mut Locked<'_>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let seen = self.view(caller, concerned, false)?;
            let Some(plan) = plan(&seen)? else { continue };
            gap::pass();
            let _moves = plan.moves.then(|| self.lock_moves());
            let work = self.store.begin_for(caller, Credits::log(plan.log_bytes))?;
            let inodes = self.table.get_sorted(&concerned.numbers(&seen));
            let mut locked = Locked::lock(&inodes);
            let now = self.view(caller, concerned, true)?;
            now.given_as_in(&seen)?;
            if now.names_as_in(&seen) {
                return act(work, plan, now, &mut locked);
            }
        }
    }

    /// One look. The directories are `locked` already, or each is for the time of the look at it.
    fn view<const N: usize>(
        &self,
        caller: &Caller,
        concerned: &Concerned<'_, N>,
        locked: bool,
    ) -> Result<View<N>> {
        let inode = concerned
            .inode
            .map(|ino| self.read_inode(ino))
            .transpose()?;
        let mut entries = Vec::with_capacity(N);
        for entry in &concerned.entries {
            let inode = self.inode(entry.dir);
            let _lock = (!locked).then(|| inode.shared());
            let dir = self.search(caller, entry.dir)?;
            let child = match entry.name {
                b"." | b".." => None,
                name => self.child(entry.dir, &dir, name)?,
            };
            if entry.needed && child.is_none() {
                return Err(Errno::NoEnt.into());
            }
            entries.push(ResolvedName { dir, child });
        }
        let entries = entries.try_into().map_err(|_| Errno::Io)?;
        Ok(View { inode, entries })
    }

    /// A directory that the caller may search. ESTALE, ENOTDIR, EACCES.
    pub(super) fn search(&self, caller: &Caller, ino: Ino) -> Result<DiskInode> {
        let disk = self.directory(ino)?;
        self.require(caller, ino, &disk, EXEC)?;
        Ok(disk)
    }

    /// A directory again, under its lock. ESTALE if it is another one.
    pub(super) fn same_directory(&self, ino: Ino, before: &DiskInode) -> Result<DiskInode> {
        let disk = self.directory(ino)?;
        if same_life(&disk, before) {
            Ok(disk)
        } else {
            Err(Errno::Stale.into())
        }
    }

    /// The inode of a name in a directory, whose lock the caller holds. EUCLEAN if that is an inode
    /// that does not exist.
    pub(super) fn child(&self, ino: Ino, dir: &DiskInode, name: &[u8]) -> Result<Option<Child>> {
        dir::check_name(name)?;
        let mut reader = Current(&self.store.journal);
        let Some(found) = dir::lookup(&mut reader, &self.store.volume, dir, name)? else {
            return Ok(None);
        };
        match self.read_inode(found.ino) {
            Ok(disk) => Ok(Some(Child { found, disk })),
            Err(error) if error == Errno::Stale => Err(damaged(format!(
                "an entry of directory {ino} names inode {}, which does not exist",
                found.ino
            ))),
            Err(error) => Err(error),
        }
    }

    /// A directory for an operation that changes it; the caller holds its lock.
    pub(super) fn dir(&self, ino: Ino, disk: &DiskInode) -> Result<Dir> {
        Ok(Dir {
            ino,
            place: Place::of(&self.store.volume, ino)?,
            disk: *disk,
        })
    }
}

/// Hook between the look and the locks, where tests let others in.
pub(super) mod gap {
    #[cfg(test)]
    thread_local! {
        static NEXT: std::cell::RefCell<Option<Box<dyn FnOnce()>>> =
            const { std::cell::RefCell::new(None) };
    }

    /// Sets the action of this thread at its next pass.
    #[cfg(test)]
    pub(in crate::ops) fn next(run: impl FnOnce() + 'static) {
        NEXT.with(|next| *next.borrow_mut() = Some(Box::new(run)));
    }

    /// Whether it has come by since.
    #[cfg(test)]
    pub(in crate::ops) fn is_over() -> bool {
        NEXT.with(|next| next.borrow().is_none())
    }

    /// Between the look and the locks.
    #[inline]
    pub(in crate::ops) fn pass() {
        #[cfg(test)]
        if let Some(run) = NEXT.with(|next| next.borrow_mut().take()) {
            run();
        }
    }
}
