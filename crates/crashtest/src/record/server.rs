//! The protocol: requests of the kernel become calls, answers come from the tree.
//!
//! A few files are not in the tree (`special`): standard output of the program, and the file that `steadfast crash
//! ack` writes to.
//!
//! The kernel is the only way in, so it may cache names and attributes for long. Reads are answered from a copy of
//! the tree and are not recorded. An unsupported request of a recorded program never gets ENOSYS, which the kernel
//! takes for "never ask again".

use std::io;
use std::time::Duration;

use steadfast_fuse_wire::abi::{self, fopen, init, write};
use steadfast_fuse_wire::{Errno as Code, Exchange, Offer, Operation, Serve, Terms};
use steadfast_vfs::{Caller, Ino, NAME_MAX, Seek};

use super::calls::{Calls, Requester};
use super::convert;
use super::reply::{Server, answer, attr_of, code, entry_of};
use super::special::{Special, special};
use super::view::Look;
use crate::trace::{Change, Op, Span, WriteHow};

/// Largest write in one request.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Entries of a directory that are looked at for one reply.
const LISTED_MAX: usize = 512;

const O_APPEND: u32 = 0o2000;
const O_TRUNC: u32 = 0o1000;
const O_DIRECT: u32 = 0o40000;
const O_DSYNC: u32 = 0o10000;
const O_SYNC: u32 = 0o4010000;

impl Server {
    /// The server's side of the handshake.
    pub(super) fn terms(&mut self, offer: &Offer) -> io::Result<Terms> {
        // Without O_TRUNC in `open`, the truncation would arrive as a call of its own.
        if offer.features & init::ATOMIC_O_TRUNC == 0 {
            return Err(io::Error::other("this kernel's FUSE is too old"));
        }
        // KILLPRIV saves requests before each write; the tree clears set-id bits by itself.
        let mut features = init::ATOMIC_O_TRUNC | init::HANDLE_KILLPRIV_V2;
        let mut readahead_bytes_max = offer.readahead_bytes_max;
        if self.looks.is_some() {
            // Data that is read ahead was not looked at. Without the page cache between them, reads arrive as they
            // are.
            readahead_bytes_max = 1;
        }
        // On a live mount, a cut would wait for the kernel to drop the pages that it has cached.
        if self.looks.is_some() || self.calls.is_live() {
            features |= init::DIRECT_IO_ALLOW_MMAP;
            self.direct = offer.features & init::DIRECT_IO_ALLOW_MMAP != 0;
        }
        Ok(Terms {
            features,
            readahead_bytes_max,
            write_bytes_max: WRITE_BYTES_MAX,
            background_max: 16,
        })
    }
}

impl Serve for Server {
    fn serve(&self, exchange: Exchange<'_>) {
        self.names(exchange);
    }
}

