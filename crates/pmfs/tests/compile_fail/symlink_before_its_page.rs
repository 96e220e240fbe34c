//! A symlink whose target's descriptor is in flight when it is named. A crash in between leaves a link without a target.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Named;
use steadfast_pmfs::state::inode::states::Bodied;
use steadfast_pmfs::state::persist::{Clean, Dirty, InFlight};
use steadfast_pmfs::state::{Before, Content, Dentry, Descriptors, Inode};

fn symlink<'i>(
    slot: Dentry<'_, Dirty, Named>,
    inode: Inode<'i, Clean, Bodied>,
    target: Descriptors<'i, InFlight, Before>,
    content: Content<'i, Clean>,
) {
    let inode = inode.complete(&target, &content);
    let slot = slot.commit(&inode);
}

fn main() {}
