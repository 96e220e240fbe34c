//! The front end on a real mount.

mod acl;
#[path = "../common/mod.rs"]
mod common;
mod flags;
mod mount;
mod session;
mod streams_c;
mod streams_control;
mod streams_cost;
mod sync;
mod traffic;
mod write_back;
