//! Requests for any bytes, power cuts at any operation of the flash memory, and golden arrays: after each
//! cut the disk has the state of its last flush. Planted faults are found.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use steadfast_block::BLOCK_SIZE;
use steadfast_disk::{Fault, Refusal, ServedDisk, Trial, TrialOptions, Verdict, verify_disk};
use steadfast_flash::{Geometry, Latency, MemoryStore, Nand, Rng};
use steadfast_ftl::{Disk, Options, WhenFull};
use steadfast_vfs::Errno;
use xxhash_rust::xxh3::xxh3_64 as hash;

const BLOCKS: u64 = 96;
const BYTES: u64 = BLOCKS * BLOCK_SIZE as u64;
const EPOCH: u64 = 64;
const EXACT: WhenFull = WhenFull::Wait(Duration::ZERO);

fn format(when_full: WhenFull) -> Disk<MemoryStore> {
    let geometry = Geometry {
        channels: 2,
        dies: 1,
        blocks: 64,
        pages: 32,
        sectors: 1,
        sector_bytes: BLOCK_SIZE as u32,
        spare_bytes: 96,
    };
    let nand = Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry)).unwrap();
    let options = Options {
        sectors: BLOCKS,
        epoch: EPOCH,
        region: None,
        volume: 5,
    };
    Disk::format(nand, options, when_full).unwrap()
}

/// Findings after the cuts of one history.
#[derive(Default, Debug)]
struct Found {
    last_flush: u64,
    under_way: u64,
    later: u64,
    wrong: Vec<String>,
}

/// All of the disk. `None` if the power is gone.
fn content(served: &ServedDisk) -> Option<Vec<u8>> {
    let mut bytes = vec![0; BYTES as usize];
    served.read(0, &mut bytes).ok().map(|()| bytes)
}

/// Outcome of a request.
enum Outcome {
    Well,
    /// The epoch had no room for it.
    NoRoom,
    /// The power is gone.
    Dark,
}

/// One request, of bytes anywhere; returns the disk's content after it.
fn request(
    rng: &mut Rng,
    served: &ServedDisk,
    golden: &mut Vec<u8>,
    [faulty, whole]: [bool; 2],
) -> Outcome {
    let longest = [100, 5000, 40_000][rng.below(3) as usize];
    let offset = rng.below(BYTES);
    let offset = if rng.below(2) == 0 {
        offset / 4096 * 4096
    } else {
        offset
    };
    let mut count = (1 + rng.below(longest)).min(BYTES - offset);
    if rng.below(2) == 0 {
        count = count.next_multiple_of(4096).min(BYTES - offset);
    }
    let mut wanted = golden.clone();
    let range = offset as usize..(offset + count) as usize;
    // Zeros are three requests below.
    let kind = if whole { 2 } else { rng.below(10) };
    let done = match kind {
        0 => {
            wanted[range].fill(0);
            served.zero(offset, count)
        }
        1 => {
            let first = offset.next_multiple_of(4096) as usize;
            let last = (offset + count) as usize / 4096 * 4096;
            if first < last {
                wanted[first..last].fill(0);
            }
            served.trim(offset, count)
        }
        _ => {
            let stamp = rng.number() as u8;
            let data: Vec<u8> = (0..count).map(|i| stamp.wrapping_add(i as u8)).collect();
            wanted[range].copy_from_slice(&data);
            served.write(offset, &data)
        }
    };
    match done {
        Ok(()) => {
            *golden = wanted;
            Outcome::Well
        }
        Err(refusal) if refusal.errno() == Errno::NoSpc => {
            let Some(held) = content(served) else {
                return Outcome::Dark;
            };
            // Zeros may be there in part; of anything else nothing is.
            assert!(kind == 0 || faulty || held == *golden, "{refusal}");
            *golden = held;
            Outcome::NoRoom
        }
        Err(_) => {
            *golden = wanted;
            Outcome::Dark
        }
    }
}

