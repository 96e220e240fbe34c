//! Executable specifications: the stack's promises, as plain values that run.
//!
//! - [`tree`]: the POSIX file tree that every operation is defined on;
//! - [`op`]: operations as values with a one-line text form, run on the tree or on
//!   any file system;
//! - [`snapshot`]: the observable state, comparable, with readable differences;
//! - [`ordered`]: the contracts `ordered` and `sync`: the trees that a crash may leave;
//! - [`prefix`]: the contract `metadata-prefix`, likewise: tree sequences;
//! - [`relaxed`]: the contract `relaxed`, likewise: a kernel keeps written pages;
//! - [`flushes`]: the contracts `flush=store` and `flush=cache`: the flushes that a disk may return to;
//! - [`log`]: the logical log: the disks that a crash of a journal may leave;
//! - [`memfs`]: the tree as a file system;
//! - [`below`]: one directory of a file system as a file system of its own;
//! - [`workload`]: operations to test with.
//!
//! Nothing here does I/O or knows how the stack works inside: the model is short enough
//! to be read and trusted, the stack is compared with it.

pub mod below;
pub mod data;
pub mod flushes;
mod hash;
mod kept;
pub mod log;
pub mod memfs;
pub mod op;
pub mod ordered;
mod pages;
mod pmap;
pub mod prefix;
pub mod relaxed;
pub mod snapshot;
pub mod tree;
pub mod workload;

pub use below::Below;
pub use hash::Hasher128;
pub use kept::{Kept, Store};
pub use memfs::{MemFs, TestClock};
pub use op::{Call, Data, Handles, Op, OpResult, Outcome, Path, Seen, Step, Target};
pub use ordered::{Cut, History, Rules, Violation};
pub use pmap::PMap;
pub use prefix::{PrefixHistory, PrefixViolation, TreeSequence};
pub use relaxed::{RelaxedHistory, RelaxedViolation};
pub use snapshot::{Digest, Observe, Snapshot};
pub use tree::{Limits, ROOT, Tree};
