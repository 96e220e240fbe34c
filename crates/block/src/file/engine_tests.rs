//! Tests of the engines of [`FileDevice`]: scattered requests, refusals, errors, many threads.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::rings::MakeRing;
use super::uring::Ring;
use super::*;
use crate::BlockBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const ENGINES: [Engine; 3] = [Engine::Caller, Engine::Threads(3), Engine::Uring];

fn image(dir: &Path, blocks: u64) -> PathBuf {
    let path = dir.join("image");
    drop(FileDevice::create(&path, blocks, true).unwrap());
    path
}

/// The image with every engine, through the page cache and around it.
fn every_way(path: &Path) -> impl Iterator<Item = FileDevice> {
    let ways = [Direct::Off, Direct::Prefer];
    let ways = ways.into_iter().flat_map(|d| ENGINES.map(|e| (d, e)));
    ways.map(move |(direct, engine)| {
        let options = FileOptions {
            direct,
            engine,
            ..FileOptions::default()
        };
        FileDevice::open(path, &options).unwrap()
    })
}

/// One part for each block number, holding that number's low byte plus `add`.
fn write_each(device: &FileDevice, blocks: &[u64], add: u8) -> Result<()> {
    let mut data = BlockBuf::zeroed(blocks.len());
    for (at, block) in blocks
        .iter()
        .zip(data.as_bytes_mut().chunks_mut(BLOCK_SIZE))
    {
        block.fill((*at as u8).wrapping_add(add));
    }
    let segments: Vec<[&[u8]; 1]> = data.as_bytes().chunks(BLOCK_SIZE).map(|b| [b]).collect();
    let writes: Vec<(BlockNo, &[&[u8]])> = (blocks.iter().zip(&segments))
        .map(|(at, segments)| (BlockNo(*at), &segments[..]))
        .collect();
    device.write_scattered(&writes)
}

/// The first byte of each of these blocks, which must be uniform.
fn read_each(device: &FileDevice, blocks: &[u64]) -> Result<Vec<u8>> {
    let mut data = BlockBuf::zeroed(blocks.len());
    let mut reads: Vec<(BlockNo, &mut [u8])> = (blocks.iter())
        .zip(data.as_bytes_mut().chunks_mut(BLOCK_SIZE))
        .map(|(at, block)| (BlockNo(*at), block))
        .collect();
    device.read_scattered(&mut reads)?;
    let blocks = data.as_bytes().chunks(BLOCK_SIZE).map(|block| {
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    });
    Ok(blocks.collect())
}

fn at_of(error: &DeviceError) -> u64 {
    match error {
        DeviceError::Io { at, count: 1, .. } => at.0,
        other => panic!("{other:?}"),
    }
}

/// Whether this kernel has io_uring for us; without it the tests run on its stand-in.
fn has_uring() -> bool {
    Ring::new().is_ok()
}

#[test]
fn the_engine_at_work_is_the_one_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 4);
    for device in every_way(&path).filter(|_| has_uring()) {
        assert!(device.engine_refusal().is_none());
    }
    let open = |direct, engine| {
        let options = FileOptions {
            direct,
            engine,
            ..FileOptions::default()
        };
        FileDevice::open(&path, &options).unwrap()
    };
    assert_eq!(open(Direct::Off, Engine::Auto).engine(), Engine::Caller);
    assert_eq!(
        open(Direct::Off, Engine::Threads(0)).engine(),
        Engine::Threads(1)
    );
    let threads = open(Direct::Off, Engine::Threads(usize::MAX)).engine();
    assert_eq!(threads, Engine::Threads(threads::THREADS_MAX));
    let device = open(Direct::Prefer, Engine::Auto);
    if has_uring() && device.is_direct() {
        assert_eq!(device.engine(), Engine::Uring);
    }
}

