//! The protocol: requests of the kernel become calls, answers come from the tree.
//!
//! A few files are not in the tree (`special`): standard output of the program, and the file that `steadfast crash
//! ack` writes to.
//!
//! The kernel is the only way in, so it may cache names and attributes for long. Reads are answered from a copy of
//! the tree and are not recorded. An unsupported request of a recorded program never gets ENOSYS, which the kernel
//! takes for "never ask again".

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno as Code, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use steadfast_vfs::{Caller, NAME_MAX, Seek};

use super::calls::{Calls, Requester};
use super::convert;
use super::reply::{Server, code, sized};
use super::special::{Special, special};
use super::view::Look;
use crate::trace::{Change, Op, Span, WriteHow};

/// Largest write in one request.
const WRITE_BYTES_MAX: u32 = 1 << 20;

const O_APPEND: u32 = 0o2000;
const O_TRUNC: u32 = 0o1000;
const O_DIRECT: u32 = 0o40000;
const O_DSYNC: u32 = 0o10000;
const O_SYNC: u32 = 0o4010000;

/// The tree at this moment; after a power cut the request fails.
macro_rules! seen {
    ($self:ident, $reply:ident) => {
        match $self.calls.seen() {
            Ok(tree) => tree,
            Err(e) => return $reply.error(code(e)),
        }
    };
}

