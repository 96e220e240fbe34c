//! The lines of a running journal, for `oracle journal`.

use super::names::{Names, SECTORS};
use super::{Event, Place, Recorder, Volume, read_block};
use crate::core::Run;
use crate::layout::{Homes, TailHeader};
use crate::probe::Decision;
use crate::record::{Covered, Entries, RECORD_HEADER_BYTES, Record, RecordClaim, decode_record};
use crate::seal::place;
use crate::{Config, Kind, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo, SECTOR_SIZE};

/// A volume at the beginning of a trace.
#[derive(Clone)]
pub struct Start {
    volume: Volume,
    contents: Arc<[Arc<Block>]>,
    used: Vec<BlockNo>,
}

impl Start {
    /// Reads the whole volume, whose journal has just recovered; `used` are the blocks that the
    /// client has in use, all others are free.
    ///
    /// # Errors
    /// A read error, or no valid tail header.
    pub fn read(device: &dyn BlockDevice, config: &Config, used: &[BlockNo]) -> Result<Start> {
        let blocks = 0..device.geometry().blocks;
        let contents: Result<Vec<Arc<Block>>> =
            blocks.map(|at| read_block(device, BlockNo(at))).collect();
        Ok(Start {
            volume: Volume::read(device, config)?,
            contents: contents?.into(),
            used: used.to_vec(),
        })
    }
}

/// A part of a record, or a tail header, that was written: possible bytes of a block.
#[derive(Clone)]
pub(super) struct Written {
    /// Number of events up to its write, that included.
    pub(super) at: usize,
    pub(super) place: Place,
    /// The bytes that count; the bytes after them are filling.
    pub(super) bytes: Arc<[u8]>,
    /// The checker's name for it.
    pub(super) name: String,
}

/// A running journal's events as lines, and the state that is needed to cut it anywhere.
#[derive(Clone)]
pub struct Trace {
    pub(super) volume: Volume,
    pub(super) start: Arc<[Arc<Block>]>,
    pub(super) events: Vec<Event>,
    pub(super) names: Names,
    /// Everything recognisable that the log and the headers may hold, oldest first.
    pub(super) written: Vec<Written>,
    lines: String,
    /// Number of lines after each number of events.
    pub(super) counts: Vec<usize>,
    pub(super) streams: String,
}

impl Trace {
    /// Ends the recording, and decodes it.
    #[must_use]
    pub fn of(start: &Start, recorder: &Recorder) -> Trace {
        let events = recorder.stop();
        let mut running = Running {
            trace: Trace {
                volume: start.volume.clone(),
                start: Arc::clone(&start.contents),
                events: Vec::new(),
                names: Names::default(),
                written: Vec::new(),
                lines: String::new(),
                counts: vec![0],
                streams: super::streams::lines(&events),
            },
            used: &start.used,
            led_to: HashMap::new(),
            data: HashMap::new(),
            round: BTreeSet::new(),
            writes: BTreeMap::new(),
            newer: Place::Header(0),
            parts_left: 0,
            laid: (Vec::new(), Vec::new()),
        };
        running.begin();
        for at in 0..events.len() {
            running.step(&events, at);
        }
        let mut trace = running.trace;
        trace.events = events;
        trace
    }

    /// The lines of the running journal, `trace` first.
    #[must_use]
    pub fn lines(&self) -> &str {
        &self.lines
    }

    /// The lines of its streams, `trace` first.
    #[must_use]
    pub fn streams(&self) -> &str {
        &self.streams
    }

    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

/// Content that is being written.
enum Writing {
    Record,
    Header,
    /// Home blocks: those of the round, and those around the log.
    Homes(Vec<(BlockNo, bool)>),
}

struct Running<'a> {
    trace: Trace,
    used: &'a [BlockNo],
    /// Content of each block by the log's records.
    led_to: HashMap<u64, Block>,
    /// Newest content written around the log.
    data: HashMap<u64, Block>,
    /// Images that the round under way has chosen and not written.
    round: BTreeSet<u64>,
    writes: BTreeMap<u64, Writing>,
    /// Slot of the newest header.
    newer: Place,
    /// Writes of the record under way that have not returned.
    parts_left: usize,
    /// The blocks that the next record frees, and those that it has written around the log.
    laid: (Vec<Run>, Vec<Run>),
}

