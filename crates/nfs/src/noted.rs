//! The record of a call in progress for counters and access log.

use std::sync::Arc;
use std::time::Instant;

use nfs3_types::nfs3::nfsstat3;

use crate::clients::Client;

/// The line of a call, without its outcome.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) since: Instant,
}

/// A call in progress. It is counted and logged at its end.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    pub(crate) client: Option<Arc<Client>>,
    pub(crate) line: Option<Box<Line>>,
    /// Its outcome, if it is known.
    pub(crate) status: Option<nfsstat3>,
}

impl Noted {
    /// Sets the outcome, which a failed commit may still replace.
    pub(crate) fn set_outcome(&mut self, status: Option<nfsstat3>) {
        self.status = status;
    }
}
