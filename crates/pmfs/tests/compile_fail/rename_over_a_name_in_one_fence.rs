//! Both steps of a rename over another inode's name in one fence. If the second is durable and the first is not, the file has
//! no name.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Live;
use steadfast_pmfs::state::persist::{Clean, fence};
use steadfast_pmfs::state::{Dentry, Medium, NewTag};

fn rename<'i, 'j>(
    m: &Medium,
    new: Dentry<'_, Clean, Live<'j>>,
    old: Dentry<'_, Clean, Live<'i>>,
    tag: NewTag,
) {
    let new = new.aim(&old, tag).commit().flush();
    let old = old.clear(&new).flush();
    let (new, old) = fence(m, (new, old));
}

fn main() {}
