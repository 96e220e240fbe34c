//! Requests in, replies out: each of the kernel's operations becomes a call of the server.
//!
//! Invariants: a thread is reported to [`Readers`](crate::readers::Readers) before it serves a request and goes on after the reply; an
//! operation that is not offered fails with `ENOSYS`, and the kernel does not ask again.

use std::ops::Deref;
use std::sync::Arc;

use steadfast_fuse_wire::{Body, Errno, Exchange, Operation, Serve, abi};
use steadfast_vfs::Attr;

use crate::convert;
use crate::counters::RequestKind;
use crate::identity::Requester;
use crate::readers::{For, Serving};
use crate::server::Server;
use crate::values::{CACHED, NewMode, Node};

/// All attributes of the server itself begin like this.
const OWN_ATTRIBUTES: &[u8] = b"system.steadfast.";

/// The server at the end of one transport.
pub(crate) struct Front {
    pub(crate) server: Arc<Server>,
    /// Requests are served by threads that stay where they are: over io_uring.
    pub(crate) in_place: bool,
}

impl Deref for Front {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// A request that has begun.
struct Begun<'a> {
    request: Requester,
    node: Node,
    /// Dropped after the reply: the thread goes on.
    _serving: Option<Serving<'a>>,
}

impl Front {
    /// Begins a request: a reader serves it; it is counted and traced.
    fn begin(&self, header: &abi::InHeader, asked: RequestKind, name: Option<&[u8]>) -> Begun<'_> {
        let node = Node(header.nodeid);
        let request = Requester::new(header, asked, self.ino(node));
        let _serving = match self.in_place {
            true => {
                self.readers.begin_in_place(request.thread);
                None
            }
            false => Some(self.readers.begin(request.thread)),
        };
        self.note(&request, asked, node, name);
        Begun {
            request,
            node,
            _serving,
        }
    }

    fn forget(&self, header: &abi::InHeader, forgets: steadfast_fuse_wire::Forgets<'_>) {
        let _serving = self.readers.begin_some();
        for one in forgets {
            let node = Node(one.nodeid);
            let ino = self.ino(node);
            let request = Requester::new(header, RequestKind::Forget, ino);
            self.note(&request, RequestKind::Forget, node, None);
            let forget = || self.shared.nodes.forget(&*self.shared.fs, ino, one.nlookup);
            let _ = self.shared.gate.pass(forget);
        }
    }
}

/// Replies with a value, or with the error.
fn answer<T, B: Body>(exchange: Exchange<'_>, result: Result<T, Errno>, body: impl FnOnce(T) -> B) {
    match result {
        Ok(value) => exchange.answer(&body(value)),
        Err(errno) => exchange.fail(errno),
    }
}

fn opened(flags: u32) -> abi::OpenOut {
    abi::OpenOut {
        fh: CACHED,
        open_flags: flags,
        backing_id: 0,
    }
}

impl Serve for Front {
    fn serve(&self, exchange: Exchange<'_>) {
        self.content(exchange);
    }

    fn may_wait(&self, exchange: &Exchange<'_>) -> bool {
        let sleeps = |what| self.readers.sleeps(what);
        let waits = match exchange.operation() {
            Operation::Read(_) => sleeps(For::Content),
            Operation::Fsync(_) | Operation::Fsyncdir(_) => sleeps(For::Commit),
            Operation::Ioctl { .. } => true,
            Operation::Getxattr { name, .. } | Operation::Setxattr { name, .. }
                if name.starts_with(OWN_ATTRIBUTES) =>
            {
                true
            }
            _ => (self.policy.sync || self.policy.dir_sync) && sleeps(For::Commit),
        };
        // A change of a frozen volume waits for the thaw, which may come through the same queue.
        waits || self.frozen()
    }
}

