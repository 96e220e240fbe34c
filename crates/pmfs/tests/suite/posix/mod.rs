//! Calls on the file system on persistent memory: their effects, their costs, and many at once. The files beside the block file system's tests are those that do
//! not depend on how a volume is stored: both file systems pass them.
#![allow(missing_docs, unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../../fs/tests/suite/namespace/acl.rs"]
mod acl;
#[path = "../../../../fs/tests/suite/namespace/attrs.rs"]
mod attrs;
mod common;
mod data;
mod dirs;
mod down;
mod fences;
#[path = "../../../../fs/tests/suite/namespace/flags.rs"]
mod flags;
mod full;
mod model;
#[path = "../../../../fs/tests/suite/namespace/names.rs"]
mod names;
#[path = "../../../../fs/tests/suite/namespace/orphans.rs"]
mod orphans;
#[path = "../../../../fs/tests/suite/namespace/rename.rs"]
mod rename;
mod threads;
mod xattrs;
