//! Who asks: the caller of a request, its supplementary groups, its stream.
//!
//! The protocol carries user, group and *thread* id. Supplementary groups are read
//! from `/proc` when they decide something. Where other users are let in, afresh each
//! time: a privileged thread may change them between two calls. Where only the owner's
//! own processes are let in, they are remembered for a moment. Streams are looked up
//! through [`StreamResolver`] (DESIGN section 7).

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::Request;
use steadfast_vfs::{Caller, Stream};

/// Who has sent a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The thread; 0 is the kernel itself, or a thread of another process namespace.
    pub(crate) thread: u32,
}

impl From<&Request> for Asker {
    fn from(request: &Request) -> Asker {
        Asker {
            uid: request.uid(),
            gid: request.gid(),
            thread: request.pid(),
        }
    }
}

/// Finds the stream of a process (paper 004, section 3.2).
pub trait StreamResolver: Send + Sync {
    /// The stream of the thread `tid`; 0 is the kernel itself, writing back stores
    /// made through mmap.
    fn stream(&self, tid: u32) -> Stream;
}

/// Everybody belongs to the volume's default stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultStream;

impl StreamResolver for DefaultStream {
    fn stream(&self, _tid: u32) -> Stream {
        Stream(0)
    }
}

/// Makes callers out of requests.
pub(crate) struct Identity {
    /// The kernel checks permissions (`default_permissions`).
    checked: bool,
    streams: Arc<dyn StreamResolver>,
    nobody_else: Arc<[u32]>,
}

impl Identity {
    pub(crate) fn new(checked: bool, streams: Arc<dyn StreamResolver>) -> Identity {
        Identity {
            checked,
            streams,
            nobody_else: Arc::from([]),
        }
    }

    /// Whether the kernel has checked what this request may do.
    pub(crate) fn checked(&self) -> bool {
        self.checked
    }

    /// The caller of a request that permissions decide only where the kernel has not.
    pub(crate) fn caller(&self, request: &Asker) -> Caller {
        self.with_groups(request, !self.checked)
    }

    /// The caller of a request that the caller's groups decide even when the kernel has
    /// checked it (what becomes of a set-group-id bit).
    pub(crate) fn owner(&self, request: &Asker) -> Caller {
        self.with_groups(request, true)
    }

    /// The kernel itself, writing back pages: nobody's identity may change the result.
    pub(crate) fn kernel(&self) -> Caller {
        Caller {
            stream: self.streams.stream(0),
            checked: true,
            ..Caller::root()
        }
    }

    /// Root without the capability that keeps set-id bits through a write, which nothing else distinguishes
    /// from root once a file is open.
    pub(crate) fn unprivileged(&self, request: &Asker) -> Caller {
        const NOBODY: u32 = u32::MAX - 1;
        Caller {
            uid: NOBODY,
            gid: NOBODY,
            checked: true,
            ..self.caller(request)
        }
    }

    fn with_groups(&self, request: &Asker, wanted: bool) -> Caller {
        let uid = request.uid;
        Caller {
            uid,
            gid: request.gid,
            groups: match (wanted && uid != 0, self.checked) {
                (false, _) => Arc::clone(&self.nobody_else),
                (true, true) => groups_of(request.thread),
                (true, false) => remembered_groups(request),
            },
            stream: self.streams.stream(request.thread),
            checked: self.checked,
            umask: 0,
        }
    }
}

/// How long the groups of an owner's thread are remembered.
const REMEMBERED: Duration = Duration::from_secs(1);

/// A caller, the groups it had, and when.
type Remembered = ((u32, u32, u32), Arc<[u32]>, Instant);

fn remembered_groups(request: &Asker) -> Arc<[u32]> {
    thread_local! {
        static LAST: RefCell<Option<Remembered>> = const { RefCell::new(None) };
    }
    let who = (request.thread, request.uid, request.gid);
    LAST.with_borrow_mut(|last| match last {
        Some((caller, groups, since)) if *caller == who && since.elapsed() < REMEMBERED => {
            Arc::clone(groups)
        }
        _ => {
            let groups = groups_of(who.0);
            *last = Some((who, Arc::clone(&groups), Instant::now()));
            groups
        }
    })
}

/// Supplementary groups of a thread; none if it cannot be asked (gone, or of another
/// process namespace): a caller then has fewer rights, not more.
fn groups_of(tid: u32) -> Arc<[u32]> {
    let status = match tid {
        0 => return Arc::from([]),
        tid => std::fs::read(format!("/proc/{tid}/status")).unwrap_or_default(),
    };
    parse_groups(&status).into()
}

fn parse_groups(status: &[u8]) -> Vec<u32> {
    status
        .split(|&b| b == b'\n')
        .find_map(|line| line.strip_prefix(b"Groups:"))
        .and_then(|list| std::str::from_utf8(list).ok())
        .map(|list| {
            list.split_ascii_whitespace()
                .filter_map(|g| g.parse().ok())
                .collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_thread() {
        assert_eq!(
            parse_groups(b"Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n"),
            [4, 24, 1000]
        );
        assert_eq!(parse_groups(b"Groups:\t\n"), [0u32; 0]);
        assert_eq!(parse_groups(b"garbage \xff"), [0u32; 0]);
        assert_eq!(*groups_of(0), [0u32; 0]);
        assert_eq!(*groups_of(u32::MAX), [0u32; 0]);
    }
}
