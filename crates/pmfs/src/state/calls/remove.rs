//! `remove`: unlink and rmdir.

use super::room::Touch;
use crate::layout::{InodeRef, Place};
use crate::state::inode::states::Live;
use crate::state::persist::{Clean, InFlight, fence};
use crate::state::{
    Dentry, Descriptors, DirectoryRun, FreedSlots, Inode, Killed, Medium, PageRun, Result, Touches,
    Unlinked,
};

/// A name that is to go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remove {
    /// Its slot.
    pub place: Place,
    /// The inode that it names.
    pub inode: InodeRef,
    /// The inode's new ctime.
    pub ctime: u64,
    /// If it is a directory: all its pages. Its slots are all free.
    pub kills: Vec<PageRun>,
}

/// Result of a removal.
#[must_use]
#[derive(Debug)]
pub struct Removed {
    /// The name's slots.
    pub slots: FreedSlots<Clean>,
    /// The inode has a name less.
    pub unlinked: Unlinked,
}

/// Removes a name.
///
/// Plan: `slot's commit word = 0, lives of a directory's pages = 0` with one fence. Slots and inode are free after it: later stores to them cannot reach
/// the medium before the name is gone (SquirrelFS §3.1, rule 2). Nothing is zeroed: a page or slot that still names the inode
/// is worthless once the inode is born again with another generation.
///
/// # Errors
/// Before the first store: [`Error::NotThere`](crate::state::Error::NotThere), `Stale`.
pub fn remove(m: &Medium, remove: Remove, touch: Touch) -> Result<Removed> {
    let mut touches = Touches::new(m);
    touches.directory(touch.dir, touch.now)?;
    touches.changed(remove.inode, remove.ctime)?;
    m.brands2(|i, s| {
        let inode = Inode::live(i, remove.inode)?;
        let slot = Dentry::live(s, remove.place, &inode)?;
        let kills = check_kills(&inode, &remove.kills)?;
        let slot = slot.remove().flush();
        let killed = kill(&inode, &kills);
        let stamps = touches.stamp().flush();
        let (slot, _, _) = fence(m, (slot, killed, stamps));
        let (slots, unlinked) = slot.freed();
        Ok(Removed { slots, unlinked })
    })
}

/// The pages of a directory that loses its name, checked.
pub(super) fn check_kills<'i>(
    inode: &Inode<'i, Clean, Live>,
    kills: &[PageRun],
) -> Result<Vec<DirectoryRun<'i>>> {
    kills.iter().map(|run| inode.directory_run(*run)).collect()
}

/// They hold no slots any more. `None`: there are none.
#[inline]
pub(super) fn kill<'i>(
    inode: &Inode<'i, Clean, Live>,
    kills: &[DirectoryRun<'i>],
) -> Option<Descriptors<'i, InFlight, Killed>> {
    if kills.is_empty() {
        return None;
    }
    let mut killed = Descriptors::killed(inode);
    for run in kills {
        killed = killed.kill(run);
    }
    Some(killed.flush())
}
