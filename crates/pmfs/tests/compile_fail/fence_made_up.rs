//! The state after a fence, without a fence.
#![allow(unused_variables)]

use steadfast_pmfs::state::Inode;
use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::{Clean, Fenced, InFlight, Witness};

fn forge<'i>(inode: Inode<'i, InFlight, Init>) -> Inode<'i, Clean, Init> {
    inode.cleaned(Witness(()))
}

fn main() {}
