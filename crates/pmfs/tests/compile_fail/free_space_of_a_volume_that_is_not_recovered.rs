//! A free space made from a mount's findings, before its repairs are durable. A page may still be named by a descriptor that a
//! repair would have cleared.
#![allow(unused_variables)]

use steadfast_pmfs::state::{FreeSpace, Medium, Survey};

fn mount(m: &Medium, survey: Survey) -> FreeSpace {
    FreeSpace::new(m, survey)
}

fn main() {}
