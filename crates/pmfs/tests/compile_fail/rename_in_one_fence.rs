//! Both steps of a rename in one fence. If the second is durable and the first is not, the file has no name (SquirrelFS §3.1,
//! rule 3).
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::{Live, Named};
use steadfast_pmfs::state::persist::{Clean, Dirty, fence};
use steadfast_pmfs::state::{Dentry, Medium};

fn rename<'i>(m: &Medium, new: Dentry<'_, Dirty, Named>, old: Dentry<'_, Clean, Live<'i>>) {
    let new = new.aim(&old).commit().flush();
    let old = old.clear(&new).flush();
    let (new, old) = fence(m, (new, old));
}

fn main() {}
