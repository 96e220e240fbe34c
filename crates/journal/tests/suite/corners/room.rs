//! Room in the log: reserved and used, locks and waiting, operations that are too large.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use steadfast_journal::{Access, Error, Lockmap, OP_DATA_BLOCKS_MAX, Object};

fn small(log_bytes: u64) -> Credits {
    Credits {
        log_bytes,
        data_blocks: 0,
    }
}

#[test]
fn corner_10_unused_reservations_are_free_at_commit() {
    let stage = Stage::new(Faults::default());
    let most = small(stage.journal.op_bytes_max());
    let full = |n: u64, commit: bool| {
        let mut held = Vec::new();
        for stream in 0..6 {
            held.push(stage.journal.begin(StreamId(stream), most).unwrap());
        }
        for (stream, mut op) in held.into_iter().enumerate() {
            set(&mut op, META, 8 * stream, n);
            if commit {
                let _ = op.commit();
            }
        }
    };
    for n in 0..40 {
        full(n, true);
        full(99, false);
    }
    // All that in memory alone; no thread waited, and nothing made room for reservations.
    let stats = stage.journal.stats();
    assert_eq!((stats.waits, stats.commits, stats.checkpoints), (0, 0, 0));
    stage.ack(1);
    assert!(stage.journal.usage().1 <= 2, "{:?}", stage.journal.usage());
    // It had been the whole log: one operation more waits.
    let held: Vec<_> = (0..6)
        .map(|stream| stage.journal.begin(StreamId(stream), most).unwrap())
        .collect();
    let journal = stage.journal.clone();
    let waiter = spawn(move || journal.begin(StreamId(9), most).map(drop));
    not_yet(&waiter, "an operation without log space");
    held.into_iter().for_each(drop);
    soon(&waiter, "an operation that has room now").unwrap();
    // The reservation for delayed work is free as soon as its transaction is closed.
    for n in 0..40 {
        let mut op = stage.journal.begin(StreamId(1), most).unwrap();
        set(&mut op, META, 8, 100 + n);
        op.attach(7, small(most.log_bytes - 500)).unwrap();
        let ticket = op.commit();
        stage.journal.wait(ticket).unwrap();
        full(50, true);
    }
    stage.ack(2);
    let observe = |journal: &Journal| {
        let words = (0..6).map(|stream| word(journal, META, 8 * stream));
        words.collect::<std::result::Result<Vec<u64>, String>>()
    };
    let last = |acked: u64, words: &Vec<u64>| acked < 2 || *words == [50; 6];
    let explored = stage.explore(&observe, &last);
    explored.unwrap_or_else(|e| panic!("{e}"));
}

/// A storage program whose delayed work needs the lock of the object.
struct Locking {
    locks: Lockmap,
    closed: AtomicU64,
}

impl Client for Locking {
    fn close(&self, mut op: Op<'_>, keys: &[u64]) -> Result<Ticket> {
        let wanted: Vec<_> = keys.iter().map(|key| (*key, Access::Exclusive)).collect();
        let _locked = self.locks.acquire(&wanted);
        for key in keys {
            op.write(BlockNo(META), Kind::Meta, 8 * *key as usize, &[1; 8])?;
        }
        self.closed.fetch_add(1, Ordering::SeqCst);
        Ok(op.commit())
    }
    fn released(&self, _: &[(BlockNo, u64)]) {}
}

fn locking(stage: &Stage) -> Arc<Locking> {
    let program = Arc::new(Locking {
        locks: Lockmap::new(),
        closed: AtomicU64::new(0),
    });
    let client: Arc<dyn Client> = program.clone();
    stage.journal.set_client(Arc::downgrade(&client));
    program
}

