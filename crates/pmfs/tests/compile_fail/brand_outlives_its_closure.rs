//! An identity that is carried out of its closure.
#![allow(unused_variables)]

use steadfast_pmfs::layout::InodeRef;
use steadfast_pmfs::state::{Inode, Medium};

fn forge(m: &Medium, inode: InodeRef) {
    let inode = m.brand(|brand| Inode::live(brand, inode));
}

fn main() {}
