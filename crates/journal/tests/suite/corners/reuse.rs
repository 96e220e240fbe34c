//! Blocks that live more than once: freed, reused around the log, begun again.

use super::*;
use steadfast_journal::{Error, META_BYTES};

/// The block that lives on.
const HOME: u64 = DATA + 3;

/// Content of the register: the number of steps of the story that are there.
fn step(journal: &Journal) -> std::result::Result<u64, String> {
    word(journal, META, 0)
}

/// Metadata as `begin` leaves it.
fn metadata(value: u8) -> [u8; META_BYTES] {
    let mut bytes = [0; META_BYTES];
    bytes[100..3000].fill(value);
    bytes
}

fn begin(op: &mut Op<'_>, at: u64, value: u8) {
    op.zero(BlockNo(at), Kind::Meta).unwrap();
    op.write(BlockNo(at), Kind::Meta, 100, &[value; 2900])
        .unwrap();
}

#[test]
fn corner_02_an_old_record_of_a_metadata_block_spares_the_file_data_that_reuses_it() {
    for homed in [false, true] {
        let story = |faults| {
            let stage = Stage::new(faults);
            stage.op(0, |op| {
                begin(op, HOME, 0xaa);
                set(op, META, 0, 1);
            });
            stage.ack(1);
            if homed {
                // Its home is written, and its next patch is in the log again.
                stage.journal.checkpoint().unwrap();
                stage.op(0, |op| {
                    op.write(BlockNo(HOME), Kind::Meta, 100, &[0xaa; 8])
                        .unwrap();
                });
                stage.ack(1);
            }
            stage.op(0, |op| {
                op.free(BlockNo(HOME), 1).unwrap();
                set(op, META, 0, 2);
            });
            stage.ack(2);
            stage.released(HOME);
            stage.op(0, |op| {
                around(op, HOME, 3);
                set(op, META, 0, 3);
            });
            stage.ack(3);
            stage.journal.checkpoint().unwrap();
            let observe = |journal: &Journal| {
                let n = step(journal)?;
                match n {
                    1 => expect_meta(journal, HOME, &metadata(0xaa))?,
                    3 => expect_data(journal, HOME, &page(3)[..])?,
                    _ => {}
                }
                Ok(n)
            };
            stage.explore(&observe, &|acked, n| *n >= acked && *n <= 3)
        };
        holds(story, &[fault!(drop_revoke)]);
    }
}

/// State of a block's patch when the block is freed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Patched {
    Pending,
    BeingCommitted,
    Committed,
}

#[test]
fn corner_03_a_block_with_a_patch_anywhere_is_written_around_the_log_only_in_its_next_life() {
    for patched in [
        Patched::Pending,
        Patched::BeingCommitted,
        Patched::Committed,
    ] {
        let story = |faults| {
            let stage = Stage::new(faults);
            let home = BlockNo(HOME);
            stage.op(0, |op| {
                around(op, HOME, 1);
                set(op, META, 0, 1);
            });
            stage.ack(1);
            stage.journal.checkpoint().unwrap();
            let writes_to_home = || {
                let trace = stage.sim.trace();
                let hits = trace.iter().filter(|event| {
                    matches!(event, TraceEvent::Write { at, data }
                        if (at.0..at.0 + data.len() as u64).contains(&HOME))
                });
                hits.count()
            };
            let before = writes_to_home();
            // The whole block, as the patch that an overwrite of it must be.
            stage.op(0, |op| {
                op.write(home, Kind::Data, 0, &page(2)[..]).unwrap();
                set(op, META, 0, 2);
            });
            let syncing = match patched {
                Patched::Pending => None,
                Patched::BeingCommitted => {
                    stage.slow.arm(Stop::Flush);
                    let syncing = stage.sync_in_thread(0);
                    stage.slow.until_inside();
                    Some(syncing)
                }
                Patched::Committed => {
                    stage.ack(2);
                    None
                }
            };
            stage.op(0, |op| {
                op.free(home, 1).unwrap();
                set(op, META, 0, 3);
            });
            if let Some(syncing) = syncing {
                stage.slow.let_go();
                soon(&syncing, "the sync of the patch").unwrap();
                stage.sim.mark(2);
            }
            if !stage.pool.take().is_empty() {
                return Err("released before the record that frees it".into());
            }
            stage.ack(3);
            assert_eq!(writes_to_home(), before, "written before its next life");
            stage.released(HOME);
            stage.op(0, |op| {
                around(op, HOME, 4);
                set(op, META, 0, 4);
            });
            stage.ack(4);
            let observe = |journal: &Journal| {
                let n = step(journal)?;
                match n {
                    1 | 2 | 4 => expect_data(journal, HOME, &page(n as u8)[..])?,
                    _ => {}
                }
                Ok(n)
            };
            // Freed in the transaction that patched it, it never was without the end of its life.
            let skips = |n: u64| patched == Patched::Pending && n == 2;
            stage.explore(&observe, &|acked, n| *n >= acked && *n <= 4 && !skips(*n))
        };
        let broken: &[Faults] = match patched {
            // The only patch ends with the block's life, in its own transaction.
            Patched::Pending => &[fault!(reuse_early)],
            _ => &[fault!(drop_revoke), fault!(reuse_early)],
        };
        holds(story, broken);
    }
}

