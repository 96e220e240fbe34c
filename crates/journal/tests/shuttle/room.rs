//! A log that is too small: every operation takes a tenth of it, so admission waits for
//! checkpoints, records wrap, and reservations are all that keeps one from the next.

use super::{META, World, synced};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_journal::{Credits, Journal, Kind, StreamId};
use steadfast_sim::SimDevice;

/// Each stream's blocks.
const BLOCKS: [u64; 2] = [70, 76];
const BLOCKS_EACH: u64 = 6;

/// With `WORKERS`, checkpoints run in the background, and use the flushes of commits.
pub(crate) struct Room<const WORKERS: bool> {
    sim: Arc<SimDevice>,
    journal: Journal,
    done: [AtomicU64; 2],
}

impl<const WORKERS: bool> Room<WORKERS> {
    /// The next operation of a stream: its number into all of its blocks.
    fn fill(&self, stream: usize) {
        let credits = Credits {
            log_bytes: BLOCKS_EACH * (BLOCK_SIZE as u64 + 64) + 64,
            data_blocks: 0,
        };
        let mut op = self
            .journal
            .begin(StreamId(stream as u32), credits)
            .unwrap();
        let number = self.done[stream].load(SeqCst) + 1;
        for i in 0..BLOCKS_EACH {
            let at = BlockNo(BLOCKS[stream] + i);
            if number == 1 {
                op.zero(at, Kind::Data).unwrap();
            }
            op.write(at, Kind::Data, 0, &[number as u8; BLOCK_SIZE])
                .unwrap();
        }
        op.write(META, Kind::Meta, 8 * stream, &number.to_le_bytes())
            .unwrap();
        let _ = op.commit();
        self.done[stream].store(number, SeqCst);
    }

    fn sync(&self, stream: usize) {
        let number = self.done[stream].load(SeqCst);
        self.journal.sync(StreamId(stream as u32), &[]).unwrap();
        synced(&self.sim, stream, number);
    }
}

impl<const WORKERS: bool> World for Room<WORKERS> {
    fn new(sim: Arc<SimDevice>, journal: Journal) -> Arc<Self> {
        if WORKERS {
            journal.start_workers();
        }
        Arc::new(Room {
            sim,
            journal,
            done: Default::default(),
        })
    }

    const THREADS: &'static [fn(&Self)] = &[
        |w| {
            for _ in 0..3 {
                w.fill(0);
                w.sync(0);
            }
            w.fill(0);
            w.fill(0);
        },
        |w| {
            for _ in 0..3 {
                w.fill(1);
                w.fill(1);
                w.sync(1);
            }
        },
    ];

    fn complete(&self) {
        self.check(&self.journal, [5, 6]);
    }

    fn check(&self, journal: &Journal, least: [u64; 2]) {
        let block = journal.read(META, Kind::Meta).unwrap();
        for stream in 0..2 {
            let n = u64::from_le_bytes(block[8 * stream..8 * stream + 8].try_into().unwrap());
            assert!(n >= least[stream], "stream {stream}: {n} of {least:?}");
            for i in 0..if n > 0 { BLOCKS_EACH } else { 0 } {
                let at = BlockNo(BLOCKS[stream] + i);
                let content = journal.read(at, Kind::Data).unwrap();
                assert_eq!(*content, [n as u8; BLOCK_SIZE], "stream {stream}, {at:?}");
            }
        }
    }

    fn journal(&self) -> &Journal {
        &self.journal
    }

    fn sim(&self) -> &Arc<SimDevice> {
        &self.sim
    }

    fn reads(&self) -> Vec<(BlockNo, Kind)> {
        let blocks = BLOCKS.iter().flat_map(|first| *first..first + BLOCKS_EACH);
        let blocks = blocks.map(|at| (BlockNo(at), Kind::Data));
        blocks.chain([(META, Kind::Meta)]).collect()
    }
}
