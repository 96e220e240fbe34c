//! Without a log: batches go home, on a device that returns to its last flush. Each flush is a state
//! that a crash may leave, so each flush is looked at.
#![cfg(not(feature = "shuttle"))]
#![allow(clippy::unwrap_used, clippy::panic)]

mod device;

use device::{Epochs, META, VOLUME, copies, look, number};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, MemDevice, Snapshot};
use steadfast_journal::{
    Config, Credits, EPOCH_BLOCKS_MIN, Error, Faults, Journal, Kind, META_BYTES, StreamId,
};
use steadfast_testkit::Random;

fn open(device: &Arc<Epochs>, faults: Faults) -> Journal {
    device.rollback().unwrap();
    let config = Config::without_log(VOLUME)
        .without_workers()
        .with(|config| {
            config.faults = faults;
        });
    let device: Arc<dyn BlockDevice> = device.clone();
    Journal::open(device, config).unwrap().0
}

/// Threads that move amounts from block to block, and refer to new data.
fn work(device: &Arc<Epochs>, faults: Faults, threads: u64, rounds: u64) {
    let journal = open(device, faults);
    journal.start_workers();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let journal = &journal;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let mut below = |n: u64| random.number() % n;
                // New blocks, each used once: 1..4 for each round.
                let mut next = META + thread * 4 * rounds;
                for round in 0..rounds {
                    let credits = Credits {
                        log_bytes: 3 * 64 + 48,
                        data_blocks: 4,
                    };
                    let Ok(mut op) = journal.begin(StreamId(thread as u32), credits) else {
                        return;
                    };
                    let (from, to) = (below(META), below(META));
                    let offset = thread as usize * 8;
                    if from != to {
                        op.add(BlockNo(from), offset, -5).unwrap();
                        op.add(BlockNo(to), offset, 5).unwrap();
                    }
                    if below(2) == 0 {
                        // A block of its own for the references of each thread.
                        let (at, stamp) = (BlockNo(thread * (META / 8)), round + 1);
                        let count = 1 + below(4);
                        let mut block = [0; BLOCK_SIZE];
                        block[..8].copy_from_slice(&stamp.to_le_bytes());
                        block[2048..2056].copy_from_slice(&stamp.to_le_bytes());
                        let data = copies(block, count);
                        op.write_around(BlockNo(next), data).unwrap();
                        let mut named = next.to_le_bytes().to_vec();
                        named.extend(stamp.to_le_bytes());
                        op.write(at, Kind::Meta, META_BYTES - 16, &named).unwrap();
                        next += count;
                    }
                    let ticket = op.commit();
                    if below(8) == 0 && journal.wait(ticket).is_err() {
                        return;
                    }
                }
            });
        }
    });
    // A failure shows in the device's book, or here.
    if let Err(error) = journal.close() {
        let mut state = device.state.lock().unwrap();
        state.broken.get_or_insert(error.to_string());
    }
}

#[test]
fn every_flush_leaves_whole_batches_whatever_threads_do() {
    let device = Epochs::new(EPOCH_BLOCKS_MIN);
    work(&device, Faults::default(), 8, 600);
    assert_eq!(device.broken(), None);
    assert!(device.seen.load(Ordering::Relaxed) > 20);
    // Everything is there afterwards.
    device.rollback().unwrap();
    look(&device.now).unwrap();
}

/// The faults that the order of a batch excludes.
#[test]
fn batches_in_parts_others_bytes_and_late_data_are_seen() {
    let plain = Faults::default();
    for (faults, words) in [
        (
            Faults {
                flush_between: true,
                ..plain
            },
            "sum",
        ),
        (
            Faults {
                lay_current: true,
                ..plain
            },
            "",
        ),
        (
            Faults {
                data_late: true,
                ..plain
            },
            "other data",
        ),
    ] {
        let device = Epochs::new(EPOCH_BLOCKS_MIN);
        work(&device, faults, 8, 400);
        let what = device.broken().unwrap_or_default();
        assert!(
            !what.is_empty() && what.contains(words),
            "{faults:?}: {what}"
        );
        steadfast_testkit::caught_in("journal", &faults);
    }
}

