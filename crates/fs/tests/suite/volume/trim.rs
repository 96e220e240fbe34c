//! Free space is trimmed beside writers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use steadfast_block::{BlockDevice, BlockNo, DeviceError, Geometry, MemDevice};
use steadfast_fs::{
    Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, TrimRange, Trimmed, fsck, mkfs,
};
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, Ino, NewNode};

type Hook = Box<dyn Fn() + Send + Sync>;

/// A memory that calls a function before the next trim, once.
struct Watched {
    memory: MemDevice,
    hook: Mutex<Option<Hook>>,
    largest: AtomicU64,
}

impl BlockDevice for Watched {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read(at, buf)
    }
    fn write(&self, at: BlockNo, data: &[&[u8]]) -> Result<(), DeviceError> {
        self.memory.write(at, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.memory.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<(), DeviceError> {
        let hook = self.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.largest.fetch_max(count, SeqCst);
        // A trimmed block must not be one that another operation has written.
        let dirt = vec![0xee; 4096];
        for at in at.0..at.0 + count {
            self.memory.write(BlockNo(at), &[&dirt])?;
        }
        Ok(())
    }
}

fn volume(blocks: u64, change: impl Fn(&mut MountOptions)) -> (Arc<Watched>, Arc<Fs>) {
    let device = Arc::new(Watched {
        memory: MemDevice::new(blocks),
        hook: Mutex::new(None),
        largest: AtomicU64::new(0),
    });
    let options = MkfsOptions {
        uuid: Some([6; 16]),
        seed: Some(6),
        ..MkfsOptions::default()
    };
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    let mut options = MountOptions::default();
    options.seed = Some(1);
    change(&mut options);
    let fs = Fs::mount(Arc::clone(&device) as _, &options).unwrap().0;
    (device, fs)
}

fn create(fs: &Fs, name: &str) -> Ino {
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    fs.mknod(&Caller::root(), fs.root(), name.as_bytes(), &node)
        .unwrap()
        .ino
}

fn trim(fs: &Fs, bytes: std::ops::Range<u64>, min_bytes: u64) -> Trimmed {
    fs.trim(&TrimRange { bytes, min_bytes }, &mut |_, _| {})
        .unwrap()
}

fn finish(device: Arc<Watched>, fs: &Fs) {
    fs.unmount().unwrap();
    let report = fsck(device, &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::Clean, "{:?}", report.findings);
}

/// Writes and syncs a file of 20 MiB while the device trims the first piece; returns its content afterwards.
fn write_during_a_trim(change: impl Fn(&mut MountOptions)) -> bool {
    let (device, fs) = volume(16_000, change);
    let ino = create(&fs, "file");
    let data: Vec<u8> = (0..20u32 << 20).map(|i| (i % 249) as u8 + 1).collect();
    let (writer, bytes) = (Arc::clone(&fs), data.clone());
    *device.hook.lock().unwrap() = Some(Box::new(move || {
        let root = Caller::root();
        assert_eq!(writer.write(&root, ino, 0, &bytes).unwrap(), bytes.len());
        writer.fsync(&root, ino, false).unwrap();
    }));
    let trimmed = trim(&fs, 0..u64::MAX, 0);
    assert!(trimmed.blocks > 0 && device.largest.load(SeqCst) <= 8192);
    assert!(!fs.is_read_only());
    finish(Arc::clone(&device), &fs);
    // From the device, not from memory.
    let fs = Fs::mount(device, &MountOptions::default()).unwrap().0;
    let mut found = vec![0; data.len()];
    fs.read(&Caller::root(), ino, 0, &mut found).unwrap();
    found == data
}

/// A trim took whole groups away from delayed pages that had reserved them: "placing delayed data failed", and the
/// volume was read-only within seconds.
#[test]
fn delayed_pages_find_their_space_while_the_device_trims() {
    assert!(write_during_a_trim(|options| options.background = false));
}

#[test]
fn a_trim_of_blocks_that_others_may_take_is_found() {
    assert!(!write_during_a_trim(|options| {
        options.background = false;
        options.faults.trim_unheld = true;
    }));
    steadfast_testkit::caught("fs.trim_unheld");
}

/// Writers that need nearly all of the volume, beside trims without a pause.
#[test]
fn trims_beside_writers_on_a_nearly_full_volume() {
    let (device, fs) = volume(3000, |_| {});
    let done = AtomicBool::new(false);
    let (fs, done) = (&*fs, &done);
    let files: Vec<Ino> = (0..3).map(|n| create(fs, &format!("f{n}"))).collect();
    std::thread::scope(|scope| {
        let trimmer = scope.spawn(move || {
            let mut rounds = 0;
            while !done.load(SeqCst) || rounds < 3 {
                fs.trim(&TrimRange::default(), &mut |_, _| {}).unwrap();
                rounds += 1;
            }
        });
        let writers: Vec<_> = files
            .iter()
            .zip(1u8..)
            .map(|(&ino, byte)| {
                scope.spawn(move || {
                    let caller = Caller {
                        stream: steadfast_vfs::Stream(u32::from(byte)),
                        ..Caller::root()
                    };
                    for round in 0..30u8 {
                        let data = vec![byte ^ round; 3 << 20];
                        let mut at = 0;
                        while at < data.len() {
                            match fs.write(&caller, ino, at as u64, &data[at..]) {
                                Ok(written) => at += written,
                                Err(error) => {
                                    assert!(error == Errno::NoSpc, "{error}");
                                    break;
                                }
                            }
                        }
                        fs.fsync(&caller, ino, false).unwrap();
                        let mut found = vec![0; at];
                        fs.read(&caller, ino, 0, &mut found).unwrap();
                        assert!(found == data[..at], "round {round}");
                        let set = steadfast_vfs::SetAttr {
                            size: Some(0),
                            ..Default::default()
                        };
                        fs.setattr(&caller, ino, &set).unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, SeqCst);
        trimmer.join().unwrap();
    });
    assert!(!fs.is_read_only());
    finish(device, fs);
}

/// As fstrim asks for: a range, and runs that are long enough.
#[test]
fn a_range_is_trimmed_and_short_runs_are_passed_over() {
    let (device, fs) = volume(40_000, |options| options.background = false);
    let all = trim(&fs, 0..u64::MAX, 0);
    let free = fs.statfs().unwrap().blocks_free;
    assert!(
        all.blocks >= free && all.blocks <= free + 64,
        "{all:?}, {free} free"
    );
    assert!(all.runs > 3, "in pieces: {all:?}");
    let half = trim(&fs, 0..20_000 * 4096, 0);
    let rest = trim(&fs, 20_000 * 4096..u64::MAX, 0);
    assert_eq!(half.blocks + rest.blocks, all.blocks);
    // Parts of blocks at both ends are no whole blocks.
    assert_eq!(
        trim(&fs, 20_000 * 4096 + 1..20_002 * 4096 + 4095, 0).blocks,
        1
    );
    assert_eq!(trim(&fs, 20_000 * 4096..20_008 * 4096, 9 * 4096).blocks, 0);
    // A run that is taken in pieces is trimmed to its end.
    assert_eq!(
        trim(&fs, 20_000 * 4096..28_200 * 4096, 8193 * 4096).blocks,
        8200
    );
    let behind = fs.trim(
        &TrimRange {
            bytes: 40_000 * 4096..u64::MAX,
            min_bytes: 0,
        },
        &mut |_, _| {},
    );
    assert!(behind.unwrap_err() == Errno::Inval);
    finish(device, &fs);
}

/// As ext4 does: fstrim(8) shows the error instead of "0 bytes trimmed" (xfstests generic/288).
#[test]
fn a_range_without_a_whole_block_is_refused() {
    let (device, fs) = volume(1000, |_| {});
    let ask = |bytes| FileSystem::trim(&*fs, bytes, 0);
    for bytes in [0..0, 0..100, 4096..8191, 1000 * 4096..u64::MAX] {
        assert!(ask(bytes.clone()).unwrap_err() == Errno::Inval, "{bytes:?}");
    }
    assert!(ask(0..u64::MAX).unwrap() > 0);
    finish(device, &fs);
}
