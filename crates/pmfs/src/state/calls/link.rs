//! `link`: one more name for an inode.

use super::room::{NewName, Placed, Touch};
use crate::layout::InodeRef;
use crate::state::persist::fence;
use crate::state::{Inode, Medium, Result, Touches};

/// The inode that gets a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Which. If it was an orphan, the caller forgets that it was.
    pub inode: InodeRef,
    /// Its new ctime.
    pub ctime: u64,
}

/// Gives an inode another name.
///
/// Plan: `slot` with one fence; the inode is durable already. The number of links is nowhere stored, so that it cannot be too
/// low (SquirrelFS §3.3 orders it before the name).
///
/// # Errors
/// Before the first store: [`Error::TooLong`](crate::state::Error::TooLong), `Stale`, `TagsExhausted`.
pub fn link(m: &Medium, link: Link, name: NewName<'_, '_>, touch: Touch) -> Result<Placed> {
    let mut touches = Touches::new(m);
    touches.directory(touch.dir, touch.now)?;
    touches.changed(link.inode, link.ctime)?;
    m.brands3(|i, d, s| {
        let inode = Inode::live(i, link.inode)?;
        let opened = name.check(d)?.prepare(s).settle(m);
        let slot = opened.slot.commit(&inode).flush();
        let stamps = touches.stamp().flush();
        let (slot, page, _) = fence(m, (slot, opened.page, stamps));
        Ok(Placed::new(&slot, page))
    })
}
