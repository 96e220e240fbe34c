//! File data against a vector of bytes: writes, appends, truncation, allocation, with commits,
//! remounts and full volumes in between. The journal runs inline, so every run is the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use std::sync::Arc;
use steadfast_block::MemDevice;
use steadfast_fs::{Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_vfs::{
    AllocateMode, Caller, Errno, FileKind, FileSystem, Ino, NewNode, Seek, SetAttr, Stream,
};

const MIB: u64 = 1 << 20;

fn device(blocks: u64, log_blocks: Option<u64>) -> Arc<MemDevice> {
    let device = MemDevice::new(blocks);
    let options = MkfsOptions {
        uuid: Some([3; 16]),
        seed: Some(3),
        log_blocks,
        ..MkfsOptions::default()
    };
    mkfs(&device, &options, &mut |_, _| {}).unwrap();
    Arc::new(device)
}

fn mount(device: &Arc<MemDevice>) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.background = false;
    options.seed = Some(1);
    Fs::mount(Arc::clone(device) as _, &options).unwrap().0
}

/// The volume as a power cut would leave it now, mounted again.
fn crashed(device: &Arc<MemDevice>) -> (Arc<MemDevice>, Arc<Fs>) {
    let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
    let fs = mount(&copy);
    (copy, fs)
}

/// Unmounts, and checks that nothing is wrong with the volume.
fn finish(device: &Arc<MemDevice>, fs: &Fs) {
    fs.unmount().unwrap();
    check(device);
}

fn check(device: &Arc<MemDevice>) {
    let report = fsck(Arc::clone(device) as _, &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::Clean, "{:?}", report.findings);
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

fn find(fs: &Fs, name: &str) -> Ino {
    fs.lookup(&Caller::root(), fs.root(), name.as_bytes())
        .unwrap()
        .ino
}

fn content(fs: &Fs, ino: Ino) -> Vec<u8> {
    let size = fs.getattr(&Caller::root(), ino).unwrap().size;
    let mut data = vec![0xee; size as usize + 10];
    let read = fs.read(&Caller::root(), ino, 0, &mut data).unwrap();
    assert_eq!(read as u64, size);
    data.truncate(read);
    data
}

fn truncate(fs: &Fs, ino: Ino, size: u64) -> steadfast_vfs::Result<()> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&Caller::root(), ino, &set).map(drop)
}

fn free(fs: &Fs) -> u64 {
    fs.statfs().unwrap().blocks_free
}

/// Bytes that tell where they belong.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i / 7 + seed * 31 + i * seed) % 255 + 1) as u8)
        .collect()
}

fn same(found: &[u8], expected: &[u8], what: &str) {
    if found != expected {
        let at = found.iter().zip(expected).position(|(a, b)| a != b);
        panic!(
            "{what}: {} bytes, expected {}; first difference at {at:?} ({:?} for {:?})",
            found.len(),
            expected.len(),
            at.map(|at| found[at]),
            at.map(|at| expected[at])
        );
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, len: usize },
    Append { len: usize },
    Truncate { size: u64 },
    Allocate { mode: u8, at: u64, len: u64 },
    Fsync,
    Sync,
    Remount,
    Crash,
    Other { at: u64, len: usize },
}

fn step(span: u64) -> impl Strategy<Value = Step> {
    let long = prop_oneof![3 => 1usize..300, 3 => 1usize..9000, 1 => 1usize..200_000];
    prop_oneof![
        8 => (0..span, long.clone()).prop_map(|(at, len)| Step::Write { at, len }),
        // Whole pages, as programs write them.
        4 => (0..span / 4096, 1usize..20)
            .prop_map(|(page, pages)| Step::Write { at: page * 4096, len: pages * 4096 }),
        3 => long.clone().prop_map(|len| Step::Append { len }),
        3 => (0..span).prop_map(|size| Step::Truncate { size }),
        3 => (0u8..5, 0..span, 1..span / 2)
            .prop_map(|(mode, at, len)| Step::Allocate { mode, at, len }),
        2 => Just(Step::Fsync),
        1 => Just(Step::Sync),
        1 => Just(Step::Remount),
        1 => Just(Step::Crash),
        2 => (0..span, 1usize..5000).prop_map(|(at, len)| Step::Other { at, len }),
    ]
}

