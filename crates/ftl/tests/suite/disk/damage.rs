//! Every kind of page, damaged: a typed error or a disk that works, never a panic; and, unless
//! checksums were forged, never bytes that a sector did not hold.

use super::common::{EPOCH, bytes, disk, mount, put, read, write};
use std::collections::{BTreeMap, BTreeSet};
use steadfast_flash::{Address, FlashError, MemoryStore, Nand, Rng};
use steadfast_ftl::{Bytes, FtlError, Page};

/// Volume number of `disk`, and the seal of roots.
const VOLUME: u64 = 7;
const ROOT_SEAL: u64 = 0x7374_6561_6466_6173;
const DATA: u8 = 1;
const TRIM: u8 = 2;
const ROOT: u8 = 8;
const PAGE_WORDS: u64 = 64;

/// A page's number in the layer's units, with 16 pages in a block.
fn number(at: Address) -> u64 {
    u64::from(at.block) << 4 | u64::from(at.page)
}

/// Every content of each sector.
type History = Vec<Vec<u64>>;

/// A memory with every kind of page, the contents of each sector, and the pages by kind.
fn image() -> (Nand<MemoryStore>, History, BTreeMap<u8, Vec<Address>>) {
    let mut disk = disk();
    let sectors = disk.limits().sectors;
    let mut history = vec![vec![0]; sectors as usize];
    let mut rng = Rng::new(5);
    for i in 0..3000 {
        let sector = rng.below(sectors / 2);
        put(&mut disk, sector, i + 1);
        history[sector as usize].push(i + 1);
        if i % 50 == 7 && disk.room() > 0 {
            disk.trim(sector, 1).unwrap();
            history[sector as usize].push(0);
        }
    }
    disk.flush().unwrap();
    let mut nand = disk.into_platform().into_nand();
    let kinds = kinds_of(&mut nand);
    (nand, history, kinds)
}

/// The pages with tags, by kind.
fn kinds_of(nand: &mut Nand<MemoryStore>) -> BTreeMap<u8, Vec<Address>> {
    let mut kinds: BTreeMap<u8, Vec<Address>> = BTreeMap::new();
    let mut page = vec![0; nand.geometry().raw_bytes()];
    for block in 0..nand.geometry().all_blocks() {
        for index in 0..nand.geometry().pages {
            let at = Address { block, page: index };
            nand.read(at, &mut page).unwrap();
            let tag = &page[PAGE_WORDS as usize * 8..];
            if tag[6..8] == 0x5346u16.to_le_bytes() {
                kinds.entry(tag[5]).or_default().push(at);
            }
        }
    }
    kinds
}

