//! Without a log: threads that commit, write data and flush, and the flusher, under explored schedules. Each
//! flush of the device is a state that a crash may leave, and is looked at.

#[path = "../suite/home/device.rs"]
mod device;

use device::{Epochs, META, VOLUME, copies, look, number};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, Snapshot};
use steadfast_journal::{
    Config, Credits, EPOCH_BLOCKS_MIN, Error, Faults, Journal, Kind, META_BYTES, StreamId,
};

/// Moves an amount between two blocks that others use, too. An acknowledged move is durable then.
fn transfer(device: &Epochs, journal: &Journal, thread: u32, round: u64) -> Result<(), Error> {
    let credits = Credits {
        log_bytes: 2 * 64,
        data_blocks: 0,
    };
    let mut op = journal.begin(StreamId(thread), credits)?;
    op.add(BlockNo(round % 3), thread as usize * 8, -1)?;
    op.add(BlockNo(3 + round % 2), thread as usize * 8, 1)?;
    let ticket = op.commit();
    if round % 2 == 1 {
        journal.wait(ticket)?;
        let at = thread as usize * 8;
        let moved = (0..=round).filter(|other| other % 3 == round % 3).count() as u64;
        let durable = number(&device.durable(BlockNo(round % 3)), at);
        if durable.wrapping_neg() < moved {
            let mut state = device.state.lock().unwrap();
            let what = format!("{durable} of {moved} acknowledged transfers are durable");
            state.broken.get_or_insert(what);
        }
    }
    Ok(())
}

/// Names new data, so much that the epoch fills.
fn name(journal: &Journal, round: u64) -> Result<(), Error> {
    let credits = Credits {
        log_bytes: 64 + 48,
        data_blocks: 900,
    };
    let mut op = journal.begin(StreamId(7), credits)?;
    let (first, stamp) = (META + 900 * round, round + 1);
    let mut block = [0; BLOCK_SIZE];
    block[..8].copy_from_slice(&stamp.to_le_bytes());
    block[2048..2056].copy_from_slice(&stamp.to_le_bytes());
    op.write_around(BlockNo(first), copies(block, 900))?;
    let mut named = first.to_le_bytes().to_vec();
    named.extend(stamp.to_le_bytes());
    op.write(BlockNo(0), Kind::Meta, META_BYTES - 16, &named)?;
    let _ = op.commit();
    if round == 1 {
        journal.sync(StreamId(7), &[])?;
    }
    Ok(())
}

/// One schedule; returns the invalid state that a flush left, if any.
fn run(faults: Faults) -> Option<String> {
    let device = Epochs::new(EPOCH_BLOCKS_MIN);
    device.rollback().unwrap();
    let config = Config::without_log(VOLUME)
        .without_workers()
        .with(|config| {
            config.faults = faults;
        });
    let below: Arc<dyn BlockDevice> = device.clone();
    let journal = Journal::open(below, config).unwrap().0;
    journal.start_workers();
    let mut threads: Vec<_> = (0..2)
        .map(|thread| {
            let (device, journal) = (Arc::clone(&device), journal.clone());
            shuttle::thread::spawn(move || {
                (0..4).try_for_each(|round| transfer(&device, &journal, thread, round))
            })
        })
        .collect();
    threads.push({
        let journal = journal.clone();
        shuttle::thread::spawn(move || (0..3).try_for_each(|round| name(&journal, round)))
    });
    let ends = threads.into_iter().map(|thread| thread.join().unwrap());
    let failed: Vec<Error> = ends.filter_map(Result::err).collect();
    if let Some(error) = failed.into_iter().next().or(journal.close().err()) {
        return Some(error.to_string());
    }
    // Everything is durable in the end.
    device.rollback().unwrap();
    device.broken().or_else(|| look(&device.now).err())
}

fn explore(faults: Faults, schedules: usize) -> u64 {
    let broken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&broken);
    let each = move || {
        if run(faults).is_some() {
            count.fetch_add(1, SeqCst);
        }
    };
    shuttle::check_random(each, schedules);
    broken.load(SeqCst)
}

#[test]
fn without_a_log_each_flush_holds_whole_batches() {
    assert_eq!(explore(Faults::default(), 400), 0);
}

#[test]
fn without_a_log_a_flush_in_the_middle_of_a_batch_is_found() {
    let faults = Faults {
        flush_between: true,
        ..Faults::default()
    };
    assert!(explore(faults, 30) > 0);
    steadfast_testkit::caught_in("journal", &faults);
}

#[test]
fn without_a_log_an_acknowledgement_before_the_epoch_is_durable_is_found() {
    let faults = Faults {
        acknowledge_closed: true,
        ..Faults::default()
    };
    assert!(explore(faults, 300) > 0);
    steadfast_testkit::caught_in("journal", &faults);
}

#[test]
fn without_a_log_a_batch_laid_on_images_of_the_one_before_the_last_is_found() {
    let faults = Faults {
        settle_late: true,
        ..Faults::default()
    };
    assert!(explore(faults, 300) > 0);
    steadfast_testkit::caught_in("journal", &faults);
}
