//! Access times as `relatime` has them: a read is noted if it is the first since the last
//! change, or a day after the last one that was noted.
//!
//! A noted read is an operation of the reader's stream that shares the inode with other
//! readers: it commits after whoever made the inode, and not without them.

use super::{log, object};
use crate::layout::{DiskInode, DiskTime};
use crate::mount::Fs;
use crate::pages::COST_INODE;
use steadfast_journal::Access;
use steadfast_vfs::{Caller, Ino, InodeFlags, Result, Time};

/// A read is noted after so long in any case.
const NOTED_EVERY_SECS: i64 = 24 * 3600;

impl Fs {
    /// Whether the read was noted.
    pub(crate) fn op_accessed(&self, caller: &Caller, ino: Ino) -> Result<bool> {
        if self.read_only {
            return Ok(false);
        }
        let disk = self.read_inode(ino)?;
        if disk.flags().has(InodeFlags::NOATIME) || !is_due(&disk, self.now()) {
            return Ok(false);
        }
        let mut work = self.store.begin(caller.stream, log(COST_INODE))?;
        let inode = self.inode(ino);
        let _lock = inode.exclusive();
        let mut node = self.node(ino)?;
        let now = self.now();
        if !is_due(&node.old, now) {
            return Ok(false);
        }
        work.relate(object(ino, &node.old), Access::Shared);
        node.new.atime = now;
        node.store(&mut work)?;
        work.commit();
        Ok(true)
    }
}

fn is_due(disk: &DiskInode, now: DiskTime) -> bool {
    let time = Time::from;
    let atime = time(disk.atime);
    atime <= time(disk.mtime)
        || atime <= time(disk.ctime)
        || time(now).secs.saturating_sub(atime.secs) >= NOTED_EVERY_SECS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::DiskInode;
    use zerocopy::FromZeros;

    fn at(secs: i64) -> DiskTime {
        Time { secs, nanos: 0 }.into()
    }

    #[test]
    fn the_first_read_after_a_change_and_one_a_day_are_noted() {
        let mut disk = DiskInode::new_zeroed();
        (disk.atime, disk.mtime, disk.ctime) = (at(100), at(100), at(100));
        assert!(is_due(&disk, at(100)), "never read");
        disk.atime = at(101);
        assert!(!is_due(&disk, at(102)), "read since it was changed");
        disk.ctime = at(103);
        assert!(is_due(&disk, at(104)), "changed since");
        disk.atime = at(200);
        assert!(!is_due(&disk, at(200 + NOTED_EVERY_SECS - 1)));
        assert!(is_due(&disk, at(200 + NOTED_EVERY_SECS)));
        disk.atime = at(i64::MAX);
        assert!(!is_due(&disk, at(i64::MIN)));
    }
}
