//! A rename from one slot that clears another one, of the same inode.
#![allow(unused_variables)]

use steadfast_pmfs::state::Dentry;
use steadfast_pmfs::state::dentry::states::{Committed, From, Live};
use steadfast_pmfs::state::persist::Clean;

fn rename<'s, 'o, 'i>(
    new: &Dentry<'_, Clean, Committed<'i, From<'s>>>,
    other: Dentry<'o, Clean, Live<'i>>,
) {
    let other = other.clear(new);
}

fn main() {}
