//! Blocks that are used, freed and used again: each stream has one block at a time, as data
//! around the log or as metadata with patches in the log, and few are left to choose from.

use super::{META, World, synced};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_journal::{Client, Credits, Journal, Kind, Op, Result, StreamId, Ticket};
use steadfast_sim::SimDevice;

/// Blocks to choose from.
const POOL: std::ops::Range<u64> = 70..74;

/// The allocator.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Vec<u64>>);

impl Client for Pool {
    fn close(&self, op: Op<'_>, _: &[u64]) -> Result<Ticket> {
        Ok(op.commit())
    }

    fn released(&self, runs: &[(BlockNo, u64)]) {
        for (at, count) in runs {
            self.0.lock().unwrap().extend(at.0..at.0 + count);
        }
    }
}

/// A stream's block after each of its operations.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Held {
    at: u64,
    kind: Kind,
}

pub(crate) struct Lives {
    sim: Arc<SimDevice>,
    journal: Journal,
    pool: Arc<Pool>,
    history: [Mutex<Vec<Held>>; 2],
    done: [AtomicU64; 2],
}

/// Content of a stream's block after its operation `number`.
fn tag(stream: usize, number: u64) -> u64 {
    (stream as u64 + 1) << 32 | number
}

impl Lives {
    fn allocate(&self) -> u64 {
        // Every other block is in use or in quarantine, which reclaiming ends.
        for _ in 0..100 {
            let free = self.pool.0.lock().unwrap().pop();
            if let Some(at) = free {
                return at;
            }
            self.journal.reclaim().unwrap();
        }
        panic!("no block comes free");
    }

    /// The next operation of a stream: a new block in the place of the old one.
    fn replace(&self, stream: usize, kind: Kind) {
        let at = self.allocate();
        let credits = Credits {
            log_bytes: 600,
            data_blocks: 1,
        };
        let mut op = self
            .journal
            .begin(StreamId(stream as u32), credits)
            .unwrap();
        let number = self.done[stream].load(SeqCst) + 1;
        let home = BlockNo(at);
        match kind {
            Kind::Data => {
                let mut block = [number as u8; BLOCK_SIZE];
                block[..8].copy_from_slice(&tag(stream, number).to_le_bytes());
                op.write_around(home, vec![Arc::new(block)]).unwrap();
            }
            Kind::Meta => {
                op.zero(home, Kind::Meta).unwrap();
                op.write(home, Kind::Meta, 0, &tag(stream, number).to_le_bytes())
                    .unwrap();
            }
        }
        let old = self.history[stream].lock().unwrap().last().copied();
        if let Some(old) = old {
            op.free(BlockNo(old.at), 1).unwrap();
        }
        self.point(&mut op, stream, number, Held { at, kind });
        let _ = op.commit();
        self.done[stream].store(number, SeqCst);
    }

    /// The next operation of a stream: a patch of its metadata block.
    fn patch(&self, stream: usize) {
        let held = *self.history[stream].lock().unwrap().last().unwrap();
        assert_eq!(held.kind, Kind::Meta);
        let credits = Credits {
            log_bytes: 200,
            data_blocks: 0,
        };
        let mut op = self
            .journal
            .begin(StreamId(stream as u32), credits)
            .unwrap();
        let number = self.done[stream].load(SeqCst) + 1;
        op.write(
            BlockNo(held.at),
            Kind::Meta,
            0,
            &tag(stream, number).to_le_bytes(),
        )
        .unwrap();
        self.point(&mut op, stream, number, held);
        let _ = op.commit();
        self.done[stream].store(number, SeqCst);
    }

    fn point(&self, op: &mut Op<'_>, stream: usize, number: u64, held: Held) {
        let words = [number, held.at];
        op.write(
            META,
            Kind::Meta,
            16 * stream,
            words.map(u64::to_le_bytes).as_flattened(),
        )
        .unwrap();
        self.history[stream].lock().unwrap().push(held);
    }

    fn sync(&self, stream: usize) {
        let number = self.done[stream].load(SeqCst);
        self.journal.sync(StreamId(stream as u32), &[]).unwrap();
        synced(&self.sim, stream, number);
    }
}

impl World for Lives {
    fn new(sim: Arc<SimDevice>, journal: Journal) -> Arc<Lives> {
        let pool = Arc::new(Pool(Mutex::new(POOL.collect())));
        let client: Weak<dyn Client> = Arc::downgrade(&(pool.clone() as Arc<dyn Client>));
        journal.set_client(client);
        Arc::new(Lives {
            sim,
            journal,
            pool,
            history: Default::default(),
            done: Default::default(),
        })
    }

    const THREADS: &'static [fn(&Lives)] = &[
        |w| {
            w.replace(0, Kind::Data);
            w.sync(0);
            w.replace(0, Kind::Meta);
            w.patch(0);
            w.sync(0);
            w.replace(0, Kind::Data);
            w.sync(0);
            w.replace(0, Kind::Data);
        },
        |w| {
            w.replace(1, Kind::Meta);
            w.sync(1);
            w.replace(1, Kind::Data);
            w.sync(1);
            w.replace(1, Kind::Data);
            w.replace(1, Kind::Meta);
            w.sync(1);
            w.replace(1, Kind::Data);
            w.sync(1);
        },
        |w| {
            for stream in [0, 1, 0, 1] {
                w.journal.sync(StreamId(stream), &[]).unwrap();
                w.journal.checkpoint().unwrap();
            }
            w.journal.reclaim().unwrap();
        },
    ];

    fn complete(&self) {
        self.check(&self.journal, [5, 5]);
    }

    fn check(&self, journal: &Journal, least: [u64; 2]) {
        let block = journal.read(META, Kind::Meta).unwrap();
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        for stream in 0..2 {
            let (n, at) = (word(16 * stream), word(16 * stream + 8));
            assert!(n >= least[stream], "stream {stream}: {n} of {least:?}");
            if n == 0 {
                continue;
            }
            let held = self.history[stream].lock().unwrap()[n as usize - 1];
            assert_eq!(held.at, at, "stream {stream} has another block");
            let mut content = [0; BLOCK_SIZE];
            match held.kind {
                Kind::Meta => content = *journal.read(BlockNo(at), Kind::Meta).unwrap(),
                Kind::Data => journal.read_data(BlockNo(at), &mut content).unwrap(),
            }
            assert_eq!(
                content[..8],
                tag(stream, n).to_le_bytes(),
                "stream {stream} holds something else in block {at}"
            );
            if held.kind == Kind::Data {
                assert!(content[8..].iter().all(|byte| *byte == n as u8));
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
        let last = |history: &Mutex<Vec<Held>>| history.lock().unwrap().last().copied();
        let held = self.history.iter().filter_map(last);
        let held = held.map(|held| (BlockNo(held.at), held.kind));
        held.chain([(META, Kind::Meta)]).collect()
    }
}
