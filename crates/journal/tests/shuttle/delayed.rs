//! Work that is put off until a transaction closes: streams write into memory, and their blocks are
//! allocated and written at a sync.

use super::{META, World, synced};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_journal::{
    Access, Client, Credits, Journal, Kind, Object, Op, Result, StreamId, Ticket,
};
use steadfast_sim::SimDevice;

const DATA: u64 = 70;
/// Bytes that one closing logs.
const CLOSING_BYTES: u64 = 200;
/// The pointer to the newest written block of a stream.
const POINTER: usize = 512;
const SHARED: Object = Object::File(3);

/// Delayed work, by stream: the newest number.
pub(crate) struct Cache {
    waiting: Mutex<BTreeMap<u64, u64>>,
    next: AtomicU64,
}

impl Client for Cache {
    fn close(&self, mut op: Op<'_>, keys: &[u64]) -> Result<Ticket> {
        for key in keys {
            let Some(number) = self.waiting.lock().unwrap().remove(key) else {
                continue;
            };
            let at = BlockNo(DATA + self.next.fetch_add(1, SeqCst));
            op.write_around(at, vec![Arc::new([number as u8; BLOCK_SIZE])])?;
            let words = [number, at.0].map(u64::to_le_bytes);
            let place = POINTER + 16 * *key as usize;
            op.write(META, Kind::Meta, place, words.as_flattened())?;
        }
        Ok(op.commit())
    }

    fn released(&self, _: &[(BlockNo, u64)]) {}
}

pub(crate) struct Delayed {
    sim: Arc<SimDevice>,
    journal: Journal,
    cache: Arc<Cache>,
    done: [AtomicU64; 2],
}

impl Delayed {
    /// The next write of a stream, kept in memory until its transaction closes.
    fn write(&self, stream: usize, shared: bool) {
        let credits = Credits {
            log_bytes: 200 + CLOSING_BYTES,
            data_blocks: 1,
        };
        let mut op = self
            .journal
            .begin(StreamId(stream as u32), credits)
            .unwrap();
        let number = self.done[stream].load(SeqCst) + 1;
        if shared {
            op.relate(SHARED, Access::Shared);
        }
        op.write(META, Kind::Meta, 8 * stream, &number.to_le_bytes())
            .unwrap();
        op.add(META, 1024, 1).unwrap();
        let closing = Credits {
            log_bytes: CLOSING_BYTES,
            data_blocks: 1,
        };
        op.attach(stream as u64, closing).unwrap();
        // Nothing closes while an operation is open.
        self.cache
            .waiting
            .lock()
            .unwrap()
            .insert(stream as u64, number);
        let _ = op.commit();
        self.done[stream].store(number, SeqCst);
    }

    fn sync(&self, stream: usize) {
        let number = self.done[stream].load(SeqCst);
        self.journal.sync(StreamId(stream as u32), &[]).unwrap();
        synced(&self.sim, stream, number);
    }
}

impl World for Delayed {
    fn new(sim: Arc<SimDevice>, journal: Journal) -> Arc<Delayed> {
        let cache = Arc::new(Cache {
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let client: Weak<dyn Client> = Arc::downgrade(&(cache.clone() as Arc<dyn Client>));
        journal.set_client(client);
        Arc::new(Delayed {
            sim,
            journal,
            cache,
            done: Default::default(),
        })
    }

    const THREADS: &'static [fn(&Delayed)] = &[
        |w| {
            w.write(0, false);
            w.write(0, true);
            w.sync(0);
            w.write(0, false);
            w.sync(0);
            w.write(0, true);
        },
        |w| {
            w.write(1, true);
            w.sync(1);
            w.write(1, false);
            w.sync(1);
        },
        |w| {
            w.journal.sync(StreamId(7), &[SHARED]).unwrap();
            w.journal.checkpoint().unwrap();
            w.journal.sync_all().unwrap();
        },
    ];

    fn complete(&self) {
        self.journal.sync_all().unwrap();
        self.check(&self.journal, [4, 2]);
    }

    fn check(&self, journal: &Journal, least: [u64; 2]) {
        let block = journal.read(META, Kind::Meta).unwrap();
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        for stream in 0..2 {
            let n = word(8 * stream);
            assert!(n >= least[stream], "stream {stream}: {n} of {least:?}");
            let (written, at) = (word(POINTER + 16 * stream), word(POINTER + 16 * stream + 8));
            assert_eq!(written, n, "stream {stream} closed without its data");
            if n > 0 {
                let mut content = [0; BLOCK_SIZE];
                journal.read_data(BlockNo(at), &mut content).unwrap();
                assert_eq!(content, [n as u8; BLOCK_SIZE], "stream {stream}");
            }
        }
        assert_eq!(word(1024), word(0) + word(8), "the counter is wrong");
    }

    fn journal(&self) -> &Journal {
        &self.journal
    }

    fn sim(&self) -> &Arc<SimDevice> {
        &self.sim
    }

    fn reads(&self) -> Vec<(BlockNo, Kind)> {
        vec![(META, Kind::Meta)]
    }
}
