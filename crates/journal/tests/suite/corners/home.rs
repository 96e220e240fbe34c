//! Home blocks: checkpoints, reads beside them, device reads, tears.

use super::*;
use std::cell::Cell;
use steadfast_journal::META_BYTES;

/// A metadata and a data block, apart from the register.
const NODE: u64 = META + 2;
const HOME: u64 = DATA + 3;

fn step(journal: &Journal) -> std::result::Result<u64, String> {
    word(journal, META, 0)
}

/// A stage whose journal keeps no clean block for long.
fn forgetful() -> Stage {
    Stage::with(
        Config::new(REGION, VOLUME)
            .without_workers()
            .with(|config| {
                config.cache_blocks_max = 0;
            }),
    )
}

/// Reads so much else that nothing stays in memory that need not.
fn crowd_out(stage: &Stage) {
    for _ in 0..4 {
        for at in DATA + 10..BLOCKS {
            stage.journal.read(BlockNo(at), Kind::Data).unwrap();
        }
    }
}

#[test]
fn corner_07_only_the_newest_of_many_versions_of_a_block_wins() {
    let story = |faults| {
        let stage = Stage::new(faults);
        let change = |stream: u32, n: u64| {
            stage.op(stream, |op| {
                set(op, META, 0, n);
                set(op, NODE, 0, n);
                set(op, NODE, 8 * n as usize, n);
                op.write(BlockNo(HOME), Kind::Data, 0, &[n as u8; 3000])
                    .unwrap();
            });
        };
        change(0, 1);
        stage.ack(1);
        change(0, 2);
        stage.ack(2);
        // The second version is on its way home when a third and a fourth commit.
        stage.slow.arm(Stop::Write(META, BLOCKS));
        let first = stage.checkpoint_in_thread();
        stage.slow.until_inside();
        change(0, 3);
        stage.ack(3);
        change(1, 4);
        stage.ack(4);
        let second = stage.checkpoint_in_thread();
        not_yet(&second, "a second write home of one block");
        stage.slow.let_go();
        soon(&first, "the first checkpoint").unwrap();
        soon(&second, "the second checkpoint").unwrap();
        change(1, 5);
        stage.ack(5);
        stage.journal.checkpoint().unwrap();
        // Several transactions of one record: disjoint bytes of the block.
        stage.op(2, |op| set(op, NODE, 1000, 6));
        stage.op(3, |op| set(op, NODE, 1008, 6));
        change(4, 6);
        stage.ack(6);
        stage.journal.checkpoint().unwrap();
        let observe = |journal: &Journal| {
            let n = step(journal)?;
            let mut node = [0; META_BYTES];
            node[0] = n as u8;
            (1..=n).for_each(|n| node[8 * n as usize] = n as u8);
            if n == 6 {
                (node[1000], node[1008]) = (6, 6);
            }
            expect_meta(journal, NODE, &node)?;
            let mut data = [GARBAGE; BLOCK_SIZE];
            if n > 0 {
                data[..3000].fill(n as u8);
            }
            expect_data(journal, HOME, &data)?;
            Ok(n)
        };
        stage.explore(&observe, &|acked, n| *n >= acked && *n <= 6)
    };
    holds(story, &[fault!(skip_home_flush)]);
}

#[test]
fn corner_08_a_read_beside_a_checkpoint_has_the_newest_bytes_without_the_device() {
    let header = Stop::Write(0, 2);
    for stop in [Stop::Write(META, BLOCKS), Stop::Flush, header] {
        let stage = forgetful();
        let change = |n: u64| {
            stage.op(0, |op| {
                set(op, META, 0, n);
                op.write(BlockNo(HOME), Kind::Data, 0, &[n as u8; BLOCK_SIZE])
                    .unwrap();
            });
        };
        let read = || {
            expect_data(&stage.journal, HOME, &page(step(&stage.journal)? as u8)[..])?;
            step(&stage.journal)
        };
        let from_device = |read: &dyn Fn() -> std::result::Result<u64, String>, n: u64| {
            crowd_out(&stage);
            let before = stage.sim.counts().reads;
            assert_eq!(read(), Ok(n));
            stage.sim.counts().reads - before
        };
        change(1);
        stage.ack(1);
        stage.slow.arm(stop);
        let checkpoint = stage.checkpoint_in_thread();
        stage.slow.until_inside();
        assert_eq!(from_device(&read, 1), 0, "read from a home being written");
        stage.slow.let_go();
        soon(&checkpoint, "the checkpoint").unwrap();
        assert!(from_device(&read, 1) > 0, "nothing was crowded out");
        // A patch that comes while its block goes home keeps it in memory.
        change(2);
        stage.ack(2);
        stage.slow.arm(stop);
        let checkpoint = stage.checkpoint_in_thread();
        stage.slow.until_inside();
        change(3);
        stage.slow.let_go();
        soon(&checkpoint, "the checkpoint").unwrap();
        assert_eq!(from_device(&read, 3), 0, "the home is a version behind");
        stage.ack(3);
        assert_eq!(from_device(&read, 3), 0, "the home is a version behind");
        let observe = |journal: &Journal| {
            let n = step(journal)?;
            let value = if n == 0 { GARBAGE } else { n as u8 };
            expect_data(journal, HOME, &page(value)[..])?;
            Ok(n)
        };
        let images = stage.explore(&observe, &|acked, n| *n >= acked && *n <= 3);
        assert!(images.unwrap() > 10);
    }
}

