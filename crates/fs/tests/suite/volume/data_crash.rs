//! Power cuts in file data paths that need several operations: truncation and removal of
//! files too large for one, preallocation, small writes into the record. Each cut leaves
//! one of the states that the file had, none older than the last fsync; the volume
//! is sound, and no space is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use steadfast_block::BlockDevice;
use steadfast_fs::{Faults, Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_sim::{Limits, SimDevice};
use steadfast_vfs::{AllocateMode, Caller, Errno, FileKind, FileSystem, Ino, NewNode, SetAttr};

fn mount(device: Arc<dyn BlockDevice>) -> Arc<Fs> {
    mount_with(device, |_| {})
}

fn mount_with(device: Arc<dyn BlockDevice>, plant: fn(&mut Faults)) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.background = false;
    options.seed = Some(1);
    plant(&mut options.faults);
    Fs::mount(device, &options).unwrap().0
}

/// The content of the file, if there is one.
fn content(fs: &Fs) -> Option<Vec<u8>> {
    let attr = match fs.lookup(&Caller::root(), fs.root(), b"file") {
        Ok(attr) => attr,
        Err(error) => {
            assert!(error == Errno::NoEnt, "{error}");
            return None;
        }
    };
    let mut data = vec![0; attr.size as usize];
    let read = fs.read(&Caller::root(), attr.ino, 0, &mut data).unwrap();
    assert_eq!(read, data.len());
    Some(data)
}

/// A test's volume, and the states that the test leaves.
struct Run {
    device: Arc<SimDevice>,
    fs: Arc<Fs>,
    ino: Ino,
    states: Vec<Option<Vec<u8>>>,
}

impl Run {
    /// A volume with an empty file, durable.
    fn new() -> Run {
        Run::with(|_| {})
    }

    /// The same, with planted faults.
    fn with(plant: fn(&mut Faults)) -> Run {
        let device = Arc::new(SimDevice::new(2048));
        let options = MkfsOptions {
            uuid: Some([3; 16]),
            seed: Some(3),
            log_blocks: Some(64),
            ..MkfsOptions::default()
        };
        mkfs(&*device, &options, &mut |_, _| {}).unwrap();
        let fs = mount_with(Arc::clone(&device) as _, plant);
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let ino = fs
            .mknod(&Caller::root(), fs.root(), b"file", &node)
            .unwrap()
            .ino;
        let mut run = Run {
            device,
            fs,
            ino,
            states: Vec::new(),
        };
        run.saw();
        run.fsync();
        run
    }

    fn saw(&mut self) {
        self.states.push(content(&self.fs));
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        self.fs.write(&Caller::root(), self.ino, at, data).unwrap();
        self.saw();
    }

    fn truncate(&mut self, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.setattr(&Caller::root(), self.ino, &set).unwrap();
        self.saw();
    }

    fn allocate(&mut self, mode: AllocateMode, at: u64, len: u64) {
        self.fs
            .fallocate(&Caller::root(), self.ino, mode, at, len)
            .unwrap();
        self.saw();
    }

    fn fsync(&mut self) {
        self.fs.fsync(&Caller::root(), self.ino, false).unwrap();
        // A cut from here on leaves this state or a later one.
        self.device.mark(self.states.len() as u64 - 1);
    }

    /// Cuts the power at every position from `from` on, and checks the states that it leaves.
    fn explore(self, from: usize) {
        let mut explorer = self.device.explorer();
        let mut images = 0;
        for position in from..=explorer.len() {
            let cut = explorer.cut(position);
            let oldest = cut.marks().last().copied().unwrap_or(0) as usize;
            let limits = Limits {
                exhaustive_writes: 3,
                sampled: 12,
                tears: true,
                seed: 1,
            };
            for image in cut.images(&limits) {
                images += 1;
                let name = image.to_string();
                let device = Arc::new(SimDevice::from_image(image));
                let fs = mount(Arc::clone(&device) as _);
                let found = content(&fs);
                let state = self.states[oldest..]
                    .iter()
                    .position(|state| *state == found);
                assert!(
                    state.is_some(),
                    "{name}: a file of {:?} bytes is no state from {oldest} on",
                    found.map(|data| data.len())
                );
                fs.unmount().unwrap();
                let report = fsck(device, &FsckOptions::default()).unwrap();
                assert_eq!(
                    report.outcome(),
                    Outcome::Clean,
                    "{name}: {:?}",
                    report.findings
                );
            }
        }
        println!("{images} images");
        assert!(images > 8, "only {images} images");
    }
}

