//! The protocol server: requests in, replies out. The modules `names` (names and attributes) and
//! `data` (content) call the file system. No storage logic.
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

use std::ffi::OsStr;
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, Version, WriteFlags,
};
use steadfast_vfs::{Attr, Caller, FileSystem, Ino};

use crate::convert::{self, NodeNumbers};
use crate::counters::{Counters, RequestKind};
use crate::identity::{Identity, Requester};
use crate::readers::{For, Readers, Serving};
use crate::shared::{Policy, Shared};
use crate::trace::Trace;
use crate::values::{CACHED, Changes, NOTHING, NewMode};

/// Longest write that the kernel sends in one request.
pub(crate) const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Read-ahead and other background requests that the kernel keeps in flight.
const BACKGROUND_MAX: u16 = 64;
/// The protocol of the first kernel that is known to drop its cached pages of a range after a
/// direct write to it, too (Linux 6.12).
const DIRECT_FROM: Version = Version(7, 41);

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
    /// Begins a request: a reader serves it; it is counted and traced.
    fn begin(
        &self,
        request: &Request,
        asked: RequestKind,
        node: INodeNo,
        name: Option<&OsStr>,
    ) -> (Serving<'_>, Requester) {
        let request = Requester::new(request, asked, self.ino(node));
        let serving = self.readers.begin(request.thread);
        self.note(&request, asked, node, name);
        (serving, request)
    }

    pub(crate) fn note(
        &self,
        request: &Requester,
        asked: RequestKind,
        node: INodeNo,
        name: Option<&OsStr>,
    ) {
        self.counters.add(asked, 1);
        if let Some(trace) = &self.trace {
            trace.arrived(request, asked, node, name);
        }
    }

    /// Whether changes may wait for a thaw.
    #[cfg_attr(
        target_env = "musl",
        expect(dead_code, reason = "for requests over io_uring")
    )]
    pub(crate) fn frozen(&self) -> bool {
        let until = *self.frozen_until();
        until.is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn frozen_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.frozen_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ino(&self, node: INodeNo) -> Ino {
        self.numbers.ino(node)
    }

    pub(crate) fn attr(&self, attr: &Attr) -> FileAttr {
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

    fn reply_entry(&self, reply: ReplyEntry, result: Result<Attr, Errno>) {
        match result {
            Ok(found) => {
                let attr = self.attr(&found);
                let known = self.policy.attr_timeout(&attr);
                let generation = convert::generation(&found);
                reply.entry_with_ttls(&known, &self.policy.entry_timeout, &attr, generation);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn reply_attr(&self, reply: ReplyAttr, result: Result<Attr, Errno>) {
        match result {
            Ok(attr) => {
                let attr = self.attr(&attr);
                reply.attr(&self.policy.attr_timeout(&attr), &attr);
            }
            Err(errno) => reply.error(errno),
        }
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

/// The server as the protocol crate holds it.
pub(crate) struct Front(pub(crate) Arc<Server>);

impl Deref for Front {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl fuser::Filesystem for Front {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each is asked for by itself: a kernel that lacks one still gets the others.
        // Not among them: splice, and the write-back cache unless it was asked for (it destroys order). And asynchronous direct
        // writes: Linux (6.18) drops the cached pages of their range when they begin and not when they
        // end, so a buffered read in between stays in the cache, stale. In turn it drops both.
        let no_open = InitFlags::FUSE_NO_OPEN_SUPPORT | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        if !config.capabilities().contains(no_open) {
            self.policy.stateless_open.store(false, Ordering::Relaxed);
        }
        if !self.policy.stateless_open() {
            // Else the truncation comes as a SETATTR of its own, since no OPEN is sent.
            let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        }
        for wanted in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HAS_IOCTL_DIR,
            InitFlags::FUSE_EXPORT_SUPPORT,
        ] {
            let _ = config.add_capabilities(wanted);
        }
        if self.policy.acl() {
            let offered = config.add_capabilities(InitFlags::FUSE_POSIX_ACL);
            self.policy.acl.store(offered.is_ok(), Ordering::Relaxed);
        }
        if self.policy.acl() {
            // A default ACL takes the place of the umask, and only the server knows it.
            let _ = config.add_capabilities(InitFlags::FUSE_DONT_MASK);
        }
        if !self.policy.relatime {
            let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        }
        if !self.policy.upper_layer {
            let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        }
        if self.policy.io_uring() {
            let offered = config.add_capabilities(InitFlags::FUSE_OVER_IO_URING);
            self.policy
                .io_uring
                .store(offered.is_ok(), Ordering::Relaxed);
        }
        if self.policy.write_back() {
            let offered = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
            self.policy
                .write_back
                .store(offered.is_ok(), Ordering::Relaxed);
        }
        // A direct write gains nothing where the page cache keeps the data.
        let direct = config.kernel_abi() >= DIRECT_FROM && !self.policy.write_back();
        self.policy.direct.store(direct, Ordering::Relaxed);
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (_serving, ref request) = self.begin(request, RequestKind::Lookup, parent, Some(name));
        match self.found(request, parent, name) {
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

    fn forget(&self, request: &Request, node: INodeNo, count: u64) {
        // The protocol crate hands over a batch one by one.
        let _serving = self.readers.begin_some();
        let ino = self.ino(node);
        let request = Requester::new(request, RequestKind::Forget, ino);
        self.note(&request, RequestKind::Forget, node, None);
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
        let (_serving, ref request) = self.begin(request, RequestKind::Getattr, node, None);
        self.reply_attr(reply, self.attributes(request, node));
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
        let (_serving, ref request) = self.begin(request, RequestKind::Setattr, node, None);
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
            by_handle: handle.is_some(),
        };
        self.reply_attr(reply, self.changed(request, node, &changes));
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        let (_serving, ref request) = self.begin(request, RequestKind::Readlink, node, None);
        match self.target(request, node) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Mknod, parent, Some(name));
        self.reply_entry(
            reply,
            self.made(request, parent, name, NewMode { mode, umask }, rdev),
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Mkdir, parent, Some(name));
        self.reply_entry(
            reply,
            self.made_directory(request, parent, name, NewMode { mode, umask }),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (_serving, ref request) = self.begin(request, RequestKind::Unlink, parent, Some(name));
        reply_empty(reply, self.unlinked(request, parent, name));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (_serving, ref request) = self.begin(request, RequestKind::Rmdir, parent, Some(name));
        reply_empty(reply, self.removed_directory(request, parent, name));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Symlink, parent, Some(name));
        let target = target.as_os_str().as_bytes();
        self.reply_entry(reply, self.made_symlink(request, parent, name, target));
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
        let (_serving, ref request) = self.begin(request, RequestKind::Rename, parent, Some(name));
        let (from, to) = ((parent, name), (new_parent, new_name));
        reply_empty(reply, self.renamed(request, from, to, flags));
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Link, node, Some(new_name));
        self.reply_entry(reply, self.linked(request, node, (new_parent, new_name)));
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (_serving, ref request) = self.begin(request, RequestKind::Open, node, None);
        match self.opened(request, node, flags) {
            Ok(cache) => reply.opened(CACHED, cache),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Create, parent, Some(name));
        let (new, flags) = (NewMode { mode, umask }, OpenFlags(flags));
        match self.created(request, parent, name.as_bytes(), new, flags) {
            Ok((made, handle, cache)) => {
                let (attr, generation) = (self.attr(&made), convert::generation(&made));
                let timeout = self.policy.both_timeouts(&attr);
                reply.created(&timeout, &attr, generation, handle, cache);
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
        let (_serving, ref request) = self.begin(request, RequestKind::Read, node, None);
        self.read_to(request, node, (offset, size), flags, |read| match read {
            Ok(data) => reply.data(data),
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Write, node, None);
        match self.written(request, (node, handle), offset, data, how, flags) {
            Ok(len) => reply.written(len),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let _begun = self.begin(request, RequestKind::Flush, node, None);
        // Nothing happens at close(2): the kernel writes back stores made through mmap
        // by itself, and stops asking after this answer.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _begun = self.begin(request, RequestKind::Release, node, None);
        // A file lives as long as the kernel knows its inode: open or not decides nothing.
        reply.ok();
    }

    fn fsync(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Fsync, node, None);
        reply_empty(reply, self.sync_node(request, node, data_only));
    }

    fn fsyncdir(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Fsyncdir, node, None);
        reply_empty(reply, self.sync_node(request, node, data_only));
    }

    fn opendir(&self, request: &Request, node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let (_serving, ref request) = self.begin(request, RequestKind::Opendir, node, None);
        match self.opened_directory(request, node) {
            Ok(cache) => reply.opened(CACHED, cache),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let _begun = self.begin(request, RequestKind::Releasedir, node, None);
        reply.ok();
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Readdir, node, None);
        let listed = self.listed(request, node, offset, |entry| {
            let (node, kind) = (self.numbers.node(entry.ino), convert::file_type(entry.kind));
            !reply.add(node, entry.next, kind, OsStr::from_bytes(entry.name))
        });
        match listed {
            Ok(()) => reply.ok(),
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
        let (_serving, ref request) = self.begin(request, RequestKind::Readdirplus, node, None);
        let listed = self.listed_with_attributes(request, node, offset, &mut |entry| {
            let name = OsStr::from_bytes(entry.name);
            let (attr, generation) = (&entry.attr, entry.generation);
            let timeout = self.policy.both_timeouts(attr);
            !reply.add(attr.ino, entry.next, name, &timeout, attr, generation)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, request: &Request, node: INodeNo, reply: ReplyStatfs) {
        let _begun = self.begin(request, RequestKind::Statfs, node, None);
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
        let (_serving, ref request) = self.begin(request, RequestKind::Setxattr, node, Some(name));
        let set = match self.set_own_attribute(request, name, value) {
            Some(set) => set,
            None if position != 0 => Err(Errno::EINVAL),
            None => self.set_xattr(request, node, (name, value), flags),
        };
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
        let (_serving, ref request) = self.begin(request, RequestKind::Getxattr, node, Some(name));
        reply_xattr(reply, size, self.xattr(request, node, name));
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let (_serving, ref request) = self.begin(request, RequestKind::Listxattr, node, None);
        reply_xattr(reply, size, self.xattrs(request, node));
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (_serving, ref request) =
            self.begin(request, RequestKind::Removexattr, node, Some(name));
        reply_empty(reply, self.removed_xattr(request, node, name));
    }

    fn access(&self, request: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (_serving, ref request) = self.begin(request, RequestKind::Access, node, None);
        let mask = (mask.bits() & 0o7) as u8;
        reply_empty(reply, self.may(request, node, mask));
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let (_serving, ref request) = self.begin(request, RequestKind::Ioctl, node, None);
        match self.own_command(request, node, command, in_data) {
            Ok(answer) => reply.ioctl(0, &answer),
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
        let (_serving, ref request) = self.begin(request, RequestKind::Fallocate, node, None);
        reply_empty(reply, self.allocated(request, node, (offset, length), mode));
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
        let (_serving, ref request) = self.begin(request, RequestKind::Lseek, node, None);
        match self.sought(request, node, offset, whence) {
            Ok(at) => reply.offset(at),
            Err(errno) => reply.error(errno),
        }
    }
}
