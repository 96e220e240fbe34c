//! Free space: what the core promises whatever a policy proposes.
#![allow(clippy::unwrap_used, clippy::panic)]

use steadfast_flash::{Geometry, Latency, MemoryStore, Nand, Rng};
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

fn geometry() -> Geometry {
    Geometry {
        channels: 1,
        dies: 1,
        blocks: 64,
        pages: 16,
        sectors: 1,
        sector_bytes: 256,
        spare_bytes: 64,
    }
}

type Disk = Ftl<Emulated<MemoryStore>, Idle>;

fn bytes(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(32)
}

fn disk(epoch: u64) -> Disk {
    let geometry = geometry();
    let nand = Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry)).unwrap();
    let platform = Emulated::new(nand);
    let shape = platform.shape();
    let sectors = Limits::largest(&shape, epoch).unwrap().sectors;
    let volume = 7;
    Ftl::format(
        platform,
        shape,
        Idle,
        Options {
            sectors,
            epoch,
            region: None,
            volume,
        },
    )
    .unwrap()
}

fn mount(nand: Nand<MemoryStore>) -> Disk {
    let platform = Emulated::new(nand);
    let shape = platform.shape();
    Ftl::mount(platform, shape, Idle).unwrap()
}

fn read(disk: &mut Disk, sector: u64) -> u64 {
    let mut data = vec![1; 256];
    disk.read(sector, &mut data).unwrap();
    u64::from_le_bytes(data[..8].try_into().unwrap())
}

/// With a policy that moves nothing and a cut in every other epoch, blocks half filled took all room, those
/// too that metadata may claim: the next mount found no block for its delta run, and a sound memory
/// could not be mounted. A flush moves what it must by itself now, and leaves what others may claim.
#[test]
fn corner_48_cuts_in_every_other_epoch_leave_room_whatever_the_policy() {
    for (epoch, seed) in [8, 16]
        .into_iter()
        .flat_map(|e| (1..12).map(move |s| (e, s)))
    {
        let mut rng = Rng::new(seed);
        let mut disk = disk(epoch);
        let sectors = disk.limits().sectors;
        let mut golden = vec![0; sectors as usize];
        let (mut stable, mut stamp, mut crashes) = (golden.clone(), 0, 0);
        for step in 0..400 {
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
            match result.and_then(|()| disk.flush()) {
                Ok(()) => {
                    assert_eq!(disk.room(), epoch, "an epoch is cut short");
                    stable.clone_from(&golden);
                }
                Err(FtlError::Flash(_)) => {
                    crashes += 1;
                    let nand = disk.into_platform().into_nand().cut(rng.number());
                    disk = mount(nand.unwrap());
                    let found: Vec<u64> = (0..sectors).map(|s| read(&mut disk, s)).collect();
                    let whole = found == stable || (flushing && found == golden);
                    assert!(whole, "epochs of {epoch}, seed {seed}, step {step}");
                    stable.clone_from(&found);
                    golden = found;
                }
                Err(error) => panic!("epochs of {epoch}, seed {seed}, step {step}: {error}"),
            }
        }
        assert!(crashes > 20, "{crashes}");
    }
}

/// Each mount leaves a delta block. Those of a few in a row, some cut, took room that is data's, before a
/// checkpoint gave them back: a mount returned, and the first write found a disk that was full for ever. The seed is
/// of one that shows it.
#[test]
fn corner_48_mounts_in_a_row_leave_room() {
    let plan = &plans()[2];
    let report = run(plan, 120, 21_000, Faults::default()).unwrap();
    assert!(report.crashes > 10, "{report:?}");
}