#[test]
fn corner_60_a_lock_holder_with_credits_never_waits_while_the_closer_wants_its_lock() {
    let stage = Stage::new(Faults::default());
    let program = locking(&stage);
    let most = small(stage.journal.op_bytes_max());
    // Delayed work for key 1, in a log that open operations have reserved to the brim.
    let mut op = stage.journal.begin(StreamId(1), small(600)).unwrap();
    set(&mut op, META, 0, 1);
    op.relate(Object::File(1), Access::Exclusive);
    op.attach(1, small(200)).unwrap();
    let _ = op.commit();
    let mut held: Vec<_> = (2..7)
        .map(|stream| stage.journal.begin(StreamId(stream), most).unwrap())
        .collect();
    // Credits first, then the lock that closing wants.
    let mut mine = held.pop().unwrap();
    let locked = program.locks.acquire(&[(1, Access::Exclusive)]);
    let closer = stage.sync_in_thread(1);
    not_yet(&closer, "closing beside an open operation");
    let journal = stage.journal.clone();
    let beginner = spawn(move || journal.begin(StreamId(9), most).map(drop));
    not_yet(
        &beginner,
        "an operation that comes while a transaction closes",
    );
    // The holder changes, takes up delayed work, and commits: all of it without waiting.
    set(&mut mine, META, 8, 5);
    mine.relate(Object::File(1), Access::Exclusive);
    mine.attach(2, small(200)).unwrap();
    let _ = mine.commit();
    held.into_iter().for_each(drop);
    // Nothing is open any more, and the closer stands before the lock.
    not_yet(&closer, "closing without the lock");
    assert_eq!(program.closed.load(Ordering::SeqCst), 0);
    not_yet(
        &beginner,
        "an operation that comes while a transaction closes",
    );
    drop(locked);
    soon(&closer, "closing").unwrap();
    soon(&beginner, "an operation behind the closed transaction").unwrap();
    // The holder's work went into the transaction that was closing, and was asked for there.
    assert_eq!(program.closed.load(Ordering::SeqCst), 1);
    let words = [0, 8, 16].map(|offset| word(&stage.journal, META, offset).unwrap());
    let done = u64::from_le_bytes([1; 8]);
    assert_eq!((words, stage.journal.usage().2), ([1, done, done], 0));
}

#[test]
fn corner_60_credits_before_locks_end_for_every_order_of_lockers_and_closers() {
    let stage = Stage::new(Faults::default());
    let program = locking(&stage);
    let most = small(stage.journal.op_bytes_max());
    let threads: Vec<_> = (0..6u64)
        .map(|thread| {
            let (journal, program) = (stage.journal.clone(), program.clone());
            spawn(move || -> Result<()> {
                let stream = StreamId(thread as u32);
                for round in 0..60 {
                    let (a, b) = (1 + (thread + round) % 4, 1 + (thread * round) % 4);
                    let mut op = journal.begin(stream, most)?;
                    let locked = program
                        .locks
                        .acquire(&[(a, Access::Exclusive), (b, Access::Shared)]);
                    set(&mut op, META + 1, 8 * a as usize, round);
                    op.relate(Object::File(a), Access::Exclusive);
                    // Large and small ones, so that transactions fill up, too.
                    for at in 0..round % 5 {
                        let at = BlockNo(DATA + 10 * thread + at);
                        op.write(at, Kind::Data, 0, &[round as u8; BLOCK_SIZE])?;
                    }
                    op.attach(a, small(100)).unwrap();
                    let ticket = op.commit();
                    drop(locked);
                    match round % 6 {
                        0 => journal.wait(ticket)?,
                        3 => journal.sync(stream, &[Object::File(b)])?,
                        _ => {}
                    }
                }
                Ok(())
            })
        })
        .collect();
    for thread in &threads {
        soon(thread, "a thread with locks").unwrap();
    }
    stage.ack(1);
    assert!(program.closed.load(Ordering::SeqCst) > 0);
    let durable = stage.sim.explorer().cut(usize::MAX).durable().clone();
    let device = Arc::new(SimDevice::from_image(durable));
    let (after, _) = Journal::open(device, Config::new(REGION, VOLUME).without_workers()).unwrap();
    for thread in 0..6 {
        expect_data(&after, DATA + 10 * thread, &[59; BLOCK_SIZE]).unwrap();
    }
    for key in 1..=4 {
        let done = word(&after, META, 8 * key).unwrap();
        assert_eq!(done, u64::from_le_bytes([1; 8]), "key {key}");
    }
}

