//! Rename, in all its cases (corner 28): over nothing, over a file or an empty directory,
//! onto another link of the same inode, across directories, exchanging, not replacing.
//!
//! A directory that moves to another parent must not move below itself. Such renames hold
//! [`Mounted::lock_moves`] and relate `Topology`, so that no two of them close a cycle, neither
//! in memory nor after a crash (corner 57).

use super::remove::{After, Farewell, Orphans};
use super::walk::{Child, Concerned, Entry, Plan, View};
use super::{Node, alive};
use crate::btree;
use crate::dir::{self, Dir, Found};
use crate::error::damaged;
use crate::inode::{self, Locked};
use crate::layout::{DiskInode, INODE_BYTES};
use crate::mounted::Mounted;
use crate::slots;
use crate::work::{COST_BLOCK, COST_RANGE, Work};
use std::collections::HashSet;
use steadfast_journal::{Access, Object};
use steadfast_vfs::policy::born::New;
use steadfast_vfs::policy::is_dots;
use steadfast_vfs::policy::rename::{Party, Renamed, check_target, may_rename};
use steadfast_vfs::{Caller, Errno, FileKind, Ino, RenameMode, Result};

impl Mounted {
    pub(crate) fn op_rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let side = |(dir, name), needed| Entry { dir, name, needed };
        let (from, to) = (side(from, true), side(to, false));
        self.search(caller, from.dir)?;
        self.search(caller, to.dir)?;
        if is_dots(from.name) {
            return Err(Errno::Busy.into());
        }
        if is_dots(to.name) {
            let taken = mode.is_no_replace();
            return Err(if taken { Errno::Exist } else { Errno::Busy }.into());
        }
        let concerned = Concerned {
            inode: None,
            entries: [from, to],
        };
        let rename = || {
            self.walk(
                caller,
                &concerned,
                |seen| self.plan_rename(caller, from, to, mode, seen),
                |work, plan, now, locked| {
                    self.rename_locked(caller, (from, to), mode, work, &plan, &now, locked)
                },
            )
        };
        let after = match rename() {
            // Perhaps an inode block that was not looked into yet has room for the whiteout.
            Err(full)
                if full == Errno::NoSpc
                    && mode.leaves_whiteout()
                    && (self.slots).search(&self.store, self.store.stream(caller.stream))? =>
            {
                rename()?
            }
            after => after?,
        };
        after.run(self, caller);
        Ok(())
    }

    /// Needs of the rename. `None`: something changed, look again.
    fn plan_rename(
        &self,
        caller: &Caller,
        from: Entry<'_>,
        to: Entry<'_>,
        mode: RenameMode,
        seen: &View<2>,
    ) -> Result<Option<Plan<Option<Farewell>>>> {
        let [source_at, target_at] = &seen.entries;
        let volume = &self.store.volume;
        let source = source_at.child.ok_or(Errno::NoEnt)?;
        let from_level = btree::level(volume, &source_at.dir.body)?;
        let to_level = btree::level(volume, &target_at.dir.body)?;
        let inode_bytes = COST_BLOCK + 8 * COST_RANGE + INODE_BYTES as u64;
        let mut log_bytes = 2 * inode_bytes;
        log_bytes += match mode.leaves_whiteout() {
            true => dir::replace_credits() + slots::COST_SLOT,
            false => dir::remove_credits(from_level),
        };
        let mut moves = source.disk.is_dir();
        let mut own = None;
        match target_at.child {
            None => log_bytes += dir::insert_credits(to_level),
            Some(target) => {
                log_bytes += dir::replace_credits();
                moves |= target.disk.is_dir();
                if matches!(mode, RenameMode::Replace | RenameMode::Whiteout) {
                    let Some(farewell) = self.farewell(&target)? else {
                        return Ok(None);
                    };
                    log_bytes += farewell.credits;
                    own = Some(farewell);
                }
            }
        }
        if mode.leaves_whiteout() {
            let stream = self.store.stream(caller.stream);
            self.slots.look_ahead(&self.store, from.dir, stream)?;
        }
        Ok(Some(Plan {
            log_bytes,
            moves: moves && from.dir != to.dir,
            own,
        }))
    }

    /// Renames, under the locks of all that it concerns.
    #[expect(
        clippy::too_many_arguments,
        reason = "both sides of a rename, and the walk's"
    )]
    fn rename_locked<'a>(
        &'a self,
        caller: &Caller,
        (from, to): (Entry<'_>, Entry<'_>),
        mode: RenameMode,
        mut work: Work<'a>,
        plan: &Plan<Option<Farewell>>,
        now: &View<2>,
        locked: &mut Locked<'_>,
    ) -> Result<After> {
        let [source_at, target_at] = &now.entries;
        let (source_child, target_child) = (source_at.child, target_at.child);
        let source_child = source_child.ok_or(Errno::NoEnt)?;
        check_target(mode, target_child.is_some())?;
        if plan.moves {
            work.relate(Object::Topology, Access::Exclusive);
            alive(&target_at.dir)?;
            // Under the moves lock this stays true until the commit.
            let target = target_child.map(|child| child.found.ino);
            self.closes_cycle(from, to, mode, source_child.found.ino, target)?;
        }
        if target_child.is_some_and(|target| target.found.ino == source_child.found.ino) {
            return Ok(After::NOTHING);
        }
        let node = |child: Child| self.node_of(child.found.ino, &child.disk);
        let mut source = node(source_child)?;
        let mut target = target_child.map(node).transpose()?;
        let dirs = [(from.dir, &source_at.dir), (to.dir, &target_at.dir)];
        self.may_rename(caller, dirs, mode, &source, target.as_ref())?;

        let orphans = Orphans::new(self);
        let mut orphan_lock = None;
        dir::relate_name(&mut work, from.dir, from.name);
        dir::relate_name(&mut work, to.dir, to.name);
        let mut from_dir = self.dir(from.dir, &source_at.dir)?;
        let mut to_dir = if from.dir == to.dir {
            None
        } else {
            Some(self.dir(to.dir, &target_at.dir)?)
        };
        let mut after = After::NOTHING;
        let links = |node: &Node| i64::from(node.old.is_dir());
        let mut gained = links(&source);
        match (mode, &mut target, &target_child) {
            (RenameMode::Exchange, Some(target), Some(target_child)) => {
                gained -= links(target);
                let (ino, kind) = (source.ino, source.old.kind());
                to_dir.as_mut().unwrap_or(&mut from_dir).replace(
                    &mut work,
                    &target_child.found,
                    ino,
                    kind,
                )?;
                let kind = target.old.kind();
                from_dir.replace(&mut work, &source_child.found, target.ino, kind)?;
                self.moved(&mut work, target, to.dir, from.dir)?;
            }
            (_, Some(target), Some(target_child)) => {
                let farewell = plan.own.as_ref().ok_or(Errno::Io)?;
                work.use_emergency_space();
                let (ino, kind) = (source.ino, source.old.kind());
                let dir = to_dir.as_mut().unwrap_or(&mut from_dir);
                dir.replace(&mut work, &target_child.found, ino, kind)?;
                // A replaced directory takes its link with it.
                dir.add_links(&mut work, -links(target))?;
                self.leave(&mut work, caller, &mut from_dir, &source_child.found, mode)?;
                let held = locked.get(target.ino).ok_or(Errno::Io)?;
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
                self.leave(&mut work, caller, &mut from_dir, &source_child.found, mode)?;
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
        Ok(after)
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
        let whiteout = self.make(work, caller, from, &New::WHITEOUT, from.ino, None)?;
        from.replace(work, source, whiteout.0.ino(), FileKind::CharDevice)
    }

    /// Stores the changes of the inode that a rename moves.
    fn moved(&self, work: &mut Work<'_>, node: &mut Node, from: Ino, to: Ino) -> Result<()> {
        let now = self.now();
        if node.old.is_dir() {
            // Changes inside the directory do not depend on its place.
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

    /// Whether the caller may rename, and whether the replaced inode fits.
    fn may_rename(
        &self,
        caller: &Caller,
        [(from_ino, from), (to_ino, to)]: [(Ino, &DiskInode); 2],
        mode: RenameMode,
        source: &Node,
        target: Option<&Node>,
    ) -> Result<()> {
        let renamed = Renamed {
            from: from.subject(),
            to: to.subject(),
            moves: from_ino != to_ino,
            to_alive: alive(to).is_ok(),
            source: source.old.subject(),
            target: target.map(|target| target.old.subject()),
        };
        let replaces = may_rename(caller, &renamed, mode, |party, mask| {
            let (ino, disk) = match (party, target) {
                (Party::From, _) => (from_ino, from),
                (Party::To, _) => (to_ino, to),
                (Party::Target, Some(target)) => (target.ino, &target.old),
                (Party::Source | Party::Target, _) => (source.ino, &source.old),
            };
            self.require(caller, ino, disk, mask)
        })?;
        match target {
            Some(target) if replaces => self.must_be_empty(target),
            _ => Ok(()),
        }
    }

    /// EINVAL or ENOTEMPTY if a directory would move below itself.
    fn closes_cycle(
        &self,
        from: Entry<'_>,
        to: Entry<'_>,
        mode: RenameMode,
        source: Ino,
        target: Option<Ino>,
    ) -> Result<()> {
        if self.ancestors(to.dir)?.contains(&source) {
            return Err(Errno::Inval.into());
        }
        match target {
            Some(target) if self.ancestors(from.dir)?.contains(&target) => {
                Err(if mode == RenameMode::Exchange {
                    Errno::Inval
                } else {
                    Errno::NotEmpty
                }
                .into())
            }
            _ => Ok(()),
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
