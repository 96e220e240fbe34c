//! Large transactions: when one closes because of its size, and which thread writes it.

use super::*;
use steadfast_journal::{TXN_PIPELINED_BLOCKS, in_memory};

const RUN: u64 = 256;

/// Budget of uncommitted data, and the half of it that closes a transaction.
const BUDGET: u64 = 16_384;
const FULL: u64 = BUDGET / 2;

/// Journals data in runs of 256 blocks, until `blocks` blocks are in transactions.
fn write(journal: &Journal, blocks: u64) {
    write_as(journal, 0, 0, blocks);
}

/// The same in a stream, from a run on.
fn write_as(journal: &Journal, stream: u32, first: u64, blocks: u64) {
    for run in first..first + blocks / RUN {
        let credits = Credits {
            log_bytes: 300,
            data_blocks: RUN,
        };
        let mut op = journal.begin(StreamId(stream), credits).unwrap();
        let page = Arc::new([run as u8 + 1; BLOCK_SIZE]);
        let data = vec![page; RUN as usize];
        op.write_around(BlockNo(DATA + run * RUN), data).unwrap();
        let _ = op.commit();
    }
}

fn journal(blocks: u64) -> Journal {
    let device = Arc::new(MemDevice::new(DATA + blocks));
    prepare(&*device, &REGION);
    open_within(device, BUDGET)
}

fn open_within(device: Arc<dyn BlockDevice>, dirty_blocks: u64) -> Journal {
    let config = Config::new(REGION, VOLUME)
        .without_workers()
        .with(|config| config.dirty_blocks = dirty_blocks);
    Journal::open(device, config).unwrap().0
}

#[test]
fn with_workers_a_large_append_is_written_while_it_grows() {
    let blocks = FULL + RUN;
    let journal = journal(blocks);
    journal.start_workers();
    write(&journal, blocks);
    // Closed by the operation that would have made it larger; the flusher writes it, unasked.
    assert_eq!(journal.stats().transactions, 1);
    let begun = Instant::now();
    while journal.stats().commits == 0 {
        assert!(begun.elapsed() < PATIENCE, "no thread writes it");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(journal.stats().around_blocks, FULL);
    journal.sync_all().unwrap();
    assert_eq!(journal.stats().around_blocks, blocks);
    journal.close().unwrap();
}

/// A device that writes nothing while it is held.
struct Held {
    device: MemDevice,
    gate: Mutex<()>,
}

impl BlockDevice for Held {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.device.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        let _open = self.gate.lock().unwrap();
        self.device.write(at, segments)
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        self.device.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.device.discard(at, count)
    }
}

/// The next transaction was closed only when the one before was durable, and the device idle meanwhile.
#[test]
fn the_next_part_of_a_large_append_is_ready_while_one_is_written() {
    let blocks = FULL + 2 * TXN_PIPELINED_BLOCKS + RUN;
    let device = Arc::new(Held {
        device: MemDevice::new(DATA + blocks),
        gate: Mutex::new(()),
    });
    prepare(&*device, &REGION);
    let journal = open_within(device.clone(), BUDGET);
    journal.start_workers();
    let held = device.gate.lock().unwrap();
    write(&journal, blocks);
    // The second one closed early; a third one would only wait: it goes on growing.
    assert_eq!(journal.stats().transactions, 2);
    drop(held);
    journal.sync_all().unwrap();
    assert_eq!(journal.stats().around_blocks, blocks);
    journal.close().unwrap();
}

#[test]
fn without_workers_nothing_is_written_before_a_transaction_is_full() {
    let journal = journal(FULL);
    write(&journal, FULL);
    assert_eq!(journal.stats().transactions, 0);
    journal.sync_all().unwrap();
    assert_eq!(journal.stats().transactions, 1);
    journal.close().unwrap();
}

/// Without memory, the stream that holds most is committed, and not every stream.
#[test]
fn without_memory_the_largest_transaction_is_committed() {
    const SMALL: u64 = 16 * RUN;
    let device = Arc::new(MemDevice::new(DATA + SMALL));
    prepare(&*device, &REGION);
    let journal = open_within(device, SMALL);
    // Of 4096 blocks the last 512 are for streams with 64 at most.
    write_as(&journal, 1, 0, 6 * RUN);
    write_as(&journal, 2, 6, 7 * RUN);
    put(&journal, 3, META, 0, 1).unwrap();
    assert_eq!(journal.stats().commits, 0);
    write_as(&journal, 4, 13, 2 * RUN);
    let uncommitted = |stream: u32| {
        let counts = journal.stream_counts();
        let found = counts.iter().find(|(s, _)| *s == StreamId(stream));
        found.map(|(_, counts)| counts.uncommitted).unwrap()
    };
    assert_eq!([1, 2, 3, 4].map(uncommitted), [6, 0, 1, 2]);
    let (_, four) = journal.stream_counts().pop().unwrap();
    assert_eq!(four.waited_for, [(StreamId(2), 1)]);
}

#[test]
fn a_stream_that_holds_little_does_not_wait_for_memory_that_others_hold() {
    const SMALL: u64 = 16 * RUN;
    let device = Arc::new(MemDevice::new(DATA + SMALL));
    prepare(&*device, &REGION);
    let journal = open_within(device, SMALL);
    write_as(&journal, 1, 0, 7 * RUN);
    write_as(&journal, 2, 7, 7 * RUN);
    let credits = Credits {
        log_bytes: 300,
        data_blocks: 64,
    };
    let mut op = journal.begin(StreamId(3), credits).unwrap();
    let page = Arc::new([1; BLOCK_SIZE]);
    op.write_around(BlockNo(DATA + 15 * RUN), vec![page; 64])
        .unwrap();
    let _ = op.commit();
    assert_eq!((journal.stats().commits, journal.stats().waits), (0, 0));
}

