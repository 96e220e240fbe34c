//! Volumes without a log, on disks in flash memory: full epochs, full disks, failing pages, dead
//! clients, and devices that will not do.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::common::flash_disk;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, MemDevice};
use steadfast_flash::{MemoryStore, Rates};
use steadfast_fs::{
    Contract, EPOCH_BLOCKS_MIN, Error, Fs, FsckOptions, MkfsOptions, MountOptions, Outcome,
    TrimRange, fsck, info, mkfs,
};
use steadfast_ftl::Disk;
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, Ino, NewNode, Shutdown};

fn made(blocks: u64, contract: Contract) -> Arc<Disk<MemoryStore>> {
    let disk = flash_disk(blocks, EPOCH_BLOCKS_MIN);
    mkfs(&*disk, &options(contract), &mut |_, _| {}).unwrap();
    disk
}

fn options(contract: Contract) -> MkfsOptions {
    MkfsOptions {
        contract,
        without_log: true,
        ..MkfsOptions::default()
    }
}

/// Without threads of its own.
fn mount(device: Arc<dyn BlockDevice>) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.background = false;
    Fs::mount(device, &options).unwrap().0
}

fn create(fs: &Fs, name: &[u8]) -> steadfast_vfs::Result<Ino> {
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    fs.mknod(&Caller::root(), fs.root(), name, &node)
        .map(|attr| attr.ino)
}

fn lookup(fs: &Fs, name: &[u8]) -> steadfast_vfs::Result<Ino> {
    fs.lookup(&Caller::root(), fs.root(), name).map(|a| a.ino)
}

