//! A fence in another thread than the write-back. It does not wait for it.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::{Dirty, fence};
use steadfast_pmfs::state::{Inode, Medium};

fn create(m: &Medium, inode: Inode<'_, Dirty, Init>) {
    let inode = inode.flush();
    std::thread::scope(|scope| {
        scope.spawn(move || fence(m, inode));
    });
}

fn main() {}
