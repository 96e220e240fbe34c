//! Requests over io_uring (`FUSE_OVER_IO_URING`, Linux 6.14): a queue and a thread for each processor, where
//! the kernel puts what is asked there. A request is answered where it was asked, and the answer
//! fetches the next one with the same system call.
//!
//! The protocol crate still makes the handshake, reads what the kernel sends the old way (FORGET), and
//! hears of the end. Not served here: ioctl(2), whose work the attributes of `control` do as well.
//!
//! Invariants:
//! * every possible processor has its queue: a request on one without would wait for ever;
//! * every request passes the gate, in `shared`, and is counted; a reply that gives the kernel references
//!   holds exactly the entries that were counted;
//! * waits of a kind that has been long of late are another thread's, and the queue goes on: it stands
//!   still for one wait at most that is longer than those before;
//! * a queue's buffers live as long as its ring.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::SystemTime;

use compio_runtime::{Runtime, register_files, spawn, spawn_blocking, submit};
use fractal_fuse::ring::{FuseCommitAndFetch, FuseRegister, RingEntry, allocate_ring_entries};
use fractal_fuse::{
    DirectoryEntry, DirectoryEntryPlus, FileAttr, FileHandleId, FileType, Filesystem, FsResult,
    InodeId, ReplyAttr, ReplyCreate, ReplyEntry, ReplyOpen, ReplyReadlink, ReplyStatfs, ReplyXattr,
    Request, SetAttr, SetAttrTime, Timestamp, dispatch::dispatch,
};
use fuser::{Errno, FileHandle, FopenFlags, INodeNo, OpenFlags, RenameFlags, WriteFlags};
use steadfast_vfs::{Attr, SetTime, Time};

use crate::counters::Asked;
use crate::data::CACHED;
use crate::identity::Asker;
use crate::names::{Changes, NewMode};
use crate::server::{Server, WRITE_BYTES_MAX};
use crate::turns::For;

/// Requests that may be in progress at a time on all processors, as far as each has two: every one has
/// a buffer of [`WRITE_BYTES_MAX`]. More wait in the kernel.
const REQUESTS_MAX: u16 = 64;
const QUEUE_DEPTH_MIN: u16 = 2;

/// The kernel's list of processors that may ever be there, such as `0-3`.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Serves requests that come over io_uring on the connection `device`, until it ends; of each processor
/// `requests` at a time, if that is not too many for all.
pub(crate) fn start(device: &impl AsFd, server: &Arc<Server>, requests: usize) -> io::Result<()> {
    let queues = count(std::fs::read_to_string(POSSIBLE)?.trim())?;
    let depth = (REQUESTS_MAX / queues)
        .min(u16::try_from(requests).unwrap_or(u16::MAX))
        .max(QUEUE_DEPTH_MIN);
    // The kernel holds all requests back until every queue is there: one that cannot be made is heard of
    // here, and the connection ends.
    let (tell, told) = mpsc::channel();
    for queue in 0..queues {
        let device = device.as_fd().try_clone_to_owned()?;
        let (server, tell) = (Arc::clone(server), tell.clone());
        let made = move || tell.send(()).map_err(io::Error::other);
        thread::Builder::new()
            .name(format!("fuse-ring-{queue}"))
            .spawn(move || {
                if let Err(e) = serve_queue(queue, depth, &device, &server, made) {
                    server.tell(&format!("io_uring, queue {queue}: {e}"));
                }
            })?;
    }
    drop(tell);
    match told.iter().count() == usize::from(queues) {
        true => Ok(()),
        false => Err(io::Error::other(
            "io_uring cannot be used (its log says why)",
        )),
    }
}

/// How many processors a list such as `0-2,5` names.
fn count(list: &str) -> io::Result<u16> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("{POSSIBLE}: {list}"));
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    let mut ranges = list.split(',').map(range);
    ranges
        .try_fold(0u16, |sum, one| sum.checked_add(one?))
        .filter(|&sum| sum > 0)
        .ok_or_else(wrong)
}

