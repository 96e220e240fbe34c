//! A call that is being served, as the counters and the access log see it.

use std::sync::Arc;
use std::time::Instant;

use nfs3_types::nfs3::nfsstat3;

use crate::clients::Client;

/// The line of a call, but for the outcome.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) since: Instant,
}

/// A call that is being served. Nothing is noted of it before its end.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    pub(crate) client: Option<Arc<Client>>,
    pub(crate) line: Option<Box<Line>>,
    /// What it came to, as far as that is known.
    pub(crate) status: Option<nfsstat3>,
}

impl Noted {
    /// The outcome, if nothing comes between that and the reply.
    pub(crate) fn came_to(&mut self, status: Option<nfsstat3>) {
        self.status = status;
    }
}
