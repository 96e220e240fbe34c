//! The pointer of a rename after the commit word. A crash in between leaves two names, and no word says which one is old.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::{Live, Named};
use steadfast_pmfs::state::persist::{Clean, Dirty};
use steadfast_pmfs::state::{Dentry, Inode, inode::states as inode};

fn rename<'i>(
    new: Dentry<'_, Dirty, Named>,
    old: Dentry<'_, Clean, Live<'i>>,
    inode: &Inode<'i, Clean, inode::Live>,
) {
    let new = new.commit(inode);
    let new = new.aim(&old);
}

fn main() {}
