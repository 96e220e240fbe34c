//! Slots that are free while the removal of their name is in flight. And an inode that has lost its last name before it has:
//! in the paper's first `rename`, a link count went down before the name (SquirrelFS §4.2).
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Live;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Dentry, Orphan, SlotMap};

fn unlink<'i>(slots: &mut SlotMap, slot: Dentry<'_, Clean, Live<'i>>) -> Orphan {
    let slot = slot.remove().flush();
    let (freed, unlinked) = slot.freed();
    slots.add(freed);
    unlinked.last()
}

fn main() {}
