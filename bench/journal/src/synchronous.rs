//! Synchronous commits: create-like transactions of several threads, each with objects of its own, and
//! creations with everything that belongs to them.

use crate::device::{self, Counts};
use crate::figures::{Clocks, Figures};
use crate::volume::{BITS_PER_THREAD, Layout, OBJECTS_PER_BLOCK, contents, log_credits, object};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use steadfast_block::MemDevice;
use steadfast_journal::{Journal, Kind, Result, StreamId};

/// Object blocks of each thread.
const BLOCKS_PER_THREAD: u64 = 64;
const THREADS_MAX: u32 = 64;
/// 4 MiB, so that the log wraps in a short run.
const LOG_BLOCKS: u64 = 1024;
/// Times that the log is filled at least, so that home writes have their share.
const LAPS: u64 = 2;
/// A run that fills the log too slowly ends after this multiple of its time.
const LAPS_TIME_FACTOR: u32 = 10;
const POLL: Duration = Duration::from_millis(5);

/// The two bitmaps are the first metadata blocks; the objects follow.
const BITMAPS: u64 = 2;

/// One transaction: an object and a bit in each of two bitmaps that all threads share.
fn transaction(journal: &Journal, layout: &Layout, thread: u32, turn: u64) -> Result<()> {
    let first = BITMAPS + u64::from(thread) * BLOCKS_PER_THREAD;
    let (block, offset) = object(first, turn % (BLOCKS_PER_THREAD * OBJECTS_PER_BLOCK));
    let bit = u64::from(thread) * BITS_PER_THREAD + turn % BITS_PER_THREAD;
    let value = (turn / BITS_PER_THREAD).is_multiple_of(2);
    let mut op = journal.begin(StreamId(thread + 1), log_credits(256))?;
    op.write(layout.meta(block), Kind::Meta, offset, &contents(turn))?;
    for bitmap in 0..BITMAPS {
        op.set_bits(layout.meta(bitmap), bit as usize, 1, value)?;
    }
    let ticket = op.commit();
    journal.wait(ticket)
}

/// `threads` threads for at least `time` and until the log wrapped. All flushes and blocks until the journal
/// is closed are counted.
pub(crate) fn sync(
    name: &str,
    threads: u32,
    time: Duration,
) -> std::result::Result<Figures, String> {
    if threads > THREADS_MAX {
        return Err(format!(
            "{threads} threads: at most {THREADS_MAX} have objects"
        ));
    }
    let layout = Layout {
        log_blocks: LOG_BLOCKS,
        meta_blocks: BITMAPS + u64::from(THREADS_MAX) * BLOCKS_PER_THREAD,
        data_blocks: 0,
    };
    let device = device::open(name, layout.blocks())?;
    let (journal, counting) = layout.fresh(device)?;
    let stop = AtomicBool::new(false);
    let clocks = Clocks::start();
    let commits = thread::scope(|scope| {
        let work = |thread| {
            let (journal, stop) = (&journal, &stop);
            move || -> Result<u64> {
                let mut turn = 0;
                while !stop.load(Ordering::Relaxed) {
                    transaction(journal, &layout, thread, turn)?;
                    turn += 1;
                }
                Ok(turn)
            }
        };
        let running: Vec<_> = (0..threads).map(|t| scope.spawn(work(t))).collect();
        let enough = || counting.counts().journal_blocks >= LAPS * LOG_BLOCKS;
        while journal.failed().is_none()
            && (clocks.wall() < time || (!enough() && clocks.wall() < time * LAPS_TIME_FACTOR))
        {
            thread::sleep(POLL);
        }
        stop.store(true, Ordering::Relaxed);
        let mut commits = 0;
        for thread in running {
            let turns = thread.join().map_err(|_| "a thread panicked".to_owned())?;
            commits += turns.map_err(|e| e.to_string())?;
        }
        Ok::<u64, String>(commits)
    })?;
    let seconds = clocks.wall_seconds();
    journal.close().map_err(|e| e.to_string())?;
    let commits = commits as f64;
    let Counts {
        flushes,
        writes,
        blocks,
        journal_blocks,
    } = counting.counts();
    Ok(Figures::default()
        .with("commits", commits)
        .with("commits_per_second", commits / seconds)
        .with("flushes_per_commit", flushes as f64 / commits)
        .with("writes_per_commit", writes as f64 / commits)
        .with("blocks_per_commit", blocks as f64 / commits)
        .with("journal_blocks_per_commit", journal_blocks as f64 / commits)
        .with("cpu_us_per_commit", clocks.cpu_seconds() * 1e6 / commits)
        .with("log_laps", journal_blocks as f64 / LOG_BLOCKS as f64)
        .with("checkpoints", journal.stats().checkpoints as f64))
}

