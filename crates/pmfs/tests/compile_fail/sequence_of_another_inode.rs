//! Pages that wait for the sequence of another inode. They come alive at any time, or never.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Adoption, Descriptors, Inode, Next};

fn append<'i, 'j>(inode: &Inode<'i, Clean, Live>, next: Next<'j>, pages: Adoption<'_>) {
    let pages = Descriptors::before(inode, next).adopt(pages);
}

fn main() {}
