//! The disk as a block device: its contract over memory and over an image file, its bounds, and
//! its errors.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, DeviceError};
use steadfast_flash::{
    Address, FlashError, Geometry, ImageError, ImageStore, Latency, MemoryStore, Nand, Rates, Rng,
    Store,
};
use steadfast_ftl::{Disk, DiskError, FtlError, Options, WhenFull, cause, geometry_for};

const EPOCH: u64 = 24;
const AT_ONCE: WhenFull = WhenFull::Wait(Duration::ZERO);

fn geometry(sector_bytes: u32) -> Geometry {
    Geometry {
        channels: 2,
        dies: 1,
        blocks: 64,
        pages: 32,
        sectors: 8192 / sector_bytes,
        sector_bytes,
        spare_bytes: 128,
    }
}

fn options(geometry: Geometry, blocks: u64) -> Options {
    let per_block = BLOCK_SIZE as u64 / u64::from(geometry.sector_bytes);
    Options {
        sectors: blocks * per_block,
        epoch: EPOCH * per_block,
        region: None,
        volume: 7,
    }
}

fn memory(geometry: Geometry) -> Nand<MemoryStore> {
    Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry)).unwrap()
}

fn disk(when_full: WhenFull) -> Disk<MemoryStore> {
    let geometry = geometry(4096);
    Disk::format(memory(geometry), options(geometry, 600), when_full).unwrap()
}

/// A block that says which write it is of, from end to end; write 0 is a block of zeros.
fn block(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(BLOCK_SIZE / 8)
}

fn put<S: Store + Send + 'static>(disk: &Disk<S>, at: u64, stamp: u64) -> Result<(), DeviceError> {
    disk.write(BlockNo(at), &[&block(stamp)])
}

fn get<S: Store + Send + 'static>(disk: &Disk<S>, at: u64) -> u64 {
    let mut data = vec![1; BLOCK_SIZE];
    disk.read(BlockNo(at), &mut data).unwrap();
    let stamp = u64::from_le_bytes(data[..8].try_into().unwrap());
    assert!(data == block(stamp), "block {at} is torn");
    stamp
}

/// All blocks, read in one request.
fn contents<S: Store + Send + 'static>(disk: &Disk<S>) -> Vec<u64> {
    let blocks = disk.geometry().blocks;
    let mut data = vec![0; blocks as usize * BLOCK_SIZE];
    disk.read(BlockNo(0), &mut data).unwrap();
    let stamps = data.chunks(BLOCK_SIZE).map(|data| {
        let stamp = u64::from_le_bytes(data[..8].try_into().unwrap());
        assert!(data == block(stamp), "a block is torn");
        stamp
    });
    stamps.collect()
}

fn is_power_lost(error: &DeviceError) -> bool {
    matches!(cause(error), Some(FtlError::Flash(FlashError::PowerLost)))
}

/// Random requests with power cuts through the trait, against two golden copies. `crash` cuts the
/// power with this seed and opens the disk again. Returns crashes, and those in a flush that took
/// place.
fn cut_at_random<S: Store + Send + 'static>(
    mut disk: Disk<S>,
    steps: u64,
    seed: u64,
    mut crash: impl FnMut(Disk<S>, u64) -> Disk<S>,
) -> (u64, u64) {
    let blocks = disk.geometry().blocks;
    let mut rng = Rng::new(seed);
    let mut stable = vec![0; blocks as usize];
    let mut volatile = stable.clone();
    let (mut stamp, mut crashes, mut took_place) = (0, 0, 0);
    for _ in 0..steps {
        if rng.below(30) == 0 {
            let after = rng.below(60);
            disk.look(|layer| layer.platform_mut().nand_mut().cut_after(after));
        }
        let at = rng.below(blocks);
        let count = 1 + rng.below((blocks - at).min(6));
        let range = at as usize..(at + count) as usize;
        let flushing = rng.below(6) == 0 || disk.room() < count;
        let result = if flushing {
            disk.flush()
        } else if rng.below(8) == 0 {
            disk.discard(BlockNo(at), count)
                .inspect(|()| volatile[range].fill(0))
        } else {
            let stamps: Vec<u64> = (1..=count).map(|i| stamp + i).collect();
            stamp += count;
            // Two segments, so that borders between them are crossed.
            let bytes: Vec<u8> = stamps.iter().flat_map(|&stamp| block(stamp)).collect();
            let (first, second) = bytes.split_at(BLOCK_SIZE * (count as usize / 2));
            disk.write(BlockNo(at), &[first, second])
                .inspect(|()| volatile[range].copy_from_slice(&stamps))
        };
        match result {
            Ok(()) if flushing => stable.copy_from_slice(&volatile),
            Ok(()) => {}
            Err(error) => {
                assert!(is_power_lost(&error), "{error}");
                crashes += 1;
                disk = crash(disk, rng.number());
                let found = contents(&disk);
                if found != stable {
                    assert!(flushing, "a crash between flushes changed the disk");
                    assert!(found == volatile, "a crash left half of a flush");
                    took_place += 1;
                    stable.copy_from_slice(&volatile);
                }
                volatile.copy_from_slice(&stable);
                disk.look(|layer| layer.check().unwrap());
            }
        }
    }
    (crashes, took_place)
}

