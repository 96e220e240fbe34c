//! An object that is put into a state by hand.
#![allow(unused_variables)]

use steadfast_pmfs::state::Inode;
use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::{Clean, Dirty};

fn forge<'i>(inode: Inode<'i, Dirty, Init>) -> Inode<'i, Clean, Init> {
    Inode {
        m: inode.m,
        inode: inode.inode,
        at: inode.at,
        _brand: inode._brand,
        _state: std::marker::PhantomData,
    }
}

fn main() {}
