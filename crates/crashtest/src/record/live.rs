//! Serves the recorder's tree at a path that all processes see, with a [`Tap`] between program and tree. No trace is
//! kept.

use super::calls::Calls;
use super::place::{Mounted, Place};
use super::reply::Server;
use super::source;
pub(crate) use super::tap::{Admitted, Mark, Tap};
use super::{Kept, RecordError};
use crate::trace::{Header, Root, TraceWriter};
use std::path::Path;
use std::sync::Arc;
use steadfast_model::Tree;

/// A live mount.
pub(crate) struct LiveMount {
    calls: Arc<Calls>,
    mounted: Mounted,
}

impl LiveMount {
    /// Mounts a copy of `from` at `at`; `ready` gets the tree before the first call.
    pub(crate) fn mount(
        from: &Path,
        at: &Path,
        tap: Arc<dyn Tap>,
        ready: impl FnOnce(&Tree),
    ) -> Result<LiveMount, RecordError> {
        let place = Place::seen_by_all(at)?;
        let header = Header {
            command: Vec::new(),
            setup: None,
            mount: Vec::new(),
            started: super::convert::time(std::time::SystemTime::now()).into(),
            recorder: String::new(),
            kernel: String::new(),
            root: Root {
                perm: 0o755,
                uid: rustix::process::getuid().as_raw(),
                gid: rustix::process::getgid().as_raw(),
            },
        };
        let writer = TraceWriter::create(Path::new("/dev/null"), &header)?;
        let mut calls = Calls::new(writer, &header, u64::MAX, None, None);
        calls.keep(Kept::Nothing);
        source::copy(from, &calls)?;
        calls.tap(tap);
        ready(&calls.tree());
        let calls = Arc::new(calls);
        let mounted = place.mount(Server::new(Arc::clone(&calls)))?;
        Ok(LiveMount { calls, mounted })
    }

    /// Makes every later call fail. The kernel's cache of the tree is dropped.
    pub(crate) fn cut(&self, known: &[u64]) {
        self.calls.power_off();
        self.mounted.forget(known);
    }

    /// Whether it has been unmounted.
    pub(crate) fn is_gone(&self) -> bool {
        self.mounted.is_gone()
    }

    pub(crate) fn unmount(self) -> Result<(), RecordError> {
        self.calls.close();
        self.mounted.unmount()
    }
}
