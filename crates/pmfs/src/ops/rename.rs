//! Rename, in all its cases (corner 28): over nothing, over a file or an empty directory, onto another link of the same inode,
//! across directories, exchanging, not replacing, leaving a whiteout.
//!
//! Within one directory, its lock is taken first, and the others against the order of locks only if they are free. Otherwise the
//! names are looked at first, to know what to lock; under all the locks they are looked at again. If a name means another
//! inode by then, it starts again. A directory that changes its parent must not move below itself: such renames hold the moves
//! lock from before the look at the directories above until the end, so that the answer stays true.

use super::has_name;
use super::inode::{Disk, damaged};
use super::locks::Locked;
use super::name::{Entry, FoundName, full, names, refused, touch};
use super::remove::{kills, must_be_empty};
use crate::fs::PmFs;
use crate::layout::ROOT;
use crate::state::{
    self, Exchange, FreeInode, Over, Rename, Renamed, RenamedWhiteout, Target, Touch, Whiteout,
};
use crate::table::{Node, State};
use smallvec::SmallVec;
use std::sync::MutexGuard;
use steadfast_vfs::policy::rename::{Party, Renamed as Parties, check_target, may_rename};
use steadfast_vfs::policy::{self, is_dots};
use steadfast_vfs::{Caller, Errno, FileKind, Ino, RenameMode, Result};

// Roles of the nodes that are locked.
const FROM: usize = 0;
const TO: usize = 1;
const SOURCE: usize = 2;
const TARGET: usize = 3;

/// A name in a directory.
#[derive(Clone, Copy)]
struct Side<'a> {
    dir: &'a Node<'a>,
    name: &'a [u8],
}

/// Entries of both names.
#[derive(PartialEq, Eq)]
struct Seen<'t> {
    source: Entry<'t>,
    target: Option<Entry<'t>>,
    /// Hashes of the names, each in its directory's index.
    hashes: [u64; 2],
}

impl<'t> Seen<'t> {
    /// ENOENT without a source, before the target is looked for.
    fn new(
        source: FoundName<'t>,
        target: impl FnOnce() -> Result<FoundName<'t>>,
    ) -> Result<Seen<'t>> {
        let entry = source.entry.ok_or(Errno::NoEnt)?;
        let target = target()?;
        Ok(Seen {
            source: entry,
            target: target.entry,
            hashes: [source.hash, target.hash],
        })
    }

    fn target(&self) -> Option<&Node<'t>> {
        self.target.as_ref().map(|entry| &entry.node)
    }
}

/// EBUSY or EEXIST for `.` and `..`.
fn no_dots(names: (&[u8], &[u8]), mode: RenameMode) -> Result<()> {
    match (is_dots(names.0), is_dots(names.1)) {
        (false, false) => Ok(()),
        (false, true) if mode.is_no_replace() => Err(Errno::Exist.into()),
        _ => Err(Errno::Busy.into()),
    }
}

