//! `rename`, `exchange`, and the rename that leaves a whiteout.

use super::create::Birth;
use super::remove::{check_kills, kill};
use super::room::{NewName, Placed, Touch};
use crate::layout::{InodeRef, Place};
use crate::state::dentry::states::Live as LiveSlot;
use crate::state::inode::states::Live as LiveInode;
use crate::state::persist::{Brand, Clean, fence, order};
use crate::state::{
    Dentry, DirectoryRun, Error, FreedSlots, Inode, Medium, NewTag, PageRun, Result, Touches,
    Unlinked,
};

/// Target of a rename.
#[must_use]
pub enum Target<'a, 'f> {
    /// To a name that does not exist.
    New(NewName<'a, 'f>),
    /// Over another inode's name, which stays where it is.
    Over(Over),
}

/// A name that a rename takes from another inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Over {
    /// Its slot.
    pub place: Place,
    /// The inode that it names, another one than the renamed.
    pub inode: InodeRef,
    /// That inode's new ctime.
    pub ctime: u64,
    /// If it is a directory: all its pages. Its slots are all free.
    pub kills: Vec<PageRun>,
}

/// The same, checked.
struct CheckedOver<'j, 't> {
    inode: Inode<'j, Clean, LiveInode>,
    slot: Dentry<'t, Clean, LiveSlot<'j>>,
    kills: Vec<DirectoryRun<'j>>,
    tag: NewTag,
}

impl Over {
    fn check<'j, 't>(
        self,
        renamed: InodeRef,
        inode: Brand<'j>,
        slot: Brand<'t>,
        touches: &mut Touches<'_>,
    ) -> Result<CheckedOver<'j, 't>> {
        if self.inode == renamed {
            return Err(Error::NotThere(self.place));
        }
        touches.changed(self.inode, self.ctime)?;
        let tag = NewTag::take(inode.medium())?;
        let inode = Inode::live(inode, self.inode)?;
        Ok(CheckedOver {
            slot: Dentry::live(slot, self.place, &inode)?,
            kills: check_kills(&inode, &self.kills)?,
            inode,
            tag,
        })
    }
}

/// A rename.
#[must_use]
pub struct Rename<'a, 'f> {
    /// The slot of the old name.
    pub from: Place,
    /// The inode that it names.
    pub inode: InodeRef,
    /// The inode's new ctime.
    pub ctime: u64,
    /// The new name.
    pub to: Target<'a, 'f>,
}

/// Result of a rename.
#[must_use]
#[derive(Debug)]
pub struct Renamed {
    /// Place of the new name.
    pub placed: Placed,
    /// The old name's slots.
    pub slots: FreedSlots<Clean>,
    /// The inode whose name was replaced.
    pub replaced: Option<Unlinked>,
}

fn touch_all<'m>(
    m: &'m Medium,
    touches: &[Touch],
    changed: &[(InodeRef, u64)],
) -> Result<Touches<'m>> {
    let mut all = Touches::new(m);
    for touch in touches {
        all.directory(touch.dir, touch.now)?;
    }
    for (inode, ctime) in changed {
        all.changed(*inode, *ctime)?;
    }
    Ok(all)
}

/// Renames a file or directory.
///
/// Plan: `new slot: pointer to the old one, commit word | old slot's commit word = 0`. After a crash in between, both slots
/// name the inode, and the pointer says which of them is old. Without the fence the old name could go first, and the file with
/// it (SquirrelFS §3.1 and figure 2 have four). The pointer stays: it is dead once the old slot names something else, because
/// that comes with another tag. Over a name the same, with a new tag for the slot. A long name's rest and a new page's zeros
/// come first, with a fence.
///
/// # Errors
/// Before the first store: [`Error::NotThere`](crate::state::Error::NotThere), `Stale`, `TooLong`, `TagsExhausted`.
pub fn rename(m: &Medium, rename: Rename<'_, '_>, touches: &[Touch]) -> Result<Renamed> {
    let mut touches = touch_all(m, touches, &[(rename.inode, rename.ctime)])?;
    m.brands4(|i, s, t, other| {
        let inode = Inode::live(i, rename.inode)?;
        let from = Dentry::live(s, rename.from, &inode)?;
        let (to, page, killed) = match rename.to {
            Target::New(name) => {
                let opened = name.check(other)?.prepare(t).settle(m);
                let to = opened.slot.aim(&from).commit();
                (to.flush(), opened.page, None)
            }
            Target::Over(over) => {
                let over = over.check(rename.inode, other, t, &mut touches)?;
                let to = over.slot.aim(&from, over.tag).commit();
                let killed = kill(&over.inode, &over.kills);
                (to.flush(), None, killed)
            }
        };
        let stamps = touches.stamp().flush();
        let (to, page, _, _) = order(m, (to, page, killed, stamps));
        let from = fence(m, from.clear(&to).flush());
        Ok(Renamed {
            placed: Placed::new(&to, page),
            slots: from.freed(),
            replaced: to.replaced(),
        })
    })
}

