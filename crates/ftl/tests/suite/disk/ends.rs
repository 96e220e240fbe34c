//! The logs that a mount must follow: graceful ends, and delta regions of any size.

use super::common::{
    Disk, EPOCH, Error, bytes, crash, disk, disk_on, geometry, mount, platform, put, read, write,
};
use steadfast_flash::{Address, Fault, FaultOp, FlashError, Geometry, MemoryStore, Nand, Rng};
use steadfast_ftl::{
    Bytes, FtlError, Intervals, Limits, Options, Page, TooSmall, Tuned, geometry_for,
};

const ROOT: u8 = 8;
const ROOT_SEAL: u64 = 0x7374_6561_6466_6173;

/// A disk with many map pages.
fn large(region: Option<u64>) -> Result<Disk, Error> {
    let large = Geometry {
        blocks: 480,
        ..geometry()
    };
    with_region(large, region)
}

pub(crate) fn with_region(geometry: Geometry, region: Option<u64>) -> Result<Disk, Error> {
    let platform = platform(geometry);
    let shape = platform.shape();
    let intervals = Intervals {
        epoch: EPOCH,
        region,
    };
    let options = Options {
        sectors: Limits::largest(&shape, intervals)
            .map_err(FtlError::TooSmall)?
            .sectors,
        epoch: EPOCH,
        region,
        volume: 7,
    };
    steadfast_ftl::Ftl::format(platform, shape, Tuned::new(shape.dies), options)
}

/// Random writes from number `from` on, flushed.
fn change(disk: &mut Disk, rng: &mut Rng, golden: &mut [u64], from: u64, count: u64) {
    for stamp in from..from + count {
        let sector = rng.below(golden.len() as u64);
        put(disk, sector, stamp);
        golden[sector as usize] = stamp;
    }
    disk.flush().unwrap();
}

/// Power cut and mount; how many pages that reads.
fn reads(disk: Disk) -> (Disk, u64) {
    let nand = disk.into_platform().into_nand().cut(3).unwrap();
    let before = nand.counts().reads;
    let disk = mount(nand).unwrap();
    let read = disk.platform().nand().counts().reads - before;
    (disk, read)
}

#[test]
fn behind_a_graceful_end_a_mount_has_nothing_to_follow() {
    let mut disk = large(None).unwrap();
    let mut golden = vec![0; disk.limits().sectors as usize];
    let mut rng = Rng::new(1);
    disk.checkpoint().unwrap();
    let (mut disk, least) = reads(disk);
    for changes in [10, 1000, 5000] {
        change(&mut disk, &mut rng, &mut golden, changes, changes);
        disk.checkpoint().unwrap();
        let (ended, after) = reads(disk);
        // Roots and tables, some heads of the logs, and one delta page.
        assert!(
            after < least + 12,
            "{after} behind {changes} changes, {least} of an empty disk"
        );
        disk = ended;
        disk.check().unwrap();
        change(&mut disk, &mut rng, &mut golden, 2 * changes, changes);
        let (mounted, crashed) = reads(disk);
        assert!(crashed > after + 8, "{crashed} behind {changes} changes");
        disk = mounted;
        for (sector, &stamp) in golden.iter().enumerate() {
            assert_eq!(read(&mut disk, sector as u64), stamp);
        }
    }
}

#[test]
fn a_graceful_end_logs_nothing_twice_and_drops_unflushed_writes() {
    let mut disk = disk();
    write(&mut disk, 5, 1);
    disk.checkpoint().unwrap();
    let programs = |disk: &Disk| disk.platform().nand().counts().programs;
    let before = programs(&disk);
    disk.checkpoint().unwrap();
    disk.flush().unwrap();
    disk.checkpoint().unwrap();
    assert_eq!(programs(&disk), before);
    assert_eq!(disk.room(), EPOCH);
    let mut disk = crash(disk, 1);
    assert_eq!(read(&mut disk, 5), 1);
    // The mount said something.
    disk.checkpoint().unwrap();
    assert!(programs(&disk) > before);
    let mut disk = crash(disk, 2);
    assert_eq!(read(&mut disk, 5), 1);
}

