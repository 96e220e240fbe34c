//! Free space: the core's promises, with any policy.
#![allow(clippy::unwrap_used, clippy::panic)]

use steadfast_flash::{FlashError, Geometry, Latency, MemoryStore, Nand, Rng};
use steadfast_ftl::stress::{plans, run};
use steadfast_ftl::{
    Blocks, Emulated, Faults, Ftl, FtlError, Limits, Options, Platform, Policy, Purpose,
};

/// Proposes nothing, and moves nothing between two flushes.
struct Idle;

impl<P: Platform> Policy<P> for Idle {
    fn next(&mut self, _: Purpose, _: &Blocks<P>, _: &[P::W]) -> Option<P::W> {
        None
    }
    fn erase(&mut self, _: &Blocks<P>) -> Option<P::W> {
        None
    }
    fn victim(&mut self, _: &Blocks<P>, _: &Limits) -> Option<P::W> {
        None
    }
    fn level(&mut self, _: &Blocks<P>) -> Option<P::W> {
        None
    }
    fn pace(&mut self, _: &Limits, _: u64, _: u64, _: i64) -> u64 {
        0
    }
    fn stock(&self) -> u64 {
        4
    }
}

fn geometry(dies: u32, blocks: u32, sectors: u32) -> Geometry {
    Geometry {
        channels: dies,
        dies: 1,
        blocks,
        pages: 16,
        sectors,
        sector_bytes: 256,
        spare_bytes: 64,
    }
}

type Disk = Ftl<Emulated<MemoryStore>, Idle>;

fn bytes(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(32)
}

fn disk(geometry: Geometry, epoch: u64, faults: Faults) -> Disk {
    let nand = Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry)).unwrap();
    let platform = Emulated::new(nand);
    let shape = platform.shape();
    let sectors = Limits::largest(&shape, epoch).unwrap().sectors;
    let options = Options {
        sectors,
        epoch,
        region: None,
        volume: 7,
    };
    Ftl::format_with(platform, shape, Idle, options, faults).unwrap()
}

fn mount(nand: Nand<MemoryStore>, faults: Faults) -> Result<Disk, FtlError<FlashError>> {
    let platform = Emulated::new(nand);
    let shape = platform.shape();
    Ftl::mount_with(platform, shape, Idle, faults)
}

fn read(disk: &mut Disk, sector: u64) -> u64 {
    let mut data = vec![1; 256];
    disk.read(sector, &mut data).unwrap();
    u64::from_le_bytes(data[..8].try_into().unwrap())
}

/// Result of a run.
#[derive(Default, Debug)]
struct Report {
    crashes: u64,
    flushes: u64,
    /// Flushes that had to commit again.
    again: u64,
}

/// Epochs of random writes, a cut in every other one. With any policy, the epoch after a flush or a mount is
/// whole, and a crash returns to the last flush.
fn cut_epochs(
    geometry: Geometry,
    epoch: u64,
    seed: u64,
    faults: Faults,
    report: &mut Report,
) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut disk = disk(geometry, epoch, faults);
    let sectors = disk.limits().sectors;
    let mut golden = vec![0; sectors as usize];
    let (mut stable, mut stamp) = (golden.clone(), 0);
    for step in 0..400 {
        let broken = |what: &str| Err(format!("step {step}: {what}"));
        if rng.below(2) == 0 {
            let operations = rng.below(80);
            disk.platform_mut().nand_mut().cut_after(operations);
        }
        let hot = 1 + rng.below(12);
        let mut result = Ok(());
        for _ in 0..60 {
            if disk.room() == 0 || result.is_err() {
                break;
            }
            let all = rng.below(3) == 0;
            let sector = rng.below(if all { sectors } else { hot });
            stamp += 1;
            result = disk.write(sector, &bytes(stamp));
            if result.is_ok() {
                golden[sector as usize] = stamp;
            }
        }
        let flushing = result.is_ok();
        let extra = disk.stats().extra_commits;
        match result.and_then(|()| disk.flush()) {
            Ok(()) => {
                report.flushes += 1;
                report.again += u64::from(disk.stats().extra_commits != extra);
                stable.clone_from(&golden);
            }
            Err(FtlError::Flash(_)) => {
                report.crashes += 1;
                let nand = disk.into_platform().into_nand().cut(rng.number());
                disk = match mount(nand.unwrap(), faults) {
                    Ok(disk) => disk,
                    Err(error) => return broken(&format!("mount: {error}")),
                };
                let found: Vec<u64> = (0..sectors).map(|s| read(&mut disk, s)).collect();
                if found != stable && !(flushing && found == golden) {
                    return broken("a crash leaves what was not flushed");
                }
                stable.clone_from(&found);
                golden = found;
            }
            Err(error) => return broken(&error.to_string()),
        }
        if disk.room() != epoch {
            return broken("an epoch is cut short");
        }
    }
    Ok(())
}

/// On several memories. Few flushes commit more than once: a flush moves most sectors before its commit.
fn cut_all(faults: Faults) -> Result<(), String> {
    for (dies, sectors, epoch) in [(1, 1, 8), (1, 1, 16), (1, 1, 48), (4, 2, 16)] {
        let mut report = Report::default();
        for seed in 1..12 {
            cut_epochs(
                geometry(dies, 64, sectors),
                epoch,
                seed,
                faults,
                &mut report,
            )
            .map_err(|what| format!("{dies} dies, epochs of {epoch}, seed {seed}, {what}"))?;
        }
        println!("{dies} dies, epochs of {epoch}: {report:?}");
        assert!(report.crashes > 220, "{report:?}");
        if report.again * 20 > report.flushes {
            return Err(format!("flushes commit again: {report:?}"));
        }
    }
    Ok(())
}

