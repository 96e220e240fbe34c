//! Real file systems over a recording disk: models are compared with them, findings confirmed on them.
//!
//! A disk is a file served by FUSE that logs writes and flushes (`shelf`), under a loop device, with a file system of
//! the kernel on it (`stage`). The log gives images that a power cut could leave ([`disk`]); each is mounted, so that
//! the file system recovers, and its tree is read (`look`). [`mod@calibrate`] checks the trees of many short
//! sequences of calls against a model ([`allow`]), [`mod@confirm`] looks for a finding among the trees of a recorded
//! run.
//!
//! All of this needs root. Mounts live in a namespace of the thread: none is left, however the program ends.

pub mod allow;
pub mod calibrate;
pub mod confirm;
mod cuts;
pub mod disk;
mod kinds;
mod look;
mod play;
mod sequences;
mod shelf;
mod stage;

pub use kinds::Kind;
pub use stage::unable;

use std::io;

/// Error in the use of a real file system.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RealError {
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
    #[error("mounting {fs} with '{options}': {source}; see 'dmesg'")]
    Mount {
        fs: &'static str,
        options: String,
        source: io::Error,
    },
    #[error("{0}")]
    Unable(String),
    #[error("step {number} ({text}) on {fs}: {source}")]
    Step {
        number: u64,
        text: String,
        fs: &'static str,
        source: io::Error,
    },
    #[error("a thread panicked")]
    Panic,
}

impl RealError {
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> RealError {
        let what = what.into();
        move |source| RealError::System { what, source }
    }
}

/// The kernel that this runs on.
#[must_use]
pub fn kernel() -> String {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    format!("{} {release}", name.sysname().to_string_lossy())
}
