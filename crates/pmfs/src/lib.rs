//! A file system on persistent memory.

pub mod error;
mod fs;
pub mod fsck;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod gate;
pub mod grow;
pub mod index;
pub mod inspect;
pub mod layout;
pub mod mkfs;
pub mod mount;
mod ops;
mod options;
pub mod state;
pub mod superblock;
pub mod table;
mod threads;
pub mod words;
pub mod xattr;

pub use error::Error;
pub use fs::PmFs;
pub use ops::{FILE_BYTES_MAX, LINKS_MAX};
pub use options::MountOptions;
