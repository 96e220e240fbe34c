//! The write log on a cache device: flushes in order, each complete or absent.
//!
//! ```text
//! block 0, 1     headers, written in turn; the newer valid one counts
//! block 2 …      a ring of records
//! ```
//!
//! A *record* is a flush: a header of 128 bytes, then the contents of the flush, encoded like a slot object (in cells, hashed,
//! and encrypted if the volume is), padded to whole blocks. Records follow one another without gaps, and the next one is
//! written only after a flush of the device has made the last one durable.
//!
//! *Recovery* reads records from the header's tail on, until one is missing: its number or place is wrong, or a hash fails. If
//! a record with a higher number follows, the missing one was durable once: the device is damaged, and recovery reports it
//! instead of dropping flushes silently. Records of an earlier lap have lower numbers.
//!
//! The header names the *term* under which the records continue the volume's history. It changes to the term of this machine's
//! next ownership before that term is opened ([`Log::adopt`]), so after a crash in between either term is valid.

use crate::cache_kind::{CacheError, LOG_MAGIC, LOOKED_AT, is_reads};
use crate::fault::DeviceFault;
use crate::object::{
    Bad, CellKind, Coding, ENVELOPE, Entry, Epoch, Features, Keys, SlotBody, VolumeId, cell_offset,
    decode_slot, encode_epoch, push_cell, read_cell,
};
use crate::place::random_volume;
use crate::protocol::{ObjectName, Slot, SlotName, Term};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};

use super::contents::Contents;

const RECORD_MAGIC: [u8; 8] = *b"SFFLUSH\x01";
/// The first block of the ring.
const RING: u64 = 2;
/// Bytes of a record's header.
const RECORD_HEADER: usize = 128;
/// Fewest blocks of the ring.
pub(crate) const RING_MIN: u64 = 64;
/// Largest part of the ring that a flush may take (reciprocal).
const FLUSH_SHARE: u64 = 4;
/// Most blocks of a flush: 64 MiB.
const FLUSH_MOST: u64 = 1 << 14;
/// From this size, 256 MiB, log and read cache share a new cache. The log then has at most `LOG_MOST` blocks, 512 MiB.
const SHARED_FROM: u64 = 1 << 16;
const LOG_MOST: u64 = 1 << 17;
/// Space of a record besides its blocks: tables, headers of cells.
const OVERHEAD_PERCENT: u64 = 4;

/// The header of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    volume: VolumeId,
    /// The cache's own identity. The cells of its records are bound to it.
    id: VolumeId,
    generation: u64,
    ring: u64,
    /// Blocks of the device. The blocks after the ring are a read cache. 0: an older cache, which has none.
    device: u64,
    /// Place of the oldest record, and its number.
    tail: u64,
    first: u64,
    /// The term that the records continue, and the term before: see the module's header.
    pub(super) term: Term,
    pub(super) before: Term,
    /// The store has all slots up to this one.
    pub(super) stored: Slot,
}

impl Header {
    fn encode(&self) -> Block {
        let mut block = [0; BLOCK_SIZE];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&LOG_MAGIC);
        put(&1u64.to_le_bytes());
        put(&self.volume.0);
        put(&self.id.0);
        for number in [
            self.generation,
            self.ring,
            self.tail,
            self.first,
            self.term.0,
            self.before.0,
            self.stored.0,
            self.device,
        ] {
            put(&number.to_le_bytes());
        }
        let hash = blake3::hash(&block[..BLOCK_SIZE - 32]);
        block[BLOCK_SIZE - 32..].copy_from_slice(hash.as_bytes());
        block
    }

    fn decode(block: &Block) -> Result<Option<Header>, CacheError> {
        let hash = blake3::hash(&block[..BLOCK_SIZE - 32]);
        if block[..8] != LOG_MAGIC || block[BLOCK_SIZE - 32..] != *hash.as_bytes() {
            return Ok(None);
        }
        let number = |i: usize| u64_at(block, 48 + i * 8);
        let version = u64_at(block, 8);
        if version != 1 {
            return Err(CacheError::Version(version as u32));
        }
        let mut header = Header {
            volume: VolumeId([0; 16]),
            id: VolumeId([0; 16]),
            generation: number(0),
            ring: number(1),
            tail: number(2),
            first: number(3),
            term: Term(number(4)),
            before: Term(number(5)),
            stored: Slot(number(6)),
            device: number(7),
        };
        header.volume.0.copy_from_slice(&block[16..32]);
        header.id.0.copy_from_slice(&block[32..48]);
        Ok(Some(header))
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// A recovered flush.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) number: u64,
    pub(super) contents: Contents,
    /// End of its record.
    pub(super) end: u64,
}