#[test]
fn corner_18_where_io_uring_is_refused_threads_stand_in_and_the_device_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 64);
    let refusals: [(MakeRing, &str); 3] = [
        (|| Err(Errno::NOSYS.into()), "this kernel has none"),
        (|| Err(Errno::PERM.into()), "kernel.io_uring_disabled"),
        (|| Err(Errno::NOMEM.into()), "locked memory"),
    ];
    for (make_ring, reason) in refusals {
        let options = FileOptions {
            engine: Engine::Uring,
            ..FileOptions::default()
        };
        let device = FileDevice::open_with(&path, &options, make_ring).unwrap();
        assert!(matches!(device.engine(), Engine::Threads(_)));
        let message = device.engine_refusal().unwrap().to_string();
        assert!(message.contains("io_uring is refused"), "{message}");
        assert!(message.contains(reason), "{message}");
        write_each(&device, &[7, 3, 60], 1).unwrap();
        device.flush().unwrap();
        assert_eq!(read_each(&device, &[60, 3, 7]).unwrap(), [61, 4, 8]);
    }
    // An engine that was not requested is not refused.
    let never: MakeRing = || panic!("no ring is needed");
    let device = FileDevice::open_with(&path, &FileOptions::default(), never).unwrap();
    assert!(device.engine_refusal().is_none());
}

#[test]
fn corner_18_batches_that_get_no_ring_are_carried_out_all_the_same() {
    static REFUSE: AtomicBool = AtomicBool::new(false);
    if !has_uring() {
        return steadfast_testkit::skipped!("this kernel gives no ring");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 256);
    let options = FileOptions {
        engine: Engine::Uring,
        ..FileOptions::default()
    };
    let make_ring: MakeRing = || {
        if REFUSE.load(Ordering::Relaxed) {
            Err(Errno::MFILE.into())
        } else {
            Ring::new()
        }
    };
    let device = FileDevice::open_with(&path, &options, make_ring).unwrap();
    REFUSE.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let own: Vec<u64> = (0..50).map(|n| n * 4 + thread).collect();
                for round in 0..20 {
                    write_each(device, &own, round).unwrap();
                    let expected = own.iter().map(|at| (*at as u8).wrapping_add(round));
                    let expected: Vec<u8> = expected.collect();
                    assert_eq!(read_each(device, &own).unwrap(), expected);
                }
            });
        }
    });
}

#[test]
fn corner_18_many_threads_share_a_device() {
    // More than there are rings.
    const THREADS: u64 = 20;
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 2048);
    for device in every_way(&path) {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let device = &device;
                scope.spawn(move || {
                    let own: Vec<u64> = (0..100)
                        .map(|n| (n * 37 % 100) * THREADS + thread)
                        .collect();
                    for round in 0..3 {
                        write_each(device, &own, round).unwrap();
                        if thread.is_multiple_of(8) {
                            device.flush().unwrap();
                        }
                        device
                            .write(BlockNo(own[5]), &[&[250; BLOCK_SIZE]])
                            .unwrap();
                        let mut read = read_each(device, &own).unwrap();
                        assert_eq!(read[5], 250);
                        read[5] = (own[5] as u8).wrapping_add(round);
                        let expected = own.iter().map(|at| (*at as u8).wrapping_add(round));
                        let expected: Vec<u8> = expected.collect();
                        assert_eq!(read, expected);
                    }
                });
            }
        });
        // Its threads and its lock go with it: the next one opens at once.
        drop(device);
    }
}

#[test]
fn corner_18_a_part_of_more_segments_than_the_kernel_takes_is_continued() {
    const SEGMENTS: usize = 2 * transfer::IOV_MAX + 100;
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SEGMENTS as u64 + 10);
    let mut data = BlockBuf::zeroed(SEGMENTS);
    for (number, block) in data.as_bytes_mut().chunks_mut(BLOCK_SIZE).enumerate() {
        block.fill((number / 7) as u8);
    }
    let segments: Vec<&[u8]> = data.as_bytes().chunks(BLOCK_SIZE).collect();
    let empty = BlockBuf::zeroed(SEGMENTS);
    for device in every_way(&path) {
        device.write(BlockNo(0), &[empty.as_bytes()]).unwrap();
        let last = [&data.as_bytes()[..BLOCK_SIZE]];
        let writes = [(BlockNo(9), &segments[..]), (BlockNo(3), &last[..])];
        device.write_scattered(&writes).unwrap();
        let mut read = BlockBuf::zeroed(SEGMENTS);
        device.read(BlockNo(9), read.as_bytes_mut()).unwrap();
        assert!(read.as_bytes() == data.as_bytes(), "{device:?}");
    }
}

