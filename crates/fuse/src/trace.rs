//! A line for each request, as it arrives: time (seconds since the mount), kind, node, name,
//! and thread.
//!
//! Requests that the protocol crate answers by itself are not among them: the handshake, and
//! operations that this server does not offer, which the kernel requests once.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use crate::counters::RequestKind;
use crate::identity::Requester;
use crate::options::LogHook;
use crate::values::Node;

/// See the module's header.
pub(crate) struct Trace {
    since: Instant,
    hear: LogHook,
}

impl Trace {
    pub(crate) fn new(hear: LogHook) -> Trace {
        Trace {
            since: Instant::now(),
            hear,
        }
    }

    pub(crate) fn arrived(
        &self,
        request: &Requester,
        asked: RequestKind,
        node: Node,
        name: Option<&[u8]>,
    ) {
        let (at, what) = (self.since.elapsed().as_secs_f64(), asked.name());
        let name = name
            .map(|name| format!(" {:?}", OsStr::from_bytes(name)))
            .unwrap_or_default();
        let (node, thread) = (node.0, request.thread);
        (self.hear)(&format!("{at:.6} {what} {node}{name} by {thread}"));
    }
}
