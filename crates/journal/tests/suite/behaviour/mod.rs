//! The behaviour that streams, threads and workers see: waits, merges, durability without a
//! sync, and that no thread waits for ever.
#![cfg(not(feature = "shuttle"))]
#![allow(clippy::unwrap_used, clippy::panic)]

mod data;
mod found;
mod streams;

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo, DeviceError, Geometry, MemDevice};
use steadfast_journal::{
    Access, Client, Config, Credits, Error, Journal, Kind, Object, Op, Region, Result, StreamId,
    Ticket, seal,
};
use steadfast_sim::{Limits, SimDevice};

const VOLUME: [u8; 16] = [5; 16];
const REGION: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(2),
    log_blocks: 64,
};
/// Sealed blocks of zeros from here to `DATA`.
const META: u64 = 66;
const DATA: u64 = 96;
const BLOCKS: u64 = 1200;
const PATIENCE: Duration = Duration::from_secs(300);

fn prepare(device: &dyn BlockDevice, region: &Region) {
    Journal::format(device, region, &VOLUME).unwrap();
    for at in META..DATA {
        let mut block = [0; BLOCK_SIZE];
        seal(&VOLUME, BlockNo(at), &mut block);
        device.write(BlockNo(at), &[&block]).unwrap();
    }
    device.flush().unwrap();
}

fn fresh() -> Arc<SimDevice> {
    let sim = SimDevice::new(BLOCKS);
    prepare(&sim, &REGION);
    Arc::new(SimDevice::from_image(sim.image()))
}

fn open(device: Arc<dyn BlockDevice>) -> Journal {
    Journal::open(device, Config::new(REGION, VOLUME).without_workers())
        .unwrap()
        .0
}

fn small(log_bytes: u64) -> Credits {
    Credits {
        log_bytes,
        data_blocks: 0,
    }
}

fn put(journal: &Journal, stream: u32, at: u64, offset: usize, value: u64) -> Result<()> {
    let mut op = journal.begin(StreamId(stream), small(200))?;
    op.write(BlockNo(at), Kind::Meta, offset, &value.to_le_bytes())?;
    let _ = op.commit();
    Ok(())
}

fn word(block: &Block, offset: usize) -> u64 {
    u64::from_le_bytes(block[offset..offset + 8].try_into().unwrap())
}

fn get(journal: &Journal, at: u64, offset: usize) -> u64 {
    word(&journal.read(BlockNo(at), Kind::Meta).unwrap(), offset)
}

/// The disk after a power cut that loses everything that was not flushed.
fn cut(sim: &SimDevice) -> Journal {
    let durable = sim.explorer().cut(usize::MAX).durable().clone();
    open(Arc::new(SimDevice::from_image(durable)))
}

/// Runs `work` in a thread of its own.
fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (send, receive) = channel();
    std::thread::spawn(move || send.send(work()));
    receive
}

fn soon<T>(receiver: &Receiver<T>, what: &str) -> T {
    receiver
        .recv_timeout(PATIENCE)
        .unwrap_or_else(|_| panic!("{what} waits for ever"))
}

fn not_yet<T>(receiver: &Receiver<T>, what: &str) {
    let waited = receiver.recv_timeout(Duration::from_millis(150));
    assert!(waited.is_err(), "{what} did not wait");
}

#[derive(Clone, Copy, PartialEq)]
enum Stop {
    Nothing,
    /// The next flush, with the error it reports in the end.
    Flush {
        fails: bool,
    },
    /// The next write at this block or after it.
    WriteFrom(u64),
}

#[derive(Clone, Copy, PartialEq)]
enum Held {
    Free,
    Inside,
    LetGo,
}

/// A device that holds one request back until it is let go.
struct Slow {
    sim: Arc<SimDevice>,
    state: Mutex<(Stop, Held)>,
    changed: Condvar,
}

impl Slow {
    fn new(sim: Arc<SimDevice>) -> Arc<Slow> {
        Arc::new(Slow {
            sim,
            state: Mutex::new((Stop::Nothing, Held::Free)),
            changed: Condvar::new(),
        })
    }