fn put(model: &mut Vec<u8>, at: u64, data: &[u8]) {
    let end = at as usize + data.len();
    if model.len() < end {
        model.resize(end, 0);
    }
    model[at as usize..end].copy_from_slice(data);
}

fn modes(mode: u8) -> AllocateMode {
    match mode {
        0 => AllocateMode::Allocate,
        1 => AllocateMode::KeepSize,
        2 => AllocateMode::PunchHole,
        3 => AllocateMode::ZeroRange,
        _ => AllocateMode::ZeroRangeKeepSize,
    }
}

fn model_allocate(model: &mut Vec<u8>, mode: u8, at: u64, len: u64) {
    let end = (at + len) as usize;
    if matches!(mode, 0 | 3) && model.len() < end {
        model.resize(end, 0);
    }
    if mode >= 2 {
        let (from, to) = ((at as usize).min(model.len()), end.min(model.len()));
        model[from..to].fill(0);
    }
}

/// Runs steps on a file and beside it on its model, compares after each.
fn run(steps: &[Step], blocks: u64, log_blocks: u64) {
    let mut device = device(blocks, Some(log_blocks));
    let mut fs = mount(&device);
    let caller = Caller::root();
    let other_caller = Caller {
        stream: Stream(9),
        ..Caller::root()
    };
    let start = free(&fs);
    let mut ino = create(&fs, "file");
    let mut other = create(&fs, "other");
    let (mut model, mut other_model) = (Vec::new(), Vec::new());
    fs.sync().unwrap();
    let mut seed = 0;
    for step in steps {
        seed += 1;
        match *step {
            Step::Write { at, len } => {
                let data = pattern(seed, len);
                assert_eq!(fs.write(&caller, ino, at, &data).unwrap(), len);
                put(&mut model, at, &data);
            }
            Step::Append { len } => {
                let data = pattern(seed, len);
                let at = model.len() as u64;
                assert_eq!(fs.append(&caller, ino, &data).unwrap(), (at, data.len()));
                model.extend(data);
            }
            Step::Truncate { size } => {
                truncate(&fs, ino, size).unwrap();
                model.resize(size as usize, 0);
            }
            Step::Allocate { mode, at, len } => {
                fs.fallocate(&caller, ino, modes(mode), at, len).unwrap();
                model_allocate(&mut model, mode, at, len);
            }
            Step::Fsync => fs.fsync(&caller, ino, false).unwrap(),
            Step::Sync => fs.sync().unwrap(),
            Step::Other { at, len } => {
                let data = pattern(seed, len);
                assert_eq!(fs.write(&other_caller, other, at, &data).unwrap(), len);
                put(&mut other_model, at, &data);
            }
            Step::Remount => {
                fs.unmount().unwrap();
                fs = mount(&device);
                (ino, other) = (find(&fs, "file"), find(&fs, "other"));
            }
            Step::Crash => {
                fs.sync().unwrap();
                check(&device);
                let before = free(&fs);
                (device, fs) = crashed(&device);
                (ino, other) = (find(&fs, "file"), find(&fs, "other"));
                assert_eq!(free(&fs), before, "free blocks after a crash");
            }
        }
        same(&content(&fs, ino), &model, &format!("after {step:?}"));
    }
    same(&content(&fs, other), &other_model, "the other file");
    fs.sync().unwrap();
    let (_copy, again) = crashed(&device);
    same(
        &content(&again, find(&again, "file")),
        &model,
        "after a crash",
    );
    same(
        &content(&again, find(&again, "other")),
        &other_model,
        "the other file after a crash",
    );
    drop(again);
    fs.unlink(&caller, fs.root(), b"file").unwrap();
    fs.unlink(&caller, fs.root(), b"other").unwrap();
    fs.sync().unwrap();
    // The root directory may have got its first leaf, the inodes their block.
    assert!(
        start - free(&fs) <= 2,
        "{} of {start} blocks are free",
        free(&fs)
    );
    finish(&device, &fs);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_file_behaves_like_a_vector_of_bytes(steps in prop::collection::vec(step(400_000), 1..60)) {
        run(&steps, 2048, 256);
    }

    #[test]
    fn a_file_behaves_like_a_vector_of_bytes_with_the_smallest_log(
        steps in prop::collection::vec(step(1_500_000), 1..40)
    ) {
        run(&steps, 2048, 64);
    }
}