/// In each phase of a checkpoint under way, with moves and without.
#[test]
fn corner_46_a_cut_at_every_operation_of_a_graceful_end() {
    let history = |flushes: u64| {
        let mut disk = disk();
        let sectors = disk.limits().sectors;
        let mut golden = vec![0; sectors as usize];
        let mut rng = Rng::new(flushes);
        for i in 0..sectors {
            put(&mut disk, i, i + 1);
            golden[i as usize] = i + 1;
        }
        change(&mut disk, &mut rng, &mut golden, 10_000, 500 + 40 * flushes);
        let stable = golden.clone();
        for stamp in 1..9 {
            write(&mut disk, stamp * 11, 20_000 + stamp);
            golden[stamp as usize * 11] = 20_000 + stamp;
        }
        disk.trim(3, 2).unwrap();
        golden[3..5].fill(0);
        (disk, stable, golden)
    };
    let (mut cuts, mut took_place) = (0, 0);
    for flushes in 0..8 {
        for at in 0.. {
            let (mut disk, stable, golden) = history(flushes);
            disk.platform_mut().nand_mut().cut_after(at);
            let done = match disk.checkpoint() {
                Ok(()) => true,
                Err(FtlError::Flash(FlashError::PowerLost)) => false,
                Err(error) => panic!("cut at {at}: {error}"),
            };
            let mut disk = crash(disk, at);
            let found: Vec<u64> = (0..stable.len() as u64)
                .map(|s| read(&mut disk, s))
                .collect();
            assert!(
                found == golden || (found == stable && !done),
                "cut at {at} behind {flushes}"
            );
            disk.check().unwrap();
            cuts += 1;
            took_place += u64::from(found == golden && !done);
            if done {
                break;
            }
        }
    }
    assert!(cuts > 100 && took_place > 20, "{cuts} {took_place}");
}

/// Each program of a graceful end fails in turn. Story: a delta page before the position that the root notes was not
/// durable yet; when it had to move, the page after it moved along, and no mount found that page.
#[test]
fn corner_50_a_graceful_end_bears_failed_programs() {
    let mut failed = 0;
    for after in 0..80 {
        // A checkpoint is due with the last commit, or none is.
        let region = if after % 2 == 0 { 8 } else { 40 };
        let after = after / 2;
        let mut disk = crash(with_region(geometry(), Some(region)).unwrap(), after);
        for i in 0..300 {
            put(&mut disk, i % 90, i + 1);
        }
        disk.flush().unwrap();
        write(&mut disk, 7, 1000);
        disk.platform_mut().nand_mut().inject(Fault {
            op: FaultOp::Program,
            after,
        });
        disk.checkpoint().unwrap();
        failed += disk.stats().failed_blocks;
        // Its root is the newest, and the pages that it notes are found.
        let mut disk = crash(disk, after);
        assert_eq!(read(&mut disk, 7), 1000, "{after}");
        assert_eq!(read(&mut disk, 29), 300, "{after}");
        disk.check().unwrap();
    }
    assert!(failed > 8, "{failed}");
}

/// However small the region: a checkpoint is written in slices, and no flush waits for a whole map.
#[test]
fn a_small_region_spreads_its_checkpoints_over_flushes() {
    let region = 8;
    let mut disk = large(Some(region)).unwrap();
    let limits = *disk.limits();
    let slice = 2 * limits.map_pages / region;
    assert!(slice > 40 && slice < limits.map_pages / 2, "{limits:?}");
    let mut most = 0;
    for i in 0..6000 {
        let before = disk.stats().map_pages;
        put(&mut disk, i * 37 % limits.sectors, i + 1);
        most = most.max(disk.stats().map_pages - before);
    }
    assert!(disk.stats().checkpoints > 5, "{:?}", disk.stats());
    assert!(most <= slice, "{most} of {slice}");
}

#[test]
fn a_delta_region_is_kept_and_bounds_what_a_mount_follows() {
    let usual = large(None).unwrap();
    let limits = *usual.limits();
    assert_eq!(limits.delta_pages, (limits.map_pages / 2).max(8));
    let limits = *mount(usual.into_platform().into_nand()).unwrap().limits();
    assert_eq!(limits.delta_pages, (limits.map_pages / 2).max(8));

    let mut most = Vec::new();
    for region in [8, 24, 160] {
        let mut disk = large(Some(region)).unwrap();
        let sectors = disk.limits().sectors;
        let mut golden = vec![0; sectors as usize];
        let mut rng = Rng::new(region);
        for i in 0..sectors {
            put(&mut disk, i, 1);
        }
        golden.fill(1);
        let mut worst = 0;
        for round in 0..12 {
            change(&mut disk, &mut rng, &mut golden, 1000 * (round + 1), 700);
            // With small regions, too, each epoch has its room.
            assert_eq!(disk.room(), EPOCH, "region {region}");
            let (mounted, read) = reads(disk);
            worst = worst.max(read);
            disk = mounted;
            assert_eq!(disk.limits().delta_pages, region);
            assert_eq!(disk.room(), EPOCH, "region {region}");
        }
        for (sector, &stamp) in golden.iter().enumerate() {
            assert_eq!(read(&mut disk, sector as u64), stamp);
        }
        disk.check().unwrap();
        most.push(worst);
    }
    assert!(most[0] < most[1] && most[1] < most[2], "{most:?}");
}