/// A thread reads a block from its home without a lock on it; meanwhile the block is freed, released,
/// begun again, committed, and written home. The late bytes are of its last life.
fn read_that_is_overtaken(crowded_out: bool) {
    let stage = forgetful();
    stage.slow.arm(Stop::Read(NODE));
    let journal = stage.journal.clone();
    let late = spawn(move || journal.read(BlockNo(NODE), Kind::Meta).map(drop));
    stage.slow.until_inside();
    stage.op(0, |op| op.free(BlockNo(NODE), 1).unwrap());
    stage.ack(0);
    stage.released(NODE);
    stage.op(0, |op| {
        op.zero(BlockNo(NODE), Kind::Meta).unwrap();
        set(op, NODE, 0, 1);
        set(op, META, 0, 1);
    });
    stage.ack(1);
    stage.journal.checkpoint().unwrap();
    if crowded_out {
        crowd_out(&stage);
    }
    stage.slow.let_go();
    soon(&late, "the late read").unwrap();
    assert_eq!(word(&stage.journal, NODE, 0), Ok(1), "read from memory");
    // A patch builds on the same bytes now.
    stage.op(0, |op| {
        set(op, NODE, 8, 2);
        set(op, META, 0, 2);
    });
    stage.ack(2);
    stage.journal.checkpoint().unwrap();
    let observe = |journal: &Journal| {
        let n = step(journal)?;
        let mut node = [0; META_BYTES];
        node[0] = u8::from(n > 0);
        node[8] = if n > 1 { 2 } else { 0 };
        expect_meta(journal, NODE, &node)?;
        Ok(n)
    };
    let explored = stage.explore(&observe, &|acked, n| *n >= acked && *n <= 2);
    explored.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn corner_08_a_late_read_of_a_home_never_hides_the_blocks_new_life() {
    read_that_is_overtaken(false);
}

#[test]
fn corner_08_a_late_read_of_a_home_never_comes_back_for_a_life_that_left_memory() {
    read_that_is_overtaken(true);
}

#[test]
fn corner_09_a_device_read_of_one_operation_delays_no_unrelated_commit() {
    let stage = Stage::new(Faults::default());
    stage.slow.arm(Stop::Read(NODE));
    let patch_in_thread = |stream: u32| {
        let journal = stage.journal.clone();
        spawn(move || {
            let mut op = journal.begin(StreamId(stream), CREDITS)?;
            set(&mut op, NODE, 8 * stream as usize, 1);
            set(&mut op, META, 0, 100);
            journal.wait(op.commit())
        })
    };
    let slow = patch_in_thread(1);
    stage.slow.until_inside();
    // A thread that needs the same block waits, and holds up no other thread either.
    let beside = patch_in_thread(2);
    not_yet(&beside, "the second patch of a block being read");
    let journal = stage.journal.clone();
    let sim = stage.sim.clone();
    let others = spawn(move || -> Result<()> {
        // Blocks wherever the cache may keep them; the stream of the slow operation, too.
        for (stream, at) in (DATA..BLOCKS).enumerate() {
            let mut op = journal.begin(StreamId(stream as u32 % 4), CREDITS)?;
            op.write(BlockNo(at), Kind::Data, 0, &[1; 8])?;
            let ticket = op.commit();
            if at % 16 == 0 {
                journal.wait(ticket)?;
            }
        }
        let mut op = journal.begin(StreamId(1), CREDITS)?;
        op.free(BlockNo(HOME), 1)?;
        set(&mut op, META + 1, 0, 7);
        let _ = op.commit();
        journal.sync(StreamId(1), &[])?;
        journal.sync_all()?;
        journal.checkpoint()?;
        journal.reclaim()?;
        sim.mark(1);
        Ok(())
    });
    soon(&others, "an unrelated commit").unwrap();
    assert_eq!(stage.pool.take(), vec![HOME]);
    not_yet(&slow, "the operation that reads");
    not_yet(&beside, "the operation beside it");
    stage.slow.let_go();
    soon(&slow, "the operation that reads").unwrap();
    soon(&beside, "the operation beside it").unwrap();
    stage.sim.mark(2);
    let durable = stage.sim.explorer().cut(usize::MAX).durable().clone();
    let config = Config::new(REGION, VOLUME).without_workers();
    let device = Arc::new(SimDevice::from_image(durable));
    let (after, _) = Journal::open(device, config).unwrap();
    let words = [(META, 0), (NODE, 8), (NODE, 16), (META + 1, 0)];
    let found = words.map(|(at, offset)| word(&after, at, offset).unwrap());
    assert_eq!(found, [100, 1, 1, 7]);
}

#[test]
fn corner_16_torn_blocks_are_made_whole_at_home_and_end_the_log() {
    for meta in [true, false] {
        let (home_torn, log_torn) = (Cell::new(0), Cell::new(0));
        let story = |faults| {
            let stage = Stage::new(faults);
            let target = if meta { NODE } else { HOME };
            let versions = |at: u64| {
                let first = stage.sim.explorer().cut(0).durable().clone();
                let mut found = vec![*first.block(BlockNo(at))];
                for event in stage.sim.trace() {
                    if let TraceEvent::Write { at: first, data } = event
                        && let Some(i) = at.checked_sub(first.0)
                        && let Some(block) = data.get(i as usize)
                    {
                        found.push(**block);
                    }
                }
                found
            };
            for n in 1..=3 {
                stage.op(0, |op| {
                    if meta {
                        // Some sectors, the one of the seal among them.
                        for offset in [600, 1300, 2100, 4000] {
                            set(op, NODE, offset, n);
                        }
                        set(op, NODE, 0, n);
                    } else {
                        // A range over the borders of sectors, in a record of as many.
                        op.write(BlockNo(HOME), Kind::Data, 600, &[n as u8; 2800])
                            .unwrap();
                        set(op, META, 0, n);
                    }
                });
                stage.ack(n);
                if n < 3 {
                    stage.journal.checkpoint().unwrap();
                }
            }
            let observe = |journal: &Journal| {
                let n = word(journal, if meta { NODE } else { META }, 0)?;
                let mut bytes = [if meta { 0 } else { GARBAGE }; BLOCK_SIZE];
                if meta {
                    [0, 600, 1300, 2100, 4000]
                        .iter()
                        .for_each(|offset| bytes[*offset] = n as u8);
                    expect_meta(journal, NODE, &bytes)?;
                } else {
                    if n > 0 {
                        bytes[600..3400].fill(n as u8);
                    }
                    expect_data(journal, HOME, &bytes)?;
                }
                Ok(n)
            };
            let home_versions = versions(target);
            let log_versions = [LOG, LOG + 1, LOG + 2].map(versions);
            let mut look = |image: &CrashImage| {
                let torn = |at: u64, versions: &[Block]| {
                    let mut block = [0; BLOCK_SIZE];
                    image.read(BlockNo(at), &mut block).unwrap();
                    !versions.contains(&block)
                };
                let log = (LOG..).zip(&log_versions);
                home_torn.set(home_torn.get() + u64::from(torn(target, &home_versions)));
                let any = log.into_iter().any(|(at, versions)| torn(at, versions));
                log_torn.set(log_torn.get() + u64::from(any));
            };
            stage.explore_and_look(&observe, &|acked, n| *n >= acked && *n <= 3, &mut look)
        };
        holds(story, &[fault!(skip_home_flush), fault!(skip_flush)]);
        let torn = (home_torn.get(), log_torn.get());
        // The record of a few words is one sector: it cannot tear.
        assert!(torn.0 > 60 && (meta || torn.1 > 200), "{torn:?}");
    }
}