impl PmFs {
    pub(crate) fn op_rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        if from.0 == to.0 && !mode.leaves_whiteout() {
            let dir = self.directory(from.0)?;
            if let Some(done) = self.rename_within(caller, &dir, (from.1, to.1), mode)? {
                return Ok(done);
            }
        }
        let dirs = [self.directory(from.0)?, self.directory(to.0)?];
        for dir in &dirs {
            self.search(caller, dir, &dir.read())?;
        }
        no_dots((from.1, to.1), mode)?;
        let side = |index: usize, name| Side {
            dir: &dirs[index],
            name,
        };
        let (from, to) = (side(0, from.1), side(1, to.1));
        loop {
            if let Some(done) = self.rename_once(caller, from, to, mode)? {
                return Ok(done);
            }
        }
    }

    /// The inode of a name, under the lock of its directory, and the directory.
    fn entry(
        &self,
        caller: &Caller,
        side: Side<'_>,
        state: &State,
    ) -> Result<(FoundName<'_>, Disk)> {
        let disk = self.search(caller, side.dir, state)?;
        policy::check_name(side.name)?;
        Ok((self.find(side.dir, state, side.name)?, disk))
    }

    /// Renames within one directory: the meaning of the names stays under its lock. `None`: a lock of an inode is taken, and
    /// may not be waited for.
    fn rename_within(
        &self,
        caller: &Caller,
        dir: &Node<'_>,
        names: (&[u8], &[u8]),
        mode: RenameMode,
    ) -> Result<Option<()>> {
        let state = dir.write();
        let disk = self.search(caller, dir, &state)?;
        no_dots(names, mode)?;
        policy::check_name(names.0)?;
        let seen = Seen::new(self.find(dir, &state, names.0)?, || {
            policy::check_name(names.1)?;
            self.find(dir, &state, names.1)
        })?;
        check_target(mode, seen.target.is_some())?;
        let target = seen.target().unwrap_or(&seen.source.node);
        let Some(mut locked) = Locked::within(dir, state, [&seen.source.node, target]) else {
            return Ok(None);
        };
        let side = |name| Side { dir, name };
        let sides = (side(names.0), side(names.1));
        self.rename_seen(caller, sides, mode, &seen, None, (disk, disk), &mut locked)
            .map(Some)
    }

    /// `None`: a name means another inode by now.
    fn rename_once(
        &self,
        caller: &Caller,
        from: Side<'_>,
        to: Side<'_>,
        mode: RenameMode,
    ) -> Result<Option<()>> {
        let (source, _) = self.entry(caller, from, &from.dir.read())?;
        let seen = Seen::new(source, || Ok(self.entry(caller, to, &to.dir.read())?.0))?;
        check_target(mode, seen.target.is_some())?;
        let moves = from.dir != to.dir;
        let is_dir = |node: &Node<'_>| node.kind == FileKind::Directory;
        let dir_moves = moves && (is_dir(&seen.source.node) || seen.target().is_some_and(is_dir));
        let _moves: Option<MutexGuard<'_, ()>> = dir_moves.then(|| self.lock_moves());
        let cycle = match dir_moves {
            true => self.closes_cycle(from, to, mode, &seen)?,
            false => None,
        };
        let target = seen.target().unwrap_or(&seen.source.node);
        let left = match mode.leaves_whiteout() {
            true => self.free_inode(FileKind::CharDevice)?,
            false => None,
        };
        let mut locked = Locked::lock([from.dir, to.dir, &seen.source.node, target]);
        let (source, from_disk) = self.entry(caller, from, locked.look(FROM))?;
        let mut to_disk = from_disk;
        let now = Seen::new(source, || {
            let (target, disk) = self.entry(caller, to, locked.look(TO))?;
            to_disk = disk;
            Ok(target)
        })?;
        if now != seen {
            return Ok(None);
        }
        if let Some(errno) = cycle {
            return Err(errno.into());
        }
        let (sides, disks) = ((from, to), (from_disk, to_disk));
        self.rename_seen(caller, sides, mode, &seen, left, disks, &mut locked)
            .map(Some)
    }

    /// Renames the inodes of both names, under the locks of all inodes that it concerns.
    #[expect(clippy::too_many_arguments, reason = "both sides of a rename")]
    fn rename_seen(
        &self,
        caller: &Caller,
        sides: (Side<'_>, Side<'_>),
        mode: RenameMode,
        seen: &Seen<'_>,
        left: Option<(FreeInode<'_>, Node<'_>)>,
        disks: (Disk, Disk),
        locked: &mut Locked<'_, 4>,
    ) -> Result<()> {
        if seen.target() == Some(&seen.source.node) {
            return Ok(());
        }
        self.may_rename(caller, sides, mode, seen, disks, locked)?;
        self.rename_locked(caller, sides, mode, seen, left, locked)
    }

    /// Whether the caller may rename, and whether the replaced inode fits.
    fn may_rename(
        &self,
        caller: &Caller,
        (from, to): (Side<'_>, Side<'_>),
        mode: RenameMode,
        seen: &Seen<'_>,
        disks: (Disk, Disk),
        locked: &Locked<'_, 4>,
    ) -> Result<()> {
        let source = self.disk(&seen.source.node);
        let target = seen.target().map(|target| self.disk(target));
        let party = |role: usize| match (role, seen.target(), &target) {
            (FROM, ..) => (from.dir, &disks.0),
            (TO, ..) => (to.dir, &disks.1),
            (TARGET, Some(node), Some(disk)) => (node, disk),
            _ => (&seen.source.node, &source),
        };
        let subject = |role: usize| {
            let (node, disk) = party(role);
            self.subject(node, locked.look(role), disk)
        };
        let of_target = target.as_ref().map(|_| subject(TARGET)).transpose()?;
        let of_from = subject(FROM)?;
        let parties = Parties {
            to: match from.dir == to.dir {
                true => of_from,
                false => subject(TO)?,
            },
            from: of_from,
            moves: from.dir != to.dir,
            to_alive: has_name(locked.look(TO)).is_ok(),
            source: subject(SOURCE)?,
            target: of_target,
        };
        let replaces = may_rename(caller, &parties, mode, |role, mask| {
            let role = match role {
                Party::From => FROM,
                Party::To => TO,
                Party::Source => SOURCE,
                Party::Target => TARGET,
            };
            let (node, disk) = party(role);
            self.require(caller, node, locked.look(role), disk, mask)
        })?;
        match replaces {
            true => must_be_empty(locked.look(TARGET)),
            false => Ok(()),
        }
    }

    /// Renames, under the locks of all that it concerns.
    fn rename_locked(
        &self,
        caller: &Caller,
        (from, to): (Side<'_>, Side<'_>),
        mode: RenameMode,
        seen: &Seen<'_>,
        left: Option<(FreeInode<'_>, Node<'_>)>,
        locked: &mut Locked<'_, 4>,
    ) -> Result<()> {
        let now = self.now();
        let mut touches: SmallVec<[Touch; 2]> = SmallVec::new();
        touches.push(touch(from.dir.inode, now));
        if from.dir != to.dir {
            touches.push(touch(to.dir.inode, now));
        }
        if let (RenameMode::Exchange, Some(target)) = (mode, &seen.target) {
            let side = |entry: &Entry<'_>| (entry.place, entry.node.inode, now);
            let exchange = Exchange {
                one: side(&seen.source),
                other: side(target),
            };
            state::exchange(self.medium(), exchange, &touches).map_err(refused)?;
            self.moved(locked, SOURCE, &seen.source.node, (FROM, TO), to.dir);
            self.moved(locked, TARGET, &target.node, (TO, FROM), from.dir);
            return Ok(());
        }
        // Slots are reserved last.
        let birth = match left {
            Some((inode, node)) => {
                let birth = self.whiteout(caller, from.dir, locked.look(FROM), inode, now)?;
                Some((birth, node))
            }
            None if mode.leaves_whiteout() => return Err(full()),
            None => None,
        };
        let rename = Rename {
            from: seen.source.place,
            inode: seen.source.node.inode,
            ctime: now,
            to: match &seen.target {
                Some(target) => Target::Over(Over {
                    place: target.place,
                    inode: target.node.inode,
                    ctime: now,
                    kills: kills(locked.look(TARGET)),
                }),
                None => Target::New(self.room(to.dir, locked.state(TO), to.name)?),
            },
        };
        let m = self.medium();
        let (placed, replaced) = match birth {
            None => {
                let renamed = state::rename(m, rename, &touches).map_err(refused)?;
                let Renamed {
                    placed,
                    slots,
                    replaced,
                } = renamed;
                let old = (seen.hashes[0], seen.source.place);
                self.left(from.dir, locked.state(FROM), old, slots);
                (placed, replaced)
            }
            Some((birth, node)) => {
                let whiteout = Whiteout { rename, birth };
                let renamed = state::rename_whiteout(m, whiteout, &touches).map_err(refused)?;
                let RenamedWhiteout {
                    placed, replaced, ..
                } = renamed;
                node.settle();
                (placed, replaced)
            }
        };
        if seen.target.is_none() {
            self.entered(to.dir, locked.state(TO), seen.hashes[1], placed);
        }
        self.moved(locked, SOURCE, &seen.source.node, (FROM, TO), to.dir);
        if let (Some(target), Some(unlinked)) = (seen.target(), replaced) {
            if target.kind == FileKind::Directory {
                let above = locked.state(TO);
                above.links = above.links.saturating_sub(1);
            }
            self.unlinked(target, locked.state(TARGET), unlinked);
        }
        Ok(())
    }

    /// Counts a directory below its new parent instead of the old one.
    fn moved(
        &self,
        locked: &mut Locked<'_, 4>,
        role: usize,
        node: &Node<'_>,
        (old, new): (usize, usize),
        parent: &Node<'_>,
    ) {
        if node.kind != FileKind::Directory {
            return;
        }
        let above = locked.state(old);
        above.links = above.links.saturating_sub(1);
        locked.state(new).links += 1;
        if let Ok(content) = names(node, locked.state(role)) {
            content.parent = parent.inode.number;
        }
    }

    /// Whether a directory would move below itself: the error that reports it. The caller holds the moves lock and no other.
    fn closes_cycle(
        &self,
        from: Side<'_>,
        to: Side<'_>,
        mode: RenameMode,
        seen: &Seen<'_>,
    ) -> Result<Option<Errno>> {
        if self.is_above(&seen.source.node, to.dir)? {
            return Ok(Some(Errno::Inval));
        }
        match seen.target() {
            Some(target) if self.is_above(target, from.dir)? => {
                Ok(Some(match mode == RenameMode::Exchange {
                    true => Errno::Inval,
                    false => Errno::NotEmpty,
                }))
            }
            _ => Ok(None),
        }
    }

    /// Whether a node is `dir` or a directory above it.
    fn is_above(&self, node: &Node<'_>, dir: &Node<'_>) -> Result<bool> {
        if node.kind != FileKind::Directory {
            return Ok(false);
        }
        let mut at = *dir;
        // No path is longer than there are inodes.
        for _ in 0..self.medium().geometry().inodes() {
            if *node == at {
                return Ok(true);
            }
            if at.inode.number == ROOT {
                return Ok(false);
            }
            let above = {
                let state = at.read();
                // A removed directory has lost its parent.
                if has_name(&state).is_err() {
                    return Ok(false);
                }
                state.directory().map_or(0, |content| content.parent)
            };
            match self.node(above.into()) {
                Ok(above) => at = above,
                // Both were removed meanwhile.
                Err(_) => return Ok(false),
            }
        }
        Err(damaged(dir, "the directories above it form a cycle"))
    }
}
