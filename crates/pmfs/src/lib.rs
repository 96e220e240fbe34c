//! A file system on persistent memory.

pub mod error;
pub mod index;
pub mod layout;
pub mod mkfs;
mod options;
pub mod superblock;
pub mod table;
pub mod words;
pub mod xattr;

pub use options::MountOptions;
pub mod state;
