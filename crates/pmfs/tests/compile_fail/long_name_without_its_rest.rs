//! The first slot of a long name without the others. The rest of an older name shows instead.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Free;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Dentry, LongName, NewTag};

fn create(slot: Dentry<'_, Clean, Free>, name: LongName<'_>, tag: NewTag) {
    let slot = slot.name(name, tag);
}

fn main() {}