/// Content that identifies file, version and place.
fn content(file: u64, version: u64, block: u64) -> [u8; BLOCK_SIZE] {
    let mut bytes = [0; BLOCK_SIZE];
    for (i, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        let number = file << 48 ^ version << 32 ^ block << 10 ^ i as u64;
        chunk.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

fn write(fs: &Fs, ino: Ino, file: u64, version: u64, blocks: u64) -> steadfast_vfs::Result<()> {
    for first in (0..blocks).step_by(32) {
        let bytes: Vec<u8> = (first..blocks.min(first + 32))
            .flat_map(|block| content(file, version, block))
            .collect();
        let at = first * BLOCK_SIZE as u64;
        let written = fs.write(&Caller::root(), ino, at, &bytes)?;
        if written < bytes.len() {
            return Err(Errno::NoSpc.into());
        }
    }
    Ok(())
}

fn check(fs: &Fs, ino: Ino, file: u64, version: u64, blocks: u64) {
    for block in 0..blocks {
        let mut bytes = [0; BLOCK_SIZE];
        fs.read(&Caller::root(), ino, block * BLOCK_SIZE as u64, &mut bytes)
            .unwrap();
        assert!(
            bytes == content(file, version, block),
            "file {file}, block {block}"
        );
    }
}

#[track_caller]
fn must_be_clean(disk: &Arc<Disk<MemoryStore>>) {
    let report = fsck(disk.clone(), &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::Clean, "{:?}", report.findings);
}

/// The disk after a power cut.
fn cut(disk: Arc<Disk<MemoryStore>>, seed: u64) -> Arc<Disk<MemoryStore>> {
    let memory = Arc::into_inner(disk).unwrap().into_nand().unwrap();
    let patience = steadfast_ftl::WhenFull::default();
    Arc::new(Disk::mount(memory.cut(seed).unwrap(), patience).unwrap())
}

/// Three times an epoch's blocks are written, new and over old ones, without a sync: the bound is reached in the middle of
/// operations, which wait before they begin. Nothing is refused or dropped, and no step lost.
#[test]
fn corner_47_writes_without_a_sync_may_be_larger_than_an_epoch() {
    for contract in Contract::ALL {
        let blocks = 3 * EPOCH_BLOCKS_MIN;
        let disk = made(4 * blocks, contract);
        let fs = mount(disk.clone());
        let ino = create(&fs, b"large").unwrap();
        for version in 0..2 {
            write(&fs, ino, 1, version, blocks).unwrap();
        }
        for n in 0..3000u64 {
            create(&fs, format!("file {n}").as_bytes()).unwrap();
        }
        fs.fsync(&Caller::root(), ino, false).unwrap();
        fs.sync().unwrap();
        drop(fs);
        let disk = cut(disk, 5);
        must_be_clean(&disk);
        let fs = mount(disk.clone());
        check(&fs, lookup(&fs, b"large").unwrap(), 1, 1, blocks);
        lookup(&fs, b"file 2999").unwrap();
        fs.unmount().unwrap();
    }
}

/// If the journal did not count its blocks, the device would refuse a part of a batch.
#[test]
fn corner_47_a_journal_that_ignores_the_bound_is_refused_by_the_device() {
    let blocks = 2 * EPOCH_BLOCKS_MIN;
    let disk = made(2 * blocks, Contract::Ordered);
    let mut options = MountOptions::default();
    options.background = false;
    options.faults.journal.ignore_epoch = true;
    let (fs, _) = Fs::mount(disk.clone(), &options).unwrap();
    let ino = create(&fs, b"large").unwrap();
    let written = write(&fs, ino, 1, 0, blocks).and_then(|()| fs.sync());
    assert_eq!(written.unwrap_err(), Errno::Io);
    steadfast_testkit::caught("journal.ignore_epoch");
    // And nothing of it is there after the next mount.
    drop(fs);
    must_be_clean(&disk);
    let fs = mount(disk);
    assert_eq!(lookup(&fs, b"large").unwrap_err(), Errno::NoEnt);
}

/// The volume is filled, emptied and filled again, so that every sector of the disk is in use while the
/// layer collects; power cuts in between.
#[test]
fn corner_48_a_full_volume_on_a_full_disk_is_overwritten() {
    let mut disk = made(4096, Contract::Ordered);
    for round in 0..4u64 {
        let fs = mount(disk.clone());
        let mut files = Vec::new();
        for file in 0.. {
            let done = create(&fs, format!("{round} {file}").as_bytes())
                .and_then(|ino| write(&fs, ino, file, round, 100).map(|()| ino));
            match done {
                Ok(ino) => files.push(ino),
                Err(error) if error == Errno::NoSpc => break,
                Err(error) => panic!("{error}"),
            }
        }
        fs.sync().unwrap();
        assert!(files.len() > 30, "{}", files.len());
        drop(fs);
        disk = cut(disk, round);
        must_be_clean(&disk);
        let fs = mount(disk.clone());
        for file in 0..=files.len() as u64 {
            let name = format!("{round} {file}");
            if let Ok(ino) = lookup(&fs, name.as_bytes()) {
                if file < files.len() as u64 {
                    check(&fs, ino, file, round, 100);
                }
                fs.unlink(&Caller::root(), fs.root(), name.as_bytes())
                    .unwrap();
            }
        }
        fs.unmount().unwrap();
        drop(fs);
    }
}

/// Programs and erases fail now and then: blocks are retired, and no file notices.
#[test]
fn corner_50_failing_pages_and_blocks_lose_nothing() {
    let disk = made(8192, Contract::Ordered);
    let rates = Rates {
        program: 2000,
        erase: 300,
        read: 0,
    };
    disk.look(|layer| layer.platform_mut().nand_mut().set_rates(rates, 11));
    let fs = mount(disk.clone());
    let files: Vec<Ino> = (0..8u64)
        .map(|file| create(&fs, format!("{file}").as_bytes()).unwrap())
        .collect();
    for version in 0..6 {
        for (file, ino) in (0..).zip(&files) {
            write(&fs, *ino, file, version, 200).unwrap();
            fs.fsync(&Caller::root(), *ino, false).unwrap();
        }
    }
    drop(fs);
    let bad = disk.look(|layer| {
        let nand = layer.platform().nand();
        let blocks = 0..nand.geometry().all_blocks();
        blocks.filter(|block| nand.is_bad(*block)).count()
    });
    assert!(bad > Some(0));
    let disk = cut(disk, 3);
    must_be_clean(&disk);
    let fs = mount(disk.clone());
    for file in 0..8 {
        check(
            &fs,
            lookup(&fs, format!("{file}").as_bytes()).unwrap(),
            file,
            5,
            200,
        );
    }
}

/// Unflushed writes of a client that died are not there for the next one, without any crash of the device.
#[test]
fn a_dead_clients_epoch_is_forgotten() {
    let disk = made(4096, Contract::Ordered);
    let fs = mount(disk.clone());
    create(&fs, b"synced").unwrap();
    fs.sync().unwrap();
    drop(fs);
    // A part of a batch: rubbish where the root directory lies.
    let root = info(disk.clone()).unwrap().map.groups().0.0;
    for at in root..root + 8 {
        disk.write(BlockNo(at), &[&[0xA5; BLOCK_SIZE]]).unwrap();
    }
    disk.write(BlockNo(0), &[&[0; BLOCK_SIZE]]).unwrap();
    let fs = mount(disk.clone());
    lookup(&fs, b"synced").unwrap();
    fs.unmount().unwrap();
    must_be_clean(&disk);
}

/// The last commit says whether the volume was unmounted: a volume that lost this commit does not count as closed.
#[test]
fn a_volume_that_was_not_unmounted_says_so() {
    use steadfast_fs::{JournalState, Problem};
    let disk = made(4096, Contract::Ordered);
    let closed = |disk: &Arc<Disk<MemoryStore>>| {
        let state = info(disk.clone()).unwrap().journal;
        let report = fsck(disk.clone(), &FsckOptions::default()).unwrap();
        assert_eq!(report.outcome(), Outcome::Clean);
        let clean = matches!(state, JournalState::Clean { .. });
        assert_eq!(report.has(Problem::NotUnmounted), !clean);
        clean
    };
    let mounted = |disk: &Arc<Disk<MemoryStore>>| {
        let mut options = MountOptions::default();
        options.background = false;
        let (fs, recovery) = Fs::mount(disk.clone(), &options).unwrap();
        (fs, recovery.clean)
    };
    assert!(closed(&disk));
    let (fs, clean) = mounted(&disk);
    assert!(clean);
    fs.shutdown(Shutdown::Nothing).unwrap();
    drop(fs);
    assert!(!closed(&disk));
    let (fs, clean) = mounted(&disk);
    assert!(!clean);
    // The last flush fails: the power is gone.
    create(&fs, b"lost").unwrap();
    disk.look(|layer| layer.platform_mut().nand_mut().cut_after(0));
    fs.unmount().unwrap_err();
    drop(fs);
    let disk = cut(disk, 4);
    assert!(!closed(&disk));
    let (fs, _) = mounted(&disk);
    fs.unmount().unwrap();
    assert!(closed(&disk));
    assert!(mounted(&disk).1);
}

#[test]
fn a_device_that_does_not_return_to_its_last_flush_is_refused() {
    let plain = MemDevice::new(4096);
    let refused = mkfs(&plain, &options(Contract::Ordered), &mut |_, _| {});
    assert!(matches!(refused, Err(Error::Option(_))));
    assert!(plain.to_bytes().iter().all(|byte| *byte == 0));
    let short = flash_disk(4096, EPOCH_BLOCKS_MIN - 1);
    let refused = mkfs(&*short, &options(Contract::Ordered), &mut |_, _| {});
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("larger epoch"), "{why}");
    // A volume that was copied to such a device names the missing feature.
    let disk = made(4096, Contract::Ordered);
    let copy = Arc::new(MemDevice::new(4096));
    let mut bytes = vec![0; 4096 * BLOCK_SIZE];
    disk.read(BlockNo(0), &mut bytes).unwrap();
    copy.write(BlockNo(0), &[&bytes]).unwrap();
    let refused = Fs::mount(copy.clone(), &MountOptions::default());
    let why = refused.err().unwrap().to_string();
    assert!(why.contains("return to its last flush"), "{why}");
    let report = fsck(copy, &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::Clean);
}

/// Damage is repaired in place, epoch by epoch, and the repair is durable.
#[test]
fn a_damaged_volume_without_a_log_is_repaired() {
    let disk = made(8192, Contract::Ordered);
    let fs = mount(disk.clone());
    for n in 0..40u64 {
        let ino = create(&fs, format!("file {n}").as_bytes()).unwrap();
        write(&fs, ino, n, 1, 3).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    // The block bitmap of the first group, and the superblock.
    for at in [1, 0] {
        disk.write(BlockNo(at), &[&[0x5A; BLOCK_SIZE]]).unwrap();
    }
    disk.flush().unwrap();
    let report = fsck(disk.clone(), &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::DamageLeft);
    let repair = FsckOptions {
        repair: true,
        ..FsckOptions::default()
    };
    let report = fsck(disk.clone(), &repair).unwrap();
    assert_eq!(report.outcome(), Outcome::Repaired, "{:?}", report.left);
    let disk = cut(disk, 1);
    must_be_clean(&disk);
    let fs = mount(disk);
    for n in 0..40u64 {
        let ino = lookup(&fs, format!("file {n}").as_bytes()).unwrap();
        check(&fs, ino, n, 1, 3);
    }
}

/// Mapped blocks of the disk.
fn mapped(disk: &Disk<MemoryStore>) -> u64 {
    let (mut at, mut mapped, all) = (0, 0, disk.geometry().blocks);
    while at < all {
        let (count, is_mapped) = disk.run(BlockNo(at), all - at).unwrap();
        mapped += if is_mapped { count } else { 0 };
        at += count;
    }
    mapped
}

/// Story: blocks of deleted files were never trimmed, so the layer kept and moved them for ever.
#[test]
fn corner_49_deleted_files_leave_the_disk_and_reused_blocks_stay() {
    for contract in Contract::ALL {
        let disk = made(2 * EPOCH_BLOCKS_MIN, contract);
        let fs = mount(disk.clone());
        let root = &Caller::root();
        let keep = create(&fs, b"keep").unwrap();
        write(&fs, keep, 1, 0, 100).unwrap();
        let gone = create(&fs, b"gone").unwrap();
        write(&fs, gone, 2, 0, 1000).unwrap();
        fs.sync().unwrap();
        let full = mapped(&disk);
        fs.unlink(root, fs.root(), b"gone").unwrap();
        fs.sync().unwrap();
        let stats = fs.journal_stats();
        assert!(stats.trimmed_blocks >= 1000, "{stats:?}");
        assert!(mapped(&disk) + 990 <= full, "{full}, {}", mapped(&disk));
        // Blocks that live again are kept, although the next trim comes after them.
        let again = create(&fs, b"again").unwrap();
        write(&fs, again, 3, 0, 900).unwrap();
        fs.sync().unwrap();
        fs.unmount().unwrap();
        drop(fs);
        let disk = cut(disk, 3);
        must_be_clean(&disk);
        // An explicit trim of all free space; blocks are used during it, and again after it.
        let fs = mount(disk.clone());
        let trimmed = fs.trim(&TrimRange::default(), &mut |_, _| {}).unwrap();
        assert!(trimmed.blocks >= fs.statfs().unwrap().blocks_free);
        check(&fs, lookup(&fs, b"keep").unwrap(), 1, 0, 100);
        check(&fs, lookup(&fs, b"again").unwrap(), 3, 0, 900);
        let used = disk.geometry().blocks - trimmed.blocks;
        assert!(mapped(&disk) <= used, "{used}, {}", mapped(&disk));
        let more = create(&fs, b"more").unwrap();
        write(&fs, more, 4, 0, 500).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        must_be_clean(&disk);
        let fs = mount(disk);
        check(&fs, lookup(&fs, b"more").unwrap(), 4, 0, 500);
    }
}

/// Unmounting is a graceful end for the disk below, too: the next mount has no delta log to follow.
#[test]
fn an_unmount_leaves_the_disk_below_at_a_checkpoint() {
    let disk = made(2048, Contract::default());
    let checkpoints = || disk.stats().unwrap().checkpoints;
    let fs = mount(disk.clone());
    let ino = create(&fs, b"file").unwrap();
    for version in 0..6 {
        write(&fs, ino, 1, version, 400).unwrap();
        fs.sync().unwrap();
    }
    let before = checkpoints();
    fs.unmount().unwrap();
    assert_eq!(checkpoints(), before + 1);
    let nand = |disk: &Disk<MemoryStore>| {
        disk.rollback().unwrap();
        disk.look(|layer| layer.platform().nand().counts().reads)
            .unwrap()
    };
    // Going back to the last flush mounts it anew.
    let reads = nand(&disk);
    let again = nand(&disk) - reads;
    assert!(again < 60, "{again}");
    let fs = mount(disk.clone());
    check(&fs, ino, 1, 5, 400);
    fs.unmount().unwrap();
}