/// Directory blocks of the creations; as many as there are inode blocks.
const DIRECTORY_BLOCKS: u64 = 64;
const DENTRY_BYTES: usize = 64;
const FILE_BYTES: usize = 100;

/// `commits` creations of a small file, one after the other, each made durable: inode, entry, a bit for the
/// inode and one for the block, and 100 bytes in a new data block.
pub(crate) fn create(commits: u32) -> std::result::Result<Figures, String> {
    let commits = u64::from(commits);
    let layout = Layout {
        log_blocks: LOG_BLOCKS,
        meta_blocks: BITMAPS + 2 * DIRECTORY_BLOCKS,
        data_blocks: commits,
    };
    let device = Arc::new(MemDevice::new(layout.blocks()));
    let (journal, counting) = layout.fresh(device)?;
    let made = (0..commits).try_for_each(|turn| creation(&journal, &layout, turn));
    made.and_then(|()| journal.close())
        .map_err(|e| e.to_string())?;
    let counts = counting.counts();
    let commits = commits as f64;
    Ok(Figures::default()
        .with(
            "journal_blocks_per_commit",
            counts.journal_blocks as f64 / commits,
        )
        .with(
            "log_blocks_per_commit",
            journal.stats().log_blocks as f64 / commits,
        )
        .with("blocks_per_commit", counts.blocks as f64 / commits)
        .with("flushes_per_commit", counts.flushes as f64 / commits))
}

fn creation(journal: &Journal, layout: &Layout, turn: u64) -> Result<()> {
    let objects = DIRECTORY_BLOCKS * OBJECTS_PER_BLOCK;
    let (inode_block, inode_offset) = object(BITMAPS, turn % objects);
    let (entry_block, entry_offset) = object(BITMAPS + DIRECTORY_BLOCKS, turn % objects);
    let bit = (turn % (BITS_PER_THREAD * 64)) as usize;
    let value = (turn / (BITS_PER_THREAD * 64)).is_multiple_of(2);
    let bytes = contents(turn);
    let mut op = journal.begin(StreamId(1), log_credits(600))?;
    op.write(layout.meta(inode_block), Kind::Meta, inode_offset, &bytes)?;
    let entry = &bytes[..DENTRY_BYTES];
    op.write(layout.meta(entry_block), Kind::Meta, entry_offset, entry)?;
    for bitmap in 0..BITMAPS {
        op.set_bits(layout.meta(bitmap), bit, 1, value)?;
    }
    let data = layout.data(turn);
    op.zero(data, Kind::Data)?;
    op.write(data, Kind::Data, 0, &bytes[..FILE_BYTES])?;
    let ticket = op.commit();
    journal.wait(ticket)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_synchronous_run_wraps_the_log_and_counts_its_flushes() {
        let figures = sync("memory", 2, Duration::from_secs(1)).unwrap();
        assert!(figures.get("log_laps") >= LAPS as f64);
        assert!(figures.get("checkpoints") >= 1.0);
        let flushes = figures.get("flushes_per_commit");
        assert!(flushes > 0.0 && flushes < 2.0, "{flushes}");
        assert!(sync("memory", THREADS_MAX + 1, Duration::from_millis(50)).is_err());
    }

    #[test]
    fn a_creation_is_logged_whole_and_its_log_blocks_are_counted() {
        let figures = create(300).unwrap();
        let logged = figures.get("log_blocks_per_commit");
        assert!(logged >= 1.0, "{logged}");
        assert!(figures.get("journal_blocks_per_commit") > logged);
        assert!(figures.get("blocks_per_commit") > figures.get("journal_blocks_per_commit"));
    }
}