    fn arm(&self, stop: Stop) {
        *self.state.lock().unwrap() = (stop, Held::Free);
    }

    fn until_inside(&self) {
        let state = self.state.lock().unwrap();
        let (state, waited) = self
            .changed
            .wait_timeout_while(state, PATIENCE, |s| s.1 == Held::Free)
            .unwrap();
        assert!(!waited.timed_out() && state.1 == Held::Inside);
    }

    fn let_go(&self) {
        self.state.lock().unwrap().1 = Held::LetGo;
        self.changed.notify_all();
    }

    fn pass(&self, matches: impl Fn(Stop) -> bool) -> Option<Stop> {
        let mut state = self.state.lock().unwrap();
        let stop = state.0;
        if !matches(stop) {
            return None;
        }
        *state = (Stop::Nothing, Held::Inside);
        self.changed.notify_all();
        drop(
            self.changed
                .wait_timeout_while(state, PATIENCE, |s| s.1 != Held::LetGo)
                .unwrap(),
        );
        Some(stop)
    }
}

impl BlockDevice for Slow {
    fn geometry(&self) -> Geometry {
        self.sim.geometry()
    }
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
        self.sim.read(at, buf)
    }
    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> std::result::Result<(), DeviceError> {
        self.pass(|s| matches!(s, Stop::WriteFrom(first) if at.0 >= first));
        self.sim.write(at, segments)
    }
    fn flush(&self) -> std::result::Result<(), DeviceError> {
        match self.pass(|s| matches!(s, Stop::Flush { .. })) {
            Some(Stop::Flush { fails: true }) => Err(DeviceError::Misaligned {
                op: steadfast_block::DeviceOp::Flush,
                bytes: 0,
            }),
            _ => self.sim.flush(),
        }
    }
    fn discard(&self, at: BlockNo, count: u64) -> std::result::Result<(), DeviceError> {
        self.sim.discard(at, count)
    }
}

