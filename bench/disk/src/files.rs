//! A directory with a disk and files of text, through FUSE. Past the kernel's cache: each request arrives.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The disk that is served.
pub(crate) trait Disk: Send + Sync + 'static {
    /// Bytes of the disk.
    fn len(&self) -> u64;
    /// Reads.
    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Writes; returns when a read finds it.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes all writes durable.
    fn flush(&self) -> io::Result<()>;
    /// The range reads as zeros from now on.
    fn trim(&self, at: u64, len: u64) -> io::Result<()>;
    /// The file of text beside it that can be written.
    fn command(&self) -> &'static str;
    /// Takes a command that was written there.
    fn commanded(&self, text: &[u8]) -> Result<(), String>;
    /// Answer that is read from there.
    fn answer(&self) -> String;
    /// Writes, bytes written, flushes, trims.
    fn counters(&self) -> [u64; 4];
    /// Nothing more will come.
    fn end(&self) -> io::Result<()>;
}

const DISK: u64 = 2;
const COUNTERS: u64 = 3;
const COMMAND: u64 = 4;
/// Longer than any answer.
const TEXT_BYTES: u64 = 4096;
/// `FALLOC_FL_KEEP_SIZE` with `FALLOC_FL_PUNCH_HOLE` or `FALLOC_FL_ZERO_RANGE`.
const TRIMS: [i32; 2] = [0x1 | 0x2, 0x1 | 0x10];
/// Attributes change at once or never.
const FOREVER: Duration = Duration::from_secs(3600);

struct Files<D>(std::sync::Arc<D>);

impl<D: Disk> Files<D> {
    fn names(&self) -> [(u64, &'static str); 3] {
        [
            (DISK, "disk"),
            (COUNTERS, "counters"),
            (COMMAND, self.0.command()),
        ]
    }

    fn attr(&self, ino: u64) -> Option<FileAttr> {
        let (kind, perm, size) = match ino {
            1 => (FileType::Directory, 0o755, 0),
            DISK => (FileType::RegularFile, 0o600, self.0.len()),
            COUNTERS => (FileType::RegularFile, 0o444, TEXT_BYTES),
            COMMAND => (FileType::RegularFile, 0o600, TEXT_BYTES),
            _ => return None,
        };
        Some(FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn text(&self, ino: u64) -> String {
        if ino == COMMAND {
            return self.0.answer();
        }
        let [writes, bytes, flushes, trims] = self.0.counters();
        format!("writes {writes}\nbytes {bytes}\nflushes {flushes}\ntrims {trims}\n")
    }
}

fn empty(result: io::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

impl<D: Disk> Filesystem for Files<D> {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.names().into_iter().find(|(_, known)| *known == name);
        match found.and_then(|(ino, _)| self.attr(ino)) {
            Some(attr) => reply.entry(&FOREVER, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino.0) {
            Some(attr) => reply.attr(&FOREVER, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.attr(ino.0) {
            // A shell empties a file of text before it writes.
            Some(attr) if ino.0 == COMMAND || size.is_none_or(|size| size == attr.size) => {
                reply.attr(&FOREVER, &attr);
            }
            _ => reply.error(Errno::EPERM),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino.0 == DISK {
            let left = self.0.len().saturating_sub(offset).min(u64::from(size));
            let mut bytes = vec![0; usize::try_from(left).unwrap_or(0)];
            match self.0.read(offset, &mut bytes) {
                Ok(()) => reply.data(&bytes),
                Err(error) => reply.error(error.into()),
            }
            return;
        }
        let text = self.text(ino.0);
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(text.len());
        reply.data(&text.as_bytes()[from..]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let result = match ino.0 {
            DISK if offset
                .checked_add(u64::from(len))
                .is_none_or(|end| end > self.0.len()) =>
            {
                return reply.error(Errno::ENOSPC);
            }
            DISK => self.0.write(offset, data),
            COMMAND => self.0.commanded(data.trim_ascii()).map_err(|why| {
                eprintln!("disk: {why}");
                io::Error::from(io::ErrorKind::InvalidInput)
            }),
            _ => return reply.error(Errno::EPERM),
        };
        match result {
            Ok(()) => reply.written(len),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match ino.0 {
            DISK => empty(self.0.flush(), reply),
            _ => reply.ok(),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.0.len());
        if ino.0 != DISK || !TRIMS.contains(&mode) || !inside {
            return reply.error(Errno::EOPNOTSUPP);
        }
        empty(self.0.trim(offset, length), reply);
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (ino, name)) in self.names().into_iter().enumerate().skip(from) {
            if reply.add(INodeNo(ino), place as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }
}

/// Serves the disk at a directory until a signal comes.
pub(crate) fn serve(disk: impl Disk, dir: &Path) -> Result<(), String> {
    let disk = std::sync::Arc::new(disk);
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|e| format!("signals: {e}"))?;
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("disk".to_owned()), MountOption::NoAtime];
    config.n_threads = Some(4);
    config.clone_fd = true;
    let session = fuser::spawn_mount(Files(std::sync::Arc::clone(&disk)), dir, &config)
        .map_err(|e| format!("{}: {e}", dir.display()))?;
    signals.forever().next();
    drop(session);
    disk.end().map_err(|e| format!("the record: {e}"))
}
