//! The protocol server: what all requests share, the handshake, and replies. `dispatch` decodes requests; the modules `names` (names and
//! attributes) and `data` (content) call the file system. No storage logic.
//!
//! Invariants:
//! * every request passes the gate, so none panics through the protocol crate and none
//!   is served after the server has been closed;
//! * every request is reported to [`Readers`] before anything else; the reader goes on after the reply;
//!   the request is counted, and traced if that is wanted;
//! * every reply that gives the kernel a reference to an inode is counted first
//!   ([`Nodes`](crate::nodes::Nodes)); every error number comes from [`convert::errno`];
//! * the kernel is the only front end, so its caches stay right by its own
//!   knowledge of its own requests: it invalidates attributes where a request changes
//!   more than the reply says (parents, replaced targets, link counts, times after a
//!   write), and long timeouts cost nothing. Not so set-id bits, which a write clears here:
//!   attributes with such bits are not trusted ([`Policy::attr_timeout`]). With a second front end the timeouts are
//!   to be zero.
//!
//! Neighbours: `session` (mounts and runs it), `shared` (its threads' common state), `steadfast_vfs` (the calls that it makes).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use steadfast_fuse_wire::abi::{self, init};
use steadfast_fuse_wire::{Offer, Terms};
use steadfast_vfs::{Attr, Caller, FileSystem, Ino};

use crate::convert::{self, NodeNumbers};
use crate::counters::{Counters, RequestKind};
use crate::identity::{Identity, Requester};
use crate::readers::{For, Readers};
use crate::shared::{Policy, Shared};
use crate::trace::Trace;
use crate::values::Node;

/// Longest write that the kernel sends in one request.
pub(crate) const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Read-ahead and other background requests that the kernel keeps in flight.
const BACKGROUND_MAX: u16 = 64;
/// Minor version of the protocol of the first kernel that is known to drop its cached pages of a range after a
/// direct write to it, too (Linux 6.12).
const DIRECT_FROM: u32 = 41;

pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) numbers: NodeNumbers,
    pub(crate) identity: Identity,
    pub(crate) policy: Policy,
    pub(crate) readers: Arc<Readers>,
    pub(crate) counters: Counters,
    pub(crate) trace: Option<Trace>,
    /// Latest end of a requested freeze.
    pub(crate) frozen_until: Mutex<Option<Instant>>,
}

impl Server {
    /// Counts and traces a request.
    pub(crate) fn note(
        &self,
        request: &Requester,
        asked: RequestKind,
        node: Node,
        name: Option<&[u8]>,
    ) {
        self.counters.add(asked, 1);
        if let Some(trace) = &self.trace {
            trace.arrived(request, asked, node, name);
        }
    }

