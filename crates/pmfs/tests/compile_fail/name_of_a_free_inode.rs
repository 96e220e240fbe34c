//! A name of an inode that was never written (SquirrelFS §3.1, rule 1).
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Named;
use steadfast_pmfs::state::inode::states::Free;
use steadfast_pmfs::state::persist::{Clean, Dirty};
use steadfast_pmfs::state::{Dentry, Inode};

fn create(slot: Dentry<'_, Dirty, Named>, inode: Inode<'_, Clean, Free>) {
    let slot = slot.commit(&inode);
}

fn main() {}