/// Mounts, reads everything, and goes on writing. Errors are fine.
fn use_it(
    nand: Nand<MemoryStore>,
    history: &[Vec<u64>],
    forged: bool,
) -> Result<(), FtlError<FlashError>> {
    let mut disk = mount(nand)?;
    for (sector, held) in history.iter().enumerate() {
        let mut data = vec![0; super::common::SECTOR];
        match disk.read(sector as u64, &mut data) {
            Ok(()) if forged => {}
            Ok(()) => assert!(
                held.iter().any(|&stamp| data == bytes(stamp)),
                "sector {sector}"
            ),
            Err(FtlError::Damaged { .. } | FtlError::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    for i in 0..6 * EPOCH {
        if disk.room() == 0 {
            disk.flush()?;
        }
        disk.write(i * 5 % (history.len() as u64), &bytes(i))?;
    }
    disk.flush()?;
    disk.check()
}

fn damage(rng: &mut Rng, page: &mut [u8]) {
    match rng.below(4) {
        0 => page.fill(0),
        1 => page.fill(0xFF),
        2 => {
            let at = rng.below(page.len() as u64) as usize;
            page[at] ^= 1 << rng.below(8);
        }
        _ => {
            let at = rng.below(page.len() as u64) as usize;
            page[at..]
                .iter_mut()
                .for_each(|byte| *byte = rng.number() as u8);
        }
    }
}

/// Changes words as a program with a mistake would: checksums hold.
fn forge(rng: &mut Rng, page: &mut [u8], kind: u8, at: u64) {
    let mut forged = Bytes(page.to_vec().into());
    for _ in 0..=rng.below(3) {
        let words = PAGE_WORDS + 7;
        let at = match rng.below(3) {
            0 => rng.below(words),
            1 => rng.below(16),
            _ => PAGE_WORDS + rng.below(7),
        };
        let old = forged.word(at);
        let new = match rng.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => rng.number(),
            3 => old.wrapping_add(1),
            4 => old ^ (1 << rng.below(64)),
            _ => rng.below(200) << 32 | rng.below(200),
        };
        forged.set_word(at, new);
    }
    forged.seal(if kind == ROOT { ROOT_SEAL } else { VOLUME }, at);
    page.copy_from_slice(&forged.0);
}

#[test]
fn every_kind_of_page_may_be_damaged_or_forged() {
    let (nand, history, kinds) = image();
    let found: BTreeSet<u8> = kinds.keys().copied().collect();
    assert_eq!(found, (1..=8).collect(), "not every kind of page is there");
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let rounds = if long { 3000 } else { 60 };
    let (mut refused, mut fine) = (0, 0);
    for (&kind, pages) in &kinds {
        for round in 0..rounds {
            let mut rng = Rng::new(u64::from(kind) << 32 | round);
            let forging = round % 2 == 1;
            let mut other = nand.clone();
            for _ in 0..=rng.below(4) {
                // The newest of a kind matter most.
                let from = pages.len().saturating_sub(30) as u64 * rng.below(2);
                let at = pages[(from + rng.below(pages.len() as u64 - from)) as usize];
                let change = |page: &mut [u8]| {
                    if forging {
                        forge(&mut rng, page, kind, number(at));
                    } else {
                        damage(&mut rng, page);
                    }
                };
                other.damage(at, change).unwrap();
            }
            match use_it(other, &history, forging) {
                Ok(()) => fine += 1,
                Err(FtlError::Flash(error)) => panic!("kind {kind}, round {round}: {error}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 10 && fine > 10, "{refused} {fine}");
}

/// Blocks of a disk without its roots are a damaged disk; a memory of garbage is none.
#[test]
fn any_garbage_is_no_disk() {
    let (nand, ..) = image();
    let mut rng = Rng::new(1);
    let mut other = nand.clone();
    let garbage = |nand: &mut Nand<MemoryStore>, rng: &mut Rng, blocks: std::ops::Range<u32>| {
        for block in blocks {
            for page in 0..16 {
                nand.damage(Address { block, page }, |p| damage(rng, p))
                    .unwrap();
            }
        }
    };
    other.sync().unwrap();
    garbage(&mut other, &mut rng, 0..4);
    let lost = mount(other.clone()).map(drop);
    assert!(
        matches!(
            lost,
            Err(FtlError::Corrupt {
                what: "root",
                block: 0..4,
                ..
            })
        ),
        "{lost:?}"
    );
    for block in 0..other.geometry().all_blocks() {
        for page in 0..16 {
            other
                .damage(Address { block, page }, |p| p.fill(rng.number() as u8))
                .unwrap();
        }
    }
    assert!(matches!(mount(other), Err(FtlError::NotFormatted)));
}

/// Checksums once covered the volume alone: if the memory put an older page with the same sector over the
/// newer one, whole, the page was accepted, and the old content read without an error.
#[test]
fn a_page_that_lies_elsewhere_than_it_was_programmed_is_damaged() {
    let mut disk = disk();
    let stamps = [1, 2];
    for stamp in stamps {
        write(&mut disk, 4, stamp);
        disk.flush().unwrap();
    }
    // Another mount puts the changes of the log's end into delta pages: the end is not looked at any more.
    let mut disk = mount(disk.into_platform().into_nand()).unwrap();
    assert_eq!(read(&mut disk, 4), 2);
    let mut nand = disk.into_platform().into_nand();
    let data = kinds_of(&mut nand).remove(&DATA).unwrap();
    let holds = |nand: &mut Nand<MemoryStore>, stamp: u64| {
        let mut page = vec![0; nand.geometry().raw_bytes()];
        let at = data.iter().find(|&&at| {
            nand.read(at, &mut page).unwrap();
            page.starts_with(&bytes(stamp))
        });
        (*at.unwrap(), page.clone())
    };
    let [(_, old), (new, _)] = stamps.map(|stamp| holds(&mut nand, stamp));
    nand.damage(new, |page| page.copy_from_slice(&old)).unwrap();
    let result = mount(nand).unwrap().read(4, &mut bytes(0));
    assert!(
        matches!(result, Err(FtlError::Damaged { sector: 4, .. })),
        "{result:?}"
    );
}

/// The length of a trimmed range, 2^31 and more, carried over into the sector when a mount turned the range
/// into a pair: an overflow in debug builds, else the change of another sector. The obligation about
/// pages that change the map could not be shown.
#[test]
fn a_trim_whose_length_reaches_into_its_sector_is_refused() {
    for range in [3 << 32 | 0x8000_0005, u64::MAX] {
        let mut disk = disk();
        write(&mut disk, 4, 2);
        disk.flush().unwrap();
        disk.trim(3, 1).unwrap();
        disk.flush().unwrap();
        assert_eq!(read(&mut disk, 4), 2);
        let mut nand = disk.into_platform().into_nand();
        let trims = kinds_of(&mut nand).remove(&TRIM).unwrap();
        let change = |page: &mut [u8]| {
            let mut forged = Bytes(page.to_vec().into());
            forged.set_word(0, range);
            forged.seal(VOLUME, number(trims[0]));
            page.copy_from_slice(&forged.0);
        };
        nand.damage(trims[0], change).unwrap();
        match mount(nand) {
            Err(FtlError::Corrupt { what, .. }) => assert_eq!(what, "page of trims"),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("a range of {range:x} was followed"),
        }
    }
}
