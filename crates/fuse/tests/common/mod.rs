//! A real mount of a file system in memory, with all calls watched.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs
)]

pub(crate) mod streams;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steadfast_fuse::{MountOptions, Session, mount};
use steadfast_model::memfs::MemFs;
use steadfast_vfs::*;

/// Unmounts, again while the mount is in use.
pub(crate) fn when_free(unmount: impl Fn() -> std::io::Result<()>) -> std::io::Result<()> {
    let in_use = |done: &std::io::Result<()>| {
        let kind = done.as_ref().err().map(std::io::Error::kind);
        kind == Some(std::io::ErrorKind::ResourceBusy)
    };
    steadfast_testkit::retry_while(in_use, unmount)
}

/// A request that changes content.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    Write(u64, Vec<u8>),
    Size(u64),
}

/// The streams of a volume that commits nothing by itself.
#[derive(Default)]
pub(crate) struct Recorded {
    /// Operations of each stream.
    pub(crate) operations: Mutex<BTreeMap<Stream, u64>>,
    /// The stream that changed an inode last, since the last sync.
    pub(crate) uncommitted: Mutex<HashMap<Ino, Stream>>,
    pub(crate) syncs: Mutex<Vec<Stream>>,
    pub(crate) intervals: Mutex<Vec<(Stream, Option<Duration>)>>,
    pub(crate) forgotten: Mutex<Vec<Stream>>,
    /// The inode of a merge whose path is not known.
    pub(crate) merged: Mutex<Option<Ino>>,
    /// No stream can be forgotten.
    pub(crate) keep: AtomicBool,
}

impl Recorded {
    fn changed(&self, caller: &Caller, inos: &[Ino]) {
        *self
            .operations
            .lock()
            .unwrap()
            .entry(caller.stream)
            .or_default() += 1;
        let mut uncommitted = self.uncommitted.lock().unwrap();
        uncommitted.extend(inos.iter().map(|ino| (*ino, caller.stream)));
    }

    pub(crate) fn commit(&self) {
        self.uncommitted.lock().unwrap().clear();
    }
}

impl Streams for Recorded {
    fn sync(&self, stream: Stream) -> Result<()> {
        self.syncs.lock().unwrap().push(stream);
        self.uncommitted
            .lock()
            .unwrap()
            .retain(|_, of| *of != stream);
        Ok(())
    }
    fn of_inode(&self, ino: Ino) -> Option<Stream> {
        self.uncommitted.lock().unwrap().get(&ino).copied()
    }
    fn set_commit_interval(&self, stream: Stream, interval: Option<Duration>) {
        self.intervals.lock().unwrap().push((stream, interval));
    }
    fn stats(&self) -> Vec<StreamStats> {
        let operations = self.operations.lock().unwrap();
        let uncommitted = self.uncommitted.lock().unwrap();
        let of = |(stream, operations): (&Stream, &u64)| StreamStats {
            stream: *stream,
            operations: *operations,
            uncommitted: uncommitted.values().filter(|of| *of == stream).count() as u64,
            ..StreamStats::default()
        };
        operations.iter().map(of).collect()
    }
    fn merges(&self) -> Vec<StreamMerge> {
        let one = StreamMerge {
            streams: [Stream(1), Stream(0)],
            cause: MergeCause::IndexBlock,
            inode: Some(12),
            path: Some(b"/a\tb/\xff".to_vec()),
        };
        let merged = *self.merged.lock().unwrap();
        let last = StreamMerge {
            inode: merged.or(one.inode),
            path: one.path.clone().filter(|_| merged.is_none()),
            ..one.clone()
        };
        let mut all = vec![one; MERGES_KEPT - 1];
        all.push(last);
        all
    }
    fn forget(&self, stream: Stream) -> bool {
        let values = self.uncommitted.lock().unwrap();
        let idle = !self.keep.load(SeqCst) && !values.values().any(|of| *of == stream);
        if idle {
            self.forgotten.lock().unwrap().push(stream);
        }
        idle
    }
}

