//! A symlink that is named on the evidence that another one's target is durable.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Bodied;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Before, Content, Descriptors, Inode};

fn symlink<'i, 'j>(
    inode: Inode<'i, Clean, Bodied>,
    target: &Descriptors<'j, Clean, Before>,
    content: &Content<'j, Clean>,
) {
    let inode = inode.complete(target, content);
}

fn main() {}
