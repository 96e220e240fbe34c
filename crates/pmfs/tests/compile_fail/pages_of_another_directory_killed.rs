//! The removal of one directory kills the pages of another one.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Descriptors, Inode, PageRun};

fn rmdir<'i, 'j>(gone: &Inode<'i, Clean, Live>, other: &Inode<'j, Clean, Live>, run: PageRun) {
    let run = other.directory_run(run).unwrap();
    let killed = Descriptors::killed(gone).kill(&run);
}

fn main() {}
