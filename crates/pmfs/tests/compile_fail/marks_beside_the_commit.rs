//! The deaths of pages within the file in the fence of the commit word. A crash in between shows two pages at one offset.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::{Clean, fence};
use steadfast_pmfs::state::{Attributes, Descriptors, Inode, Medium, Next, Owned, Ready, Times};

fn punch<'i>(
    m: &Medium,
    inode: Inode<'i, Clean, Live>,
    next: Next<'i>,
    new: &Attributes,
    hole: &Owned<'i>,
) {
    let marks = Descriptors::before(&inode, next).die(hole).flush();
    let inode = inode.commit(
        next,
        new,
        &Times::default(),
        &Ready::default(),
        Some(&marks),
    );
    let (inode, marks) = fence(m, (inode.flush(), marks));
}

fn main() {}
