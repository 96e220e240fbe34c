//! A file system on persistent memory.
pub mod layout;
mod options;
pub mod xattr;

pub use options::MountOptions;
