//! A name in a page that the directory does not have. It is lost when the fence is over.
#![allow(unused_variables)]

use steadfast_pmfs::state::persist::{Brand, Clean};
use steadfast_pmfs::state::{DirPage, dirpage::states::Zeroed};

fn create(page: DirPage<'_, Clean, Zeroed>, brand: Brand<'_>) {
    let (page, slot) = page.open(brand);
}

fn main() {}