#[test]
fn corner_62_an_operation_too_large_is_refused_before_any_effect_and_its_parts_fit() {
    let stage = Stage::new(Faults::default());
    let most = stage.journal.op_bytes_max();
    let refused = |credits: Credits, expected: (u64, u64)| {
        let before = (stage.journal.stats(), stage.journal.usage());
        let (counts, trace) = (stage.sim.counts(), stage.sim.trace_len());
        match stage.journal.begin(StreamId(0), credits).map(drop) {
            Err(Error::TooLarge { needed, limit }) => assert_eq!((needed, limit), expected),
            other => panic!("{credits:?}: {other:?}"),
        }
        assert_eq!((stage.journal.stats(), stage.journal.usage()), before);
        assert_eq!((stage.sim.counts(), stage.sim.trace_len()), (counts, trace));
    };
    refused(small(most + 1), (most + 1, most));
    refused(small(u64::MAX), (u64::MAX, most));
    let limit = OP_DATA_BLOCKS_MAX * BLOCK_SIZE as u64;
    let data = |data_blocks| Credits {
        log_bytes: 300,
        data_blocks,
    };
    let block = BLOCK_SIZE as u64;
    refused(data(OP_DATA_BLOCKS_MAX + 1), (limit + block, limit));
    assert!(stage.journal.begin(StreamId(0), small(most)).is_ok());
    let largest = stage.journal.begin(StreamId(0), data(OP_DATA_BLOCKS_MAX));
    drop(largest.unwrap());
    // More than the log, in parts as large as may be: a cut leaves a prefix of them.
    let blocks = most / block - 1;
    let parts = 10;
    for part in 0..parts {
        let mut op = stage.journal.begin(StreamId(0), small(most)).unwrap();
        set(&mut op, META, 0, part + 1);
        for i in 0..blocks {
            let at = BlockNo(DATA + part * blocks + i);
            op.write(at, Kind::Data, 0, &page(part as u8 + 1)[..])
                .unwrap();
        }
        let _ = op.commit();
    }
    assert!(parts * blocks > REGION.log_blocks);
    stage.ack(parts);
    let observe = |journal: &Journal| {
        let n = word(journal, META, 0)?;
        for part in 0..parts {
            let value = if part < n { part as u8 + 1 } else { GARBAGE };
            for i in 0..blocks {
                expect_data(journal, DATA + part * blocks + i, &page(value)[..])?;
            }
        }
        Ok(n)
    };
    let explored = stage.explore(&observe, &|acked, n| *n >= acked && *n <= parts);
    println!("{} images", explored.unwrap_or_else(|e| panic!("{e}")));
}

#[test]
fn corner_62_parts_of_a_long_write_around_the_log_wait_for_pages_and_end() {
    let stage = Stage::with(
        Config::new(REGION, VOLUME)
            .without_workers()
            .with(|config| {
                config.dirty_blocks = 32;
            }),
    );
    let journal = stage.journal.clone();
    let (parts, blocks) = (14, 16);
    let writer = spawn(move || -> Result<()> {
        for part in 0..parts {
            let credits = Credits {
                log_bytes: 300,
                data_blocks: blocks,
            };
            let mut op = journal.begin(StreamId(0), credits)?;
            let data = vec![page(part as u8 + 1); blocks as usize];
            op.write_around(BlockNo(DATA + part * blocks), data)?;
            set(&mut op, META, 0, part + 1);
            let _ = op.commit();
        }
        Ok(())
    });
    soon(&writer, "a long write").unwrap();
    // Bounded in memory: the first parts are durable already, the last two need not be.
    assert!(stage.journal.stats().around_blocks >= (parts - 2) * blocks);
    let observe = |journal: &Journal| {
        let n = word(journal, META, 0)?;
        for part in 0..n {
            expect_data(journal, DATA + part * blocks, &page(part as u8 + 1)[..])?;
            let last = DATA + part * blocks + blocks - 1;
            expect_data(journal, last, &page(part as u8 + 1)[..])?;
        }
        Ok(n)
    };
    stage.sim.mark(parts - 2);
    stage.ack(parts);
    let explored = stage.explore(&observe, &|acked, n| *n >= acked && *n <= parts);
    println!("{} images", explored.unwrap_or_else(|e| panic!("{e}")));
}
