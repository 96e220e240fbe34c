//! Devices that fail, logs that rot: errors are sticky, acknowledged operations survive, and
//! opening any log gives a typed error or a prefix of the operations.
#![cfg(not(feature = "shuttle"))]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, DeviceOp};
use steadfast_journal::{
    Access, Config, Credits, Error, Journal, Kind, Object, Region, Result, StreamId, seal,
};
use steadfast_sim::{CrashImage, Fault, Image, Limits, SimDevice};
use steadfast_testkit::Random;

const VOLUME: [u8; 16] = [3; 16];
const REGION: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(2),
    log_blocks: 64,
};
const META: u64 = 66;
const SLOTS: u64 = 4;
const POOL: u64 = 80;
const BLOCKS: u64 = 160;

fn open(device: Arc<dyn BlockDevice>) -> Result<(Journal, steadfast_journal::Recovery)> {
    Journal::open(device, Config::new(REGION, VOLUME).without_workers())
}

fn format(volume: [u8; 16]) -> SimDevice {
    let sim = SimDevice::new(BLOCKS);
    Journal::format(&sim, &REGION, &volume).unwrap();
    for slot in 0..SLOTS {
        let at = BlockNo(META + slot);
        let mut block = [0; BLOCK_SIZE];
        seal(&volume, at, &mut block);
        sim.write(at, &[&block]).unwrap();
    }
    sim.flush().unwrap();
    SimDevice::from_image(sim.image())
}

/// Slot `value % SLOTS` becomes `value`; even values have a block of their own around the log.
fn put(journal: &Journal, value: u64) -> Result<()> {
    let credits = Credits {
        log_bytes: 500,
        data_blocks: 1,
    };
    let mut op = journal.begin(StreamId(0), credits)?;
    op.relate(Object::File(value % SLOTS), Access::Exclusive);
    let at = BlockNo(META + value % SLOTS);
    op.write(
        at,
        Kind::Meta,
        8 * (value as usize % 64),
        &value.to_le_bytes(),
    )?;
    op.write(at, Kind::Meta, 1024, &value.to_le_bytes())?;
    if value.is_multiple_of(2) {
        let block = Arc::new([value as u8; BLOCK_SIZE]);
        op.write_around(BlockNo(POOL + value), vec![block])?;
    }
    let _ = op.commit();
    Ok(())
}

fn slots(journal: &Journal) -> Result<[u64; SLOTS as usize]> {
    let mut out = [0; SLOTS as usize];
    for slot in 0..SLOTS {
        let block = journal.read(BlockNo(META + slot), Kind::Meta)?;
        let value = u64::from_le_bytes(block[1024..1032].try_into().unwrap());
        out[slot as usize] = value;
        if value != 0 && value.is_multiple_of(2) {
            let mut data = [0; BLOCK_SIZE];
            journal.read_data(BlockNo(POOL + value), &mut data)?;
            assert_eq!(
                data, [value as u8; BLOCK_SIZE],
                "value {value} lost its block"
            );
        }
    }
    Ok(out)
}

/// The slots after values `1..=n` without the `skipped` ones.
fn after(n: u64, skipped: &[u64]) -> [u64; SLOTS as usize] {
    let mut out = [0; SLOTS as usize];
    for value in (1..=n).filter(|v| !skipped.contains(v)) {
        out[(value % SLOTS) as usize] = value;
    }
    out
}

/// The workload's view of one planned failure.
struct Seen {
    /// Values put before the journal failed, without the skipped ones.
    put: u64,
    skipped: Vec<u64>,
    acknowledged: u64,
    failed: bool,
}

fn work(journal: &Journal) -> Seen {
    let mut seen = Seen {
        put: 0,
        skipped: Vec::new(),
        acknowledged: 0,
        failed: false,
    };
    for value in 1..=14 {
        match put(journal, value) {
            Ok(()) => {
                assert!(!seen.failed, "an operation began after the failure");
                seen.put = value;
            }
            // A read error concerns its operation alone.
            Err(_) if journal.failed().is_none() => {
                seen.put = value;
                seen.skipped.push(value);
            }
            Err(_) => seen.failed = true,
        }
        let result = match value % 4 {
            0 => journal.checkpoint(),
            1 | 2 => journal.sync(StreamId(0), &[]),
            _ => continue,
        };
        match result {
            Ok(()) if seen.failed => panic!("success after the failure"),
            Ok(()) if value % 4 != 0 => seen.acknowledged = seen.put,
            Ok(()) => {}
            Err(_) => seen.failed = true,
        }
    }
    assert_eq!(journal.failed().is_some(), seen.failed);
    if seen.failed {
        for _ in 0..2 {
            assert!(journal.sync(StreamId(0), &[]).is_err());
            assert!(journal.sync_all().is_err());
            assert!(journal.checkpoint().is_err());
            assert!(journal.reclaim().is_err());
            assert!(put(journal, 15).is_err());
        }
        assert!(journal.close().is_err());
    }
    seen
}