#[test]
fn corner_15_a_deferred_operation_becomes_durable_by_itself_and_at_close() {
    let sim = fresh();
    let mut config = Config::new(REGION, VOLUME).without_workers();
    config.commit_interval = Duration::from_millis(100);
    let (journal, _) = Journal::open(sim.clone(), config).unwrap();
    journal.start_workers();
    journal.start_workers();
    put(&journal, 1, META, 0, 7).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while journal.usage().2 > 0 {
        assert!(Instant::now() < deadline, "no thread commits");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(get(&cut(&sim), META, 0), 7);
    put(&journal, 1, META, 0, 8).unwrap();
    journal.close().unwrap();
    assert_eq!(get(&cut(&sim), META, 0), 8);
    assert!(matches!(put(&journal, 1, META, 0, 9), Err(Error::Closed)));
}

#[test]
fn corner_10_large_operations_of_many_streams_share_a_small_log() {
    for workers in [false, true] {
        let sim = fresh();
        let journal = open(sim.clone());
        if workers {
            journal.start_workers();
        }
        let done: Vec<_> = (0..8u64)
            .map(|t| {
                let journal = journal.clone();
                spawn(move || {
                    let credits = small(journal.op_bytes_max());
                    for round in 0..25u64 {
                        // Some reserve much and use little, some give up.
                        let mut op = journal.begin(StreamId(t as u32), credits).unwrap();
                        for i in 0..if round % 3 == 0 { 1 } else { 7 } {
                            let at = BlockNo(DATA + t * 16 + i);
                            op.write(at, Kind::Data, 0, &[round as u8; BLOCK_SIZE])
                                .unwrap();
                        }
                        if round % 5 != 1 {
                            let _ = op.commit();
                        } else {
                            drop(op);
                        }
                        if round % 7 == t % 7 {
                            journal.sync(StreamId(t as u32), &[]).unwrap();
                        }
                    }
                })
            })
            .collect();
        for thread in &done {
            soon(thread, "a thread with large operations");
        }
        journal.close().unwrap();
        let journal = open(sim);
        let mut block = [0; BLOCK_SIZE];
        for t in 0..8 {
            for (i, value) in [(0, 24), (1, 23), (6, 23)] {
                journal
                    .read_data(BlockNo(DATA + t * 16 + i), &mut block)
                    .unwrap();
                assert_eq!(block, [value; BLOCK_SIZE], "stream {t}, block {i}");
            }
        }
    }
}

#[test]
fn corner_10_a_thread_that_waits_for_other_operations_room_is_woken_when_they_end() {
    let journal = open(fresh());
    let mut held = Vec::new();
    for stream in 0..6 {
        held.push(
            journal
                .begin(StreamId(stream), small(journal.op_bytes_max()))
                .unwrap(),
        );
    }
    let waiter = {
        let journal = journal.clone();
        spawn(move || {
            let op = journal.begin(StreamId(9), small(journal.op_bytes_max()));
            op.map(drop)
        })
    };
    not_yet(&waiter, "an operation without log space");
    for mut op in held {
        op.relate(Object::Topology, Access::Shared);
        let _ = op.commit();
    }
    soon(&waiter, "an operation that has log space now").unwrap();
}

#[test]
fn four_threads_of_four_streams_leave_their_writes() {
    let sim = fresh();
    let journal = open(sim.clone());
    journal.start_workers();
    let done: Vec<_> = (0..4u64)
        .map(|t| {
            let journal = journal.clone();
            spawn(move || {
                for i in 1..=500u64 {
                    // A block of one's own, one shared by all (disjoint bytes, one counter),
                    // and now and then another stream's object.
                    let mut op = journal.begin(StreamId(t as u32), small(600)).unwrap();
                    op.relate(Object::File(t), Access::Exclusive);
                    if i % 50 == 0 {
                        op.relate(Object::File((t + 1) % 4), Access::Shared);
                    }
                    let slot = 8 * (i % 400) as usize;
                    op.write(BlockNo(META + 1 + t), Kind::Meta, slot, &i.to_le_bytes())
                        .unwrap();
                    op.write(BlockNo(META), Kind::Meta, 8 * t as usize, &i.to_le_bytes())
                        .unwrap();
                    op.add(BlockNo(META), 1000, 1).unwrap();
                    op.write_latest(BlockNo(META), 2000, &i.to_le_bytes())
                        .unwrap();
                    let ticket = op.commit();
                    match i % 40 {
                        7 => journal.sync(StreamId(t as u32), &[]).unwrap(),
                        17 => journal.wait(ticket).unwrap(),
                        27 => journal.checkpoint().unwrap(),
                        37 => assert!(!journal.reclaim().unwrap()),
                        _ => {}
                    }
                }
            })
        })
        .collect();
    for thread in &done {
        soon(thread, "an appender");
    }
    let check = |journal: &Journal| {
        assert_eq!(get(journal, META, 1000), 2000);
        assert_eq!(get(journal, META, 2000), 500);
        for t in 0..4 {
            assert_eq!(get(journal, META, 8 * t as usize), 500);
            for i in 101..=500 {
                assert_eq!(get(journal, META + 1 + t, 8 * (i % 400) as usize), i);
            }
        }
    };
    check(&journal);
    journal.sync_all().unwrap();
    check(&cut(&sim));
    journal.close().unwrap();
    let (journal, recovery) =
        Journal::open(sim, Config::new(REGION, VOLUME).without_workers()).unwrap();
    assert!(recovery.clean, "{recovery:?}");
    check(&journal);
}

#[test]
fn closing_empties_the_log_also_when_a_checkpoint_is_under_way() {
    let sim = fresh();
    let slow = Slow::new(sim.clone());
    let journal = open(slow.clone());
    put(&journal, 1, META, 0, 1).unwrap();
    journal.sync_all().unwrap();
    slow.arm(Stop::WriteFrom(META));
    let checkpoint = {
        let journal = journal.clone();
        spawn(move || journal.checkpoint())
    };
    slow.until_inside();
    // Not part of that round.
    put(&journal, 1, META, 0, 2).unwrap();
    journal.sync_all().unwrap();
    let close = {
        let journal = journal.clone();
        spawn(move || journal.close())
    };
    not_yet(&close, "closing");
    slow.let_go();
    soon(&checkpoint, "the checkpoint").unwrap();
    soon(&close, "closing").unwrap();
    let (journal, recovery) =
        Journal::open(sim, Config::new(REGION, VOLUME).without_workers()).unwrap();
    assert!(recovery.clean && recovery.records == 0, "{recovery:?}");
    assert_eq!(get(&journal, META, 0), 2);
}

#[test]
fn corners_20_22_56_one_block_of_two_streams_commits_by_halves() {
    let sim = fresh();
    let journal = open(sim.clone());
    let change = |stream: u32, value: u64, bit: usize| {
        let mut op = journal.begin(StreamId(stream), small(400)).unwrap();
        let at = BlockNo(META);
        op.write(at, Kind::Meta, 8 * stream as usize, &value.to_le_bytes())
            .unwrap();
        op.add(at, 800, value as i64).unwrap();
        op.set_bits(at, 8000 + bit, 3, true).unwrap();
        op.write_latest(at, 1600, &value.to_le_bytes()).unwrap();
        let _ = op.commit();
    };
    change(1, 10, 0);
    change(2, 200, 3);
    change(1, 11, 6);
    assert_eq!(
        (get(&journal, META, 800), get(&journal, META, 1600)),
        (221, 11)
    );
    journal.sync(StreamId(1), &[]).unwrap();
    assert_eq!(journal.stats().merges, 0);
    let seen = cut(&sim);
    let block = seen.read(BlockNo(META), Kind::Meta).unwrap();
    assert_eq!((word(&block, 8), word(&block, 16)), (11, 0));
    assert_eq!((word(&block, 800), word(&block, 1600)), (21, 11));
    assert_eq!(word(&block, 1000), 0b1_1100_0111);
    // Changes committed in memory are not disturbed by the other stream's commit.
    change(2, 300, 20);
    journal.checkpoint().unwrap();
    journal.sync(StreamId(2), &[]).unwrap();
    let block = cut(&sim).read(BlockNo(META), Kind::Meta).unwrap();
    assert_eq!((word(&block, 8), word(&block, 16)), (11, 300));
    assert_eq!((word(&block, 800), word(&block, 1600)), (521, 300));
    assert_eq!(word(&block, 1000), 0b111 << 20 | 0b1_1111_1111);
}

#[test]
fn corner_22_a_counter_that_one_stream_sets_and_another_adds_to_is_counted_once() {
    let sim = fresh();
    let journal = open(sim.clone());
    put(&journal, 1, META, 0, 100).unwrap();
    let mut op = journal.begin(StreamId(2), small(200)).unwrap();
    op.add(BlockNo(META), 0, 5).unwrap();
    let _ = op.commit();
    journal.sync(StreamId(2), &[]).unwrap();
    assert_eq!(get(&cut(&sim), META, 0), 105);
    journal.sync_all().unwrap();
    assert_eq!(get(&cut(&sim), META, 0), 105);
    assert_eq!(get(&journal, META, 0), 105);
}

#[test]
fn corner_21_a_chain_of_related_streams_is_one_transaction() {
    let sim = fresh();
    let journal = open(sim.clone());
    let link = |stream: u32, objects: [u64; 2]| {
        let mut op = journal.begin(StreamId(stream), small(300)).unwrap();
        for object in objects {
            op.relate(Object::File(object), Access::Exclusive);
        }
        let at = BlockNo(META + u64::from(stream));
        op.write(at, Kind::Meta, 0, &1u64.to_le_bytes()).unwrap();
        op.commit()
    };
    let first = link(0, [0, 1]);
    link(2, [4, 5]);
    link(4, [8, 9]);
    link(1, [1, 2]);
    link(3, [5, 8]);
    link(5, [2, 4]);
    assert_eq!(journal.stats().merges, 5);
    journal.wait(first).unwrap();
    assert_eq!((journal.usage().2, journal.stats().commits), (0, 1));
    let mut explorer = sim.explorer();
    for position in 0..=explorer.len() {
        for image in explorer.cut(position).images(&Limits::default()) {
            let journal = open(Arc::new(SimDevice::from_image(image)));
            let values: Vec<u64> = (0..6).map(|s| get(&journal, META + s, 0)).collect();
            assert!(values == [0; 6] || values == [1; 6], "{values:?}");
        }
    }
}

#[test]
fn corner_58_a_transaction_related_to_one_being_written_is_laid_after_it() {
    let sim = fresh();
    let slow = Slow::new(sim.clone());
    let journal = open(slow.clone());
    let touch = |stream: u32, value: u64| {
        let mut op = journal.begin(StreamId(stream), small(300)).unwrap();
        op.relate(Object::File(1), Access::Exclusive);
        op.write(BlockNo(META), Kind::Meta, 0, &value.to_le_bytes())
            .unwrap();
        let _ = op.commit();
    };
    touch(1, 1);
    slow.arm(Stop::Flush { fails: false });
    let first = {
        let journal = journal.clone();
        spawn(move || journal.sync(StreamId(1), &[]))
    };
    slow.until_inside();
    touch(2, 2);
    let second = {
        let journal = journal.clone();
        spawn(move || journal.sync(StreamId(2), &[]))
    };
    not_yet(&second, "the later record");
    slow.let_go();
    soon(&first, "the first sync").unwrap();
    soon(&second, "the second sync").unwrap();
    assert_eq!((journal.stats().merges, journal.stats().commits), (0, 2));
    assert_eq!(get(&cut(&sim), META, 0), 2);
}

#[test]
fn corner_59_syncing_an_object_commits_the_stream_that_changed_it() {
    let sim = fresh();
    let journal = open(sim.clone());
    let mut op = journal.begin(StreamId(2), small(300)).unwrap();
    op.relate(Object::File(7), Access::Exclusive);
    op.relate(Object::Name(1, 99), Access::Exclusive);
    op.write(BlockNo(META), Kind::Meta, 0, &5u64.to_le_bytes())
        .unwrap();
    let _ = op.commit();
    put(&journal, 3, META + 1, 0, 6).unwrap();
    journal.sync(StreamId(1), &[]).unwrap();
    assert_eq!(get(&cut(&sim), META, 0), 0);
    journal
        .sync(StreamId(1), &[Object::File(8), Object::File(7)])
        .unwrap();
    assert_eq!(
        (get(&cut(&sim), META, 0), get(&cut(&sim), META + 1, 0)),
        (5, 0)
    );
}

#[test]
fn corner_61_a_small_sync_does_not_wait_for_another_streams_big_data() {
    let sim = fresh();
    let slow = Slow::new(sim.clone());
    let journal = open(slow.clone());
    let data = (0..600).map(|_| Arc::new([1; BLOCK_SIZE])).collect();
    let mut op = journal
        .begin(
            StreamId(1),
            Credits {
                log_bytes: 300,
                data_blocks: 600,
            },
        )
        .unwrap();
    op.write_around(BlockNo(DATA), data).unwrap();
    op.write(BlockNo(META), Kind::Meta, 0, &1u64.to_le_bytes())
        .unwrap();
    let _ = op.commit();
    slow.arm(Stop::WriteFrom(DATA));
    let big = {
        let journal = journal.clone();
        spawn(move || journal.sync(StreamId(1), &[]))
    };
    slow.until_inside();
    let little = {
        let journal = journal.clone();
        spawn(move || {
            put(&journal, 2, META + 1, 0, 2)?;
            journal.sync(StreamId(2), &[])
        })
    };
    soon(&little, "the small sync").unwrap();
    assert_eq!(
        (get(&cut(&sim), META, 0), get(&cut(&sim), META + 1, 0)),
        (0, 2)
    );
    not_yet(&big, "the sync of unwritten data");
    slow.let_go();
    soon(&big, "the big sync").unwrap();
    assert_eq!(get(&cut(&sim), META, 0), 1);
}

#[test]
fn corner_14_no_flush_counts_beside_one_that_reports_a_failure_later() {
    let slow = Slow::new(fresh());
    let journal = open(slow.clone());
    put(&journal, 1, META, 0, 1).unwrap();
    journal.sync_all().unwrap();
    put(&journal, 1, META, 0, 2).unwrap();
    slow.arm(Stop::Flush { fails: true });
    let checkpoint = {
        let journal = journal.clone();
        spawn(move || journal.checkpoint())
    };
    slow.until_inside();
    // The device reports the loss of a write to one flush only, and it may be this record's.
    let sync = {
        let journal = journal.clone();
        spawn(move || journal.sync(StreamId(1), &[]))
    };
    not_yet(&sync, "a flush beside an undecided one");
    slow.let_go();
    assert!(soon(&checkpoint, "the checkpoint").is_err());
    assert!(soon(&sync, "the sync").is_err());
    assert_eq!(journal.stats().commits, 1);
}

#[derive(Default)]
struct Pool(Mutex<Vec<(BlockNo, u64)>>);

impl Client for Pool {
    fn close(&self, mut op: Op<'_>, keys: &[u64]) -> Result<Ticket> {
        for key in keys {
            assert!(*key != 13, "key 13 brings bad luck");
            op.write(
                BlockNo(META),
                Kind::Meta,
                8 * *key as usize,
                &key.to_le_bytes(),
            )?;
        }
        Ok(op.commit())
    }
    fn released(&self, runs: &[(BlockNo, u64)]) {
        // Slow enough for a thread that does not wait for it to be seen.
        std::thread::sleep(Duration::from_millis(1));
        self.0.lock().unwrap().extend(runs);
    }
}

fn with_client(journal: &Journal) -> Arc<Pool> {
    let pool = Arc::new(Pool::default());
    let client: Arc<dyn Client> = pool.clone();
    journal.set_client(Arc::downgrade(&client));
    pool
}

#[test]
fn corner_01_reclaiming_names_every_freed_block_also_when_the_log_is_small() {
    let journal = open(fresh());
    let pool = with_client(&journal);
    for i in 0..200u64 {
        let at = BlockNo(DATA + i % 3);
        let credits = Credits {
            log_bytes: 200,
            data_blocks: 1,
        };
        let mut op = journal.begin(StreamId(0), credits).unwrap();
        op.write_around(at, vec![Arc::new([i as u8; BLOCK_SIZE])])
            .unwrap();
        let _ = op.commit();
        // Covered and freed by one record: it must be proved first.
        let mut op = journal.begin(StreamId(0), credits).unwrap();
        op.free(at, 1).unwrap();
        let _ = op.commit();
        assert!(journal.reclaim().unwrap());
        assert_eq!(std::mem::take(&mut *pool.0.lock().unwrap()), vec![(at, 1)]);
        assert!(!journal.reclaim().unwrap());
    }
}

#[test]
fn corner_01_two_threads_that_reclaim_both_find_the_blocks_released() {
    let journal = open(fresh());
    let pool = with_client(&journal);
    for i in 0..50u64 {
        let mut op = journal.begin(StreamId(0), small(200)).unwrap();
        op.free(BlockNo(DATA + i), 1).unwrap();
        let _ = op.commit();
        let both: Vec<_> = (0..2)
            .map(|_| {
                let (journal, pool) = (journal.clone(), pool.clone());
                spawn(move || {
                    journal.reclaim().unwrap();
                    pool.0.lock().unwrap().contains(&(BlockNo(DATA + i), 1))
                })
            })
            .collect();
        for thread in both {
            assert!(
                soon(&thread, "a reclaiming thread"),
                "returned before the client knew"
            );
        }
    }
}

fn attach(journal: &Journal, key: u64) {
    let mut op = journal.begin(StreamId(1), small(600)).unwrap();
    op.write(
        BlockNo(META),
        Kind::Meta,
        8 * key as usize,
        &1u64.to_le_bytes(),
    )
    .unwrap();
    op.attach(key, small(200)).unwrap();
    let _ = op.commit();
}

#[test]
fn delayed_work_is_asked_for_once_and_never_dropped() {
    let sim = fresh();
    let journal = open(sim.clone());
    let pool = with_client(&journal);
    attach(&journal, 3);
    attach(&journal, 4);
    attach(&journal, 3);
    journal.sync(StreamId(1), &[]).unwrap();
    assert_eq!(
        (get(&cut(&sim), META, 24), get(&cut(&sim), META, 32)),
        (3, 4)
    );
    attach(&journal, 5);
    drop(pool);
    // No client is left that could do the delayed work: the transaction must not commit without it.
    assert!(journal.sync(StreamId(1), &[]).is_err());
    assert!(journal.close().is_err());
    assert_eq!(get(&cut(&sim), META, 40), 0);
}

#[test]
fn a_client_that_panics_stops_the_journal_and_no_thread_waits_for_ever() {
    let journal = open(fresh());
    let _pool = with_client(&journal);
    attach(&journal, 13);
    let panics = {
        let journal = journal.clone();
        spawn(move || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| journal.sync_all())).is_err()
        })
    };
    assert!(soon(&panics, "the thread that panics"));
    let later = {
        let journal = journal.clone();
        spawn(move || (journal.sync_all(), put(&journal, 2, META, 0, 1)))
    };
    let (sync, begin) = soon(&later, "a later call");
    assert!(sync.is_err() && begin.is_err());
}

