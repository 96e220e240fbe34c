//! The page of one inode dies with the commit of another one.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Descriptors, Extent, Inode, Next};

fn punch<'i, 'j>(
    inode: &Inode<'i, Clean, Live>,
    other: &Inode<'j, Clean, Live>,
    next: Next<'i>,
    hole: Extent,
) {
    let hole = other.owned(hole).unwrap();
    let marks = Descriptors::before(inode, next).die(&hole);
}

fn main() {}
