//! One bit rots in one page. A mount then returns to the newest flush, or refuses the disk and names the page. It
//! returns to the flush before only if the page is of the newest flush: this case looks like a torn program.

use super::common::{Disk, EPOCH, bytes, disk_on, geometry, mount, put, read};
use super::ends::with_region;
use std::collections::BTreeSet;
use steadfast_flash::{Address, Geometry, MemoryStore, Nand, Rng};
use steadfast_ftl::{Emulated, Faults, Ftl, FtlError, Tuned};

const TAG_AT: usize = 512;

fn one_die(blocks: u32) -> Geometry {
    Geometry {
        channels: 1,
        blocks,
        ..geometry()
    }
}

/// A memory, the state of the newest flush and of the one before, and the newest flush's data pages.
struct Aged {
    nand: Nand<MemoryStore>,
    newest: Vec<u64>,
    before: Vec<u64>,
    last: BTreeSet<u64>,
}

/// The pages that are not as an erase leaves them, by number.
fn programmed(nand: &Nand<MemoryStore>) -> Vec<(u64, Address, Vec<u8>)> {
    let mut nand = nand.clone().cut(0).unwrap();
    let g = *nand.geometry();
    let mut pages = Vec::new();
    for block in 0..g.all_blocks() {
        for page in 0..g.pages {
            let at = Address { block, page };
            let mut held = vec![0; g.raw_bytes()];
            nand.read(at, &mut held).unwrap();
            if held.iter().any(|&byte| byte != 0xFF) {
                pages.push((u64::from(block) << 4 | u64::from(page), at, held));
            }
        }
    }
    pages
}

/// Next step of a history at a flush.
enum Then {
    Goes,
    Crashes,
    Ends,
}

/// Flushes of a few random sectors each; the last comes after the rest of the history.
fn aged(
    mut disk: Disk,
    flushes: u64,
    per_flush: u64,
    spread: u64,
    then: impl Fn(u64) -> Then,
) -> Aged {
    let sectors = disk.limits().sectors;
    let mut newest = vec![0; sectors as usize];
    let mut before = newest.clone();
    let mut rng = Rng::new(flushes);
    let mut old = BTreeSet::new();
    for flush in 1..=flushes {
        before.clone_from(&newest);
        if flush == flushes {
            let nand = disk.platform().nand();
            old = programmed(nand)
                .into_iter()
                .map(|(_, _, held)| held)
                .collect();
        }
        for i in 0..per_flush {
            let sector = rng.below(spread.min(sectors));
            let stamp = flush * EPOCH + i;
            put(&mut disk, sector, stamp);
            newest[sector as usize] = stamp;
        }
        disk.flush().unwrap();
        match then(flush) {
            Then::Goes => {}
            Then::Crashes => {
                disk = mount(disk.into_platform().into_nand().cut(flush).unwrap()).unwrap();
            }
            Then::Ends => {
                disk.checkpoint().unwrap();
                disk = mount(disk.into_platform().into_nand().cut(flush).unwrap()).unwrap();
            }
        }
    }
    // Writes after a flush may be lost; all of them are here.
    let nand = durable(disk);
    let last = (programmed(&nand).into_iter())
        .filter(|(_, _, held)| matches!(held[TAG_AT + 5], 1 | 2) && !old.contains(held))
        .map(|(number, ..)| number)
        .collect();
    Aged {
        nand,
        newest,
        before,
        last,
    }
}

/// The memory with nothing under way.
fn durable(disk: Disk) -> Nand<MemoryStore> {
    let mut nand = disk.into_platform().into_nand();
    nand.sync_all().unwrap();
    nand.cut(0).unwrap()
}

#[derive(Default, Debug)]
struct Fates {
    newest: u64,
    before: u64,
    refused: u64,
}

