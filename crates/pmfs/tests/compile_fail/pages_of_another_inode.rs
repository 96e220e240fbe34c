//! The commit of one inode on the evidence that the pages of another one are durable.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Attributes, Before, Descriptors, Inode, Next, Ready, Times};

fn append<'i, 'j>(
    inode: Inode<'i, Clean, Live>,
    next: Next<'i>,
    new: &Attributes,
    pages: Descriptors<'j, Clean, Before>,
) {
    let ready = Ready {
        descriptors: Some(pages),
        ..Ready::default()
    };
    let inode = inode.commit(next, new, &Times::default(), &ready, None);
}

fn main() {}