#[test]
fn corner_24_a_full_volume_syncs_accepted_writes() {
    for size in [100usize, 4096, 5000, 70_000] {
        let device = device(1024, Some(64));
        let fs = mount(&device);
        let caller = Caller::root();
        let start = free(&fs);
        let mut files = Vec::new();
        let full = 'full: loop {
            let name = format!("file{}", files.len());
            let node = NewNode {
                kind: FileKind::Regular,
                perm: 0o644,
                rdev: 0,
            };
            let ino = match fs.mknod(&caller, fs.root(), name.as_bytes(), &node) {
                Ok(attr) => attr.ino,
                Err(error) => break 'full error,
            };
            files.push((name, ino, Vec::new()));
            let model = &mut files.last_mut().unwrap().2;
            // Every second page only, so that nothing merges.
            for piece in 0..40u64 {
                let data = pattern(piece + 1, size);
                let at = piece * (size as u64 + 5000);
                match fs.write(&caller, ino, at, &data) {
                    Ok(written) => {
                        put(model, at, &data[..written]);
                        if written < size {
                            break 'full Errno::NoSpc.into();
                        }
                    }
                    Err(error) => break 'full error,
                }
            }
        };
        assert!(full == Errno::NoSpc, "{full}");
        fs.fsync(&caller, files[0].1, false).unwrap();
        fs.sync().unwrap();
        assert!(
            free(&fs) < start / 8,
            "{} of {start} blocks are free when full",
            free(&fs)
        );
        for (name, ino, model) in &files {
            same(&content(&fs, *ino), model, name);
        }
        let (_copy, again) = crashed(&device);
        for (name, _, model) in &files {
            same(&content(&again, find(&again, name)), model, name);
        }
        drop(again);
        // A full volume can still be emptied, and is then as large as before.
        for (name, _, _) in &files {
            fs.unlink(&caller, fs.root(), name.as_bytes()).unwrap();
        }
        fs.sync().unwrap();
        assert!(
            start - free(&fs) <= 3,
            "{} of {start} free at last",
            free(&fs)
        );
        finish(&device, &fs);
    }
}

#[test]
fn corner_30_a_write_without_space_leaves_no_trace() {
    let device = device(600, Some(64));
    let fs = mount(&device);
    let caller = Caller::root();
    let (filler, ino) = (create(&fs, "filler"), create(&fs, "file"));
    let small: Vec<Ino> = (0..10).map(|i| create(&fs, &format!("small{i}"))).collect();
    fs.write(&caller, ino, 0, &pattern(1, 6000)).unwrap();
    let mut at = 0;
    while fs.write(&caller, filler, at, &pattern(2, 4096)).is_ok() {
        at += 4096;
    }
    // A small file needs less than a large one: no room for its tree.
    for ino in small {
        while fs.append(&caller, ino, &pattern(2, 4096)).is_ok() {}
    }
    let before = (
        content(&fs, ino),
        fs.getattr(&caller, ino).unwrap(),
        free(&fs),
    );
    for offset in [0, 100, 4000, 6000, 1 << 30] {
        let error = fs
            .write(&caller, ino, offset + 8192, &pattern(3, 100))
            .unwrap_err();
        assert!(error == Errno::NoSpc);
        assert!(
            fs.fallocate(&caller, ino, AllocateMode::Allocate, offset + 8192, 4096)
                .is_err()
        );
    }
    assert_eq!(
        (
            content(&fs, ino),
            fs.getattr(&caller, ino).unwrap(),
            free(&fs)
        ),
        before
    );
    // Overwriting needs no space.
    fs.write(&caller, ino, 10, &pattern(4, 5000)).unwrap();
    fs.sync().unwrap();
    // Blocks that are given back can be allocated again.
    truncate(&fs, filler, 4096).unwrap();
    fs.write(&caller, ino, 8192, &pattern(3, 100_000)).unwrap();
    finish(&device, &fs);
}

