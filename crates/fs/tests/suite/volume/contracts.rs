//! The promises of the contracts other than `ordered`: when a call is durable, and which streams
//! it waits for. `steadfast-crash` explores the states after a crash.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use steadfast_block::{BlockDevice, BlockNo, Geometry, MemDevice, Result};
use steadfast_fs::{
    Contract, Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, info, mkfs,
};
use steadfast_sim::{CrashImage, Limits, SimDevice};
use steadfast_vfs::{
    AllocateMode, Caller, FileKind, FileSystem, Ino, NewNode, SetAttr, Wanted, XattrMode,
};

/// Far beyond the time of a sound run: only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(300);

/// A device that counts its flushes, which can be held up.
struct HeldFlush {
    inner: MemDevice,
    flushes: AtomicU64,
    held: Mutex<bool>,
    let_go: Condvar,
}

impl HeldFlush {
    fn new() -> HeldFlush {
        HeldFlush {
            inner: MemDevice::new(4096),
            flushes: AtomicU64::new(0),
            held: Mutex::new(false),
            let_go: Condvar::new(),
        }
    }
    fn hold(&self) -> Hold<'_> {
        *self.held.lock().unwrap() = true;
        Hold(self)
    }
}

/// Flushes wait until this is dropped, also by a test that fails.
struct Hold<'a>(&'a HeldFlush);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        *self.0.held.lock().unwrap() = false;
        self.0.let_go.notify_all();
    }
}

