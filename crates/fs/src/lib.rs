//! The Steadfast block file system: inodes, extents, directories, allocation and
//! delayed pages on top of `steadfast-journal`, offered as a
//! [`FileSystem`](steadfast_vfs::FileSystem).
//!
//! ```
//! use std::sync::Arc;
//! use steadfast_block::MemDevice;
//! use steadfast_fs::{Fs, MkfsOptions, MountOptions, mkfs};
//! use steadfast_vfs::{Caller, FileSystem};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(MemDevice::new(4096));
//! mkfs(&*device, &MkfsOptions::default(), &mut |_, _| {})?;
//! let (fs, _) = Fs::mount(device, &MountOptions::default())?;
//! let me = Caller::root();
//! let dir = fs.mkdir(&me, fs.root(), b"dir", 0o755)?;
//! assert_eq!(fs.lookup(&me, fs.root(), b"dir")?.ino, dir.ino);
//! fs.unmount()?;
//! # Ok(())
//! # }
//! ```
//!
//! More is in `examples/volume.rs`.
//!
//! Every change is one `work::Work`: an operation of the journal plus the blocks
//! and inode slots that it claimed. It becomes visible as a whole at its commit, or
//! leaves no trace. Everything decided from metadata is read from the journal's
//! current image; no decoded metadata is kept between calls.
//!
//! Locks, in the order in which they are taken:
//!
//! 1. `Mounted::moves`, by renames that move a directory to another parent; the turn of appends to one file;
//! 2. the journal's operation (`Work::begin`), which may wait for log space and commits;
//! 3. inode locks (`inode::Inode`), in the order of their numbers; never while waiting for a commit;
//! 4. allocator and table locks, held for moments.
//!
//! Contracts: [`Contract`]; ccfs §3 and §4.

mod alloc;
mod allocate;
mod btree;
mod contract;
mod costs;
mod data;
mod dir;
mod error;
mod extents;
mod features;
mod fsck;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod gaps;
mod grow;
mod handle;
mod in_place;
mod inode;
mod inspect;
pub mod layout;
mod ledger;
mod mkfs;
mod mount;
mod mounted;
mod notes;
mod ops;
mod options;
mod orphan;
mod out_of_place;
mod pages;
mod reader;
mod scrub;
mod slots;
mod streams;
mod superblock;
#[cfg(test)]
mod testing;
mod trim;
mod truncate;
mod work;
mod writeback;
mod xattr;
mod zeroed;

pub use contract::Contract;
pub use error::Error;
pub use fsck::{
    Finding, FsckOptions, FsckReport, Outcome, Place, Problem, Progress, ProgressSink, Severity,
    Usage, fsck,
};
pub use grow::{Grown, grow};
pub use handle::Fs;
pub use inspect::{
    BlockPlace, EntryShown, ExtentAt, InodeShown, Inspector, JournalState, LeafShown, TreeNode,
    VolumeInfo, VolumeMap, info,
};
pub use mkfs::{Made, MkfsOptions, mkfs};
pub use options::{Faults, MountOptions};
pub use steadfast_journal::{EPOCH_BLOCKS_MIN, Recovery};
pub use trim::{TrimRange, Trimmed};
