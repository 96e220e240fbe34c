//! The command as its users run it: one program, so that the stack is linked once.

mod atime;
#[path = "../common/mod.rs"]
mod common;
mod dump;
mod exercise;
mod failover;
mod formats;
mod freeze;
mod ftl;
mod habits;
mod handles;
mod memory;
mod modes;
mod nfs;
#[path = "../common/place.rs"]
mod place;
mod private;
mod put;
mod relaxed;
mod serve_disk;
mod sharing;
mod shutdown;
mod side_by_side;
mod store;
mod store_cache;
mod store_copy;
mod store_disk;
mod stream;
#[path = "../table/mod.rs"]
mod table;
mod transport;
mod volume;

use common::programs;