#[test]
fn corner_29_a_cut_in_a_truncation_of_many_operations_leaves_it_done_or_not_begun() {
    let mut run = Run::new();
    // Every second page: each is an extent, too many to free in one operation.
    for page in 0..900u64 {
        let data = [(page % 251) as u8 + 1; 4096];
        run.fs
            .write(&Caller::root(), run.ino, page * 8192, &data)
            .unwrap();
    }
    run.saw();
    run.fsync();
    let start = run.device.trace_len();
    run.truncate(3 * 8192 + 100);
    run.truncate(100 * 8192);
    run.write(50 * 8192 + 10, b"behind what was cut off");
    run.fsync();
    run.truncate(0);
    run.explore(start);
}

#[test]
fn corner_29_a_cut_in_a_removal_of_many_operations_loses_no_space() {
    let mut run = Run::new();
    for page in 0..900u64 {
        let data = [(page % 251) as u8 + 1; 4096];
        run.fs
            .write(&Caller::root(), run.ino, page * 8192, &data)
            .unwrap();
    }
    run.saw();
    run.fsync();
    let start = run.device.trace_len();
    // Removed while open, then closed.
    let caller = Caller::root();
    run.fs.open(&caller, run.ino).unwrap();
    run.fs.unlink(&caller, run.fs.root(), b"file").unwrap();
    run.saw();
    run.fs.sync().unwrap();
    run.device.mark(run.states.len() as u64 - 1);
    run.fs.release(run.ino);
    run.fs.sync().unwrap();
    run.explore(start);
}

#[test]
fn corner_26_preallocated_and_cut_off_blocks_never_show_old_bytes() {
    let mut run = Run::new();
    let start = run.device.trace_len();
    // Old bytes to find: written, then freed.
    run.write(0, &[0xaa; 60_000]);
    run.fsync();
    run.truncate(0);
    run.fsync();
    run.fs.sync().unwrap();
    run.allocate(AllocateMode::Allocate, 0, 50_000);
    run.write(5_000, b"into preallocated blocks");
    run.fsync();
    run.write(20_000, &[0xbb; 9_000]);
    run.truncate(22_222);
    run.truncate(40_000);
    run.fsync();
    run.allocate(AllocateMode::ZeroRange, 6_000, 16_000);
    run.write(40_000, b"at the end");
    run.fsync();
    run.explore(start);
}

#[test]
fn small_appends_go_into_the_record_and_survive() {
    let mut run = Run::new();
    let start = run.device.trace_len();
    let mut at = 0;
    for round in 0..12u8 {
        let data = vec![round + 1; 700];
        run.write(at, &data);
        at += 700;
        if round % 3 != 1 {
            run.fsync();
        }
    }
    run.truncate(1000);
    run.write(900, &[0xcc; 5000]);
    run.fsync();
    run.explore(start);
}

/// A full volume whose file is preallocated, over blocks that hold other bytes: then every other page of it is written,
/// and there is no block for the tree that they would need.
fn write_scattered_without_a_free_block(plant: fn(&mut Faults)) {
    let mut run = Run::with(plant);
    let root = Caller::root();
    // Old bytes to find: written, then freed.
    let free = run.fs.statfs().unwrap().blocks_free;
    let most = (free - 20) * 4096;
    let old = vec![0xaa; most as usize];
    run.fs.write(&root, run.ino, 0, &old).unwrap();
    run.fs.fsync(&root, run.ino, false).unwrap();
    run.truncate(0);
    run.fs.sync().unwrap();
    run.fs.sync().unwrap();
    let mode = AllocateMode::KeepSize;
    let mut end = 0;
    for step in [most, 1 << 16, 4096] {
        while run.fs.fallocate(&root, run.ino, mode, end, step).is_ok() {
            end += step;
        }
    }
    run.truncate(70_000);
    run.fsync();
    let start = run.device.trace_len();
    for n in 0..17 {
        let page = if n < 9 { 2 * n } else { 2 * (n - 9) + 1 };
        run.write(page * 4096 + 100, &[n as u8 + 1; 90]);
        if n % 3 == 2 {
            run.fsync();
        }
    }
    run.fsync();
    run.explore(start);
}

#[test]
fn corner_71_zeros_under_a_page_are_there_before_the_extent_can_be_read() {
    write_scattered_without_a_free_block(|_| {});
}

#[test]
fn corner_71_zeros_that_are_not_flushed_are_found() {
    let unflushed = |faults: &mut Faults| faults.journal.zeros_unflushed = true;
    let found = std::panic::catch_unwind(|| write_scattered_without_a_free_block(unflushed));
    let what = *found.unwrap_err().downcast::<String>().unwrap();
    assert!(what.contains("is no state"), "{what}");
    steadfast_testkit::caught("journal.zeros_unflushed");
}
