//! The volatile indexes of a mounted volume: the names of a directory, and the places of a file's pages.
//!
//! Promise: an index agrees with the medium. It is built by a mount and follows each call, after the call's last fence. The
//! medium alone is authoritative; nothing of an index is ever written to it.

pub mod dir;
pub mod file;
pub mod name;