#[test]
fn corner_26_bytes_cut_off_read_as_zeros_before_and_after_a_crash() {
    let device = device(1024, None);
    let fs = mount(&device);
    let caller = Caller::root();
    for synced in [false, true] {
        for cut in [0u64, 1, 100, 4095, 4096, 4097, 9000] {
            for regrow in [5000u64, 4096, 12_000, 20_000] {
                let ino = create(&fs, "file");
                let mut model = pattern(cut, 10_000);
                fs.write(&caller, ino, 0, &model).unwrap();
                if synced {
                    fs.fsync(&caller, ino, false).unwrap();
                }
                truncate(&fs, ino, cut).unwrap();
                truncate(&fs, ino, regrow).unwrap();
                model.resize(cut as usize, 0);
                model.resize(regrow as usize, 0);
                same(&content(&fs, ino), &model, "regrown");
                fs.write(&caller, ino, regrow + 3000, b"end").unwrap();
                put(&mut model, regrow + 3000, b"end");
                same(&content(&fs, ino), &model, "written past the end");
                fs.fsync(&caller, ino, false).unwrap();
                let (_copy, again) = crashed(&device);
                same(
                    &content(&again, find(&again, "file")),
                    &model,
                    "after a crash",
                );
                fs.unlink(&caller, fs.root(), b"file").unwrap();
            }
        }
    }
}

#[test]
fn corner_62_a_very_long_write_is_several_operations() {
    let device = device(48 * MIB / 4096, Some(64));
    let fs = mount(&device);
    let caller = Caller::root();
    let ino = create(&fs, "file");
    let mut model = pattern(5, 24 << 20);
    assert_eq!(fs.write(&caller, ino, 1234, &model).unwrap(), model.len());
    fs.fsync(&caller, ino, false).unwrap();
    // Overwritten through a log of 256 KiB.
    let again = pattern(6, 3 << 20);
    assert_eq!(fs.write(&caller, ino, 5000, &again).unwrap(), again.len());
    fs.fsync(&caller, ino, false).unwrap();
    model.splice(0..0, std::iter::repeat_n(0, 1234));
    put(&mut model, 5000, &again);
    same(&content(&fs, ino), &model, "the long file");
    let (_copy, again) = crashed(&device);
    same(
        &content(&again, find(&again, "file")),
        &model,
        "after a crash",
    );
    drop(again);
    assert!(
        fs.write(&caller, ino, (1 << 44) - 10, &[0; 20])
            .unwrap_err()
            == Errno::FBig
    );
    truncate(&fs, ino, 0).unwrap();
    finish(&device, &fs);
}

