//! Pages for the free space without the evidence that they are free.
#![allow(unused_variables)]

use steadfast_pmfs::state::{FreeSpace, PageRun};

fn leak(space: &FreeSpace, pages: PageRun) {
    space.add(pages);
}

fn main() {}
