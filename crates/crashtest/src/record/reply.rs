//! Common parts of requests: the process that asks, the time for which the kernel caches an answer, calls that make
//! or remove a name.

use std::sync::Arc;
use std::time::Duration;

use steadfast_fuse_wire::abi::{self, fopen};
use steadfast_fuse_wire::{Errno as Code, Exchange};
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
        Errno::NoSys => Code::OPNOTSUPP,
        other => Code::from_raw_os_error(other.code()),
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
    pub(super) fn named(&self, parent: Ino, name: &[u8], done: bool) {
        if let (Some(looks), true) = (&self.looks, done) {
            looks.named(parent, name);
        }
    }

    /// A directory that is removed, or renamed over, must be empty.
    pub(super) fn look_whether_empty(&self, parent: Ino, name: &[u8]) {
        if let (Some(looks), Ok(tree)) = (&self.looks, self.calls.seen())
            && let Some(ino) = Calls::named(&tree, parent, name)
        {
            looks.list(ino);
        }
    }

    /// A file that is not in the tree.
    pub(super) fn special_name(&self, parent: Ino, name: &[u8]) -> Option<Special> {
        let found = special_name(parent, name)?;
        let ours = found.source().is_some() || self.looks.is_some();
        ours.then_some(found)
    }

    pub(super) fn special_attr(&self, special: Special) -> abi::Attr {
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
    pub(super) fn opened(&self) -> u32 {
        match self.direct {
            true => fopen::DIRECT_IO,
            false => fopen::KEEP_CACHE,
        }
    }

    pub(super) fn entry(&self, attr: &Attr) -> abi::EntryOut {
        entry_of(
            self.keep_name(),
            self.keep(attr.ino),
            attr.generation,
            convert::attr(attr),
        )
    }

    pub(super) fn attributes(&self, attr: &Attr) -> abi::AttrOut {
        attr_of(self.keep(attr.ino), convert::attr(attr))
    }

    pub(super) fn who(&self, req: &abi::InHeader) -> Requester {
        self.calls.requester(req.pid, req.uid, req.gid)
    }

    /// A call that makes an inode; its attributes.
    pub(super) fn made(&self, req: &abi::InHeader, name: &[u8], op: Op) -> Result<Attr, Code> {
        let (begin, parent) = (self.calls.now(), req.nodeid);
        self.calls.before_names();
        if self.special_name(parent, name).is_some() {
            return Err(Code::EXIST);
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

    /// A call without a result.
    pub(super) fn simply(&self, req: &abi::InHeader, op: Op) -> Result<(), Code> {
        let begin = self.calls.now();
        let done = self.calls.perform(self.who(req), begin, op, &[]);
        done.map(drop).map_err(code)
    }

    pub(super) fn remove(
        &self,
        req: &abi::InHeader,
        name: &[u8],
        op: impl FnOnce(Vec<u8>, Option<Ino>) -> Op,
    ) -> Result<(), Code> {
        let (begin, parent) = (self.calls.now(), req.nodeid);
        self.calls.before_names();
        if self.special_name(parent, name).is_some() {
            return Err(Code::PERM);
        }
        self.look_whether_empty(parent, name);
        let removed = self.calls.perform_with(
            self.who(req),
            begin,
            &[],
            |tree| op(name.to_vec(), Calls::named(tree, parent, name)),
            |_, _| (),
        );
        self.named(parent, name, removed.is_ok());
        removed.map_err(code)
    }
}

/// An entry whose name and attributes the kernel may keep for these times.
pub(super) fn entry_of(
    name: Duration,
    attributes: Duration,
    generation: u64,
    attr: abi::Attr,
) -> abi::EntryOut {
    abi::EntryOut {
        nodeid: attr.ino,
        generation,
        entry_valid: name.as_secs(),
        attr_valid: attributes.as_secs(),
        entry_valid_nsec: name.subsec_nanos(),
        attr_valid_nsec: attributes.subsec_nanos(),
        attr,
    }
}

/// Attributes that the kernel may keep for this time.
pub(super) fn attr_of(keep: Duration, attr: abi::Attr) -> abi::AttrOut {
    abi::AttrOut {
        attr_valid: keep.as_secs(),
        attr_valid_nsec: keep.subsec_nanos(),
        dummy: 0,
        attr,
    }
}

/// Replies with a value, or with the error.
pub(super) fn answer<T, B: steadfast_fuse_wire::Body>(
    exchange: Exchange<'_>,
    result: Result<T, Code>,
    body: impl FnOnce(T) -> B,
) {
    match result {
        Ok(value) => exchange.answer(&body(value)),
        Err(errno) => exchange.fail(errno),
    }
}
