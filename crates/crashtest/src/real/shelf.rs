//! Disks as files: a directory served by FUSE whose files are images in memory. One may be recorded.
//!
//! Files are opened for direct I/O, so that the loop device's writes and flushes arrive here one by one, in its order.

use super::disk::{Event, Recording};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use steadfast_fuse_wire::abi::{self, fopen};
use steadfast_fuse_wire::{
    Connection, Errno, Exchange, Mount, MountFailure, Operation, Serve, Terms, Threads, Unmount,
    unmount,
};
use steadfast_model::data::FileData;
use steadfast_vfs::FileKind;

/// Seconds for which the kernel may keep what it knows of a disk.
const KEEP: u64 = 3600;
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
    pub(super) fn serve(&self, at: &Path) -> io::Result<Threads> {
        let mount = Mount {
            source: "steadfast-crash-disks".into(),
            subtype: Some("steadfast-crash-disks".to_owned()),
            ..Mount::default()
        };
        let device = mount.make(at).map_err(|failure| match failure {
            MountFailure::Device(e) | MountFailure::Helper(e) => e,
            MountFailure::Refused(said) => io::Error::other(said),
        })?;
        let serve = || {
            let connection = Connection::negotiate(device, |offer| {
                Ok(Terms {
                    features: 0,
                    readahead_bytes_max: offer.readahead_bytes_max,
                    write_bytes_max: WRITE_BYTES_MAX,
                    background_max: 16,
                })
            })?;
            Threads::start(
                &Arc::new(connection),
                &Arc::new(self.clone()),
                1,
                "crash-disks",
            )
        };
        serve().inspect_err(|_| {
            let _ = unmount(at, Unmount::Detach);
        })
    }

    fn attr(&self, ino: u64) -> Option<abi::Attr> {
        if ino == abi::ROOT {
            return Some(attr(ino, FileKind::Directory, 0));
        }
        let disks = self.lock();
        let disk = disks.all.get(&ino)?;
        Some(attr(ino, FileKind::Regular, disk.image.size()))
    }

    fn lookup(&self, name: &[u8]) -> Option<abi::EntryOut> {
        let disks = self.lock();
        let found = |(_, disk): &(&u64, &Disk)| name == disk.name.as_bytes();
        let (ino, disk) = disks.all.iter().find(found)?;
        Some(abi::EntryOut {
            nodeid: *ino,
            generation: 1,
            entry_valid: KEEP,
            attr_valid: KEEP,
            attr: attr(*ino, FileKind::Regular, disk.image.size()),
            ..abi::EntryOut::default()
        })
    }

    fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut disks = self.lock();
        let disk = disks.all.get_mut(&ino).ok_or(Errno::IO)?;
        if offset.saturating_add(data.len() as u64) > disk.image.size() {
            return Err(Errno::NOSPC);
        }
        disk.image.write(offset, data);
        if let Some(recording) = &mut disk.recording {
            let bytes = Arc::from(data);
            recording.log.push(Event::Write { offset, bytes });
        }
        Ok(())
    }
}

fn attr(ino: u64, kind: FileKind, size: u64) -> abi::Attr {
    abi::Attr {
        ino,
        size,
        blocks: size / 512,
        mode: kind.mode_bits() | 0o700,
        nlink: 1,
        blksize: 4096,
        ..abi::Attr::default()
    }
}

impl Serve for Shelf {
    fn serve(&self, mut exchange: Exchange<'_>) {
        let ino = exchange.header().nodeid;
        match exchange.operation() {
            Operation::Lookup { name } => match self.lookup(name) {
                Some(entry) => exchange.answer(&entry),
                None => exchange.fail(Errno::NOENT),
            },
            Operation::Getattr(_) => match self.attr(ino) {
                Some(attr) => exchange.answer(&abi::AttrOut {
                    attr_valid: KEEP,
                    attr,
                    ..abi::AttrOut::default()
                }),
                None => exchange.fail(Errno::NOENT),
            },
            Operation::Open(_) => exchange.answer(&abi::OpenOut {
                open_flags: fopen::DIRECT_IO,
                ..abi::OpenOut::default()
            }),
            Operation::Read(how) => {
                // A clone is cheap, and so reads do not block writes.
                let image = self.lock().all.get(&ino).map(|d| d.image.clone());
                match image {
                    Some(image) => {
                        let len = image.read(how.offset, exchange.room(how.size as usize));
                        exchange.filled(len);
                    }
                    None => exchange.fail(Errno::IO),
                }
            }
            Operation::Write { how, data } => match self.write(ino, how.offset, data) {
                Ok(()) => exchange.answer(&abi::WriteOut {
                    size: how.size,
                    padding: 0,
                }),
                Err(errno) => exchange.fail(errno),
            },
            Operation::Fsync(_) => {
                if let Some(disk) = self.lock().all.get_mut(&ino)
                    && let Some(recording) = &mut disk.recording
                {
                    recording.log.push(Event::Flush);
                }
                exchange.done();
            }
            Operation::Opendir(_) => exchange.answer(&abi::OpenOut::default()),
            Operation::Release(_) | Operation::Releasedir(_) | Operation::Destroy => {
                exchange.done();
            }
            Operation::Forget(_) => {}
            _ => exchange.fail(Errno::NOSYS),
        }
    }
}
