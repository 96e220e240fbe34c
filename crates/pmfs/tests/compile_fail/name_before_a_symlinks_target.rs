//! A symlink's name in the fence of its inline target. A crash in between leaves a link without a target.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Named;
use steadfast_pmfs::state::inode::states::Bodied;
use steadfast_pmfs::state::persist::{Dirty, InFlight, fence};
use steadfast_pmfs::state::{Dentry, Inode, Medium};

fn symlink(m: &Medium, slot: Dentry<'_, Dirty, Named>, inode: Inode<'_, InFlight, Bodied>) {
    let slot = slot.commit(&inode);
    let (slot, inode) = fence(m, (slot.flush(), inode));
}

fn main() {}
