//! An exchange that leaves the slot which changes last its tag. After a later exchange that brings the first inode back to it,
//! the pointer of this one comes to life.
#![allow(unused_variables)]

use steadfast_pmfs::state::Dentry;
use steadfast_pmfs::state::dentry::states::{Committed, Live, Swap};
use steadfast_pmfs::state::persist::Clean;

fn exchange<'s, 'i, 'j>(
    one: Dentry<'s, Clean, Live<'i>>,
    other: &Dentry<'_, Clean, Committed<'i, Swap<'s, 'j>>>,
) {
    let one = one.swap(other);
}

fn main() {}
