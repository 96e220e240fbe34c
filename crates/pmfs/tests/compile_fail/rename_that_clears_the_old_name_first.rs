//! A rename that removes the old name and then makes the new one. A crash in between loses the file.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::{Live, Named};
use steadfast_pmfs::state::persist::{Clean, Dirty, fence};
use steadfast_pmfs::state::{Dentry, Medium};

fn rename<'i>(m: &Medium, new: Dentry<'_, Dirty, Named>, old: Dentry<'_, Clean, Live<'i>>) {
    let old = fence(m, old.remove().flush());
    let new = new.aim(&old);
}

fn main() {}
