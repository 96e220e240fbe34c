//! Common parts of requests: the process that asks, the time for which the kernel caches an answer, calls that make
//! or remove a name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno as Code, FopenFlags, Generation, INodeNo, ReplyEmpty, ReplyEntry, ReplyXattr, Request,
};
use steadfast_vfs::{Attr, Errno, Ino};

use super::calls::{Calls, Requester};
use super::convert;
use super::looked::Looks;
use super::special::{Special, special_attr, special_name};
use super::view::Look;
use crate::trace::Op;

/// Time for which the kernel may cache names and attributes.
const KEEP: Duration = Duration::from_secs(3600);

/// Serves a recorded tree.
pub(super) struct Server {
    pub(super) calls: Arc<Calls>,
    /// The looks of a checker, if they are recorded: then the kernel caches no name.
    pub(super) looks: Option<Arc<Looks>>,
    /// Whether reads and writes bypass the kernel's page cache; files can be mapped nevertheless.
    pub(super) direct: bool,
}

pub(super) fn code(errno: Errno) -> Code {
    match errno {
        Errno::NoSys => Code::EOPNOTSUPP,
        other => Code::from_i32(other.code()),
    }
}

impl Server {
    pub(super) fn new(calls: Arc<Calls>) -> Server {
        Server {
            calls,
            looks: None,
            direct: false,
        }
    }

    /// Serves a tree and records looks.
    pub(super) fn looked(calls: Arc<Calls>, looks: Arc<Looks>) -> Server {
        Server {
            looks: Some(looks),
            ..Server::new(calls)
        }
    }

    pub(super) fn look(&self, look: impl FnOnce() -> Look) {
        if let Some(looks) = &self.looks {
            looks.note(look());
        }
    }

    /// Records that a name was made or removed, if that was done.
    pub(super) fn named(&self, parent: INodeNo, name: &OsStr, done: bool) {
        if let (Some(looks), true) = (&self.looks, done) {
            looks.named(parent.0, name.as_bytes());
        }
    }

    /// A directory that is removed, or renamed over, must be empty.
    pub(super) fn look_whether_empty(&self, parent: INodeNo, name: &[u8]) {
        if let (Some(looks), Ok(tree)) = (&self.looks, self.calls.seen())
            && let Some(ino) = Calls::named(&tree, parent.0, name)
        {
            looks.list(ino);
        }
    }

    /// A file that is not in the tree.
    pub(super) fn special_name(&self, parent: INodeNo, name: &OsStr) -> Option<Special> {
        let found = special_name(parent, name)?;
        let ours = found.source().is_some() || self.looks.is_some();
        ours.then_some(found)
    }

    pub(super) fn special_attr(&self, special: Special) -> fuser::FileAttr {
        let lines = self.looks.as_ref().map_or(0, |l| l.lines(special).len());
        let size = match special {
            Special::Stdout => self.calls.output_bytes(),
            _ => lines as u64,
        };
        special_attr(special, size)
    }

    /// Time for which the kernel may cache a name.
    pub(super) fn keep_name(&self) -> Duration {
        match self.looks {
            Some(_) => Duration::ZERO,
            None => KEEP,
        }
    }

    /// Time for which the kernel may cache attributes.
    pub(super) fn keep(&self, ino: Ino) -> Duration {
        match &self.looks {
            Some(looks) if !looks.may_cache(ino) => Duration::ZERO,
            _ => KEEP,
        }
    }

    /// The kernel's flags for an open file.
    pub(super) fn opened(&self) -> FopenFlags {
        match self.direct {
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::FOPEN_KEEP_CACHE,
        }
    }

    pub(super) fn entry(&self, reply: ReplyEntry, attr: &Attr) {
        let (attributes, name) = (self.keep(attr.ino), self.keep_name());
        let generation = Generation(attr.generation);
        reply.entry_with_ttls(&attributes, &name, &convert::attr(attr), generation);
    }

    pub(super) fn who(&self, req: &Request) -> Requester {
        self.calls.requester(req.pid(), req.uid(), req.gid())
    }

    /// A call that makes an inode; its attributes.
    pub(super) fn made(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        op: Op,
    ) -> Result<Attr, Code> {
        let begin = self.calls.now();
        self.calls.before_names();
        if self.special_name(parent, name).is_some() {
            return Err(Code::EEXIST);
        }
        let made = self.calls.perform_with(
            self.who(req),
            begin,
            &[],
            |_| op,
            |tree, outcome| tree.getattr(outcome.made().unwrap_or_default()),
        );
        self.named(parent, name, made.is_ok());
        made.and_then(|attr| attr).map_err(code)
    }

    /// The same, answered with the entry.
    pub(super) fn make(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
        op: Op,
    ) {
        match self.made(req, parent, name, op) {
            Ok(attr) => self.entry(reply, &attr),
            Err(e) => reply.error(e),
        }
    }

    /// A call without a result.
    pub(super) fn simply(&self, req: &Request, op: Op, reply: ReplyEmpty) {
        let begin = self.calls.now();
        match self.calls.perform(self.who(req), begin, op, &[]) {
            Ok(_) => reply.ok(),
            Err(e) => reply.error(code(e)),
        }
    }

    pub(super) fn remove(
        &self,
        req: &Request,
        (parent, name): (INodeNo, &OsStr),
        reply: ReplyEmpty,
        op: impl FnOnce(Vec<u8>, Option<Ino>) -> Op,
    ) {
        let begin = self.calls.now();
        self.calls.before_names();
        if self.special_name(parent, name).is_some() {
            return reply.error(Code::EPERM);
        }
        let name = name.as_bytes();
        self.look_whether_empty(parent, name);
        let removed = self.calls.perform_with(
            self.who(req),
            begin,
            &[],
            |tree| op(name.to_vec(), Calls::named(tree, parent.0, name)),
            |_, _| (),
        );
        self.named(parent, OsStr::from_bytes(name), removed.is_ok());
        match removed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(code(e)),
        }
    }
}

pub(super) fn sized(reply: ReplyXattr, size: u32, value: &[u8]) {
    match (size, value.len()) {
        (0, len) => reply.size(len as u32),
        (size, len) if len > size as usize => reply.error(Code::ERANGE),
        _ => reply.data(value),
    }
}
