//! Rename, in all its cases (corner 28): over nothing, over a file or an empty directory,
//! onto another link of the same inode, across directories, exchanging, not replacing.
//!
//! A directory that moves to another parent must not move below itself. Such renames hold
//! [`Fs::lock_moves`] and relate `Topology`, so that no two of them close a cycle, neither
//! in memory nor in what survives a crash (corner 57).

use super::create::New;
use super::remove::{After, Farewell, Orphans};
use super::{Node, alive, is_dots, load_dir, log};
use crate::btree;
use crate::dir::{self, Dir, Found};
use crate::error::damaged;
use crate::inode::{self, Locked};
use crate::layout::{DiskInode, INODE_BYTES};
use crate::mount::Fs;
use crate::perm;
use crate::slots;
use crate::work::{COST_BLOCK, COST_RANGE, Work};
use std::collections::HashSet;
use steadfast_journal::{Access, Object};
use steadfast_vfs::{Caller, Errno, FileKind, Ino, RenameMode, Result};

/// One side of a rename: a name in a directory.
#[derive(Clone, Copy)]
struct Side<'a> {
    dir: Ino,
    name: &'a [u8],
}

/// What a rename found before it took its locks.
struct Plan {
    source: Ino,
    target: Option<Ino>,
    /// A directory changes its parent.
    moves: bool,
    log_bytes: u64,
    farewell: Option<Farewell>,
}