impl Front {
    /// Requests for content, and for open files.
    fn content(&self, mut exchange: Exchange<'_>) {
        let header = *exchange.header();
        let begin = |asked| self.begin(&header, asked, None);
        match exchange.operation() {
            Operation::Read(how) => {
                let begun = begin(RequestKind::Read);
                let target = exchange.room(how.size as usize);
                match self.read(&begun.request, begun.node, (how.offset, how.flags), target) {
                    Ok(len) => exchange.filled(len),
                    Err(errno) => exchange.fail(errno),
                }
            }
            Operation::Write { how, data } => {
                let begun = begin(RequestKind::Write);
                let (file, how_written) = ((begun.node, how.fh), how.write_flags);
                let written = self.written(
                    &begun.request,
                    file,
                    how.offset,
                    data,
                    how_written,
                    how.flags,
                );
                answer(exchange, written, |size| abi::WriteOut { size, padding: 0 });
            }
            Operation::Fsync(how) => {
                let begun = begin(RequestKind::Fsync);
                let data_only = how.flags & abi::FSYNC_FDATASYNC != 0;
                exchange.result(self.sync_node(&begun.request, begun.node, data_only));
            }
            Operation::Fsyncdir(how) => {
                let begun = begin(RequestKind::Fsyncdir);
                let data_only = how.flags & abi::FSYNC_FDATASYNC != 0;
                exchange.result(self.sync_node(&begun.request, begun.node, data_only));
            }
            Operation::Open(how) => {
                let begun = begin(RequestKind::Open);
                let result = self.opened(&begun.request, begun.node, how.flags);
                answer(exchange, result, opened);
            }
            Operation::Opendir(_) => {
                let begun = begin(RequestKind::Opendir);
                let result = self.opened_directory(&begun.request, begun.node);
                answer(exchange, result, opened);
            }
            // Nothing happens at close(2): the kernel writes back stores made through mmap
            // by itself, and stops asking after this answer.
            Operation::Flush(_) => {
                let _begun = begin(RequestKind::Flush);
                exchange.fail(Errno::NOSYS);
            }
            // A file lives as long as the kernel knows its inode: open or not decides nothing.
            Operation::Release(_) => {
                let _begun = begin(RequestKind::Release);
                exchange.done();
            }
            Operation::Releasedir(_) => {
                let _begun = begin(RequestKind::Releasedir);
                exchange.done();
            }
            Operation::Fallocate(how) => {
                let begun = begin(RequestKind::Fallocate);
                let range = (how.offset, how.length);
                exchange.result(self.allocated(&begun.request, begun.node, range, how.mode));
            }
            Operation::Lseek(how) => {
                let begun = begin(RequestKind::Lseek);
                let found = self.sought(&begun.request, begun.node, how.offset, how.whence);
                answer(exchange, found, |offset| abi::LseekOut { offset });
            }
            _ => self.names(exchange),
        }
    }

