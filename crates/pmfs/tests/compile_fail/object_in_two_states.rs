//! An object that is used after its transition. It has one state at a time.
#![allow(unused_variables)]

use steadfast_pmfs::state::Dentry;
use steadfast_pmfs::state::dentry::states::Live;
use steadfast_pmfs::state::persist::Clean;

fn remove<'i>(slot: Dentry<'_, Clean, Live<'i>>) {
    let gone = slot.remove();
    let again = slot.remove();
}

fn main() {}
