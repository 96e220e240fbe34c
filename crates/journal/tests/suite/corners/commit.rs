//! One record, one flush: covered data, overwrites of it, absorption.

use super::*;
use std::cell::Cell;
use steadfast_journal::COVERED_BLOCKS_MAX;

const HOME: u64 = DATA + 3;

fn step(journal: &Journal) -> std::result::Result<u64, String> {
    word(journal, META, 0)
}

fn half(op: &mut Op<'_>, at: u64, value: u8) {
    let bytes = [value; BLOCK_SIZE / 2];
    op.write(BlockNo(at), Kind::Data, 0, &bytes).unwrap();
}

fn halves(low: u8, high: u8) -> [u8; BLOCK_SIZE] {
    let mut block = [high; BLOCK_SIZE];
    block[..BLOCK_SIZE / 2].fill(low);
    block
}

#[test]
fn corner_04_a_record_counts_only_with_its_covered_data_and_data_only_with_its_record() {
    let (record_alone, data_alone, both) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let story = |faults| {
        let stage = Stage::new(faults);
        stage.op(0, |op| {
            op.write_around(BlockNo(HOME), vec![page(1), page(2)])
                .unwrap();
            set(op, META, 0, 1);
        });
        stage.ack(1);
        let observe = |journal: &Journal| {
            let n = step(journal)?;
            if n == 1 {
                expect_data(journal, HOME, &page(1)[..])?;
                expect_data(journal, HOME + 1, &page(2)[..])?;
            }
            Ok(n)
        };
        let written = stage.sim.image();
        let mut look = |image: &CrashImage| {
            let survived = |at: u64| {
                let mut block = [0; BLOCK_SIZE];
                image.read(BlockNo(at), &mut block).unwrap();
                block == *written.block(BlockNo(at))
            };
            let data = [survived(HOME), survived(HOME + 1)];
            let seen = match (survived(LOG), data) {
                (true, [true, true]) => &both,
                (true, _) => &record_alone,
                (false, [true, true]) => &data_alone,
                _ => return,
            };
            seen.set(seen.get() + 1);
        };
        stage.explore_and_look(&observe, &|acked, n| *n >= acked && *n <= 1, &mut look)
    };
    holds(story, &[fault!(skip_covered_check), fault!(skip_flush)]);
    let seen = [&record_alone, &data_alone, &both].map(Cell::get);
    assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
}

#[test]
fn corner_04_data_too_long_for_a_list_is_durable_before_its_record_is_written() {
    let blocks = COVERED_BLOCKS_MAX + 1;
    let story = |faults| {
        let stage = Stage::new(faults);
        let credits = Credits {
            log_bytes: 300,
            data_blocks: blocks,
        };
        let mut op = stage.journal.begin(StreamId(0), credits).unwrap();
        op.write_around(BlockNo(HOME), vec![page(1); blocks as usize])
            .unwrap();
        set(&mut op, META, 0, 1);
        let _ = op.commit();
        stage.ack(1);
        let observe = |journal: &Journal| {
            let n = step(journal)?;
            for at in HOME..HOME + n * blocks {
                expect_data(journal, at, &page(1)[..])?;
            }
            Ok(n)
        };
        stage.explore(&observe, &|acked, n| *n >= acked && *n <= 1)
    };
    holds(story, &[fault!(skip_flush)]);
}

#[test]
fn corner_05_a_covered_block_that_is_overwritten_before_its_proof_fails_no_check() {
    let story = |faults| {
        let stage = Stage::new(faults);
        stage.op(0, |op| {
            around(op, HOME, 1);
            set(op, META, 0, 1);
        });
        stage.ack(1);
        stage.op(0, |op| {
            half(op, HOME, 2);
            set(op, META, 0, 2);
        });
        // Nothing newer is in the log, and all that is there goes home.
        stage.journal.checkpoint().unwrap();
        stage.ack(2);
        stage.op(0, |op| {
            half(op, HOME, 3);
            set(op, META, 0, 3);
        });
        stage.journal.checkpoint().unwrap();
        stage.ack(3);
        let observe = |journal: &Journal| {
            let n = step(journal)?;
            if n > 0 {
                expect_data(journal, HOME, &halves(n as u8, 1))?;
            }
            Ok(n)
        };
        stage.explore(&observe, &|acked, n| *n >= acked && *n <= 3)
    };
    holds(story, &[fault!(install_unproved)]);
}