#[test]
fn an_operation_without_changes_writes_nothing() {
    let journal = open(fresh());
    let mut op = journal.begin(StreamId(1), small(300)).unwrap();
    op.relate(Object::File(1), Access::Shared);
    op.read(BlockNo(META), Kind::Meta).unwrap();
    let ticket = op.commit();
    journal.wait(ticket).unwrap();
    journal.sync_all().unwrap();
    assert_eq!((journal.stats().commits, journal.usage()), (0, (0, 0, 0)));
}

#[test]
fn logs_of_impossible_sizes_are_refused() {
    let device = Arc::new(MemDevice::new(100));
    for log_blocks in [0, 63, 200, 1 << 20, u64::MAX] {
        let region = Region {
            log_blocks,
            ..REGION
        };
        let opened = Journal::open(
            device.clone(),
            Config::new(region, VOLUME).without_workers(),
        );
        assert!(
            matches!(opened, Err(Error::BadRegion { .. })),
            "{log_blocks}"
        );
    }
}

/// Costs, for a look: `cargo test --release -p steadfast-journal --test suite behaviour -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn costs() {
    let region = Region {
        log: BlockNo(200),
        log_blocks: 16384,
        ..REGION
    };
    let device = Arc::new(MemDevice::new(20_000));
    prepare(&*device, &region);
    let journal = Journal::open(device, Config::new(region, VOLUME).without_workers())
        .unwrap()
        .0;
    for streams in [1, 16] {
        let n = 200_000u64;
        let start = Instant::now();
        for i in 0..n {
            let mut op = journal
                .begin(StreamId((i % streams) as u32), small(300))
                .unwrap();
            op.relate(Object::File(i % streams), Access::Exclusive);
            let at = BlockNo(META + i % 16);
            op.write(
                at,
                Kind::Meta,
                128 * (i as usize / 16 % 31),
                &[i as u8; 128],
            )
            .unwrap();
            let _ = op.commit();
            if i % 4000 == 3999 {
                journal.sync_all().unwrap();
            }
        }
        let each = start.elapsed().as_nanos() as u64 / n;
        println!("{streams} streams: {each} ns for one deferred operation of 128 bytes");
    }
    let n = 20_000u64;
    let start = Instant::now();
    for i in 0..n {
        put(&journal, 0, META + i % 16, 0, i).unwrap();
        journal.sync(StreamId(0), &[]).unwrap();
    }
    let second = n as f64 / start.elapsed().as_secs_f64();
    println!("{second:.0} synced commits a second, one thread");
    println!("{:?}", journal.stats());
}
