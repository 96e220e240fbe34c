//! Formatting over an older disk: at every crash there is the old disk, none, or the new one.

use crate::common::{EPOCH, Error, bytes, disk, mount, put, read};
use steadfast_flash::{Fault, FaultOp, FlashError, MemoryStore, Nand};
use steadfast_ftl::{Emulated, Ftl, FtlError, Limits, Options, Tuned};

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

fn format(platform: &mut Emulated<MemoryStore>) -> Result<New<'_>, Error> {
    let shape = platform.shape();
    let options = Options {
        sectors: Limits::largest(&shape, EPOCH).unwrap().sectors,
        epoch: EPOCH,
        region: None,
        volume: 8,
    };
    Ftl::format(platform, shape, Tuned::new(shape.dies), options)
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
        let mut new = format(&mut platform).unwrap();
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
    let (nand, stamps) = old();
    let [mut olds, mut nones, mut news] = [0; 3];
    for operations in 0.. {
        let mut cut = nand.clone();
        cut.cut_after(operations);
        let mut platform = Emulated::new(cut);
        let done = format(&mut platform);
        let lost = matches!(done, Err(FtlError::Flash(FlashError::PowerLost)));
        assert!(lost || done.is_ok());
        drop(done);
        let after = format!("behind {operations} operations");
        match mount(platform.into_nand().cut(operations).unwrap()) {
            Ok(mut disk) => {
                let found: Vec<u64> = (0..stamps.len())
                    .map(|sector| read(&mut disk, sector as u64))
                    .collect();
                if found == stamps {
                    olds += 1;
                } else {
                    assert!(found.iter().all(|&stamp| stamp == 0), "{after}");
                    news += 1;
                }
            }
            Err(FtlError::NotFormatted) => nones += 1,
            Err(error) => panic!("{after}: {error}"),
        }
        if !lost {
            break;
        }
    }
    assert!(olds > 0 && nones > 0 && news > 0, "{olds} {nones} {news}");
}