/// With a policy that moves nothing and a cut in every other epoch, blocks half filled took all room, those
/// too that metadata may claim: the next mount found no block for its delta run, and a sound memory
/// could not be mounted. Now a flush moves the sectors that it must by itself, and leaves the blocks that others may claim.
#[test]
fn corner_48_cuts_in_every_other_epoch_leave_room_whatever_the_policy() {
    cut_all(Faults::default()).unwrap();
}

/// A flush that first moves the sectors that it must move hardly ever needs another commit. A flush that
/// relies on later commits needs them all the time.
#[test]
fn a_flush_that_moves_nothing_first_commits_again_and_again() {
    let faults = Faults {
        skip_reclaim: true,
        ..Faults::default()
    };
    let broken = cut_all(faults).unwrap_err();
    assert!(broken.contains("commit again"), "{broken}");
    steadfast_testkit::caught_in("ftl", &faults);
}

#[test]
fn runs_that_count_before_they_are_durable_are_found() {
    let faults = Faults {
        runs_early: true,
        ..Faults::default()
    };
    println!("{}", cut_all(faults).unwrap_err());
    steadfast_testkit::caught_in("ftl", &faults);
}

/// A client trims one range again and again in an epoch, and writes every other sector of it. At the flush each trim was
/// walked by itself, and left a range before each of those sectors: `k` trims and `m` writes made `k m` ranges, where
/// the reserve has pages for as many as the epoch has trims and writes. Their pages took the room that moving needs,
/// and a sound memory was worn out within two epochs. Each sector is looked at once now.
#[test]
fn corner_48_trims_of_one_range_again_and_again_leave_room() {
    for (epoch, seed) in [(64, 1), (384, 2), (384, 3), (512, 4)] {
        let mut rng = Rng::new(seed);
        let mut disk = disk(geometry(1, 320, 1), epoch, Faults::default());
        let sectors = disk.limits().sectors;
        let mut golden = vec![0; sectors as usize];
        let (mut stamp, mut crashes, mut pages_most) = (0, 0, 0);
        let fill = |disk: &mut Disk, sector: u64, stamp: &mut u64, golden: &mut [u64]| {
            *stamp += 1;
            disk.write(sector, &bytes(*stamp))?;
            golden[sector as usize] = *stamp;
            Ok::<_, FtlError<_>>(())
        };
        for sector in 0..sectors {
            if disk.room() == 0 {
                disk.flush().unwrap();
            }
            fill(&mut disk, sector, &mut stamp, &mut golden).unwrap();
        }
        disk.flush().unwrap();
        let mut stable = golden.clone();
        for step in 0..150 {
            let story = format!("epochs of {epoch}, seed {seed}, step {step}");
            if rng.below(5) == 0 {
                let operations = rng.below(80);
                disk.platform_mut().nand_mut().cut_after(operations);
            }
            let writes = epoch / 2;
            let first = rng.below(sectors - 2 * writes);
            let before = disk.stats().trim_pages;
            let mut result = Ok(());
            // The trims come first in order: they would undo writes between them.
            for turn in 0..epoch {
                if result.is_err() {
                    break;
                }
                result = if turn < writes {
                    let trimmed = disk.trim(first, 2 * writes);
                    if trimmed.is_ok() {
                        golden[first as usize..(first + 2 * writes) as usize].fill(0);
                    }
                    trimmed
                } else {
                    let sector = first + 2 * (turn - writes) + 1;
                    fill(&mut disk, sector, &mut stamp, &mut golden)
                };
            }
            let flushing = result.is_ok();
            match result.and_then(|()| disk.flush()) {
                Ok(()) => {
                    assert_eq!(disk.room(), epoch, "{story}: an epoch is cut short");
                    let pages = disk.stats().trim_pages - before;
                    let kept = disk.limits().rounding / disk.shape().sectors - 2;
                    assert!(pages <= kept, "{story}: {pages} pages of trims");
                    pages_most = pages.max(pages_most);
                    stable.clone_from(&golden);
                }
                Err(FtlError::Flash(_)) => {
                    crashes += 1;
                    let nand = disk.into_platform().into_nand().cut(rng.number());
                    disk = mount(nand.unwrap(), Faults::default()).unwrap();
                    let found: Vec<u64> = (0..sectors).map(|s| read(&mut disk, s)).collect();
                    assert!(found == stable || (flushing && found == golden), "{story}");
                    stable.clone_from(&found);
                    golden = found;
                }
                Err(error) => panic!("{story}: {error}"),
            }
            disk.platform_mut().nand_mut().cut_after(u64::MAX);
            // Full again, as before the epoch.
            for sector in first..first + 2 * writes {
                if golden[sector as usize] != 0 {
                    continue;
                }
                if disk.room() == 0 {
                    disk.flush().unwrap();
                }
                fill(&mut disk, sector, &mut stamp, &mut golden).unwrap();
            }
            disk.flush().unwrap();
            stable.clone_from(&golden);
        }
        let page_words = disk.shape().page_words;
        assert_eq!(pages_most, (epoch / 2).div_ceil(page_words));
        assert!(crashes > 10, "{crashes}");
    }
}

/// Each mount leaves a delta block. Those of a few in a row, some cut, took room that is data's, before a
/// checkpoint gave them back: a mount returned, and the first write found a disk that was full for ever. The seed is
/// of one that shows it.
#[test]
fn corner_48_mounts_in_a_row_leave_room() {
    let plan = &plans()[2];
    let report = run(plan, 1440, 9_000, Faults::default()).unwrap();
    assert!(report.crashes > 10, "{report:?}");
    let faults = Faults {
        skip_mount_checkpoint: true,
        ..Faults::default()
    };
    println!("{}", run(plan, 1440, 9_000, faults).unwrap_err());
    steadfast_testkit::caught_in("ftl", &faults);
}