impl BlockDevice for HeldFlush {
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
        let held = self.held.lock().unwrap();
        drop(self.let_go.wait_while(held, |held| *held).unwrap());
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
        assert_eq!(info(device.clone()).unwrap().map.contract(), contract);
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
        assert_eq!(info(device).unwrap().map.contract(), contract);
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

/// Story: under `metadata-prefix`, an fsync of an inode that had been removed did not make its stream durable: the
/// stream's earlier operations were lost, although the fsync had returned.
#[test]
fn fsync_of_a_removed_inode_makes_the_callers_stream_durable() {
    for contract in [Contract::Ordered, Contract::MetadataPrefix] {
        let device = Arc::new(SimDevice::new(4096));
        make(&*device, contract);
        let fs = mount(device.clone());
        create(&fs, "stays");
        let gone = create(&fs, "goes");
        fs.unlink(&Caller::root(), fs.root(), b"goes").unwrap();
        let wanted = Wanted {
            stream: Caller::root().stream,
            ino: gone,
            data_only: false,
        };
        fs.fsync_together(&[wanted]).unwrap();
        let after = cut(&device);
        let found = after.lookup(&Caller::root(), after.root(), b"stays");
        assert!(found.is_ok(), "{contract:?}: {found:?}");
    }
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
    fs.setxattr(&root, ino, b"user.k", &[b'v'; 100], XattrMode::Any)
        .unwrap();
    same("setxattr that takes a block");
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
fn under_sync_threads_share_flushes_and_no_lock_is_held_during_one() {
    const OTHERS: u64 = 4;
    let device = Arc::new(HeldFlush::new());
    make(&*device, Contract::Sync);
    let fs = mount(device.clone());
    let flushes = || device.flushes.load(Ordering::SeqCst);
    let before = flushes();
    let there = |name: &str| {
        fs.lookup(&Caller::root(), fs.root(), name.as_bytes())
            .is_ok()
    };
    let hold = device.hold();
    std::thread::scope(|scope| {
        let fs = &fs;
        // Dropped before the threads are joined, also when an assertion fails.
        let hold = hold;
        scope.spawn(move || create(fs, "first"));
        until("the first flush", || flushes() == before + 1);
        // All work is in one directory. With its lock held in the flush, none of these files would appear.
        for other in 0..OTHERS {
            scope.spawn(move || create(fs, &format!("{other}")));
        }
        for other in 0..OTHERS {
            until("a file beside a flush", || there(&other.to_string()));
        }
        assert_eq!(flushes(), before + 1, "one commit at a time");
        drop(hold);
    });
    // Everything gathered meanwhile is one record.
    assert_eq!(flushes(), before + 2);
    fs.unmount().unwrap();
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} never comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A file of `blocks` blocks whose present content has been written home.
fn settled_file(fs: &Fs, name: &str, blocks: usize) -> Ino {
    let ino = create(fs, name);
    let root = Caller::root();
    fs.write(&root, ino, 0, &vec![1; blocks * 4096]).unwrap();
    fs.fsync(&root, ino, false).unwrap();
    // The next record proves the one that covers the data.
    fs.mkdir(&root, fs.root(), format!("{name} d").as_bytes(), 0o755)
        .unwrap();
    fs.sync().unwrap();
    ino
}

#[test]
fn under_metadata_prefix_overwrites_bypass_the_log_and_fdatasync_costs_one_flush() {
    let device = Arc::new(MemDevice::new(16_384));
    make(&*device, Contract::MetadataPrefix);
    let fs = mount(device.clone());
    let root = Caller::root();
    let ino = settled_file(&fs, "f", 1000);
    let before = fs.journal_stats();
    for block in 0..1000 {
        fs.write(&root, ino, block * 4096, &[2; 4096]).unwrap();
    }
    // Part of a block.
    fs.write(&root, ino, 5000, &[3; 10]).unwrap();
    fs.fsync(&root, ino, true).unwrap();
    let after = fs.journal_stats();
    assert_eq!(after.in_place_blocks - before.in_place_blocks, 1000);
    assert_eq!(after.flushes - before.flushes, 1);
    assert_eq!(
        after.log_blocks, before.log_blocks,
        "nothing but times changed, which fdatasync leaves"
    );
    // Nothing was written since: nothing to flush.
    fs.fsync(&root, ino, true).unwrap();
    assert_eq!(fs.journal_stats().flushes, after.flushes);
    // The device has the written bytes.
    let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
    let again = mount(copy);
    let mut block = [0; 4096];
    again.read(&root, ino, 4096, &mut block).unwrap();
    let at = 5000 - 4096;
    assert!(block[at..at + 10] == [3; 10] && block[..at] == [2; 904][..at] && block[at + 10] == 2);
    fs.unmount().unwrap();
}

#[test]
fn corner_03_a_block_with_patches_in_the_log_is_patched_again_and_fdatasync_commits_that() {
    let device = Arc::new(MemDevice::new(4096));
    make(&*device, Contract::MetadataPrefix);
    let fs = mount(device.clone());
    let root = Caller::root();
    let ino = settled_file(&fs, "f", 8);
    // Zeroes the rest of the last block: a patch.
    let set = SetAttr {
        size: Some(3 * 4096 + 100),
        ..SetAttr::default()
    };
    fs.setattr(&root, ino, &set).unwrap();
    fs.fsync(&root, ino, false).unwrap();
    let before = fs.journal_stats();
    fs.write(&root, ino, 3 * 4096, &[2; 50]).unwrap();
    fs.write(&root, ino, 0, &[2; 4096]).unwrap();
    fs.fsync(&root, ino, true).unwrap();
    let after = fs.journal_stats();
    assert_eq!(after.in_place_blocks - before.in_place_blocks, 1);
    assert_eq!(after.commits - before.commits, 1);
    let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
    let again = mount(copy);
    let mut data = [0; 3 * 4096 + 100];
    again.read(&root, ino, 0, &mut data).unwrap();
    assert!(data[..4096] == [2; 4096] && data[3 * 4096..][..50] == [2; 50]);
    assert!(data[3 * 4096 + 50..] == [1; 50]);
    fs.unmount().unwrap();
}

#[test]
fn waiting_overwrites_are_read_truncated_punched_and_forgotten_like_other_data() {
    let device = Arc::new(MemDevice::new(4096));
    make(&*device, Contract::MetadataPrefix);
    let fs = mount(device.clone());
    let root = Caller::root();
    let ino = settled_file(&fs, "f", 8);
    let read = |fs: &Fs| {
        let mut data = vec![0xee; 8 * 4096];
        let len = fs.read(&root, ino, 0, &mut data).unwrap();
        data.truncate(len);
        data
    };
    let mut expected = vec![1; 8 * 4096];
    fs.write(&root, ino, 3000, &[2; 6000]).unwrap();
    expected[3000..9000].fill(2);
    assert_eq!(read(&fs), expected);
    fs.fallocate(&root, ino, AllocateMode::PunchHole, 8500, 8000)
        .unwrap();
    expected[8500..16_500].fill(0);
    assert_eq!(read(&fs), expected);
    fs.write(&root, ino, 20_000, &[3; 5000]).unwrap();
    expected[20_000..25_000].fill(3);
    let set = SetAttr {
        size: Some(24_000),
        ..SetAttr::default()
    };
    fs.setattr(&root, ino, &set).unwrap();
    expected.truncate(24_000);
    assert_eq!(read(&fs), expected);
    fs.fsync(&root, ino, true).unwrap();
    let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
    assert_eq!(read(&mount(copy)), expected);
    // A file that goes away takes its overwrites with it.
    let other = settled_file(&fs, "g", 8);
    fs.write(&root, other, 0, &[4; 8 * 4096]).unwrap();
    let before = fs.journal_stats().in_place_blocks;
    fs.unlink(&root, fs.root(), b"g").unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.journal_stats().in_place_blocks, before);
    fs.unmount().unwrap();
    let report = fsck(device, &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::Clean, "{:?}", report.findings);
}

#[test]
fn overwrites_go_home_by_themselves_when_many_wait_and_within_the_commit_interval() {
    let device = Arc::new(MemDevice::new(8192));
    make(&*device, Contract::MetadataPrefix);
    let root = Caller::root();
    let mut options = MountOptions::default();
    options.background = false;
    options.uncommitted_bytes = 64 * 4096;
    let (fs, _) = Fs::mount(device.clone(), &options).unwrap();
    let ino = settled_file(&fs, "f", 100);
    for block in 0..100 {
        fs.write(&root, ino, block * 4096, &[2; 4096]).unwrap();
    }
    assert!(fs.journal_stats().in_place_blocks >= 60);
    // Written, not flushed: fdatasync knows.
    let flushes = fs.journal_stats().flushes;
    fs.fsync(&root, ino, true).unwrap();
    assert_eq!(fs.journal_stats().flushes, flushes + 1);
    fs.unmount().unwrap();
    drop(fs);
    options.background = true;
    options.commit_interval = Duration::from_millis(20);
    let (fs, _) = Fs::mount(device, &options).unwrap();
    fs.write(&root, ino, 0, &[3; 4096]).unwrap();
    let begun = std::time::Instant::now();
    while fs.journal_stats().in_place_blocks == 0 {
        assert!(begun.elapsed() < PATIENCE, "never written");
        std::thread::sleep(Duration::from_millis(5));
    }
    fs.unmount().unwrap();
}