#[test]
fn a_crash_returns_a_disk_in_memory_to_its_last_flush() {
    for sector_bytes in [4096, 1024] {
        let geometry = geometry(sector_bytes);
        let disk = Disk::format(memory(geometry), options(geometry, 600), AT_ONCE).unwrap();
        let (crashes, took_place) = cut_at_random(disk, 6000, 1, |disk, seed| {
            let nand = disk.into_nand().unwrap();
            Disk::mount(nand.cut(seed).unwrap(), AT_ONCE).unwrap()
        });
        assert!(crashes > 80 && took_place > 0, "{crashes} {took_place}");
    }
}

/// A directory with the path of an image in it.
fn image() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.flash");
    (dir, path)
}

fn create(path: &std::path::Path, when_full: WhenFull) -> Disk<ImageStore> {
    let geometry = geometry(4096);
    Disk::create(path, geometry, options(geometry, 600), when_full).unwrap()
}

#[test]
fn a_crash_returns_a_disk_in_an_image_file_to_its_last_flush() {
    let (_dir, path) = image();
    let (crashes, took_place) = cut_at_random(create(&path, AT_ONCE), 3000, 2, |disk, seed| {
        // The file is left as the cut leaves it, closed, and opened by its name.
        drop(disk.into_nand().unwrap().cut(seed).unwrap());
        Disk::open(&path, AT_ONCE).unwrap()
    });
    assert!(crashes > 40 && took_place > 0, "{crashes} {took_place}");
}

#[test]
fn a_process_that_ends_without_a_flush_leaves_the_last_one_in_the_image_file() {
    let (_dir, path) = image();
    let disk = create(&path, AT_ONCE);
    put(&disk, 3, 1).unwrap();
    disk.flush().unwrap();
    put(&disk, 3, 2).unwrap();
    put(&disk, 4, 3).unwrap();
    drop(disk);
    let disk = Disk::open(&path, AT_ONCE).unwrap();
    assert_eq!((get(&disk, 3), get(&disk, 4)), (1, 0));
}

#[test]
fn a_second_opener_is_refused() {
    let (_dir, path) = image();
    let disk = create(&path, AT_ONCE);
    let second = Disk::open(&path, AT_ONCE).unwrap_err();
    assert!(
        matches!(&second, DiskError::InUse { path: p } if *p == path),
        "{second}"
    );
    put(&disk, 0, 1).unwrap();
    disk.flush().unwrap();
    drop(disk);
    assert_eq!(get(&Disk::open(&path, AT_ONCE).unwrap(), 0), 1);
}

#[test]
fn looking_at_an_image_shows_its_last_flush_and_changes_nothing() {
    let (_dir, path) = image();
    let disk = create(&path, AT_ONCE);
    put(&disk, 3, 1).unwrap();
    disk.flush().unwrap();
    put(&disk, 3, 2).unwrap();
    assert!(matches!(
        Disk::open_read_only(&path).unwrap_err(),
        DiskError::InUse { .. }
    ));
    drop(disk);
    let before = std::fs::read(&path).unwrap();
    let seen = Disk::open_read_only(&path).unwrap();
    let beside = Disk::open_read_only(&path).unwrap();
    assert!(seen.geometry().read_only);
    assert_eq!((get(&seen, 3), get(&beside, 3)), (1, 1));
    for refused in [put(&seen, 3, 3), seen.discard(BlockNo(3), 1)] {
        assert!(matches!(refused, Err(DeviceError::ReadOnly { .. })));
    }
    assert!(matches!(
        Disk::open(&path, AT_ONCE).unwrap_err(),
        DiskError::InUse { .. }
    ));
    drop((seen, beside));
    assert!(std::fs::read(&path).unwrap() == before);
}

