//! Records the actions of a journal, for the checkers that are extracted from the proofs
//! (`proofs/oracle`): every request of its device, with the bytes, and every decision of its
//! core, in the order in which they happened.
//!
//! The recorder knows nothing of the protocol. The kind of a write (a record, a tail header,
//! a block on its way home) is decoded afterwards from the bytes that were written, so a
//! trace cannot claim what the device did not get.
//!
//! | module | job |
//! |---|---|
//! | `running` | the lines of a running journal |
//! | `recovery` | the lines of a cut, and of the recovery after it |
//! | `streams` | the lines of operations, transactions and records |

mod names;
mod recovery;
mod running;
mod streams;

pub use recovery::Cut;
pub use running::{Start, Trace};

use crate::layout::{Identity, TailHeader};
use crate::probe::{Decision, Probe};
use crate::recover::{HeaderState, read_headers};
use crate::{Config, Error, Kind, Region, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockDevice, BlockNo, Geometry};

/// Something that happened.
#[derive(Clone, Debug)]
enum Event {
    /// Consecutive blocks begin to be written; the write's name.
    Write(u64, BlockNo, Arc<[Block]>),
    /// That write has returned.
    Written(u64),
    /// A flush begins; its name.
    Flush(u64),
    /// It has succeeded.
    Flushed(u64),
    Decided(Decision),
    /// A client has read this.
    Read(BlockNo, Kind, Arc<Block>),
}

type Mark = Box<dyn Fn(usize) + Send + Sync>;

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    /// Name of the newest request.
    newest: u64,
    recording: bool,
}

struct Shared {
    log: Mutex<Log>,
    mark: Option<Mark>,
}

impl Shared {
    /// A plain lock, also under explored schedules: no other thread is scheduled while it is held.
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, event: impl FnOnce(&mut Log) -> Event) {
        let mut log = self.log();
        if !log.recording {
            return;
        }
        let event = event(&mut log);
        log.events.push(event);
        if let Some(mark) = &self.mark {
            mark(log.events.len());
        }
    }

    /// Notes a request's beginning, and names it.
    fn begin(&self, event: impl FnOnce(u64) -> Event) -> u64 {
        let mut name = 0;
        self.note(|log| {
            log.newest += 1;
            name = log.newest;
            event(name)
        });
        name
    }
}

/// Records one journal.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

impl Recorder {
    /// A recorder; `mark` gets the number of events, at the start and after each event, so that a device with its own
    /// trace can be cut at the same event.
    #[must_use]
    pub fn new(mark: Option<Mark>) -> Recorder {
        let log = Mutex::default();
        Recorder {
            shared: Arc::new(Shared { log, mark }),
        }
    }

    /// The device through which the journal is to work.
    #[must_use]
    pub fn device(&self, device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        let shared = Arc::clone(&self.shared);
        Arc::new(Recorded { device, shared })
    }

    /// The probe for the journal's configuration.
    #[must_use]
    pub fn probe(&self) -> Probe {
        let shared = Arc::clone(&self.shared);
        Probe::new(move |decision| shared.note(|_| Event::Decided(decision)))
    }

    /// Records everything from now on.
    pub fn start(&self) {
        let mut log = self.shared.log();
        log.events.clear();
        log.recording = true;
        if let Some(mark) = &self.shared.mark {
            mark(0);
        }
    }

    /// Ends the recording; returns the events.
    fn stop(&self) -> Vec<Event> {
        let mut log = self.shared.log();
        log.recording = false;
        std::mem::take(&mut log.events)
    }

    /// A client has read a block with nothing uncommitted in it.
    pub fn read(&self, at: BlockNo, kind: Kind, image: &Arc<Block>) {
        let image = Arc::clone(image);
        self.shared.note(|_| Event::Read(at, kind, image));
    }
}

/// Notes the requests to a device.
struct Recorded {
    device: Arc<dyn BlockDevice>,
    shared: Arc<Shared>,
}

