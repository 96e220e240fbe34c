//! A page that is free while the mark of its death is in flight.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Changed;
use steadfast_pmfs::state::persist::{Clean, InFlight};
use steadfast_pmfs::state::{Beside, Descriptors, FreeSpace, Inode};

fn truncate<'i>(
    space: &FreeSpace,
    inode: &Inode<'i, Clean, Changed>,
    pages: Descriptors<'i, InFlight, Beside>,
) {
    space.add(pages.freed(inode));
}

fn main() {}