#[test]
fn corner_29_a_file_too_large_for_one_operation_is_truncated_and_removed() {
    let device = device(64 * MIB / 4096, Some(64));
    let fs = mount(&device);
    let caller = Caller::root();
    let start = free(&fs);
    let ino = create(&fs, "file");
    // Every second page, so that there are very many extents.
    for page in 0..3000u64 {
        fs.write(&caller, ino, page * 8192, &pattern(page, 4096))
            .unwrap();
    }
    let middle = 1501 * 8192 + 100;
    let model = &content(&fs, ino)[..middle];
    truncate(&fs, ino, middle as u64).unwrap();
    same(&content(&fs, ino), model, "truncated");
    truncate(&fs, ino, 3000 * 8192).unwrap();
    let mut grown = model.to_vec();
    grown.resize(3000 * 8192, 0);
    same(&content(&fs, ino), &grown, "grown again");
    assert_eq!(
        fs.seek(&caller, ino, middle as u64, Seek::Hole).unwrap(),
        1502 * 8192 - 4096
    );
    fs.sync().unwrap();
    fs.unlink(&caller, fs.root(), b"file").unwrap();
    fs.sync().unwrap();
    assert!(start - free(&fs) <= 3, "{} of {start} free", free(&fs));
    finish(&device, &fs);
}

#[test]
fn data_and_holes_are_found() {
    let device = device(1024, None);
    let fs = mount(&device);
    let caller = Caller::root();
    let ino = create(&fs, "file");
    fs.write(&caller, ino, 8192, &[1; 4096]).unwrap();
    fs.write(&caller, ino, 40_960, &[1; 10]).unwrap();
    fs.fallocate(&caller, ino, AllocateMode::KeepSize, 16_384, 8192)
        .unwrap();
    for _ in 0..2 {
        let seek = |at, whence| fs.seek(&caller, ino, at, whence);
        assert_eq!(seek(0, Seek::Data).unwrap(), 8192);
        assert_eq!(seek(0, Seek::Hole).unwrap(), 0);
        assert_eq!(seek(8200, Seek::Data).unwrap(), 8200);
        assert_eq!(seek(8200, Seek::Hole).unwrap(), 12_288);
        assert_eq!(seek(12_288, Seek::Data).unwrap(), 40_960);
        assert_eq!(seek(40_965, Seek::Hole).unwrap(), 40_970);
        assert!(seek(40_970, Seek::Data).unwrap_err() == Errno::NxIo);
        fs.sync().unwrap();
    }
    truncate(&fs, ino, 100_000).unwrap();
    assert!(fs.seek(&caller, ino, 50_000, Seek::Data).unwrap_err() == Errno::NxIo);
    finish(&device, &fs);
}

/// `stat` counted such pages twice until they were placed (xfstests generic/568).
#[test]
fn a_delayed_write_to_preallocated_blocks_adds_none() {
    let device = device(1024, None);
    let fs = mount(&device);
    let caller = Caller::root();
    let ino = create(&fs, "file");
    fs.fallocate(&caller, ino, AllocateMode::Allocate, 4095, 2)
        .unwrap();
    let blocks = || fs.getattr(&caller, ino).unwrap().blocks;
    assert_eq!(blocks(), 16);
    fs.write(&caller, ino, 4095, b"xy").unwrap();
    assert_eq!(blocks(), 16, "delayed");
    fs.write(&caller, ino, 8192, b"z").unwrap();
    assert_eq!(blocks(), 24, "one page needs a block");
    fs.sync().unwrap();
    assert_eq!(blocks(), 24, "placed");
    finish(&device, &fs);
}

#[test]
fn preallocated_blocks_read_as_zeros_and_take_writes_in_any_order() {
    let device = device(1024, None);
    let fs = mount(&device);
    let caller = Caller::root();
    let ino = create(&fs, "file");
    fs.fallocate(&caller, ino, AllocateMode::Allocate, 0, 200_000)
        .unwrap();
    let before = free(&fs);
    let mut model = vec![0; 200_000];
    same(&content(&fs, ino), &model, "preallocated");
    for page in (0..48u64).map(|page| page * 29 % 48) {
        let data = pattern(page, 3000);
        fs.write(&caller, ino, page * 4096 + 50, &data).unwrap();
        put(&mut model, page * 4096 + 50, &data);
        if page % 5 == 0 {
            fs.fsync(&caller, ino, false).unwrap();
        }
    }
    fs.sync().unwrap();
    same(&content(&fs, ino), &model, "written");
    assert_eq!(
        free(&fs),
        before,
        "writing to preallocated blocks takes no space"
    );
    let (_copy, again) = crashed(&device);
    same(
        &content(&again, find(&again, "file")),
        &model,
        "after a crash",
    );
    finish(&device, &fs);
}