impl Recorded {
    fn begin(&self, at: BlockNo, segments: &[&[u8]]) -> u64 {
        let blocks = segments
            .iter()
            .flat_map(|segment| segment.as_chunks::<BLOCK_SIZE>().0);
        let blocks: Arc<[Block]> = blocks.copied().collect();
        self.shared.begin(|name| Event::Write(name, at, blocks))
    }
}

impl BlockDevice for Recorded {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.device.read(at, buf)
    }

    fn read_scattered(&self, reads: &mut [(BlockNo, &mut [u8])]) -> steadfast_block::Result<()> {
        self.device.read_scattered(reads)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        let name = self.begin(at, segments);
        self.device.write(at, segments)?;
        self.shared.note(|_| Event::Written(name));
        Ok(())
    }

    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> steadfast_block::Result<()> {
        let begun: Vec<u64> = writes.iter().map(|w| self.begin(w.0, w.1)).collect();
        self.device.write_scattered(writes)?;
        for name in begun {
            self.shared.note(|_| Event::Written(name));
        }
        Ok(())
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        let name = self.shared.begin(Event::Flush);
        self.device.flush()?;
        self.shared.note(|_| Event::Flushed(name));
        Ok(())
    }

    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.device.discard(at, count)
    }
}

/// The volume whose journal is recorded, as it was when the recording began.
#[derive(Clone)]
struct Volume {
    region: Region,
    identity: Identity,
    device_blocks: u64,
    /// The newer header then, and its slot: where the checker's numbers begin.
    header: TailHeader,
    newer: usize,
}

/// Place of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// One of the two header slots, as the checker counts them: the newer one at the start is 0.
    Header(usize),
    /// A block of the log.
    Log(u64),
    Home,
}

impl Volume {
    fn read(device: &dyn BlockDevice, config: &Config) -> Result<Volume> {
        let identity = Identity::new(config.volume);
        let states = read_headers(device, &config.region, &identity)?;
        let valid = states
            .iter()
            .enumerate()
            .filter_map(|(slot, state)| match state {
                HeaderState::Valid(header) => Some((slot, *header)),
                _ => None,
            });
        let newest = valid.max_by_key(|(_, header)| header.generation);
        let Some((newer, header)) = newest else {
            return Err(Error::Corrupt {
                what: "there is no valid tail header".into(),
            });
        };
        Ok(Volume {
            region: config.region,
            identity,
            device_blocks: device.geometry().blocks,
            header,
            newer,
        })
    }

    fn place(&self, at: BlockNo) -> Place {
        let Region {
            headers,
            log,
            log_blocks,
        } = self.region;
        match headers.iter().position(|header| *header == at) {
            Some(slot) => Place::Header(usize::from(slot != self.newer)),
            None if (log.0..log.0 + log_blocks).contains(&at.0) => {
                let behind = at.0 - log.0 + log_blocks - self.header.tail_pos % log_blocks;
                Place::Log(behind % log_blocks)
            }
            None => Place::Home,
        }
    }

    // The checker counts from the header at the start: epoch and generation 1, sequence and position 0.

    fn epoch(&self, epoch: u64) -> u64 {
        (epoch + 1).wrapping_sub(self.header.epoch)
    }

    fn generation(&self, generation: u64) -> u64 {
        (generation + 1).wrapping_sub(self.header.generation)
    }

    fn seq(&self, seq: u64) -> u64 {
        seq.wrapping_sub(self.header.tail_seq)
    }

    fn pos(&self, pos: u64) -> u64 {
        pos.wrapping_sub(self.header.tail_pos)
    }

    /// "Durable up to `flushed`" is "the records before this one are durable" there.
    fn flushed(&self, flushed: u64) -> u64 {
        self.seq(flushed + 1)
    }
}

fn read_block(device: &dyn BlockDevice, at: BlockNo) -> Result<Arc<Block>> {
    let mut buf = BlockBuf::zeroed(1);
    device.read(at, buf.as_bytes_mut())?;
    let mut block = [0; BLOCK_SIZE];
    block.copy_from_slice(buf.as_bytes());
    Ok(Arc::new(block))
}
