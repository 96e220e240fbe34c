//! A page that is free while the commit that frees it is in flight. Its next owner's content could be durable before the commit,
//! and show in the old file (SquirrelFS §3.1, rule 2).
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Changed;
use steadfast_pmfs::state::persist::{Clean, Dirty};
use steadfast_pmfs::state::{Before, Descriptors, FreeSpace, Inode};

fn punch<'i>(
    space: &FreeSpace,
    inode: Inode<'i, Dirty, Changed>,
    pages: Descriptors<'i, Clean, Before>,
) {
    let inode = inode.flush();
    space.add(pages.freed(&inode));
}

fn main() {}
