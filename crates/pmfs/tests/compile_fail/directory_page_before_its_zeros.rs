//! A new page of a directory in the fence of its zeros. A crash in between makes names of the page's old content.
#![allow(unused_variables)]

use steadfast_pmfs::state::inode::states::Live;
use steadfast_pmfs::state::persist::Clean;
use steadfast_pmfs::state::{DirPage, FreePages, Inode};

fn create(dir: &Inode<'_, Clean, Live>, free: FreePages<'_>) {
    let page = DirPage::zero(dir, free);
    let page = page.adopt(0);
}

fn main() {}
