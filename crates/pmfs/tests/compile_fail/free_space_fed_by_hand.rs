//! Pages for the free space that no call has freed.
#![allow(unused_variables)]

use steadfast_pmfs::state::{FreeSpace, Freed, PageRuns};

fn leak(space: &FreeSpace, pages: PageRuns) {
    space.add(Freed {
        pages,
        inode: None,
        _durable: std::marker::PhantomData,
    });
}

fn main() {}