#[test]
fn corner_47_a_request_that_the_epoch_has_no_room_for_is_refused_whole() {
    let disk = disk(AT_ONCE);
    assert_eq!(disk.room(), EPOCH);
    for i in 0..EPOCH - 2 {
        put(&disk, i, 1).unwrap();
    }
    disk.flush().unwrap();
    for i in 0..EPOCH - 2 {
        put(&disk, i, 2).unwrap();
    }
    assert_eq!(disk.room(), 2);
    let three = block(3).repeat(3);
    let refused = disk.write(BlockNo(0), &[&three]).unwrap_err();
    assert!(
        matches!(cause(&refused), Some(FtlError::EpochFull { bound }) if *bound == EPOCH),
        "{refused}"
    );
    // Also in parts that would fit one by one.
    let one: &[&[u8]] = &[&three[..BLOCK_SIZE]];
    let batch = [(BlockNo(0), one), (BlockNo(7), one), (BlockNo(9), one)];
    assert!(disk.write_scattered(&batch).is_err());
    for i in 0..EPOCH - 2 {
        assert_eq!(get(&disk, i), 2, "a refused request was done in part");
    }
    // Nothing was flushed without the client's knowledge ...
    disk.rollback().unwrap();
    for i in 0..EPOCH - 2 {
        assert_eq!(get(&disk, i), 1);
    }
    // ... and the whole batch fits the next epoch.
    disk.write_scattered(&batch).unwrap();
    disk.flush().unwrap();
    assert_eq!((get(&disk, 7), disk.room()), (3, EPOCH));
}

#[test]
fn a_request_larger_than_an_epoch_is_refused_without_waiting() {
    let disk = disk(WhenFull::Wait(Duration::from_secs(600)));
    let large = block(1).repeat(EPOCH as usize + 1);
    put(&disk, 0, 5).unwrap();
    assert!(disk.write(BlockNo(0), &[&large]).is_err());
    assert_eq!(get(&disk, 0), 5);
}

#[test]
fn corner_47_a_write_waits_for_the_flush_of_another_thread() {
    let disk = disk(WhenFull::Wait(Duration::from_secs(300)));
    for i in 0..EPOCH {
        put(&disk, i, 1).unwrap();
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| put(&disk, 100, 9));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        disk.flush().unwrap();
        // A write that is not woken fails after its wait.
        waits.join().unwrap().unwrap();
    });
    // A write that had to wait is no part of the flush that it waited for.
    disk.rollback().unwrap();
    assert_eq!((get(&disk, 0), get(&disk, 100)), (1, 0));
}

#[test]
fn a_disk_whose_epochs_may_end_on_their_own_keeps_writes_in_their_order() {
    let mut rng = Rng::new(4);
    let mut disk = disk(WhenFull::Flush);
    for round in 0..30 {
        let begun = contents(&disk);
        let mut history = vec![begun];
        for i in 0..rng.below(4 * EPOCH) {
            let (at, stamp) = (rng.below(150), 1 + round * 1000 + i);
            put(&disk, at, stamp).unwrap();
            let mut next = history[history.len() - 1].clone();
            next[at as usize] = stamp;
            history.push(next);
        }
        let nand = disk.into_nand().unwrap().cut(rng.number()).unwrap();
        disk = Disk::mount(nand, WhenFull::Flush).unwrap();
        let found = contents(&disk);
        let place = history.iter().rposition(|state| *state == found);
        let place = place.unwrap_or_else(|| panic!("no moment of round {round} looked like this"));
        // At most an epoch is lost.
        assert!(history.len() - 1 - place <= EPOCH as usize, "round {round}");
    }
    // A request of several epochs is done, too.
    let large = block(8).repeat(3 * EPOCH as usize);
    disk.write(BlockNo(0), &[&large]).unwrap();
    disk.flush().unwrap();
    assert!(
        contents(&disk)[..3 * EPOCH as usize]
            .iter()
            .all(|&stamp| stamp == 8)
    );
}