#[test]
fn corner_18_a_direct_batch_of_unaligned_buffers_larger_than_the_detour_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 4096);
    // Parts of 100, 300 (more than the detour holds at a time), 200 and 90 blocks.
    let parts = [(3000, 100), (0, 300), (1000, 200), (2000, 90)];
    let mut memory = BlockBuf::zeroed(691);
    for (number, bytes) in memory.as_bytes_mut().chunks_mut(100).enumerate() {
        bytes.fill((number % 251) as u8);
    }
    for device in every_way(&path) {
        device
            .write(BlockNo(0), &[BlockBuf::zeroed(4096).as_bytes()])
            .unwrap();
        let mut rest = &memory.as_bytes()[24..];
        let segments = parts.map(|(_, blocks)| [rest.split_off(..blocks * BLOCK_SIZE).unwrap()]);
        let writes: Vec<(BlockNo, &[&[u8]])> = (parts.iter().zip(&segments))
            .map(|((at, _), segments)| (BlockNo(*at), &segments[..]))
            .collect();
        device.write_scattered(&writes).unwrap();
        device.flush().unwrap();

        let mut back = BlockBuf::zeroed(691);
        let mut rest = &mut back.as_bytes_mut()[24..];
        let mut reads = parts.map(|(at, blocks)| {
            let own = rest.split_off_mut(..blocks * BLOCK_SIZE).unwrap();
            (BlockNo(at), own)
        });
        device.read_scattered(&mut reads).unwrap();
        let bytes = 690 * BLOCK_SIZE;
        assert!(
            back.as_bytes()[24..][..bytes] == memory.as_bytes()[24..][..bytes],
            "{device:?}"
        );
    }
}

#[test]
fn corner_18_the_error_of_a_batch_names_the_first_block_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 64);
    for device in every_way(&path) {
        write_each(&device, &[1, 40, 41, 42], 0).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(41 * BLOCK_SIZE as u64 + 700).unwrap();
        let error = read_each(&device, &[1, 42, 40, 41]).unwrap_err();
        assert_eq!(at_of(&error), 42);
        assert!(error.to_string().contains("cut short"), "{error}");
        let error = read_each(&device, &[1, 41, 42]).unwrap_err();
        assert_eq!(at_of(&error), 41, "{error}");
        assert_eq!(read_each(&device, &[40, 1]).unwrap(), [40, 1]);
        file.set_len(64 * BLOCK_SIZE as u64).unwrap();
    }
}

#[test]
fn a_batch_is_refused_whole_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), 8);
    for device in every_way(&path) {
        let error = write_each(&device, &[1, 2, 8], 9).unwrap_err();
        assert!(matches!(
            error,
            DeviceError::OutOfRange { at: BlockNo(8), .. }
        ));
        let error = read_each(&device, &[1, 9]).unwrap_err();
        assert!(matches!(
            error,
            DeviceError::OutOfRange { at: BlockNo(9), .. }
        ));
        let odd: [(BlockNo, &[&[u8]]); 2] = [(BlockNo(1), &[&[1; 4096]]), (BlockNo(2), &[&[1; 7]])];
        let error = device.write_scattered(&odd).unwrap_err();
        assert!(matches!(error, DeviceError::Misaligned { bytes: 7, .. }));
        assert_eq!(read_each(&device, &[1, 2]).unwrap(), [0, 0]);
        device.write_scattered(&[]).unwrap();
        device.read_scattered(&mut []).unwrap();
    }
    let options = FileOptions {
        read_only: true,
        engine: Engine::Uring,
        ..FileOptions::default()
    };
    let device = FileDevice::open(&path, &options).unwrap();
    let error = write_each(&device, &[1, 2], 9).unwrap_err();
    assert!(matches!(
        error,
        DeviceError::ReadOnly {
            op: DeviceOp::Write
        }
    ));
    assert_eq!(read_each(&device, &[1, 2]).unwrap(), [0, 0]);
}

