//! A rename over a name that leaves the slot its tag. An old pointer to the slot comes to life, and the next mount takes the
//! name away.
#![allow(unused_variables)]

use steadfast_pmfs::state::Dentry;
use steadfast_pmfs::state::dentry::states::Live;
use steadfast_pmfs::state::persist::Clean;

fn rename<'i, 'j>(new: Dentry<'_, Clean, Live<'j>>, old: &Dentry<'_, Clean, Live<'i>>) {
    let new = new.aim(old);
}

fn main() {}
