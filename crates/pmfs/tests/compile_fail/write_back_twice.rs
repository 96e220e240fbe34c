//! A second write-back of a line that nothing was stored to.
#![allow(unused_variables)]

use steadfast_pmfs::state::Inode;
use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::Dirty;

fn create(inode: Inode<'_, Dirty, Init>) {
    let inode = inode.flush().flush();
}

fn main() {}
