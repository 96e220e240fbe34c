//! Requests for content, carried out on the file system: open and create, read, write, sync,
//! allocation.
//!
//! Invariants:
//! * `OPEN` decides nothing where the kernel has decided, and is then not asked for any more;
//! * a file that was created for writing alone is written *directly*: past the kernel's page
//!   cache, which learns nothing from a partial page anyway, in pieces as large as the program's,
//!   and without the GETXATTR that comes before the first cached write to an inode. The
//!   kernel drops its cached pages of the range, before and after (Linux 6.11);
//! * after a direct write the kernel sends no FSYNC of its own: where `O_SYNC` or `O_DSYNC` asks
//!   for one, it happens here, before the reply;
//! * before a direct write the kernel does not take the file's capabilities away, as it does before a
//!   cached one: that happens here, too;
//! * with a write-back cache, nothing is written directly, and the kernel alone knows where there is data;
//! * a page that is written back is written whole or reported: the kernel takes no notice of a short write there.

use steadfast_fuse_wire::Errno;
use steadfast_fuse_wire::abi::{fopen, write};
use steadfast_vfs::{Attr, Caller, FileKind, FileSystem, Ino, NewNode, Seek, SetAttr};

use crate::convert;
use crate::counters::RequestKind;
use crate::identity::Requester;
use crate::readers::For;
use crate::server::Server;
use crate::values::{CACHED, NewMode, Node};

/// The handle of files that are written directly.
const DIRECT: u64 = 1;

/// The capabilities of a program: a program that was changed must not keep them.
const CAPABILITY: &[u8] = b"security.capability";

/// `O_ACCMODE`.
const ACCESS_MODE: u32 = 0o3;
/// `O_RDONLY`.
const READ_ONLY: u32 = 0;
/// `O_WRONLY`.
const WRITE_ONLY: u32 = 1;
/// `O_TRUNC`.
const TRUNCATE: u32 = 0o1000;
/// `O_EXCL`.
const EXCLUSIVE: u32 = 0o200;
/// `O_NOATIME`.
const NO_ACCESS_TIME: u32 = 0o1_000_000;
/// `O_DSYNC`.
const SYNC_DATA: u32 = 0o10000;
/// Bits that `O_SYNC` has beyond `O_DSYNC`.
const SYNC_ALL: u32 = 0o4000000;

/// Permission to read, and to write.
const READ: u8 = 4;
const WRITE: u8 = 2;

/// Permissions that a file needs to be opened so.
fn access_of(flags: u32) -> u8 {
    let by_mode = match flags & ACCESS_MODE {
        READ_ONLY => READ,
        WRITE_ONLY => WRITE,
        _ => READ | WRITE,
    };
    if flags & TRUNCATE != 0 {
        by_mode | WRITE
    } else {
        by_mode
    }
}

impl Server {
    /// Asks for access where the kernel has not.
    pub(crate) fn ask(&self, request: &Requester, node: Node, mask: u8) -> Result<(), Errno> {
        if self.identity.checked() || mask == 0 {
            return Ok(());
        }
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        self.shared
            .call("access", |fs| fs.access(&caller, ino, mask))
    }

    /// Opens a file; returns flags for the kernel's caches.
    pub(crate) fn opened(&self, request: &Requester, node: Node, flags: u32) -> Result<u32, Errno> {
        if self.policy.stateless_open() {
            // The kernel stops asking, keeps its page cache over opens, and sends no RELEASE.
            return Err(Errno::NOSYS);
        }
        let access = access_of(flags);
        self.ask(request, node, access)?;
        if access & WRITE != 0 {
            // Stores through mmap come without a caller: they join the last stream of the inode.
            let placement = self.identity.streams().of(request);
            self.identity.streams().note(request.ino, placement.stream);
        }
        if flags & TRUNCATE != 0 {
            let (caller, ino) = (self.identity.caller(request), self.ino(node));
            let set = SetAttr {
                size: Some(0),
                by_handle: true,
                ..SetAttr::default()
            };
            self.shared.call("open", |fs| {
                fs.setattr(&caller, ino, &set)?;
                self.changed_content(fs, &caller, ino)
            })?;
        }
        Ok(self.policy.keep(fopen::KEEP_CACHE))
    }

