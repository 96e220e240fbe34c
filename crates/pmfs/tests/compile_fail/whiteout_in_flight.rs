//! A rename that leaves a whiteout which is not durable. A mount that finishes the exchange would name an inode that was never
//! born.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::{Live, Named};
use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::{Clean, Dirty, InFlight};
use steadfast_pmfs::state::{Dentry, Inode};

fn rename<'i>(
    new: Dentry<'_, Dirty, Named>,
    old: &Dentry<'_, Clean, Live<'i>>,
    whiteout: &Inode<'_, InFlight, Init>,
) {
    let new = new.aim_swap(old, whiteout);
}

fn main() {}
