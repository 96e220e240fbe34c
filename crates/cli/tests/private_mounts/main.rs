//! Tests that make mount namespaces. Such a namespace copies the mounts of all neighbours, whose servers then go on after
//! an unmount: these tests have a program of their own, and run one after the other (`common::alone`).

#[path = "../common/mod.rs"]
mod common;
mod features;
mod health;
mod helper;
mod manners;
mod server_end;
mod stream_show;

use common::programs;
