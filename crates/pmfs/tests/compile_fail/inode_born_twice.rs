//! A free inode that is used for two births.
#![allow(unused_variables)]

use steadfast_pmfs::state::persist::Brand;
use steadfast_pmfs::state::{FreeInode, Inode};

fn create<'i, 'j>(one: Brand<'i>, other: Brand<'j>, free: FreeInode<'_>) {
    let one = Inode::free(one, free);
    let other = Inode::free(other, free);
}

fn main() {}
