//! Disks as files: a directory served by FUSE whose files are images in memory. One may be recorded.
//!
//! Files are opened for direct I/O, so that the loop device's writes and flushes arrive here one by one, in its order.

use super::disk::{Event, Recording};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};
use steadfast_model::data::FileData;

const KEEP: Duration = Duration::from_secs(3600);
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// One disk.
#[derive(Default)]
struct Disk {
    name: String,
    image: FileData,
    /// The disk before the log, and the log, if it is recorded.
    recording: Option<Recording>,
}

#[derive(Default)]
struct Disks {
    all: BTreeMap<u64, Disk>,
    next: u64,
}

/// The disks of one directory.
#[derive(Clone, Default)]
pub(super) struct Shelf {
    disks: Arc<Mutex<Disks>>,
}

/// A disk on the shelf; removed when dropped.
pub(super) struct Handle {
    shelf: Shelf,
    ino: u64,
    pub(super) name: String,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shelf.lock().all.remove(&self.ino);
    }
}

impl Handle {
    fn with<T: Default>(&self, f: impl FnOnce(&mut Disk) -> T) -> T {
        let mut disks = self.shelf.lock();
        disks.all.get_mut(&self.ino).map(f).unwrap_or_default()
    }

    /// Records that a call has returned.
    pub(super) fn returned(&self, calls: usize) {
        self.with(|d| {
            if let Some(recording) = &mut d.recording {
                recording.log.push(Event::Returned(calls));
            }
        });
    }

    /// Number of entries of the log.
    pub(super) fn position(&self) -> usize {
        self.with(|d| d.recording.as_ref().map_or(0, |r| r.log.len()))
    }

    /// Takes the log so far; a new one begins.
    pub(super) fn take(&self) -> Recording {
        self.with(|d| {
            let base = d.image.clone();
            let new = Recording {
                base,
                log: Vec::new(),
            };
            d.recording.replace(new).unwrap_or_default()
        })
    }
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Disks> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a disk.
    pub(super) fn add(&self, image: FileData, record: bool) -> Handle {
        let mut disks = self.lock();
        disks.next += 1;
        let ino = disks.next + 1;
        let name = format!("disk{}", disks.next);
        let recording = record.then(|| Recording {
            base: image.clone(),
            log: Vec::new(),
        });
        let disk = Disk {
            name: name.clone(),
            image,
            recording,
        };
        disks.all.insert(ino, disk);
        Handle {
            shelf: self.clone(),
            ino,
            name,
        }
    }

    /// Serves it at a directory.
    pub(super) fn serve(&self, at: &Path) -> io::Result<BackgroundSession> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("steadfast-crash-disks".to_owned()),
            MountOption::Subtype("steadfast-crash-disks".to_owned()),
            MountOption::NoAtime,
        ];
        config.n_threads = Some(1);
        Session::new(self.clone(), at, &config).and_then(Session::spawn)
    }
}

fn attr(ino: u64, kind: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o700,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Shelf {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let disks = self.lock();
        let found = disks.all.iter().find(|(_, d)| name == d.name.as_str());
        match found {
            Some((ino, disk)) => {
                let attr = attr(*ino, FileType::RegularFile, disk.image.size());
                reply.entry(&KEEP, &attr, Generation(1));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        if ino == INodeNo::ROOT {
            return reply.attr(&KEEP, &attr(1, FileType::Directory, 0));
        }
        match self.lock().all.get(&ino.0) {
            Some(d) => reply.attr(&KEEP, &attr(ino.0, FileType::RegularFile, d.image.size())),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
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
        // A clone is cheap, and so reads do not block writes.
        let image = self.lock().all.get(&ino.0).map(|d| d.image.clone());
        let Some(image) = image else {
            return reply.error(Errno::EIO);
        };
        let mut buffer = vec![0; size as usize];
        let n = image.read(offset, &mut buffer);
        reply.data(buffer.get(..n).unwrap_or_default());
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut disks = self.lock();
        let Some(disk) = disks.all.get_mut(&ino.0) else {
            return reply.error(Errno::EIO);
        };
        if offset.saturating_add(data.len() as u64) > disk.image.size() {
            return reply.error(Errno::ENOSPC);
        }
        disk.image.write(offset, data);
        if let Some(recording) = &mut disk.recording {
            let bytes = Arc::from(data);
            recording.log.push(Event::Write { offset, bytes });
        }
        reply.written(data.len() as u32);
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(disk) = self.lock().all.get_mut(&ino.0)
            && let Some(recording) = &mut disk.recording
        {
            recording.log.push(Event::Flush);
        }
        reply.ok();
    }
}