    /// Opens a directory; returns flags for the kernel's caches.
    pub(crate) fn opened_directory(&self, request: &Requester, node: Node) -> Result<u32, Errno> {
        if self.policy.stateless_open() {
            return Err(Errno::NOSYS);
        }
        self.ask(request, node, READ)?;
        let cache = fopen::KEEP_CACHE | fopen::CACHE_DIR;
        Ok(self.policy.keep(cache))
    }

    /// Creates a file and opens it.
    pub(crate) fn created(
        &self,
        request: &Requester,
        parent: Node,
        name: &[u8],
        mode: NewMode,
        flags: u32,
    ) -> Result<(Attr, u64, u32), Errno> {
        let (caller, parent) = (self.maker(request, mode), self.ino(parent));
        let node = NewNode {
            kind: FileKind::Regular,
            perm: convert::perm(mode.mode),
            rdev: 0,
        };
        let made = self.reference("create", &caller, parent, |fs| {
            let made = fs.mknod(&caller, parent, name, &node)?;
            self.changed_names(fs, &caller, &[parent])?;
            Ok(made)
        });
        if let Ok(made) = &made {
            self.identity.streams().note(made.ino, caller.stream);
        }
        match made {
            Ok(attr) if self.policy.direct() && flags & ACCESS_MODE == WRITE_ONLY => {
                let how = fopen::DIRECT_IO | fopen::NOFLUSH;
                Ok((attr, DIRECT, how))
            }
            Ok(attr) => Ok((attr, CACHED, self.policy.keep(fopen::KEEP_CACHE))),
            // The kernel assumed that the name was free: it is to look again.
            Err(Errno::EXIST) if flags & EXCLUSIVE == 0 => Err(Errno::STALE),
            Err(errno) => Err(errno),
        }
    }

    /// Reads to `target`; how much.
    pub(crate) fn read(
        &self,
        request: &Requester,
        node: Node,
        (offset, flags): (u64, u32),
        target: &mut [u8],
    ) -> Result<usize, Errno> {
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        let _waiting = self.readers.waits(For::Content);
        let read = self
            .shared
            .call("read", |fs| fs.read(&caller, ino, offset, target))?;
        let len = read.min(target.len());
        self.counters.add(RequestKind::BytesRead, len as u64);
        if flags & NO_ACCESS_TIME == 0 {
            self.accessed(&caller, ino);
        }
        Ok(len)
    }

    /// Writes all of `data`; how much that is.
    pub(crate) fn written(
        &self,
        request: &Requester,
        (node, handle): (Node, u64),
        offset: u64,
        data: &[u8],
        how: u32,
        flags: u32,
    ) -> Result<u32, Errno> {
        // The kernel has turned O_APPEND into an offset, under the inode's lock.
        let caller = if how & write::CACHE != 0 {
            self.identity.kernel(request)
        } else if how & write::KILL_SUIDGID != 0 && request.uid == 0 {
            self.identity.unprivileged(request)
        } else {
            self.identity.caller(request)
        };
        let ino = self.ino(node);
        if handle == DIRECT {
            self.drop_capability(&caller, ino)?;
        }
        let len = if how & write::CACHE != 0 {
            self.write_back(&caller, ino, offset, data)?
        } else {
            self.shared
                .call("write", |fs| fs.write(&caller, ino, offset, data))?
        };
        self.counters.add(RequestKind::BytesWritten, len as u64);
        if handle == DIRECT && (self.policy.sync || flags & (SYNC_DATA | SYNC_ALL) != 0) {
            let data_only = !self.policy.sync && flags & SYNC_ALL == 0;
            match self.policy.sync {
                true => self.commit_node(&caller, ino, data_only)?,
                false => self.sync_node(request, node, data_only)?,
            }
        }
        Ok(u32::try_from(len).unwrap_or(u32::MAX))
    }