/// A client's view of the contract through the trait, for any sector size.
#[test]
fn the_contract_is_asked_for_and_relied_on_through_the_trait() {
    for sector_bytes in [512, 4096] {
        let geometry = geometry(sector_bytes);
        let disk = Disk::format(memory(geometry), options(geometry, 600), AT_ONCE).unwrap();
        let device: &dyn BlockDevice = &disk;
        let snapshot = device.snapshot().unwrap();
        assert_eq!(snapshot.epoch_blocks(), EPOCH);
        put(&disk, 3, 1).unwrap();
        device.flush().unwrap();
        put(&disk, 3, 2).unwrap();
        put(&disk, 4, 3).unwrap();
        snapshot.rollback().unwrap();
        assert_eq!((get(&disk, 3), get(&disk, 4)), (1, 0));
        // The forgotten part of the epoch takes no room.
        for n in 0..EPOCH {
            put(&disk, n, 10 + n).unwrap();
        }
        assert!(put(&disk, 0, 1).is_err());
    }
    // Epochs that end on their own are none to rely on.
    let device: &dyn BlockDevice = &disk(WhenFull::Flush);
    assert!(device.snapshot().is_none());
}

/// A look at an image that another process writes: its last stored state, and nothing changed.
#[test]
fn an_image_in_use_can_be_peeked_at() {
    let (_dir, path) = image();
    assert!(ImageStore::is_image(&path).is_err());
    let disk = create(&path, AT_ONCE);
    put(&disk, 5, 1).unwrap();
    disk.flush().unwrap();
    put(&disk, 5, 2).unwrap();
    assert!(ImageStore::is_image(&path).unwrap());
    let before = std::fs::read(&path).unwrap();
    let peeked = Disk::peek(&path).unwrap();
    assert_eq!(get(&peeked, 5), 1);
    assert!(put(&peeked, 5, 3).is_err());
    drop(peeked);
    assert!(std::fs::read(&path).unwrap() == before);
    put(&disk, 6, 4).unwrap();
    disk.flush().unwrap();
    assert_eq!((get(&disk, 5), get(&disk, 6)), (2, 4));
    std::fs::write(path.with_extension("text"), "STD").unwrap();
    assert!(!ImageStore::is_image(&path.with_extension("text")).unwrap());
}

#[test]
fn corner_49_a_discard_is_taken_back_by_a_crash_and_kept_by_a_flush() {
    let disk = disk(AT_ONCE);
    for i in 0..10 {
        put(&disk, i, i + 1).unwrap();
    }
    disk.flush().unwrap();
    disk.discard(BlockNo(2), 598).unwrap();
    assert_eq!(
        (get(&disk, 1), get(&disk, 2), disk.room()),
        (2, 0, EPOCH - 1)
    );
    disk.rollback().unwrap();
    assert_eq!(get(&disk, 2), 3);
    disk.discard(BlockNo(2), 598).unwrap();
    disk.flush().unwrap();
    disk.rollback().unwrap();
    assert_eq!((get(&disk, 1), get(&disk, 2)), (2, 0));
}

#[test]
fn requests_past_the_end_or_not_of_whole_blocks_are_refused_and_change_nothing() {
    let disk = disk(AT_ONCE);
    put(&disk, 599, 1).unwrap();
    let two = block(2).repeat(2);
    let past = |result: Result<(), DeviceError>| {
        let error = result.unwrap_err();
        assert!(
            matches!(error, DeviceError::OutOfRange { blocks: 600, .. }),
            "{error}"
        );
    };
    past(disk.write(BlockNo(599), &[&two]));
    past(disk.write(BlockNo(u64::MAX), &[&two]));
    past(disk.read(BlockNo(599), &mut two.clone()));
    past(disk.discard(BlockNo(1), 600));
    past(disk.discard(BlockNo(1), u64::MAX));
    let parts: [(BlockNo, &[&[u8]]); 2] = [(BlockNo(0), &[&two]), (BlockNo(600), &[&two])];
    past(disk.write_scattered(&parts));
    let misaligned = disk.write(BlockNo(0), &[&two[..100]]).unwrap_err();
    assert!(matches!(
        misaligned,
        DeviceError::Misaligned { bytes: 100, .. }
    ));
    disk.write(BlockNo(600), &[]).unwrap();
    assert_eq!((get(&disk, 0), get(&disk, 599)), (0, 1));
    assert_eq!(disk.room(), EPOCH - 1);
}

