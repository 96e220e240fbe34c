//! An error of a program concerns its own operation: the journal refuses that one and goes on.
#![cfg(not(feature = "shuttle"))]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::{Duration, Instant};
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, MemDevice};
use steadfast_journal::{Config, Credits, Error, Journal, Kind, Object, Op, Region, StreamId};

const REGION: Region = Region {
    headers: [BlockNo(1), BlockNo(90)],
    log: BlockNo(10),
    log_blocks: 64,
};
const VOLUME: [u8; 16] = [3; 16];
const BLOCKS: u64 = 400;
/// Free blocks from here on.
const DATA: u64 = 100;

fn config() -> Config {
    Config::new(REGION, VOLUME).without_workers()
}

fn fresh() -> (Arc<MemDevice>, Journal) {
    let device = Arc::new(MemDevice::new(BLOCKS));
    let (journal, _) = Journal::open_or_create(Arc::clone(&device) as _, config()).unwrap();
    (device, journal)
}

fn begin(journal: &Journal, log_bytes: u64, data_blocks: u64) -> Op<'_> {
    let credits = Credits {
        log_bytes,
        data_blocks,
    };
    journal.begin(StreamId(1), credits).unwrap()
}

fn put(journal: &Journal, at: u64, byte: u8) {
    let mut op = begin(journal, 200, 0);
    op.write(BlockNo(at), Kind::Data, 8, &[byte; 16]).unwrap();
    let ticket = op.commit();
    journal.wait(ticket).unwrap();
}

fn byte(journal: &Journal, at: u64) -> u8 {
    journal.read(BlockNo(at), Kind::Data).unwrap()[8]
}

fn over(result: steadfast_journal::Result<()>) {
    assert!(
        matches!(result, Err(Error::OverCredits { .. })),
        "{result:?}"
    );
}

/// 800 KB with a credit of one byte filled the log, and stopped the whole journal in a release build.
#[test]
fn an_operation_that_outgrows_its_credits_is_refused_and_nothing_else() {
    let (device, journal) = fresh();
    let mut op = begin(&journal, 1, 0);
    for at in DATA..DATA + 200 {
        over(op.write(BlockNo(at), Kind::Data, 0, &[1; BLOCK_SIZE]));
    }
    over(op.zero(BlockNo(DATA), Kind::Data));
    over(op.set_bits(BlockNo(DATA), 0, 1, true));
    over(op.add(BlockNo(DATA), 0, 1));
    over(op.write_latest(BlockNo(DATA), 0, &[1]));
    over(op.write_around(BlockNo(DATA), vec![Arc::new([1; BLOCK_SIZE])]));
    over(op.attach(
        1,
        Credits {
            log_bytes: 2,
            data_blocks: 0,
        },
    ));
    // It goes on without them, or with none: nothing happened.
    let _ = op.commit();
    put(&journal, DATA + 5, 7);
    assert_eq!((byte(&journal, DATA), byte(&journal, DATA + 5)), (0, 7));
    let block = Arc::new([1; BLOCK_SIZE]);
    let mut op = begin(&journal, 1000, 1);
    op.write(BlockNo(DATA), Kind::Data, 0, &[2; 300]).unwrap();
    over(op.write_around(BlockNo(DATA + 9), vec![Arc::clone(&block); 2]));
    drop(op);
    assert_eq!(byte(&journal, DATA), 0, "given up");
    journal.close().unwrap();
    let (journal, _) = Journal::open(device, config()).unwrap();
    assert_eq!(byte(&journal, DATA + 5), 7);
}

/// Credits pay for bytes that reach the log: an operation that writes the same bytes again does not pay again.
#[test]
fn credits_that_suffice_are_enough_to_the_last_byte() {
    let (_device, journal) = fresh();
    // Header of the block, header of the range, bytes.
    let mut op = begin(&journal, 24 + 4 + 100, 0);
    for round in 0..50 {
        op.write(BlockNo(DATA), Kind::Data, 0, &[round; 100])
            .unwrap();
    }
    over(op.write(BlockNo(DATA), Kind::Data, 200, &[1]));
    over(op.write(BlockNo(DATA + 1), Kind::Data, 0, &[1]));
    let ticket = op.commit();
    journal.wait(ticket).unwrap();
    assert_eq!(byte(&journal, DATA), 49);
}

/// Freeing costs where the log has patches of the blocks.
#[test]
fn frees_are_charged_for_their_blocks_in_the_log() {
    let (_device, journal) = fresh();
    for at in DATA..DATA + 4 {
        put(&journal, at, 1);
    }
    let mut op = begin(&journal, 3 * 24, 0);
    op.free(BlockNo(DATA + 10), 100).unwrap();
    over(op.free(BlockNo(DATA), 4));
    op.free(BlockNo(DATA), 3).unwrap();
    over(op.free(BlockNo(DATA + 3), 1));
    let ticket = op.commit();
    journal.wait(ticket).unwrap();
}

