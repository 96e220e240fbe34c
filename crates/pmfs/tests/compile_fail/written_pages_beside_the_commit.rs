//! Pages with content that come alive in the fence of the commit. A crash in between leaves a size without pages.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Adoption, Descriptors, Inode, Next};

fn append<'i>(inode: &Inode<'i, Clean, Live>, next: Next<'i>, pages: Adoption<'_>) {
    let pages = Descriptors::beside(inode, next).adopt(pages);
}

fn main() {}