fn survives(image: impl Into<CrashImage>, seen: &Seen, name: &str) {
    let (journal, _) = open(Arc::new(SimDevice::from_image(image)))
        .unwrap_or_else(|e| panic!("{name}: no recovery: {e}"));
    let found = slots(&journal).unwrap_or_else(|e| panic!("{name}: {e}"));
    let legal = (seen.acknowledged..=seen.put).any(|n| found == after(n, &seen.skipped));
    assert!(
        legal,
        "{name}: {found:?} is no prefix from {} on (skipped {:?})",
        seen.acknowledged, seen.skipped
    );
}

#[test]
fn corner_14_any_failed_request_is_sticky_and_loses_nothing_acknowledged() {
    let base = format(VOLUME).image();
    for op in [DeviceOp::Read, DeviceOp::Write, DeviceOp::Flush] {
        let mut n = 0;
        loop {
            n += 1;
            let sim = Arc::new(SimDevice::from_image(base.clone()));
            let (journal, _) = open(sim.clone()).unwrap();
            let before = sim.counts();
            sim.inject(Fault::nth(op, n));
            sim.set_seed(n);
            let seen = work(&journal);
            let after = sim.counts();
            let name = format!("{op} {n}");
            let mut explorer = sim.explorer();
            let limits = Limits {
                exhaustive_writes: 4,
                sampled: 12,
                tears: true,
                seed: n,
            };
            for image in explorer.cut(usize::MAX).images(&limits) {
                survives(image, &seen, &name);
            }
            survives(sim.image(), &seen, &name);
            let requests = match op {
                DeviceOp::Read => after.reads - before.reads,
                DeviceOp::Write => after.writes - before.writes,
                _ => after.flushes - before.flushes,
            };
            assert!(
                seen.failed || op == DeviceOp::Read || requests < n,
                "{name}: unnoticed"
            );
            if requests < n {
                break;
            }
        }
        assert!(n > 4, "{op}: only {n} requests were reached");
    }
}

/// A disk whose log holds `n` records of one value each, from log position 0 on.
fn logged(n: u64) -> Image {
    let sim = Arc::new(format(VOLUME));
    let (journal, _) = open(sim.clone()).unwrap();
    for value in 1..=n {
        put(&journal, value).unwrap();
        journal.sync_all().unwrap();
    }
    sim.image()
}

fn flip(image: &Image, at: u64, offset: usize) -> Image {
    let mut bytes = image.to_bytes();
    bytes[at as usize * BLOCK_SIZE + offset] ^= 0x40;
    Image::from_bytes(&bytes)
}

#[test]
fn corner_12_a_failed_request_during_recovery_is_an_error_and_never_an_end() {
    let image = logged(9);
    for op in [DeviceOp::Read, DeviceOp::Write, DeviceOp::Flush] {
        for n in 1.. {
            let sim = Arc::new(SimDevice::from_image(image.clone()));
            sim.inject(Fault::nth(op, n));
            let opened = open(sim.clone());
            sim.clear_faults();
            match opened {
                Err(Error::Device(_)) => {}
                Err(other) => panic!("{op} {n}: {other}"),
                Ok((journal, recovery)) => {
                    assert!(n > 2, "{op} {n}: the failure was ignored");
                    assert_eq!(
                        (slots(&journal).unwrap(), recovery.records),
                        (after(9, &[]), 9)
                    );
                    break;
                }
            }
            let (journal, _) = open(sim).unwrap();
            assert_eq!(slots(&journal).unwrap(), after(9, &[]), "{op} {n}");
        }
    }
}

#[test]
fn corner_12_rot_before_a_valid_record_is_corruption_and_a_torn_record_is_the_end() {
    let image = logged(5);
    for offset in [0, 16, 40, 60, 90, 112, 130] {
        for record in 0..4 {
            let rotten = flip(&image, REGION.log.0 + record, offset);
            let opened = open(Arc::new(SimDevice::from_image(rotten)));
            assert!(
                matches!(opened, Err(Error::Corrupt { .. })),
                "record {record}, byte {offset}"
            );
        }
        let torn = flip(&image, REGION.log.0 + 4, offset);
        let (journal, recovery) = open(Arc::new(SimDevice::from_image(torn))).unwrap();
        assert_eq!(
            (slots(&journal).unwrap(), recovery.records),
            (after(4, &[]), 4)
        );
    }
}

#[test]
fn recovery_that_goes_on_after_a_bad_record_is_noticed() {
    let rotten = flip(&logged(5), REGION.log.0 + 2, 120);
    let mut config = Config::new(REGION, VOLUME).without_workers();
    config.faults.replay_past_bad = true;
    let (journal, _) = Journal::open(Arc::new(SimDevice::from_image(rotten)), config).unwrap();
    assert_ne!(
        slots(&journal).unwrap(),
        after(5, &[]),
        "acknowledged values are missing"
    );
    steadfast_testkit::caught("journal.replay_past_bad");
}

