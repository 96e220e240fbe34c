//! Pages for the free space that no call has freed.
#![allow(unused_variables)]

use steadfast_pmfs::state::{FreeSpace, Freed, PageRun};

fn leak(space: &FreeSpace, pages: Vec<PageRun>) {
    space.add(Freed {
        pages,
        inode: None,
        _durable: std::marker::PhantomData,
    });
}

fn main() {}
