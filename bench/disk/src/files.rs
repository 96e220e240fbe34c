//! A directory with a disk and files of text, through FUSE. Past the kernel's cache: each request arrives.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfast_fuse_wire::abi::{self, fattr, fopen};
use steadfast_fuse_wire::{
    Connection, Errno, Exchange, Mount, MountFailure, Operation, Serve, Terms, Threads, Unmount,
    unmount,
};
use steadfast_vfs::FileKind;

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
const TRIMS: [u32; 2] = [0x1 | 0x2, 0x1 | 0x10];
/// Seconds that the kernel may keep attributes: they change at once or never.
const FOREVER: u64 = 3600;
/// Requests at a time.
const THREADS: usize = 4;
/// Longest write in one request.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Time for the last requests to end.
const END_MAX: Duration = Duration::from_secs(10);

struct Files<D>(Arc<D>);

impl<D: Disk> Files<D> {
    fn names(&self) -> [(u64, &'static str); 3] {
        [
            (DISK, "disk"),
            (COUNTERS, "counters"),
            (COMMAND, self.0.command()),
        ]
    }

    fn attr(&self, ino: u64) -> Option<abi::Attr> {
        let (kind, perm, size) = match ino {
            abi::ROOT => (FileKind::Directory, 0o755, 0),
            DISK => (FileKind::Regular, 0o600, self.0.len()),
            COUNTERS => (FileKind::Regular, 0o444, TEXT_BYTES),
            COMMAND => (FileKind::Regular, 0o600, TEXT_BYTES),
            _ => return None,
        };
        Some(abi::Attr {
            ino,
            size,
            blocks: size / 512,
            mode: kind.mode_bits() | perm,
            nlink: 1,
            blksize: 4096,
            ..abi::Attr::default()
        })
    }

    fn attr_out(&self, ino: u64) -> Result<abi::AttrOut, Errno> {
        Ok(abi::AttrOut {
            attr_valid: FOREVER,
            attr: self.attr(ino).ok_or(Errno::NOENT)?,
            ..abi::AttrOut::default()
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

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl<D: Disk> Files<D> {
    fn lookup(&self, name: &[u8]) -> Result<abi::EntryOut, Errno> {
        let known = |(_, known): &(u64, &str)| known.as_bytes() == name;
        let (ino, _) = self.names().into_iter().find(known).ok_or(Errno::NOENT)?;
        Ok(abi::EntryOut {
            nodeid: ino,
            entry_valid: FOREVER,
            attr_valid: FOREVER,
            attr: self.attr(ino).ok_or(Errno::NOENT)?,
            ..abi::EntryOut::default()
        })
    }

    fn setattr(&self, ino: u64, asked: &abi::SetattrIn) -> Result<abi::AttrOut, Errno> {
        let attr = self.attr(ino).ok_or(Errno::PERM)?;
        // A shell empties a file of text before it writes.
        let same = asked.valid & fattr::SIZE == 0 || asked.size == attr.size;
        match ino == COMMAND || same {
            true => self.attr_out(ino),
            false => Err(Errno::PERM),
        }
    }

    fn read(&self, ino: u64, offset: u64, room: &mut [u8]) -> Result<usize, Errno> {
        if ino == DISK {
            let left = usize::try_from(self.0.len().saturating_sub(offset)).unwrap_or(usize::MAX);
            let len = left.min(room.len());
            let room = &mut room[..len];
            self.0.read(offset, room).map_err(|e| errno(&e))?;
            return Ok(room.len());
        }
        let text = self.text(ino);
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(text.len());
        let rest = &text.as_bytes()[from..];
        let len = rest.len().min(room.len());
        room[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let end = offset.checked_add(data.len() as u64);
        match ino {
            DISK if end.is_none_or(|end| end > self.0.len()) => Err(Errno::NOSPC),
            DISK => self.0.write(offset, data).map_err(|e| errno(&e)),
            COMMAND => self.0.commanded(data.trim_ascii()).map_err(|why| {
                eprintln!("disk: {why}");
                Errno::INVAL
            }),
            _ => Err(Errno::PERM),
        }
    }

    fn trim(&self, ino: u64, how: &abi::FallocateIn) -> Result<(), Errno> {
        let end = how.offset.checked_add(how.length);
        let inside = end.is_some_and(|end| end <= self.0.len());
        if ino != DISK || !TRIMS.contains(&how.mode) || !inside {
            return Err(Errno::OPNOTSUPP);
        }
        self.0.trim(how.offset, how.length).map_err(|e| errno(&e))
    }
}

fn answer<B: steadfast_fuse_wire::Body>(exchange: Exchange<'_>, result: Result<B, Errno>) {
    match result {
        Ok(body) => exchange.answer(&body),
        Err(errno) => exchange.fail(errno),
    }
}

impl<D: Disk> Serve for Files<D> {
    fn serve(&self, mut exchange: Exchange<'_>) {
        let ino = exchange.header().nodeid;
        match exchange.operation() {
            Operation::Lookup { name } => {
                let found = self.lookup(name);
                answer(exchange, found);
            }
            Operation::Getattr(_) => answer(exchange, self.attr_out(ino)),
            Operation::Setattr(asked) => answer(exchange, self.setattr(ino, &asked)),
            Operation::Open(_) => exchange.answer(&abi::OpenOut {
                open_flags: fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
                ..abi::OpenOut::default()
            }),
            Operation::Opendir(_) => exchange.answer(&abi::OpenOut::default()),
            Operation::Read(how) => {
                match self.read(ino, how.offset, exchange.room(how.size as usize)) {
                    Ok(len) => exchange.filled(len),
                    Err(errno) => exchange.fail(errno),
                }
            }
            Operation::Write { how, data } => {
                let written = self.write(ino, how.offset, data);
                let size = how.size;
                answer(
                    exchange,
                    written.map(|()| abi::WriteOut { size, padding: 0 }),
                );
            }
            Operation::Fsync(_) if ino == DISK => {
                exchange.result(self.0.flush().map_err(|e| errno(&e)));
            }
            Operation::Fallocate(how) => exchange.result(self.trim(ino, &how)),
            Operation::Readdir(how) => {
                let from = usize::try_from(how.offset).unwrap_or(usize::MAX);
                let mut listing = exchange.listing(how.size);
                let names = self.names().into_iter().enumerate().skip(from);
                for (place, (ino, name)) in names {
                    let (next, mode) = (place as u64 + 1, FileKind::Regular.mode_bits());
                    if !listing.add(name.as_bytes(), ino, next, mode) {
                        break;
                    }
                }
                let len = listing.len();
                exchange.filled(len);
            }
            Operation::Fsync(_)
            | Operation::Flush(_)
            | Operation::Release(_)
            | Operation::Releasedir(_)
            | Operation::Destroy => exchange.done(),
            Operation::Forget(_) => {}
            _ => exchange.fail(Errno::NOSYS),
        }
    }
}

/// Serves the disk at a directory until a signal comes.
pub(crate) fn serve(disk: impl Disk, dir: &Path) -> Result<(), String> {
    let failed = |e: io::Error| format!("{}: {e}", dir.display());
    let disk = Arc::new(disk);
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|e| format!("signals: {e}"))?;
    let mount = Mount {
        source: "disk".into(),
        ..Mount::default()
    };
    let device = mount.make(dir).map_err(|failure| match failure {
        MountFailure::Device(e) | MountFailure::Helper(e) => failed(e),
        MountFailure::Refused(said) => failed(io::Error::other(said)),
    })?;
    let begin = || {
        let connection = Connection::negotiate(device, |offer| {
            Ok(Terms {
                features: 0,
                readahead_bytes_max: offer.readahead_bytes_max,
                write_bytes_max: WRITE_BYTES_MAX,
                background_max: 16,
            })
        })?;
        let files = Arc::new(Files(Arc::clone(&disk)));
        Threads::start(&Arc::new(connection), &files, THREADS, "disk")
    };
    let threads = begin().inspect_err(|_| {
        let _ = unmount(dir, Unmount::Detach);
    });
    let threads = threads.map_err(failed)?;
    signals.forever().next();
    unmount(dir, Unmount::Detach).map_err(failed)?;
    let until = Instant::now() + END_MAX;
    while !threads.have_ended() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    disk.end().map_err(|e| format!("the record: {e}"))
}
