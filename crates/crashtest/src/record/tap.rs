//! The tap between a program and the recorder's tree.

use crate::trace::{Call, Op};
use steadfast_model::Tree;
use steadfast_vfs::Errno;

/// Answer of a [`Tap`] to a call before it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Admitted {
    /// Number of its bytes to write.
    pub(crate) bytes: usize,
    /// Passed to [`Tap::done`] after the call.
    pub(crate) mark: Mark,
}

/// A call that does less than it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    None,
    Torn,
    Lost,
}

/// Stands between the program and the tree.
pub(crate) trait Tap: Send + Sync {
    /// Called before a call that changes something or syncs; it may take its time.
    fn admit(&self, op: &Op, bytes: usize) -> Result<Admitted, Errno>;
    /// Called after it, in the order of effect; `tree` is the new one.
    fn done(&self, call: &Call, bytes: &[u8], mark: Mark, tree: &Tree);
}
