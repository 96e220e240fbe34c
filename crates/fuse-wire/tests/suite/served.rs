//! A server of one file, on a real mount.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use steadfast_fuse_wire::abi::{self, init};
use steadfast_fuse_wire::{
    Connection, Errno, Exchange, Mount, Operation, Rings, Serve, Terms, Threads, Unmount,
    kernel_offers_io_uring, unmount,
};

const FILE: u64 = 2;
const BYTES: usize = 1 << 20;

/// Waits that a sound run does not come near.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Syncs {
    /// They wait.
    held: bool,
    begun: usize,
}

/// One file, `file`, and files that can only be synced, `sync0` to `sync9`.
#[derive(Default)]
struct OneFile {
    content: Mutex<Vec<u8>>,
    syncs: Mutex<Syncs>,
    changed: Condvar,
}

impl OneFile {
    fn attr(&self, ino: u64) -> abi::Attr {
        let file = ino != abi::ROOT;
        abi::Attr {
            ino,
            size: if ino == FILE {
                self.content.lock().unwrap().len() as u64
            } else {
                0
            },
            mode: if file { 0o100_644 } else { 0o040_755 },
            mtime: -2,
            mtimensec: 5,
            nlink: 1,
            blksize: 4096,
            ..abi::Attr::default()
        }
    }

    fn hold(&self, on: bool) {
        self.syncs.lock().unwrap().held = on;
        self.changed.notify_all();
    }

    fn sync(&self) {
        let mut syncs = self.syncs.lock().unwrap();
        syncs.begun += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(syncs, |syncs| syncs.held).unwrap());
    }

    /// Waits until so many syncs have begun. Whether they have.
    fn have_begun(&self, count: usize) -> bool {
        let syncs = self.syncs.lock().unwrap();
        let fewer = |syncs: &mut Syncs| syncs.begun < count;
        let waited = self.changed.wait_timeout_while(syncs, LIMIT, fewer);
        !waited.unwrap().1.timed_out()
    }

    fn write(&self, how: &abi::WriteIn, data: &[u8]) {
        let mut content = self.content.lock().unwrap();
        let from = usize::try_from(how.offset).unwrap();
        let end = from + data.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[from..end].copy_from_slice(data);
    }
}

impl Serve for OneFile {
    fn serve(&self, mut exchange: Exchange<'_>) {
        let ino = exchange.header().nodeid;
        match exchange.operation() {
            Operation::Lookup { name: b"file" } => exchange.answer(&abi::EntryOut {
                nodeid: FILE,
                attr: self.attr(FILE),
                ..abi::EntryOut::default()
            }),
            Operation::Lookup {
                name: [b's', b'y', b'n', b'c', digit],
            } => {
                let nodeid = 10 + u64::from(digit - b'0');
                exchange.answer(&abi::EntryOut {
                    nodeid,
                    attr: self.attr(nodeid),
                    ..abi::EntryOut::default()
                });
            }
            Operation::Lookup { name: b"dropped" } => drop(exchange),
            // More than the kernel takes for an entry.
            Operation::Lookup { name: b"malformed" } => exchange.bytes(&[0; 4000]),
            Operation::Lookup { .. } => exchange.fail(Errno::NOENT),
            Operation::Getattr(_) => exchange.answer(&abi::AttrOut {
                attr: self.attr(ino),
                ..abi::AttrOut::default()
            }),
            Operation::Setattr(asked) => {
                if asked.valid & abi::fattr::SIZE != 0 {
                    self.content
                        .lock()
                        .unwrap()
                        .resize(usize::try_from(asked.size).unwrap(), 0);
                }
                exchange.answer(&abi::AttrOut {
                    attr: self.attr(ino),
                    ..abi::AttrOut::default()
                });
            }
            Operation::Statx(_) => exchange.answer(&abi::StatxOut {
                stat: abi::Statx {
                    mask: abi::STATX_BASIC_STATS | abi::STATX_BTIME,
                    mode: self.attr(ino).mode as u16,
                    nlink: 1,
                    ino,
                    mtime: abi::StatxTime {
                        tv_sec: -2,
                        tv_nsec: 5,
                        ..abi::StatxTime::default()
                    },
                    btime: abi::StatxTime {
                        tv_sec: 12345,
                        ..abi::StatxTime::default()
                    },
                    ..abi::Statx::default()
                },
                ..abi::StatxOut::default()
            }),
            Operation::Open(_) | Operation::Opendir(_) => exchange.answer(&abi::OpenOut::default()),
            Operation::Read(how) => {
                let content = self.content.lock().unwrap();
                let from = usize::try_from(how.offset).unwrap().min(content.len());
                let room = exchange.room(how.size as usize);
                let len = room.len().min(content.len() - from);
                room[..len].copy_from_slice(&content[from..from + len]);
                exchange.filled(len);
            }
            Operation::Write { how, data } => {
                self.write(&how, data);
                let size = how.size;
                exchange.answer(&abi::WriteOut { size, padding: 0 });
            }
            Operation::Readdir(how) => {
                let mut listing = exchange.listing(how.size);
                let first = [
                    (&b"."[..], 1, 0o040_000),
                    (b"..", 1, 0o040_000),
                    (b"file", FILE, 0o100_000),
                ];
                let from = usize::try_from(how.offset).unwrap();
                for (n, (name, ino, mode)) in first.into_iter().enumerate().skip(from) {
                    assert!(listing.add(name, ino, n as u64 + 1, mode));
                }
                let len = listing.len();
                exchange.filled(len);
            }
            Operation::Fsync(_) => {
                self.sync();
                exchange.done();
            }
            Operation::Forget(_) => {}
            Operation::Flush(_) | Operation::Release(_) | Operation::Releasedir(_) => {
                exchange.done();
            }
            _ => exchange.fail(Errno::NOSYS),
        }
    }