/// An exchange of two names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// One slot, the inode that it names, and that inode's new ctime.
    pub one: (Place, InodeRef, u64),
    /// The other.
    pub other: (Place, InodeRef, u64),
}

/// Exchanges two names. Two names of one inode stay as they are.
///
/// Plan: `other slot: pointer to the one with the inode that it is to get, commit word | the one: pointer = 0, commit word, new
/// tag`. As a rename; the pointer has the future inode of the first slot. (SquirrelFS has no exchange.)
///
/// # Errors
/// Before the first store: [`Error::NotThere`](crate::state::Error::NotThere), `Stale`, `TagsExhausted`.
pub fn exchange(m: &Medium, exchange: Exchange, touches: &[Touch]) -> Result<()> {
    let Exchange { one, other } = exchange;
    if one.1 == other.1 {
        return Ok(());
    }
    let touches = touch_all(m, touches, &[(one.1, one.2), (other.1, other.2)])?;
    m.brands4(|i, j, s, t| {
        let inodes = (Inode::live(i, one.1)?, Inode::live(j, other.1)?);
        let from = Dentry::live(s, one.0, &inodes.0)?;
        let to = Dentry::live(t, other.0, &inodes.1)?;
        let tags = (NewTag::take(m)?, NewTag::take(m)?);
        let to = to.aim_exchange(&from, tags.0).commit().flush();
        let stamps = touches.stamp().flush();
        let (to, _) = order(m, (to, stamps));
        let _ = fence(m, from.swap(&to, tags.1).flush());
        Ok(())
    })
}

/// A rename that leaves a whiteout.
#[must_use]
pub struct Whiteout<'a, 'f> {
    /// The rename.
    pub rename: Rename<'a, 'f>,
    /// The inode that the old name is to name, without attributes.
    pub birth: Birth<'a, 'f>,
}

/// Result of a rename with a whiteout.
#[must_use]
#[derive(Debug)]
pub struct RenamedWhiteout {
    /// Place of the new name.
    pub placed: Placed,
    /// The inode under the old name.
    pub whiteout: InodeRef,
    /// The inode whose name was replaced.
    pub replaced: Option<Unlinked>,
}

/// Renames a file or directory, and leaves a new inode under its old name.
///
/// Plan: `whiteout | new slot: pointer with the whiteout, commit word | old slot: pointer = 0, whiteout, new tag`. The whiteout is durable
/// first because a mount that finishes the exchange names it.
///
/// # Errors
/// As [`rename`] and [`create`](super::create).
pub fn rename_whiteout(
    m: &Medium,
    whiteout: Whiteout<'_, '_>,
    touches: &[Touch],
) -> Result<RenamedWhiteout> {
    let Whiteout { rename, birth } = whiteout;
    let birth = birth.check_plain()?;
    let mut touches = touch_all(m, touches, &[(rename.inode, rename.ctime)])?;
    m.brands2(|i, w| {
        m.brands3(|s, t, other| {
            let inode = Inode::live(i, rename.inode)?;
            let from = Dentry::live(s, rename.from, &inode)?;
            let tag = NewTag::take(m)?;
            let (to, page, killed, left) = match rename.to {
                Target::New(name) => {
                    let name = name.check(other)?;
                    let left = birth.bear(w);
                    let (opened, left) = name.prepare(t).settle_with(m, left);
                    let to = opened.slot.aim_swap(&from, &left).commit();
                    (to.flush(), opened.page, None, left)
                }
                Target::Over(over) => {
                    let over = over.check(rename.inode, other, t, &mut touches)?;
                    let left = order(m, birth.bear(w));
                    let to = over.slot.aim_swap(&from, &left, over.tag).commit();
                    let killed = kill(&over.inode, &over.kills);
                    (to.flush(), None, killed, left)
                }
            };
            let stamps = touches.stamp().flush();
            let (to, page, _, _) = order(m, (to, page, killed, stamps));
            let _ = fence(m, from.swap(&to, tag).flush());
            Ok(RenamedWhiteout {
                whiteout: left.inode(),
                placed: Placed::new(&to, page),
                replaced: to.replaced(),
            })
        })
    })
}
