//! A new size in the fence of the descriptors of its pages: the bug that the paper's authors made in `write`, which set the
//! back pointer of a new page and forgot the fence. A crash leaves a size without pages (SquirrelFS §4.2).
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{Adoption, Attributes, Descriptors, Inode, Next, Ready, Times};

fn append<'i>(
    inode: Inode<'i, Clean, Live>,
    next: Next<'i>,
    new: &Attributes,
    pages: Adoption<'_>,
) {
    let pages = Descriptors::before(&inode, next).adopt(pages).flush();
    let ready = Ready {
        descriptors: Some(pages),
        ..Ready::default()
    };
    let inode = inode.commit(next, new, &Times::default(), &ready, None);
}

fn main() {}
