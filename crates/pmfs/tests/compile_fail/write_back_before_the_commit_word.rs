//! A write-back of a slot that has no commit word: the line would have to go twice.
#![allow(unused_variables)]

use steadfast_pmfs::state::Dentry;
use steadfast_pmfs::state::dentry::states::Named;
use steadfast_pmfs::state::persist::Dirty;

fn create(slot: Dentry<'_, Dirty, Named>) {
    let slot = slot.flush();
}

fn main() {}
