//! Pages that may share the fence of the commit, without the proof that they show nothing.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Descriptors, Inode, Next, Owned};

fn truncate<'i>(inode: &Inode<'i, Clean, Live>, next: Next<'i>, pages: &Owned<'i>) {
    let marks = Descriptors::beside(inode, next).trim(pages);
}

fn main() {}