/// Blocks of the log in a new cache of this size.
fn log_blocks(blocks: u64) -> u64 {
    match blocks < SHARED_FROM {
        true => blocks,
        false => (blocks / 2).min(LOG_MOST),
    }
}

/// See the module's header.
pub(super) struct Log {
    device: Arc<dyn BlockDevice>,
    coding: Coding,
    unit_blocks: usize,
    header: Header,
    /// Place of the next record, and its number.
    head: u64,
    next: u64,
    fault: Option<DeviceFault>,
}

/// The header of a record.
struct Record {
    number: u64,
    at: u64,
    length: usize,
    /// The hash in the envelope of the contents.
    body: [u8; 32],
}

impl Record {
    fn encode(&self, log: &VolumeId) -> [u8; RECORD_HEADER] {
        let mut bytes = [0; RECORD_HEADER];
        bytes[..8].copy_from_slice(&RECORD_MAGIC);
        bytes[8..24].copy_from_slice(&log.0);
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.at.to_le_bytes());
        bytes[40..48].copy_from_slice(&(self.length as u64).to_le_bytes());
        bytes[48..80].copy_from_slice(&self.body);
        let hash = blake3::hash(&bytes[..96]);
        bytes[96..].copy_from_slice(hash.as_bytes());
        bytes
    }

    fn decode(block: &[u8], log: &VolumeId) -> Option<Record> {
        let bytes = block.get(..RECORD_HEADER)?;
        let hash = blake3::hash(&bytes[..96]);
        if bytes[..8] != RECORD_MAGIC || bytes[8..24] != log.0 || bytes[96..] != *hash.as_bytes() {
            return None;
        }
        let mut body = [0; 32];
        body.copy_from_slice(&bytes[48..80]);
        Some(Record {
            number: u64_at(bytes, 24),
            at: u64_at(bytes, 32),
            length: usize::try_from(u64_at(bytes, 40)).ok()?,
            body,
        })
    }

    fn blocks(&self) -> u64 {
        (RECORD_HEADER + self.length).div_ceil(BLOCK_SIZE) as u64
    }
}

/// The present contents of a cache device.
pub(super) enum OnDevice {
    /// Zeros: a new cache.
    New,
    /// A cache, and the flushes in it.
    Log(Box<Log>, Vec<Recovered>),
}

impl Log {
    /// Reads a cache device. `whole`: a damaged record is an error; otherwise the flushes before it are returned.
    pub(super) fn read(
        device: &Arc<dyn BlockDevice>,
        volume: VolumeId,
        features: Features,
        keys: Option<&Keys>,
        fault: Option<DeviceFault>,
        whole: bool,
    ) -> Result<OnDevice, CacheError> {
        let blocks = device.geometry().blocks;
        if blocks < RING + RING_MIN {
            let least = RING + RING_MIN;
            return Err(CacheError::Small { blocks, least });
        }
        let mut first = vec![0; LOOKED_AT as usize * BLOCK_SIZE];
        device.read(BlockNo(0), &mut first)?;
        let (headers, _) = first.as_chunks::<BLOCK_SIZE>();
        let found = [Header::decode(&headers[0])?, Header::decode(&headers[1])?];
        let newest = found
            .into_iter()
            .flatten()
            .max_by_key(|header| header.generation);
        let Some(header) = newest else {
            if is_reads(&first) {
                return Err(CacheError::OfReads);
            }
            return match first.iter().all(|byte| *byte == 0) {
                true => Ok(OnDevice::New),
                false => Err(CacheError::Foreign),
            };
        };
        if header.volume != volume {
            return Err(CacheError::OtherVolume(header.volume));
        }
        let log = header.ring.saturating_add(RING);
        let had = header.device.max(log);
        if had != blocks || log > blocks {
            return Err(CacheError::Resized { has: blocks, had });
        }
        let mut log = Log {
            device: Arc::clone(device),
            coding: coding(header.id, features, keys),
            unit_blocks: usize::from(features.unit_blocks),
            header,
            head: header.tail,
            next: header.first,
            fault,
        };
        let flushes = log.recover(whole)?;
        Ok(OnDevice::Log(Box::new(log), flushes))
    }

