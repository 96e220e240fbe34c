//! Two streams, what they have in common, a checkpointer: each stream recovers a prefix, and so do
//! the operations on the shared object, and those on the same bytes, in their one order each. All
//! touch the same times, which the operations on the same bytes write: each begins a new life of them.

use super::{META, World, synced};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_journal::{Access, Credits, Journal, Kind, Lockmap, Object, StreamId};
use steadfast_sim::SimDevice;

const DATA: u64 = 70;
/// Runs of blocks that one operation writes around the log.
const RUNS: u64 = 5;
const SHARED: Object = Object::File(9);
/// Each operation on the shared object writes a word of its own from here on.
const WORDS: usize = 2048;
/// The word that the operations on the same bytes write.
const WORD: usize = 1536;

/// Offset at which a life's newest value counts: `time` identifies the life, and the stream of the value.
const TIME: usize = 1600;

fn time(life: usize, stream: usize, number: u64) -> u64 {
    (life as u64) << 32 | (stream as u64) << 16 | number
}

/// Relation of an operation to those of the other stream.
#[derive(Clone, Copy)]
enum Common {
    Object,
    Bytes,
}

/// History of related operations in their order, as (stream, number).
#[derive(Default)]
struct History {
    common: [Mutex<Vec<(usize, u64)>>; 2],
    /// Operations that wrote around the log, by stream.
    around: [Mutex<Vec<u64>>; 2],
    /// Life of the times of each operation, by stream: (number, life).
    lives: [Mutex<Vec<(u64, usize)>>; 2],
    done: [AtomicU64; 2],
}

pub(crate) struct Prefix {
    sim: Arc<SimDevice>,
    journal: Journal,
    locks: Lockmap,
    history: History,
}

/// Blocks that an operation writes around the log.
fn homes(stream: usize, number: u64) -> impl Iterator<Item = BlockNo> {
    (0..RUNS).map(move |i| BlockNo(DATA + 30 * stream as u64 + RUNS * number + i))
}

impl Prefix {
    /// The next operation of a stream: counts it, and names it; perhaps on the common
    /// object, perhaps with a new block around the log.
    fn act(&self, stream: usize, common: Option<Common>, around: bool) {
        let number = self.history.done[stream].load(SeqCst) + 1;
        let credits = Credits {
            log_bytes: 800,
            data_blocks: RUNS,
        };
        let mut op = self
            .journal
            .begin(StreamId(stream as u32), credits)
            .unwrap();
        let set = self.locks.acquire(match common {
            None => &[(1, Access::Shared)],
            Some(Common::Object) => &[(0, Access::Exclusive), (1, Access::Shared)],
            Some(Common::Bytes) => &[(1, Access::Exclusive)],
        });
        if let Some(common) = common {
            let mut order = self.history.common[common as usize].lock().unwrap();
            order.push((stream, number));
            let length = order.len();
            drop(order);
            let at = match common {
                Common::Object => {
                    op.relate(SHARED, Access::Exclusive);
                    WORDS + 8 * length
                }
                Common::Bytes => WORD,
            };
            op.write(META, Kind::Meta, at, &length.to_le_bytes())
                .unwrap();
        }
        op.write(META, Kind::Meta, 8 * stream, &number.to_le_bytes())
            .unwrap();
        op.set_bits(META, 8 * 512 + 64 * stream + number as usize, 1, true)
            .unwrap();
        op.add(META, 1024, 1).unwrap();
        let life = self.history.common[1].lock().unwrap().len();
        self.history.lives[stream]
            .lock()
            .unwrap()
            .push((number, life));
        let time = time(life, stream, number).to_le_bytes();
        match common {
            Some(Common::Bytes) => op.write(META, Kind::Meta, TIME, &time).unwrap(),
            _ => op.write_latest(META, TIME, &time).unwrap(),
        }
        if around {
            // Many writes: others commit meanwhile.
            self.history.around[stream].lock().unwrap().push(number);
            for home in homes(stream, number) {
                op.write_around(home, vec![Arc::new([number as u8; BLOCK_SIZE])])
                    .unwrap();
            }
        }
        let _ = op.commit();
        drop(set);
        self.history.done[stream].store(number, SeqCst);
    }

