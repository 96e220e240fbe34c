//! A second fence for an object that is durable.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::{InFlight, fence};
use steadfast_pmfs::state::{Inode, Medium};

fn create(m: &Medium, inode: Inode<'_, InFlight, Init>) {
    let inode = fence(m, inode);
    let inode = fence(m, inode);
}

fn main() {}
