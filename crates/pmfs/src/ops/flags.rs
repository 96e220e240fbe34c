//! The flags of files and directories, which `chattr` sets and [`policy`] enforces. They are a record among the extended
//! attributes, which no list of names shows.

use super::exists;
use crate::fs::PmFs;
use steadfast_vfs::policy;
use steadfast_vfs::{Caller, Errno, Ino, InodeFlags, Result};

impl PmFs {
    pub(crate) fn op_flags(&self, ino: Ino) -> Result<InodeFlags> {
        let node = self.node(ino)?;
        let state = node.read();
        exists(&node, &state)?;
        policy::require_flags(node.kind)?;
        self.flags_of(&node, &state, &self.disk(&node))
    }

    pub(crate) fn op_set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        if flags.has(InodeFlags::NOCOW) {
            // Every write gets new pages here, which makes it atomic.
            return Err(Errno::OpNotSupp.into());
        }
        let node = self.node(ino)?;
        let mut state = node.write();
        exists(&node, &state)?;
        let disk = self.disk(&node);
        let subject = self.subject(&node, &state, &disk)?;
        policy::may_set_flags(caller, &subject, flags)?;
        if subject.flags == flags {
            return Ok(());
        }
        let mut all = self.attributes(&node, &state, &disk)?;
        all.flags = flags;
        self.store_set(&mut state, &disk, disk.commit.perm, &all)
    }
}
