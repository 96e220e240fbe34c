//! Both steps of an exchange in one fence. If the second is durable and the first is not, one of the files is lost.
#![allow(unused_variables)]

use steadfast_pmfs::state::dentry::states::Live;
use steadfast_pmfs::state::persist::{Clean, fence};
use steadfast_pmfs::state::{Dentry, Medium, NewTag};

fn exchange<'i, 'j>(
    m: &Medium,
    one: Dentry<'_, Clean, Live<'i>>,
    other: Dentry<'_, Clean, Live<'j>>,
    tags: [NewTag; 2],
) {
    let [first, second] = tags;
    let other = other.aim_exchange(&one, first).commit().flush();
    let one = one.swap(&other, second).flush();
    let (one, other) = fence(m, (one, other));
}

fn main() {}
