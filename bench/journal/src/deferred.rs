//! Deferred commits of 128-byte objects that are spread over 4096 blocks of a memory device.
//!
//! The commits per second are those until everything is durable; the processor time is that of all threads until
//! everything is written home, too.

use crate::figures::{Clocks, Figures};
use crate::volume::{Layout, OBJECTS_PER_BLOCK, contents, log_credits, object};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use steadfast_block::MemDevice;
use steadfast_journal::{Journal, Kind, Result, StreamId};

/// Blocks that the objects of all threads share.
const OBJECT_BLOCKS: u64 = 4096;
/// 64 MiB: the size that `mkfs` gives a volume of 1 GiB or more.
const LOG_BLOCKS: u64 = 16384;
/// Commits between two looks at the clock.
const BURST: u64 = 256;
/// Prime, and coprime to every count of objects here: consecutive commits go to distant blocks.
const STRIDE: u64 = 7919;

pub(crate) fn deferred(
    threads: u32,
    one_stream: bool,
    time: Duration,
) -> std::result::Result<Figures, String> {
    let layout = Layout {
        log_blocks: LOG_BLOCKS,
        meta_blocks: OBJECT_BLOCKS,
        data_blocks: 0,
    };
    let blocks_each = OBJECT_BLOCKS / u64::from(threads);
    if blocks_each == 0 {
        return Err(format!(
            "{threads} threads: at most {OBJECT_BLOCKS} have objects"
        ));
    }
    let device = Arc::new(MemDevice::new(layout.blocks()));
    let (journal, counting) = layout.fresh(device)?;
    // As in a program that has run for a while: the blocks are in the cache.
    for index in 0..OBJECT_BLOCKS {
        let read = journal.read(layout.meta(index), Kind::Meta);
        read.map_err(|e| e.to_string())?;
    }
    let clocks = Clocks::start();
    let commits = thread::scope(|scope| {
        let work = |thread: u32| {
            let (journal, clocks) = (&journal, &clocks);
            let stream = StreamId(if one_stream { 1 } else { thread + 1 });
            let first = u64::from(thread) * blocks_each;
            move || -> Result<u64> {
                let mut turn = 0;
                // One burst at least, however late a thread gets its turn.
                loop {
                    for _ in 0..BURST {
                        commit(journal, &layout, stream, first, blocks_each, turn)?;
                        turn += 1;
                    }
                    if clocks.wall() >= time {
                        return Ok(turn);
                    }
                }
            }
        };
        let running: Vec<_> = (0..threads).map(|t| scope.spawn(work(t))).collect();
        let mut commits = 0;
        for thread in running {
            let turns = thread.join().map_err(|_| "a thread panicked".to_owned())?;
            commits += turns.map_err(|e| e.to_string())?;
        }
        Ok::<u64, String>(commits)
    })?;
    journal.sync_all().map_err(|e| e.to_string())?;
    let seconds = clocks.wall_seconds();
    journal.close().map_err(|e| e.to_string())?;
    let commits = commits as f64;
    Ok(Figures::default()
        .with("commits", commits)
        .with("commits_per_second", commits / seconds)
        .with("cpu_us_per_commit", clocks.cpu_seconds() * 1e6 / commits)
        .with(
            "blocks_per_commit",
            counting.counts().blocks as f64 / commits,
        ))
}

fn commit(
    journal: &Journal,
    layout: &Layout,
    stream: StreamId,
    first: u64,
    blocks: u64,
    turn: u64,
) -> Result<()> {
    let (block, offset) = object(first, turn * STRIDE % (blocks * OBJECTS_PER_BLOCK));
    let mut op = journal.begin(stream, log_credits(160))?;
    op.write(layout.meta(block), Kind::Meta, offset, &contents(turn))?;
    let _ = op.commit();
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn deferred_commits_are_counted_whatever_their_streams() {
        for (threads, one_stream) in [(1, true), (2, true), (2, false)] {
            let figures = deferred(threads, one_stream, Duration::from_millis(20)).unwrap();
            assert!(figures.get("commits") >= (u64::from(threads) * BURST) as f64);
            assert!(figures.get("cpu_us_per_commit") > 0.0);
            // Everything reached the device, home blocks included.
            assert!(figures.get("blocks_per_commit") > 0.0);
        }
        assert!(deferred(5000, true, Duration::from_millis(1)).is_err());
    }
}
