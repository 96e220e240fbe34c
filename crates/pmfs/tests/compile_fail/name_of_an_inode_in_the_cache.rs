//! A name of an inode whose lines are not written back. The fence makes the name durable, and the inode stays in the cache.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Named;
use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::{Dirty, fence};
use steadfast_pmfs::state::{Dentry, Inode, Medium};

fn create(m: &Medium, slot: Dentry<'_, Dirty, Named>, inode: Inode<'_, Dirty, Init>) {
    let slot = slot.commit(&inode);
    let slot = fence(m, slot.flush());
}

fn main() {}