/// Histories of requests with flushes, returns to the last flush, and cuts.
fn histories(when_full: WhenFull, fault: Option<Fault>, cuts: u64, seed: u64) -> Found {
    let exact = when_full == EXACT;
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("record");
    let options = TrialOptions {
        record: Some(record.clone()),
        cut: None,
        fault,
    };
    let mut rng = Rng::new(seed);
    let mut found = Found::default();
    let mut disk = format(when_full);
    for cut in 0..cuts {
        let trial = Trial::new(disk, exact, &options).unwrap();
        let served = ServedDisk::new(Arc::clone(&trial) as Arc<_>);
        let mut golden = content(&served).unwrap();
        let mut flushed = golden.clone();
        // After each request since the last flush, for disks that flush on their own.
        let mut moments = Vec::new();
        trial.plan_cut(rng.below(if exact { 300 } else { 900 }));
        let under_way = loop {
            // Where epochs end on their own, the client flushes seldom.
            let went = match rng.below(if exact { 16 } else { 64 }) {
                0..4 => match served.flush() {
                    Ok(()) => {
                        flushed.clone_from(&golden);
                        moments.clear();
                        Outcome::Well
                    }
                    Err(_) => break true,
                },
                4 if exact && rng.below(4) == 0 => match served.roll_back() {
                    Ok(()) => {
                        golden.clone_from(&flushed);
                        Outcome::Well
                    }
                    Err(_) => Outcome::Dark,
                },
                _ => request(&mut rng, &served, &mut golden, [fault.is_some(), !exact]),
            };
            match went {
                Outcome::Well => moments.push(hash(&golden)),
                Outcome::NoRoom => match served.flush() {
                    Ok(()) => flushed.clone_from(&golden),
                    Err(_) => break true,
                },
                Outcome::Dark => {
                    moments.push(hash(&golden));
                    break false;
                }
            }
        };
        drop(served);
        let Some(nand) = trial.into_disk().unwrap().into_nand() else {
            // It lost its power on its way to the last flush, and the memory with it.
            disk = format(when_full);
            continue;
        };
        let found_disk = Disk::mount(nand.cut(rng.number()).unwrap(), when_full).unwrap();
        let verdict = verify_disk(&record, &found_disk).unwrap();
        let found_disk = Arc::new(found_disk);
        if exact && fault.is_none() {
            let held = content(&ServedDisk::new(Arc::clone(&found_disk) as Arc<_>)).unwrap();
            let fits = held == flushed || (under_way && held == golden);
            assert!(fits, "cut {cut} of seed {seed}: {verdict:?}");
        }
        if !exact {
            // No request is there in part.
            let held = content(&ServedDisk::new(Arc::clone(&found_disk) as Arc<_>)).unwrap();
            let is_one = held == flushed || moments.contains(&hash(&held));
            assert!(is_one, "cut {cut} of seed {seed}: {verdict:?}");
        }
        disk = Arc::into_inner(found_disk).unwrap();
        match verdict {
            Verdict::LastFlush => found.last_flush += 1,
            Verdict::FlushUnderWay => found.under_way += 1,
            Verdict::Later(_) => found.later += 1,
            Verdict::Wrong(blocks) => found.wrong.push(format!("cut {cut}: {blocks} blocks")),
        }
    }
    found
}

fn rounds(short: u64) -> u64 {
    match std::env::var_os("STEADFAST_LONG") {
        Some(_) => short * 100,
        None => short,
    }
}

/// Histories that are known to meet each kind of cut, then others.
fn known_and_new() -> impl Iterator<Item = (u64, bool)> {
    let new = steadfast_testkit::seeds(3).map(|seed| (seed, false));
    (0..3).map(|seed| (seed, true)).chain(new)
}

#[test]
fn a_cut_returns_a_served_disk_to_exactly_its_last_flush() {
    for (seed, known) in known_and_new() {
        let found = histories(EXACT, None, rounds(100), seed);
        assert!(found.wrong.is_empty(), "{found:?}");
        assert_eq!(found.later, 0);
        assert!(
            !known || found.last_flush > 20 && found.under_way > 0,
            "{found:?}"
        );
    }
}

