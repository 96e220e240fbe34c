//! A fence over stores that are in the cache: they stay there.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::{Clean, Dirty, fence};
use steadfast_pmfs::state::{Inode, Medium};

fn create<'i>(m: &Medium, inode: Inode<'i, Dirty, Init>) -> Inode<'i, Clean, Init> {
    fence(m, inode)
}

fn main() {}
