//! Crash-safe steps for programs of all kinds, on any Linux file system.
//!
//! [`atomic_replace`] gives a file new content so that, in any event (a power cut, a full
//! disk, a signal), the file has its old content or the new one, never a mixture, and the new
//! one for certain once the call has returned (DFSCQ, figure 1).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("settings");
//! steadfast::atomic_replace(&path, b"colour = blue\n")?;
//! # assert_eq!(std::fs::read(&path)?, b"colour = blue\n");
//! # Ok(())
//! # }
//! ```
//!
//! Content that comes piece by piece is written to a [`Replacement`]. The order of the
//! steps is in [`protocol`], apart from the system calls in `posix`, so that the very same
//! order is what `steadfast crash put` explores.

mod posix;
pub mod protocol;

pub use posix::{ReplaceError, Replacement, Step, atomic_replace, remove_leftovers};