impl Server {
    /// Requests that look for names, make and remove them.
    fn names(&self, exchange: Exchange<'_>) {
        let req = *exchange.header();
        match exchange.operation() {
            Operation::Lookup { name } => {
                let found = self.lookup(&req, name);
                answer(exchange, found, |entry| entry);
            }
            Operation::Mknod { name, new } => {
                let Some(kind) = convert::kind(new.mode) else {
                    return exchange.fail(Code::INVAL);
                };
                let op = Op::Mknod {
                    parent: req.nodeid,
                    name: name.to_vec(),
                    kind,
                    perm: (new.mode & 0o7777) as u16,
                    rdev: new.rdev,
                };
                let made = self.made(&req, name, op);
                answer(exchange, made, |attr| self.entry(&attr));
            }
            Operation::Mkdir { name, new } => {
                let op = Op::Mkdir {
                    parent: req.nodeid,
                    name: name.to_vec(),
                    perm: (new.mode & 0o7777) as u16,
                };
                let made = self.made(&req, name, op);
                answer(exchange, made, |attr| self.entry(&attr));
            }
            Operation::Symlink { name, target } => {
                let op = Op::Symlink {
                    parent: req.nodeid,
                    name: name.to_vec(),
                    target: target.to_vec(),
                };
                let made = self.made(&req, name, op);
                answer(exchange, made, |attr| self.entry(&attr));
            }
            Operation::Create { name, new } => {
                let op = Op::Create {
                    parent: req.nodeid,
                    name: name.to_vec(),
                    perm: (new.mode & 0o7777) as u16,
                    flags: new.flags,
                };
                let made = self.made(&req, name, op);
                answer(exchange, made, |attr| abi::CreateOut {
                    entry: self.entry(&attr),
                    open: opened(self.opened()),
                });
            }
            Operation::Link { node, name } => {
                let linked = self.link(&req, node, name);
                answer(exchange, linked, |entry| entry);
            }
            Operation::Unlink { name } => {
                let parent = req.nodeid;
                let op = |name, ino| Op::Unlink { parent, name, ino };
                let removed = self.remove(&req, name, op);
                exchange.result(removed);
            }
            Operation::Rmdir { name } => {
                let parent = req.nodeid;
                let op = |name, ino| Op::Rmdir { parent, name, ino };
                let removed = self.remove(&req, name, op);
                exchange.result(removed);
            }
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                let renamed = self.rename(&req, name, (new_parent, new_name), flags);
                exchange.result(renamed);
            }
            _ => self.content(exchange),
        }
    }

    /// Requests for content, and for open files.
    fn content(&self, mut exchange: Exchange<'_>) {
        let req = *exchange.header();
        let ino = req.nodeid;
        match exchange.operation() {
            Operation::Open(how) => answer(exchange, self.open(&req, how.flags), opened),
            Operation::Opendir(_) => exchange.answer(&opened(0)),
            Operation::Releasedir(_) => exchange.done(),
            Operation::Read(how) => {
                let room = exchange.room(how.size as usize);
                match self.read(ino, how.offset, room) {
                    Ok(len) => exchange.filled(len),
                    Err(errno) => exchange.fail(errno),
                }
            }
            Operation::Write { how, data } => {
                let written = self.write(&req, &how, data);
                answer(exchange, written, |size| abi::WriteOut { size, padding: 0 });
            }
            Operation::Flush(_) => exchange.result(self.flush(&req)),
            Operation::Release(_) => exchange.result(match special(ino) {
                Some(_) => Ok(()),
                None => self.simply(&req, Op::Release { ino }),
            }),
            Operation::Fsync(how) => {
                let op = match how.flags & abi::FSYNC_FDATASYNC != 0 {
                    true => Op::Fdatasync { ino },
                    false => Op::Fsync { ino },
                };
                exchange.result(match special(ino) {
                    Some(_) => Ok(()),
                    None => self.simply(&req, op),
                });
            }
            Operation::Fsyncdir(how) => {
                self.calls.before_names();
                let data_only = how.flags & abi::FSYNC_FDATASYNC != 0;
                exchange.result(self.simply(&req, Op::FsyncDir { ino, data_only }));
            }
            Operation::Fallocate(how) => exchange.result(self.fallocate(&req, &how)),
            Operation::Lseek(how) => {
                let found = self.lseek(ino, how.offset, how.whence);
                answer(exchange, found, |offset| abi::LseekOut { offset });
            }
            _ => self.attributes_and_listings(exchange),
        }
    }

    /// Requests for attributes and listings, and the rest.
    fn attributes_and_listings(&self, mut exchange: Exchange<'_>) {
        let req = *exchange.header();
        let ino = req.nodeid;
        match exchange.operation() {
            Operation::Getattr(_) => answer(exchange, self.getattr(&req), |attr| attr),
            Operation::Setattr(asked) => {
                answer(
                    exchange,
                    self.setattr(&req, &convert::change(&asked)),
                    |attr| attr,
                );
            }
            Operation::Readlink => {
                self.look(|| Look::Link(ino));
                let tree = self.calls.seen();
                let found = tree
                    .as_ref()
                    .map_err(|e| *e)
                    .and_then(|tree| tree.readlink(ino));
                match found {
                    Ok(target) => exchange.bytes(target),
                    Err(e) => exchange.fail(code(e)),
                }
            }
            Operation::Readdir(how) => {
                if let Some(looks) = &self.looks {
                    looks.list(ino);
                }
                let mut listing = exchange.listing(how.size);
                let tree = self.calls.seen();
                match tree.and_then(|tree| tree.readdir(ino, how.offset, LISTED_MAX)) {
                    Ok(entries) => {
                        let _whole = entries
                            .iter()
                            .all(|e| listing.add(&e.name, e.ino, e.cookie, e.kind.mode_bits()));
                        let len = listing.len();
                        exchange.filled(len);
                    }
                    Err(e) => exchange.fail(code(e)),
                }
            }
            Operation::Statfs => answer(exchange, self.statfs(), |statfs| statfs),
            Operation::Setxattr { name, value, flags } => {
                let Some(how) = convert::xattr(flags) else {
                    return exchange.fail(Code::INVAL);
                };
                self.look(|| Look::Xattrs(ino));
                let op = Op::SetXattr {
                    ino,
                    name: name.to_vec(),
                    value: value.to_vec(),
                    how,
                };
                exchange.result(self.simply(&req, op));
            }
            Operation::Getxattr { name, size } => match self.getxattr(ino, name) {
                Ok(value) => exchange.xattr(size, &value),
                Err(errno) => exchange.fail(errno),
            },
            Operation::Listxattr { size } => match self.listxattr(ino) {
                Ok(names) => exchange.xattr(size, &names),
                Err(errno) => exchange.fail(errno),
            },
            Operation::Removexattr { name } => {
                self.look(|| Look::Xattrs(ino));
                let name = name.to_vec();
                exchange.result(self.simply(&req, Op::RemoveXattr { ino, name }));
            }
            Operation::Destroy => exchange.done(),
            Operation::Malformed => exchange.fail(Code::IO),
            Operation::Forget(_) => {}
            _ => exchange.fail(Code::NOSYS),
        }
    }

    fn lookup(&self, req: &abi::InHeader, name: &[u8]) -> Result<abi::EntryOut, Code> {
        let parent = req.nodeid;
        if let Some(special) = self.special_name(parent, name) {
            match special {
                Special::Acked => self.look(|| Look::Acked),
                Special::Issued => self.look(|| Look::Issued),
                Special::Stdout | Special::Command => {}
            }
            let attr = self.special_attr(special);
            return Ok(entry_of(Duration::ZERO, Duration::ZERO, 1, attr));
        }
        if let Some(looks) = &self.looks {
            looks.lookup(req.pid, parent, name);
        }
        let found = self.calls.look(|tree| {
            let ino = tree.lookup(&Caller::root(), parent, name)?;
            tree.getattr(ino)
        });
        found.map(|attr| self.entry(&attr)).map_err(code)
    }

    fn getattr(&self, req: &abi::InHeader) -> Result<abi::AttrOut, Code> {
        let ino = req.nodeid;
        if let Some(special) = special(ino) {
            return Ok(attr_of(Duration::ZERO, self.special_attr(special)));
        }
        if let Some(looks) = &self.looks {
            looks.attributes(req.pid, ino);
        }
        let found = self.calls.look(|tree| tree.getattr(ino));
        found.map(|attr| self.attributes(&attr)).map_err(code)
    }

    fn setattr(&self, req: &abi::InHeader, change: &Change) -> Result<abi::AttrOut, Code> {
        let (begin, ino, size) = (self.calls.now(), req.nodeid, change.size);
        if let Some(special) = special(ino) {
            return Ok(attr_of(Duration::ZERO, self.special_attr(special)));
        }
        let alone = Change {
            size,
            ..Change::default()
        };
        let op = match size {
            Some(size) if *change == alone => Op::Truncate { ino, size },
            _ => {
                self.look(|| Look::Attr(ino));
                Op::SetAttr {
                    ino,
                    change: *change,
                }
            }
        };
        let done = self.calls.perform_with(
            self.who(req),
            begin,
            &[],
            |_| op,
            |tree, _| tree.getattr(ino),
        );
        if let (Some(looks), Some(size), Ok(_)) = (&self.looks, size, &done) {
            looks.truncated(ino, size);
        }
        let attr = done.and_then(|attr| attr).map_err(code)?;
        Ok(self.attributes(&attr))
    }

    fn rename(
        &self,
        req: &abi::InHeader,
        name: &[u8],
        (new_parent, new_name): (Ino, &[u8]),
        flags: u32,
    ) -> Result<(), Code> {
        let (begin, parent) = (self.calls.now(), req.nodeid);
        self.calls.before_names();
        if self.special_name(parent, name).is_some()
            || self.special_name(new_parent, new_name).is_some()
        {
            return Err(Code::PERM);
        }
        let Some(mode) = convert::rename(flags) else {
            self.calls.refused();
            return Err(Code::INVAL);
        };
        self.look_whether_empty(new_parent, new_name);
        // Otherwise it matters whether the target is there.
        if let (Some(looks), 0) = (&self.looks, flags) {
            looks.replace(req.pid, new_parent, new_name);
        }
        let done = self.calls.perform_with(
            self.who(req),
            begin,
            &[],
            |tree| Op::Rename {
                parent,
                name: name.to_vec(),
                new_parent,
                new_name: new_name.to_vec(),
                mode,
                ino: Calls::named(tree, parent, name),
                replaced: Calls::named(tree, new_parent, new_name),
            },
            |_, _| (),
        );
        self.named(parent, name, done.is_ok());
        self.named(new_parent, new_name, done.is_ok());
        done.map_err(code)
    }

    fn link(&self, req: &abi::InHeader, ino: Ino, name: &[u8]) -> Result<abi::EntryOut, Code> {
        let (begin, parent) = (self.calls.now(), req.nodeid);
        self.calls.before_names();
        if special(ino).is_some() || self.special_name(parent, name).is_some() {
            return Err(Code::PERM);
        }
        self.look(|| Look::Attr(ino));
        let op = Op::Link {
            ino,
            parent,
            name: name.to_vec(),
        };
        let done = self.calls.perform_with(
            self.who(req),
            begin,
            &[],
            |_| op,
            |tree, _| tree.getattr(ino),
        );
        self.named(parent, name, done.is_ok());
        let attr = done.and_then(|attr| attr).map_err(code)?;
        Ok(self.entry(&attr))
    }

    /// Opens a file; returns flags for the kernel's caches.
    fn open(&self, req: &abi::InHeader, flags: u32) -> Result<u32, Code> {
        let (begin, ino) = (self.calls.now(), req.nodeid);
        if let Some(special) = special(ino) {
            return Ok(match special.source() {
                Some(_) => fopen::DIRECT_IO | fopen::NONSEEKABLE,
                // The next state has other lines: cached lines of the last one are dropped.
                None => 0,
            });
        }
        let truncate = flags & O_TRUNC != 0;
        if let Some(looks) = &self.looks {
            looks.open(req.pid, ino, truncate, flags & O_APPEND != 0);
        }
        let op = Op::Open {
            ino,
            flags,
            truncate,
        };
        let done = self.calls.perform(self.who(req), begin, op, &[]);
        if let (Some(looks), true, Ok(_)) = (&self.looks, truncate, &done) {
            looks.truncated(ino, 0);
        }
        done.map(|_| self.opened()).map_err(code)
    }

    fn read(&self, ino: Ino, offset: u64, room: &mut [u8]) -> Result<usize, Code> {
        if let Some(special) = special(ino) {
            let lines = self.looks.as_ref().map(|l| l.lines(special));
            let lines = lines.unwrap_or_default();
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            let rest = lines.as_bytes().get(offset..).unwrap_or_default();
            let len = rest.len().min(room.len());
            room[..len].copy_from_slice(&rest[..len]);
            return Ok(len);
        }
        if let Some(looks) = &self.looks {
            looks.read(ino, offset, room.len() as u64);
        }
        let tree = self.calls.seen().map_err(code)?;
        let len = tree.read(ino, offset, room).map_err(code)?;
        match self.calls.is_damaged() {
            true => Err(Code::IO),
            false => Ok(len),
        }
    }

    fn write(&self, req: &abi::InHeader, asked: &abi::WriteIn, data: &[u8]) -> Result<u32, Code> {
        let (begin, ino, offset) = (self.calls.now(), req.nodeid, asked.offset);
        let by_kernel = asked.write_flags & write::CACHE != 0;
        let _writing = by_kernel.then(|| self.calls.writing_back());
        let who = match by_kernel {
            true => Requester::default(),
            false => self.who(req),
        };
        if let Some(special) = special(ino) {
            let source = special.source().ok_or(Code::ACCESS)?;
            self.calls.output(who, begin, source, data).map_err(code)?;
            return Ok(data.len() as u32);
        }
        let has = |flag: u32| !by_kernel && asked.flags & flag == flag;
        let op = Op::Write {
            ino,
            offset,
            data: Span::default(),
            how: WriteHow {
                append: has(O_APPEND),
                direct: has(O_DIRECT),
                by_kernel,
                dsync: has(O_DSYNC),
                sync: has(O_SYNC),
            },
        };
        let done = self.calls.write(who, begin, op, data);
        if let (Some(looks), Ok(n)) = (&self.looks, &done) {
            // The offset of an append depends on the size.
            match has(O_APPEND) {
                true => looks.size(ino),
                false => looks.wrote(ino, offset, *n as u64),
            }
        }
        done.map(|n| n as u32).map_err(code)
    }

    fn flush(&self, req: &abi::InHeader) -> Result<(), Code> {
        let ino = req.nodeid;
        // A close changes nothing in a served state: the kernel need not say more of them.
        if self.looks.is_some() {
            return Err(Code::NOSYS);
        }
        match special(ino) {
            Some(Special::Command) => {
                let begin = self.calls.now();
                self.calls.acknowledged(self.who(req), begin).map_err(code)
            }
            Some(_) => Ok(()),
            None => self.simply(req, Op::Close { ino }),
        }
    }

    fn fallocate(&self, req: &abi::InHeader, how: &abi::FallocateIn) -> Result<(), Code> {
        let ino = req.nodeid;
        let Some(mode) = convert::alloc(how.mode).filter(|_| special(ino).is_none()) else {
            self.calls.refused();
            return Err(Code::OPNOTSUPP);
        };
        if let Some(looks) = &self.looks {
            looks.stat(ino);
        }
        let op = Op::Fallocate {
            ino,
            mode,
            offset: how.offset,
            len: how.length,
        };
        self.simply(req, op)
    }

    fn lseek(&self, ino: Ino, offset: u64, whence: u32) -> Result<u64, Code> {
        let whence = match whence {
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return Err(Code::INVAL),
        };
        if i64::try_from(offset).is_err() {
            return Err(Code::NXIO);
        }
        self.look(|| Look::Content(ino));
        let tree = self.calls.seen().map_err(code)?;
        tree.seek(ino, offset, whence).map_err(code)
    }

    fn statfs(&self) -> Result<abi::StatfsOut, Code> {
        let tree = self.calls.seen().map_err(code)?;
        // A number that differs from state to state would be one more thing to look at.
        let used = self.looks.as_ref().map_or(tree.inodes() as u64, |_| 0);
        let free = 1 << 20;
        Ok(abi::StatfsOut {
            blocks: 1 << 28,
            bfree: 1 << 27,
            bavail: 1 << 27,
            files: used + free,
            ffree: free,
            bsize: 4096,
            namelen: NAME_MAX as u32,
            frsize: 4096,
            ..abi::StatfsOut::default()
        })
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Code> {
        if special(ino).is_some() {
            return Err(Code::NODATA);
        }
        self.look(|| Look::Xattrs(ino));
        let tree = self.calls.seen().map_err(code)?;
        let value = tree.getxattr(&Caller::root(), ino, name).map_err(code)?;
        Ok(value.to_vec())
    }

    /// All names, each followed by a NUL.
    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Code> {
        if special(ino).is_some() {
            return Ok(Vec::new());
        }
        self.look(|| Look::Xattrs(ino));
        let tree = self.calls.seen().map_err(code)?;
        let names = tree.listxattr(&Caller::root(), ino).map_err(code)?;
        let ended = names
            .into_iter()
            .flat_map(|name| name.into_iter().chain([0]));
        Ok(ended.collect())
    }
}

fn opened(open_flags: u32) -> abi::OpenOut {
    abi::OpenOut {
        open_flags,
        ..abi::OpenOut::default()
    }
}
