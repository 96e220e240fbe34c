//! A slot's commit word before its name. A crash in between shows the inode under the name that was in the slot before
//! (SquirrelFS §3.3).
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Free;
use steadfast_pmfs::state::inode::states::Init;
use steadfast_pmfs::state::persist::{Clean, InFlight};
use steadfast_pmfs::state::{Dentry, Inode};

fn create(slot: Dentry<'_, Clean, Free>, inode: &Inode<'_, InFlight, Init>) {
    let slot = slot.commit(inode);
}

fn main() {}
