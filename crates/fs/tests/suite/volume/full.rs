//! A full volume: preallocated space can be written to its last byte, and a write that fits in part is written in part.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use steadfast_block::{BlockDevice, MemDevice};
use steadfast_fs::{Contract, Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_vfs::{AllocateMode, Caller, Errno, FileKind, FileSystem, Ino, NewNode, Stream};

const PAGE: u64 = 4096;

fn options(contract: Contract) -> MkfsOptions {
    MkfsOptions {
        uuid: Some([5; 16]),
        seed: Some(5),
        contract,
        ..MkfsOptions::default()
    }
}

fn mount(device: &Arc<dyn BlockDevice>) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.background = false;
    options.seed = Some(1);
    Fs::mount(Arc::clone(device), &options).unwrap().0
}

fn volume(blocks: u64, contract: Contract) -> (Arc<dyn BlockDevice>, Arc<Fs>) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(blocks));
    mkfs(&*device, &options(contract), &mut |_, _| {}).unwrap();
    let fs = mount(&device);
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

fn free(fs: &Fs) -> u64 {
    fs.statfs().unwrap().blocks_free
}

/// Takes every block that an ordinary operation may have: for `ino` first those of its range.
fn take_everything(fs: &Fs, ino: Ino) -> u64 {
    let root = Caller::root();
    let (mut end, mut step) = (0, 1 << 20);
    while step >= PAGE {
        match fs.fallocate(&root, ino, AllocateMode::Allocate, end, step) {
            Ok(()) => end += step,
            Err(error) => {
                assert!(error == Errno::NoSpc, "{error}");
                step /= 2;
            }
        }
    }
    // Files without a tree take the rest.
    for n in 0..200 {
        let small = create_if(fs, &format!("small{n}"));
        let Some(small) = small else { break };
        if fs.append(&root, small, &[9; PAGE as usize]).is_err() {
            break;
        }
    }
    fs.sync().unwrap();
    end
}

fn create_if(fs: &Fs, name: &str) -> Option<Ino> {
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let made = fs.mknod(&Caller::root(), fs.root(), name.as_bytes(), &node);
    made.ok().map(|attr| attr.ino)
}

fn check(device: Arc<dyn BlockDevice>, fs: &Fs) {
    fs.unmount().unwrap();
    let report = fsck(device, &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::Clean, "{:?}", report.findings);
}

fn byte(page: u64) -> u8 {
    (page % 251) as u8 + 1
}

fn assert_written(fs: &Fs, ino: Ino, pages: u64) {
    let mut block = vec![0; PAGE as usize];
    for page in 0..pages {
        fs.read(&Caller::root(), ino, page * PAGE, &mut block)
            .unwrap();
        assert!(block.iter().all(|b| *b == byte(page)), "page {page}");
    }
}

/// Pages over preallocated blocks reserved a second block each: 16,383 of 16,384 could be written.
#[test]
fn corner_71_preallocated_space_is_written_in_order_on_a_full_volume() {
    for contract in Contract::ALL {
        let (device, fs) = volume(4096, contract);
        let ino = create(&fs, "file");
        let pages = take_everything(&fs, ino) / PAGE;
        assert_eq!(free(&fs), 0);
        let root = Caller::root();
        let mut page = 0;
        while page < pages {
            let count = (pages - page).min(200);
            let data: Vec<u8> = (page..page + count)
                .flat_map(|page| [byte(page); PAGE as usize])
                .collect();
            assert_eq!(
                fs.write(&root, ino, page * PAGE, &data).unwrap(),
                data.len(),
                "{contract:?}: page {page} of {pages}"
            );
            page += count;
        }
        fs.fsync(&root, ino, false).unwrap();
        assert_written(&fs, ino, pages);
        check(device, &fs);
    }
}