impl Filesystem for Server {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without O_TRUNC in `open`, the truncation would arrive as a call of its own.
        config
            .add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC)
            .map_err(|_| std::io::Error::other("this kernel's FUSE is too old"))?;
        // This saves requests before each write; the tree clears set-id bits by itself.
        let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        if self.looks.is_some() {
            // Data that is read ahead was not looked at. Without the page cache between them, reads arrive as they
            // are.
            let _ = config.set_max_readahead(1);
        }
        // On a live mount, a cut would wait for the kernel to drop the pages that it has cached.
        if self.looks.is_some() || self.calls.is_live() {
            let mapped = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
            self.direct = config.add_capabilities(mapped).is_ok();
        }
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let Some(special) = self.special_name(parent, name) {
            match special {
                Special::Acked => self.look(|| Look::Acked),
                Special::Issued => self.look(|| Look::Issued),
                Special::Stdout | Special::Command => {}
            }
            let attr = self.special_attr(special);
            return reply.entry(&Duration::ZERO, &attr, Generation(1));
        }
        if let Some(looks) = &self.looks {
            looks.lookup(req.pid(), parent.0, name.as_bytes());
        }
        let found = self.calls.look(|tree| {
            let ino = tree.lookup(&Caller::root(), parent.0, name.as_bytes())?;
            tree.getattr(ino)
        });
        match found {
            Ok(attr) => self.entry(reply, &attr),
            Err(e) => reply.error(code(e)),
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        if let Some(special) = special(ino) {
            return reply.attr(&Duration::ZERO, &self.special_attr(special));
        }
        if let Some(looks) = &self.looks {
            looks.attributes(req.pid(), ino.0);
        }
        match self.calls.look(|tree| tree.getattr(ino.0)) {
            Ok(attr) => reply.attr(&self.keep(ino.0), &convert::attr(&attr)),
            Err(e) => reply.error(code(e)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let begin = self.calls.now();
        if let Some(special) = special(ino) {
            return reply.attr(&Duration::ZERO, &self.special_attr(special));
        }
        let change = Change {
            perm: mode.map(|m| (m & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(convert::when),
            mtime: mtime.map(convert::when),
        };
        let alone = Change {
            size,
            ..Change::default()
        };
        let op = match size {
            Some(size) if change == alone => Op::Truncate { ino: ino.0, size },
            _ => {
                self.look(|| Look::Attr(ino.0));
                Op::SetAttr { ino: ino.0, change }
            }
        };
        let done = self.calls.perform_with(
            self.who(req),
            begin,
            &[],
            |_| op,
            |tree, _| tree.getattr(ino.0),
        );
        if let (Some(looks), Some(size), Ok(_)) = (&self.looks, size, &done) {
            looks.truncated(ino.0, size);
        }
        match done {
            Ok(Ok(attr)) => reply.attr(&self.keep(ino.0), &convert::attr(&attr)),
            Ok(Err(e)) | Err(e) => reply.error(code(e)),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.look(|| Look::Link(ino.0));
        match seen!(self, reply).readlink(ino.0) {
            Ok(target) => reply.data(target),
            Err(e) => reply.error(code(e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = convert::kind(mode) else {
            return reply.error(Code::EINVAL);
        };
        let op = Op::Mknod {
            parent: parent.0,
            name: name.as_bytes().to_vec(),
            kind,
            perm: (mode & 0o7777) as u16,
            rdev,
        };
        self.make(req, parent, name, reply, op);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let op = Op::Mkdir {
            parent: parent.0,
            name: name.as_bytes().to_vec(),
            perm: (mode & 0o7777) as u16,
        };
        self.make(req, parent, name, reply, op);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(req, (parent, name), reply, |name, ino| Op::Unlink {
            parent: parent.0,
            name,
            ino,
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(req, (parent, name), reply, |name, ino| Op::Rmdir {
            parent: parent.0,
            name,
            ino,
        });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let op = Op::Symlink {
            parent: parent.0,
            name: name.as_bytes().to_vec(),
            target: target.as_os_str().as_bytes().to_vec(),
        };
        self.make(req, parent, name, reply, op);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let begin = self.calls.now();
        self.calls.before_names();
        if self.special_name(parent, name).is_some()
            || self.special_name(new_parent, new_name).is_some()
        {
            return reply.error(Code::EPERM);
        }
        let Some(mode) = convert::rename(flags) else {
            self.calls.refused();
            return reply.error(Code::EINVAL);
        };
        self.look_whether_empty(new_parent, new_name.as_bytes());
        // Otherwise it matters whether the target is there.
        if let (Some(looks), 0) = (&self.looks, flags.bits()) {
            looks.replace(req.pid(), new_parent.0, new_name.as_bytes());
        }
        let done = self.calls.perform_with(
            self.who(req),
            begin,
            &[],
            |tree| Op::Rename {
                parent: parent.0,
                name: name.as_bytes().to_vec(),
                new_parent: new_parent.0,
                new_name: new_name.as_bytes().to_vec(),
                mode,
                ino: Calls::named(tree, parent.0, name.as_bytes()),
                replaced: Calls::named(tree, new_parent.0, new_name.as_bytes()),
            },
            |_, _| (),
        );
        self.named(parent, name, done.is_ok());
        self.named(new_parent, new_name, done.is_ok());
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(code(e)),
        }
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let begin = self.calls.now();
        self.calls.before_names();
        if special(ino).is_some() || self.special_name(new_parent, new_name).is_some() {
            return reply.error(Code::EPERM);
        }
        self.look(|| Look::Attr(ino.0));
        let op = Op::Link {
            ino: ino.0,
            parent: new_parent.0,
            name: new_name.as_bytes().to_vec(),
        };
        let done = self.calls.perform_with(
            self.who(req),
            begin,
            &[],
            |_| op,
            |tree, _| tree.getattr(ino.0),
        );
        self.named(new_parent, new_name, done.is_ok());
        match done {
            Ok(Ok(attr)) => self.entry(reply, &attr),
            Ok(Err(e)) | Err(e) => reply.error(code(e)),
        }
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let begin = self.calls.now();
        if let Some(special) = special(ino) {
            let how = match special.source() {
                Some(_) => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NONSEEKABLE,
                // The next state has other lines: cached lines of the last one are dropped.
                None => FopenFlags::empty(),
            };
            return reply.opened(FileHandle(0), how);
        }
        let flags = flags.0 as u32;
        let truncate = flags & O_TRUNC != 0;
        if let Some(looks) = &self.looks {
            looks.open(req.pid(), ino.0, truncate, flags & O_APPEND != 0);
        }
        let op = Op::Open {
            ino: ino.0,
            flags,
            truncate,
        };
        let done = self.calls.perform(self.who(req), begin, op, &[]);
        if let (Some(looks), true, Ok(_)) = (&self.looks, truncate, &done) {
            looks.truncated(ino.0, 0);
        }
        match done {
            Ok(_) => reply.opened(FileHandle(0), self.opened()),
            Err(e) => reply.error(code(e)),
        }
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let op = Op::Create {
            parent: parent.0,
            name: name.as_bytes().to_vec(),
            perm: (mode & 0o7777) as u16,
            flags: flags as u32,
        };
        match self.made(req, parent, name, op) {
            Ok(attr) => reply.created(
                &self.keep_name(),
                &convert::attr(&attr),
                Generation(attr.generation),
                FileHandle(0),
                self.opened(),
            ),
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(special) = special(ino) {
            let lines = self.looks.as_ref().map(|l| l.lines(special));
            let lines = lines.unwrap_or_default();
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            let rest = lines.as_bytes().get(offset..).unwrap_or_default();
            return reply.data(&rest[..rest.len().min(size as usize)]);
        }
        if let Some(looks) = &self.looks {
            looks.read(ino.0, offset, u64::from(size));
        }
        let mut buffer = vec![0; size as usize];
        match seen!(self, reply).read(ino.0, offset, &mut buffer) {
            Ok(_) if self.calls.is_damaged() => reply.error(Code::EIO),
            Ok(n) => reply.data(buffer.get(..n).unwrap_or_default()),
            Err(e) => reply.error(code(e)),
        }
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let begin = self.calls.now();
        let by_kernel = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let _writing = by_kernel.then(|| self.calls.writing_back());
        let who = match by_kernel {
            true => Requester::default(),
            false => self.who(req),
        };
        if let Some(special) = special(ino) {
            let Some(source) = special.source() else {
                return reply.error(Code::EACCES);
            };
            return match self.calls.output(who, begin, source, data) {
                Ok(()) => reply.written(data.len() as u32),
                Err(e) => reply.error(code(e)),
            };
        }
        let flags = flags.0 as u32;
        let has = |flag: u32| !by_kernel && flags & flag == flag;
        let op = Op::Write {
            ino: ino.0,
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
                true => looks.size(ino.0),
                false => looks.wrote(ino.0, offset, *n as u64),
            }
        }
        match done {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(code(e)),
        }
    }

    fn flush(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // A close changes nothing in a served state: the kernel need not say more of them.
        if self.looks.is_some() {
            return reply.error(Code::ENOSYS);
        }
        match special(ino) {
            Some(Special::Command) => {
                let begin = self.calls.now();
                let done = self.calls.acknowledged(self.who(req), begin);
                match done {
                    Ok(()) => reply.ok(),
                    Err(e) => reply.error(code(e)),
                }
            }
            Some(_) => reply.ok(),
            None => self.simply(req, Op::Close { ino: ino.0 }, reply),
        }
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        match special(ino) {
            Some(_) => reply.ok(),
            None => self.simply(req, Op::Release { ino: ino.0 }, reply),
        }
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let ino = match special(ino) {
            Some(_) => return reply.ok(),
            None => ino.0,
        };
        let op = match data_only {
            true => Op::Fdatasync { ino },
            false => Op::Fsync { ino },
        };
        self.simply(req, op, reply);
    }

    fn fsyncdir(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.calls.before_names();
        let op = Op::FsyncDir {
            ino: ino.0,
            data_only,
        };
        self.simply(req, op, reply);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if let Some(looks) = &self.looks {
            looks.list(ino.0);
        }
        match seen!(self, reply).readdir(ino.0, offset, 512) {
            Ok(entries) => {
                for e in &entries {
                    let name = OsStr::from_bytes(&e.name);
                    if reply.add(INodeNo(e.ino), e.cookie, convert::file_type(e.kind), name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(e) => reply.error(code(e)),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let tree = seen!(self, reply);
        // A number that differs from state to state would be one more thing to look at.
        let used = self.looks.as_ref().map_or(tree.inodes() as u64, |_| 0);
        let free = 1 << 20;
        reply.statfs(
            1 << 28,
            1 << 27,
            1 << 27,
            used + free,
            free,
            4096,
            NAME_MAX as u32,
            4096,
        );
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = convert::xattr(flags) else {
            return reply.error(Code::EINVAL);
        };
        self.look(|| Look::Xattrs(ino.0));
        let op = Op::SetXattr {
            ino: ino.0,
            name: name.as_bytes().to_vec(),
            value: value.to_vec(),
            how,
        };
        self.simply(req, op, reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if special(ino).is_some() {
            return reply.error(Code::ENODATA);
        }
        self.look(|| Look::Xattrs(ino.0));
        let tree = seen!(self, reply);
        match tree.getxattr(&Caller::root(), ino.0, name.as_bytes()) {
            Ok(value) => sized(reply, size, value),
            Err(e) => reply.error(code(e)),
        }
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if special(ino).is_some() {
            return sized(reply, size, &[]);
        }
        self.look(|| Look::Xattrs(ino.0));
        match seen!(self, reply).listxattr(&Caller::root(), ino.0) {
            Ok(names) => {
                let mut list = Vec::new();
                for name in names {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                sized(reply, size, &list);
            }
            Err(e) => reply.error(code(e)),
        }
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.look(|| Look::Xattrs(ino.0));
        let op = Op::RemoveXattr {
            ino: ino.0,
            name: name.as_bytes().to_vec(),
        };
        self.simply(req, op, reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = convert::alloc(mode).filter(|_| special(ino).is_none()) else {
            self.calls.refused();
            return reply.error(Code::EOPNOTSUPP);
        };
        if let Some(looks) = &self.looks {
            looks.stat(ino.0);
        }
        let op = Op::Fallocate {
            ino: ino.0,
            mode,
            offset,
            len,
        };
        self.simply(req, op, reply);
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let whence = match whence {
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return reply.error(Code::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Code::ENXIO);
        };
        self.look(|| Look::Content(ino.0));
        match seen!(self, reply).seek(ino.0, offset, whence) {
            Ok(at) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            Err(e) => reply.error(code(e)),
        }
    }
}
