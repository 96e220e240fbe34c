//! A symlink whose target is in flight when it is named: non-temporal stores have no order at all before the fence.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Named;
use steadfast_pmfs::state::inode::states::Bodied;
use steadfast_pmfs::state::persist::{Clean, Dirty, InFlight};
use steadfast_pmfs::state::{Before, Content, Dentry, Descriptors, Inode};

fn symlink<'i>(
    slot: Dentry<'_, Dirty, Named>,
    inode: Inode<'i, Clean, Bodied>,
    target: Descriptors<'i, Clean, Before>,
    content: Content<'i, InFlight>,
) {
    let inode = inode.complete(&target, &content);
    let slot = slot.commit(&inode);
}

fn main() {}