#[test]
fn corner_05_a_block_covered_and_freed_by_one_record_is_reused_after_its_proof() {
    // By one transaction, or by two of different streams that share the record.
    for streams in [1, 2] {
        let story = |faults| {
            let stage = Stage::new(faults);
            let covers = |op: &mut Op<'_>| {
                around(op, HOME, 1);
                set(op, META, 0, 1);
            };
            let frees = |op: &mut Op<'_>| {
                op.free(BlockNo(HOME), 1).unwrap();
                set(op, META, 0, 2);
            };
            if streams == 1 {
                stage.op(0, covers);
                stage.op(0, frees);
            } else {
                stage.op(9, |op| set(op, META + 1, 0, 1));
                stage.slow.arm(Stop::Flush);
                let other = stage.sync_in_thread(9);
                stage.slow.until_inside();
                let stats = || stage.journal.stats();
                stage.op(1, covers);
                let first = stage.sync_in_thread(1);
                until("the covered write", || stats().around_blocks == 1);
                stage.op(2, frees);
                let second = stage.sync_in_thread(2);
                until("the freeing transaction", || stats().transactions == 3);
                stage.slow.let_go();
                for sync in [other, first, second] {
                    soon(&sync, "a sync").unwrap();
                }
                assert_eq!((stats().merges, stats().commits), (0, 2));
            }
            stage.ack(2);
            let at_once = !stage.pool.0.lock().unwrap().is_empty();
            assert_eq!(at_once, faults.reuse_early);
            stage.released(HOME);
            stage.op(0, |op| {
                around(op, HOME, 3);
                set(op, META, 0, 3);
            });
            stage.ack(3);
            let observe = |journal: &Journal| {
                let n = step(journal)?;
                if matches!(n, 1 | 3) {
                    expect_data(journal, HOME, &page(n as u8)[..])?;
                }
                Ok(n)
            };
            stage.explore(&observe, &|acked, n| *n >= acked && matches!(n, 0 | 2 | 3))
        };
        holds(story, &[fault!(reuse_early)]);
    }
}

/// State of a transaction when the next operation of its stream comes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    /// Closed, after another stream's record.
    Closed,
    Written,
    Flushed,
}

/// Offset of a directory's times in block `META + 1`.
const TIME: usize = 400;

fn touch(op: &mut Op<'_>, value: u64) {
    op.write_latest(BlockNo(META + 1), TIME, &value.to_le_bytes())
        .unwrap();
}

/// Stream 1 touches the directory, and its transaction waits for slow data.
fn touch_with_slow_data(stage: &Stage) -> Receiver<Result<()>> {
    stage.op(1, |op| {
        around(op, HOME, 1);
        set(op, META, 0, 1);
        touch(op, 1);
    });
    stage.slow.arm(Stop::Write(HOME, HOME + 1));
    let sync = stage.sync_in_thread(1);
    stage.slow.until_inside();
    sync
}

/// Story: a transaction that touched a directory was still to be laid when the next one removed the
/// directory, and a third reused its inode. The first one's record had the times of the inode's new
/// owner, and a cut left the directory with them.
#[test]
fn a_touched_directory_keeps_its_times_until_its_removal_is_durable() {
    let story = |faults| {
        let stage = Stage::new(faults);
        let first = touch_with_slow_data(&stage);
        stage.op(1, |op| {
            set(op, META + 1, TIME, 0);
            set(op, META, 0, 2);
        });
        stage.op(2, |op| {
            touch(op, 9);
            set(op, META, 8, 3);
        });
        stage.slow.let_go();
        soon(&first, "the sync of the touched directory").unwrap();
        assert_eq!(stage.journal.stats().commits, 1);
        stage.sim.mark(1);
        stage.ack(3);
        let observe = |journal: &Journal| {
            let n = step(journal)?.max(word(journal, META, 8)?);
            let time = word(journal, META + 1, TIME)?;
            let right = [0, 1, 0, 9][n as usize];
            (time == right)
                .then_some(n)
                .ok_or(format!("time {time} with state {n}"))
        };
        stage.explore(&observe, &|acked, n| *n >= acked)
    };
    holds(story, &[fault!(newest_when_laid)]);
}

/// Two streams touch a directory and do not relate: the one that closed later is laid first. Its times
/// stay, although the other's record comes after its own.
#[test]
fn a_directory_has_the_times_of_the_transaction_that_closed_last_whatever_is_laid_first() {
    let story = |faults| {
        let stage = Stage::new(faults);
        let first = touch_with_slow_data(&stage);
        stage.op(2, |op| {
            set(op, META, 8, 2);
            touch(op, 2);
        });
        stage.journal.sync(StreamId(2), &[]).unwrap();
        stage.sim.mark(2);
        stage.slow.let_go();
        soon(&first, "the sync of slow data").map_err(|e| e.to_string())?;
        assert_eq!(
            (stage.journal.stats().merges, stage.journal.stats().commits),
            (0, 2)
        );
        stage.journal.sync_all().map_err(|e| e.to_string())?;
        stage.sim.mark(3);
        let observe = |journal: &Journal| {
            let (first, second) = (step(journal)?, word(journal, META, 8)?);
            let time = word(journal, META + 1, TIME)?;
            if time != second {
                return Err(format!("time {time} with {first} and {second}"));
            }
            Ok(first + second)
        };
        stage.explore(&observe, &|acked, n| *n >= acked && *n != 1)
    };
    holds(story, &[fault!(keep_overtaken)]);
}