#[test]
fn corner_20_streams_write_to_their_own_files_and_one_commits() {
    let device = device(1024, None);
    let fs = mount(&device);
    let (a, b) = (
        Caller {
            stream: Stream(1),
            ..Caller::root()
        },
        Caller {
            stream: Stream(2),
            ..Caller::root()
        },
    );
    let (x, y) = (create(&fs, "x"), create(&fs, "y"));
    fs.sync().unwrap();
    fs.write(&a, x, 0, &pattern(1, 9000)).unwrap();
    fs.write(&b, y, 0, &pattern(2, 9000)).unwrap();
    fs.fsync(&a, x, false).unwrap();
    let (_copy, again) = crashed(&device);
    same(&content(&again, find(&again, "x")), &pattern(1, 9000), "x");
    same(&content(&again, find(&again, "y")), &[], "y");
    drop(again);
    // A sync makes the file's changes durable, whichever stream made them.
    fs.fsync(&a, y, false).unwrap();
    let (_copy, again) = crashed(&device);
    same(&content(&again, find(&again, "y")), &pattern(2, 9000), "y");
    finish(&device, &fs);
}

#[test]
fn threads_write_truncate_and_sync_at_the_same_time() {
    let device = device(32 * MIB / 4096, Some(128));
    let mut options = MountOptions::default();
    options.background = true;
    let fs = Fs::mount(Arc::clone(&device) as _, &options).unwrap().0;
    let shared = create(&fs, "shared");
    let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let fs = &fs;
                scope.spawn(move || {
                    let caller = Caller {
                        stream: Stream(thread as u32 % 3),
                        ..Caller::root()
                    };
                    let ino = create(fs, &format!("file{thread}"));
                    let mut model = Vec::new();
                    let mut random = thread * 7919 + 1;
                    for round in 0..300u64 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let at = (random >> 33) % 300_000;
                        let data = pattern(round, (random >> 20) as usize % 9000 + 1);
                        match random >> 60 {
                            0 => {
                                truncate(fs, ino, at).unwrap();
                                model.resize(at as usize, 0);
                            }
                            1 => fs.fsync(&caller, ino, false).unwrap(),
                            2 => fs.fsync(&caller, shared, true).unwrap(),
                            3..=5 => {
                                fs.append(&caller, shared, &[thread as u8 + 1; 100])
                                    .unwrap();
                            }
                            6 => {
                                let mode = AllocateMode::PunchHole;
                                fs.fallocate(&caller, ino, mode, at, data.len() as u64)
                                    .unwrap();
                                model_allocate(&mut model, 2, at, data.len() as u64);
                            }
                            _ => {
                                fs.write(&caller, ino, at, &data).unwrap();
                                put(&mut model, at, &data);
                            }
                        }
                    }
                    same(&content(fs, ino), &model, "my file");
                    model
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for chunk in content(&fs, shared).chunks(100) {
        assert!(chunk.len() == 100 && chunk.iter().all(|byte| *byte == chunk[0]));
    }
    let appended = content(&fs, shared);
    fs.unmount().unwrap();
    let fs = mount(&device);
    for (thread, model) in models.iter().enumerate() {
        same(
            &content(&fs, find(&fs, &format!("file{thread}"))),
            model,
            "mounted again",
        );
    }
    same(
        &content(&fs, find(&fs, "shared")),
        &appended,
        "the shared file",
    );
    finish(&device, &fs);
}