impl Fs {
    pub(crate) fn op_rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let from = Side {
            dir: from.0,
            name: from.1,
        };
        let to = Side {
            dir: to.0,
            name: to.1,
        };
        self.search(caller, from.dir)?;
        self.search(caller, to.dir)?;
        if is_dots(from.name) {
            return Err(Errno::Busy.into());
        }
        if is_dots(to.name) {
            let taken = mode.is_no_replace();
            return Err(if taken { Errno::Exist } else { Errno::Busy }.into());
        }
        loop {
            let Some(plan) = self.plan_rename(caller, from, to, mode)? else {
                continue;
            };
            if let Some(done) = self.try_rename(caller, from, to, mode, &plan)? {
                done.run(self, caller);
                return Ok(());
            }
        }
    }

    /// Looks what the rename concerns. `None`: something changed, look again.
    fn plan_rename(
        &self,
        caller: &Caller,
        from: Side<'_>,
        to: Side<'_>,
        mode: RenameMode,
    ) -> Result<Option<Plan>> {
        let volume = &self.store.volume;
        let look = |side: Side<'_>| -> Result<(Option<Found>, u16)> {
            let inode = self.inode(side.dir);
            let _lock = inode.shared();
            let dir = self.search(caller, side.dir)?;
            Ok((
                self.find(&dir, side.name)?,
                btree::level(volume, &dir.body)?,
            ))
        };
        let (source, from_level) = look(from)?;
        let source = source.ok_or(Errno::NoEnt)?;
        let (target, to_level) = look(to)?;
        let Some(source_disk) = self.named(from.dir, source.ino)? else {
            return Ok(None);
        };
        let inode_bytes = COST_BLOCK + 8 * COST_RANGE + INODE_BYTES as u64;
        let mut log_bytes = 2 * inode_bytes;
        log_bytes += match mode.leaves_whiteout() {
            true => dir::replace_credits() + slots::COST_SLOT,
            false => dir::remove_credits(from_level),
        };
        let mut moves = source_disk.is_dir();
        let mut farewell = None;
        match target {
            None => log_bytes += dir::insert_credits(to_level),
            Some(target) => {
                let Some(disk) = self.named(to.dir, target.ino)? else {
                    return Ok(None);
                };
                log_bytes += dir::replace_credits();
                moves |= disk.is_dir();
                if matches!(mode, RenameMode::Replace | RenameMode::Whiteout) {
                    let found = self.farewell(&disk)?;
                    log_bytes += found.credits;
                    farewell = Some(found);
                }
            }
        }
        Ok(Some(Plan {
            source: source.ino,
            target: target.map(|target| target.ino),
            moves: moves && from.dir != to.dir,
            log_bytes,
            farewell,
        }))
    }

    /// Renames, if things still are as planned; else `None`.
    fn try_rename(
        &self,
        caller: &Caller,
        from: Side<'_>,
        to: Side<'_>,
        mode: RenameMode,
        plan: &Plan,
    ) -> Result<Option<After>> {
        let moves_lock = plan.moves.then(|| self.lock_moves());
        let mut work = self.store.begin(caller.stream, log(plan.log_bytes))?;
        // Under the moves lock the answers stay true until the commit.
        let mut forbidden = Ok(None);
        if plan.moves {
            work.relate(Object::Topology, Access::Exclusive);
            forbidden = self.closes_cycle(from, to, mode, plan);
        }
        let orphans = Orphans::new(self);
        let mut orphan_lock = None;
        let concerned: Vec<Ino> = [from.dir, to.dir, plan.source]
            .into_iter()
            .chain(plan.target)
            .collect();
        let inodes = self.table.get_sorted(&concerned);
        let mut locked = Locked::lock(&inodes);

        let mut from_dir = load_dir(self, from.dir)?;
        let to_disk = self.directory(to.dir)?;
        let source_found = self.find(&from_dir.disk, from.name)?;
        let target_found = self.find(&to_disk, to.name)?;
        if source_found.map(|found| found.ino) != Some(plan.source)
            || target_found.map(|found| found.ino) != plan.target
        {
            return Ok(None);
        }
        let Some(source_found) = source_found else {
            return Ok(None);
        };
        match mode {
            mode if mode.is_no_replace() && plan.target.is_some() => {
                return Err(Errno::Exist.into());
            }
            RenameMode::Exchange if plan.target.is_none() => return Err(Errno::NoEnt.into()),
            _ => {}
        }
        if let Some(errno) = forbidden? {
            return Err(errno.into());
        }
        if plan.target == Some(plan.source) {
            return Ok(Some(After::NOTHING));
        }
        let mut source = self.node(plan.source)?;
        let mut target = plan.target.map(|ino| self.node(ino)).transpose()?;
        let dirs = [(from.dir, &from_dir.disk), (to.dir, &to_disk)];
        self.may_rename(caller, dirs, mode, &source, target.as_ref())?;

        dir::relate_name(&mut work, from.dir, from.name);
        dir::relate_name(&mut work, to.dir, to.name);
        let same = from.dir == to.dir;
        let mut to_dir = if same {
            None
        } else {
            Some(load_dir(self, to.dir)?)
        };
        let mut after = After::NOTHING;
        let links = |node: &Node| i64::from(node.old.is_dir());
        let mut gained = links(&source);
        match (mode, &mut target, &target_found) {
            (RenameMode::Exchange, Some(target), Some(target_found)) => {
                gained -= links(target);
                let (ino, kind) = (source.ino, source.old.kind());
                to_dir.as_mut().unwrap_or(&mut from_dir).replace(
                    &mut work,
                    target_found,
                    ino,
                    kind,
                )?;
                from_dir.replace(&mut work, &source_found, target.ino, target.old.kind())?;
                self.moved(&mut work, target, to.dir, from.dir)?;
            }
            (_, Some(target), Some(target_found)) => {
                let Some(farewell) = &plan.farewell else {
                    return Ok(None);
                };
                work.use_emergency_space();
                let (ino, kind) = (source.ino, source.old.kind());
                let dir = to_dir.as_mut().unwrap_or(&mut from_dir);
                dir.replace(&mut work, target_found, ino, kind)?;
                // A replaced directory takes its link with it.
                dir.add_links(&mut work, -links(target))?;
                self.leave(&mut work, caller, &mut from_dir, &source_found, mode)?;
                let Some(held) = locked.get(target.ino) else {
                    return Ok(None);
                };
                after = self.drop_name(
                    &mut work,
                    target,
                    held,
                    farewell,
                    &orphans,
                    &mut orphan_lock,
                )?;
            }
            _ => {
                self.leave(&mut work, caller, &mut from_dir, &source_found, mode)?;
                let dir = to_dir.as_mut().unwrap_or(&mut from_dir);
                dir.insert(&mut work, to.name, source.ino, source.old.kind())?;
            }
        }
        self.moved(&mut work, &mut source, from.dir, to.dir)?;
        let now = self.now();
        from_dir.touch(&mut work, now)?;
        if let Some(to_dir) = &to_dir {
            to_dir.touch(&mut work, now)?;
            from_dir.add_links(&mut work, -gained)?;
            to_dir.add_links(&mut work, gained)?;
        }
        work.commit();
        drop(orphan_lock);
        drop(locked);
        drop(moves_lock);
        Ok(Some(after))
    }

    /// Removes the source's entry, or has it name a new whiteout.
    fn leave<'a>(
        &'a self,
        work: &mut Work<'a>,
        caller: &Caller,
        from: &mut Dir,
        source: &Found,
        mode: RenameMode,
    ) -> Result<()> {
        if !mode.leaves_whiteout() {
            return from.remove(work, source);
        }
        let whiteout = self.make(work, caller, from, &New::WHITEOUT, None)?;
        from.replace(work, source, whiteout.0.ino(), FileKind::CharDevice)
    }

    /// Stores what a rename changes in the inode that it moves.
    fn moved(&self, work: &mut Work<'_>, node: &mut Node, from: Ino, to: Ino) -> Result<()> {
        let now = self.now();
        if node.old.is_dir() {
            // What happens inside the directory does not depend on where it is.
            work.relate(Object::Directory(node.ino), Access::Shared);
            if from != to {
                node.new.parent = to.into();
                node.store(work)?;
            }
            return inode::touch_ctime(work, node.place, now);
        }
        node.relate(work);
        node.new.ctime = now;
        node.store(work)
    }

    /// Whether the caller may rename, and what is replaced fits: checks in Linux's order.
    fn may_rename(
        &self,
        caller: &Caller,
        [(from_ino, from), (to_ino, to)]: [(Ino, &DiskInode); 2],
        mode: RenameMode,
        source: &Node,
        target: Option<&Node>,
    ) -> Result<()> {
        let both = perm::WRITE | perm::EXEC;
        let moves = from_ino != to_ino;
        self.require(caller, from_ino, from, both)?;
        perm::sticky(caller, from, &source.old)?;
        let exchange = mode == RenameMode::Exchange;
        match target {
            None => {
                alive(to)?;
                self.require(caller, to_ino, to, both)?;
            }
            Some(target) => {
                self.require(caller, to_ino, to, both)?;
                perm::sticky(caller, to, &target.old)?;
                match (exchange, source.old.is_dir(), target.old.is_dir()) {
                    (false, true, false) => return Err(Errno::NotDir.into()),
                    (false, false, true) => return Err(Errno::IsDir.into()),
                    _ => {}
                }
            }
        }
        // A directory that gets another `..` is itself written to.
        if moves && source.old.is_dir() {
            self.require(caller, source.ino, &source.old, perm::WRITE)?;
        }
        match target {
            Some(target) if exchange && moves && target.old.is_dir() => {
                self.require(caller, target.ino, &target.old, perm::WRITE)
            }
            Some(target) if !exchange && target.old.is_dir() => self.must_be_empty(target),
            _ => Ok(()),
        }
    }

    /// Whether a directory would move below itself.
    fn closes_cycle(
        &self,
        from: Side<'_>,
        to: Side<'_>,
        mode: RenameMode,
        plan: &Plan,
    ) -> Result<Option<Errno>> {
        if self.ancestors(to.dir)?.contains(&plan.source) {
            return Ok(Some(Errno::Inval));
        }
        match plan.target {
            Some(target) if self.ancestors(from.dir)?.contains(&target) => {
                Ok(Some(if mode == RenameMode::Exchange {
                    Errno::Inval
                } else {
                    Errno::NotEmpty
                }))
            }
            _ => Ok(None),
        }
    }

    /// A directory and all that are above it.
    fn ancestors(&self, from: Ino) -> Result<HashSet<Ino>> {
        let mut above = HashSet::new();
        let mut at = from;
        while above.insert(at) {
            if at == self.store.volume.root {
                return Ok(above);
            }
            at = self.directory(at)?.parent.get();
        }
        Err(damaged(format!(
            "the directories above inode {from} form a cycle"
        )))
    }
}