/// Counts calls, and misbehaves on request.
pub(crate) struct Watched {
    pub(crate) inner: MemFs,
    /// Its streams, if it is to have them.
    pub(crate) streams: Option<Recorded>,
    /// Reason of the volume's failure.
    pub(crate) failed: Mutex<Option<String>>,
    pub(crate) lookups: AtomicU64,
    pub(crate) opens: AtomicU64,
    pub(crate) releases: AtomicU64,
    pub(crate) fsyncs: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) panic_in_statfs: AtomicBool,
    /// Names are there whose inodes are gone, as on a damaged volume: those of all files but directories.
    pub(crate) inodes_gone: AtomicBool,
    /// While it is set, syncs of files wait.
    pub(crate) hold_fsyncs: AtomicBool,
    /// Ranges of trim requests: first byte, end, shortest run.
    pub(crate) trims: Mutex<Vec<(u64, u64, u64)>>,
    /// Writes wait until this is let go.
    pub(crate) writes: Mutex<()>,
    pub(crate) writes_begun: AtomicU64,
    /// Bytes that fit: a write gets the rest, then ENOSPC.
    pub(crate) space: AtomicU64,
    /// Writes and changes of size, in their order.
    pub(crate) seen: Mutex<Vec<Seen>>,
}

impl Default for Watched {
    fn default() -> Watched {
        Watched {
            inner: MemFs::default(),
            streams: None,
            failed: Mutex::default(),
            lookups: AtomicU64::new(0),
            opens: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            fsyncs: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            panic_in_statfs: AtomicBool::new(false),
            inodes_gone: AtomicBool::new(false),
            hold_fsyncs: AtomicBool::new(false),
            trims: Mutex::default(),
            writes: Mutex::default(),
            writes_begun: AtomicU64::new(0),
            space: AtomicU64::new(u64::MAX),
            seen: Mutex::default(),
        }
    }
}

impl Watched {
    /// Inodes that the front end holds.
    pub(crate) fn held(&self) -> u64 {
        self.opens.load(SeqCst) - self.releases.load(SeqCst)
    }

    fn changed(&self, caller: &Caller, inos: &[Ino]) {
        if let Some(streams) = &self.streams {
            streams.changed(caller, inos);
        }
    }
}

impl FileSystem for Watched {
    steadfast_vfs::pass_through! { inner:
        all but lookup, getattr, setattr, mknod, mkdir, symlink, link, unlink, rmdir, rename, open, release, write, trim, fsync,
        fallocate, streams, health, flags, set_flags, statfs, sync
    }
    fn lookup(&self, c: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.lookups.fetch_add(1, SeqCst);
        self.inner.lookup(c, parent, name)
    }
    fn getattr(&self, c: &Caller, ino: Ino) -> Result<Attr> {
        let attr = self.inner.getattr(c, ino)?;
        match self.inodes_gone.load(SeqCst) && attr.kind != FileKind::Directory {
            true => Err(Errno::Stale.into()),
            false => Ok(attr),
        }
    }
    fn setattr(&self, c: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.changed(c, &[ino]);
        if let Some(size) = set.size {
            self.seen.lock().unwrap().push(Seen::Size(size));
        }
        self.inner.setattr(c, ino, set)
    }
    fn mknod(&self, c: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let made = self.inner.mknod(c, parent, name, node)?;
        self.changed(c, &[made.ino]);
        Ok(made)
    }
    fn mkdir(&self, c: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let made = self.inner.mkdir(c, parent, name, perm)?;
        self.changed(c, &[made.ino]);
        Ok(made)
    }
    fn symlink(&self, c: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let made = self.inner.symlink(c, parent, name, target)?;
        self.changed(c, &[made.ino]);
        Ok(made)
    }
    fn link(&self, c: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.changed(c, &[ino]);
        self.inner.link(c, ino, parent, name)
    }
    fn unlink(&self, c: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.changed(c, &[]);
        self.inner.unlink(c, parent, name)
    }
    fn rmdir(&self, c: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.changed(c, &[]);
        self.inner.rmdir(c, parent, name)
    }
    fn rename(
        &self,
        c: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        m: RenameMode,
    ) -> Result<()> {
        self.changed(c, &[]);
        self.inner.rename(c, from, to, m)
    }
    fn open(&self, c: &Caller, ino: Ino) -> Result<()> {
        self.inner.open(c, ino)?;
        self.opens.fetch_add(1, SeqCst);
        Ok(())
    }
    fn release(&self, ino: Ino) {
        self.releases.fetch_add(1, SeqCst);
        self.inner.release(ino);
    }
    fn write(&self, c: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.changed(c, &[ino]);
        self.writes_begun.fetch_add(1, SeqCst);
        self.seen
            .lock()
            .unwrap()
            .push(Seen::Write(offset, data.to_vec()));
        let _held = self.writes.lock().unwrap();
        let space = self.space.load(SeqCst);
        if space == 0 {
            return Err(Errno::NoSpc.into());
        }
        let fits = data.len().min(usize::try_from(space).unwrap_or(usize::MAX));
        self.space.store(space - fits as u64, SeqCst);
        self.inner.write(c, ino, offset, &data[..fits])
    }
    fn trim(&self, bytes: std::ops::Range<u64>, min: u64) -> Result<u64> {
        let asked = (bytes.start, bytes.end, min);
        self.trims.lock().unwrap().push(asked);
        Ok(123_456)
    }
    fn fsync(&self, c: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        self.fsyncs.fetch_add(1, SeqCst);
        while self.hold_fsyncs.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner.fsync(c, ino, data_only)
    }
    fn fallocate(
        &self,
        c: &Caller,
        ino: Ino,
        m: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.changed(c, &[ino]);
        self.inner.fallocate(c, ino, m, offset, len)
    }
    fn streams(&self) -> Option<&dyn Streams> {
        self.streams.as_ref().map(|streams| streams as &dyn Streams)
    }
    fn health(&self) -> Health {
        Health {
            read_only: false,
            failed: self.failed.lock().unwrap().clone(),
        }
    }
    fn flags(&self, _c: &Caller, _ino: Ino) -> Result<InodeFlags> {
        Ok(InodeFlags::NONE)
    }
    fn set_flags(&self, c: &Caller, ino: Ino, _flags: InodeFlags) -> Result<()> {
        let perm = Some(self.inner.getattr(c, ino)?.perm);
        let set = SetAttr {
            perm,
            ..SetAttr::default()
        };
        self.inner.setattr(c, ino, &set).map(drop)
    }
    fn statfs(&self) -> Result<StatFs> {
        assert!(
            !self.panic_in_statfs.load(SeqCst),
            "statfs panics on purpose"
        );
        self.inner.statfs()
    }
    fn sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, SeqCst);
        self.inner.sync()
    }
}

