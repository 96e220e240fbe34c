//! A page that is free because another inode's change is durable.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Changed;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Before, Descriptors, FreeSpace, Inode};

fn punch<'i, 'j>(
    space: &FreeSpace,
    inode: &Inode<'j, Clean, Changed>,
    pages: Descriptors<'i, Clean, Before>,
) {
    space.add(pages.freed(inode));
}

fn main() {}