fn serve_queue(
    queue: u16,
    depth: u16,
    device: &OwnedFd,
    server: &Arc<Server>,
    made: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let here = HashSet::from([usize::from(queue)]);
    let runtime = Runtime::builder().thread_affinity(here).build()?;
    runtime.block_on(async {
        register_files(&[device.as_raw_fd()])?;
        let entries = allocate_ring_entries(depth, WRITE_BYTES_MAX as usize)?;
        let alive = Rc::new(());
        let serve = |entry| {
            let (ring, alive) = (Ring(Arc::clone(server)), Rc::clone(&alive));
            spawn(async move {
                let _alive = alive;
                serve_entry(queue, entry, ring).await
            })
        };
        let tasks: Vec<_> = entries.into_iter().map(serve).collect();
        // Each task has handed its buffer to the kernel before this one, the last, gets its turn.
        let _ = spawn(async {}).await;
        if Rc::strong_count(&alive) <= tasks.len() {
            return Err(io::Error::other("the kernel takes no buffer"));
        }
        made()?;
        let mut buffers = Vec::new();
        for task in tasks {
            match task.await {
                Ok(entry) => buffers.push(entry),
                Err(e) => server.tell(&format!("io_uring, queue {queue}: {e}")),
            }
        }
        Ok(())
    })
}

/// Serves the requests that come in one buffer, until the connection ends. Gives the buffer back.
async fn serve_entry(queue: u16, mut entry: RingEntry, ring: Ring) -> RingEntry {
    let mut fetched = submit(FuseRegister::new(&entry, queue)).await.0;
    while fetched.is_ok() {
        let (answered, _) = dispatch(&ring, &mut entry).await;
        fetched = match answered {
            Some(()) => {
                let commit = entry.commit_id();
                submit(FuseCommitAndFetch::new(queue, commit)).await.0
            }
            None => submit(FuseRegister::new(&entry, queue)).await.0,
        };
    }
    entry
}

/// The server as the ring's protocol crate calls it.
struct Ring(Arc<Server>);

fn fail(errno: Errno) -> i32 {
    errno.code()
}

fn node(number: InodeId) -> INodeNo {
    INodeNo(number.get())
}

fn timestamp(time: SystemTime) -> Timestamp {
    // The protocol's field is signed: seconds before 1970 are negative.
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Timestamp::new(since.as_secs(), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => Timestamp::new(before.as_secs().wrapping_neg(), 0),
                nanos => Timestamp::new(!before.as_secs(), 1_000_000_000 - nanos),
            }
        }
    }
}

fn set_time(time: SetAttrTime) -> SetTime {
    match time {
        SetAttrTime::Now => SetTime::Now,
        SetAttrTime::Specific(at) => SetTime::At(Time {
            secs: at.sec.cast_signed(),
            nanos: at.nsec,
        }),
    }
}

fn file_type(kind: fuser::FileType) -> FileType {
    match kind {
        fuser::FileType::RegularFile => FileType::RegularFile,
        fuser::FileType::Directory => FileType::Directory,
        fuser::FileType::Symlink => FileType::Symlink,
        fuser::FileType::BlockDevice => FileType::BlockDevice,
        fuser::FileType::CharDevice => FileType::CharDevice,
        fuser::FileType::NamedPipe => FileType::NamedPipe,
        fuser::FileType::Socket => FileType::Socket,
    }
}

fn file_attr(attr: &fuser::FileAttr) -> FileAttr {
    FileAttr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: timestamp(attr.atime),
        mtime: timestamp(attr.mtime),
        ctime: timestamp(attr.ctime),
        mode: file_type(attr.kind).to_mode() | u32::from(attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
    }
}

/// Bytes that a listing's entry takes: its head, the name, and what fills whole words.
fn listed_bytes(head: usize, name: &[u8]) -> usize {
    (head + name.len()).next_multiple_of(8)
}
const ENTRY_HEAD: usize = 24;
const ENTRY_PLUS_HEAD: usize = 152;