/// Mounts with the page changed. `Err`: a result that no mount may have.
fn fate(
    aged: &Aged,
    at: Address,
    faults: Faults,
    change: impl Fn(&mut [u8]),
) -> Result<(), FateError> {
    let number = u64::from(at.block) << 4 | u64::from(at.page);
    let named = |block: u64, page: u64| block << 4 | page == number;
    let mut nand = aged.nand.clone();
    let mut whole = Vec::new();
    nand.damage(at, |page| {
        whole = page.to_vec();
        change(page);
    })
    .unwrap();
    let mut platform = Emulated::new(nand);
    let shape = platform.shape();
    let mut disk = match Ftl::mount_with(&mut platform, shape, Tuned::new(shape.dies), faults) {
        Ok(disk) => disk,
        Err(FtlError::Corrupt { block, page, .. }) if named(block, page) => {
            // Nothing was changed: with the page as it was, all is there.
            let mut nand = platform.into_nand();
            nand.damage(at, |page| page.copy_from_slice(&whole))
                .unwrap();
            let mut disk = mount(nand.cut(0).unwrap())
                .map_err(|e| FateError::Wrong(format!("for good: {e}")))?;
            for (sector, &stamp) in aged.newest.iter().enumerate() {
                if read(&mut disk, sector as u64) != stamp {
                    return Err(FateError::Wrong(format!(
                        "sector {sector} is lost for good"
                    )));
                }
            }
            return Err(FateError::Refused);
        }
        Err(error) => return Err(FateError::Wrong(error.to_string())),
    };
    let mut is = [true; 2];
    for sector in 0..aged.newest.len() {
        let mut data = vec![0; super::common::SECTOR];
        match disk.read(sector as u64, &mut data) {
            Ok(()) => {
                is[0] &= data == bytes(aged.newest[sector]);
                is[1] &= data == bytes(aged.before[sector]);
            }
            Err(FtlError::Damaged { block, page, .. } | FtlError::Corrupt { block, page, .. })
                if named(block, page) => {}
            Err(error) => return Err(FateError::Wrong(format!("reading {sector}: {error}"))),
        }
    }
    match is {
        [true, _] => Ok(()),
        [_, true] if aged.last.contains(&number) => Err(FateError::Before),
        _ => Err(FateError::Wrong("an older state".to_owned())),
    }
}

enum FateError {
    Refused,
    Before,
    Wrong(String),
}

fn sweep(aged: &Aged, faults: Faults) -> Result<Fates, String> {
    let mut fates = Fates::default();
    let mut rng = Rng::new(3);
    for (number, at, held) in programmed(&aged.nand) {
        let bit = rng.below(8 * held.len() as u64);
        let flip = |page: &mut [u8]| page[bit as usize / 8] ^= 1 << (bit % 8);
        match fate(aged, at, faults, flip) {
            Ok(()) => fates.newest += 1,
            Err(FateError::Refused) => fates.refused += 1,
            Err(FateError::Before) => fates.before += 1,
            Err(FateError::Wrong(what)) => {
                let kind = held[TAG_AT + 5];
                return Err(format!(
                    "a bit of {at} (page {number}, kind {kind}): {what}"
                ));
            }
        }
    }
    Ok(fates)
}

/// On one channel with one die the log goes on in one block. Story: a flipped bit of flush 3 of 20 silently took the
/// disk back to flush 2, and the mount made that permanent: it looked only at the page where the log ended.
#[test]
fn rot_is_not_taken_for_the_end_of_the_log() {
    let aged = aged(disk_on(one_die(48), EPOCH), 20, 1, 100, |_| Then::Goes);
    let fates = sweep(&aged, Faults::default()).unwrap();
    // All flushes but the last are missed; the last is one page.
    assert!(fates.refused >= 19 && fates.before == 1, "{fates:?}");
    let faults = Faults {
        trust_the_end: true,
        ..Faults::default()
    };
    println!("{}", sweep(&aged, faults).unwrap_err());
    steadfast_testkit::caught_in("ftl", &faults);
}

/// Pages of several flushes in several blocks, delta pages, and mounts between.
#[test]
fn rot_is_found_after_mounts_and_graceful_ends() {
    for (channels, per_flush) in [(1, 5), (2, 3), (4, 7)] {
        let geometry = Geometry {
            channels,
            ..one_die(if channels == 1 { 64 } else { 48 })
        };
        for end in [u64::MAX, 12, 20] {
            let then = |flush| match flush {
                7 | 15 => Then::Crashes,
                _ if flush == end => Then::Ends,
                _ => Then::Goes,
            };
            let aged = aged(disk_on(geometry, EPOCH), 20, per_flush, 60, then);
            let fates = sweep(&aged, Faults::default())
                .unwrap_or_else(|what| panic!("{channels} channels, end {end}: {what}"));
            println!("{channels} {end}: {fates:?}");
            assert!(fates.refused > 0 && fates.newest > 4, "{fates:?}");
        }
    }
}

/// Blocks were erased and filled again, and the map was written many times: the pages of older roots and delta pages are gone.
#[test]
fn rot_is_found_in_a_memory_that_is_full_and_worn() {
    for (channels, spread) in [(1, 40), (1, 1000), (2, 1000)] {
        let geometry = Geometry {
            channels,
            ..one_die(48)
        };
        for flushes in [150, 200] {
            let then = |flush| {
                if flush % 70 == 0 {
                    Then::Crashes
                } else {
                    Then::Goes
                }
            };
            let aged = aged(disk_on(geometry, EPOCH), flushes, 17, spread, then);
            let fates = sweep(&aged, Faults::default()).unwrap_or_else(|what| {
                panic!("{channels} channels, {spread} sectors, {flushes} flushes: {what}")
            });
            println!("{channels} {spread} {flushes}: {fates:?}");
            assert!(fates.newest > 100 && fates.refused > 0, "{fates:?}");
        }
    }
}

