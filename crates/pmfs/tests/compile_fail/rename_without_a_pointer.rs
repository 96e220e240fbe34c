//! A rename that names the inode anew without a pointer, and then clears the old name. A crash in between leaves two names.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::{Live, Named};
use steadfast_pmfs::state::persist::{Clean, Dirty, fence};
use steadfast_pmfs::state::{Dentry, Inode, Medium, inode::states as inode};

fn rename<'i>(
    m: &Medium,
    new: Dentry<'_, Dirty, Named>,
    old: Dentry<'_, Clean, Live<'i>>,
    inode: &Inode<'i, Clean, inode::Live>,
) {
    let new = fence(m, new.commit(inode).flush());
    let old = old.clear(&new);
}

fn main() {}