/// Every other page, then the rest: the tree would need hundreds of nodes, and there is no block for one.
#[test]
fn corner_71_preallocated_space_is_written_in_any_order_on_a_full_volume() {
    for contract in Contract::ALL {
        let (device, fs) = volume(4096, contract);
        let ino = create(&fs, "file");
        let pages = take_everything(&fs, ino) / PAGE;
        let root = Caller::root();
        let mut written = 0;
        // In parts of pages, too: the rest of one is zeros until then.
        for half in [0, PAGE / 2] {
            for odd in [1, 0] {
                for page in (0..pages).filter(|page| page % 2 == odd) {
                    let data = [byte(page); PAGE as usize / 2];
                    let wrote = fs.write(&root, ino, page * PAGE + half, &data);
                    assert_eq!(wrote.unwrap(), data.len(), "{contract:?}: page {page}");
                    written += 1;
                    if written % 700 == 0 {
                        fs.fsync(&root, ino, false).unwrap();
                    }
                }
            }
        }
        fs.fsync(&root, ino, false).unwrap();
        assert_written(&fs, ino, pages);
        check(device, &fs);
    }
}

/// Blocks that are kept past the end: appends, and writes after a gap.
#[test]
fn corner_71_blocks_preallocated_past_the_end_are_written_on_a_full_volume() {
    for gap in [0, 1] {
        let (device, fs) = volume(4096, Contract::Ordered);
        let root = Caller::root();
        // In pieces that do not touch: more extents than an inode has room for.
        let (a, b) = (create(&fs, "a"), create(&fs, "b"));
        for n in 0..40 {
            for ino in [a, b] {
                fs.fallocate(&root, ino, AllocateMode::KeepSize, n * 20 * PAGE, 20 * PAGE)
                    .unwrap();
            }
        }
        let filler = create(&fs, "filler");
        take_everything(&fs, filler);
        let mut page = 0;
        while page < 800 {
            for ino in [a, b] {
                let wrote = fs.write(&root, ino, page * PAGE, &[byte(page); PAGE as usize]);
                assert_eq!(wrote.unwrap(), PAGE as usize, "page {page}, gap {gap}");
            }
            if page % 90 < 2 {
                fs.fsync(&root, a, false).unwrap();
            }
            page += 1 + gap;
        }
        for page in (0..800).filter(|page| page % (1 + gap) != 0) {
            for ino in [a, b] {
                fs.write(&root, ino, page * PAGE, &[byte(page); PAGE as usize])
                    .unwrap();
            }
        }
        fs.sync().unwrap();
        for ino in [a, b] {
            assert_written(&fs, ino, 799);
        }
        // Something can still be freed.
        fs.unlink(&root, fs.root(), b"filler").unwrap();
        check(device, &fs);
    }
}

/// The same on a disk in flash memory, without a log.
#[test]
fn corner_71_preallocated_space_is_written_without_a_log() {
    let disk = super::common::flash_disk(4096, 2048);
    let device: Arc<dyn BlockDevice> = disk;
    let options = MkfsOptions {
        without_log: true,
        ..options(Contract::Ordered)
    };
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    let fs = mount(&device);
    let ino = create(&fs, "file");
    let pages = take_everything(&fs, ino) / PAGE;
    let root = Caller::root();
    for odd in [1, 0] {
        for page in (0..pages).filter(|page| page % 2 == odd) {
            fs.write(&root, ino, page * PAGE, &[byte(page); PAGE as usize])
                .unwrap();
        }
    }
    fs.fsync(&root, ino, false).unwrap();
    assert_written(&fs, ino, pages);
    check(device, &fs);
}

