//! An identity that does not come from the medium.
#![allow(unused_variables)]

use steadfast_pmfs::state::Medium;
use steadfast_pmfs::state::persist::Brand;

fn forge(m: &Medium) {
    let brand = Brand::new(m);
}

fn main() {}