impl Running<'_> {
    fn line(&mut self, line: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.trace.lines, "{line}");
        if let Some(count) = self.trace.counts.last_mut() {
            *count += 1;
        }
    }

    fn begin(&mut self) {
        let mut first = format!("trace {}", self.trace.volume.region.log_blocks);
        for at in self.used {
            let content = self.trace.names.block(&self.trace.start[at.0 as usize]);
            let _ = write!(first, " {}:{content}", at.0);
        }
        first.push('\n');
        self.trace.lines = first;
        let newer = self.trace.volume.region.headers[self.trace.volume.newer];
        self.trace.written.push(Written {
            at: 0,
            place: Place::Header(0),
            bytes: header_bytes(&self.trace.start[newer.0 as usize]),
            name: "1".into(),
        });
    }

    fn step(&mut self, events: &[Event], at: usize) {
        let before = self.trace.counts.last().copied().unwrap_or_default();
        self.trace.counts.push(before);
        match &events[at] {
            Event::Write(name, first, blocks) => {
                let writing = match self.trace.volume.place(*first) {
                    Place::Header(_) => self.header(at, *first, &blocks[0]),
                    Place::Log(_) => self.log(events, at),
                    Place::Home => self.homes(*first, blocks),
                };
                self.writes.insert(*name, writing);
            }
            Event::Written(name) => match self.writes.remove(name) {
                Some(Writing::Record) => {
                    self.parts_left = self.parts_left.saturating_sub(1);
                    if self.parts_left == 0 {
                        self.line("record-done");
                    }
                }
                Some(Writing::Header) => self.line("tail-done"),
                Some(Writing::Homes(blocks)) => {
                    for (at, home) in blocks {
                        let what = if home { "home-done" } else { "data-done" };
                        self.line(format_args!("{what} {at}"));
                    }
                }
                None => {}
            },
            Event::Flush(name) => self.line(format_args!("flush {name}")),
            Event::Flushed(name) => self.line(format_args!("flushed {name}")),
            Event::Decided(decision) => self.decided(decision),
            Event::Read(at, kind, image) => {
                let mut wanted = [true; SECTORS];
                // The seal is placed on the way home.
                wanted[SECTORS - 1] = *kind == Kind::Data;
                let content = self.trace.names.sectors(image, wanted);
                self.line(format_args!("read {at} {content}"));
            }
        }
    }

    fn decided(&mut self, decision: &Decision) {
        match decision {
            Decision::Committed { .. } | Decision::Frozen(_) => {}
            Decision::Laid { frees, around, .. } => self.laid = (frees.clone(), around.clone()),
            Decision::Acknowledged => self.line("ack"),
            Decision::Released(runs) => {
                for at in blocks_of(runs) {
                    self.line(format_args!("release {at}"));
                }
            }
            Decision::Round(blocks) => {
                self.round = blocks.iter().map(|at| at.0).collect();
                self.line("round");
            }
            Decision::Trimmed => self.line("round-end"),
        }
    }

    fn homes(&mut self, first: BlockNo, blocks: &[Block]) -> Writing {
        let mut written = Vec::new();
        for (i, block) in blocks.iter().enumerate() {
            let at = first.offset(i as u64);
            let home = self.round.remove(&at.0);
            let content = self.trace.names.block(block);
            let what = if home { "home" } else { "data" };
            self.line(format_args!("{what} {at} {content}"));
            if !home {
                self.data.insert(at.0, *block);
            }
            written.push((at, home));
        }
        Writing::Homes(written)
    }

    fn header(&mut self, event: usize, at: BlockNo, block: &Block) -> Writing {
        let volume = &self.trace.volume;
        if std::mem::replace(&mut self.newer, volume.place(at)) == volume.place(at) {
            self.line("tail over the newer header");
            return Writing::Header;
        }
        match TailHeader::decode(&volume.identity, block) {
            Ok(header) => {
                let generation = volume.generation(header.generation);
                let line = format!(
                    "tail {generation} {} {} {} {}",
                    volume.epoch(header.epoch),
                    volume.seq(header.tail_seq),
                    volume.pos(header.tail_pos),
                    volume.flushed(header.flushed_seq)
                );
                self.trace.written.push(Written {
                    at: event + 1,
                    place: self.trace.volume.place(at),
                    bytes: header_bytes(block),
                    name: generation.to_string(),
                });
                self.line(line);
            }
            Err(why) => self.line(format_args!("tail that is none: {why}")),
        }
        Writing::Header
    }

    /// A write to the log: the first one of a record identifies the record, which takes all of them.
    fn log(&mut self, events: &[Event], at: usize) -> Writing {
        if self.parts_left > 0 {
            return Writing::Record;
        }
        let volume = self.trace.volume.clone();
        let mut bytes: Vec<u8> = Vec::new();
        let mut claim = None;
        for event in &events[at..] {
            let Event::Write(_, first, blocks) = event else {
                continue;
            };
            if !matches!(volume.place(*first), Place::Log(_)) {
                continue;
            }
            bytes.extend(blocks.as_flattened());
            self.parts_left += 1;
            claim = claim.or_else(|| RecordClaim::read(&volume.identity, &bytes).ok());
            let whole =
                |claim: &RecordClaim| bytes.len() as u64 >= claim.blocks * BLOCK_SIZE as u64;
            if claim.as_ref().is_none_or(whole) {
                break;
            }
        }
        let homes = Homes {
            region: &volume.region,
            device_blocks: volume.device_blocks,
        };
        match decode_record(&volume.identity, &bytes, homes) {
            Ok(Some(record)) => self.record(at, &record, &bytes),
            Ok(None) => self.line("record that is none"),
            Err(error) => self.line(format_args!("record that is none: {error}")),
        }
        Writing::Record
    }

    fn record(&mut self, event: usize, record: &Record, bytes: &[u8]) {
        let volume = self.trace.volume.clone();
        let (id, len) = (record.id, bytes.len() / BLOCK_SIZE);
        let (epoch, seq, pos) = (
            volume.epoch(id.epoch),
            volume.seq(id.seq),
            volume.pos(id.pos),
        );
        let end = RECORD_HEADER_BYTES + record.body_bytes as usize;
        for (part, block) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
            let counts = end.saturating_sub(part * BLOCK_SIZE).min(BLOCK_SIZE);
            self.trace.written.push(Written {
                at: event + 1,
                place: Place::Log((pos + part as u64) % volume.region.log_blocks),
                bytes: block[..counts].into(),
                name: format!("{seq} {epoch} {part}"),
            });
        }
        let flushed = volume.flushed(id.flushed_seq);
        let mut line = format!("record {epoch} {seq} {pos} {len} {flushed}");
        let (frees, around) = std::mem::take(&mut self.laid);
        let freed: BTreeSet<u64> = blocks_of(&frees).map(|at| at.0).collect();
        let mut told = BTreeSet::new();
        for entry in Entries::of(record, bytes) {
            let at = entry.at;
            told.insert(at);
            if entry.revoke {
                let _ = write!(line, " r:{at}");
                self.led_to.remove(&at);
                continue;
            }
            let start = &self.trace.start[at as usize];
            let known = self.data.get(&at).unwrap_or(start);
            let image = self.led_to.entry(at).or_insert(*known);
            entry.apply(bytes, image);
            let mut touched = [entry.zero; SECTORS];
            for (offset, bytes) in entry.ranges(bytes) {
                touched[offset / SECTOR_SIZE..(offset + bytes.len()).div_ceil(SECTOR_SIZE)]
                    .fill(true);
            }
            for (first, count, _) in entry.bits(bytes) {
                touched[first / 8 / SECTOR_SIZE..(first + count).div_ceil(8 * SECTOR_SIZE)]
                    .fill(true);
            }
            if entry.meta {
                place(BlockNo(at), image, entry.checksum);
                touched[SECTORS - 1] = true;
            }
            let kind = if entry.zero { 'z' } else { 'p' };
            let content = self.trace.names.sectors(image, touched);
            let _ = write!(line, " {kind}:{at}:{content}");
        }
        for run in &record.covered {
            for i in 0..u64::from(run.count) {
                let at = run.at.0 + i;
                told.insert(at);
                let content = self.covered(run, at);
                let freed = if freed.contains(&at) { "cf" } else { "c" };
                let _ = write!(line, " {freed}:{at}:{content}");
            }
        }
        for at in blocks_of(&around).map(|at| at.0) {
            if told.insert(at) {
                let content = self.around(at);
                let freed = if freed.contains(&at) { "uf" } else { "u" };
                let _ = write!(line, " {freed}:{at}:{content}");
            }
        }
        for at in freed {
            if told.insert(at) {
                let _ = write!(line, " f:{at}");
            }
        }
        self.line(line);
    }

    /// The content of a block that a record covers: the bytes written there, if they match the record's hash.
    fn covered(&mut self, run: &Covered, at: u64) -> String {
        let blocks = run.at.0..run.at.0 + u64::from(run.count);
        let written: Option<Vec<Block>> = blocks.map(|at| self.data.get(&at).copied()).collect();
        let holds = written.is_some_and(|blocks| {
            self.trace
                .volume
                .identity
                .covered_hash(run.at, blocks.iter())
                == run.hash
        });
        if holds {
            self.around(at)
        } else {
            self.trace.names.nothing()
        }
    }

    /// Name of the content written around the log there; it is the block's new life.
    fn around(&mut self, at: u64) -> String {
        self.led_to.remove(&at);
        match self.data.get(&at) {
            Some(block) => self.trace.names.block(block),
            None => self.trace.names.nothing(),
        }
    }
}

fn blocks_of(runs: &[Run]) -> impl Iterator<Item = BlockNo> + '_ {
    (runs.iter()).flat_map(|(first, count)| (0..*count).map(|i| first.offset(i)))
}

/// Bytes of a tail header, as `layout` has them; zeros follow.
const HEADER_BYTES: usize = 128;

/// The bytes of a header that count.
pub(super) fn header_bytes(block: &Block) -> Arc<[u8]> {
    block[..HEADER_BYTES].into()
}
