//! The protocol server: turns each request into one call of the file system and each
//! result into one reply. No storage logic.
//!
//! Invariants:
//! * every request passes the gate, so none panics through the protocol crate and none
//!   is served after the server has been closed;
//! * every request is one turn ([`Turns`]), begun before anything else, ended after the reply;
//! * every reply that gives the kernel a reference to an inode is counted first
//!   ([`Nodes`]); every error number comes from [`convert::errno`];
//! * the kernel is the only front end, so what it caches stays right by its own
//!   knowledge of its own requests: it invalidates attributes where a request changes
//!   more than the reply says (parents, replaced targets, link counts, times after a
//!   write), and long timeouts cost nothing. With a second front end the timeouts are
//!   to be zero.
//!
//! Neighbours: `session` (mounts and runs it), `shared` (what its threads have in common), `steadfast_vfs` (what it calls).

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use steadfast_vfs::{Attr, Caller, FileKind, FileSystem, Ino, NewNode, Seek, SetAttr};

use crate::control::XATTR_SHUTDOWN;
use crate::convert::{self, NodeNumbers};
use crate::counters::{Asked, Counters};
use crate::identity::Identity;
use crate::listing::NOTHING;
use crate::shared::{Policy, Shared};
use crate::turns::{Turn, Turns};

/// Longest write that the kernel sends in one request.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Longest read that is answered in one reply.
const READ_BYTES_MAX: usize = 16 << 20;
/// Read-ahead and other background requests that the kernel keeps in flight.
const BACKGROUND_MAX: u16 = 64;

pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) numbers: NodeNumbers,
    pub(crate) identity: Identity,
    pub(crate) policy: Policy,
    pub(crate) turns: Arc<Turns>,
    pub(crate) counters: Counters,
}

thread_local! {
    /// Where a protocol thread reads file content to, before it replies.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Server {
    /// Begins a request: a turn, counted.
    fn begin(&self, request: &Request, asked: Asked) -> Turn<'_> {
        let turn = self.turns.begin(request.pid());
        self.counters.add(asked, 1);
        turn
    }

    fn ino(&self, node: INodeNo) -> Ino {
        self.numbers.ino(node)
    }

    pub(crate) fn attr(&self, attr: &Attr) -> FileAttr {
        self.numbers.attr(attr)
    }

    /// A call whose result gives the kernel a reference to an inode.
    fn reference(
        &self,
        what: &'static str,
        caller: &Caller,
        call: impl FnOnce(&dyn FileSystem) -> steadfast_vfs::Result<Attr>,
    ) -> Result<Attr, Errno> {
        self.shared.call(what, |fs| {
            let attr = call(fs)?;
            self.shared.nodes.remember(fs, caller, attr.ino)?;
            Ok(attr)
        })
    }

    /// Notes a read where access times are wanted. That it could not be noted is no
    /// reason to refuse what was read.
    fn accessed(&self, caller: &Caller, ino: Ino) {
        if self.policy.relatime {
            let noted = || self.shared.fs.accessed(caller, ino);
            let _ = self.shared.gate.pass(noted);
        }
    }

    fn reply_entry(&self, reply: ReplyEntry, result: Result<Attr, Errno>) {
        match result {
            Ok(attr) => reply.entry_with_ttls(
                &self.policy.attr_timeout,
                &self.policy.entry_timeout,
                &self.attr(&attr),
                convert::generation(&attr),
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn reply_attr(&self, reply: ReplyAttr, result: Result<Attr, Errno>) {
        match result {
            Ok(attr) => reply.attr(&self.policy.attr_timeout, &self.attr(&attr)),
            Err(errno) => reply.error(errno),
        }
    }

    /// Asks for access where the kernel has not.
    fn ask(&self, request: &Request, ino: Ino, mask: u8) -> Result<(), Errno> {
        if self.identity.checked() || mask == 0 {
            return Ok(());
        }
        let caller = self.identity.caller(request);
        self.shared
            .call("access", |fs| fs.access(&caller, ino, mask))
    }

    /// The caller of a call that makes an inode of this mode.
    fn maker(&self, request: &Request, mode: u32) -> Caller {
        const S_ISGID: u32 = 0o2000;
        if mode & S_ISGID != 0 {
            self.identity.owner(request)
        } else {
            self.identity.caller(request)
        }
    }

    /// fsync of a file or directory.
    fn sync_node(&self, request: &Request, node: INodeNo, data_only: bool, reply: ReplyEmpty) {
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        self.turns.may_wait();
        let synced = self
            .shared
            .call("fsync", |fs| fs.fsync(&caller, ino, data_only));
        reply_empty(reply, synced);
    }

    /// Commits every stream.
    pub(crate) fn sync_all(&self) -> Result<(), Errno> {
        self.turns.may_wait();
        self.shared.call("sync", |fs| fs.sync())
    }
}

fn reply_empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// Answers an attribute query: its length if `size` is 0, the value if it fits.
fn reply_xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(value) => match u32::try_from(value.len()) {
            Ok(len) if size == 0 => reply.size(len),
            Ok(len) if len <= size => reply.data(&value),
            Ok(_) => reply.error(Errno::ERANGE),
            Err(_) => reply.error(Errno::E2BIG),
        },
        Err(errno) => reply.error(errno),
    }
}

