//! Operations on the flags of files and directories, which `perm` enforces.

use super::walk::{Concerned, Plan, View};
use crate::features::Feature;
use crate::mount::Fs;
use crate::pages::COST_INODE;
use steadfast_vfs::{Caller, Errno, FileKind, Ino, InodeFlags, Result};

/// EOPNOTSUPP for what is neither a file nor a directory.
fn require_kind(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Regular | FileKind::Directory => Ok(()),
        _ => Err(Errno::OpNotSupp.into()),
    }
}

impl Fs {
    pub(crate) fn op_flags(&self, ino: Ino) -> Result<InodeFlags> {
        let disk = self.read_inode(ino)?;
        require_kind(disk.kind())?;
        Ok(disk.flags())
    }

    /// The owner sets flags; only root those that bind the owner.
    pub(crate) fn op_set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        if flags != InodeFlags::NONE {
            self.need(Feature::Flags)?;
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
            require_kind(node.old.kind())?;
            let privileged = caller.uid == 0 || caller.checked;
            let binding = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
            let binds = node.old.flags().differing(flags).has(binding);
            if !privileged && (caller.uid != node.old.uid.get() || binds) {
                return Err(Errno::Perm.into());
            }
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