    /// Formats a device as a cache.
    pub(super) fn format(
        device: &Arc<dyn BlockDevice>,
        volume: VolumeId,
        features: Features,
        keys: Option<&Keys>,
        fault: Option<DeviceFault>,
    ) -> Result<Log, CacheError> {
        let id = random_volume()?;
        let header = Header {
            volume,
            id,
            generation: 0,
            ring: log_blocks(device.geometry().blocks).saturating_sub(RING),
            device: device.geometry().blocks,
            tail: 0,
            first: 1,
            term: Term(0),
            before: Term(0),
            stored: Slot(0),
        };
        let mut log = Log {
            device: Arc::clone(device),
            coding: coding(id, features, keys),
            unit_blocks: usize::from(features.unit_blocks),
            header,
            head: 0,
            next: 1,
            fault,
        };
        log.write_header()?;
        Ok(log)
    }

    /// The blocks of the read cache on the device, if there is room for one.
    pub(super) fn behind(&self) -> Option<std::ops::Range<u64>> {
        let first = RING + self.header.ring;
        (first < self.header.device).then_some(first..self.header.device)
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// Most blocks and holes of a flush.
    pub(super) fn flush_blocks(&self) -> u64 {
        (self.header.ring / FLUSH_SHARE).min(FLUSH_MOST)
    }

    /// The number of the next flush.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether a flush of this weight has room now.
    pub(super) fn has_room(&self, weight: u64) -> bool {
        let needed = weight + weight * OVERHEAD_PERCENT / 100 + 8;
        self.head - self.header.tail + needed <= self.header.ring
    }

    fn has(&self, fault: DeviceFault) -> bool {
        self.fault == Some(fault)
    }

    /// Writes the next header. It is durable when this returns.
    fn write_header(&mut self) -> Result<(), CacheError> {
        self.header.generation += 1;
        let at = BlockNo(self.header.generation % 2);
        self.device.write(at, &[&self.header.encode()])?;
        self.device.flush()?;
        Ok(())
    }

    /// Sets the term under which the records continue the history: `term`, or `before` if `term` is never opened. Durable when
    /// this returns.
    pub(super) fn adopt(&mut self, term: Term, before: Term) -> Result<(), CacheError> {
        (self.header.term, self.header.before) = (term, before);
        self.write_header()
    }

    /// Drops the records up to flush `number`, which end at `end`: the store has them, and all slots up to `slot`.
    pub(super) fn stored(&mut self, number: u64, end: u64, slot: Slot) -> Result<(), CacheError> {
        (self.header.first, self.header.tail) = (number + 1, end);
        self.header.stored = self.header.stored.max(slot);
        self.write_header()
    }

    /// Drops all flushes.
    pub(super) fn clear(&mut self) -> Result<(), CacheError> {
        (self.header.first, self.header.tail) = (self.next, self.head);
        self.write_header()
    }

    /// Appends a flush. It is durable when this returns. Returns its number, and the end of its record.
    pub(super) fn append(&mut self, contents: &Contents) -> Result<(u64, u64), CacheError> {
        let number = self.next;
        let bytes = self.encode(number, contents)?;
        let blocks = (bytes.len() / BLOCK_SIZE) as u64;
        if self.head - self.header.tail + blocks > self.header.ring {
            return Err(CacheError::Large(contents.weight()));
        }
        for (at, range) in self.pieces(self.head, blocks) {
            self.device.write(at, &[&bytes[range]])?;
        }
        if !self.has(DeviceFault::CacheUnflushed) {
            self.device.flush()?;
        }
        self.head += blocks;
        self.next += 1;
        Ok((number, self.head))
    }

    /// The place of a record, in one piece or two.
    fn pieces(&self, at: u64, blocks: u64) -> Vec<(BlockNo, std::ops::Range<usize>)> {
        let ring = self.header.ring;
        let first = blocks.min(ring - at % ring);
        let (middle, end) = (first as usize * BLOCK_SIZE, blocks as usize * BLOCK_SIZE);
        let mut pieces = vec![(BlockNo(RING + at % ring), 0..middle)];
        if first < blocks {
            pieces.push((BlockNo(RING), middle..end));
        }
        pieces
    }

    fn encode(&self, number: u64, contents: &Contents) -> Result<Bytes, CacheError> {
        let at = place_of(number);
        let name = ObjectName::Log(at);
        let epoch = Epoch {
            holes: contents.holes().collect(),
            own_blocks: contents.blocks.len() as u32,
            ..Epoch::default()
        };
        let salt = self.coding.salt()?;
        let (body, _, _) = encode_epoch(&self.coding, salt, at, epoch, |draft, epoch| {
            for (block, run) in contents.runs(self.unit_blocks, u64::MAX) {
                debug_assert!(cell_offset(draft).is_some());
                let parts: Vec<&[u8]> = run.iter().map(|bytes| &bytes[..]).collect();
                let kind = CellKind::Blocks;
                let (at, len) = push_cell(draft, &self.coding, name, kind, block, &parts);
                epoch.entries.push(Entry {
                    block,
                    count: run.len() as u16,
                    skip: 0,
                    object: 0,
                    at,
                    len,
                });
            }
        });
        let mut record = Record {
            number,
            at: self.head,
            length: body.len(),
            body: [0; 32],
        };
        record.body.copy_from_slice(&body[ENVELOPE - 32..ENVELOPE]);
        let blocks = record.blocks() as usize;
        let mut bytes = BytesMut::with_capacity(blocks * BLOCK_SIZE);
        bytes.extend_from_slice(&record.encode(&self.header.id));
        bytes.extend_from_slice(&body);
        bytes.resize(blocks * BLOCK_SIZE, 0);
        Ok(bytes.freeze())
    }

    fn read_at(&self, at: u64, blocks: u64) -> Result<Bytes, CacheError> {
        let mut bytes = BytesMut::zeroed(blocks as usize * BLOCK_SIZE);
        for (place, range) in self.pieces(at, blocks) {
            self.device.read(place, &mut bytes[range])?;
        }
        Ok(bytes.freeze())
    }

    fn recover(&mut self, whole: bool) -> Result<Vec<Recovered>, CacheError> {
        let mut flushes = Vec::new();
        loop {
            match self.read_record(self.head, self.next)? {
                Ok(found) => {
                    (self.head, self.next) = (found.end, found.number + 1);
                    flushes.push(found);
                }
                Err(why) if whole => {
                    self.refuse_damage(why)?;
                    return Ok(flushes);
                }
                Err(_) => return Ok(flushes),
            }
        }
    }

    /// Checks that no later record follows the invalid one: then that one was being written when the machine died.
    fn refuse_damage(&self, why: &'static str) -> Result<(), CacheError> {
        let most = FLUSH_MOST.min(self.header.ring / FLUSH_SHARE);
        let most = most + most * OVERHEAD_PERCENT / 100 + 8;
        let free = self.header.ring - (self.head - self.header.tail);
        let mut at = self.head + 1;
        let end = self.head + most.min(free);
        while at < end {
            let blocks = (end - at).min(256);
            let bytes = self.read_at(at, blocks)?;
            for (i, block) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
                let record = Record::decode(block, &self.header.id);
                let later =
                    |record: &Record| record.number > self.next && record.at == at + i as u64;
                if record.as_ref().is_some_and(later) {
                    return Err(CacheError::Damaged {
                        number: self.next,
                        why: why.to_owned(),
                    });
                }
            }
            at += blocks;
        }
        Ok(())
    }