    fn sync(&self, stream: usize) {
        let number = self.history.done[stream].load(SeqCst);
        self.journal.sync(StreamId(stream as u32), &[]).unwrap();
        synced(&self.sim, stream, number);
    }
}

impl World for Prefix {
    fn new(sim: Arc<SimDevice>, journal: Journal) -> Arc<Prefix> {
        Arc::new(Prefix {
            sim,
            journal,
            locks: Lockmap::new(),
            history: History::default(),
        })
    }

    const THREADS: &'static [fn(&Prefix)] = &[
        |w| {
            w.act(0, None, true);
            w.act(0, Some(Common::Object), false);
            w.sync(0);
            w.act(0, Some(Common::Bytes), true);
            w.sync(0);
            w.act(0, Some(Common::Object), true);
            w.sync(0);
            w.act(0, Some(Common::Bytes), false);
        },
        |w| {
            w.act(1, Some(Common::Object), false);
            w.act(1, Some(Common::Bytes), false);
            w.sync(1);
            w.act(1, Some(Common::Bytes), true);
            w.sync(1);
            w.act(1, Some(Common::Object), false);
            w.sync(1);
        },
        |w| {
            w.journal.checkpoint().unwrap();
            w.journal.sync(StreamId(7), &[SHARED]).unwrap();
            w.journal.checkpoint().unwrap();
            w.journal.reclaim().unwrap();
        },
    ];

    fn complete(&self) {
        self.check(&self.journal, [5, 4]);
    }

    fn check(&self, journal: &Journal, least: [u64; 2]) {
        let block = journal.read(META, Kind::Meta).unwrap();
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        let count = [word(0), word(8)];
        for stream in 0..2 {
            let n = count[stream];
            assert!(n >= least[stream], "stream {stream}: {n} of {least:?}");
            assert_eq!(
                word(512 + 8 * stream),
                (1 << (n + 1)) - 2,
                "stream {stream} has a hole"
            );
        }
        assert_eq!(word(1024), count[0] + count[1], "the counter is wrong");
        for (stream, around) in self.history.around.iter().enumerate() {
            let around = around.lock().unwrap();
            let inside = around.iter().filter(|number| **number <= count[stream]);
            for (number, home) in inside.flat_map(|n| homes(stream, *n).map(move |h| (n, h))) {
                let mut content = [0; BLOCK_SIZE];
                journal.read_data(home, &mut content).unwrap();
                assert_eq!(content, [*number as u8; BLOCK_SIZE], "{home:?}");
            }
        }
        for common in [Common::Object, Common::Bytes] {
            let order = self.history.common[common as usize].lock().unwrap();
            let inside = order.iter().filter(|(s, n)| *n <= count[*s]).count();
            let first = order.iter().take_while(|(s, n)| *n <= count[*s]).count();
            assert_eq!(inside, first, "{order:?} at {count:?} has a hole");
            match common {
                Common::Object => {
                    let words = (1..=order.len()).map(|i| word(WORDS + 8 * i));
                    let wanted = (1..=order.len()).map(|i| if i <= first { i as u64 } else { 0 });
                    assert!(words.eq(wanted), "{order:?} at {count:?}");
                }
                Common::Bytes => {
                    assert_eq!(word(WORD), first as u64, "{order:?} at {count:?}");
                    let (life, stream) = (word(TIME) >> 32, word(TIME) >> 16 & 1);
                    assert_eq!(
                        life, first as u64,
                        "times of another life: {order:?} at {count:?}"
                    );
                    let number = word(TIME) & 0xffff;
                    let own = self.history.lives[stream as usize].lock().unwrap();
                    let laid = |(n, l): &&(u64, usize)| *n <= count[stream as usize] && *l == first;
                    let newest = own.iter().filter(laid).map(|(n, _)| *n).max();
                    assert!(
                        newest.is_none_or(|n| number >= n),
                        "{newest:?}: times of {number}"
                    );
                    assert!(number > 0 || count == [0, 0], "no times at {count:?}");
                }
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
        vec![(META, Kind::Meta)]
    }
}
