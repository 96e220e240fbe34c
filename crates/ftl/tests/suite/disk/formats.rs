//! Formatting over an older disk: at every crash there is the old disk, none, or the new one.

use super::common::{EPOCH, Error, bytes, disk, geometry, mount, platform, put, read};
use steadfast_flash::{Fault, FaultOp, FlashError, MemoryStore, Nand};
use steadfast_ftl::{Emulated, Faults, Ftl, FtlError, Limits, Options, Tuned};

type New<'a> = Ftl<&'a mut Emulated<MemoryStore>, Tuned>;

/// An old disk whose roots lie in more than one anchor, and the sectors' stamps.
fn old() -> (Nand<MemoryStore>, Vec<u64>) {
    let mut disk = disk();
    let sectors = disk.limits().sectors / 2;
    let mut stamps = vec![0; sectors as usize];
    for i in 0..12_000 {
        let sector = i * 7 % sectors;
        put(&mut disk, sector, i + 1);
        stamps[sector as usize] = i + 1;
    }
    disk.flush().unwrap();
    assert!(disk.stats().checkpoints > 20, "{:?}", disk.stats());
    (disk.into_platform().into_nand(), stamps)
}

fn format(platform: &mut Emulated<MemoryStore>, faults: Faults) -> Result<New<'_>, Error> {
    let shape = platform.shape();
    let options = Options {
        sectors: Limits::largest(&shape, EPOCH).unwrap().sectors,
        epoch: EPOCH,
        region: None,
        volume: 8,
    };
    Ftl::format_with(platform, shape, Tuned::new(shape.dies), options, faults)
}

/// Found by an obligation in `proofs/smt`: the erase of the anchor with the old disk's newest root failed, its
/// bytes stayed, and their number was larger than that of the new disk's first root. The next mount returned
/// the old disk, whose blocks the new one had erased.
#[test]
fn a_format_in_which_an_anchor_cannot_be_erased_leaves_no_old_disk() {
    let (nand, _) = old();
    for after in 0..8 {
        let mut nand = nand.clone();
        let op = FaultOp::Erase;
        nand.inject(Fault { op, after });
        let mut platform = Emulated::new(nand);
        let mut new = format(&mut platform, Faults::default()).unwrap();
        new.write(1, &bytes(5000)).unwrap();
        new.flush().unwrap();
        let mut again = mount(platform.into_nand().cut(after).unwrap()).unwrap();
        assert_eq!(read(&mut again, 1), 5000, "erase {after} failed");
        assert_eq!(read(&mut again, 0), 0, "erase {after} failed");
    }
}

/// Found by an obligation in `proofs/smt`: a format began by erasing all anchors at once. Behind a crash an
/// older root could be left without the newest one: a disk of some time ago, or a damaged one.
#[test]
fn a_crash_in_a_format_leaves_the_old_disk_none_or_the_new_one() {
    let old = old();
    let [olds, nones, news] = cut_format(&old, Faults::default()).unwrap();
    assert!(olds > 0 && nones > 0 && news > 0, "{olds} {nones} {news}");
    let faults = Faults {
        vacant_unsynced: true,
        ..Faults::default()
    };
    println!("{}", cut_format(&old, faults).unwrap_err());
    steadfast_testkit::caught_in("ftl", &faults);
}

/// Cuts a format after each of its operations, with a few fates of unsynced pages: counts how often the old disk is
/// there, no disk, and the new one.
fn cut_format(old: &(Nand<MemoryStore>, Vec<u64>), faults: Faults) -> Result<[u64; 3], String> {
    let (nand, stamps) = old;
    let [mut olds, mut nones, mut news] = [0; 3];
    for run in 0.. {
        let (operations, fate) = (run / 3, run);
        let mut cut = nand.clone();
        cut.cut_after(operations);
        let mut platform = Emulated::new(cut);
        let done = format(&mut platform, faults);
        let lost = matches!(done, Err(FtlError::Flash(FlashError::PowerLost)));
        assert!(lost || done.is_ok());
        drop(done);
        let after = format!("behind {operations} operations, fate {fate}");
        match mount(platform.into_nand().cut(fate).unwrap()) {
            Ok(mut disk) => {
                let found: Vec<u64> = (0..stamps.len())
                    .map(|sector| read(&mut disk, sector as u64))
                    .collect();
                if found == *stamps {
                    olds += 1;
                } else if found.iter().all(|&stamp| stamp == 0) {
                    news += 1;
                } else {
                    return Err(format!("{after}: a disk of some time ago"));
                }
            }
            Err(FtlError::NotFormatted) => nones += 1,
            Err(error) => return Err(format!("{after}: {error}")),
        }
        if !lost {
            break;
        }
    }
    Ok([olds, nones, news])
}

/// Pages of a checkpoint's delta run that had to go elsewhere twice lie in a block that no page announced. The
/// root must not say that replay begins there: no mount would find it.
#[test]
fn a_format_in_which_any_three_programs_fail_leaves_the_new_disk() {
    let fails = |faults: Faults| {
        for first in 0..8 {
            for second in 0..8 {
                for third in 0..8 {
                    let mut platform = platform(geometry());
                    let mut after = 0;
                    for gap in [first, second, third] {
                        let op = FaultOp::Program;
                        after += gap;
                        platform.nand_mut().inject(Fault { op, after });
                        after += 1;
                    }
                    let new = format(&mut platform, faults);
                    assert!(new.is_ok(), "{first} {second} {third}");
                    drop(new);
                    let nand = platform.into_nand().cut(first).unwrap();
                    if let Err(error) = mount(nand) {
                        return Err(format!("{first}, {second}, {third}: {error}"));
                    }
                }
            }
        }
        Ok(())
    };
    fails(Faults::default()).unwrap();
    let faults = Faults {
        root_astray: true,
        ..Faults::default()
    };
    println!("{}", fails(faults).unwrap_err());
    steadfast_testkit::caught_in("ftl", &faults);
}