    /// The record at a place, or the reason why there is none.
    fn read_record(
        &self,
        at: u64,
        number: u64,
    ) -> Result<Result<Recovered, &'static str>, CacheError> {
        let first = self.read_at(at, 1)?;
        let Some(record) = Record::decode(&first, &self.header.id) else {
            return Ok(Err("no record is there"));
        };
        if record.number != number || record.at != at {
            return Ok(Err("another record is there"));
        }
        let blocks = record.blocks();
        if self.head - self.header.tail + blocks > self.header.ring {
            return Ok(Err("it is longer than the log"));
        }
        let bytes = self.read_at(at, blocks)?;
        let body = bytes.slice(RECORD_HEADER..RECORD_HEADER + record.length);
        let intact = body.get(ENVELOPE - 32..ENVELOPE) == Some(&record.body[..]);
        let contents = match intact || self.has(DeviceFault::CacheTornBelieved) {
            true => self.decode(number, &body),
            false => return Ok(Err("it is torn")),
        };
        Ok(match contents {
            Ok(contents) => Ok(Recovered {
                number,
                contents,
                end: at + blocks,
            }),
            Err(_) => Err("it fails its checksum"),
        })
    }

    fn decode(&self, number: u64, body: &Bytes) -> Result<Contents, Bad> {
        let at = place_of(number);
        #[cfg(feature = "faults")]
        if self.has(DeviceFault::CacheTornBelieved) {
            return Ok(self.decode_unchecked(body));
        }
        let (SlotBody::Epoch(epoch), _) = decode_slot(&self.coding, at, body)? else {
            return Err(Bad::Content("it is a seal"));
        };
        let mut contents = Contents::default();
        for (block, count) in &epoch.holes {
            contents.discard(*block, *count);
        }
        for entry in &epoch.entries {
            let cell = entry.at as usize..(entry.at + entry.len) as usize;
            if cell.end > body.len() {
                return Err(Bad::Content("an entry lies outside of its record"));
            }
            let cell = read_cell(
                &self.coding,
                ObjectName::Log(at),
                entry.at,
                &body.slice(cell),
            )?;
            if cell.contents.len() != usize::from(entry.count) * BLOCK_SIZE {
                return Err(Bad::Content("a cell has another length"));
            }
            for i in 0..usize::from(entry.count) {
                let bytes = cell.contents.slice(i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE);
                contents.write(entry.block + i as u64, bytes);
            }
        }
        Ok(contents)
    }

    /// Planted fault: takes any bytes at the place of a plain volume's cells.
    #[cfg(feature = "faults")]
    fn decode_unchecked(&self, body: &Bytes) -> Contents {
        let mut contents = Contents::default();
        let mut at = crate::object::CELLS_AT;
        let header = crate::object::CELL_HEADER;
        let tables = body.get(ENVELOPE + 1..ENVELOPE + 5);
        let tables = tables.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
        while at + header <= tables.min(body.len()) {
            let (block, length) = (u64_at(body, at + 16), u64_at(body, at + 24) >> 32);
            at += header;
            let end = (at + length as usize).min(body.len());
            for (i, bytes) in body[at..end].chunks_exact(BLOCK_SIZE).enumerate() {
                contents.write(block + i as u64, Bytes::copy_from_slice(bytes));
            }
            at = end.max(at + 1);
        }
        contents
    }
}

/// The name under which a flush is encoded.
fn place_of(number: u64) -> SlotName {
    SlotName {
        term: Term(0),
        slot: Slot(number),
    }
}

/// The coding of records: bound to the cache's own identity, encrypted if the volume is, not compressed.
fn coding(id: VolumeId, features: Features, keys: Option<&Keys>) -> Coding {
    let features = Features {
        compression: None,
        flush_cache: false,
        ..features
    };
    Coding::new(id, features, keys.cloned())
}
