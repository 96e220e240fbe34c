//! Names, attributes and directories of the file system, on a device in memory.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod accessed;
mod acl;
mod attrs;
mod beside;
mod big;
mod common;
mod corners;
mod cuts;
mod flags;
mod full;
mod hostile;
mod model;
mod names;
mod orphans;
mod orphans_stored;
mod rename;
mod space;
mod stored;
mod stream_books;
mod streams;
mod threads;
mod xattrs;