/// Attribute names that are passed on: POSIX ACLs are not offered, so nobody may
/// believe to have set one, and names outside the four namespaces do not exist.
fn xattr_offered(name: &[u8]) -> bool {
    [&b"user."[..], b"trusted.", b"security."]
        .iter()
        .any(|space| name.starts_with(space))
}

/// `O_TRUNC`.
const TRUNCATE: i32 = 0o1000;
/// `O_NOATIME`.
const NO_ACCESS_TIME: i32 = 0o1_000_000;

/// What has to be permitted for a file to be opened so.
fn access_of(flags: OpenFlags) -> u8 {
    const READ: u8 = 4;
    const WRITE: u8 = 2;
    let by_mode = match flags.acc_mode() {
        OpenAccMode::O_RDONLY => READ,
        OpenAccMode::O_WRONLY => WRITE,
        OpenAccMode::O_RDWR => READ | WRITE,
    };
    if flags.0 & TRUNCATE != 0 {
        by_mode | WRITE
    } else {
        by_mode
    }
}

impl fuser::Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each is asked for by itself: a kernel that lacks one still gets the others.
        // Not among them: the write-back cache (it destroys order), POSIX ACLs, splice.
        let no_open = InitFlags::FUSE_NO_OPEN_SUPPORT | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        self.policy.stateless_open &= config.capabilities().contains(no_open);
        if !self.policy.stateless_open {
            // Else the truncation comes as a SETATTR of its own, since no OPEN is sent.
            let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        }
        for wanted in [
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HAS_IOCTL_DIR,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_ASYNC_DIO,
        ] {
            let _ = config.add_capabilities(wanted);
        }
        if !self.policy.relatime {
            let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.begin(request, Asked::Lookup);
        let (caller, parent) = (self.identity.caller(request), self.ino(parent));
        let found = self.reference("lookup", &caller, |fs| {
            fs.lookup(&caller, parent, name.as_bytes())
        });
        match found {
            // A name that is not there may be remembered, too: node number 0 says so.
            Err(errno) if errno.code() == Errno::ENOENT.code() => {
                let nothing = FileAttr {
                    ino: INodeNo(0),
                    ..NOTHING
                };
                let known = self.policy.entry_timeout;
                reply.entry_with_ttls(&known, &known, &nothing, Generation(0));
            }
            found => self.reply_entry(reply, found),
        }
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        // The protocol crate hands over a batch one by one.
        self.counters.add(Asked::Forget, 1);
        let _turn = self.turns.begin_some();
        let ino = self.ino(node);
        let _ = self
            .shared
            .gate
            .pass(|| self.shared.nodes.forget(&*self.shared.fs, ino, count));
    }

    fn getattr(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let _turn = self.begin(request, Asked::Getattr);
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        self.reply_attr(
            reply,
            self.shared.call("getattr", |fs| fs.getattr(&caller, ino)),
        );
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _turn = self.begin(request, Asked::Setattr);
        let decided_by_groups = mode.is_some() || uid.is_some() || gid.is_some();
        let caller = if decided_by_groups {
            self.identity.owner(request)
        } else {
            self.identity.caller(request)
        };
        let ino = self.ino(node);
        let set = SetAttr {
            perm: mode.map(convert::perm),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
            guard: None,
            by_handle: handle.is_some(),
        };
        self.reply_attr(
            reply,
            self.shared
                .call("setattr", |fs| fs.setattr(&caller, ino, &set)),
        );
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        let _turn = self.begin(request, Asked::Readlink);
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        match self.shared.call("readlink", |fs| fs.readlink(&caller, ino)) {
            Ok(target) => {
                self.accessed(&caller, ino);
                reply.data(&target);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _turn = self.begin(request, Asked::Mknod);
        let Some(kind) = convert::node_kind(mode) else {
            return reply.error(Errno::EINVAL);
        };
        let (caller, parent) = (self.maker(request, mode), self.ino(parent));
        let node = NewNode {
            kind,
            perm: convert::perm(mode),
            rdev,
        };
        let made = self.reference("mknod", &caller, |fs| {
            fs.mknod(&caller, parent, name.as_bytes(), &node)
        });
        self.reply_entry(reply, made);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let _turn = self.begin(request, Asked::Mkdir);
        let (caller, parent) = (self.maker(request, mode), self.ino(parent));
        let made = self.reference("mkdir", &caller, |fs| {
            fs.mkdir(&caller, parent, name.as_bytes(), convert::perm(mode))
        });
        self.reply_entry(reply, made);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.begin(request, Asked::Unlink);
        let (caller, parent) = (self.identity.caller(request), self.ino(parent));
        let name = name.as_bytes();
        reply_empty(
            reply,
            self.shared
                .call("unlink", |fs| fs.unlink(&caller, parent, name)),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.begin(request, Asked::Rmdir);
        let (caller, parent) = (self.identity.caller(request), self.ino(parent));
        let name = name.as_bytes();
        reply_empty(
            reply,
            self.shared
                .call("rmdir", |fs| fs.rmdir(&caller, parent, name)),
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _turn = self.begin(request, Asked::Symlink);
        let (caller, parent) = (self.identity.caller(request), self.ino(parent));
        let made = self.reference("symlink", &caller, |fs| {
            fs.symlink(
                &caller,
                parent,
                name.as_bytes(),
                target.as_os_str().as_bytes(),
            )
        });
        self.reply_entry(reply, made);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.begin(request, Asked::Rename);
        let Some(mode) = convert::rename_mode(flags) else {
            return reply.error(Errno::EINVAL);
        };
        let caller = self.identity.caller(request);
        let from = (self.ino(parent), name.as_bytes());
        let to = (self.ino(new_parent), new_name.as_bytes());
        reply_empty(
            reply,
            self.shared
                .call("rename", |fs| fs.rename(&caller, from, to, mode)),
        );
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let _turn = self.begin(request, Asked::Link);
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let parent = self.ino(new_parent);
        let made = self.reference("link", &caller, |fs| {
            fs.link(&caller, ino, parent, new_name.as_bytes())
        });
        self.reply_entry(reply, made);
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.begin(request, Asked::Open);
        if self.policy.stateless_open {
            // The kernel stops asking, keeps its page cache over opens, and sends no RELEASE.
            return reply.error(Errno::ENOSYS);
        }
        let ino = self.ino(node);
        let opened = self.ask(request, ino, access_of(flags)).and_then(|()| {
            if flags.0 & TRUNCATE == 0 {
                return Ok(());
            }
            let caller = self.identity.caller(request);
            let set = SetAttr {
                size: Some(0),
                by_handle: true,
                ..SetAttr::default()
            };
            self.shared
                .call("open", |fs| fs.setattr(&caller, ino, &set))
                .map(drop)
        });
        match opened {
            Ok(()) => reply.opened(
                FileHandle(0),
                self.policy.keep(FopenFlags::FOPEN_KEEP_CACHE),
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _turn = self.begin(request, Asked::Create);
        /// `O_EXCL`.
        const EXCLUSIVE: i32 = 0o200;
        let (caller, parent) = (self.maker(request, mode), self.ino(parent));
        let node = NewNode {
            kind: FileKind::Regular,
            perm: convert::perm(mode),
            rdev: 0,
        };
        let made = self.reference("create", &caller, |fs| {
            fs.mknod(&caller, parent, name.as_bytes(), &node)
        });
        match made {
            Ok(attr) => reply.created(
                &self.policy.attr_timeout.min(self.policy.entry_timeout),
                &self.attr(&attr),
                convert::generation(&attr),
                FileHandle(0),
                self.policy.keep(FopenFlags::FOPEN_KEEP_CACHE),
            ),
            // The kernel believed that the name was free: it is to look again.
            Err(errno) if errno.code() == Errno::EEXIST.code() && flags & EXCLUSIVE == 0 => {
                reply.error(Errno::ESTALE);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _turn = self.begin(request, Asked::Read);
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let size = (size as usize).min(READ_BYTES_MAX);
        self.turns.may_wait();
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let target = &mut buffer[..size];
            match self
                .shared
                .call("read", |fs| fs.read(&caller, ino, offset, target))
            {
                Ok(len) => {
                    let read = &buffer[..len.min(size)];
                    self.counters.add(Asked::BytesRead, read.len() as u64);
                    if flags.0 & NO_ACCESS_TIME == 0 {
                        self.accessed(&caller, ino);
                    }
                    reply.data(read);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _turn = self.begin(request, Asked::Write);
        // The kernel follows a write with an fsync of its own where O_SYNC or O_DSYNC
        // ask for it; and it has turned O_APPEND into an offset, under the inode's lock.
        let caller = if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            self.identity.kernel()
        } else {
            self.identity.caller(request)
        };
        let ino = self.ino(node);
        match self
            .shared
            .call("write", |fs| fs.write(&caller, ino, offset, data))
        {
            Ok(len) => {
                self.counters.add(Asked::BytesWritten, len as u64);
                reply.written(u32::try_from(len).unwrap_or(u32::MAX));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let _turn = self.begin(request, Asked::Flush);
        // Nothing happens at close(2): the kernel writes back stores made through mmap
        // by itself, and stops asking after this answer.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.begin(request, Asked::Fsync);
        self.sync_node(request, node, data_only, reply);
    }

    fn fsyncdir(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.begin(request, Asked::Fsync);
        self.sync_node(request, node, data_only, reply);
    }

    fn opendir(&self, request: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.begin(request, Asked::Opendir);
        if self.policy.stateless_open {
            return reply.error(Errno::ENOSYS);
        }
        match self.ask(request, self.ino(node), 4) {
            Ok(()) => {
                let cache = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR;
                reply.opened(FileHandle(0), self.policy.keep(cache));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _turn = self.begin(request, Asked::Readdir);
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let listed = self.shared.call("readdir", |fs| {
            fs.readdir(&caller, ino, offset, &mut |entry| {
                let (node, kind) = (self.numbers.node(entry.ino), convert::file_type(entry.kind));
                !reply.add(node, entry.next, kind, OsStr::from_bytes(entry.name))
            })
        });
        match listed {
            Ok(()) => {
                self.accessed(&caller, ino);
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _turn = self.begin(request, Asked::Readdir);
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let listed = self.shared.call("readdirplus", |fs| {
            self.list_with_attributes(fs, &caller, ino, offset, &mut reply)
        });
        match listed {
            Ok(()) => {
                self.accessed(&caller, ino);
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        let _turn = self.begin(request, Asked::Statfs);
        match self.shared.call("statfs", |fs| fs.statfs()) {
            Ok(s) => reply.statfs(
                s.blocks,
                s.blocks_free,
                s.blocks_free,
                s.inodes,
                s.inodes_free,
                s.block_size,
                s.name_max,
                s.block_size,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        position: u32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.begin(request, Asked::Setxattr);
        if name == XATTR_SHUTDOWN {
            return reply_empty(reply, self.shut_down_by_name(request, value));
        }
        if !xattr_offered(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let Some(mode) = convert::xattr_mode(flags).filter(|_| position == 0) else {
            return reply.error(Errno::EINVAL);
        };
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let set = self.shared.call("setxattr", |fs| {
            fs.setxattr(&caller, ino, name.as_bytes(), value, mode)
        });
        reply_empty(reply, set);
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let _turn = self.begin(request, Asked::Getxattr);
        if let Some(value) = self.own_attribute(name.as_bytes()) {
            return reply_xattr(reply, size, value);
        }
        if !xattr_offered(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let value = self
            .shared
            .call("getxattr", |fs| fs.getxattr(&caller, ino, name.as_bytes()));
        reply_xattr(reply, size, value);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.begin(request, Asked::Listxattr);
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let names = self
            .shared
            .call("listxattr", |fs| fs.listxattr(&caller, ino));
        reply_xattr(
            reply,
            size,
            names.map(|names| {
                names
                    .into_iter()
                    .flat_map(|name| name.into_iter().chain([0]))
                    .collect()
            }),
        );
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.begin(request, Asked::Removexattr);
        if !xattr_offered(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let name = name.as_bytes();
        reply_empty(
            reply,
            self.shared
                .call("removexattr", |fs| fs.removexattr(&caller, ino, name)),
        );
    }

    fn access(&self, request: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let _turn = self.begin(request, Asked::Access);
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let mask = (mask.bits() & 0o7) as u8;
        reply_empty(
            reply,
            self.shared
                .call("access", |fs| fs.access(&caller, ino, mask)),
        );
    }

    fn ioctl(
        &self,
        request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let _turn = self.begin(request, Asked::Ioctl);
        match self.own_command(request, command) {
            Ok(()) => reply.ioctl(0, &[]),
            Err(errno) => reply.error(errno),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.begin(request, Asked::Fallocate);
        let Some(mode) = convert::allocate_mode(mode) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let done = self.shared.call("fallocate", |fs| {
            fs.fallocate(&caller, ino, mode, offset, length)
        });
        reply_empty(reply, done);
    }

    fn lseek(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _turn = self.begin(request, Asked::Lseek);
        /// `SEEK_DATA`.
        const DATA: i32 = 3;
        /// `SEEK_HOLE`.
        const HOLE: i32 = 4;
        let whence = match whence {
            DATA => Seek::Data,
            HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        let found = self
            .shared
            .call("lseek", |fs| fs.seek(&caller, ino, offset, whence))
            .and_then(|at| i64::try_from(at).map_err(|_| Errno::EOVERFLOW));
        match found {
            Ok(at) => reply.offset(at),
            Err(errno) => reply.error(errno),
        }
    }
}
