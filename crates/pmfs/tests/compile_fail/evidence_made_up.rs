//! A type of one's own as evidence that an inode may be named.
#![allow(unused_variables)]

use steadfast_pmfs::layout::InodeRef;
use steadfast_pmfs::state::Nameable;

struct Trust(InodeRef);

impl Nameable<'_> for Trust {
    fn named(&self) -> InodeRef {
        self.0
    }
}

fn main() {}