/// The kernel has applied the umask: `FUSE_DONT_MASK` is not asked for over io_uring.
fn masked(mode: u32) -> NewMode {
    NewMode { mode, umask: 0 }
}

impl Ring {
    fn begin(&self, request: Request, asked: Asked, on: InodeId, name: Option<&OsStr>) -> Asker {
        let asker = Asker {
            uid: request.uid,
            gid: request.gid,
            thread: request.pid,
            ino: self.0.ino(node(on)),
            asked,
        };
        self.0.note(&asker, asked, node(on), name);
        asker
    }

    fn entry(&self, result: Result<Attr, Errno>) -> FsResult<ReplyEntry> {
        result.map_err(fail).map(|found| {
            let attr = self.0.attr(&found);
            ReplyEntry {
                ttl: self.0.policy.both_timeouts(&attr),
                attr: file_attr(&attr),
                generation: found.generation,
            }
        })
    }

    fn attr(&self, result: Result<Attr, Errno>) -> FsResult<ReplyAttr> {
        result.map_err(fail).map(|attr| {
            let attr = self.0.attr(&attr);
            ReplyAttr {
                ttl: self.0.policy.attr_timeout(&attr),
                attr: file_attr(&attr),
            }
        })
    }

    async fn synced(&self, asker: Asker, on: InodeId, data_only: bool) -> FsResult<()> {
        if !self.0.turns.long(For::Commit) {
            return self.0.sync_node(&asker, node(on), data_only).map_err(fail);
        }
        let server = Arc::clone(&self.0);
        let synced = spawn_blocking(move || server.sync_node(&asker, node(on), data_only));
        synced.await.unwrap_or(Err(Errno::EIO)).map_err(fail)
    }
}

fn xattr(size: u32, value: Result<Vec<u8>, Errno>) -> FsResult<ReplyXattr> {
    let value = value.map_err(fail)?;
    if size > 0 {
        return Ok(ReplyXattr::Data(value));
    }
    u32::try_from(value.len())
        .map(ReplyXattr::Size)
        .map_err(|_| Errno::E2BIG.code())
}

impl Filesystem for Ring {
    async fn lookup(&self, r: Request, parent: InodeId, name: &OsStr) -> FsResult<ReplyEntry> {
        let asker = self.begin(r, Asked::Lookup, parent, Some(name));
        match self.0.found(&asker, node(parent), name) {
            Err(errno) if errno.code() == Errno::ENOENT.code() => Ok(ReplyEntry {
                ttl: self.0.policy.entry_timeout,
                attr: FileAttr::default(),
                generation: 0,
            }),
            found => self.entry(found),
        }
    }

    async fn getattr(
        &self,
        r: Request,
        on: InodeId,
        _handle: Option<FileHandleId>,
        _flags: u32,
    ) -> FsResult<ReplyAttr> {
        let asker = self.begin(r, Asked::Getattr, on, None);
        self.attr(self.0.attributes(&asker, node(on)))
    }

    async fn setattr(
        &self,
        r: Request,
        on: InodeId,
        handle: Option<FileHandleId>,
        set: SetAttr,
    ) -> FsResult<ReplyAttr> {
        let asker = self.begin(r, Asked::Setattr, on, None);
        let changes = Changes {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(set_time),
            mtime: set.mtime.map(set_time),
            by_handle: handle.is_some(),
        };
        self.attr(self.0.changed(&asker, node(on), &changes))
    }

    async fn readlink(&self, r: Request, on: InodeId) -> FsResult<ReplyReadlink> {
        let asker = self.begin(r, Asked::Readlink, on, None);
        let target = self.0.target(&asker, node(on)).map_err(fail)?;
        Ok(ReplyReadlink { data: target })
    }