/// Story: an operation could write the journal's own headers and log; the next mount then found no journal.
#[test]
fn the_journals_own_blocks_and_those_outside_of_the_device_are_refused() {
    let (device, journal) = fresh();
    put(&journal, DATA, 1);
    let block = Arc::new([9; BLOCK_SIZE]);
    let everything = Credits {
        log_bytes: 20_000,
        data_blocks: 100,
    };
    for (at, count) in [
        (1, 1),
        (90, 1),
        (10, 1),
        (73, 1),
        (0, 2),
        (8, 3),
        (73, 2),
        (5, 395),
    ] {
        let own = |result: steadfast_journal::Result<()>| {
            assert!(
                matches!(result, Err(Error::JournalBlock { .. })),
                "{at}: {result:?}"
            );
        };
        let data = vec![Arc::clone(&block); count];
        let at = BlockNo(at);
        let mut op = journal.begin(StreamId(2), everything).unwrap();
        own(op.free(at, count as u64));
        own(op.write_around(at, data.clone()));
        if count == 1 {
            own(op.write(at, Kind::Data, 0, &[1]));
            own(op.write(at, Kind::Meta, 0, &[1]));
            own(op.write_latest(at, 0, &[1]));
            own(op.add(at, 0, 1));
            own(op.set_bits(at, 0, 1, true));
            own(op.zero(at, Kind::Data));
        }
        let _ = op.commit();
        own(journal.write_in_place(&[(at, data)]));
        own(journal.write_zeros(at, count as u64));
        own(journal.trim(at, count as u64));
    }
    let behind = |result: steadfast_journal::Result<()>| {
        assert!(
            matches!(result, Err(Error::OutOfRange { .. })),
            "{result:?}"
        );
    };
    for (at, count) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 1)] {
        let at = BlockNo(at);
        let mut op = journal.begin(StreamId(2), everything).unwrap();
        behind(op.free(at, count as u64));
        behind(op.write_around(at, vec![Arc::clone(&block); count]));
        if count == 1 {
            behind(op.zero(at, Kind::Data));
            behind(op.write(at, Kind::Data, 0, &[1]));
        }
        drop(op);
        behind(journal.write_zeros(at, count as u64));
        behind(journal.trim(at, count as u64));
    }
    put(&journal, DATA + 1, 2);
    journal.close().unwrap();
    let (journal, _) = Journal::open(device, config()).unwrap();
    assert_eq!((byte(&journal, DATA), byte(&journal, DATA + 1)), (1, 2));
}

/// A blank device was "damaged".
#[test]
fn a_blank_device_is_not_formatted_and_can_be_created_on() {
    let device = Arc::new(MemDevice::new(BLOCKS));
    let opened = Journal::open(Arc::clone(&device) as _, config());
    assert!(matches!(opened.map(drop), Err(Error::NotFormatted)));
    let read_only = config().with(|config| config.read_only = true);
    let opened = Journal::open_or_create(Arc::clone(&device) as _, read_only);
    assert!(matches!(opened.map(drop), Err(Error::NotFormatted)));
    for value in 1..4 {
        let (journal, _) = Journal::open_or_create(Arc::clone(&device) as _, config()).unwrap();
        assert_eq!(byte(&journal, DATA), value - 1, "what is there stays");
        put(&journal, DATA, value);
        journal.abandon();
    }
}

/// Missing headers are damage while the log holds anything: its content may have been acknowledged.
#[test]
fn a_region_that_is_not_blank_is_never_formatted() {
    for dirt in [1, 90, 10, 40, 73] {
        let (device, journal) = fresh();
        put(&journal, DATA, 1);
        journal.abandon();
        let zeros = [0; BLOCK_SIZE];
        for at in [1, 90].into_iter().chain(10..74) {
            device.write(BlockNo(at), &[&zeros]).unwrap();
        }
        let mut block = zeros;
        block[4000] = 1;
        device.write(BlockNo(dirt), &[&block]).unwrap();
        let before = device.to_bytes();
        for _ in 0..2 {
            let opened = Journal::open_or_create(Arc::clone(&device) as _, config());
            assert!(
                matches!(opened.map(drop), Err(Error::Corrupt { .. })),
                "{dirt}"
            );
        }
        assert!(device.to_bytes() == before, "{dirt}: written over");
    }
}

/// Story: nothing was committed at the interval unless the caller called `start_workers`.
#[test]
fn the_commit_interval_holds_without_further_ado() {
    let device = Arc::new(MemDevice::new(BLOCKS));
    let config = Config::new(REGION, VOLUME)
        .with(|config| config.commit_interval = Duration::from_millis(1));
    let (journal, _) = Journal::open_or_create(device, config).unwrap();
    let mut op = begin(&journal, 100, 0);
    op.relate(Object::Key(1, 2), steadfast_journal::Access::Exclusive);
    op.write(BlockNo(DATA), Kind::Data, 0, &[1]).unwrap();
    let ticket = op.commit();
    let begun = Instant::now();
    while journal.are_durable(&[ticket]) != [true] {
        assert!(begun.elapsed() < Duration::from_secs(300), "never");
        std::thread::sleep(Duration::from_millis(1));
    }
    journal.close().unwrap();
}

/// Memory answered reads of a journal that was closed, perhaps long ago.
#[test]
fn a_closed_journal_answers_no_read() {
    let (_device, journal) = fresh();
    put(&journal, DATA, 1);
    journal.close().unwrap();
    let mut buf = [0; BLOCK_SIZE];
    let at = BlockNo(DATA);
    let closed = |result: steadfast_journal::Result<()>| {
        assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    };
    closed(journal.read(at, Kind::Data).map(drop));
    closed(journal.read_data(at, &mut buf));
    closed(journal.read_data_kept(at, &mut buf));
    for answer in journal.read_scattered(&[at, at], Kind::Data) {
        closed(answer.map(drop));
    }
}
