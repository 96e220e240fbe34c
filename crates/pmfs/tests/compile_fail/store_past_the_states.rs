//! A word that is stored without any state.
#![allow(unused_variables)]

use steadfast_pmfs::state::Medium;

fn poke(m: &Medium) {
    m.region.store(4096, 1);
}

fn main() {}
