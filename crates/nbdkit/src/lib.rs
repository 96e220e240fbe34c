//! A plugin for nbdkit: a disk in a flash image, or that of a volume on an object store, for any NBD client and any virtual machine. A crash
//! returns it to the last flush that was answered or, if one was under way, to that one; with `full=flush` perhaps to a
//! later moment when an epoch was full.
//!
//! ```text
//! nbdkit nbdkit-steadfast-plugin.so image=disk.flash [full=flush|wait|wait:SECONDS]
//!     [gone=keep|flush|rollback] [readonly=true]
//! nbdkit nbdkit-steadfast-plugin.so image=s3://bucket/prefix [cache=FILE] [flush=store|cache] [keyfile=FILE] [endpoint=URL] ...
//! ```
//!
//! `steadfast serve disk` starts it so. nbdkit checks that requests lie inside the disk, and answers
//! those that do not. Its assumptions here: requests come from any number of threads, a flush
//! covers the requests answered on all connections before it came; a write with FUA is followed by a
//! flush of the whole disk before it is answered.
//!
//! | module | job |
//! |---|---|
//! | `abi` | nbdkit's side: its table of functions, pointers and numbers; the only `unsafe` code |
//! | `plugin` | ours: settings, the open disk, its clients |

mod abi;
mod plugin;
