//! Operations on extended attributes, ACLs among them. List and mode change together: both are part of one commit.

use super::attributes::NewSet;
use super::edit::Edit;
use super::exists;
use super::inode::Disk;
use crate::fs::PmFs;
use crate::state::Times;
use crate::table::{Node, State};
use crate::xattr::{Attributes, VALUE_BYTES_MAX};
use steadfast_vfs::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::policy::attrs::perm_after_acl;
use steadfast_vfs::policy::xattr::{check_name, is_acl, is_listed, may};
use steadfast_vfs::policy::{self, READ, Subject, WRITE};
use steadfast_vfs::{Caller, Errno, Ino, Result, XattrMode};

impl PmFs {
    pub(crate) fn op_getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let state = node.read();
        exists(&node, &state)?;
        check_name(name)?;
        let disk = self.disk(&node);
        if may(caller, &self.subject(&node, &state, &disk)?, name, false)? {
            self.require(caller, &node, &state, &disk, READ)?;
        }
        let value = match is_acl(name) {
            true => {
                let acl = self.acl_of(&node, &state, &disk, name)?;
                acl.map(|acl| acl.to_xattr())
            }
            false => self.attributes(&node, &state, &disk)?.get(name),
        };
        value.ok_or_else(|| Errno::NoData.into())
    }

    pub(crate) fn op_listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let node = self.node(ino)?;
        let state = node.read();
        exists(&node, &state)?;
        let all = self.attributes(&node, &state, &self.disk(&node))?;
        let listed = all.names().filter(|name| is_listed(caller, name));
        Ok(listed.map(<[u8]>::to_vec).collect())
    }

    pub(crate) fn op_setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        if !is_acl(name) {
            return self.change_set(caller, ino, name, |subject, all| {
                all.set(name, value, mode)?;
                Ok(subject.perm)
            });
        }
        let Some(acl) = Acl::from_xattr(value)? else {
            return match self.op_removexattr(caller, ino, name) {
                Err(error) if error == Errno::NoData => Ok(()),
                other => other,
            };
        };
        if value.len() > VALUE_BYTES_MAX {
            return Err(Errno::Range.into());
        }
        self.change_set(caller, ino, name, |subject, all| {
            if name == XATTR_DEFAULT && !subject.is_dir() {
                return Err(Errno::Access.into());
            }
            let bits = acl.perm_bits();
            all.set_acl(name, acl.clone(), mode)?;
            Ok(match name == XATTR_ACCESS {
                true => perm_after_acl(caller, subject, bits),
                false => subject.perm,
            })
        })
    }

    pub(crate) fn op_removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change_set(caller, ino, name, |subject, all| {
            all.remove(name)?;
            Ok(subject.perm)
        })
    }

    /// Changes the set; `change` returns the permission bits after it.
    fn change_set(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        change: impl FnOnce(&Subject, &mut Attributes) -> Result<u16>,
    ) -> Result<()> {
        check_name(name)?;
        let node = self.node(ino)?;
        let mut state = node.write();
        exists(&node, &state)?;
        let disk = self.disk(&node);
        let subject = self.subject(&node, &state, &disk)?;
        self.may_change_set(caller, (&node, &state, &disk), &subject, name)?;
        let mut all = self.attributes(&node, &state, &disk)?;
        let perm = change(&subject, &mut all)?;
        self.store_set(&mut state, &disk, perm, &all)
    }

    fn may_change_set(
        &self,
        caller: &Caller,
        (node, state, disk): (&Node<'_>, &State, &Disk),
        subject: &Subject,
        name: &[u8],
    ) -> Result<()> {
        policy::not_fixed(subject)?;
        match may(caller, subject, name, true)? {
            true => self.require(caller, node, state, disk, WRITE),
            false => Ok(()),
        }
    }

    /// Stores the set and the permission bits of an inode, whose lock the caller holds.
    pub(super) fn store_set(
        &self,
        state: &mut State,
        disk: &Disk,
        perm: u16,
        all: &Attributes,
    ) -> Result<()> {
        let NewSet { bytes, form } = self.new_set(all, Self::may_inline(disk))?;
        let times = Times {
            ctime: Some(self.now()),
            ..Times::default()
        };
        let mut edit = Edit::new(disk, times);
        edit.change.attributes.perm = perm;
        let index = form.put(&bytes, state, &mut edit.change);
        edit.commit(self, state)?;
        state.attributes = index;
        Ok(())
    }
}
