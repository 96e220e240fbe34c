//! The requester: the caller of a request, its supplementary groups, its stream.
//!
//! The protocol carries user, group and *thread*. [`groups`] finds the rest of the user's rights, and [`resolver`] the stream.

mod ancestors;
mod control;
mod groups;
mod listed;
mod placed;
mod process;
mod registry;
mod resolver;
mod rules;
mod threads;

use std::sync::Arc;

use steadfast_fuse_wire::abi::InHeader;
use steadfast_vfs::{Caller, Ino, Stream};

use crate::counters::RequestKind;

pub(crate) use resolver::Resolver;

/// The thread that sent a request, and the inode that the request concerns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The thread; 0 is the kernel itself, or a thread of another process namespace.
    pub(crate) thread: u32,
    /// The inode that it names first.
    pub(crate) ino: Ino,
    pub(crate) asked: RequestKind,
}

impl Requester {
    pub(crate) fn new(request: &InHeader, asked: RequestKind, ino: Ino) -> Requester {
        Requester {
            uid: request.uid,
            gid: request.gid,
            thread: request.pid,
            ino,
            asked,
        }
    }
}

/// Makes callers out of requests.
pub(crate) struct Identity {
    /// The kernel checks permissions (`default_permissions`).
    checked: bool,
    /// Reads are noted in the caller's stream.
    reads_noted: bool,
    streams: Resolver,
    nobody_else: Arc<[u32]>,
}

impl Identity {
    pub(crate) fn new(checked: bool, reads_noted: bool, streams: Resolver) -> Identity {
        Identity {
            checked,
            reads_noted,
            streams,
            nobody_else: Arc::from([]),
        }
    }

    /// The streams of requests.
    pub(crate) fn streams(&self) -> &Resolver {
        &self.streams
    }

    /// Whether the kernel has checked the permissions of this request.
    pub(crate) fn checked(&self) -> bool {
        self.checked
    }

    /// The caller of a request that permissions decide only where the kernel has not.
    pub(crate) fn caller(&self, request: &Requester) -> Caller {
        self.with_groups(request, !self.checked, self.streams.of(request).stream)
    }

    /// The same for a request that only reads: reads relate nothing, so its stream is not looked for.
    pub(crate) fn reader(&self, request: &Requester) -> Caller {
        let stream = match self.reads_noted {
            true => self.streams.of(request).stream,
            false => Stream(0),
        };
        self.with_groups(request, !self.checked, stream)
    }

    /// The caller of a request that the caller's groups decide even when the kernel has
    /// checked it (a set-group-id bit that is kept or cleared).
    pub(crate) fn owner(&self, request: &Requester) -> Caller {
        self.with_groups(request, true, self.streams.of(request).stream)
    }

    /// The kernel itself, writing back pages: no identity may change the result.
    pub(crate) fn kernel(&self, request: &Requester) -> Caller {
        Caller {
            stream: self.streams.of_inode(request.ino).stream,
            checked: true,
            ..Caller::root()
        }
    }

    /// Root without the capability that keeps set-id bits through a write, which nothing else distinguishes
    /// from root once a file is open.
    pub(crate) fn unprivileged(&self, request: &Requester) -> Caller {
        const NOBODY: u32 = u32::MAX - 1;
        Caller {
            uid: NOBODY,
            gid: NOBODY,
            checked: true,
            ..self.caller(request)
        }
    }

    fn with_groups(&self, request: &Requester, wanted: bool, stream: Stream) -> Caller {
        let uid = request.uid;
        Caller {
            uid,
            gid: request.gid,
            groups: match (wanted && uid != 0, self.checked) {
                (false, _) => Arc::clone(&self.nobody_else),
                (true, true) => groups::of_thread(request.thread),
                (true, false) => groups::remembered(request),
            },
            stream,
            checked: self.checked,
            umask: 0,
            note: None,
        }
    }
}
