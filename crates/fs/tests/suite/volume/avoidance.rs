//! Data that is removed again before a sync requests it is not written (ccfs §4, table 3), also if
//! other streams sync meanwhile. Counted in blocks that reach the device.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, Geometry, MemDevice};
use steadfast_fs::{Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_vfs::{Caller, FileKind, FileSystem, Ino, NewNode, SetAttr, Stream};

const MIB: u64 = 1 << 20;
const BLOCKS_PER_MIB: u64 = MIB / BLOCK_SIZE as u64;

/// Counts the blocks that are written.
struct Counting {
    device: MemDevice,
    written: AtomicU64,
}

impl BlockDevice for Counting {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.device.read(at, buf)
    }
    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        let bytes: usize = segments.iter().map(|segment| segment.len()).sum();
        self.written.fetch_add((bytes / BLOCK_SIZE) as u64, Relaxed);
        self.device.write(at, segments)
    }
    fn flush(&self) -> steadfast_block::Result<()> {
        self.device.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.device.discard(at, count)
    }
}

struct Volume {
    device: Arc<Counting>,
    fs: Arc<Fs>,
}

impl Volume {
    /// A volume with the journal's workers, whose commit interval does not pass.
    fn new(mib: u64, dirty_mib: u64) -> Volume {
        let device = Arc::new(Counting {
            device: MemDevice::new(mib * BLOCKS_PER_MIB),
            written: AtomicU64::new(0),
        });
        // A quarter of the log has room for the placing of 100 MiB.
        let wanted = MkfsOptions {
            log_blocks: Some(8192),
            ..MkfsOptions::default()
        };
        mkfs(&*device, &wanted, &mut |_, _| {}).unwrap();
        let mut options = MountOptions::default();
        options.commit_interval = Duration::from_secs(100_000);
        options.uncommitted_bytes = dirty_mib * MIB;
        let (fs, _) = Fs::mount(device.clone(), &options).unwrap();
        Volume { device, fs }
    }

    fn written(&self) -> u64 {
        self.device.written.load(Relaxed)
    }

    fn create(&self, stream: u32, name: &str) -> Ino {
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let made = self
            .fs
            .mknod(&caller(stream), self.fs.root(), name.as_bytes(), &node);
        made.unwrap().ino
    }

    fn append(&self, stream: u32, ino: Ino, mib: u64) {
        for n in 0..mib {
            let data = vec![n as u8 + 1; MIB as usize];
            self.fs.write(&caller(stream), ino, n * MIB, &data).unwrap();
        }
    }

    fn end(self) {
        self.fs.unmount().unwrap();
        let report = fsck(self.device.clone() as _, &FsckOptions::default()).unwrap();
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    }
}

fn caller(stream: u32) -> Caller {
    Caller {
        stream: Stream(stream),
        ..Caller::root()
    }
}

#[test]
fn appended_and_truncated_bytes_are_not_written_by_an_fsync_of_another_stream() {
    let v = Volume::new(256, 256);
    let (a, b) = (v.create(1, "a"), v.create(2, "b"));
    v.fs.sync().unwrap();
    let before = v.written();
    v.append(1, a, 100);
    v.fs.write(&caller(2), b, 0, &[1]).unwrap();
    v.fs.fsync(&caller(2), b, false).unwrap();
    let at_fsync = v.written() - before;
    assert!(
        at_fsync <= 16,
        "the fsync of a byte writes {at_fsync} blocks"
    );
    let none = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    v.fs.setattr(&caller(1), a, &none).unwrap();
    v.fs.fsync(&caller(1), a, false).unwrap();
    let blocks = v.written() - before;
    assert!(blocks <= BLOCKS_PER_MIB, "{blocks} blocks of 100 MiB");
    v.end();
}

#[test]
fn appended_and_unlinked_bytes_are_not_written() {
    let v = Volume::new(256, 256);
    v.create(1, "a");
    v.fs.sync().unwrap();
    let before = v.written();
    let a = v.fs.lookup(&caller(1), v.fs.root(), b"a").unwrap().ino;
    v.append(1, a, 100);
    v.fs.unlink(&caller(1), v.fs.root(), b"a").unwrap();
    v.fs.sync().unwrap();
    let blocks = v.written() - before;
    assert!(blocks <= BLOCKS_PER_MIB, "{blocks} blocks of 100 MiB");
    v.end();
}

/// Beyond the budget nothing is kept in memory, and the writer does not wait for more than it must.
#[test]
fn appended_bytes_beyond_the_budget_are_written_meanwhile() {
    const BUDGET: u64 = 16;
    let v = Volume::new(256, BUDGET);
    let a = v.create(1, "a");
    v.append(1, a, 100);
    let mib = v.written() / BLOCKS_PER_MIB;
    assert!(mib >= 100 - 2 * BUDGET, "only {mib} MiB are written");
    v.fs.fsync(&caller(1), a, false).unwrap();
    assert_eq!(v.fs.journal_stats().around_blocks, 100 * BLOCKS_PER_MIB);
    v.end();
}

/// Many files that one sync closes: others are not held back for all of them at once.
#[test]
fn a_sync_of_many_files_holds_others_back_in_pieces() {
    let v = Volume::new(128, 64);
    for n in 0..1000 {
        let file = v.create(1, &format!("{n}"));
        v.fs.write(&caller(1), file, 0, &[1; 100]).unwrap();
    }
    v.fs.sync().unwrap();
    let largest = v.fs.journal_stats().largest_hold;
    assert!((1..=256).contains(&largest), "{largest} files in one hold");
    for n in 0..1000 {
        let name = format!("{n}");
        let file = v.fs.lookup(&caller(1), v.fs.root(), name.as_bytes());
        let mut read = [0; 200];
        let len = v.fs.read(&caller(1), file.unwrap().ino, 0, &mut read);
        assert_eq!(len.unwrap(), 100);
    }
    v.end();
}
