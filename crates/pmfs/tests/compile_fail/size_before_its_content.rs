//! A new size in the same fence as the content below it. A crash in between shows bytes of another file.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::{Clean, InFlight};
use steadfast_pmfs::state::{Attributes, Content, Inode, Next, Ready, Times};

fn append<'i>(
    inode: Inode<'i, Clean, Live>,
    next: Next<'i>,
    new: &Attributes,
    content: Content<'i, InFlight>,
) {
    let ready = Ready {
        content: Some(content),
        ..Ready::default()
    };
    let inode = inode.commit(next, new, &Times::default(), &ready, None);
}

fn main() {}
