//! Two names under one tag: a rename pointer to one of them could pass for one to the other.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Free;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Dentry, NewTag, ShortName};

fn create(
    one: Dentry<'_, Clean, Free>,
    other: Dentry<'_, Clean, Free>,
    name: ShortName<'_>,
    tag: NewTag,
) {
    let one = one.name(name, tag);
    let other = other.name(name, tag);
}

fn main() {}
