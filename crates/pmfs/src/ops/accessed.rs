//! Access times as `relatime` has them: a read is noted if it is the first since the last change, or a day after the last one
//! that was noted.

use super::exists;
use super::inode::time;
use super::name::refused;
use crate::fs::PmFs;
use crate::layout::inode;
use crate::state::{self, Times};
use crate::table::{Node, State};
use steadfast_vfs::{Ino, InodeFlags, Result, Time};

/// A read is noted after so long in any case.
const NOTED_EVERY_SECS: i64 = 24 * 3600;

impl PmFs {
    pub(crate) fn op_accessed(&self, ino: Ino) -> Result<()> {
        let node = self.node(ino)?;
        {
            let state = node.read();
            exists(&node, &state)?;
            if !self.is_due(&node, &state)? {
                return Ok(());
            }
        }
        let state = node.write();
        exists(&node, &state)?;
        if !self.is_due(&node, &state)? {
            return Ok(());
        }
        let times = Times {
            atime: Some(self.now()),
            ..Times::default()
        };
        state::set_times(self.medium(), node.inode, times).map_err(refused)
    }

    fn is_due(&self, node: &Node<'_>, state: &State) -> Result<bool> {
        let disk = self.disk(node);
        if self.flags_of(node, state, &disk)?.has(InodeFlags::NOATIME) {
            return Ok(false);
        }
        let word = |word| time(self.word(node, word));
        let changed = word(inode::MTIME).max(word(inode::CTIME));
        Ok(is_due(self.atime(node), changed, time(self.now())))
    }
}

fn is_due(atime: Time, changed: Time, now: Time) -> bool {
    atime <= changed || now.secs.saturating_sub(atime.secs) >= NOTED_EVERY_SECS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_read_after_a_change_and_one_a_day_are_noted() {
        let at = |secs| Time { secs, nanos: 0 };
        assert!(is_due(at(100), at(100), at(100)), "never read");
        assert!(!is_due(at(101), at(100), at(102)), "read since the change");
        assert!(is_due(at(101), at(103), at(104)), "changed since");
        let day = 200 + NOTED_EVERY_SECS;
        assert!(!is_due(at(200), at(103), at(day - 1)));
        assert!(is_due(at(200), at(103), at(day)));
        assert!(!is_due(at(i64::MAX), at(103), at(i64::MIN)));
    }
}