#[test]
fn corner_06_nothing_is_absorbed_into_a_transaction_that_is_closed_or_being_written() {
    for way in [Way::Closed, Way::Written, Way::Flushed] {
        let story = |faults| {
            let stage = Stage::new(faults);
            // Overwritten bytes, bytes of one's own, a counter, bits: the same blocks each time.
            let change = |n: u64| {
                stage.op(1, |op| {
                    set(op, META, 0, n);
                    set(op, META, 8 * n as usize, n);
                    op.write(BlockNo(META), Kind::Meta, 1000, &[n as u8; 2000])
                        .unwrap();
                    op.add(BlockNo(META + 1), 0, 1).unwrap();
                    op.set_bits(BlockNo(META + 1), 640 + n as usize, 1, true)
                        .unwrap();
                    op.write_latest(BlockNo(META + 1), 400, &n.to_le_bytes())
                        .unwrap();
                    set(op, META + 2, 0, n);
                });
            };
            let stats = || stage.journal.stats();
            let other = (way == Way::Closed).then(|| {
                stage.op(9, |op| set(op, META + 3, 0, 1));
                stage.slow.arm(Stop::Flush);
                let other = stage.sync_in_thread(9);
                stage.slow.until_inside();
                other
            });
            change(1);
            let sync = match way {
                Way::Closed => {
                    let sync = stage.sync_in_thread(1);
                    until("the closed transaction", || stats().transactions == 2);
                    sync
                }
                Way::Written | Way::Flushed => {
                    stage.slow.arm(match way {
                        Way::Written => Stop::Write(LOG, META),
                        _ => Stop::Flush,
                    });
                    let sync = stage.sync_in_thread(1);
                    stage.slow.until_inside();
                    sync
                }
            };
            change(2);
            not_yet(&sync, "the sync of the first change");
            stage.slow.let_go();
            soon(&sync, "the sync of the first change").unwrap();
            if let Some(other) = other {
                soon(&other, "the other stream's sync").unwrap();
            }
            // The second change is in memory, and so it stays: a cut here leaves the first.
            let seen = word(&stage.journal, META, 0).unwrap();
            assert_eq!((seen, stage.journal.usage().2), (2, 1));
            stage.sim.mark(1);
            stage.journal.checkpoint().unwrap();
            stage.sim.mark(2);
            stage.ack(3);
            let observe = |journal: &Journal| {
                let n = step(journal)?;
                let mut first = [0; 4000];
                let mut second = [0; 4000];
                first[0] = n as u8;
                (1..=n).for_each(|n| first[8 * n as usize] = n as u8);
                first[1000..3000].fill(n as u8);
                second[0] = n as u8;
                (1..=n).for_each(|n| second[80] |= 1 << n);
                second[400] = n as u8;
                expect_meta(journal, META, &first)?;
                second[400] = n as u8;
                expect_meta(journal, META + 1, &second)?;
                if word(journal, META + 2, 0)? != n {
                    return Err(format!("half of change {n}"));
                }
                Ok(n)
            };
            let allowed = |acked: u64, n: &u64| match acked {
                0 => *n <= 1,
                1 | 2 => matches!(n, 1 | 2),
                _ => *n == 2,
            };
            stage.explore(&observe, &allowed)
        };
        let broken: &[Faults] = match way {
            Way::Closed => &[fault!(absorb_frozen)],
            Way::Written | Way::Flushed => &[],
        };
        holds(story, broken);
    }
}

#[test]
fn corner_23_an_overwrite_of_a_block_whose_append_commits_is_a_second_version() {
    // The append's data, its record, or its flush is under way.
    let stops = [
        Stop::Write(HOME, HOME + 1),
        Stop::Write(LOG, META),
        Stop::Flush,
    ];
    for stop in stops {
        for overwriter in [0, 1] {
            let story = |faults| {
                let stage = Stage::new(faults);
                stage.op(0, |op| {
                    around(op, HOME, 1);
                    set(op, META, 0, 1);
                });
                stage.slow.arm(stop);
                let append = stage.sync_in_thread(0);
                stage.slow.until_inside();
                stage.op(overwriter, |op| {
                    half(op, HOME, 2);
                    set(op, META, 0, 2);
                });
                let overwrite = stage.sync_in_thread(overwriter);
                not_yet(&overwrite, "the overwrite's sync");
                stage.slow.let_go();
                soon(&append, "the append's sync").unwrap();
                soon(&overwrite, "the overwrite's sync").unwrap();
                assert_eq!(stage.journal.stats().commits, 2);
                stage.ack(2);
                // A third version, while everything before it goes home.
                stage.op(overwriter, |op| {
                    half(op, HOME, 3);
                    set(op, META, 0, 3);
                });
                stage.journal.checkpoint().unwrap();
                stage.ack(3);
                let observe = |journal: &Journal| {
                    let n = step(journal)?;
                    if n > 0 {
                        expect_data(journal, HOME, &halves(n as u8, 1))?;
                    }
                    Ok(n)
                };
                stage.explore(&observe, &|acked, n| *n >= acked && *n <= 3)
            };
            holds(story, &[fault!(skip_covered_check)]);
        }
    }
}