    async fn symlink(
        &self,
        r: Request,
        parent: InodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> FsResult<ReplyEntry> {
        let asker = self.begin(r, Asked::Symlink, parent, Some(name));
        let target = target.as_bytes();
        self.entry(self.0.made_symlink(&asker, node(parent), name, target))
    }

    async fn mknod(
        &self,
        r: Request,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> FsResult<ReplyEntry> {
        let asker = self.begin(r, Asked::Mknod, parent, Some(name));
        self.entry(self.0.made(&asker, node(parent), name, masked(mode), rdev))
    }

    async fn mkdir(
        &self,
        r: Request,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        _umask: u32,
    ) -> FsResult<ReplyEntry> {
        let asker = self.begin(r, Asked::Mkdir, parent, Some(name));
        self.entry(
            self.0
                .made_directory(&asker, node(parent), name, masked(mode)),
        )
    }

    async fn unlink(&self, r: Request, parent: InodeId, name: &OsStr) -> FsResult<()> {
        let asker = self.begin(r, Asked::Unlink, parent, Some(name));
        self.0.unlinked(&asker, node(parent), name).map_err(fail)
    }

    async fn rmdir(&self, r: Request, parent: InodeId, name: &OsStr) -> FsResult<()> {
        let asker = self.begin(r, Asked::Rmdir, parent, Some(name));
        let removed = self.0.removed_directory(&asker, node(parent), name);
        removed.map_err(fail)
    }

    async fn rename(
        &self,
        r: Request,
        parent: InodeId,
        name: &OsStr,
        new_parent: InodeId,
        new_name: &OsStr,
        flags: u32,
    ) -> FsResult<()> {
        let asker = self.begin(r, Asked::Rename, parent, Some(name));
        let (from, to) = ((node(parent), name), (node(new_parent), new_name));
        let flags = RenameFlags::from_bits_retain(flags);
        self.0.renamed(&asker, from, to, flags).map_err(fail)
    }

    async fn link(
        &self,
        r: Request,
        on: InodeId,
        new_parent: InodeId,
        new_name: &OsStr,
    ) -> FsResult<ReplyEntry> {
        let asker = self.begin(r, Asked::Link, on, Some(new_name));
        let to = (node(new_parent), new_name);
        self.entry(self.0.linked(&asker, node(on), to))
    }

    async fn open(&self, r: Request, on: InodeId, flags: u32) -> FsResult<ReplyOpen> {
        let asker = self.begin(r, Asked::Open, on, None);
        let flags = OpenFlags(flags.cast_signed());
        let cache = self.0.opened(&asker, node(on), flags).map_err(fail)?;
        Ok(open_reply(cache))
    }

    async fn create(
        &self,
        r: Request,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        flags: u32,
    ) -> FsResult<ReplyCreate> {
        let asker = self.begin(r, Asked::Create, parent, Some(name));
        let flags = OpenFlags(flags.cast_signed());
        let created = self
            .0
            .created(&asker, node(parent), name.as_bytes(), masked(mode), flags);
        let (attr, handle, how) = created.map_err(fail)?;
        let ReplyEntry {
            ttl,
            attr,
            generation,
        } = self.entry(Ok(attr))?;
        Ok(ReplyCreate {
            ttl,
            attr,
            generation,
            fh: FileHandleId(handle.0),
            flags: how.bits(),
        })
    }

    async fn read(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        offset: u64,
        target: &mut [u8],
    ) -> FsResult<usize> {
        let asker = self.begin(r, Asked::Read, on, None);
        // The transport does not pass the flags of the open file on.
        let from = (offset, OpenFlags(0));
        if !self.0.turns.long(For::Content) {
            let read = self.0.read(&asker, node(on), from, target);
            return read.map_err(fail);
        }
        let (server, size) = (Arc::clone(&self.0), target.len());
        let read = spawn_blocking(move || {
            let mut bytes = vec![0; size];
            let len = server.read(&asker, node(on), from, &mut bytes)?;
            bytes.truncate(len);
            Ok(bytes)
        });
        let bytes = read.await.unwrap_or(Err(Errno::EIO)).map_err(fail)?;
        target[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    async fn write(
        &self,
        r: Request,
        on: InodeId,
        handle: FileHandleId,
        offset: u64,
        data: &[u8],
        how: u32,
        flags: u32,
    ) -> FsResult<usize> {
        let asker = self.begin(r, Asked::Write, on, None);
        let file = (node(on), FileHandle(handle.get()));
        let how = WriteFlags::from_bits_retain(how);
        let flags = OpenFlags(flags.cast_signed());
        let written = self.0.written(&asker, file, offset, data, how, flags);
        written.map(|len| len as usize).map_err(fail)
    }

    async fn flush(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        _owner: u64,
    ) -> FsResult<()> {
        self.begin(r, Asked::Flush, on, None);
        Err(Errno::ENOSYS.code())
    }

    async fn release(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        _flags: u32,
        _owner: u64,
        _flush: bool,
        _unlock: bool,
    ) -> FsResult<()> {
        self.begin(r, Asked::Release, on, None);
        Ok(())
    }

    async fn fsync(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        data_only: bool,
    ) -> FsResult<()> {
        let asker = self.begin(r, Asked::Fsync, on, None);
        self.synced(asker, on, data_only).await
    }

    async fn fsyncdir(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        data_only: bool,
    ) -> FsResult<()> {
        let asker = self.begin(r, Asked::Fsyncdir, on, None);
        self.synced(asker, on, data_only).await
    }

    async fn opendir(&self, r: Request, on: InodeId, _flags: u32) -> FsResult<ReplyOpen> {
        let asker = self.begin(r, Asked::Opendir, on, None);
        let cache = self.0.opened_directory(&asker, node(on)).map_err(fail)?;
        Ok(open_reply(cache))
    }

    async fn releasedir(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        _flags: u32,
    ) -> FsResult<()> {
        self.begin(r, Asked::Releasedir, on, None);
        Ok(())
    }

    async fn readdir(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        offset: u64,
        size: u32,
    ) -> FsResult<Vec<DirectoryEntry>> {
        let asker = self.begin(r, Asked::Readdir, on, None);
        let (mut entries, mut left) = (Vec::new(), size as usize);
        let listed = self.0.listed(&asker, node(on), offset, |entry| {
            let Some(rest) = left.checked_sub(listed_bytes(ENTRY_HEAD, entry.name)) else {
                return false;
            };
            left = rest;
            entries.push(DirectoryEntry {
                ino: self.0.numbers.node(entry.ino).0,
                offset: entry.next,
                kind: file_type(crate::convert::file_type(entry.kind)),
                name: entry.name.to_vec(),
            });
            true
        });
        listed.map(|()| entries).map_err(fail)
    }

    async fn readdirplus(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        offset: u64,
        size: u32,
    ) -> FsResult<Vec<DirectoryEntryPlus>> {
        let asker = self.begin(r, Asked::Readdirplus, on, None);
        let (mut entries, mut left) = (Vec::new(), size as usize);
        let policy = &self.0.policy;
        let listed = self
            .0
            .listed_with_attributes(&asker, node(on), offset, &mut |entry| {
                let Some(rest) = left.checked_sub(listed_bytes(ENTRY_PLUS_HEAD, entry.name)) else {
                    return false;
                };
                left = rest;
                entries.push(DirectoryEntryPlus {
                    ino: entry.attr.ino.0,
                    offset: entry.next,
                    kind: file_type(entry.attr.kind),
                    name: entry.name.to_vec(),
                    entry_ttl: policy.both_timeouts(&entry.attr),
                    attr: file_attr(&entry.attr),
                    generation: entry.generation.0,
                });
                true
            });
        listed.map(|()| entries).map_err(fail)
    }

    async fn statfs(&self, r: Request, on: InodeId) -> FsResult<ReplyStatfs> {
        self.begin(r, Asked::Statfs, on, None);
        let s = self.0.shared.call("statfs", |fs| fs.statfs());
        let s = s.map_err(fail)?;
        Ok(ReplyStatfs {
            blocks: s.blocks,
            bfree: s.blocks_free,
            bavail: s.blocks_free,
            files: s.inodes,
            ffree: s.inodes_free,
            bsize: s.block_size,
            namelen: s.name_max,
            frsize: s.block_size,
        })
    }

    async fn access(&self, r: Request, on: InodeId, mask: u32) -> FsResult<()> {
        let asker = self.begin(r, Asked::Access, on, None);
        let mask = (mask & 0o7) as u8;
        self.0.may(&asker, node(on), mask).map_err(fail)
    }

    async fn fallocate(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> FsResult<()> {
        let asker = self.begin(r, Asked::Fallocate, on, None);
        let done = self
            .0
            .allocated(&asker, node(on), (offset, length), mode.cast_signed());
        done.map_err(fail)
    }

    async fn lseek(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        offset: u64,
        whence: u32,
    ) -> FsResult<u64> {
        let asker = self.begin(r, Asked::Lseek, on, None);
        let (offset, whence) = (offset.cast_signed(), whence.cast_signed());
        let found = self.0.sought(&asker, node(on), offset, whence);
        found.map(i64::cast_unsigned).map_err(fail)
    }

    async fn setxattr(
        &self,
        r: Request,
        on: InodeId,
        name: &OsStr,
        value: &[u8],
        flags: u32,
    ) -> FsResult<()> {
        let asker = self.begin(r, Asked::Setxattr, on, Some(name));
        let set = match self.0.set_own_attribute(&asker, name, value) {
            Some(set) => set,
            None => {
                let flags = flags.cast_signed();
                self.0.set_xattr(&asker, node(on), (name, value), flags)
            }
        };
        set.map_err(fail)
    }

    async fn getxattr(
        &self,
        r: Request,
        on: InodeId,
        name: &OsStr,
        size: u32,
    ) -> FsResult<ReplyXattr> {
        let asker = self.begin(r, Asked::Getxattr, on, Some(name));
        if !(crate::requests::commits(name) && self.0.turns.long(For::Commit)) {
            return xattr(size, self.0.xattr(&asker, node(on), name));
        }
        let (server, name) = (Arc::clone(&self.0), name.to_owned());
        let value = spawn_blocking(move || server.xattr(&asker, node(on), &name));
        xattr(size, value.await.unwrap_or(Err(Errno::EIO)))
    }

    async fn listxattr(&self, r: Request, on: InodeId, size: u32) -> FsResult<ReplyXattr> {
        let asker = self.begin(r, Asked::Listxattr, on, None);
        xattr(size, self.0.xattrs(&asker, node(on)))
    }

    async fn removexattr(&self, r: Request, on: InodeId, name: &OsStr) -> FsResult<()> {
        let asker = self.begin(r, Asked::Removexattr, on, Some(name));
        let removed = self.0.removed_xattr(&asker, node(on), name);
        removed.map_err(fail)
    }
}

fn open_reply(cache: FopenFlags) -> ReplyOpen {
    ReplyOpen {
        fh: FileHandleId(CACHED.0),
        flags: cache.bits(),
        backing_id: 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_processor_that_may_be_there_is_counted() {
        for (list, sum) in [("0", 1), ("0-3", 4), ("0-1,4-5,9", 5)] {
            assert_eq!(count(list).unwrap(), sum);
        }
        for list in ["", "x", "3-1", "0-99999", "0-65535"] {
            assert!(count(list).is_err(), "{list}");
        }
    }

    #[test]
    fn times_before_1970_are_negative_seconds_and_positive_nanoseconds() {
        let epoch = SystemTime::UNIX_EPOCH;
        let check = |time, secs: i64, nanos| {
            let stamp = timestamp(time);
            assert_eq!((stamp.sec.cast_signed(), stamp.nsec), (secs, nanos));
        };
        check(epoch + Duration::new(5, 7), 5, 7);
        check(epoch - Duration::from_secs(2), -2, 0);
        check(epoch - Duration::new(1, 200_000_000), -2, 800_000_000);
    }
}
