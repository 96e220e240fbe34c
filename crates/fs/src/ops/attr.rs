//! Operations on attributes: setattr with everything it may change at once.

use super::Node;
use super::walk::{Concerned, Plan, View, same_life};
use crate::data::require_file;
use crate::in_place::Concerns;
use crate::inode::State;
use crate::layout::{DiskInode, FILE_BYTES_MAX};
use crate::mounted::Mounted;
use crate::orphan;
use crate::pages::COST_INODE;
use crate::reader::Current;
use crate::truncate::{self, RESIZE_BYTES};
use crate::work::Work;
use steadfast_vfs::acl::XATTR_ACCESS;
use steadfast_vfs::policy::attrs::{Needs, is_nothing, may_set, perm_after_set};
use steadfast_vfs::policy::{PERM_BITS, WRITE};
use steadfast_vfs::{Attr, Caller, Errno, Ino, Result, SetAttr, SetTime, Time};

/// Changes of attributes for which log bytes are reserved, besides the inode.
struct Granted {
    /// Log bytes for blocks past the new end.
    free_bytes: u64,
    /// Log bytes for an ACL that follows the mode.
    has_acl: bool,
}

impl Mounted {
    pub(crate) fn op_setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if set.perm.is_some_and(|perm| perm & !PERM_BITS != 0) {
            return Err(Errno::Inval.into());
        }
        loop {
            if set.size.is_some() {
                self.write_out(ino)?;
            }
            if let Some(attr) = self.set_once(caller, ino, set)? {
                return Ok(attr);
            }
            // A truncation is under way, and must end before the file is made longer; or data
            // was written in place meanwhile.
            self.settle(caller.stream, ino)?;
        }
    }

    fn set_once(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Option<Attr>> {
        let store = &self.store;
        let concerned = Concerned {
            inode: Some(ino),
            entries: [],
        };
        let plan = |seen: &View<0>| {
            let inode = self.inode(ino);
            let _lock = inode.shared();
            let disk = self.read_inode(ino)?;
            if !same_life(&disk, &seen.inode.ok_or(Errno::Stale)?) {
                return Err(Errno::Stale.into());
            }
            self.may_change(caller, ino, &disk, set)?;
            let mut log_bytes = COST_INODE;
            let has_acl = set.perm.is_some() && self.access_acl(ino, &disk)?.is_some();
            if has_acl {
                log_bytes += super::xattr::CREDITS;
            }
            let mut free_bytes = 0;
            if let Some(size) = set.size {
                let mut reader = Current(&store.journal);
                free_bytes = truncate::free_bytes(store, &mut reader, &disk, size)?;
                log_bytes += RESIZE_BYTES + free_bytes + orphan::credits(self)?;
            }
            Ok(Some(Plan {
                log_bytes,
                moves: false,
                own: Granted {
                    free_bytes,
                    has_acl,
                },
            }))
        };
        let done = self.walk(caller, &concerned, plan, |work, plan, seen, locked| {
            let disk = seen.inode.ok_or(Errno::Stale)?;
            let (_, state) = locked.get(ino).ok_or(Errno::Io)?;
            self.set_locked(
                caller,
                set,
                work,
                self.node_of(ino, &disk)?,
                state,
                &plan.own,
            )
        })?;
        let Some((attr, needs_orphan)) = done else {
            return Ok(None);
        };
        if needs_orphan && let Err(error) = self.settle(caller.stream, ino) {
            self.warn(format!(
                "blocks past the end of inode {ino} could not be freed ({error}); \
                 the next mount frees them"
            ));
        }
        Ok(Some(attr))
    }

    /// Under the inode's lock: its new attributes, and whether a truncation is now under way. `None`:
    /// something else has to be finished first.
    fn set_locked<'a>(
        &'a self,
        caller: &Caller,
        set: &SetAttr,
        mut work: Work<'a>,
        mut node: Node,
        state: &mut State,
        granted: &Granted,
    ) -> Result<Option<(Attr, bool)>> {
        let ino = node.ino;
        self.may_change(caller, ino, &node.old, set)?;
        if set.size.is_some() && !state.pages.places.is_empty() {
            return Ok(None);
        }
        if is_nothing(set) {
            return Ok(Some((
                self.attr_of(ino, &node.old, state.pages.new_blocks()),
                false,
            )));
        }
        let mut acl = match set.perm {
            Some(_) => self.access_acl(ino, &node.old)?,
            None => None,
        };
        if acl.is_some() && !granted.has_acl {
            return Ok(None);
        }
        node.relate(&mut work);
        let now = Time::from(self.now());
        let time = |set: SetTime| match set {
            SetTime::Now => now.into(),
            SetTime::At(time) => time.into(),
        };
        let new = &mut node.new;
        new.set_perm(perm_after_set(caller, &node.old.subject(), set));
        new.uid = set.uid.map_or(new.uid, Into::into);
        new.gid = set.gid.map_or(new.gid, Into::into);
        new.ctime = now.into();
        if let Some(atime) = set.atime {
            new.atime = time(atime);
            self.forget_note(&mut work, ino);
        }
        if set.size.is_some() {
            new.mtime = now.into();
        }
        new.mtime = set.mtime.map_or(new.mtime, time);
        if let Some(acl) = &mut acl {
            acl.set_perm_bits(new.perm());
            self.put_acl(&mut work, &mut node, XATTR_ACCESS, acl)?;
        }
        let new = &mut node.new;
        let mut resized = None;
        if let Some(size) = set.size {
            match truncate::resize(&mut work, state, new, size, granted.free_bytes)? {
                Some(done) => resized = Some(done),
                None => return Ok(None),
            }
        }
        node.store(&mut work)?;
        let needs_orphan = resized.as_ref().is_some_and(|resized| resized.needs_orphan);
        let orphans = self.inode(self.store.volume.orphans);
        let mut orphan_lock = None;
        if needs_orphan {
            work.use_emergency_space();
            orphan_lock = Some(orphans.exclusive());
            orphan::add(self, &mut work, ino, node.old.kind())?;
        }
        if let Some(resized) = resized {
            resized.apply(&self.store, state);
        }
        let ticket = work.commit();
        drop(orphan_lock);
        if set.size.is_some() {
            self.note_change(ino, Concerns::Size, ticket);
        }
        Ok(Some((
            self.attr_of(ino, &node.new, state.pages.new_blocks()),
            needs_orphan,
        )))
    }

    /// Whether the caller may make all of these changes.
    fn may_change(&self, caller: &Caller, ino: Ino, disk: &DiskInode, set: &SetAttr) -> Result<()> {
        if set.guard.is_some_and(|guard| guard != disk.ctime.into()) {
            return Err(Errno::Again.into());
        }
        if let Some(size) = set.size {
            require_file(disk)?;
            if !set.by_handle {
                self.require(caller, ino, disk, WRITE)?;
            }
            if size > FILE_BYTES_MAX {
                return Err(Errno::FBig.into());
            }
        }
        match may_set(caller, &disk.subject(), set)? {
            Needs::Nothing => Ok(()),
            Needs::Write => self.access(caller, ino, disk, WRITE),
        }
    }
}