/// Any history of flushes, crashes and graceful ends, with checkpoints one after the other.
#[test]
fn rot_is_found_after_any_history() {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let mut all = Fates::default();
    for seed in 0..if long { 200 } else { 12 } {
        let mut rng = Rng::new(seed);
        let geometry = Geometry {
            channels: 1 + seed as u32 % 2,
            ..one_die(48)
        };
        let [flushes, per_flush, spread] = [200, 20, 800].map(|most| 2 + rng.below(most));
        let crash = 3 + rng.below(80);
        let end = 2 + rng.below(60);
        let then = |flush| match flush {
            _ if flush % crash == 0 => Then::Crashes,
            _ if flush % end == 0 => Then::Ends,
            _ => Then::Goes,
        };
        let disk = with_region(geometry, Some(8)).unwrap();
        let aged = aged(disk, flushes, per_flush, spread, then);
        let fates = sweep(&aged, Faults::default()).unwrap_or_else(|what| {
            panic!("seed {seed}, {flushes} of {per_flush} in {spread}, {crash} {end}: {what}")
        });
        all.newest += fates.newest;
        all.before += fates.before;
        all.refused += fates.refused;
    }
    println!("{all:?}");
    assert!(
        all.newest > 1000 && all.refused > 20 && all.before > 2,
        "{all:?}"
    );
}

/// Story: the search for roots ended at an anchor's first damaged page, and ignored the roots after it.
#[test]
fn a_damaged_root_does_not_hide_newer_ones() {
    let aged = aged(
        with_region(one_die(48), Some(8)).unwrap(),
        300,
        20,
        400,
        |_| Then::Goes,
    );
    let mut roots: Vec<_> = (programmed(&aged.nand).into_iter())
        .filter(|(_, at, _)| at.block < 4)
        .collect();
    roots.sort_by_key(|(_, _, held)| {
        u64::from_le_bytes(held[TAG_AT + 8..TAG_AT + 16].try_into().unwrap())
    });
    assert!(roots.len() > 8, "{}", roots.len());
    roots.pop();
    let mut hidden = 0;
    for (_, at, _) in roots {
        let flip = |page: &mut [u8]| page[9] ^= 1;
        if fate(&aged, at, Faults::default(), flip).is_err() {
            panic!("the disk is not there when the older root at {at} is damaged");
        }
        let faults = Faults {
            damaged_root_ends: true,
            ..Faults::default()
        };
        hidden += u64::from(fate(&aged, at, faults, flip).is_err());
    }
    assert!(hidden > 0);
    steadfast_testkit::caught("ftl.damaged_root_ends");
}

/// Story: without any whole root, the message recommended mkfs, which erases the rest.
#[test]
fn a_disk_whose_roots_are_all_damaged_is_damaged_and_not_unformatted() {
    for flushes in [1, 80] {
        let aged = aged(disk_on(one_die(48), EPOCH), flushes, 20, 400, |_| {
            Then::Goes
        });
        let mut nand = aged.nand.clone();
        let roots: Vec<_> = (programmed(&aged.nand).into_iter())
            .filter(|(_, at, _)| at.block < 4)
            .collect();
        // The newest of a new disk; then all: after a format there is a root that says that there was no disk yet.
        for &(_, at, _) in roots.iter().rev() {
            nand.damage(at, |page| page[9] ^= 1).unwrap();
        }
        let Err(error) = mount(nand).map(drop) else {
            panic!("without a root there is a disk");
        };
        let FtlError::Corrupt {
            what: "root",
            block,
            page,
        } = error
        else {
            panic!("{error}");
        };
        let named = roots
            .iter()
            .any(|(number, ..)| block << 4 | page == *number);
        assert!(named, "{error}");
    }
    let aged = aged(disk_on(one_die(48), EPOCH), 2, 20, 400, |_| Then::Goes);
    let pages = programmed(&aged.nand);
    let newest = pages.into_iter().rfind(|(_, at, _)| at.block < 4);
    let (_, at, _) = newest.unwrap();
    let flip = |page: &mut [u8]| page[9] ^= 1;
    let refused = fate(&aged, at, Faults::default(), flip);
    assert!(
        matches!(refused, Err(FateError::Refused)),
        "the newest root of a new disk, at {at}"
    );
}