/// Transport of requests: by default that of the product, io_uring where the kernel offers it.
fn over_io_uring() -> Option<bool> {
    let how = std::env::var_os("STEADFAST_IO_URING")?;
    Some(how != "0")
}

/// A mount that goes away with its value.
pub(crate) struct Mount {
    pub(crate) fs: Arc<Watched>,
    pub(crate) session: Option<Session>,
    dir: tempfile::TempDir,
}

impl Mount {
    /// Mounts a new file system; nothing (and a line that says so) where that is impossible.
    pub(crate) fn new(change: impl FnOnce(&mut MountOptions)) -> Option<Mount> {
        Mount::of(Watched::default(), change)
    }

    /// The same of a volume with streams.
    pub(crate) fn with_streams(change: impl FnOnce(&mut MountOptions)) -> Option<Mount> {
        let fs = Watched {
            streams: Some(Recorded::default()),
            ..Watched::default()
        };
        Mount::of(fs, change)
    }

    fn of(fs: Watched, change: impl FnOnce(&mut MountOptions)) -> Option<Mount> {
        if !Path::new("/dev/fuse").exists() {
            steadfast_testkit::skipped!("there is no /dev/fuse here");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        // Other users must get through to the mount.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let point = dir.path().join("mnt");
        std::fs::create_dir(&point).unwrap();
        let fs = Arc::new(fs);
        let mut options = MountOptions::new("/tmp/a volume, of sorts");
        options.io_uring = over_io_uring();
        change(&mut options);
        match mount(Arc::clone(&fs) as Arc<dyn FileSystem>, &point, &options) {
            Ok(session) => Some(Mount {
                fs,
                session: Some(session),
                dir,
            }),
            Err(e) if !rustix::process::geteuid().is_root() => {
                steadfast_testkit::skipped!("this user may not mount here: {e}");
                None
            }
            Err(e) => panic!("mount failed: {e}"),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Waits until something holds that the kernel brings about in its own time.
    pub(crate) fn eventually(&self, what: &str, holds: impl Fn(&Watched) -> bool) {
        for _ in 0..500 {
            if holds(&self.fs) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("never happened: {what}");
    }
}
