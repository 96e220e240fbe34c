//! Operations on the flags of files and directories, which [`policy`] enforces.

use super::walk::{Concerned, Plan, View};
use crate::features::Feature;
use crate::mounted::Mounted;
use crate::pages::COST_INODE;
use steadfast_vfs::{Caller, Errno, Ino, InodeFlags, Result, policy};

impl Mounted {
    pub(crate) fn op_flags(&self, ino: Ino) -> Result<InodeFlags> {
        let disk = self.read_inode(ino)?;
        policy::require_flags(disk.kind())?;
        Ok(disk.flags())
    }

    pub(crate) fn op_set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        if flags != InodeFlags::NONE {
            self.need(Feature::Flags)?;
        }
        if flags.has(InodeFlags::NOCOW) {
            self.need(Feature::Nocow)?;
        }
        let concerned = Concerned {
            inode: Some(ino),
            entries: [],
        };
        let plan = |_: &View<0>| {
            Ok(Some(Plan {
                log_bytes: COST_INODE,
                moves: false,
                own: (),
            }))
        };
        self.walk(caller, &concerned, plan, |mut work, _, seen, _| {
            let mut node = self.node_of(ino, &seen.inode.ok_or(Errno::Stale)?)?;
            policy::may_set_flags(caller, &node.old.subject(), flags)?;
            if node.old.flags() == flags {
                return Ok(());
            }
            node.relate(&mut work);
            node.new.flags = flags.bits().into();
            node.new.ctime = self.now();
            node.store(&mut work)?;
            work.commit();
            Ok(())
        })
    }
}
