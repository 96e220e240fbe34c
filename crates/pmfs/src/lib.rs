//! A file system on persistent memory.
pub mod layout;
