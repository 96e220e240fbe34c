//! Volumes on an object store, in real threads.

mod cached;
mod coded;
mod device;
mod follow;
mod grow;
mod lease;
mod probe;
mod promote;
mod reads;
#[path = "../support/mod.rs"]
mod support;
mod writer;
