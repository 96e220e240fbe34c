//! A file system on persistent memory.

pub mod error;
pub mod fsck;
pub mod grow;
pub mod index;
pub mod inspect;
pub mod layout;
pub mod mkfs;
pub mod mount;
mod options;
pub mod state;
pub mod superblock;
pub mod table;
pub mod words;
pub mod xattr;

pub use options::MountOptions;
