//! A call that returns an object in flight as if it were durable.
#![allow(unused_variables)]

use steadfast_pmfs::state::Inode;
use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::{Clean, Dirty};

fn create<'i>(inode: Inode<'i, Dirty, Init>) -> Inode<'i, Clean, Init> {
    inode.flush()
}

fn main() {}