    /// Requests that look for names, make and remove them.
    fn names(&self, exchange: Exchange<'_>) {
        let header = *exchange.header();
        let begin = |asked, name| self.begin(&header, asked, Some(name));
        let entry = |attr: Attr| self.entry(&attr);
        match exchange.operation() {
            Operation::Forget(forgets) => self.forget(&header, forgets),
            Operation::Lookup { name } => {
                let begun = begin(RequestKind::Lookup, name);
                match self.found(&begun.request, begun.node, name) {
                    Err(Errno::NOENT) => exchange.answer(&self.no_entry()),
                    found => answer(exchange, found, entry),
                }
            }
            Operation::Create { name, new } => {
                let begun = begin(RequestKind::Create, name);
                let mode = NewMode {
                    mode: new.mode,
                    umask: new.umask,
                };
                let created = self.created(&begun.request, begun.node, name, mode, new.flags);
                answer(exchange, created, |(made, fh, flags)| abi::CreateOut {
                    entry: entry(made),
                    open: abi::OpenOut {
                        fh,
                        ..opened(flags)
                    },
                });
            }
            Operation::Mknod { name, new } => {
                let begun = begin(RequestKind::Mknod, name);
                let mode = NewMode {
                    mode: new.mode,
                    umask: new.umask,
                };
                let made = self.made(&begun.request, begun.node, name, mode, new.rdev);
                answer(exchange, made, entry);
            }
            Operation::Mkdir { name, new } => {
                let begun = begin(RequestKind::Mkdir, name);
                let mode = NewMode {
                    mode: new.mode,
                    umask: new.umask,
                };
                let made = self.made_directory(&begun.request, begun.node, name, mode);
                answer(exchange, made, entry);
            }
            Operation::Symlink { name, target } => {
                let begun = begin(RequestKind::Symlink, name);
                let made = self.made_symlink(&begun.request, begun.node, name, target);
                answer(exchange, made, entry);
            }
            Operation::Link { node, name } => {
                // The request's node is the directory; the inode that gets the name is asked for.
                let mut about = header;
                about.nodeid = node;
                let begun = self.begin(&about, RequestKind::Link, Some(name));
                let to = (Node(header.nodeid), name);
                let linked = self.linked(&begun.request, begun.node, to);
                answer(exchange, linked, entry);
            }
            Operation::Unlink { name } => {
                let begun = begin(RequestKind::Unlink, name);
                let done = self.unlinked(&begun.request, begun.node, name);
                exchange.result(done);
            }
            Operation::Rmdir { name } => {
                let begun = begin(RequestKind::Rmdir, name);
                let done = self.removed_directory(&begun.request, begun.node, name);
                exchange.result(done);
            }
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                let begun = begin(RequestKind::Rename, name);
                let (from, to) = ((begun.node, name), (Node(new_parent), new_name));
                let done = self.renamed(&begun.request, from, to, flags);
                exchange.result(done);
            }
            _ => self.attributes_and_listings(exchange),
        }
    }

    /// Requests for attributes and listings, and the rest.
    fn attributes_and_listings(&self, mut exchange: Exchange<'_>) {
        let header = *exchange.header();
        let begin = |asked| self.begin(&header, asked, None);
        match exchange.operation() {
            Operation::Getattr(_) => {
                let begun = begin(RequestKind::Getattr);
                let found = self.attributes(&begun.request, begun.node);
                answer(exchange, found, |attr| self.attr_out(&attr));
            }
            Operation::Statx(_) => {
                let begun = begin(RequestKind::Statx);
                let found = self.attributes(&begun.request, begun.node);
                answer(exchange, found, |attr| self.statx_out(&attr));
            }
            Operation::Setattr(asked) => {
                let begun = begin(RequestKind::Setattr);
                let changed = self.changed(&begun.request, begun.node, &convert::changes(&asked));
                answer(exchange, changed, |attr| self.attr_out(&attr));
            }
            Operation::Readlink => {
                let begun = begin(RequestKind::Readlink);
                match self.target(&begun.request, begun.node) {
                    Ok(target) => exchange.bytes(&target),
                    Err(errno) => exchange.fail(errno),
                }
            }
            Operation::Readdir(how) => {
                let begun = begin(RequestKind::Readdir);
                let mut listing = exchange.listing(how.size);
                let listed = self.listed(&begun.request, begun.node, how.offset, |entry| {
                    let node = self.numbers.node(entry.ino);
                    listing.add(entry.name, node.0, entry.next, entry.kind.mode_bits())
                });
                let len = listing.len();
                match listed {
                    Ok(()) => exchange.filled(len),
                    Err(errno) => exchange.fail(errno),
                }
            }
            Operation::Readdirplus(how) => {
                let begun = begin(RequestKind::Readdirplus);
                let mut listing = exchange.listing(how.size);
                let take = &mut |found: &crate::listing::WithAttributes<'_>| {
                    listing.add_with_attributes(found.name, found.next, &found.entry)
                };
                let listed =
                    self.listed_with_attributes(&begun.request, begun.node, how.offset, take);
                let len = listing.len();
                match listed {
                    Ok(()) => exchange.filled(len),
                    Err(errno) => exchange.fail(errno),
                }
            }
            Operation::Statfs => {
                let _begun = begin(RequestKind::Statfs);
                let statfs = self.shared.call("statfs", |fs| fs.statfs());
                answer(exchange, statfs, |s| abi::StatfsOut {
                    blocks: s.blocks,
                    bfree: s.blocks_free,
                    bavail: s.blocks_free,
                    files: s.inodes,
                    ffree: s.inodes_free,
                    bsize: s.block_size,
                    namelen: s.name_max,
                    frsize: s.block_size,
                    ..abi::StatfsOut::default()
                });
            }
            Operation::Access(how) => {
                let begun = begin(RequestKind::Access);
                let mask = (how.mask & 0o7) as u8;
                exchange.result(self.may(&begun.request, begun.node, mask));
            }
            _ => self.extended(exchange),
        }
    }

    /// Requests for extended attributes, commands, and what is not offered.
    fn extended(&self, exchange: Exchange<'_>) {
        let header = *exchange.header();
        let begin = |asked, name| self.begin(&header, asked, name);
        match exchange.operation() {
            Operation::Setxattr { name, value, flags } => {
                let begun = begin(RequestKind::Setxattr, Some(name));
                let set = match self.set_own_attribute(&begun.request, name, value) {
                    Some(set) => set,
                    None => self.set_xattr(&begun.request, begun.node, (name, value), flags),
                };
                exchange.result(set);
            }
            Operation::Getxattr { name, size } => {
                let begun = begin(RequestKind::Getxattr, Some(name));
                match self.xattr(&begun.request, begun.node, name) {
                    Ok(value) => exchange.xattr(size, &value),
                    Err(errno) => exchange.fail(errno),
                }
            }
            Operation::Listxattr { size } => {
                let begun = begin(RequestKind::Listxattr, None);
                match self.xattrs(&begun.request, begun.node) {
                    Ok(names) => exchange.xattr(size, &names),
                    Err(errno) => exchange.fail(errno),
                }
            }
            Operation::Removexattr { name } => {
                let begun = begin(RequestKind::Removexattr, Some(name));
                let done = self.removed_xattr(&begun.request, begun.node, name);
                exchange.result(done);
            }
            Operation::Ioctl { how, data } => {
                let begun = begin(RequestKind::Ioctl, None);
                match self.own_command(&begun.request, begun.node, how.cmd, data) {
                    Ok(value) => exchange.ioctl(&value),
                    Err(errno) => exchange.fail(errno),
                }
            }
            Operation::Destroy => exchange.done(),
            Operation::Malformed => exchange.fail(Errno::IO),
            _ => exchange.fail(Errno::NOSYS),
        }
    }
}