    fn may_wait(&self, exchange: &Exchange<'_>) -> bool {
        matches!(exchange.operation(), Operation::Fsync(_))
    }
}

struct Served {
    server: Arc<OneFile>,
    connection: Arc<Connection>,
    threads: Option<Threads>,
    dir: tempfile::TempDir,
}

impl Served {
    /// Mounts over a transport; `None` if that is impossible here.
    fn new(over_rings: bool) -> Option<Served> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            steadfast_testkit::skipped!("mounting takes root and /dev/fuse");
            return None;
        }
        if over_rings && kernel_offers_io_uring() != Some(true) {
            steadfast_testkit::skipped!("the kernel does not offer FUSE over io_uring");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mount = Mount {
            source: "one,file".into(),
            subtype: Some("steadfast-wire".to_owned()),
            ..Mount::default()
        };
        let device = mount.make(dir.path()).unwrap();
        let server = Arc::new(OneFile::default());
        let rings = over_rings.then(|| Rings::new(&device, 8, BYTES).unwrap());
        let connection = Connection::negotiate(device, |offer| {
            assert!(offer.minor >= abi::MINOR_MIN);
            Ok(Terms {
                features: if over_rings { init::OVER_IO_URING } else { 0 },
                readahead_bytes_max: offer.readahead_bytes_max,
                write_bytes_max: BYTES as u32,
                background_max: 16,
            })
        });
        let connection = Arc::new(connection.unwrap());
        assert_eq!(connection.features() & init::OVER_IO_URING != 0, over_rings);
        if let Some(rings) = rings {
            rings.start(&server).unwrap();
        }
        let threads = Threads::start(&connection, &server, 3, "test").unwrap();
        Some(Served {
            server,
            connection,
            threads: Some(threads),
            dir,
        })
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    /// Unmounts; the threads end.
    fn end(&mut self) {
        if let Some(threads) = self.threads.take() {
            unmount(self.dir.path(), Unmount::IfIdle).unwrap();
            threads.join().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.threads.take().is_some() {
            let _ = unmount(self.dir.path(), Unmount::Detach);
        }
    }
}

fn content_survives_the_way(over_rings: bool) {
    let Some(mut served) = Served::new(over_rings) else {
        return;
    };
    // Longer than one request, and not whole pages.
    let content: Vec<u8> = (0..3 * BYTES + 123).map(|n| (n % 251) as u8).collect();
    fs::write(served.file(), &content).unwrap();
    assert_eq!(*served.server.content.lock().unwrap(), content);
    served.connection.invalidate(FILE, 0).unwrap();
    assert!(fs::read(served.file()).unwrap() == content);
    let listed: Vec<_> = fs::read_dir(served.dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(listed, ["file"]);
    let metadata = fs::metadata(served.file()).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-2, 5));
    let born = metadata
        .created()
        .unwrap()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert_eq!(born.as_secs(), 12345);
    served.end();
}

#[test]
fn content_survives_the_way_through_the_device() {
    content_survives_the_way(false);
}

#[test]
fn content_survives_the_way_over_rings() {
    content_survives_the_way(true);
}

fn every_request_gets_a_reply(over_rings: bool) {
    let Some(mut served) = Served::new(over_rings) else {
        return;
    };
    for name in ["dropped", "malformed"] {
        let refused = fs::metadata(served.dir.path().join(name)).unwrap_err();
        // Over rings, the kernel itself fails a request whose reply has a wrong form.
        let expected = match (over_rings, name) {
            (true, "malformed") => Errno::INVAL,
            _ => Errno::IO,
        };
        assert_eq!(Errno::from_io_error(&refused), Some(expected), "{name}");
    }
    let absent = fs::metadata(served.dir.path().join("absent")).unwrap_err();
    assert_eq!(absent.kind(), std::io::ErrorKind::NotFound);
    served.end();
}

#[test]
fn every_request_gets_a_reply_through_the_device() {
    every_request_gets_a_reply(false);
}

#[test]
fn every_request_gets_a_reply_over_rings() {
    every_request_gets_a_reply(true);
}

/// As many waits as there are slots: the queue's thread serves none of them, and answers come while others wait.
#[test]
fn requests_that_wait_do_not_hold_a_queue_up() {
    let Some(mut served) = Served::new(true) else {
        return;
    };
    fs::write(served.file(), b"before").unwrap();
    served.server.hold(true);
    std::thread::scope(|scope| {
        for n in 0..7 {
            // The kernel syncs each file once at a time.
            let file = File::open(served.dir.path().join(format!("sync{n}"))).unwrap();
            scope.spawn(move || file.sync_all().unwrap());
        }
        let begun = served.server.have_begun(7);
        let mut meanwhile = String::new();
        let mut file = File::open(served.file()).unwrap();
        file.read_to_string(&mut meanwhile).unwrap();
        served.server.hold(false);
        assert!(begun, "they do not wait at the same time");
        assert_eq!(meanwhile, "before");
    });
    served.end();
}
