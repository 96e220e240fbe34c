//! Two objects with one identity.
#![allow(unused_variables)]

use steadfast_pmfs::layout::InodeRef;
use steadfast_pmfs::state::{Inode, Medium};

fn forge(m: &Medium, one: InodeRef, other: InodeRef) {
    m.brand(|brand| {
        let one = Inode::live(brand, one);
        let other = Inode::live(brand, other);
    });
}

fn main() {}