/// Found by the measurement of boot times: where the map stream is open in several blocks, the older map and the newer one
/// each end in twice as many, and one later mount counted as many in a row: it wrote a whole checkpoint, and took 170 ms
/// instead of 20.
#[test]
fn a_mount_has_room_for_the_blocks_that_the_map_ends_in() {
    let paper = Geometry {
        blocks: 32,
        ..Geometry::paper()
    };
    let mut disk = disk_on(paper, 2048);
    let sectors = disk.limits().sectors;
    // Enough checkpoints that the map stream goes on to other blocks within the last.
    for sector in 0..sectors {
        disk.write(sector, &[0; 4096]).unwrap();
        if disk.room() == 0 {
            disk.flush().unwrap();
        }
    }
    disk.flush().unwrap();
    disk.checkpoint().unwrap();
    let mut rng = Rng::new(1);
    for _ in 0..1000 {
        disk.write(rng.below(sectors), &[0; 4096]).unwrap();
    }
    disk.flush().unwrap();
    let disk = crash(disk, 1);
    assert_eq!(disk.stats().checkpoints, 0);
}

#[test]
fn regions_that_make_no_sense_are_refused() {
    for region in [0, 1, 7] {
        let refused = large(Some(region)).map(drop);
        assert!(
            matches!(
                refused,
                Err(FtlError::TooSmall(TooSmall::Region { pages, .. })) if pages == region
            ),
            "{region}"
        );
    }
    for region in [1 << 20, 1 << 31, u64::from(u32::MAX), 1 << 40, u64::MAX] {
        let Err(FtlError::TooSmall(error)) = large(Some(region)).map(drop) else {
            panic!("a region of {region} pages fits");
        };
        assert!(error.to_string().contains(&format!("{region} pages")));
        let intervals = Intervals {
            epoch: EPOCH,
            region: Some(region),
        };
        // A memory of more blocks may hold it, or none does.
        if let Ok(found) = geometry_for(geometry(), 100, intervals, 10) {
            assert!(found.blocks > 480 && region < 1 << 31);
        }
    }
}

/// Roots that say any epoch and region, with checksums that hold.
#[test]
fn any_intervals_in_a_root_are_taken_or_refused() {
    let forged = |word: u64| {
        let mut disk = disk();
        put(&mut disk, 4, 9);
        disk.checkpoint().unwrap();
        let mut nand: Nand<MemoryStore> = disk.into_platform().into_nand();
        let g = *nand.geometry();
        let tag_at = g.page_bytes();
        let mut page = vec![0; g.raw_bytes()];
        for at in (0..4).flat_map(|block| (0..g.pages).map(move |page| Address { block, page })) {
            nand.read(at, &mut page).unwrap();
            if page[tag_at + 5] != ROOT || page[tag_at + 6..tag_at + 8] != 0x5346u16.to_le_bytes() {
                continue;
            }
            let number = u64::from(at.block) << 4 | u64::from(at.page);
            let forge = |page: &mut [u8]| {
                let mut root = Bytes(page.to_vec().into());
                root.set_word(6, word);
                root.seal(ROOT_SEAL, number);
                page.copy_from_slice(&root.0);
            };
            nand.damage(at, forge).unwrap();
        }
        mount(nand)
    };
    let (region, epoch) = (8 << 32, EPOCH);
    let mut disk = forged(region | epoch).unwrap();
    assert_eq!(read(&mut disk, 4), 9);
    assert_eq!(disk.limits().delta_pages, 8);
    for word in [
        0,
        epoch,
        region,
        7 << 32 | epoch,
        region | 1 << 31,
        1 << 63 | epoch,
        u64::from(u32::MAX) << 32 | epoch,
        u64::MAX,
    ] {
        let refused = forged(word).map(drop);
        assert!(matches!(refused, Err(FtlError::TooSmall(_))), "{word:x}");
    }
}

#[test]
fn a_stopped_disk_makes_no_checkpoint() {
    let mut disk = disk();
    disk.write(1, &bytes(1)).unwrap();
    disk.platform_mut().nand_mut().cut_after(0);
    assert!(disk.checkpoint().is_err());
    assert!(matches!(disk.checkpoint(), Err(FtlError::Stopped)));
    let mut disk = crash(disk, 1);
    assert_eq!(read(&mut disk, 1), 0);
}
