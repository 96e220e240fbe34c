//! New content over bytes that the file shows, before the commit. A crash leaves half of it.
#![allow(unused_variables)]

use steadfast_pmfs::state::persist::InFlight;
use steadfast_pmfs::state::{Bytes, Content, Shown};

fn write<'i>(content: Content<'i, InFlight>, to: &Shown<'i>, data: &[u8]) {
    let content = content.write(to, Bytes::Data(data));
}

fn main() {}
