//! The server as the protocol crate of the rings calls it. No handler waits for another future: each is done
//! when it is first polled.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::SystemTime;

use fractal_fuse::{
    DirectoryEntry, DirectoryEntryPlus, FileAttr, FileHandleId, FileType, Filesystem, FsResult,
    InodeId, ReplyAttr, ReplyCreate, ReplyEntry, ReplyOpen, ReplyReadlink, ReplyStatfs, ReplyXattr,
    Request, SetAttr, SetAttrTime, Timestamp,
};
use fuser::{Errno, FileHandle, FopenFlags, INodeNo, OpenFlags, RenameFlags, WriteFlags};
use steadfast_vfs::{Attr, SetTime, Time};

use crate::counters::RequestKind;
use crate::identity::Requester;
use crate::server::Server;
use crate::values::{CACHED, Changes, NewMode};

/// The server as the protocol crate of the rings calls it; one for each buffer.
pub(super) struct Ring {
    pub(super) server: Arc<Server>,
    /// The field that the crate does not pass on: the umask of a new inode, the open file's flags of a read.
    pub(super) untold: AtomicU32,
}

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

/// Bytes that a listing's entry takes: its head, the name, and padding to whole words.
fn listed_bytes(head: usize, name: &[u8]) -> usize {
    (head + name.len()).next_multiple_of(8)
}
const ENTRY_HEAD: usize = 24;
const ENTRY_PLUS_HEAD: usize = 152;

impl Ring {
    /// The mode of something new, before the umask.
    fn new_mode(&self, mode: u32) -> NewMode {
        let umask = self.untold.load(Relaxed);
        NewMode { mode, umask }
    }

    pub(super) fn begin(
        &self,
        request: Request,
        asked: RequestKind,
        on: InodeId,
        name: Option<&OsStr>,
    ) -> Requester {
        let asker = Requester {
            uid: request.uid,
            gid: request.gid,
            thread: request.pid,
            ino: self.server.ino(node(on)),
            asked,
        };
        self.server.readers.begin_in_place(request.pid);
        self.server.note(&asker, asked, node(on), name);
        asker
    }

    fn entry(&self, result: Result<Attr, Errno>) -> FsResult<ReplyEntry> {
        result.map_err(fail).map(|found| {
            let attr = self.server.attr(&found);
            ReplyEntry {
                ttl: self.server.policy.both_timeouts(&attr),
                attr: file_attr(&attr),
                generation: found.generation,
            }
        })
    }