#[test]
fn a_worn_out_disk_says_so_and_can_still_be_read() {
    let disk = disk(AT_ONCE);
    for i in 0..20 {
        put(&disk, i, 1).unwrap();
    }
    disk.flush().unwrap();
    let rates = Rates {
        program: 300_000,
        erase: 300_000,
        read: 0,
    };
    disk.look(|layer| layer.platform_mut().nand_mut().set_rates(rates, 3));
    let mut flushed = [1; 20];
    let error = 'worn: {
        for stamp in 2..200 {
            for i in 0..20 {
                if let Err(error) = put(&disk, i, stamp) {
                    break 'worn error;
                }
            }
            if let Err(error) = disk.flush() {
                break 'worn error;
            }
            flushed.fill(stamp);
        }
        panic!("the disk goes on for ever");
    };
    assert!(
        matches!(
            cause(&error),
            Some(FtlError::WornOut | FtlError::EpochFull { .. })
        ),
        "{error}"
    );
    for i in 0..20 {
        assert!(get(&disk, i) >= flushed[i as usize]);
    }
    if matches!(cause(&error), Some(FtlError::WornOut)) {
        let DeviceError::Io { source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(source.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        let again = disk.flush().unwrap_err();
        assert!(matches!(cause(&again), Some(FtlError::Stopped)), "{again}");
    }
}

#[test]
fn a_damaged_page_is_reported_with_the_block_that_is_lost() {
    let disk = disk(AT_ONCE);
    for i in 0..20 {
        put(&disk, i, i + 1).unwrap();
    }
    disk.flush().unwrap();
    // Somewhere among the data pages: all pages of some block of the memory rot.
    let mut lost = 0;
    for rotten in 4..128 {
        disk.look(|layer| {
            let nand = layer.platform_mut().nand_mut();
            for page in 0..32 {
                nand.make_unreadable(Address {
                    block: rotten,
                    page,
                });
            }
        });
    }
    for at in 0..20 {
        let mut data = vec![0; BLOCK_SIZE];
        match disk.read(BlockNo(at), &mut data) {
            Ok(()) => assert!(data == block(at + 1)),
            Err(error) => {
                assert!(
                    matches!(cause(&error), Some(FtlError::Damaged { sector, .. }) if *sector == at),
                    "{error}"
                );
                lost += 1;
            }
        }
    }
    assert_eq!(lost, 20);
}

#[test]
fn threads_share_a_disk() {
    let disk = disk(WhenFull::Wait(Duration::from_secs(300)));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let disk = &disk;
            scope.spawn(move || {
                for round in 0..20 {
                    for i in 0..5 {
                        put(disk, thread * 40 + i, round * 5 + i + 1).unwrap();
                        assert_eq!(get(disk, thread * 40 + i), round * 5 + i + 1);
                    }
                    disk.flush().unwrap();
                }
            });
        }
    });
    let nand = disk.into_nand().unwrap().cut(5).unwrap();
    let disk = Disk::mount(nand, AT_ONCE).unwrap();
    for thread in 0..4 {
        for i in 0..5 {
            assert_eq!(get(&disk, thread * 40 + i), 19 * 5 + i + 1);
        }
    }
}

#[test]
fn an_image_that_is_no_disk_is_refused_by_name() {
    let (dir, path) = image();
    let open = |path: &std::path::Path| Disk::open(path, AT_ONCE).unwrap_err();
    let missing = open(&path);
    assert!(
        matches!(missing, DiskError::Image(ImageError::Io { .. })),
        "{missing}"
    );
    std::fs::write(&path, vec![7; 10_000]).unwrap();
    let other = open(&path);
    assert!(
        matches!(other, DiskError::Image(ImageError::NotAnImage { .. })),
        "{other}"
    );
    let fresh = dir.path().join("fresh");
    drop(ImageStore::create(&fresh, geometry(4096)).unwrap());
    let fresh = open(&fresh);
    assert!(
        matches!(fresh, DiskError::Layer(FtlError::NotFormatted)),
        "{fresh}"
    );
    let short = dir.path().join("short");
    drop(create(&short, AT_ONCE));
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&short)
        .unwrap();
    file.set_len(1 << 20).unwrap();
    let short = open(&short);
    assert!(
        matches!(short, DiskError::Image(ImageError::NotAnImage { .. })),
        "{short}"
    );
    // Sectors that make no blocks, and a disk that does not fit: no file is left.
    let odd = Geometry {
        sector_bytes: 3000,
        ..geometry(4096)
    };
    let path = dir.path().join("odd");
    let refused = Disk::create(&path, odd, options(geometry(4096), 10), AT_ONCE).unwrap_err();
    assert!(
        matches!(refused, DiskError::Sectors { bytes: 3000 }),
        "{refused}"
    );
    let large = options(geometry(4096), 100_000);
    let refused = Disk::create(&path, geometry(4096), large, AT_ONCE).unwrap_err();
    assert!(
        matches!(refused, DiskError::Layer(FtlError::TooSmall(_))),
        "{refused}"
    );
    assert!(!path.exists());
}