#[test]
fn if_full_epochs_flush_a_cut_returns_to_a_later_moment_at_the_most() {
    for (seed, known) in known_and_new() {
        let found = histories(WhenFull::Flush, None, rounds(60), seed);
        assert!(found.wrong.is_empty(), "{found:?}");
        assert!(
            !known || found.last_flush > 20 && found.later > 0,
            "{found:?}"
        );
    }
}

#[test]
fn every_planted_fault_is_found() {
    for fault in Fault::ALL {
        let found = histories(EXACT, Some(fault), 60, 7);
        assert!(!found.wrong.is_empty(), "{fault:?}: {found:?}");
        steadfast_testkit::caught_in("disk", &fault);
    }
}

#[test]
fn clients_that_write_parts_of_one_block_both_find_their_bytes() {
    let disk = Arc::new(format(WhenFull::Flush));
    let served = ServedDisk::new(Arc::clone(&disk) as Arc<_>);
    const PART: usize = 700;
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let served = &served;
            scope.spawn(move || {
                for round in 0..40u8 {
                    for part in 0..10 {
                        let at = (part * 4 + usize::from(thread)) * PART;
                        served
                            .write(at as u64, &[thread * 50 + round; PART])
                            .unwrap();
                    }
                    let whole = BLOCKS - 10 + u64::from(thread);
                    served.write(whole * 4096, &[round; 4096]).unwrap();
                    served.flush().unwrap();
                }
            });
        }
    });
    let held = content(&served).unwrap();
    for (at, part) in held[..40 * PART].chunks(PART).enumerate() {
        assert!(part.iter().all(|&b| b == (at % 4) as u8 * 50 + 39), "{at}");
    }
}

#[test]
fn requests_past_the_end_are_refused_and_change_nothing() {
    let served = ServedDisk::new(Arc::new(format(EXACT)));
    served.write(BYTES - 1, &[7]).unwrap();
    let refusals = [
        served.write(BYTES - 1, &[1, 2]),
        served.write(u64::MAX, &[1]),
        served.zero(BYTES - 4096, 4097),
        served.trim(0, BYTES + 1),
        served.trim(u64::MAX, u64::MAX),
        served.read(BYTES, &mut [0]),
        served.run(0, BYTES + 1).map(drop),
    ];
    for refusal in refusals {
        let refusal = refusal.unwrap_err();
        assert!(
            matches!(refusal, Refusal::PastEnd { bytes: BYTES, .. }),
            "{refusal}"
        );
        assert_eq!(refusal.errno(), Errno::NoSpc);
    }
    for nothing in [
        served.write(BYTES, &[]),
        served.zero(BYTES, 0),
        served.trim(3, 0),
        served.read(BYTES, &mut []),
    ] {
        nothing.unwrap();
    }
    let held = content(&served).unwrap();
    assert_eq!((held[BYTES as usize - 1], held[BYTES as usize - 2]), (7, 0));
    assert!(held[..BYTES as usize - 1].iter().all(|&b| b == 0));
}

#[test]
fn holes_are_distinguished_from_data() {
    let served = ServedDisk::new(Arc::new(format(EXACT)));
    assert_eq!(served.run(0, BYTES).unwrap(), (BYTES, true));
    served.write(4096 * 3 + 5, &[1; 4096]).unwrap();
    assert_eq!(served.run(0, BYTES).unwrap(), (4096 * 3, true));
    assert_eq!(
        served.run(4096 * 3 + 100, BYTES).unwrap(),
        (2 * 4096 - 100, false)
    );
    assert_eq!(served.run(4096 * 4, 4096 * 4 + 10).unwrap(), (10, false));
    served.zero(4096 * 4, 4096).unwrap();
    served.flush().unwrap();
    assert_eq!(
        served.run(4096 * 4, BYTES).unwrap(),
        (BYTES - 4096 * 4, true)
    );
    served.roll_back().unwrap();
    assert_eq!(served.run(4096 * 3, BYTES).unwrap(), (4096, false));
}