/// Variable with the place of the small file system for the second run of the test below.
const SMALL: &str = "STEADFAST_TEST_SMALL_FILE_SYSTEM";

/// A file system of 1 MiB under an image of 4 MiB: short writes, then ENOSPC. It is mounted
/// in a mount namespace of its own, where the test runs a second time, so that nothing is
/// left behind.
#[test]
fn corner_18_no_space_on_the_host_is_an_error_that_names_the_block() {
    if let Ok(dir) = std::env::var(SMALL) {
        return no_space(Path::new(&dir));
    }
    let _guard = tests::no_other_forks();
    let unshare = || {
        let mut unshare = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        unshare.arg("--mount");
        unshare
    };
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=1M tmpfs \"$0\" && exec \"$@\"";
    let mounted = |command: &[&str]| {
        let mut unshare = unshare();
        unshare.args(["sh", "-c", mount]).arg(dir.path());
        unshare.args(command).env(SMALL, dir.path()).output()
    };
    if !mounted(&["true"]).is_ok_and(|out| out.status.success()) {
        steadfast_testkit::skipped!("no mount namespace to be had");
        return;
    }
    let exe = std::env::current_exe().unwrap();
    let name =
        "file::engine_tests::corner_18_no_space_on_the_host_is_an_error_that_names_the_block";
    let out = mounted(&[exe.to_str().unwrap(), "--exact", name, "--nocapture"]).unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("1 passed"), "{out:?}");
}

fn no_space(dir: &Path) {
    let path = image(dir, 1024);
    // Even ones, so that the bytes written below are never zero.
    let blocks: Vec<u64> = (0..400).map(|n| n * 422 % 1024).collect();
    for device in every_way(&path) {
        let nospc = Some(Errno::NOSPC.raw_os_error());
        let error = write_each(&device, &blocks, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), nospc);
        assert!(blocks.contains(&at_of(&error)));
        let now = read_each(&device, &blocks).unwrap();
        let (mut old, mut new) = (0, 0);
        for (at, byte) in blocks.iter().zip(now) {
            match byte {
                0 => old += 1,
                n if n == (*at as u8) + 1 => new += 1,
                other => panic!("block {at} holds {other}"),
            }
        }
        // 256 pages hold no more, and the first to be written fit.
        assert!(old >= 400 - 256 && new > 0, "{old} old, {new} new");
        device.discard(BlockNo(0), 1024).unwrap();

        // One long write is cut short first and fails then, as itself and in a batch.
        let long = BlockBuf::zeroed(512);
        let write = device.write(BlockNo(100), &[long.as_bytes()]);
        let error = write.unwrap_err();
        assert!(
            matches!(
                &error,
                DeviceError::Io {
                    at: BlockNo(100),
                    count: 512,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(error.raw_os_error(), nospc);
        device.discard(BlockNo(0), 1024).unwrap();
        let segment = [long.as_bytes()];
        let writes = [(BlockNo(512), &segment[..]), (BlockNo(0), &segment[..])];
        let error = device.write_scattered(&writes).unwrap_err();
        assert!(
            matches!(&error, DeviceError::Io { count: 512, .. }),
            "{error}"
        );
        assert_eq!(error.raw_os_error(), nospc);
        device.discard(BlockNo(0), 1024).unwrap();

        // With room again, all is well again.
        write_each(&device, &blocks[..50], 3).unwrap();
        device.flush().unwrap();
        let expected: Vec<u8> = blocks[..50]
            .iter()
            .map(|at| (*at as u8).wrapping_add(3))
            .collect();
        assert_eq!(read_each(&device, &blocks[..50]).unwrap(), expected);
        device.discard(BlockNo(0), 1024).unwrap();
    }
}