    fn attr(&self, result: Result<Attr, Errno>) -> FsResult<ReplyAttr> {
        result.map_err(fail).map(|attr| {
            let attr = self.server.attr(&attr);
            ReplyAttr {
                ttl: self.server.policy.attr_timeout(&attr),
                attr: file_attr(&attr),
            }
        })
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
        let asker = self.begin(r, RequestKind::Lookup, parent, Some(name));
        match self.server.found(&asker, node(parent), name) {
            Err(errno) if errno.code() == Errno::ENOENT.code() => Ok(ReplyEntry {
                ttl: self.server.policy.entry_timeout,
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
        let asker = self.begin(r, RequestKind::Getattr, on, None);
        self.attr(self.server.attributes(&asker, node(on)))
    }

    async fn setattr(
        &self,
        r: Request,
        on: InodeId,
        handle: Option<FileHandleId>,
        set: SetAttr,
    ) -> FsResult<ReplyAttr> {
        let asker = self.begin(r, RequestKind::Setattr, on, None);
        let changes = Changes {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(set_time),
            mtime: set.mtime.map(set_time),
            by_handle: handle.is_some(),
        };
        self.attr(self.server.changed(&asker, node(on), &changes))
    }

    async fn readlink(&self, r: Request, on: InodeId) -> FsResult<ReplyReadlink> {
        let asker = self.begin(r, RequestKind::Readlink, on, None);
        let target = self.server.target(&asker, node(on)).map_err(fail)?;
        Ok(ReplyReadlink { data: target })
    }

    async fn symlink(
        &self,
        r: Request,
        parent: InodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> FsResult<ReplyEntry> {
        let asker = self.begin(r, RequestKind::Symlink, parent, Some(name));
        let target = target.as_bytes();
        self.entry(self.server.made_symlink(&asker, node(parent), name, target))
    }

    async fn mknod(
        &self,
        r: Request,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> FsResult<ReplyEntry> {
        let asker = self.begin(r, RequestKind::Mknod, parent, Some(name));
        self.entry(
            self.server
                .made(&asker, node(parent), name, self.new_mode(mode), rdev),
        )
    }

    async fn mkdir(
        &self,
        r: Request,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        _umask: u32,
    ) -> FsResult<ReplyEntry> {
        let asker = self.begin(r, RequestKind::Mkdir, parent, Some(name));
        self.entry(
            self.server
                .made_directory(&asker, node(parent), name, self.new_mode(mode)),
        )
    }

    async fn unlink(&self, r: Request, parent: InodeId, name: &OsStr) -> FsResult<()> {
        let asker = self.begin(r, RequestKind::Unlink, parent, Some(name));
        self.server
            .unlinked(&asker, node(parent), name)
            .map_err(fail)
    }

    async fn rmdir(&self, r: Request, parent: InodeId, name: &OsStr) -> FsResult<()> {
        let asker = self.begin(r, RequestKind::Rmdir, parent, Some(name));
        let removed = self.server.removed_directory(&asker, node(parent), name);
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
        let asker = self.begin(r, RequestKind::Rename, parent, Some(name));
        let (from, to) = ((node(parent), name), (node(new_parent), new_name));
        let flags = RenameFlags::from_bits_retain(flags);
        self.server.renamed(&asker, from, to, flags).map_err(fail)
    }

    async fn link(
        &self,
        r: Request,
        on: InodeId,
        new_parent: InodeId,
        new_name: &OsStr,
    ) -> FsResult<ReplyEntry> {
        let asker = self.begin(r, RequestKind::Link, on, Some(new_name));
        let to = (node(new_parent), new_name);
        self.entry(self.server.linked(&asker, node(on), to))
    }

    async fn open(&self, r: Request, on: InodeId, flags: u32) -> FsResult<ReplyOpen> {
        let asker = self.begin(r, RequestKind::Open, on, None);
        let flags = OpenFlags(flags.cast_signed());
        let cache = self.server.opened(&asker, node(on), flags).map_err(fail)?;
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
        let asker = self.begin(r, RequestKind::Create, parent, Some(name));
        let flags = OpenFlags(flags.cast_signed());
        let created = self.server.created(
            &asker,
            node(parent),
            name.as_bytes(),
            self.new_mode(mode),
            flags,
        );
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
        let asker = self.begin(r, RequestKind::Read, on, None);
        let flags = OpenFlags(self.untold.load(Relaxed).cast_signed());
        let read = self.server.read(&asker, node(on), (offset, flags), target);
        read.map_err(fail)
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
        let asker = self.begin(r, RequestKind::Write, on, None);
        let file = (node(on), FileHandle(handle.get()));
        let how = WriteFlags::from_bits_retain(how);
        let flags = OpenFlags(flags.cast_signed());
        let written = self.server.written(&asker, file, offset, data, how, flags);
        written.map(|len| len as usize).map_err(fail)
    }

    async fn flush(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        _owner: u64,
    ) -> FsResult<()> {
        self.begin(r, RequestKind::Flush, on, None);
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
        self.begin(r, RequestKind::Release, on, None);
        Ok(())
    }

    async fn fsync(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        data_only: bool,
    ) -> FsResult<()> {
        let asker = self.begin(r, RequestKind::Fsync, on, None);
        self.server
            .sync_node(&asker, node(on), data_only)
            .map_err(fail)
    }

    async fn fsyncdir(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        data_only: bool,
    ) -> FsResult<()> {
        let asker = self.begin(r, RequestKind::Fsyncdir, on, None);
        self.server
            .sync_node(&asker, node(on), data_only)
            .map_err(fail)
    }

    async fn opendir(&self, r: Request, on: InodeId, _flags: u32) -> FsResult<ReplyOpen> {
        let asker = self.begin(r, RequestKind::Opendir, on, None);
        let cache = self
            .server
            .opened_directory(&asker, node(on))
            .map_err(fail)?;
        Ok(open_reply(cache))
    }

    async fn releasedir(
        &self,
        r: Request,
        on: InodeId,
        _handle: FileHandleId,
        _flags: u32,
    ) -> FsResult<()> {
        self.begin(r, RequestKind::Releasedir, on, None);
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
        let asker = self.begin(r, RequestKind::Readdir, on, None);
        let (mut entries, mut left) = (Vec::new(), size as usize);
        let listed = self.server.listed(&asker, node(on), offset, |entry| {
            let Some(rest) = left.checked_sub(listed_bytes(ENTRY_HEAD, entry.name)) else {
                return false;
            };
            left = rest;
            entries.push(DirectoryEntry {
                ino: self.server.numbers.node(entry.ino).0,
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
        let asker = self.begin(r, RequestKind::Readdirplus, on, None);
        let (mut entries, mut left) = (Vec::new(), size as usize);
        let policy = &self.server.policy;
        let listed = self
            .server
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
        self.begin(r, RequestKind::Statfs, on, None);
        let s = self.server.shared.call("statfs", |fs| fs.statfs());
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
        let asker = self.begin(r, RequestKind::Access, on, None);
        let mask = (mask & 0o7) as u8;
        self.server.may(&asker, node(on), mask).map_err(fail)
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
        let asker = self.begin(r, RequestKind::Fallocate, on, None);
        let done = self
            .server
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
        let asker = self.begin(r, RequestKind::Lseek, on, None);
        let (offset, whence) = (offset.cast_signed(), whence.cast_signed());
        let found = self.server.sought(&asker, node(on), offset, whence);
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
        let asker = self.begin(r, RequestKind::Setxattr, on, Some(name));
        let set = match self.server.set_own_attribute(&asker, name, value) {
            Some(set) => set,
            None => {
                let flags = flags.cast_signed();
                self.server
                    .set_xattr(&asker, node(on), (name, value), flags)
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
        let asker = self.begin(r, RequestKind::Getxattr, on, Some(name));
        xattr(size, self.server.xattr(&asker, node(on), name))
    }

    async fn listxattr(&self, r: Request, on: InodeId, size: u32) -> FsResult<ReplyXattr> {
        let asker = self.begin(r, RequestKind::Listxattr, on, None);
        xattr(size, self.server.xattrs(&asker, node(on)))
    }

    async fn removexattr(&self, r: Request, on: InodeId, name: &OsStr) -> FsResult<()> {
        let asker = self.begin(r, RequestKind::Removexattr, on, Some(name));
        let removed = self.server.removed_xattr(&asker, node(on), name);
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