    /// Writes pages of the kernel's cache, all of `data` or an error: the program that wrote them has gone on.
    fn write_back(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> Result<usize, Errno> {
        self.counters
            .add(RequestKind::BytesWrittenBack, data.len() as u64);
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let rest = &data[done..];
            let len = self
                .shared
                .call("write", |fs| fs.write(caller, ino, at, rest))?;
            if len == 0 {
                return Err(Errno::NOSPC);
            }
            done += len;
        }
        Ok(done)
    }

    /// An operation of its own, before the write: a crash between them leaves the old program without
    /// its capabilities. To ask costs no read: capabilities lie in the inode, unless longer attributes
    /// put all of them into a block.
    fn drop_capability(&self, caller: &Caller, ino: Ino) -> Result<(), Errno> {
        let permitted = Caller {
            checked: true,
            ..caller.clone()
        };
        let has = |fs: &dyn FileSystem| fs.getxattr(&permitted, ino, CAPABILITY);
        match self.shared.call("getxattr", has) {
            Ok(_) => self.shared.call("removexattr", |fs| {
                fs.removexattr(&permitted, ino, CAPABILITY)
            }),
            Err(_) => Ok(()),
        }
    }

    /// fsync of a file or directory, unless the caller's stream ignores it. A volume that has failed says so in any case.
    pub(crate) fn sync_node(
        &self,
        request: &Requester,
        node: Node,
        data_only: bool,
    ) -> Result<(), Errno> {
        let placement = self.identity.streams().of(request);
        if placement.ignores_fsync_of(request) {
            self.counters.add(RequestKind::IgnoredSyncs, 1);
            return self.shared.call("fsync", |fs| match fs.health().failed {
                None => Ok(()),
                Some(why) => Err(steadfast_vfs::Error::new(steadfast_vfs::Errno::Io, why)),
            });
        }
        let caller = Caller {
            stream: placement.stream,
            ..self.identity.reader(request)
        };
        self.commit_node(&caller, self.ino(node), data_only)
    }

    fn commit_node(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<(), Errno> {
        let _waiting = self.readers.waits(For::Commit);
        self.shared
            .call("fsync", |fs| fs.fsync(caller, ino, data_only))
    }

    /// Commits every stream.
    pub(crate) fn sync_all(&self) -> Result<(), Errno> {
        let _waiting = self.readers.waits(For::Commit);
        self.shared.call("sync", |fs| fs.sync())
    }

    /// Commits every stream, and waits for the store.
    pub(crate) fn sync_store(&self) -> Result<(), Errno> {
        let _waiting = self.readers.waits(For::Commit);
        self.shared.call("sync", |fs| fs.sync_store())
    }

    /// Changes the allocation of a range.
    pub(crate) fn allocated(
        &self,
        request: &Requester,
        node: Node,
        (offset, length): (u64, u64),
        mode: u32,
    ) -> Result<(), Errno> {
        let mode = convert::allocate_mode(mode).ok_or(Errno::OPNOTSUPP)?;
        let (caller, ino) = (self.identity.caller(request), self.ino(node));
        self.shared.call("fallocate", |fs| {
            fs.fallocate(&caller, ino, mode, offset, length)?;
            self.changed_content(fs, &caller, ino)
        })
    }

    /// Finds data or a hole.
    pub(crate) fn sought(
        &self,
        request: &Requester,
        node: Node,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        /// `SEEK_DATA`.
        const DATA: u32 = 3;
        /// `SEEK_HOLE`.
        const HOLE: u32 = 4;
        if self.policy.write_back() {
            // A page that has not been written back would pass for a hole. The kernel stops asking, and says that all is data.
            return Err(Errno::NOSYS);
        }
        let whence = match whence {
            DATA => Seek::Data,
            HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        if i64::try_from(offset).is_err() {
            return Err(Errno::NXIO);
        }
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        let at = self
            .shared
            .call("lseek", |fs| fs.seek(&caller, ino, offset, whence))?;
        match i64::try_from(at) {
            Ok(_) => Ok(at),
            Err(_) => Err(Errno::OVERFLOW),
        }
    }
}