    /// Whether changes may wait for a thaw.
    pub(crate) fn frozen(&self) -> bool {
        let until = *self.frozen_until();
        until.is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn frozen_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.frozen_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ino(&self, node: Node) -> Ino {
        self.numbers.ino(node)
    }

    pub(crate) fn attr(&self, attr: &Attr) -> abi::Attr {
        self.numbers.attr(attr)
    }

    /// Notes that a directory was read.
    pub(crate) fn directory_accessed(&self, caller: &Caller, ino: Ino) {
        if !self.policy.no_dir_atime {
            self.accessed(caller, ino);
        }
    }

    /// Under `sync`, a change of content or attributes is durable before its reply.
    pub(crate) fn changed_content(
        &self,
        fs: &dyn FileSystem,
        caller: &Caller,
        ino: Ino,
    ) -> steadfast_vfs::Result<()> {
        if self.policy.sync {
            let _waiting = self.readers.waits(For::Commit);
            fs.fsync(caller, ino, false)?;
        }
        Ok(())
    }

    /// Under `dirsync`, a change of names in these directories is durable before its reply.
    pub(crate) fn changed_names(
        &self,
        fs: &dyn FileSystem,
        caller: &Caller,
        dirs: &[Ino],
    ) -> steadfast_vfs::Result<()> {
        if self.policy.dir_sync {
            let _waiting = self.readers.waits(For::Commit);
            for dir in dirs {
                fs.fsync(caller, *dir, false)?;
            }
        }
        Ok(())
    }

    /// Notes a read where access times are wanted. That it could not be noted is no
    /// reason to refuse the bytes read.
    pub(crate) fn accessed(&self, caller: &Caller, ino: Ino) {
        if self.policy.relatime {
            let noted = || self.shared.fs.accessed(caller, ino);
            let _ = self.shared.gate.pass(noted);
        }
    }

    /// The reply that gives the kernel a reference to an inode, with its attributes.
    pub(crate) fn entry(&self, attr: &Attr) -> abi::EntryOut {
        let (generation, attr) = (attr.generation, self.attr(attr));
        let (entry_valid, entry_valid_nsec) = convert::valid(self.policy.entry_timeout);
        let (attr_valid, attr_valid_nsec) = convert::valid(self.policy.attr_timeout(&attr));
        abi::EntryOut {
            nodeid: attr.ino,
            generation,
            entry_valid,
            attr_valid,
            entry_valid_nsec,
            attr_valid_nsec,
            attr,
        }
    }

    /// The reply that a name is not there, which may be remembered, too: node number 0 says so.
    pub(crate) fn no_entry(&self) -> abi::EntryOut {
        let (entry_valid, entry_valid_nsec) = convert::valid(self.policy.entry_timeout);
        abi::EntryOut {
            entry_valid,
            entry_valid_nsec,
            ..abi::EntryOut::default()
        }
    }

    /// The reply with an inode's attributes.
    pub(crate) fn attr_out(&self, attr: &Attr) -> abi::AttrOut {
        let attr = self.attr(attr);
        let (attr_valid, attr_valid_nsec) = convert::valid(self.policy.attr_timeout(&attr));
        abi::AttrOut {
            attr_valid,
            attr_valid_nsec,
            dummy: 0,
            attr,
        }
    }

    /// The same for statx(2), with the time of birth.
    pub(crate) fn statx_out(&self, attr: &Attr) -> abi::StatxOut {
        let timeout = self.policy.attr_timeout(&self.attr(attr));
        let (attr_valid, attr_valid_nsec) = convert::valid(timeout);
        abi::StatxOut {
            attr_valid,
            attr_valid_nsec,
            stat: self.numbers.statx(attr),
            ..abi::StatxOut::default()
        }
    }

    /// The server's side of the handshake.
    pub(crate) fn terms(&self, offer: &Offer) -> Terms {
        let offered = |features: u64| offer.features & features == features;
        let policy = &self.policy;
        if !offered(init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT) {
            policy.stateless_open.store(false, Ordering::Relaxed);
        }
        let settle = |switch: &AtomicBool, feature: u64| {
            let on = switch.load(Ordering::Relaxed) && offered(feature);
            switch.store(on, Ordering::Relaxed);
            if on { feature } else { 0 }
        };
        // Not among them: splice, and the write-back cache unless it was asked for (it destroys order). And asynchronous direct
        // writes: Linux (6.18) drops the cached pages of their range when they begin and not when they
        // end, so a buffered read in between stays in the cache, stale. In turn it drops both.
        let mut features = init::PARALLEL_DIROPS
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::HAS_IOCTL_DIR
            | init::EXPORT_SUPPORT
            | settle(&policy.acl, init::POSIX_ACL)
            | settle(&policy.io_uring, init::OVER_IO_URING)
            | settle(&policy.write_back, init::WRITEBACK_CACHE);
        if !policy.stateless_open() {
            // Else the truncation comes as a SETATTR of its own, since no OPEN is sent.
            features |= init::ATOMIC_O_TRUNC;
        }
        if policy.acl() {
            // A default ACL takes the place of the umask, and only the server knows it.
            features |= init::DONT_MASK;
        }
        if !policy.relatime {
            features |= init::CACHE_SYMLINKS;
        }
        if !policy.upper_layer {
            features |= init::HANDLE_KILLPRIV_V2;
        }
        // A direct write gains nothing where the page cache keeps the data.
        let direct = offer.minor >= DIRECT_FROM && !policy.write_back();
        policy.direct.store(direct, Ordering::Relaxed);
        Terms {
            features,
            readahead_bytes_max: offer.readahead_bytes_max,
            write_bytes_max: WRITE_BYTES_MAX,
            background_max: BACKGROUND_MAX,
        }
    }
}
