//! The trusted part of `state`: objects on the medium in their states, and the tokens of free and freed ones.
//!
//! Only the files of this module can reach [`Region::store`](steadfast_pm::Region::store); the calls next door cannot.

mod bits;
pub(super) mod content;
pub mod dentry;
pub mod dirpage;
pub(super) mod free;
pub mod inode;
pub mod line;
pub(super) mod medium;
pub(super) mod name;
pub(super) mod pages;
pub mod persist;
pub(super) mod recover;
pub(super) mod second_line;
pub(super) mod slots;
pub(super) mod superblock;
pub(super) mod times;
pub(super) mod token;