#[test]
fn a_geometry_is_found_for_a_disk_and_not_a_block_too_large() {
    let like = Geometry {
        pages: 64,
        ..geometry(4096)
    };
    for (sectors, spare) in [(64, 10), (4096, 0), (100_000, 25)] {
        let found = geometry_for(like, sectors, 256, spare).unwrap();
        assert!(found.capacity() * 100 >= sectors * 4096 * (100 + spare));
        let options = Options {
            sectors,
            epoch: 256,
            region: None,
            volume: 1,
        };
        drop(Disk::format(memory(found), options, AT_ONCE).unwrap());
        let smaller = Geometry {
            blocks: found.blocks - 1,
            ..found
        };
        let roomy = smaller.capacity() * 100 >= sectors * 4096 * (100 + spare);
        assert!(!roomy || Disk::format(memory(smaller), options, AT_ONCE).is_err());
    }
    assert!(geometry_for(like, 1 << 40, 256, 10).is_err());
    // Geometries whose blocks cannot be counted, and such as cannot be.
    for (dies, pages) in [(256, 1), (256, 1 << 14), (0, 64), (1 << 20, 64)] {
        let wild = Geometry {
            channels: 256,
            dies,
            pages,
            ..like
        };
        assert!(geometry_for(wild, 1 << 40, 256, 10).is_err());
    }
}

/// A clean shutdown spares the next mount the delta log, and commits nothing by that.
#[test]
fn a_graceful_end_checkpoints_flushed_writes_and_nothing_else() {
    let checkpoints = |disk: &Disk<MemoryStore>| disk.stats().unwrap().checkpoints;
    let disk = disk(AT_ONCE);
    let made = checkpoints(&disk);
    // A few changes are not worth a checkpoint.
    put(&disk, 1, 1).unwrap();
    disk.flush().unwrap();
    disk.finish();
    assert_eq!(checkpoints(&disk), made);
    for i in 0..1400 {
        if i % EPOCH == 0 {
            disk.flush().unwrap();
        }
        put(&disk, i % 500, i + 1).unwrap();
    }
    // Not all of it is flushed.
    let before = checkpoints(&disk);
    disk.finish();
    assert_eq!(checkpoints(&disk), before);
    assert_eq!(get(&disk, 1399 % 500), 1400);
    disk.flush().unwrap();
    disk.finish();
    assert_eq!(checkpoints(&disk), before + 1);
    let flushed = contents(&disk);
    put(&disk, 3, 9999).unwrap();
    disk.finish();
    let nand = disk.into_nand().unwrap().cut(1).unwrap();
    let disk = Disk::mount(nand, AT_ONCE).unwrap();
    assert!(contents(&disk) == flushed);
    disk.finish();
    assert_eq!(checkpoints(&disk), 0, "nothing is worth a checkpoint");
}

/// The power goes in it, or it fails: flushed data is there.
#[test]
fn a_graceful_end_may_fail() {
    for after in 0..40 {
        let disk = disk(AT_ONCE);
        for i in 0..900 {
            if i % EPOCH == 0 {
                disk.flush().unwrap();
            }
            put(&disk, i % 300, i + 1).unwrap();
        }
        disk.flush().unwrap();
        disk.look(|layer| layer.platform_mut().nand_mut().cut_after(after));
        disk.finish();
        let nand = disk.into_nand().unwrap().cut(after).unwrap();
        let disk = Disk::mount(nand, AT_ONCE).unwrap();
        assert!((0..300).all(|at| get(&disk, at) == 600 + at + 1), "{after}");
    }
}
