//! An inline set of attributes in the fence of the mode word that announces it. They are in two lines.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::{Clean, InFlight};
use steadfast_pmfs::state::{Attributes, Inline, Inode, Next, Ready, Times};

fn set<'i>(
    inode: Inode<'i, Clean, Live>,
    next: Next<'i>,
    new: &Attributes,
    inline: Inline<'i, InFlight>,
) {
    let ready = Ready {
        inline: Some(inline),
        ..Ready::default()
    };
    let inode = inode.commit(next, new, &Times::default(), &ready, None);
}

fn main() {}