/// Files that share blocks cost little log, and yet a note each that they were changed: removing millions
/// of them in one transaction once took gigabytes. A few ten thousand close nothing.
#[test]
fn a_transaction_of_a_million_objects_closes_before_it_is_synced() {
    let journal = journal(RUN);
    for operation in 0..2_200u64 {
        if operation == 200 {
            assert_eq!(journal.stats().transactions, 0);
        }
        let mut op = journal.begin(StreamId(0), small(200)).unwrap();
        for object in 0..500 {
            op.relate(Object::File(operation * 500 + object), Access::Exclusive);
        }
        op.write(BlockNo(META), Kind::Meta, 0, &operation.to_le_bytes())
            .unwrap();
        let _ = op.commit();
    }
    assert_eq!(journal.stats().transactions, 1);
    journal.close().unwrap();
}

/// Patches spread over many blocks close one, too, each of which stays in memory until it is durable.
#[test]
fn a_transaction_of_many_blocks_closes_before_it_is_synced() {
    const BOUND: u64 = 16_384;
    // A lane hands its operations to the core a few dozen at a time.
    const PATCHED: u64 = BOUND + 1000;
    let region = Region {
        log_blocks: 2048,
        ..REGION
    };
    let first = 2 + region.log_blocks;
    let device = Arc::new(MemDevice::new(first + PATCHED));
    Journal::format(&*device, &region, &VOLUME).unwrap();
    let (journal, _) =
        Journal::open(device, Config::new(region, VOLUME).without_workers()).unwrap();
    for at in first..first + PATCHED {
        if at == first + BOUND {
            assert_eq!(journal.stats().transactions, 0);
        }
        let mut op = journal.begin(StreamId(0), small(200)).unwrap();
        op.write(BlockNo(at), Kind::Data, 0, &[7; 8]).unwrap();
        let _ = op.commit();
    }
    assert_eq!(journal.stats().transactions, 1);
}

/// The next read returns the kept content, also if the block has got a new life in between.
#[test]
fn data_that_was_read_stays_in_memory_until_it_is_written_anew() {
    let device = Arc::new(MemDevice::new(DATA + 8));
    prepare(&*device, &REGION);
    for i in 0..8 {
        let block = [i as u8 + 1; BLOCK_SIZE];
        device.write(BlockNo(DATA + i), &[&block]).unwrap();
    }
    let journal = open(device);
    let mut found = vec![0; 8 * BLOCK_SIZE];
    let here = |at: BlockNo, found: &mut [u8]| {
        let mut read = Ok(());
        let here = in_memory(|| read = journal.read_data_kept(at, found));
        assert_eq!(here, read.is_ok(), "{read:?}");
        here
    };
    assert!(!here(BlockNo(DATA), &mut found));
    assert!(!in_memory(|| assert!(
        journal.read(BlockNo(DATA), Kind::Data).is_err()
    )));
    // A part first, so that the rest comes in two runs around it.
    let middle = BlockNo(DATA + 3);
    let part = &mut found[..2 * BLOCK_SIZE];
    journal.read_data_kept(middle, part).unwrap();
    assert!(here(middle, part));
    assert!(!here(BlockNo(DATA), &mut found));
    journal.read_data_kept(BlockNo(DATA), &mut found).unwrap();
    let whole: Vec<u8> = (1..=8).flat_map(|i| [i; BLOCK_SIZE]).collect();
    assert!(found == whole);
    let credits = Credits {
        log_bytes: 300,
        data_blocks: 1,
    };
    let mut op = journal.begin(StreamId(0), credits).unwrap();
    op.write_around(middle, vec![Arc::new([9; BLOCK_SIZE])])
        .unwrap();
    let _ = op.commit();
    assert!(here(BlockNo(DATA), &mut found));
    let new: Vec<u8> = [1, 2, 3, 9, 5, 6, 7, 8]
        .into_iter()
        .flat_map(|i| [i; BLOCK_SIZE])
        .collect();
    assert!(found == new);
}

/// The device is given several runs at once, in any order: of a block that several runs have, the newest must win.
#[test]
fn of_runs_that_overlap_the_newest_is_on_the_device() {
    let device = Arc::new(MemDevice::new(DATA + 4096));
    prepare(&*device, &REGION);
    let journal = open_within(Arc::clone(&device) as _, BUDGET);
    let runs = [(0, 3000), (100, 300), (350, 40), (2999, 200), (10, 1)];
    let mut expected = vec![0; 3199];
    for ((first, blocks), value) in runs.into_iter().zip(1..) {
        let credits = Credits {
            log_bytes: 300,
            data_blocks: blocks,
        };
        let mut op = journal.begin(StreamId(0), credits).unwrap();
        let page = Arc::new([value; BLOCK_SIZE]);
        op.write_around(BlockNo(DATA + first), vec![page; blocks as usize])
            .unwrap();
        let _ = op.commit();
        expected[first as usize..(first + blocks) as usize].fill(value);
    }
    journal.sync_all().unwrap();
    let mut block = [0; BLOCK_SIZE];
    for (at, value) in (DATA..).zip(expected) {
        device.read(BlockNo(at), &mut block).unwrap();
        assert!(block == [value; BLOCK_SIZE], "block {at}");
    }
}