#[test]
fn corner_12_a_torn_tail_header_counts_for_nothing() {
    let sim = Arc::new(format(VOLUME));
    let (journal, _) = open(sim.clone()).unwrap();
    let mut images = Vec::new();
    for value in 1..=12 {
        put(&journal, value).unwrap();
        journal.sync_all().unwrap();
        if value % 3 == 0 {
            journal.checkpoint().unwrap();
            images.push((value, sim.image()));
        }
    }
    for (value, image) in images {
        let torn: Vec<_> = (0..2)
            .map(|slot| flip(&image, slot, 60))
            .map(|image| open(Arc::new(SimDevice::from_image(image))))
            .collect();
        for opened in torn {
            let (journal, _) = opened.unwrap();
            assert_eq!(slots(&journal).unwrap(), after(value, &[]));
        }
        let both = flip(&flip(&image, 0, 60), 1, 100);
        let opened = open(Arc::new(SimDevice::from_image(both)));
        assert!(matches!(opened, Err(Error::Corrupt { .. })));
    }
}

#[test]
fn corner_11_records_of_other_laps_mounts_and_volumes_never_validate() {
    let mut sim = Arc::new(format(VOLUME));
    let mut value = 0u64;
    for mount in 0..4 {
        let (journal, _) = open(sim.clone()).unwrap();
        // More than a lap of one-block records, so that every log block holds a stale one.
        for _ in 0..70 {
            value = value % 60 + 1;
            let mut op = journal
                .begin(
                    StreamId(0),
                    Credits {
                        log_bytes: 200,
                        data_blocks: 0,
                    },
                )
                .unwrap();
            op.write(BlockNo(META), Kind::Meta, 1024, &value.to_le_bytes())
                .unwrap();
            let _ = op.commit();
            journal.sync_all().unwrap();
        }
        journal.checkpoint().unwrap();
        for i in 1..=mount {
            let mut op = journal
                .begin(
                    StreamId(0),
                    Credits {
                        log_bytes: 200,
                        data_blocks: 0,
                    },
                )
                .unwrap();
            op.write(
                BlockNo(META + 1),
                Kind::Meta,
                1024,
                &(2 * i + 1u64).to_le_bytes(),
            )
            .unwrap();
            let _ = op.commit();
            journal.sync_all().unwrap();
        }
        drop(journal);
        let crashed = sim.explorer().cut(usize::MAX).everything();
        sim = Arc::new(SimDevice::from_image(crashed));
        let (_, recovery) = open(sim.clone()).unwrap();
        assert_eq!(recovery.records, mount, "{recovery:?}");
    }
    // The log of another volume, formatted and used in the same way.
    let foreign = {
        let sim = Arc::new(format([4; 16]));
        let config = Config::new(REGION, [4; 16]).without_workers();
        let (journal, _) = Journal::open(sim.clone(), config).unwrap();
        for value in 1..=5 {
            put(&journal, value).unwrap();
            journal.sync_all().unwrap();
        }
        sim.image().to_bytes()
    };
    let sim = Arc::new(format(VOLUME));
    drop(open(sim.clone()).unwrap());
    let mut mixed = sim.image().to_bytes();
    let log = 2 * BLOCK_SIZE..66 * BLOCK_SIZE;
    mixed[log.clone()].copy_from_slice(&foreign[log]);
    let (journal, recovery) =
        open(Arc::new(SimDevice::from_image(Image::from_bytes(&mixed)))).unwrap();
    assert_eq!(
        (recovery.records, slots(&journal).unwrap()),
        (0, after(0, &[]))
    );
    let headers = Image::from_bytes(&foreign);
    assert!(matches!(
        open(Arc::new(SimDevice::from_image(headers))),
        Err(Error::Corrupt { .. })
    ));
}

#[test]
fn corner_35_any_bytes_in_the_log_or_its_headers_give_an_error_or_a_prefix() {
    let base = logged(12).to_bytes();
    let mut random = Random::from_state(0x2545_f491_4f6c_dd1d);
    let mut next = move |n: u64| random.below(n);
    let (mut errors, mut prefixes) = (0, 0);
    for _ in 0..600 {
        let mut bytes = base.clone();
        for _ in 0..=next(3) {
            // Mostly where records are.
            let block = match next(4) {
                0 => next(2),
                1 => 2 + next(64),
                _ => 2 + next(13),
            } as usize;
            let block = &mut bytes[block * BLOCK_SIZE..(block + 1) * BLOCK_SIZE];
            match next(4) {
                0 => block.iter_mut().for_each(|b| *b = next(256) as u8),
                1 => block[..512 * next(8) as usize].fill(0),
                2 => {
                    let (from, to) = (next(200) as usize, next(200) as usize);
                    block[from] = block[to];
                }
                _ => block[next(240) as usize] ^= 1 << next(8),
            }
        }
        match open(Arc::new(SimDevice::from_image(Image::from_bytes(&bytes)))) {
            Err(Error::Corrupt { .. }) => errors += 1,
            Err(other) => panic!("{other}"),
            Ok((journal, _)) => {
                let found = slots(&journal).unwrap();
                assert!((0..=12).any(|n| found == after(n, &[])), "{found:?}");
                prefixes += 1;
            }
        }
    }
    assert!(
        errors > 20 && prefixes > 20,
        "{errors} errors, {prefixes} prefixes"
    );
}
