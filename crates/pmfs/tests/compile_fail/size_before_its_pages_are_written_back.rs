//! A fence over descriptors that are in the cache, before the size that needs them (SquirrelFS §4.2).
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::{Clean, fence};
use steadfast_pmfs::state::{Adoption, Descriptors, Inode, Medium, Next};

fn append<'i>(m: &Medium, inode: Inode<'i, Clean, Live>, next: Next<'i>, pages: Adoption<'_>) {
    let pages = Descriptors::before(&inode, next).adopt(pages);
    let pages = fence(m, pages);
}

fn main() {}
