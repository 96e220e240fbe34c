//! The second step of a rename after the first of an exchange. The other file is lost.
#![allow(unused_variables)]

use steadfast_pmfs::state::Dentry;
use steadfast_pmfs::state::dentry::states::{Committed, Live, Swap};
use steadfast_pmfs::state::persist::Clean;

fn exchange<'s, 'i, 'j>(
    one: Dentry<'s, Clean, Live<'i>>,
    other: &Dentry<'_, Clean, Committed<'i, Swap<'s, 'j>>>,
) {
    let one = one.clear(other);
}

fn main() {}
