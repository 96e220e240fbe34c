//! Streams in namespaces. A mount namespace copies the mounts of all neighbours, whose servers then go on after an unmount: a
//! program of its own.

#[path = "../common/mod.rs"]
mod common;
mod streams;
mod streams_namespaces;