/// xfstests generic/568: a write into preallocated space takes none of the free one.
#[test]
fn a_write_into_preallocated_space_takes_no_free_block() {
    let (device, fs) = volume(4096, Contract::Ordered);
    let ino = create(&fs, "file");
    let root = Caller::root();
    // Not aligned: both blocks that the range touches.
    fs.fallocate(&root, ino, AllocateMode::Allocate, 1, PAGE)
        .unwrap();
    fs.sync().unwrap();
    let before = free(&fs);
    fs.write(&root, ino, 1, &[7; PAGE as usize]).unwrap();
    assert_eq!(free(&fs), before, "delayed");
    fs.sync().unwrap();
    assert_eq!(free(&fs), before, "placed");
    check(device, &fs);
}

/// A MiB was refused whole while 900 KiB were free, and an append that failed half-way did not say how much it had done.
#[test]
fn a_write_of_which_a_part_fits_is_a_short_write() {
    let root = Caller::root();
    for append in [false, true] {
        let (device, fs) = volume(4096, Contract::Ordered);
        let (filler, ino) = (create(&fs, "filler"), create(&fs, "file"));
        let more = (free(&fs) - 230) * PAGE;
        fs.fallocate(&root, filler, AllocateMode::Allocate, 0, more)
            .unwrap();
        fs.sync().unwrap();
        let data: Vec<u8> = (0..1u32 << 20).map(|i| (i % 253) as u8).collect();
        let written = match append {
            true => {
                let (at, written) = fs.append(&root, ino, &data).unwrap();
                assert_eq!(at, 0);
                written
            }
            false => fs.write(&root, ino, 0, &data).unwrap(),
        };
        assert!(
            written >= 200 << 12 && written < data.len(),
            "{written} bytes"
        );
        fs.fsync(&root, ino, false).unwrap();
        assert_eq!(fs.getattr(&root, ino).unwrap().size, written as u64);
        let mut found = vec![0; written];
        fs.read(&root, ino, 0, &mut found).unwrap();
        assert!(found == data[..written]);
        // The remaining blocks are taken one after the other, until none is left.
        let mut size = written as u64;
        let error = loop {
            match fs.append(&root, ino, &data[..10_000]) {
                Ok((at, written)) => {
                    assert!(at == size && written > 0);
                    size += written as u64;
                }
                Err(error) => break error,
            }
        };
        assert!(error == Errno::NoSpc, "{error}");
        assert_eq!(fs.getattr(&root, ino).unwrap().size, size);
        check(device, &fs);
    }
}

/// A volume that seems full because a stream has removed a lot: that stream is committed, and the others are left alone.
#[test]
fn a_volume_that_seems_full_commits_the_stream_that_holds_most() {
    let (device, fs) = volume(4096, Contract::Ordered);
    let by = |stream| Caller {
        stream: Stream(stream),
        ..Caller::root()
    };
    let (big, other, filler) = (
        create(&fs, "big"),
        create(&fs, "other"),
        create(&fs, "filler"),
    );
    let mut mine = Vec::new();
    for (name, pages) in [("a", 1), ("b", 40)] {
        let ino = create(&fs, name);
        fs.append(&by(0), ino, &vec![1; pages * PAGE as usize])
            .unwrap();
        mine.push(ino);
    }
    fs.append(&by(0), big, &vec![2; 300 * PAGE as usize])
        .unwrap();
    take_everything(&fs, filler);
    fs.unlink(&by(1), fs.root(), b"big").unwrap();
    fs.unlink(&by(3), fs.root(), b"a").unwrap();
    fs.unlink(&by(4), fs.root(), b"b").unwrap();
    assert_eq!(
        fs.append(&by(2), other, &vec![3; 200 * PAGE as usize])
            .unwrap(),
        (0, 200 * PAGE as usize)
    );
    let stats = fs.streams().unwrap().stats();
    let uncommitted = |stream: u32| {
        let of = stats.iter().find(|stats| stats.stream == Stream(stream));
        of.map_or(0, |stats| stats.uncommitted)
    };
    let left: Vec<bool> = (1..=4).map(|stream| uncommitted(stream) > 0).collect();
    assert_eq!(left, [false, true, true, true]);
    check(device, &fs);
}