#[test]
fn corner_03_a_write_around_the_log_waits_for_the_checkpoint_of_patches_in_it() {
    let stage = Stage::new(Faults::default());
    let refused = || {
        let mut op = stage.journal.begin(StreamId(0), CREDITS).unwrap();
        let both = vec![page(7), page(7)];
        let written = op.write_around(BlockNo(HOME - 1), both);
        // Nothing remains of the operation.
        let _ = op.commit();
        matches!(written, Err(Error::Logged { at }) if at.0 == HOME)
    };
    stage.op(0, |op| {
        op.write(BlockNo(HOME), Kind::Data, 0, &page(1)[..])
            .unwrap();
        set(op, META, 0, 1);
    });
    stage.slow.arm(Stop::Flush);
    let syncing = stage.sync_in_thread(0);
    stage.slow.until_inside();
    assert!(refused(), "while its patch is being committed");
    stage.slow.let_go();
    soon(&syncing, "the sync of the patch").unwrap();
    stage.sim.mark(1);
    assert!(refused(), "while its patch is in the log");
    stage.slow.arm(Stop::Write(META, BLOCKS));
    let checkpoint = stage.checkpoint_in_thread();
    stage.slow.until_inside();
    assert!(refused(), "while it is on its way home");
    stage.slow.let_go();
    soon(&checkpoint, "the checkpoint").unwrap();
    stage.op(0, |op| {
        around(op, HOME, 2);
        set(op, META, 0, 2);
    });
    stage.ack(2);
    let observe = |journal: &Journal| {
        let n = step(journal)?;
        // In place is no new life: until the record is there, it is either version's home.
        if n == 2 {
            expect_data(journal, HOME, &page(2)[..])?;
        }
        expect_data(journal, HOME - 1, &page(GARBAGE)[..])?;
        Ok(n)
    };
    let explored = stage.explore(&observe, &|acked, n| *n >= acked && *n <= 2);
    explored.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn corner_03_a_block_patched_by_a_transaction_that_closes_beside_the_operation_stays_whole() {
    let stage = Stage::new(Faults::default());
    stage.op(0, |op| {
        op.zero(BlockNo(HOME), Kind::Data).unwrap();
        op.write(BlockNo(HOME), Kind::Data, 0, &[1; 100]).unwrap();
        set(op, META, 0, 1);
    });
    let mut op = stage.journal.begin(StreamId(0), CREDITS).unwrap();
    let written = op.write_around(BlockNo(HOME), vec![page(2)]);
    // The transaction that began the block closes before the operation joins it.
    stage.journal.sync(StreamId(0), &[]).unwrap();
    stage.sim.mark(1);
    if written.is_ok() {
        set(&mut op, META, 0, 2);
    }
    let _ = op.commit();
    stage.ack(if written.is_ok() { 2 } else { 1 });
    stage.journal.checkpoint().unwrap();
    let observe = |journal: &Journal| {
        let n = step(journal)?;
        let mut bytes = [2; BLOCK_SIZE];
        if n == 1 {
            bytes.fill(0);
            bytes[..100].fill(1);
        }
        if n > 0 {
            expect_data(journal, HOME, &bytes)?;
        }
        Ok(n)
    };
    let explored = stage.explore(&observe, &|acked, n| *n >= acked && *n <= 2);
    explored.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn corner_54_patches_of_a_directory_block_stay_off_the_file_that_follows_it() {
    let story = |faults| {
        let stage = Stage::new(faults);
        // A directory block that is at home, and is patched by two streams.
        stage.op(0, |op| {
            begin(op, HOME, 1);
            set(op, META, 0, 1);
        });
        stage.ack(1);
        stage.journal.checkpoint().unwrap();
        let mut directory = metadata(1);
        for (stream, offset) in [(1, 200), (2, 2000)] {
            stage.op(stream, |op| {
                op.write(BlockNo(HOME), Kind::Meta, offset, &[9; 100])
                    .unwrap();
                set(op, META, 8 * stream as usize, 1);
            });
        }
        stage.op(0, |op| set(op, META, 0, 2));
        stage.ack(2);
        directory[200..300].fill(9);
        directory[2000..2100].fill(9);
        // Free, file, free, directory, free, file: all with the same old patches in the log.
        for n in 3..=8 {
            if n % 2 == 0 {
                stage.released(HOME);
            }
            stage.op(n as u32 % 3, |op| {
                match n {
                    4 | 8 => around(op, HOME, n as u8),
                    6 => begin(op, HOME, 6),
                    _ => op.free(BlockNo(HOME), 1).unwrap(),
                }
                set(op, META, 0, n);
            });
            stage.ack(n);
        }
        let observe = |journal: &Journal| {
            let n = step(journal)?;
            match n {
                // The streams of the two patches end where they like.
                2 => expect_meta(journal, HOME, &directory)?,
                4 | 8 => expect_data(journal, HOME, &page(n as u8)[..])?,
                6 => expect_meta(journal, HOME, &metadata(6))?,
                _ => {}
            }
            Ok(n)
        };
        stage.explore(&observe, &|acked, n| *n >= acked && *n <= 8)
    };
    holds(story, &[fault!(drop_revoke)]);
}

/// A small append, logged as a patch; then the same block is overwritten around the log: in its
/// next life if the append was `synced`, else by the transaction that began its life.
fn small_append(synced: bool, faults: Faults) -> Outcome {
    let stage = Stage::new(faults);
    let small = [1; 100];
    stage.op(0, |op| {
        op.zero(BlockNo(HOME), Kind::Data).unwrap();
        op.write(BlockNo(HOME), Kind::Data, 0, &small).unwrap();
        set(op, META, 0, 1);
    });
    if synced {
        stage.ack(1);
        // The log has patches of the block: around it, the new bytes go elsewhere first.
        stage.op(0, |op| {
            op.free(BlockNo(HOME), 1).unwrap();
            around(op, HOME + 1, 2);
            set(op, META, 0, 2);
        });
        stage.ack(2);
        stage.released(HOME);
        stage.op(0, |op| {
            op.free(BlockNo(HOME + 1), 1).unwrap();
            around(op, HOME, 3);
            set(op, META, 0, 3);
        });
    } else {
        stage.op(0, |op| {
            let written = op.write_around(BlockNo(HOME), vec![page(3)]);
            if let Err(error) = written {
                // Refused, it is the patch that it must be then.
                assert!(matches!(error, Error::Logged { at } if at.0 == HOME));
                op.write(BlockNo(HOME), Kind::Data, 0, &page(3)[..])
                    .unwrap();
            }
            set(op, META, 0, 3);
        });
    }
    stage.ack(3);
    stage.op(0, |op| {
        op.write(BlockNo(HOME), Kind::Data, 50, &small).unwrap();
        set(op, META, 0, 4);
    });
    stage.ack(4);
    stage.journal.checkpoint().unwrap();
    let observe = |journal: &Journal| {
        let n = step(journal)?;
        let mut bytes = *page(3);
        match n {
            1 => {
                bytes.fill(0);
                bytes[..100].fill(1);
            }
            2 => expect_data(journal, HOME + 1, &page(2)[..])?,
            4 => bytes[50..150].fill(1),
            _ => {}
        }
        if matches!(n, 1 | 3 | 4) {
            expect_data(journal, HOME, &bytes)?;
        }
        Ok(n)
    };
    stage.explore(&observe, &|acked, n| {
        *n >= acked && *n <= 4 && (synced || !matches!(n, 1 | 2))
    })
}

#[test]
fn corner_54_a_small_append_in_the_log_stays_off_its_blocks_next_content() {
    holds(|faults| small_append(true, faults), &[fault!(drop_revoke)]);
}

#[test]
fn corner_54_an_overwrite_around_the_log_swallows_the_small_append_of_its_transaction() {
    holds(|faults| small_append(false, faults), &[]);
}

#[test]
fn corner_55_a_new_metadata_block_shows_no_byte_of_its_last_life() {
    // With `begun` false, the storage program forgets to say that a new life begins.
    let story = |begun: bool, homed: bool| {
        let stage = Stage::new(Faults::default());
        let patch = |n: u64, base: bool| {
            stage.op(0, |op| {
                if base {
                    op.zero(BlockNo(HOME), Kind::Meta).unwrap();
                }
                set(op, HOME, 500 * n as usize, n);
                set(op, META, 0, n);
            });
            stage.ack(n);
        };
        // The content at home is no metadata: without a base there is nothing to patch.
        let mut op = stage.journal.begin(StreamId(0), CREDITS).unwrap();
        let patched = op.write(BlockNo(HOME), Kind::Meta, 0, &[1]);
        assert!(matches!(patched, Err(Error::BadSeal { at }) if at.0 == HOME));
        drop(op);
        patch(1, true);
        if homed {
            stage.journal.checkpoint().unwrap();
        }
        stage.op(0, |op| {
            op.free(BlockNo(HOME), 1).unwrap();
            set(op, META, 0, 2);
        });
        stage.ack(2);
        stage.released(HOME);
        patch(3, begun);
        stage.journal.checkpoint().unwrap();
        patch(4, false);
        let observe = |journal: &Journal| {
            let n = step(journal)?;
            let mut bytes = [0; META_BYTES];
            let lives: &[u64] = match n {
                1 => &[1],
                3 => &[3],
                4 => &[3, 4],
                _ => return Ok(n),
            };
            for n in lives {
                bytes[500 * *n as usize] = *n as u8;
            }
            expect_meta(journal, HOME, &bytes)?;
            Ok(n)
        };
        stage.explore(&observe, &|acked, n| *n >= acked && *n <= 4)
    };
    for homed in [false, true] {
        holds(|_| story(true, homed), &[]);
    }
    let found = story(false, true).expect_err("bytes of the last life go unnoticed");
    println!("{found}");
}