/// Story: a batch was written in part when the device failed. If anything had been flushed then,
/// a crash would have left a part of the batch.
#[test]
fn a_batch_that_fails_half_way_is_never_flushed() {
    for writes in 0..8 {
        let device = Epochs::new(EPOCH_BLOCKS_MIN);
        let journal = open(&device, Faults::default());
        let change = |journal: &Journal| {
            let credits = Credits {
                log_bytes: 8 * 64,
                data_blocks: 0,
            };
            let mut op = journal.begin(StreamId(1), credits)?;
            // Far apart: a write for each.
            for at in (0..META).step_by(5) {
                let value = if at == 0 { -7 } else { i64::from(at == 5) * 7 };
                op.add(BlockNo(at), 0, value)?;
            }
            journal.wait(op.commit())
        };
        change(&journal).unwrap();
        let flushes = device.seen.load(Ordering::Relaxed);
        device.state.lock().unwrap().fails_after = Some(writes);
        assert!(change(&journal).is_err(), "after {writes} writes");
        device.state.lock().unwrap().fails_after = None;
        assert!(change(&journal).is_err() && journal.sync_all().is_err());
        assert!(journal.flush_in_place().is_err() && journal.close().is_err());
        assert_eq!(device.seen.load(Ordering::Relaxed), flushes);
        // The next mount returns to the last batch.
        let journal = open(&device, Faults::default());
        let block = journal.read(BlockNo(5), Kind::Meta).unwrap();
        assert_eq!(number(&block, 0), 7);
        change(&journal).unwrap();
        assert_eq!(device.broken(), None);
    }
}

/// Corner 47: writes reach the epoch's bound in the middle of it all. New data makes room with a
/// flush between batches; changes wait before they begin; nothing is refused or dropped.
#[test]
fn corner_47_an_epoch_that_fills_is_flushed_between_batches() {
    let device = Epochs::new(EPOCH_BLOCKS_MIN);
    let run = |faults| {
        let journal = open(&device, faults);
        let mut next = META;
        for round in 0..60u64 {
            let mut op = journal.begin(
                StreamId(1),
                Credits {
                    log_bytes: 2 * 64 + 48,
                    data_blocks: 256,
                },
            )?;
            let mut block = [0; BLOCK_SIZE];
            block[..8].copy_from_slice(&round.to_le_bytes());
            block[2048..2056].copy_from_slice(&round.to_le_bytes());
            op.write_around(BlockNo(next), copies(block, 256))?;
            let mut named = next.to_le_bytes().to_vec();
            named.extend(round.to_le_bytes());
            op.write(BlockNo(0), Kind::Meta, META_BYTES - 16, &named)?;
            op.commit();
            next += 256;
        }
        journal.close()
    };
    run(Faults::default()).unwrap();
    assert_eq!(device.broken(), None);
    let ignore = Faults {
        ignore_epoch: true,
        ..Faults::default()
    };
    let error = run(ignore).unwrap_err().to_string();
    assert!(error.contains("the epoch is full"), "{error}");
    steadfast_testkit::caught_in("journal", &ignore);
}

/// Corner 49: blocks are freed, used again, freed again, a few at a time and in any order. All blocks that are free
/// in the end are trimmed, and none that lives: the test looks at each flush.
#[test]
fn corner_49_freed_blocks_are_trimmed_unless_they_live_again() {
    for (trim_blocks, faults, found) in [
        (1, Faults::default(), false),
        (16, Faults::default(), false),
        (256, Faults::default(), false),
        (
            16,
            Faults {
                trim_again: true,
                ..Faults::default()
            },
            true,
        ),
        (
            1,
            Faults {
                trim_before: true,
                ..Faults::default()
            },
            true,
        ),
    ] {
        let device = Epochs::new(EPOCH_BLOCKS_MIN);
        device.rollback().unwrap();
        let config = Config::without_log(VOLUME)
            .without_workers()
            .with(|config| {
                config.faults = faults;
                config.trim_blocks = trim_blocks;
            });
        let below: Arc<dyn BlockDevice> = device.clone();
        let journal = Journal::open(below, config).unwrap().0;
        // Each of five metadata blocks names a run of 1 to 3 blocks, at two places in turn.
        let mut named = [None; 5];
        for round in 0..400u64 {
            let which = round * 3 % 5;
            let place = META + (which * 2 + round / 5 % 2) * 4;
            let count = 1 + round % 3;
            let credits = Credits {
                log_bytes: 5 * 64,
                data_blocks: 4,
            };
            let mut op = journal.begin(StreamId(1), credits).unwrap();
            let old = named[which as usize].take();
            if let Some((at, count)) = old {
                op.free(BlockNo(at), count).unwrap();
            }
            let mut bytes = [0; 16];
            // Every fifth names nothing from now on.
            if round % 5 != 0 {
                let mut block = [0; BLOCK_SIZE];
                block[..8].copy_from_slice(&round.to_le_bytes());
                block[2048..2056].copy_from_slice(&round.to_le_bytes());
                op.write_around(BlockNo(place), copies(block, count))
                    .unwrap();
                bytes[..8].copy_from_slice(&place.to_le_bytes());
                bytes[8..].copy_from_slice(&round.to_le_bytes());
                named[which as usize] = Some((place, count));
            }
            op.write(BlockNo(which), Kind::Meta, META_BYTES - 16, &bytes)
                .unwrap();
            let ticket = op.commit();
            if round % 3 == 0 {
                journal.wait(ticket).unwrap();
            }
        }
        journal.close().unwrap();
        assert_eq!(device.broken().is_some(), found, "{:?}", device.broken());
        if found {
            steadfast_testkit::caught_in("journal", &faults);
            continue;
        }
        let live: u64 = named.iter().flatten().map(|(_, count)| count).sum();
        let mut block = [0; BLOCK_SIZE];
        let mut held = 0;
        for at in META..META * 12 {
            device.now.read(BlockNo(at), &mut block).unwrap();
            held += u64::from(block != [0; BLOCK_SIZE]);
        }
        let stats = journal.stats();
        assert_eq!(held, live, "{stats:?}");
        assert_eq!(stats.trimmed_blocks, device.state.lock().unwrap().trimmed);
        assert!(stats.trims > 0 && stats.trims <= stats.trimmed_blocks);
    }
}

