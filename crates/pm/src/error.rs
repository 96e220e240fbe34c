//! Why a region cannot be opened or created.

use std::io;
use std::path::PathBuf;

/// Shorthand for results with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a region cannot be opened or created. Every message names the file, the cause and, where there is one, the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}
