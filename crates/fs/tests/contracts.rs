//! What the contracts other than `ordered` promise to callers: when a call is durable, and whom
//! it waits for. What a crash leaves is explored in `steadfast-crash`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use steadfast_block::sim::{CrashImage, Limits, SimDevice};
use steadfast_block::{BlockDevice, BlockNo, Geometry, MemDevice, Result};
use steadfast_fs::{
    Contract, Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, info, mkfs,
};
use steadfast_vfs::{AllocateMode, Caller, FileKind, FileSystem, Ino, NewNode, SetAttr, XattrMode};

/// A device whose flushes take their time, and are counted.
struct SlowFlush {
    inner: MemDevice,
    flushes: AtomicU64,
    flush_time: Duration,
}

impl BlockDevice for SlowFlush {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.inner.read(at, buf)
    }
    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        self.inner.write(at, segments)
    }
    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.flush_time);
        self.inner.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.inner.discard(at, count)
    }
}

fn make(device: &dyn BlockDevice, contract: Contract) {
    let options = MkfsOptions {
        contract,
        ..MkfsOptions::default()
    };
    mkfs(device, &options, &mut |_, _| {}).unwrap();
}

fn mount(device: Arc<dyn BlockDevice>) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.background = false;
    Fs::mount(device, &options).unwrap().0
}

const FILE: NewNode = NewNode {
    kind: FileKind::Regular,
    perm: 0o644,
    rdev: 0,
};

fn create(fs: &Fs, name: &str) -> Ino {
    let root = Caller::root();
    fs.mknod(&root, fs.root(), name.as_bytes(), &FILE)
        .unwrap()
        .ino
}

#[test]
fn the_volume_knows_its_contract_and_keeps_it_through_mount_and_repair() {
    for contract in Contract::ALL {
        let device = Arc::new(MemDevice::new(4096));
        make(&*device, contract);
        assert_eq!(info(device.clone()).unwrap().contract, contract);
        let fs = mount(device.clone());
        assert_eq!(fs.contract(), contract);
        fs.unmount().unwrap();
        drop(fs);
        // The superblock is restored from its copy.
        device.write(BlockNo(0), &[&[0; 4096]]).unwrap();
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        let report = fsck(device.clone(), &options).unwrap();
        assert_eq!(report.outcome(), Outcome::Repaired);
        assert_eq!(info(device).unwrap().contract, contract);
    }
}

/// The volume as a cut right now leaves it that loses everything which was not flushed.
fn cut(device: &SimDevice) -> Arc<Fs> {
    let mut explorer = device.explorer();
    let limits = Limits {
        exhaustive_writes: 0,
        sampled: 0,
        tears: false,
        seed: 1,
    };
    let at = explorer.len();
    // The second image is that without any unflushed write, if there are any.
    let image: CrashImage = explorer.cut(at).images(&limits).take(2).last().unwrap();
    mount(Arc::new(SimDevice::from_image(image)))
}

#[test]
fn under_sync_every_kind_of_call_is_durable_when_it_returns() {
    let device = Arc::new(SimDevice::new(2048));
    make(&*device, Contract::Sync);
    let fs = mount(device.clone());
    let root = Caller::root();
    let same = |what: &str| {
        let found = steadfast_model::Snapshot::of_fs(&*cut(&device)).unwrap();
        let live = steadfast_model::Snapshot::of_fs(&*fs).unwrap();
        let diff = live.diff(&found, steadfast_model::snapshot::Observe::ALL);
        assert!(diff.lines.is_empty(), "after {what}: {diff}");
    };
    let ino = create(&fs, "f");
    same("mknod");
    fs.write(&root, ino, 10, &[1; 9000]).unwrap();
    same("write");
    fs.append(&root, ino, &[2; 100]).unwrap();
    same("append");
    fs.write(&root, ino, 0, &[3; 4096]).unwrap();
    same("overwrite");
    fs.mkdir(&root, fs.root(), b"d", 0o755).unwrap();
    same("mkdir");
    fs.symlink(&root, fs.root(), b"l", b"target").unwrap();
    same("symlink");
    fs.link(&root, ino, fs.root(), b"g").unwrap();
    same("link");
    let mut set = SetAttr {
        size: Some(5000),
        ..SetAttr::default()
    };
    fs.setattr(&root, ino, &set).unwrap();
    same("truncate");
    (set.size, set.perm) = (None, Some(0o600));
    fs.setattr(&root, ino, &set).unwrap();
    same("chmod");
    fs.setxattr(&root, ino, b"user.k", b"v", XattrMode::Any)
        .unwrap();
    same("setxattr");
    fs.removexattr(&root, ino, b"user.k").unwrap();
    same("removexattr");
    for mode in [
        AllocateMode::Allocate,
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange,
    ] {
        fs.fallocate(&root, ino, mode, 100, 20_000).unwrap();
        same("fallocate");
    }
    let top = fs.root();
    fs.rename(&root, (top, b"f"), (top, b"h"), Default::default())
        .unwrap();
    same("rename");
    fs.unlink(&root, top, b"g").unwrap();
    same("unlink");
    fs.rmdir(&root, top, b"d").unwrap();
    same("rmdir");
}

#[test]
fn under_sync_threads_share_flushes_and_nobody_holds_a_lock_meanwhile() {
    const THREADS: u64 = 4;
    const FILES: u64 = 25;
    let device = Arc::new(SlowFlush {
        inner: MemDevice::new(4096),
        flushes: AtomicU64::new(0),
        flush_time: Duration::from_millis(4),
    });
    make(&*device, Contract::Sync);
    let fs = mount(device.clone());
    let before = device.flushes.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                for file in 0..FILES {
                    create(fs, &format!("{thread} {file}"));
                }
            });
        }
    });
    let flushes = device.flushes.load(Ordering::Relaxed) - before;
    // All work in one directory: with its lock held in a flush, each file would cost one.
    assert!(
        flushes < THREADS * FILES * 2 / 3,
        "{flushes} flushes for {} files",
        THREADS * FILES
    );
    fs.unmount().unwrap();
}