/// Two threads that add to the same blocks. The second begins to sync while the first one's epoch is on its way.
/// `between` is called when both epochs are. Returns the threads' results.
fn two_on_their_way(
    device: &Arc<Epochs>,
    journal: &Journal,
    between: impl FnOnce(),
) -> [Result<(), Error>; 2] {
    let credits = Credits {
        log_bytes: 2 * 64,
        data_blocks: 0,
    };
    let sync = |thread: u32| {
        let mut op = journal.begin(StreamId(thread), credits)?;
        op.add(BlockNo(1), thread as usize * 8, -3)?;
        op.add(BlockNo(2), thread as usize * 8, 3)?;
        journal.wait(op.commit())
    };
    device.behave(|state| state.held = true);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| sync(1));
        device.wait_for_closed(1);
        let second = scope.spawn(|| sync(2));
        device.wait_for_closed(2);
        between();
        device.behave(|state| state.held = false);
        [first.join().unwrap(), second.join().unwrap()]
    })
}

/// Number of durable transactions by the journal, of two.
fn acknowledged(journal: &Journal) -> usize {
    2 - journal.usage().2
}

#[test]
fn a_batch_is_written_while_another_is_on_its_way_and_both_are_acknowledged_when_durable() {
    let device = Epochs::new(EPOCH_BLOCKS_MIN);
    let journal = open(&device, Faults::default());
    let ends = two_on_their_way(&device, &journal, || {
        assert_eq!(acknowledged(&journal), 0);
        // The second batch is laid on the first one's images.
        assert_eq!(number(&device.durable(BlockNo(1)), 8), 0);
    });
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let block = device.durable(BlockNo(2));
    assert_eq!((number(&block, 8), number(&block, 16)), (3, 3));
    journal.close().unwrap();
    assert_eq!(device.broken(), None);
}

#[test]
fn batches_on_their_way_fail_with_the_first_and_nothing_is_acknowledged() {
    let device = Epochs::new(EPOCH_BLOCKS_MIN);
    let journal = open(&device, Faults::default());
    let ends = two_on_their_way(&device, &journal, || {
        device.behave(|state| state.epoch_fails = true);
    });
    assert!(ends.iter().all(Result::is_err), "{ends:?}");
    assert_eq!(acknowledged(&journal), 0);
    assert!(journal.sync_all().is_err() && journal.flush_in_place().is_err());
}

#[test]
fn batches_acknowledged_too_early_or_laid_on_old_images_are_seen() {
    let early = Faults {
        acknowledge_closed: true,
        ..Faults::default()
    };
    let device = Epochs::new(EPOCH_BLOCKS_MIN);
    let journal = open(&device, early);
    let _ = two_on_their_way(&device, &journal, || {
        assert!(acknowledged(&journal) > 0);
        assert_eq!(number(&device.durable(BlockNo(1)), 8), 0);
    });
    steadfast_testkit::caught_in("journal", &early);
    let late = Faults {
        settle_late: true,
        ..Faults::default()
    };
    let device = Epochs::new(EPOCH_BLOCKS_MIN);
    let journal = open(&device, late);
    let ends = two_on_their_way(&device, &journal, || {});
    let block = device.durable(BlockNo(2));
    let both = (number(&block, 8), number(&block, 16)) == (3, 3);
    assert!(!both || ends.iter().any(Result::is_err));
    steadfast_testkit::caught_in("journal", &late);
}

#[test]
fn a_device_without_snapshots_or_with_short_epochs_is_refused() {
    let plain: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(100));
    let short: Arc<dyn BlockDevice> = Epochs::new(EPOCH_BLOCKS_MIN - 1);
    for device in [plain, short] {
        let refused = Journal::open(device, Config::without_log(VOLUME).without_workers())
            .err()
            .unwrap();
        assert!(matches!(refused, Error::NoEpochs { .. }), "{refused}");
    }
}
