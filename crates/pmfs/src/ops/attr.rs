//! setattr, with everything that it may change at once.

use super::attributes::NewSet;
use super::edit::Edit;
use super::exists;
use super::inode::{Disk, time};
use super::name::refused;
use crate::fs::PmFs;
use crate::layout::{AttributePlace, inode, time_word};
use crate::state::{self, Times};
use crate::table::{Node, State};
use steadfast_vfs::acl::XATTR_ACCESS;
use steadfast_vfs::policy::attrs::{Needs, is_nothing, may_set, perm_after_set};
use steadfast_vfs::policy::{self, PERM_BITS, Subject, WRITE};
use steadfast_vfs::{Attr, Caller, Errno, FileKind, Ino, Result, SetAttr, SetTime, Time};

impl PmFs {
    /// Whether a set of attributes may go into the inode.
    pub(super) fn may_inline(disk: &Disk) -> bool {
        disk.commit.attributes != AttributePlace::Inline && disk.kind != FileKind::Symlink
    }

    pub(crate) fn op_setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if set.perm.is_some_and(|perm| perm & !PERM_BITS != 0) {
            return Err(Errno::Inval.into());
        }
        let node = self.node(ino)?;
        let mut state = node.write();
        exists(&node, &state)?;
        let disk = self.disk(&node);
        let subject = self.may_change(caller, &node, &state, &disk, set)?;
        if is_nothing(set) {
            return Ok(self.attr_of(&node, &state, &disk));
        }
        let now = self.now();
        let when = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::At(time) => time_word(time.secs, time.nanos),
        };
        let times = Times {
            atime: set.atime.map(when),
            mtime: set.mtime.map(when).or(set.size.map(|_| now)),
            ctime: Some(now),
        };
        let perm = perm_after_set(caller, &subject, set);
        let (uid, gid) = (set.uid.unwrap_or(disk.uid), set.gid.unwrap_or(disk.gid));
        let same = (perm, uid, gid) == (disk.commit.perm, disk.uid, disk.gid);
        if same && set.size.is_none() && set.perm.is_none() {
            state::set_times(self.medium(), node.inode, times).map_err(refused)?;
            return Ok(self.attr_of(&node, &state, &disk));
        }
        let list = match set.perm {
            Some(_) => self.list_after_chmod(&node, &state, &disk, perm)?,
            None => None,
        };
        let (bytes, form) = match list {
            Some(NewSet { bytes, form }) => (bytes, Some(form)),
            None => (Vec::new(), None),
        };
        let mut edit = Edit::new(&disk, times);
        edit.change.attributes.perm = perm;
        edit.change.attributes.uid = uid;
        edit.change.attributes.gid = gid;
        if let (Some(size), Some(pages)) = (set.size, state.pages()) {
            edit.resize(pages, disk.size, size);
        }
        let index = form.map(|form| form.put(&bytes, &state, &mut edit.change));
        edit.commit(self, &mut state)?;
        if let Some(index) = index {
            state.attributes = index;
        }
        Ok(self.attr(&node, &state))
    }

    /// The extended attributes after a change of mode, if there is an access ACL, which follows it.
    fn list_after_chmod(
        &self,
        node: &Node<'_>,
        state: &State,
        disk: &Disk,
        perm: u16,
    ) -> Result<Option<NewSet<'_>>> {
        if self.acl_of(node, state, disk, XATTR_ACCESS)?.is_none() {
            return Ok(None);
        }
        let mut all = self.attributes(node, state, disk)?;
        if let Some(list) = &mut all.access {
            list.set_perm_bits(perm);
        }
        self.new_set(&all, Self::may_inline(disk)).map(Some)
    }

    /// Whether the caller may make all of these changes.
    fn may_change(
        &self,
        caller: &Caller,
        node: &Node<'_>,
        state: &State,
        disk: &Disk,
        set: &SetAttr,
    ) -> Result<Subject> {
        let ctime = || -> Time { time(self.word(node, inode::CTIME)) };
        if set.guard.is_some_and(|guard| guard != ctime()) {
            return Err(Errno::Again.into());
        }
        if let Some(size) = set.size {
            policy::require_file(disk.kind)?;
            if !set.by_handle {
                self.require(caller, node, state, disk, WRITE)?;
            }
            if size > super::FILE_BYTES_MAX {
                return Err(Errno::FBig.into());
            }
        }
        let subject = self.subject(node, state, disk)?;
        match may_set(caller, &subject, set)? {
            Needs::Nothing => {}
            Needs::Write => self.allowed(caller, node, state, disk, WRITE)?,
        }
        Ok(subject)
    }
}
