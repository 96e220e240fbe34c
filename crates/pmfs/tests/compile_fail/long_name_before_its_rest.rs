//! The first slot of a long name while the others are in flight. A crash in between shows the rest of an older name.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Free;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Dentry, LongName, NewTag};

fn create(slot: Dentry<'_, Clean, Free>, name: &LongName<'_>, tag: NewTag) {
    let rest = slot.continue_name(name).flush();
    let slot = rest.name(name, tag);
}

fn main() {}
